"""What only a GPU can show: backends, training and streaming there against the CPU. Skipped, with the reason, without
one."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gpu
from tests.models import BASE, assert_close, make_model, random_ids
from txl.infer import Session

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.mark.parametrize("dtype", list(gpu.TOLERANCE))
def test_every_backend_gives_the_cpus_float64_numbers(dtype: torch.dtype) -> None:
    broken = [found for found in gpu.check(torch.device("cuda"), dtype) if not found["holds"]]
    assert not broken


def test_a_training_step_gives_the_cpus_loss_and_gradients() -> None:
    ids = random_ids(3, 2 * BASE.tgt_len + 1)
    found = []
    for device in ("cpu", "cuda"):
        model = make_model(BASE, dtype=torch.float32).to(device)
        memory, losses = None, []
        for start in (0, BASE.tgt_len):
            part = ids[:, start : start + BASE.tgt_len + 1].to(device)
            out = model(part[:, :-1], memory=memory, targets=part[:, 1:])
            memory = out.memory
            losses.append(out.nll)
        losses[-1].mean().backward()
        found.append([*losses, *(parameter.grad for parameter in model.parameters())])
    for here, there in zip(*found, strict=True):
        assert_close(there.cpu(), here, tolerance=1e-4)


def test_a_session_gives_the_cpus_nats() -> None:
    ids = random_ids(2, 40)
    here, there = (
        Session(make_model(BASE, dtype=torch.float32).to(device), batch_size=2).feed(ids) for device in ("cpu", "cuda")
    )
    assert_close(there.cpu()[:, 1:], here[:, 1:], tolerance=1e-4)
