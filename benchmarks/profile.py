"""Where the time of a training, evaluation or streaming step goes, by part, against the bound of its products.

python -m benchmarks.profile [T1|T2|E1|S1] [--threads N] -> a table, one JSON line. The bound is what the step's matrix
products would take at the speed of this machine's product of 1,024 × 512 × 2,048, measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from benchmarks import peers
from benchmarks.timing import machine

PARTS = {
    "linear layers": ("aten::mm", "aten::addmm", "mkldnn::_linear_pointwise"),
    "attention products": ("aten::bmm", "aten::baddbmm", "aten::baddbmm_"),
    "softmax": (
        "aten::_softmax",
        "aten::_softmax_backward_data",
        "aten::_log_softmax",
        "aten::_log_softmax_backward_data",
    ),
    "norms": ("aten::native_layer_norm", "aten::native_layer_norm_backward"),
    "copies and new tensors": ("aten::copy_", "aten::cat", "aten::fill_", "aten::zero_", "aten::empty", "aten::clone"),
    "sums and additions": ("aten::add", "aten::add_", "aten::sum", "aten::mul", "aten::mul_"),
    "non-linearity": ("aten::clamp_min", "aten::relu", "aten::threshold_backward"),
}


def main() -> None:
    """Profile one workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=["T1", "T2", "E1", "S1"], nargs="?", default="T1")
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    step = workload(asked.workload)
    for _ in range(3):
        step()
    begin = time.perf_counter()
    steps = 0
    while steps < 3 or time.perf_counter() - begin < 2:
        step()
        steps += 1
    seconds = (time.perf_counter() - begin) / steps
    with profile(activities=[ProfilerActivity.CPU], with_flops=True) as recorded:
        for _ in range(3):
            step()
    parts: dict[str, float] = defaultdict(float)
    where = {name: part for part, names in PARTS.items() for name in names}
    flops = 0.0
    for event in recorded.key_averages():
        parts[where.get(event.key, "everything else")] += event.self_cpu_time_total / 1e6 / 3
        flops += event.flops / 3 if event.key in (*PARTS["linear layers"], *PARTS["attention products"]) else 0
    speed = product_speed()
    show(asked.workload, seconds, dict(parts), flops, speed)


def workload(name: str) -> Callable[[], object]:
    """One step of a row of the benchmarks."""
    if name in ("T1", "T2"):
        n_rows, length = (2, 512) if name == "T1" else (4, 128)
        ours = peers.Ours(peers.shape(length, length))
        ids = peers.random_ids(n_rows, length + 1)
        return lambda: ours.train(ids[:, :-1], ids[:, 1:])
    memory, length = (640, 64) if name == "E1" else (512, 1)
    ours = peers.Ours(peers.shape(64, memory))
    text = peers.random_ids(1, memory + 64)
    ours.token(text)
    ids = peers.random_ids(1, length + 1)
    return lambda: ours.evaluate(ids[:, :-1], ids[:, 1:])


def product_speed() -> float:
    """FLOPs a second of this machine's product, the median of 25."""
    x, weight = torch.randn(1024, 512), torch.randn(2048, 512)
    seconds = []
    for _ in range(25):
        begin = time.perf_counter()
        F.linear(x, weight)
        seconds.append(time.perf_counter() - begin)
    return 2 * 1024 * 512 * 2048 / statistics.median(seconds)


def show(name: str, seconds: float, parts: dict[str, float], flops: float, speed: float) -> None:
    """The table and the JSON line."""
    total, bound = sum(parts.values()), flops / speed
    print(
        f"\n{name}: {1000 * seconds:.1f} ms a step; its products ({flops / 1e9:.2f} GFLOP) at {speed / 1e9:.0f} GFLOP/s"
    )
    print(f"would take {1000 * bound:.1f} ms: the step runs at {bound / seconds:.0%} of the product bound")
    for part, took in sorted(parts.items(), key=lambda pair: -pair[1]):
        print(
            f"    {part:<26}{1000 * took:>10.2f} ms {took / total:>6.1%} of the step {took / bound:>7.2f} of the bound"
        )
    found = {
        "seconds": seconds,
        "parts": parts,
        "flops": flops,
        "product_flops_a_second": speed,
        "bound_share": bound / seconds,
    }
    print(json.dumps({"benchmark": f"profile {name}", "machine": machine(), **found}))


if __name__ == "__main__":
    main()
