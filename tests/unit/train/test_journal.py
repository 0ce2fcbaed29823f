"""What stands in the files and on the screen, in a pipe and on a terminal."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from txl.config import TrainConfig
from txl.train import journal as module
from txl.train.journal import Journal, clock, describe, size

RECORD: dict[str, Any] = {
    "step": 3,
    "nll": 1.5,
    "bits_per_byte": 0.54101,
    "grad_norm": 0.4321,
    "lr": 0.00025,
    "tokens_per_second": 12345.6,
    "mfu": 0.4128,
    "memory_bytes": 1_048_576,
    "peak_bytes": 612_345_678,
    "skipped": 0,
}
VALID = {"valid_nll": 1.25, "valid_bits_per_byte": 1.80337, "valid_tokens": 1000}
CONFIG = TrainConfig(max_steps=20, log_every=5)


def test_a_step_in_a_line() -> None:
    assert describe(RECORD) == (
        "nll 1.5000  0.5410 bits/byte  norm 0.432  lr 2.50e-04  12,346 tokens/s  mfu 41.3%  memory 1.05 MB  peak 612 MB"
    )
    assert describe({**RECORD, "bits_per_byte": None}).startswith("nll 1.5000  norm 0.432")
    assert describe({**RECORD, **VALID}).endswith("peak 612 MB  valid nll 1.2500, 1.8034 bits per byte")
    assert describe({**RECORD, **VALID, "valid_bits_per_byte": None}).endswith("  valid nll 1.2500")
    assert describe({**RECORD, "nll": None, "skipped": 4}).startswith("not finite: skipped (4 so far)  lr")
    assert describe({**RECORD, "grad_norm": None, "skipped": 1}).startswith("not finite: skipped (1 so far)")
    assert describe({**RECORD, **VALID, "valid_nll": None}).endswith("valid not finite")


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (24_576, "24.6 kB"), (999_600, "1 MB"), (1_610_000_000, "1.61 GB"), (3e15, "3000 TB")],
)
def test_bytes_in_three_digits(n_bytes: float, text: str) -> None:
    assert size(n_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0:00"), (7, "0:07"), (59.6, "1:00"), (750, "12:30"), (3723, "1:02:03")]
)
def test_a_time_as_a_clock_shows_it(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_in_a_pipe_there_is_a_line_for_the_first_step_each_due_one_validations_and_the_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Journal(tmp_path, CONFIG, active=True) as journal:
        journal.begin(0, {})
        for step in range(1, 21):
            journal.step({**RECORD, "step": step, **(VALID if step == 7 else {})})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["1/20", "5/20", "7/20", "10/20", "15/20", "20/20"]
    assert all("eta 0:0" in line for line in lines)
    assert "\x1b" not in "".join(lines)
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in written] == list(range(1, 21))
    assert written[6] == {**RECORD, "step": 7, **VALID}


def test_the_files_are_cut_to_the_position_of_the_checkpoint(tmp_path: Path) -> None:
    with Journal(tmp_path, CONFIG, active=True) as journal:
        journal.begin(0, {})
        journal.step({**RECORD, "step": 1})
        journal.sample(1, "prompt é", "text")
        position = journal.position()
        journal.step({**RECORD, "step": 2})
        journal.sample(2, "prompt", "more")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "nll')  # killed while it wrote
    with Journal(tmp_path, CONFIG, active=True) as journal:
        journal.begin(1, position)
        journal.step({**RECORD, "step": 2, "nll": 1.75})
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2]
    assert (tmp_path / "samples.txt").read_text(encoding="utf-8") == (
        "=== step 1: prompt ===\nprompt é\n=== step 1: the model ===\ntext\n\n"
    )


def test_a_log_that_was_lost_is_begun_anew_without_holes(tmp_path: Path) -> None:
    with Journal(tmp_path, CONFIG, active=True) as journal:
        journal.begin(5, {"metrics.jsonl": 1000, "samples.txt": 10})
        journal.step({**RECORD, "step": 6})
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["step"] == 6


def test_numbers_are_written_to_the_last_bit_and_nan_never(tmp_path: Path) -> None:
    with Journal(tmp_path, CONFIG, active=True) as journal:
        journal.begin(0, {})
        journal.step({**RECORD, "nll": 0.1 + 0.2})
        with pytest.raises(ValueError, match="Out of range"):
            journal.step({**RECORD, "nll": float("nan")})
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["nll"] == 0.1 + 0.2


def test_other_processes_write_and_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal(tmp_path, CONFIG, active=False) as journal:
        journal.say("x")
        journal.working("x", 1, 2)
        journal.begin(0, {})
        journal.step(RECORD)
        journal.sample(1, "a", "b")
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_long_work_in_a_pipe_is_reported_now_and_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with Journal(tmp_path, CONFIG, active=True) as journal:
        for seconds in range(35):
            now[0] = 100.0 + seconds
            journal.working("reading", seconds * 1000, 35_000)
    assert capsys.readouterr().out.splitlines() == [
        "reading: 11,000 of 35,000",
        "reading: 22,000 of 35,000",
        "reading: 33,000 of 35,000",
    ]


def test_on_a_terminal_one_line_moves_and_validations_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    console = Console(file=terminal, force_terminal=True, width=150, highlight=False)
    monkeypatch.setattr(module, "Console", lambda **rest: console)
    with Journal(tmp_path, CONFIG, active=True) as journal:
        journal.say("run: what runs")
        journal.working("encoding", 3, None)
        journal.begin(0, {})
        for step in range(1, 8):
            journal.step({**RECORD, "step": step, **(VALID if step == 4 else {})})
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    for text in ("run: what runs", "encoding", "training", "7/20", "eta"):
        assert text in shown
    assert shown.count("step 4/20") == 1
    assert "step 5/20" not in shown
