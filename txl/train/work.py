"""How much work a token is, and how fast this machine multiplies: the two sides of the share a run makes of it (MFU).

A model and a segment -> FLOPs a token; a device and a precision -> FLOP/s. Knows nothing of steps, files or processes.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from txl.model import Memory, Model, use_attention
from txl.model.attention import Attention
from txl.model.kernels.linear import asked_products, use_products
from txl.model.modes import evaluating

PEAKS = (
    ("B200", 2250e12),
    ("H200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("A100", 312e12),
    ("L40S", 362e12),
    ("L4", 121e12),
    ("RTX 4090", 165e12),
    ("RTX 3090", 71e12),
    ("V100", 125e12),
    ("T4", 65e12),
)
"""Part of a GPU's name -> FLOP/s of its dense products in 16 bit with float32 sums, as its maker states them; figures
twice as large are for sparse matrices. The first that fits counts. V100 and T4 have them in fp16 alone."""
SCORED_TOKENS = 256
"""Tokens of a chunk whose scoring is counted."""
PROBE_SECONDS = 0.1
"""How long the speed of products is measured at least, at most once a process."""
SETTLED = 20
"""Products in a row that bring no better speed, after which the best is taken for what the machine can do."""
PROBE_SIZES = {"cpu": 512, "cuda": 4096, "mps": 2048}
"""Rows of the square matrices multiplied: large enough for full speed, a few milliseconds each."""


@dataclass(frozen=True)
class ProductSpeed:
    """FLOP/s of matrix products on one device, and whether its maker states it or it was measured here."""

    flops_per_second: float
    stated: bool

    def __str__(self) -> str:
        tera = self.flops_per_second / 1e12
        number = f"{tera:,.0f} TFLOP/s" if tera >= 10 else f"{tera * 1000:,.1f} GFLOP/s"
        return f"{number}, {'as its maker states' if self.stated else 'measured now'}"

    def share(self, tokens_per_second: float, flops: float, *, world: int) -> float:
        """Share of the speed of `world` such devices that training so many tokens of so many FLOPs makes use of."""
        return tokens_per_second * flops / (self.flops_per_second * world)


def trained_flops(model: Model, inputs: Tensor, targets: Tensor) -> float:
    """FLOPs of training one token with a full memory: matrix products alone, a multiply-add counted as 2.

    inputs, targets: int64 B×T, where the model is. Every key is counted whatever its mask and whichever backend would
    have left it out, so the number depends on the model alone. What activation checkpointing computes twice is counted
    twice. Draws random numbers where the model drops out; leaves weights and gradients alone.
    """
    memory: Memory | None = None
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with plain_products(model):
        with torch.no_grad():
            for _ in range(math.ceil(model.config.mem_len / inputs.shape[1])):
                memory = model(inputs, memory=memory, targets=targets).memory
        with FlopCounterMode(display=False) as counter:
            nll = model(inputs, memory=memory, targets=targets).nll
            torch.autograd.grad(nll.sum(), parameters)
    return counter.get_total_flops() / inputs.numel()


def flops_from_cache(model: Model, n_tokens: int) -> float:
    """FLOPs of reading one more token and scoring it, in chunks of `n_tokens` behind a full cache."""
    cache = model.new_cache(1)
    device = next(model.parameters()).device
    ids = torch.zeros(1, n_tokens, dtype=torch.int64, device=device)
    with evaluating(model.modules()), plain_products(model):
        for filled in range(0, cache.window, SCORED_TOKENS):
            count = min(SCORED_TOKENS, cache.window - filled)
            model.advance(torch.zeros(1, count, dtype=torch.int64, device=device), cache)
        model.advance(ids, cache)
        with FlopCounterMode(display=False) as counter:
            model.logits(model.advance(ids, cache))
    return counter.get_total_flops() / n_tokens


@contextmanager
def plain_products(model: Model) -> Iterator[None]:
    """Attention, linear layers and LSTM as plain products of torch inside: its counter does not see all others."""
    backends = {module: module.backend for module in model.modules() if isinstance(module, Attention)}
    libraries: tuple[Any, ...] = (torch.backends.mkldnn, torch.backends.cudnn)
    enabled = [library.enabled for library in libraries]
    products = asked_products()
    use_attention(model, "reference")
    use_products("torch")
    try:
        for library in libraries:
            library.enabled = False
        yield
    finally:
        use_products(products)
        for library, before in zip(libraries, enabled, strict=True):
            library.enabled = before
        for module, backend in backends.items():
            module.backend = backend


def product_speed(device: torch.device, precision: str) -> ProductSpeed:
    """FLOP/s of products in this precision on this device: what its maker states where that is known, else measured."""
    if device.type == "cuda" and precision != "fp32":
        peak = stated_peak(torch.cuda.get_device_name(device), precision)
        if peak is not None:
            return ProductSpeed(peak, stated=True)
    return ProductSpeed(_measured(device, precision, torch.get_num_threads()), stated=False)


def stated_peak(name: str, precision: str) -> float | None:
    """FLOP/s of a GPU of this name in bf16 or fp16; None where it is not known."""
    found = next(((part, peak) for part, peak in PEAKS if part in name), None)
    if found is None or (precision == "bf16" and found[0] in ("V100", "T4")):
        return None
    return found[1]


@functools.cache
def _measured(device: torch.device, precision: str, threads: int) -> float:
    """The best of the products of PROBE_SECONDS and on until it settles; once for each device, precision and threads.

    What else runs on the machine only ever makes a product slower, so the best is the closest to the truth.
    """
    size = PROBE_SIZES[device.type]
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    matrix = torch.ones(size, size, dtype=dtype, device=device)
    best, unchanged, began = math.inf, 0, time.perf_counter()
    while time.perf_counter() - began < PROBE_SECONDS or unchanged < SETTLED:
        started = time.perf_counter()
        float(F.linear(matrix, matrix)[0, 0])  # a number on the CPU: a GPU must have finished
        took = time.perf_counter() - started
        unchanged = 0 if took < best else unchanged + 1
        best = min(best, took)
    return 2.0 * size**3 / best
