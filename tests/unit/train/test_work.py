"""FLOPs of a token and the share of a machine's speed, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from txl.config import ModelConfig
from txl.model import build_model, use_attention
from txl.model.kernels.linear import asked_products, probe, use_products
from txl.train.work import ProductSpeed, product_speed, stated_peak, trained_flops

SHAPE: dict[str, Any] = {"n_layer": 2, "d_model": 4, "n_head": 1, "d_head": 3, "d_inner": 6, "tgt_len": 5}


@pytest.mark.parametrize("products", ["auto", "torch", "onednn"])
def test_the_count_does_not_depend_on_what_multiplies_nor_on_who_probes_first(products: Any) -> None:
    probe.cache_clear()
    use_products(products)
    try:
        config = ModelConfig(**{**SHAPE, "tgt_len": 40}, mem_len=0)
        ids = torch.arange(40)[None] % 11
        model = build_model(config, 11)
        weights = 2 * (4 * 4 * 3 + 2 * 4 * 6) + 11 * 4 + 2 * 4 * 3  # q k v o, inner, outer; the softmax; distances
        keys = 2 * 2 * (2 * 3 * 40) + 2 * 2 * 3 * 40  # content and values, and the product with distances
        assert trained_flops(model, ids, ids) == pytest.approx(3 * (2 * weights + keys), rel=0.02)
        assert asked_products() == products
    finally:
        use_products("auto")


def counted(config: ModelConfig, backend: Any = "auto") -> float:
    """FLOPs of a segment of five tokens."""
    model = build_model(config, 11)
    use_attention(model, backend)
    ids = torch.arange(5)[None]
    flops = trained_flops(model, ids, ids + 1) * 5
    assert {module.backend for module in model.modules() if hasattr(module, "backend")} <= {backend}
    return flops


@pytest.mark.parametrize("backend", ["auto", "reference", "blocked", "batched", "sdpa"])
def test_every_product_of_a_step_is_counted_whichever_backend_computes_it(backend: str) -> None:
    # Forward, a multiply-add as 2, T = 5 queries and S = 12 keys of 7 remembered: q and o, k and v, inner and outer of
    # the feed-forward block, scores and values; the backward pass is twice that.
    layer = 2 * (5 * 4 * 3 * 2 + 12 * 4 * 3 * 2 + 5 * 4 * 6 * 2 + 5 * 12 * 3 * 2)
    # Positions: their projection, whose input needs no gradient, and the scores by distance.
    positions = 2 * (2 * 12 * 4 * 3) + 3 * (2 * 5 * 12 * 3)
    head = 2 * 5 * 4 * 11
    relative, alibi = (ModelConfig(**SHAPE, mem_len=7, position=name) for name in ("relative", "alibi"))
    assert counted(relative, backend) == 3 * (2 * layer + head) + 2 * positions
    assert counted(alibi, backend) == 3 * (2 * layer + head)


def test_an_lstm_s_gates_are_counted() -> None:
    lstm = ModelConfig(arch="lstm", position="none", mem_len=0, n_layer=2, d_model=4, tgt_len=5)
    layer = 2 * 5 * (4 + 4) * 4 * 4  # four gates of input and state
    unneeded = 2 * (2 * 4 * 4 * 4)  # no gradient goes into the state before the segment
    assert counted(lstm) == 3 * (2 * layer + 2 * 5 * 4 * 11) - unneeded


def test_counting_leaves_weights_and_gradients_alone() -> None:
    model = build_model(ModelConfig(**SHAPE, mem_len=7), 11)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trained_flops(model, torch.arange(5)[None], torch.arange(5)[None])
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training


def test_the_share_is_that_of_all_processes() -> None:
    # 50,000 tokens/s of 6 MFLOP are 300 GFLOP/s, on 2 processors of 1 TFLOP/s each
    assert ProductSpeed(1e12, stated=True).share(50_000, 6e6, world=2) == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16", 312e12),  # dense; its data sheet's 624 are for sparse matrices
        ("NVIDIA H100 80GB HBM3", "bf16", 989e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA H200", "fp16", 989e12),
        ("NVIDIA L40S", "bf16", 362e12),
        ("NVIDIA L4", "bf16", 121e12),
        ("Tesla V100-SXM2-16GB", "fp16", 125e12),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("NVIDIA GeForce GTX 1080", "fp16", None),
    ],
)
def test_a_gpu_s_peak_is_its_dense_one_or_unknown(name: str, precision: str, peak: float | None) -> None:
    assert stated_peak(name, precision) == peak


def test_where_no_maker_states_it_the_speed_is_measured_once() -> None:
    speed = product_speed(torch.device("cpu"), "fp32")
    assert 1e8 < speed.flops_per_second < 1e14
    assert not speed.stated
    assert product_speed(torch.device("cpu"), "fp32") == speed


@pytest.mark.parametrize(
    ("speed", "text"),
    [
        (ProductSpeed(989e12, stated=True), "989 TFLOP/s, as its maker states"),
        (ProductSpeed(88.34e9, stated=False), "88.3 GFLOP/s, measured now"),
    ],
)
def test_a_speed_in_words(speed: ProductSpeed, text: str) -> None:
    assert str(speed) == text
