"""Sources of bytes: files and pipes, until the end or a signal."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from txl.config import ConfigError
from txl.train.signals import Signals
from txl.verbs.reading import COMPARED_BYTES, READ_BYTES, Source, check_readable, opened


def test_a_file_comes_whole_from_any_byte(tmp_path: Path) -> None:
    raw = bytes(range(256)) * 600
    (tmp_path / "a").write_bytes(raw)
    with opened(str(tmp_path / "a")) as source:
        assert (source.endless, source.size) == (False, len(raw))
        portions = list(source.portions(Signals()))
        assert b"".join(portions) == raw
        assert max(map(len, portions)) <= READ_BYTES
        source.go_to(1000)
        assert b"".join(source.portions(Signals())) == raw[1000:]
        assert source.digest_before(700) == hashlib.sha256(raw[:700]).hexdigest()  # wherever it is read


def test_what_comes_before_a_byte_is_known_by_its_last_mebibyte(tmp_path: Path) -> None:
    raw = bytes(range(256)) * 8192
    for first in (0, 1):  # another first byte, further back than what is compared
        (tmp_path / "a").write_bytes(bytes([first]) + raw[1:])
        with opened(str(tmp_path / "a")) as source:
            assert source.digest_before(len(raw)) == hashlib.sha256(raw[-COMPARED_BYTES:]).hexdigest()


def test_a_pipe_gives_what_is_there_and_ends_at_a_signal() -> None:
    reader, writer = os.pipe()
    source, signals = Source("-", reader), Signals()
    assert source.endless
    source.go_to(7)  # nothing to go back in
    assert source.digest_before(7) is None
    os.write(writer, b"first")
    portions = source.portions(signals)
    assert next(portions) == b"first"
    timer = threading.Timer(0.3, lambda: setattr(signals, "received", signal.SIGINT))
    timer.start()
    began = time.monotonic()
    assert list(portions) == []  # though the pipe is open
    assert time.monotonic() - began < 30
    os.close(writer)
    os.close(reader)


def test_everything_that_cannot_be_read_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert check_readable([str(tmp_path / "a"), "-", str(tmp_path / "a")]) == 10
    with pytest.raises(ConfigError) as caught:
        check_readable([str(tmp_path), str(tmp_path / "a"), str(tmp_path / "b")])
    assert caught.value.problems == (
        f"{tmp_path}: is a folder; allowed: files, or - for standard input",
        f"{tmp_path / 'b'}: no such file; allowed: files, or - for standard input",
    )
    with pytest.raises(ConfigError, match=r"b: cannot be read \(No such file"), opened(str(tmp_path / "b")):
        pass
