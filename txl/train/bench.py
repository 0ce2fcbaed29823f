"""How fast a config runs on this machine: training, scoring and streaming, against the speed of its products.

Config -> rows of a table and facts about the machine; random ids and weights, for speed does not depend on them. Knows
nothing of data or files, nor of other people's models (`benchmarks/`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from txl.config import Config
from txl.evaluation.speed import RUNS, speed_of
from txl.model import Memory, Model, build_model
from txl.model.kernels.linear import chosen, probe
from txl.runtime import Runtime
from txl.train.backends import attention_of, use_backends
from txl.train.optim import build_optimizer
from txl.train.work import ProductSpeed, flops_from_cache, product_speed, trained_flops

BYTES = 256
"""Vocabulary of byte tokens."""


@dataclass(frozen=True)
class Timed:
    """Tokens a second of one kind of work: the median of its runs, the slowest and the fastest; FLOPs a token."""

    what: str
    median: float
    low: float
    high: float
    flops: float

    def row(self, speed: ProductSpeed) -> tuple[str, str, str, str]:
        """The line of a table: work, tokens a second, spread, share of the speed of products."""
        share = speed.share(self.median, self.flops, world=1)
        return self.what, f"{self.median:,.0f}", f"{self.low:,.0f} – {self.high:,.0f}", f"{share:.1%}"


@dataclass(frozen=True)
class Bench:
    """What was timed, and on what."""

    rows: tuple[Timed, ...]
    speed: ProductSpeed
    facts: tuple[tuple[str, str], ...]


def bench(config: Config, *, report: Callable[[str, int, int | None], None] | None = None) -> Bench:
    """Time a training step, scoring and single tokens of the config's model, on the device and by what `runtime` says.

    Five runs of each after one that is not counted. report(what, done, total).
    """
    runtime, model = _made(config)
    told = report or (lambda what, done, total: None)
    rows = []
    for done, time_it in enumerate((_training, _scoring, _streaming)):
        told("timing", done, 3)
        rows.append(time_it(config, runtime, model))
    told("timing", 3, 3)
    speed = product_speed(runtime.device, runtime.precision)
    products = f"{chosen()} ({config.runtime.products}; oneDNN {probe():.2f} times as fast in the probe)"
    facts = (
        (
            "device",
            f"{runtime.device}, {torch.get_num_threads()} threads, {runtime.precision}, torch {torch.__version__}",
        ),
        ("attention", attention_of(config, runtime)),
        ("fp32 products", products if runtime.device.type == "cpu" else "torch"),
        ("product speed", str(speed)),
        ("parameters", f"{sum(parameter.numel() for parameter in model.parameters()):,}"),
        ("streaming state", f"{model.new_cache(1).nbytes:,} bytes a row"),
    )
    return Bench(tuple(rows), speed, facts)


def timed_training(config: Config) -> Timed:
    """Time the training step alone."""
    runtime, model = _made(config)
    return _training(config, runtime, model)


def _made(config: Config) -> tuple[Runtime, Model]:
    """The machine, and the config's model on it."""
    runtime = Runtime.create(config)
    model = build_model(config.model, BYTES if config.tokenizer.kind == "byte" else config.tokenizer.vocab_size)
    use_backends(model, config)
    model.to(runtime.device)
    return runtime, model


def _training(config: Config, runtime: Runtime, model: Model) -> Timed:
    """Steps of a whole batch with full memory: forward, backward, clipping, update."""
    n_rows = config.data.batch_size // config.train.accumulate
    shape = (n_rows, config.model.tgt_len)
    ids = torch.randint(model.vocab_size, shape, generator=torch.Generator().manual_seed(0)).to(runtime.device)
    flops = trained_flops(model, ids[:1], ids[:1])
    optimizer = build_optimizer(model, config.optim)
    memory: Memory | None = None

    def step() -> None:
        nonlocal memory
        with runtime.autocast():
            out = model(ids, memory=memory, targets=ids)
        memory = out.memory
        out.nll.mean().backward()
        runtime.clip(model, config.optim.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if runtime.device.type == "cuda":
            torch.cuda.synchronize()

    model.train()
    for _ in range(1 + -(-config.model.mem_len // config.model.tgt_len)):
        step()
    rates = []
    for _ in range(RUNS):
        began = time.perf_counter()
        step()
        rates.append(ids.numel() / (time.perf_counter() - began))
    return Timed(f"train, {n_rows} rows of {config.model.tgt_len}", median(rates), min(rates), max(rates), flops)


def _scoring(config: Config, runtime: Runtime, model: Model) -> Timed:
    """Segments through the cache at the model's own window."""
    kind = "state" if config.model.arch == "lstm" else "window"
    found = speed_of(model, kind, model.default_window, batch_size=config.eval.batch_size)
    what = f"score, {found.rows} rows, window {model.default_window}"
    return Timed(what, found.median, found.low, found.high, flops_from_cache(model, found.segment_tokens))


def _streaming(config: Config, runtime: Runtime, model: Model) -> Timed:
    """One token at a time."""
    found = speed_of(model, "token", model.default_window, batch_size=1)
    what = f"stream, 1 row, window {model.default_window}"
    return Timed(what, found.median, found.low, found.high, flops_from_cache(model, 1))
