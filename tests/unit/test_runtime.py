"""Device and precision as the hardware has them, gradients as torch gives them, seeds by rank."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from txl.config import Config, ConfigError, RuntimeConfig
from txl.runtime import Runtime, multiplies_bf16, peak_bytes, precision_for, seed_everything
from txl.train.optim import build_optimizer, optimizer_state

CPU = Config(runtime=RuntimeConfig(device="cpu"))


@pytest.mark.parametrize(("capability", "bf16"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_a_gpu_multiplies_bf16_from_ampere_on(
    capability: tuple[int, int], bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert multiplies_bf16("cuda") is bf16
    assert precision_for(RuntimeConfig(), "cuda") == ("bf16" if bf16 else "fp32")


@pytest.mark.parametrize(("features", "bf16"), [({}, False), ({"amx_bf16": True}, True), ({"avx512_bf16": True}, True)])
def test_a_processor_multiplies_bf16_where_it_says_so(
    features: dict[str, bool], bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "avx512_bf16": False, **features})
    assert precision_for(RuntimeConfig(), "cpu") == ("bf16" if bf16 else "fp32")
    assert precision_for(RuntimeConfig(), "mps") == "fp32"


def test_fp16_without_a_gpu_is_refused_instead_of_being_float32_in_silence() -> None:
    with pytest.raises(ConfigError, match=r"runtime\.precision: found fp16 on cpu; allowed there: auto, fp32 or bf16"):
        Runtime.create(Config(runtime=RuntimeConfig(device="auto", precision="fp16")))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(device: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"runtime.device: found {device}, which torch does not see here; allowed: auto, "
    ):
        Runtime.create(Config(runtime=RuntimeConfig(device=device)))


def test_a_process_can_hold_runs_of_different_precision_one_after_the_other() -> None:
    for precision in ("fp32", "bf16", "fp32"):
        runtime = Runtime.create(replace(CPU, runtime=replace(CPU.runtime, precision=precision)))
        with runtime.autocast():
            product = nn.Linear(3, 2)(torch.ones(4, 3))
        assert product.dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)
        assert str(runtime).endswith(f"{precision}, 1 process")


def test_the_bare_model_keeps_its_own_forward_and_precision() -> None:
    runtime = Runtime.create(replace(CPU, runtime=replace(CPU.runtime, precision="bf16")))
    bare = nn.Linear(3, 2)
    model, _ = runtime.prepare(bare, torch.optim.AdamW(bare.parameters()))
    assert bare(torch.ones(1, 3)).dtype == torch.float32
    assert model(torch.ones(1, 3)).dtype == torch.float32
    with runtime.autocast():
        assert model(torch.ones(1, 3)).dtype == torch.bfloat16


def test_threads_are_set() -> None:
    before = torch.get_num_threads()
    Runtime.create(replace(CPU, runtime=replace(CPU.runtime, threads=before + 1)))
    assert torch.get_num_threads() == before + 1
    torch.set_num_threads(before)


@pytest.mark.parametrize(("max_norm", "factor"), [(0.0, 1.0), (100.0, 1.0), (2.5, 0.5)])
def test_clipping_scales_by_the_global_norm_and_returns_what_it_was(max_norm: float, factor: float) -> None:
    runtime = Runtime.create(CPU)
    model = nn.Linear(2, 1)
    model.weight.grad, model.bias.grad = torch.tensor([[3.0, 0.0]]), torch.tensor([-4.0])
    assert runtime.clip(model, max_norm) == pytest.approx(5.0)
    torch.testing.assert_close(model.weight.grad, torch.tensor([[3.0 * factor, 0.0]]), rtol=1e-5, atol=0)
    torch.testing.assert_close(model.bias.grad, torch.tensor([-4.0 * factor]), rtol=1e-5, atol=0)


def test_a_norm_that_is_not_finite_is_returned_as_such() -> None:
    model = nn.Linear(2, 1)
    model.weight.grad, model.bias.grad = torch.tensor([[math.nan, 1.0]]), torch.tensor([1.0])
    assert math.isnan(Runtime.create(CPU).clip(model, 0.25))


def test_a_launcher_s_accumulation_setting_does_not_divide_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    runtime, weight = Runtime.create(CPU), torch.tensor([2.0], requires_grad=True)
    runtime.backward((weight * 3).sum())
    assert weight.grad is not None
    assert weight.grad.item() == 3.0


def test_under_a_scaler_overflow_skips_the_step_discarding_works_and_its_state_survives() -> None:
    runtime = Runtime.create(CPU)
    runtime.accelerator.state._mixed_precision = "fp16"  # as on a GPU: Accelerate makes no scaler on a CPU
    runtime.accelerator.native_amp = True
    runtime.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    bare = nn.Linear(2, 1, bias=False)
    model, optimizer = runtime.prepare(bare, torch.optim.SGD(bare.parameters(), lr=1.0))
    weights = [bare.weight.detach().clone()]

    def gradient(value: float) -> float:
        runtime.backward((model.weight * value).sum())
        return runtime.clip(model, 0.0)

    assert runtime.scales_gradients
    assert gradient(3.0) == pytest.approx(3 * math.sqrt(2))  # unscaled
    assert runtime.step(optimizer)
    optimizer.zero_grad()
    torch.testing.assert_close(bare.weight.detach(), weights[0] - 3)
    weights.append(bare.weight.detach().clone())
    assert math.isinf(gradient(math.inf))
    assert not runtime.step(optimizer)  # the scaler skipped it
    optimizer.zero_grad()
    gradient(2.0)
    runtime.discard(optimizer)
    assert bare.weight.grad is None
    assert torch.equal(bare.weight, weights[1])
    state = json.loads(json.dumps(runtime.scaler_state()))
    assert state["scale"] == 4.0
    runtime.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    runtime.load_scaler_state(state)
    assert runtime.scaler_state() == state
    gradient(2.0)
    assert runtime.step(optimizer)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_fused_optimizer_that_skips_an_overflow_says_so_and_stays_as_it_was(name: str) -> None:
    config = replace(CPU, optim=replace(CPU.optim, name=name))
    runtime = Runtime.create(config)
    runtime.accelerator.state._mixed_precision = "fp16"
    runtime.accelerator.native_amp = True
    runtime.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    bare = nn.Module()
    bare.layers = nn.ModuleList([nn.Linear(3, 2)])
    model, optimizer = runtime.prepare(bare, build_optimizer(bare, config.optim))
    kept = []
    for value in (2.0, math.inf, 3.0):
        runtime.backward(sum((parameter * value).sum() for parameter in model.parameters()))
        assert runtime.clip(model, 0.0) == pytest.approx(value * math.sqrt(8))
        assert runtime.step(optimizer) is math.isfinite(value)
        optimizer.zero_grad()
        kept.append({name: tensor.clone() for name, tensor in optimizer_state(bare, optimizer).items()})
        kept[-1] |= {name: tensor.clone() for name, tensor in bare.state_dict().items()}
    assert all(torch.equal(kept[0][key], kept[1][key]) for key in kept[0])
    assert not any(torch.equal(kept[1][key], kept[2][key]) for key in kept[0])


def test_alone_every_exchange_gives_back_what_it_got() -> None:
    runtime = Runtime.create(CPU)
    assert runtime.sum(torch.tensor([1.5, 2.0])).tolist() == [1.5, 2.0]
    assert (runtime.any(True), runtime.any(False), runtime.max(-3)) == (True, False, -3)
    value = {"é": [1, None, "x"], "n": -2.5}
    assert runtime.gather_json(value) == [value]
    assert (runtime.rank, runtime.world, runtime.is_main) == (0, 1, True)


def test_seeds_repeat_and_differ_by_rank() -> None:
    def draw(seed: int, rank: int = 0) -> tuple[float, float, float]:
        seed_everything(seed, rank=rank)
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    drawn = [draw(7), draw(8), draw(7, 1), draw(7, 2)]
    assert draw(7) == drawn[0]
    assert all(len({numbers[i] for numbers in drawn}) == 4 for i in range(3))
    assert draw(2**32 - 1, 3)  # NumPy takes 32 bits


def test_peak_memory_is_in_bytes() -> None:
    assert 50e6 < peak_bytes(torch.device("cpu")) < 1e12
