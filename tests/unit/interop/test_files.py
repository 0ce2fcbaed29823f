"""Files of others: limits, encodings, and links that lead out of a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from txl.data import DataError
from txl.interop.files import member, read_json, read_text


def test_links_stay_in_the_folder_or_in_the_download_cache(tmp_path: Path) -> None:
    folder = tmp_path / "models--a" / "snapshots" / "abc"
    blobs = tmp_path / "models--a" / "blobs"
    for place in (folder, blobs):
        place.mkdir(parents=True)
    (blobs / "0123").write_text("{}")
    (tmp_path / "secret.json").write_text("{}")
    (folder / "config.json").symlink_to("../../blobs/0123")
    (folder / "copy.json").symlink_to("config.json")
    (folder / "vocab.json").symlink_to(tmp_path / "secret.json")
    (folder / "gone.json").symlink_to("nowhere")
    assert member(folder, "config.json") == folder / "config.json"
    assert member(folder, "copy.json") == folder / "copy.json"
    assert member(folder, "gone.json") is None
    assert member(folder, "missing.json") is None
    with pytest.raises(DataError, match=r"vocab\.json: a link to .*secret\.json, outside the folder"):
        member(folder, "vocab.json")


def test_a_folder_may_itself_be_reached_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "config.json").write_text("{}")
    (tmp_path / "link").symlink_to("real")
    assert member(tmp_path / "link", "config.json") is not None


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(DataError, match=r"config\.json: cannot be read \(No such file"):
        read_text(path, limit_bytes=10)
    path.write_text("12345678901")
    with pytest.raises(DataError, match="has 11 bytes, but at most 10 are read"):
        read_text(path, limit_bytes=10)
    path.write_bytes(b"ab\xff")
    with pytest.raises(DataError, match="is not UTF-8 at byte 2"):
        read_text(path, limit_bytes=10)
    path.write_text('{"a": 1,}')
    with pytest.raises(DataError, match="is not JSON"):
        read_json(path, limit_bytes=100)
    path.write_text("[" * 200_000)
    with pytest.raises(DataError, match="nested too deep"):
        read_json(path, limit_bytes=1_000_000)
