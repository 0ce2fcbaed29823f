"""Laws 17 to 20: resuming, splitting rows, validating and the learning rate change nothing of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runs import NO_DROPOUT, differences, metrics, remains, tiny, train_in_parts
from txl.model import Memory
from txl.runtime import Runtime
from txl.train import state
from txl.train.loop import train

PARTS = {
    "after step 1 and before the last, with micro-batches": ((1, 11), 700, ("train.accumulate=2",)),
    "with shuffled documents, resets, half the loss and a cosine": (
        (3, 6),
        170,
        ("data.shuffle_documents=true", "data.reset_memory=true", "train.loss=half", "optim.schedule=cosine"),
    ),
    "with Muon, a linear fall and averaged weights": (
        (1, 7),
        300,
        ("optim.name=muon", "optim.weight_decay=0.1", "optim.schedule=linear", "optim.ema_decay=0.6"),
    ),
    "with averaged weights and a stable rate that falls": (
        (2, 9),
        300,
        ("optim.schedule=wsd", "optim.decay_steps=4", "optim.ema_decay=0.9", "train.accumulate=2"),
    ),
    "in the middle of a stage of longer segments and at its beginning": (
        (4, 7),
        300,
        ("train.tgt_len_schedule=[[0,2],[4,5],[9,7]]", "data.reset_memory=true"),
    ),
    "with shuffled segments, across the end of an epoch": (
        (3, 10),
        170,
        ("data.shuffle_segments=true", "model.mem_len=0", "data.shuffle_documents=true"),
    ),
    "with memory through shuffled chunks, across the end of an epoch": (
        (3, 10),
        170,
        ("data.shuffle_segments=true", "data.segments_together=3"),
    ),
    "with Muon, the inverse root and bf16": (
        (3, 5),
        300,
        ("optim.name=muon", "optim.schedule=inverse_sqrt", "runtime.precision=bf16"),
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_17_stop_and_resume_twice_equals_never_stopping_bit_for_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops, train_bytes, overrides = PARTS[name]
    whole = tiny(tmp_path, *overrides, run="whole", train_bytes=train_bytes)
    parts = tiny(tmp_path, *overrides, run="parts", train_bytes=train_bytes)
    train(whole)
    train_in_parts(parts, stops, monkeypatch)
    one, other = remains(whole.run.dir, 12), remains(parts.run.dir, 12)
    assert [line["step"] for line in one["metrics"]] == list(range(1, 13))
    assert len(one) > 100
    assert differences(one, other) == []


def test_17_fails_when_averaged_weights_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("train.max_steps=6", "train.eval_every=100", "train.sample_every=0", "optim.ema_decay=0.9")
    train(tiny(tmp_path, *few, run="whole"))
    load = state.load_optimizer_state

    def forgetful(model: Any, optimizer: Any, tensors: dict[str, torch.Tensor]) -> None:
        load(model, optimizer, {name: t for name, t in tensors.items() if not name.startswith("average.")})

    monkeypatch.setattr(state, "load_optimizer_state", forgetful)
    train_in_parts(tiny(tmp_path, *few, run="parts"), (4,), monkeypatch)
    names = differences(remains(tmp_path / "whole", 6), remains(tmp_path / "parts", 6))
    assert names
    assert all(name.startswith("optimizer average.") or not name.startswith(("model", "optim")) for name in names)
    assert "optimizer average.head.biases.0" in names


def gradients_of_steps(config: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[torch.Tensor]]:
    """The gradients each step was taken with, before clipping."""
    taken = []
    clip = Runtime.clip

    def noted(self: Runtime, model: torch.nn.Module, max_norm: float) -> float:
        taken.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
        return clip(self, model, max_norm)

    with monkeypatch.context() as patch:
        patch.setattr(Runtime, "clip", noted)
        train(config)
    return taken


@pytest.mark.parametrize("loss", ["full", "half"])
def test_18_micro_batches_of_rows_give_one_gradient(loss: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = (*NO_DROPOUT, "train.max_steps=5", f"train.loss={loss}", "optim.lr=1e-4")
    gradients = {
        accumulate: gradients_of_steps(
            tiny(tmp_path, *overrides, f"train.accumulate={accumulate}", run=f"{accumulate}", train_bytes=110),
            monkeypatch,
        )
        for accumulate in (1, 2, 4)
    }
    assert len(gradients[1]) == 5  # the fourth has rows that are one target shorter, all but the first have memory
    assert len(gradients[1][0]) == len(list(gradients[2][0])) > 20
    for accumulate in (2, 4):
        for step, (one, other) in enumerate(zip(gradients[1], gradients[accumulate], strict=True)):
            for a, b in zip(one, other, strict=True):
                torch.testing.assert_close(
                    a, b, atol=1e-6, rtol=1e-4, msg=lambda text, step=step: f"step {step}: {text}"
                )
    losses = [[line["nll"] for line in metrics(tmp_path / str(accumulate))] for accumulate in (1, 2, 4)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-6) == losses[2]


def test_18_each_micro_batch_reads_the_memory_its_own_rows_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(tmp_path, "train.accumulate=2", "train.max_steps=4", train_bytes=700)
    passed: list[tuple[torch.Tensor, Memory | None, Memory]] = []
    build = state.Run

    def spied(*args: Any) -> Any:
        run = build(*args)
        forward = run.bare.forward

        def noted(ids: torch.Tensor, memory: Memory | None = None, **rest: Any) -> Any:
            out = forward(ids, memory=memory, **rest)
            passed.append((ids, memory, out.memory))
            return out

        monkeypatch.setattr(run.bare, "forward", noted)
        return run

    monkeypatch.setattr("txl.train.begin.Run", spied)
    train(config)
    rows = [(ids, before, after) for ids, before, after in passed if ids.shape == (2, 7)]
    assert len(rows) == 8
    assert rows[0][1] is None
    assert rows[1][1] is None
    for (_, _, left), (_, found, _) in zip(rows, rows[2:], strict=False):
        assert found is left


def test_19_validation_and_samples_between_steps_change_nothing_of_training(tmp_path: Path) -> None:
    often = tiny(tmp_path, "train.eval_every=1", "train.sample_every=1", run="often")
    never = tiny(tmp_path, "train.eval_every=100", "train.sample_every=0", run="never")
    train(often)
    train(never)
    one, other = remains(often.run.dir, 12), remains(never.run.dir, 12)
    assert all("valid_nll" in line for line in one["metrics"])
    assert sum("valid_nll" in line for line in other["metrics"]) == 1
    assert set(differences(one, other)) <= {"metrics", "samples", "best_nll", "best_step"}
    plain = [
        [{key: value for key, value in line.items() if not key.startswith("valid")} for line in record["metrics"]]
        for record in (one, other)
    ]
    assert plain[0] == plain[1]


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd", "inverse_sqrt", "constant"])
def test_20_the_rate_of_every_step_is_its_closed_form_whether_resumed_or_not(
    schedule: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    falls = ("optim.decay_steps=5",) if schedule == "wsd" else ()
    few = ("train.eval_every=100", "train.sample_every=0", "train.save_every=100")
    config = tiny(tmp_path, f"optim.schedule={schedule}", f"optim.name={name}", *falls, *few, train_bytes=300)
    taken, step = [], Runtime.step

    def noted(self: Runtime, optimizer: torch.optim.Optimizer) -> bool:
        taken.append([group["lr"] for group in optimizer.param_groups])
        return step(self, optimizer)

    monkeypatch.setattr(Runtime, "step", noted)
    train_in_parts(config, (2, 7), monkeypatch)
    w, n, peak = 3, 12, 0.01
    after = {
        "cosine": lambda k: peak / 2 * (1 + math.cos(math.pi * (k - w) / (n - w))),
        "linear": lambda k: peak * (n - k) / (n - w),
        "wsd": lambda k: peak * min(1, (n - k) / 5),
        "constant": lambda k: peak,
        "inverse_sqrt": lambda k: peak * math.sqrt(w / k),
    }[schedule]
    expected = [peak * k / w if k <= w else after(k) for k in range(1, n + 1)]
    assert [line["lr"] for line in metrics(config.run.dir)] == pytest.approx(expected, abs=1e-15)
    # What is logged is what was used; Muon's share of it is that of its peak, 0.02, to AdamW's.
    for line, (first, *rest) in zip(metrics(config.run.dir), taken, strict=True):
        assert set(rest) == {line["lr"]}
        assert first == pytest.approx(line["lr"] * (2 if name == "muon" else 1), rel=1e-12)
