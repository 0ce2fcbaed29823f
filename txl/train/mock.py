"""A few steps of the real model on its first segment: config, model and segment -> what a step costs.

Trains until memory is full and times one step more; whoever asks throws the model away. Knows nothing of text or files.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from txl.config import Config
from txl.data import SegmentBatch
from txl.model import Memory, Model
from txl.runtime import Runtime
from txl.train.optim import average_weights, build_optimizer, optimizer_state, set_learning_rate
from txl.train.schedules import learning_rate
from txl.train.work import SCORED_TOKENS, flops_from_cache, trained_flops

Report = Callable[[str, int, int | None], None]
"""report(what, done, total)."""


@dataclass(frozen=True)
class MockStep:
    """What a step of the real model costs.

    first_nll: nats a token before any step, near ln V for a sound start.  seconds: of a whole optimizer step with full
    memory.  *_flops: of one token trained in such a step, scored in chunks of 256 and streamed one at a time, both from
    a full cache; matrix products alone, a multiply-add counted as 2.  *_bytes: of weights, gradients, the optimizer's
    moments, the segment memory of one process, and what one micro-batch keeps for its backward pass.
    """

    first_nll: float
    seconds: float
    trained_flops: float
    scored_flops: float
    streamed_flops: float
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    memory_bytes: int
    activation_bytes: int


def mock_step(
    config: Config, runtime: Runtime, model: Model, batch: SegmentBatch, *, world: int, report: Report | None = None
) -> MockStep:
    """Train on one micro-batch of the first segment until memory is full and time one more step; count their work.

    Raises FloatingPointError where a loss or a gradient is not finite.
    """
    rows = config.data.batch_size // (config.train.accumulate * world)
    inputs, targets = batch.inputs[:rows].to(runtime.device), batch.targets[:rows].to(runtime.device)
    wrapped, optimizer = runtime.prepare(model, build_optimizer(model, config.optim))
    set_learning_rate(optimizer, learning_rate(1, config.optim, config.train.max_steps))
    wrapped.train()
    filling = 1 + math.ceil(config.model.mem_len / inputs.shape[1])
    memory: Memory | None = None
    losses, seconds, gradient_bytes = [], 0.0, 0
    kept = KeptForBackward(model)
    for number in range(filling + 1):
        if report is not None:
            report("mock steps", number, filling + 1)
        started = time.monotonic()
        optimizer.zero_grad(set_to_none=True)
        with kept if number == 0 else nullcontext():
            with runtime.autocast():
                out = wrapped(inputs, memory=memory, targets=targets)
            loss = out.nll.sum() / (targets != -100).sum()
            runtime.backward(loss)
        memory = out.memory
        losses.append(float(loss.detach()))
        norm = runtime.clip(wrapped, config.optim.clip)
        if not (math.isfinite(losses[-1]) and (math.isfinite(norm) or runtime.scales_gradients)):
            found = f"loss {losses[-1]}, gradient norm {norm}"
            raise FloatingPointError(f"mock step {number + 1}: found {found}; lower optim.lr or model.init_std")
        gradient_bytes = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
        runtime.step(optimizer)
        if config.optim.ema_decay:
            average_weights(model.parameters(), optimizer, config.optim.ema_decay)
        if number == filling:
            seconds = time.monotonic() - started
    return MockStep(
        first_nll=losses[0],
        seconds=seconds * config.train.accumulate,
        trained_flops=trained_flops(model, inputs[:1], targets[:1]),
        scored_flops=flops_from_cache(model, SCORED_TOKENS),
        streamed_flops=flops_from_cache(model, 1),
        weight_bytes=sum(parameter.nbytes for parameter in model.parameters()),
        gradient_bytes=gradient_bytes,
        optimizer_bytes=sum(tensor.nbytes for tensor in optimizer_state(model, optimizer).values()),
        memory_bytes=(0 if memory is None else memory.nbytes) * config.train.accumulate,
        activation_bytes=kept.nbytes,
    )


class KeptForBackward(saved_tensors_hooks):
    """Inside, counts the bytes that autograd keeps for the backward pass besides the parameters themselves."""

    def __init__(self, model: Model) -> None:
        self.sizes: dict[int, int] = {}
        parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in parameters:
                self.sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        super().__init__(pack, lambda tensor: tensor)

    @property
    def nbytes(self) -> int:
        """Bytes of the distinct storages seen; one that was freed and used again is counted once."""
        return sum(self.sizes.values())
