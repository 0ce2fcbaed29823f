"""A GPU in under 8 minutes: every backend against the float64 reference of a CPU, then speeds against the peers.

python -m benchmarks.gpu [--device cuda] [--rounds N] [--small] -> tables, one JSON line. `--small --device cpu` runs
the same code at toy sizes, to see that it works. What it measures is claimed nowhere until a GPU has run it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.timing import Row, finish, take_turns
from txl.model.attention import use_attention
from txl.model.kernels import blocked, decode, reference, sdpa
from txl.model.kernels.term import RelativeTerm
from txl.model.memory import first_visible

BACKENDS: dict[str, Callable[..., Tensor]] = {
    "reference": reference.attend,
    "batched": lambda *args, **more: blocked.attend(*args, **more, whole=True),
    "sdpa": sdpa.attend,
}
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2}


def main() -> None:
    """Check, time, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="toy sizes")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA device: nothing was checked (--small --device cpu tries the code)")
    peers.add_to_path()
    checks = [found for dtype in TOLERANCE for found in check(device, dtype)]
    for found in checks:
        print(
            f"    {found['backend']:<12}{found['dtype']:<10}{found['mask']:<8}off by {found['difference']:.1e}"
            f"  allowed {found['allowed']:.0e}  {'holds' if found['holds'] else 'BROKEN'}"
        )
    rows = []
    for precision in ("tf32", "bf16"):
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        for n_rows, length in ((2, 8),) if asked.small else ((16, 512), (32, 128)):
            rows.append(trained(device, precision, n_rows, length, asked.rounds))
    rows.append(streamed(device, 16 if asked.small else 2048, asked.rounds))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    finish("gpu", rows, device=name, checks=checks)
    if not all(found["holds"] for found in checks):
        raise SystemExit(json.dumps([found for found in checks if not found["holds"]]))


def check(device: torch.device, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Each backend's output and gradients on the device against the reference in float64 on the CPU."""
    n_rows, n_queries, n_memory, n_heads, width = 3, 37, 50, 2, 16
    draw = torch.Generator().manual_seed(3)
    shapes = {"q": (n_rows, n_queries, n_heads, width), "r": (n_queries + n_memory, n_heads, width)}
    shapes |= dict.fromkeys(("k", "v"), (n_rows, n_queries + n_memory, n_heads, width))
    shapes |= dict.fromkeys(("bias_u", "bias_v"), (n_heads, width))
    exact = {
        name: torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_() for name, shape in shapes.items()
    }
    resets = torch.zeros(n_rows, n_queries, dtype=torch.bool)
    resets[1, 5] = True
    masks = {
        "none": None,
        "window": first_visible(torch.tensor([50, 50, 50]), n_memory, n_queries, None, window=20),
        "cold": first_visible(torch.tensor([50, 0, 7]), n_memory, n_queries, resets, window=None),
    }
    found = []
    for mask, first in masks.items():
        wanted = run(reference.attend, exact, first)
        for backend, function in BACKENDS.items():
            there = {n: x.detach().to(device=device, dtype=dtype).requires_grad_() for n, x in exact.items()}
            got = run(function, there, None if first is None else first.to(device))
            worst = max(
                float((a.cpu().double() - b).abs().max() / b.abs().max()) for a, b in zip(got, wanted, strict=True)
            )
            found.append({"backend": backend, "mask": mask, "difference": worst, "holds": worst <= TOLERANCE[dtype]})
        there = {n: x.detach().to(device=device, dtype=dtype) for n, x in exact.items()}
        newest = {**there, "q": there["q"][:, -1:]}
        last = None if first is None else first[:, -1:].to(device)
        worst = float(
            (forward(decode.attend, newest, last).cpu().double() - wanted[0][:, -1:]).abs().max()
            / wanted[0].abs().max()
        )
        found.append({"backend": "decode", "mask": mask, "difference": worst, "holds": worst <= TOLERANCE[dtype]})
    return [{**one, "dtype": str(dtype).removeprefix("torch."), "allowed": TOLERANCE[dtype]} for one in found]


def off_by(found: Tensor, wanted: Tensor) -> float:
    """The largest difference in units of the largest number."""
    return float((found.cpu().double() - wanted).abs().max() / wanted.abs().max())


def forward(function: Callable[..., Tensor], parts: dict[str, Tensor], first: Tensor | None) -> Tensor:
    """One call of a backend."""
    term = RelativeTerm(parts["r"], parts["bias_u"], parts["bias_v"])
    return function(parts["q"], parts["k"], parts["v"], term, first=first, keep=None)


def run(function: Callable[..., Tensor], parts: dict[str, Tensor], first: Tensor | None) -> list[Tensor]:
    """The output and all gradients for a fixed gradient of the output."""
    out = forward(function, parts, first)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(out)
    return [out, *torch.autograd.grad(out, list(parts.values()), grad)]


def trained(device: torch.device, precision: str, n_rows: int, length: int, rounds: int) -> Row:
    """Training steps of ours by each fitting backend, of the peers and of our vanilla twin."""
    config = peers.shape(length, length)
    ours = {name: peers.Ours(config) for name in ("sdpa", "batched")}
    for name, one in ours.items():
        use_attention(one.model, name)  # type: ignore[arg-type]
    contenders: dict[str, Any] = {f"txl, {name}": one for name, one in ours.items()}
    contenders |= {
        "hugging face": peers.HuggingFace(ours["sdpa"]),
        "x-transformers": peers.XTransformers(config),
        "vanilla twin": peers.Ours(peers.shape(length, 0, arch="transformer", position="sinusoidal")),
    }
    ids = peers.random_ids(n_rows, length + 1).to(device)
    for contender in contenders.values():
        contender.model.to(device)

    def step(contender: Any) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            contender.train(ids[:, :-1], ids[:, 1:])
        if device.type == "cuda":
            torch.cuda.synchronize()

    calls = {key: lambda contender=contender: step(contender) for key, contender in contenders.items()}
    seconds = take_turns(calls, rounds=rounds, warm_up=4, at_least_seconds=0.2)
    return Row(f"train {precision}, B {n_rows}, T = M = {length}", "step", seconds, "txl, sdpa")


def streamed(device: torch.device, memory: int, rounds: int) -> Row:
    """One token at batch 1."""
    config = peers.shape(64, memory)
    ours = peers.Ours(config)
    contenders = {"txl": ours, "hugging face": peers.HuggingFace(ours), "x-transformers": peers.XTransformers(config)}
    text = peers.random_ids(1, memory + 64).to(device)
    for contender in contenders.values():
        contender.model.to(device).eval()
        contender.token(text)

    def step(contender: Any) -> None:
        contender.token(text[:, :1])
        if device.type == "cuda":
            torch.cuda.synchronize()

    calls = {key: lambda contender=contender: step(contender) for key, contender in contenders.items()}
    seconds = take_turns(calls, rounds=rounds, warm_up=4, at_least_seconds=0.2)
    return Row(f"one token, batch 1, memory {memory}", "token", seconds, "txl")


if __name__ == "__main__":
    main()
