"""The verb that draws: its pictures of runs, finished or not, and its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from txl import cli
from txl.verbs import watching


def log(folder: Path, name: str, steps: int) -> str:
    run = folder / name
    run.mkdir()
    records = [
        {
            "step": step,
            "tokens": 64 * step,
            "elapsed_seconds": 0.5 * step,
            "nll": 5 / step,
            "bits_per_byte": 8 / step,
            "lr": 0.1,
        }
        | ({"valid_bits_per_byte": 9 / step} if step % 5 == 0 else {})
        for step in range(1, steps + 1)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records) + '{"step": 99, "n')
    return str(run)


def test_runs_are_drawn_over_each_other_with_their_last_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = log(tmp_path, "one", 40), log(tmp_path, "other", 20)
    assert cli.main(["watch", one, other]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("bits_per_byte\n")
    assert "\nvalid_bits_per_byte\n" in shown
    assert "40 step" in shown
    assert f"━ {one}  step 40  bits_per_byte 0.2  valid_bits_per_byte 0.225\n" in shown.replace("\n ", " ")
    assert "step 20  bits_per_byte 0.4" in shown
    assert "⠁" <= max(shown) <= "⣿" or sorted(shown)[-1] <= "⣿"


def test_the_axis_and_the_metrics_are_those_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = log(tmp_path, "one", 40)
    assert cli.main(["watch", run, "--metric", "nll", "--metric", "lr", "--over", "tokens"]) == 0
    shown = capsys.readouterr().out
    assert "2,560 tokens" in shown
    assert [text for text in ("nll", "lr", "bits_per_byte") if f"{text}\n" in shown] == ["nll", "lr"]


def test_what_is_not_there_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = log(tmp_path, "one", 4)
    assert cli.main(["watch", run, str(tmp_path / "none")]) == 2
    assert f"{tmp_path / 'none'}: found no metrics.jsonl; allowed: folders of runs" in capsys.readouterr().err
    assert cli.main(["watch", run, "--metric", "loss"]) == 2
    assert "--metric: found loss, which is in no log; allowed: bits_per_byte, elapsed_seconds, lr, nll" in (
        capsys.readouterr().err
    )


def test_a_run_that_has_just_begun_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").touch()
    assert cli.main(["watch", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "no numbers of nll yet" in shown
    assert "no step yet" in shown


def test_following_draws_what_comes_until_ctrl_c(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(log(tmp_path, "one", 3))
    looks = 0

    def slept(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise KeyboardInterrupt
        (run / "metrics.jsonl").write_text(
            "".join(
                json.dumps({"step": n, "tokens": n, "elapsed_seconds": n, "bits_per_byte": 7.0}) + "\n"
                for n in range(1, 9)
            )
        )

    monkeypatch.setattr(watching.time, "sleep", slept)
    assert cli.main(["watch", str(run), "--follow"]) == 0
    assert looks == 2
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert [line.partition("step ")[2] for line in shown if "step " in line] == [
        "3 bits_per_byte 2.6667",
        "8 bits_per_byte 7",
    ]
