"""A log read while it is written, cut back and half there; and curves of its numbers."""

from __future__ import annotations

import json
from pathlib import Path

from txl.train.history import Log, history, metrics_of, series


def line(step: int, **numbers: object) -> str:
    return json.dumps({"step": step, "tokens": 10 * step, "elapsed_seconds": step / 2, **numbers}) + "\n"


def test_a_log_is_read_on_from_where_it_was_and_a_torn_line_is_left_for_later(tmp_path: Path) -> None:
    log, path = Log(tmp_path), tmp_path / "metrics.jsonl"
    log.refresh()
    assert log.records == []
    whole = line(2, nll=2.5)
    path.write_text(line(1, nll=3.0) + whole[:17])
    log.refresh()
    assert [record["step"] for record in log.records] == [1]
    with path.open("a") as file:
        file.write(whole[17:])
    log.refresh()
    log.refresh()
    assert [record["nll"] for record in log.records] == [3.0, 2.5]
    assert history(tmp_path) == log.records


def test_a_log_that_a_resumed_run_cut_back_and_wrote_on_has_every_step_once(tmp_path: Path) -> None:
    log, path = Log(tmp_path), tmp_path / "metrics.jsonl"
    path.write_text("".join(line(step, nll=1.0) for step in range(1, 9)))
    log.refresh()
    path.write_text("".join(line(step, nll=1.0) for step in range(1, 5)))  # shorter: read anew
    log.refresh()
    assert [record["step"] for record in log.records] == [1, 2, 3, 4]
    with path.open("a") as file:
        file.write(line(4, nll=2.0) + line(5, nll=2.0))
    log.refresh()
    assert [(record["step"], record["nll"]) for record in log.records] == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]


def test_a_log_that_was_cut_back_and_written_beyond_where_it_had_been_read_is_read_anew(tmp_path: Path) -> None:
    log, path = Log(tmp_path), tmp_path / "metrics.jsonl"
    path.write_text("".join(line(step, nll=1.0) for step in range(1, 4)))
    log.refresh()
    path.write_text("".join(line(step, nll=2.125) for step in range(1, 9)))
    log.refresh()
    assert [(record["step"], record["nll"]) for record in log.records] == [(step, 2.125) for step in range(1, 9)]


def test_a_line_that_is_no_record_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("[1]\nnonsense\n" + line(1, nll=3.0))
    assert [record["step"] for record in history(tmp_path)] == [1]


def test_a_curve_is_over_what_was_asked_with_means_of_stretches_and_gaps() -> None:
    records = [json.loads(line(step, nll=None if step == 3 else float(step))) for step in range(1, 6)]
    records[3]["valid_nll"] = 7.0
    assert series(records, "nll") == ([1, 2, 3, 4, 5], [1, 2, None, 4, 5])
    assert series(records, "nll", over="tokens", points=3) == ([20, 40, 50], [1.5, 4.0, 5.0])
    assert series(records, "valid_nll", over="seconds") == ([2.0], [7.0])
    assert series([], "nll", points=3) == ([], [])
    assert metrics_of(records) == ["elapsed_seconds", "nll", "step", "tokens", "valid_nll"]
