"""txl score on a small random model: what it prints, how it goes on, and how it refuses."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import words
from tests.streaming import anonymous_bytes, make_run
from txl import Session, cli, load
from txl.checkpoint import read_stream
from txl.infer import spans
from txl.verbs import scoring

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("byte") / "run")


@pytest.fixture(scope="module")
def word_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("word") / "run", "tokenizer.kind=word", "data.separator=<doc>")


def score(*words: Any, code: int = 0) -> None:
    assert cli.main(["score", *map(str, words)]) == code


def records(capsys: Capture) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def nats_of(run: Path, raw: bytes) -> list[float]:
    return Session(load(run).model).feed(torch.tensor([list(raw)]))[0].tolist()


def test_lines_of_files_are_scored_in_running_memory_each_file_anew(run: Path, tmp_path: Path, capsys: Capture) -> None:
    raws = {"one.txt": words(40).encode() + b"no end", "empty.txt": b"", "two.txt": "café\n\nπ\n".encode()}
    for name, raw in raws.items():
        (tmp_path / name).write_bytes(raw)
    score(run, *(tmp_path / name for name in raws))
    shown = capsys.readouterr()
    found = [json.loads(line) for line in shown.out.splitlines()]
    expected, total, tokens = [], 0.0, 0
    for name, raw in raws.items():
        nats, offset = nats_of(run, raw) if raw else [], 0
        for number, line in enumerate(raw.splitlines(keepends=True), start=1):
            part = [n for n in nats[offset : offset + len(line)] if n == n]
            bits = math.fsum(part) / math.log(2)
            expected.append((str(tmp_path / name), number, offset, len(line), len(part), line.decode().rstrip("\n")))
            assert found[len(expected) - 1]["bits"] == pytest.approx(bits, abs=1e-3)
            assert found[len(expected) - 1]["bits_per_token"] == pytest.approx(bits / len(part), abs=1e-3)
            offset, total, tokens = offset + len(line), total + math.fsum(part), tokens + len(part)
    keys = ("file", "line", "offset", "bytes", "tokens", "text")
    assert [tuple(one[key] for key in keys) for one in found] == expected
    assert f"{tokens:,} tokens, {total:,.2f} nats" in shown.err
    assert f"perplexity {math.exp(total / tokens):.3f}" in shown.err
    assert "; window 10" in shown.err


def test_tsv_has_the_measure_first_and_no_stray_tabs(run: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.txt").write_bytes(b"x\n" + b"a\tb\\n\rc\n")
    score(run, tmp_path / "a.txt", "--format", "tsv", "--isolate", "--window", 4)
    shown = capsys.readouterr()
    first, second = (line.split("\t") for line in shown.out.splitlines())
    assert first[3:] == ["1", str(tmp_path / "a.txt"), "1", "0", "2", "x"]
    assert second[3:] == ["7", str(tmp_path / "a.txt"), "2", "2", "8", "a\\tb\\\\n\\rc"]
    assert float(second[0]) == pytest.approx(float(second[2]) / 7, abs=1e-3)
    assert "; window 4" in shown.err


def test_the_strangest_are_found_by_a_bound_or_by_rank(run: Path, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a.txt"
    path.write_text(words(300, seed=3), encoding="utf-8")
    for unit in ("line", "token"):
        score(run, path, "--unit", unit)
        everything = records(capsys)
        key = "bits" if unit == "token" else "bits_per_token"
        bits = sorted((one[key] for one in everything if one[key] is not None), reverse=True)
        bound = (bits[4] + bits[5]) / 2
        score(run, path, "--unit", unit, "--above", bound)
        assert records(capsys) == [one for one in everything if one[key] is not None and one[key] > bound]
        score(run, path, "--unit", unit, "--top", 5)
        assert [one[key] for one in records(capsys)] == bits[:5]


def test_isolated_lines_do_not_know_each_other(run: Path, tmp_path: Path, capsys: Capture) -> None:
    lines = words(60, seed=9).splitlines(keepends=True)
    found = []
    for order in (lines, lines[::-1]):
        (tmp_path / "a.txt").write_text("".join(order), encoding="utf-8")
        score(run, tmp_path / "a.txt", "--isolate")
        found.append({one["text"]: (one["bits"], one["tokens"]) for one in records(capsys)})
    assert found[0] == found[1]
    (tmp_path / "a.txt").write_text(lines[3], encoding="utf-8")
    score(run, tmp_path / "a.txt")
    (alone,) = records(capsys)
    assert found[0][alone["text"]] == (alone["bits"], alone["tokens"])


def test_documents_in_a_file_begin_where_the_pattern_says(run: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.txt").write_text("= a =\none two\n= b =\nthree\n", encoding="utf-8")
    score(run, tmp_path / "a.txt", "--unit", "document", "data.document_pattern==")
    found = records(capsys)
    assert [(one["line"], one["bytes"], one["tokens"]) for one in found] == [(1, 14, 13), (3, 12, 12)]
    resets = torch.zeros(1, 26, dtype=torch.bool)
    resets[0, 14] = True
    raw = (tmp_path / "a.txt").read_bytes()
    nats = Session(load(run).model).feed(torch.tensor([list(raw)]), resets=resets)[0, 14:]
    assert found[1]["bits"] == pytest.approx(float(nats.double().sum()) / math.log(2), abs=1e-3)


def test_what_is_no_text_is_said(word_run: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.txt").write_bytes(b"the river \xff\xfe ran\nunseen\n\xe4\xb8")
    score(word_run, tmp_path / "a.txt")
    shown = capsys.readouterr()
    assert "3 sequences that are no UTF-8 were scored as U+FFFD" in shown.err
    assert "3 tokens unknown to the vocabulary" in shown.err
    assert json.loads(shown.out.splitlines()[0])["text"] == "the river \ufffd\ufffd ran"


def test_windows_that_are_computed_anew_are_said(tmp_path: Path, capsys: Capture) -> None:
    run = make_run(tmp_path / "run", "model.mem_len=0", "model.position=sinusoidal")
    (tmp_path / "a.txt").write_text("a\n")
    score(run, tmp_path / "a.txt")
    assert "each token's window of 11 is computed anew" in capsys.readouterr().err


# Stopping and going on


def stop_after(blocks: int, signum: int, patch: pytest.MonkeyPatch) -> None:
    """A signal comes while that many blocks have been written."""
    write, count = scoring.Output.write, 0

    def stopping(self: scoring.Output, name: str, found: Any) -> None:
        nonlocal count
        write(self, name, found)
        count += 1
        if count == blocks:
            os.kill(os.getpid(), signum)

    patch.setattr(scoring.Output, "write", stopping)


@pytest.mark.parametrize("unit", ["token", "line", "sentence", "document"])
def test_a_stopped_job_goes_on_exactly(
    unit: str, run: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "BLOCK_BYTES", 100)
    text = words(90, seed=2) + "One. Two " + "x" * 250 + "? Three.\n" + words(30)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(text + name, encoding="utf-8")
    command = (run, tmp_path / "a.txt", tmp_path / "b.txt", "--unit", unit)
    score(*command)
    whole = capsys.readouterr()
    state, shown, opened = tmp_path / "s.state", "", []
    for blocks, signum, code in ((3, signal.SIGINT, 130), (4, signal.SIGTERM, 143), (7, signal.SIGINT, 130)):
        with monkeypatch.context() as patch:
            stop_after(blocks, signum, patch)
            score(*command, "--state", state, code=code)
        part = capsys.readouterr()
        assert f"{state} is saved: the same command goes on" in part.err
        opened.append(read_stream(state)[1]["score"]["open"] is not None)
        # What is open at a stop is printed as far as it is, and again once it is whole.
        shown += "".join(part.out.splitlines(keepends=True)[: -1 if opened[-1] else None])
    score(*command, "--state", state)
    rest = capsys.readouterr()
    assert shown + rest.out == whole.out
    assert rest.err == whole.err
    assert any(opened) is (unit != "token")


def test_a_file_that_grew_is_gone_on_with(run: Path, tmp_path: Path, capsys: Capture) -> None:
    path, state = tmp_path / "a.log", tmp_path / "s.state"
    path.write_text("one line\nhalf of")
    score(run, path, "--state", state)
    assert [one["text"] for one in records(capsys)] == ["one line", "half of"]
    score(run, path, "--state", state)
    assert [one["text"] for one in records(capsys)] == ["half of"]
    path.write_text("one line\nhalf of another\nthird\n")
    score(run, path, "--state", state)
    found = records(capsys)
    score(run, path)
    whole = records(capsys)
    assert found == whole[1:]
    path.write_text("short")
    score(run, path, "--state", state, code=2)
    assert f"{path}: has 5 bytes, and byte 31 of it was scored" in capsys.readouterr().err
    path.write_text("one line\nhalf of another\nbirds\nand so on\n")
    score(run, path, "--state", state, code=2)
    shown = capsys.readouterr()
    assert f"{path}: what was scored, up to byte 31, is not what stands there now: another text? Remove {state}" in (
        shown.err
    )
    assert shown.out == ""


def test_a_state_of_another_job_is_refused(run: Path, tmp_path: Path, capsys: Capture) -> None:
    path, state = tmp_path / "a.txt", tmp_path / "s.state"
    path.write_text("one two\n")
    (tmp_path / "b.txt").write_text("three\n")
    score(run, path, "--state", state)
    other = make_run(tmp_path / "other", seed=1)
    cases: list[tuple[list[Any], str]] = [
        ([other, path], f"--state {state}: the state is not of a session like this one: model is "),
        ([run, path, "--window", 3], "not of a session like this one: window is 10 instead of 3. Make"),
        ([run, path, "--unit", "token"], "'unit': 'line'"),
        ([run, tmp_path / "b.txt"], f"scored {path}; found {tmp_path / 'b.txt'}"),
    ]
    for command, message in cases:
        score(*command, "--state", state, code=2)
        assert message in capsys.readouterr().err
    state.write_bytes(state.read_bytes()[:-2])
    score(run, path, "--state", state, code=2)
    assert f"{state}: cannot be read as a state" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.txt", "also.txt"], "nowhere.txt: no such file; allowed: files, or - for standard input\nalso.txt"),
        (["."], ".: is a folder"),
        (["data.document_pattern=x"], "FILE: found none"),
        (["-", "-"], "-: found 2 times; allowed: once"),
        (["-", "--above", "nan"], "--above: found nan; allowed: a number of bits"),
        (["-", "--window", "1000000000000"], "window: found 1000000000000, whose keys and values for 1 rows take"),
        (["-", "--state", "nowhere/s"], "nowhere/s: the state cannot be written"),
        (["-", "--state", "."], ".: cannot be read as a state ("),
        (["-", "--top", "0"], "--top: found 0; allowed: at least 1"),
        (["-", "--top", "3", "--state", "s"], "--top with --state"),
        (["-", "--isolate", "--unit", "document"], "--isolate with --unit document"),
        (["-", "--window", "-1"], "--window is -1: must be at least 0"),
        (["-", "model.n_layer=3"], "model.n_layer: found 3, trained with 2"),
    ],
)
def test_score_refuses_with_code_2(
    words: list[str], message: str, run: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    score(run, *words, code=2)
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


# Endless text


def test_an_endless_pipe_gets_each_line_at_once_and_ctrl_c_saves(run: Path, tmp_path: Path, capsys: Capture) -> None:
    state, lines = tmp_path / "s.state", words(40, seed=4).encode().splitlines(keepends=True)
    (tmp_path / "whole.txt").write_bytes(b"".join(lines))
    score(run, tmp_path / "whole.txt")
    whole = records(capsys)
    command = [sys.executable, "-m", "txl", "score", str(run), "-", "--state", str(state)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    found = []
    with subprocess.Popen(command, **pipes) as process:
        writer, reader = process.stdin, process.stdout
        assert writer is not None
        assert reader is not None
        for line in lines[:3]:
            writer.write(line[:-1])
            writer.flush()
            writer.write(b"\n" + b"hal")  # the beginning of a line is not scored before its end is there
            writer.flush()
            found.append(json.loads(reader.readline()))
            writer.write(b"f\n")
            writer.flush()
            assert json.loads(reader.readline())["text"] == "half"
        process.send_signal(signal.SIGINT)  # while nothing comes
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert f"stopped after byte {sum(map(len, lines[:3])) + 15:,} of standard input; {state} is saved".encode() in err
    assert f"tail -c +{sum(map(len, lines[:3])) + 16} gives".encode() in err
    assert [one["text"] for one in found] == [one["text"] for one in whole[:3]]
    assert found[0]["bits"] == whole[0]["bits"]


def test_a_pipe_goes_on_where_the_state_stands(
    run: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, state = words(90, seed=4).encode(), tmp_path / "s.state"
    (tmp_path / "whole.txt").write_bytes(raw)
    score(run, tmp_path / "whole.txt")
    whole, found = records(capsys), []
    cut = raw.index(b"\n", 300) + 1
    for part in (raw[:cut], raw[cut:]):
        reader, writer = os.pipe()
        os.write(writer, part)
        os.close(writer)
        monkeypatch.setattr(sys, "stdin", os.fdopen(reader))
        score(run, "-", "--state", state)
        found += records(capsys)
        sys.stdin.close()
    for one, expected in zip(found, whole, strict=True):
        for key in ("line", "offset", "bytes", "tokens", "text"):
            assert one[key] == expected[key]
        assert one["bits"] == pytest.approx(expected["bits"], abs=1e-3)


@pytest.mark.parametrize("megabytes", [4, pytest.param(30, marks=pytest.mark.slow)])
def test_an_endless_line_is_scored_in_constant_memory(
    megabytes: int, word_run: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"the river " + b"x" * (megabytes * 1_000_000) + b" ran\n")
    sizes: list[int] = []
    write = scoring.Output.write

    def measured(self: scoring.Output, name: str, found: Any) -> None:
        write(self, name, found)
        sizes.append(anonymous_bytes())

    monkeypatch.setattr(scoring.Output, "write", measured)
    score(word_run, path)
    (record,) = records(capsys)
    assert record["bytes"] == path.stat().st_size
    assert record["tokens"] >= 60 * megabytes  # a part of 16 KiB is one unknown word
    assert max(sizes[50:]) - sizes[50] < 2_000_000
    assert len(record["text"]) == 1001
