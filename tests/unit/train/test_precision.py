"""Whole runs in 16 bit, and that runs learn what there is to learn in their text."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from tests.runs import NO_DROPOUT, differences, metrics, remains, tiny, train_in_parts
from txl.config import Config, ConfigError
from txl.runtime import Runtime
from txl.train.loop import train


@pytest.fixture
def scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """fp16's scaler, which Accelerate makes on a GPU alone, on a CPU: its scale doubles after three good steps."""
    create = Runtime.create

    def made(config: Config) -> Runtime:
        runtime = create(config)
        runtime.accelerator.state._mixed_precision = "fp16"
        runtime.accelerator.native_amp = True
        runtime.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=3)
        return runtime

    monkeypatch.setattr(Runtime, "create", staticmethod(made))


@pytest.mark.usefixtures("scaled")
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_run_in_fp16_finds_its_scale_and_goes_on_with_it_bit_for_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = (*NO_DROPOUT, "train.max_steps=40", "train.sample_every=0", "train.eval_every=100", "train.save_every=100")
    whole, parts = (tiny(tmp_path, *few, f"optim.name={name}", run=run) for run in ("whole", "parts"))
    train(whole)
    train_in_parts(parts, (9, 31), monkeypatch)
    one, other = remains(whole.run.dir, 40), remains(parts.run.dir, 40)
    assert differences(one, other) == []
    lines = one["metrics"]
    overflows = [line["step"] for line in lines if line["grad_norm"] is None]
    assert overflows  # a scale of 2^24 is too much in fp16, whose largest number is 65504
    assert overflows[0] == 1
    assert len(overflows) == lines[-1]["skipped"] < 40
    assert 0 < one["scaler"]["scale"] < 2.0**24
    state = json.loads((Path(whole.run.dir) / "checkpoints" / "step-000040" / "state.json").read_text())
    assert state["scaler"] == one["scaler"]


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("adamw", "fp32"),
        pytest.param("adamw", "bf16", marks=pytest.mark.slow),
        pytest.param("muon", "fp32", marks=pytest.mark.slow),
    ],
)
def test_a_run_with_warm_up_comes_within_five_percent_of_the_entropy_of_random_letters(
    name: str, precision: str, tmp_path: Path
) -> None:
    steps = ("train.max_steps=80", "train.eval_every=100", "train.sample_every=0", "optim.warmup_steps=10")
    machine = (f"optim.name={name}", f"runtime.precision={precision}", "optim.schedule=cosine")
    config = tiny(tmp_path, *NO_DROPOUT, *steps, *machine, train_bytes=20_000)
    train(config)
    # Eight letters of probability 1/11 and a space of 3/11.
    entropy = 8 / 11 * math.log(11) + 3 / 11 * math.log(11 / 3)
    last = [line["nll"] for line in metrics(config.run.dir)[-20:]]
    assert sum(last) / 20 == pytest.approx(entropy, rel=0.05)


def test_fp16_on_a_cpu_is_refused_by_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"runtime\.precision: found fp16 with runtime\.device cpu; allowed: .*bf16"):
        tiny(tmp_path, "runtime.precision=fp16")
