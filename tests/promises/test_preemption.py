"""Promises 5, 6 and 20: a signal or a number that is not finite never costs more than it must.

Two processes that must agree on either are in tests/distributed.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import txl
from tests.commands import config_file, finish, start, wait_for
from tests.runs import metrics, remains, stop_at, tensors, tiny
from txl.checkpoint import CheckpointError, checkpoints
from txl.config import Config, load_config
from txl.model.transformer_xl import TransformerXL
from txl.runtime import Runtime
from txl.train import loop
from txl.train.loop import NonFiniteError, Preempted, is_better, is_finished, train
from txl.train.signals import Signals


def long_run(folder: Path, *overrides: str) -> Config:
    return tiny(folder, "train.max_steps=100000", "train.eval_every=1000", "train.sample_every=0", *overrides)


def test_p5_a_stopped_command_saves_prints_the_command_that_goes_on_and_ends_with_its_code(tmp_path: Path) -> None:
    config = long_run(tmp_path, "train.save_every=100000")
    words = ["train", config_file(tmp_path, config)]
    before = 0
    for signum, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = start(*words)
        assert wait_for(process, "steps").rstrip().endswith(f"steps {before} to 100000")
        wait_for(process, rf"^step {before + 3}/")
        with pytest.raises(CheckpointError, match=rf"another run is writing there \(process {process.pid} on "):
            train(config)
        process.send_signal(signum)
        returned, out = finish(process)
        assert returned == code
        assert f"stopped by {signal.Signals(signum).name} and saved" in out
        assert "Traceback" not in out
        (command,) = re.findall(r"so does: txl (.*)$", out, re.MULTILINE)
        words = shlex.split(command)
        before = int(checkpoints(config.run.dir)[0].name.removeprefix("step-"))
        assert [line["step"] for line in metrics(config.run.dir)] == list(range(1, before + 1))


def test_p5_a_run_whose_output_nobody_reads_any_more_goes_on_to_its_end(tmp_path: Path) -> None:
    config = tiny(tmp_path, "train.max_steps=60", "train.sample_every=0", "train.eval_every=100")
    process = start("train", config_file(tmp_path, config))
    wait_for(process, r"^step 2/")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(100) == 0
    assert is_finished(config)
    assert len(metrics(config.run.dir)) == 60


def poison(monkeypatch: pytest.MonkeyPatch, steps: set[int], *, loss: bool) -> None:
    """At these steps the loss, or else only its gradient, is not a number."""
    step, backward, rate, nll = [0], Runtime.backward, loop.learning_rate, TransformerXL.nll

    def noted(number: int, *rest: Any) -> float:
        step[0] = number
        return rate(number, *rest)

    def bad_gradient(self: Runtime, value: torch.Tensor) -> None:
        backward(self, value * math.nan if step[0] in steps and not loss else value)

    def bad_loss(self: TransformerXL, *args: torch.Tensor) -> torch.Tensor:
        return nll(self, *args) * (math.nan if step[0] in steps and loss and self.training else 1.0)

    monkeypatch.setattr(loop, "learning_rate", noted)
    monkeypatch.setattr(Runtime, "backward", bad_gradient)
    monkeypatch.setattr(TransformerXL, "nll", bad_loss)


def test_p6_a_gradient_that_is_not_finite_ends_the_run_with_weights_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(tmp_path, "train.save_every=2")
    poison(monkeypatch, {5}, loss=False)
    message = (
        r"step 5: the loss is [\d.]+, the gradient's norm nan \(1 such in a row\).*step-000004.*train.non_finite=skip"
    )
    with pytest.raises(NonFiniteError, match=message):
        train(config)
    lines = metrics(config.run.dir)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert (lines[4]["grad_norm"], lines[4]["skipped"]) == (None, 1)
    assert checkpoints(config.run.dir)[0].name == "step-000004"
    assert not is_finished(config)


def test_p6_skipped_steps_leave_weights_moments_and_memory_and_a_gap_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(tmp_path, "train.non_finite=skip", "train.save_every=1", "train.keep_last=9", "train.max_skipped=3")
    poison(monkeypatch, {4, 5, 8}, loss=True)
    train(config)
    assert len(checkpoints(config.run.dir)) == 9
    lines = {line["step"]: line for line in metrics(config.run.dir)}
    assert [line["skipped"] for line in lines.values()] == [0, 0, 0, 1, 2, 2, 2, 3, 3, 3, 3, 3]
    assert [step for step, line in lines.items() if line["nll"] is None] == [4, 5, 8]
    for name in ("model", "optimizer", "memory"):
        before, after, later = (tensors(config.run.dir, step, name) for step in (7, 8, 9))
        assert all(torch.equal(before[key], after[key]) for key in before)
        assert not all(torch.equal(before[key], later[key]) for key in before)
    positions = [remains(config.run.dir, step)["position"]["token"] for step in (7, 8, 9)]
    assert positions == [49, 56, 63]  # the text goes on


def test_p6_a_skipped_step_leaves_muons_momentum_and_the_averages_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ("train.non_finite=skip", "train.save_every=1", "train.keep_last=9", "train.max_steps=5")
    config = tiny(tmp_path, *kept, "optim.name=muon", "optim.ema_decay=0.9")
    poison(monkeypatch, {4}, loss=False)
    train(config)
    before, after, later = (tensors(config.run.dir, step, "optimizer") for step in (3, 4, 5))
    assert {name.partition(".")[0] for name in before} == {
        "exp_avg",
        "exp_avg_sq",
        "step",
        "momentum_buffer",
        "average",
    }
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert not any(torch.equal(before[key], later[key]) for key in before)


def test_p6_overflows_that_the_scaler_cannot_cure_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(tmp_path, "train.max_steps=40", "optim.warmup_steps=3", "train.sample_every=0")
    monkeypatch.setattr(Runtime, "scales_gradients", True)
    monkeypatch.setattr(Runtime, "step", lambda self, optimizer: False)
    with pytest.raises(NonFiniteError, match=r"step 30: .*\(30 such in a row\).*runtime.precision=fp32"):
        train(config)
    assert [line["skipped"] for line in metrics(config.run.dir)] == list(range(1, 31))


def test_p6_too_many_skipped_steps_in_a_row_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(tmp_path, "train.non_finite=skip", "train.max_skipped=3", "train.save_every=1")
    poison(monkeypatch, {2, 3, 5, 6, 7}, loss=False)
    with pytest.raises(NonFiniteError, match=r"step 7: .*\(3 such in a row\)"):
        train(config)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_p5_a_signal_finishes_the_step_saves_and_says_how_to_go_on(
    signum: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(tmp_path, "train.save_every=100", "train.eval_every=100", "train.max_steps=5")
    with monkeypatch.context() as patch:
        stop_at(patch, 2, signum)
        with pytest.raises(Preempted) as caught:
            train(config)
    assert caught.value.signum == signum
    assert f"stopped by {signal.Signals(signum).name} and saved" in str(caught.value)
    assert str(caught.value).endswith(f"txl train {config.run.dir}/config.yaml")
    assert [path.name for path in checkpoints(config.run.dir)] == ["step-000002"]
    assert not is_finished(config)
    result = train(load_config(f"{config.run.dir}/config.yaml"))  # saves again although no validation was made before
    assert (result.step, result.finished) == (5, True)
    assert [line["step"] for line in metrics(config.run.dir)] == [1, 2, 3, 4, 5]


def test_p5_a_signal_in_the_last_evaluation_ends_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(tmp_path, "train.max_steps=4")
    sample = loop.sample

    def interrupted(*args: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return sample(*args)

    monkeypatch.setattr(loop, "sample", interrupted)
    with pytest.raises(Preempted):
        train(config)
    assert not is_finished(config)


def test_p20_the_best_is_the_lowest_finite_validation_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([3.0, 2.0, math.nan, 2.5, 2.1, 2.2, 9.9])

    def validate(*args: Any, **rest: Any) -> dict[str, Any]:
        nll = loop.finite_or_none(next(losses))
        return {"valid_nll": nll, "valid_bits_per_byte": nll, "valid_bits": nll, "valid_tokens": 60}

    monkeypatch.setattr(loop, "validate", validate)
    config = tiny(tmp_path, "train.eval_every=2", "train.save_every=100", "train.keep_last=1")
    train(config)
    assert [path.name for path in checkpoints(config.run.dir)] == ["step-000012", "step-000004"]
    assert txl.load(config.run.dir, "best").step == 4


def test_p20_a_validation_that_is_not_finite_is_never_the_best() -> None:
    assert is_better(1.0, than=None)
    assert is_better(0.0, than=0.5)
    assert not is_better(0.5, than=0.0)
    assert not is_better(None, than=None)
    assert not is_better(1.0, than=1.0)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143)])
def test_p5_a_second_signal_ends_the_process_at_once_with_the_code(
    signum: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    with Signals() as signals:
        signals.arm()
        assert signals.received == 0
        os.kill(os.getpid(), signum)
        assert (signals.received, ended) == (signum, [])
        os.kill(os.getpid(), signum)
        assert ended == [code]
    assert Preempted(signum, "why").exit_code == code
    assert str(Preempted(signum, "why")) == "why"
