"""The machine a run uses: device, precision, processes, threads and random numbers.

config.runtime -> `Runtime`, the only door to Accelerate, used for device, precision, DDP and backward alone: streams
and learning rates are never given to it. Knows nothing of data, of models beyond `nn.Module`, or of files.
"""

from __future__ import annotations

import json
import math
import os
import platform
import random
import resource
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import (
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    InitProcessGroupKwargs,
    gather,
    reduce,
)
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from txl.allocator import keep_freed_memory
from txl.config import Config, ConfigError, RuntimeConfig

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""How long a process waits for the others before the job ends: longer than the slowest save or validation."""


@dataclass(frozen=True)
class Runtime:
    """What the training loop needs of the machine; every method must be called by all processes alike."""

    accelerator: Accelerator
    precision: str
    """What products are computed in: fp32, bf16 or fp16; parameters are float32 always."""

    @staticmethod
    def create(config: Config) -> Runtime:
        """Start the processes' group (where a launcher made several), pick the device, set the threads.

        Raises ConfigError where the device is not there or does not do the precision.
        """
        wanted = config.runtime
        device = device_kind(wanted)
        precision = precision_for(wanted, device)
        AcceleratorState._reset_state(reset_partial_state=not torch.distributed.is_initialized())
        GradientState._reset_state()
        with warnings.catch_warnings(), _environment_variable("ACCELERATE_TORCH_DEVICE", _one_device(wanted)):
            warnings.filterwarnings("ignore", message="OMP_NUM_THREADS")  # runtime.threads says it better
            warnings.filterwarnings("ignore", message="`log_with")  # so does run.trackers
            accelerator = Accelerator(
                cpu=device == "cpu",
                mixed_precision="no" if precision == "fp32" else precision,
                log_with=list(config.run.trackers) or None,
                project_dir=config.run.dir,
                gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),  # the loop divides, once
                kwargs_handlers=[
                    InitProcessGroupKwargs(timeout=COLLECTIVE_TIMEOUT),
                    DistributedDataParallelKwargs(gradient_as_bucket_view=True),
                ],
            )
        use_processor(wanted)
        return Runtime(accelerator, precision)

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return cast(torch.device, self.accelerator.device)

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""
        return int(self.accelerator.process_index)

    @property
    def world(self) -> int:
        """Number of processes."""
        return int(self.accelerator.num_processes)

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def __str__(self) -> str:
        processes = "1 process" if self.world == 1 else f"{self.world} processes"
        count = torch.get_num_threads()
        threads = f" ({count} thread{'s' * (count > 1)})" if self.device.type == "cpu" else ""
        return f"{self.device.type}{threads} {self.precision}, {processes}"

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The model on the device, in DDP where there are several processes, and its optimizer.

        The bare model keeps its own `forward`: Accelerate's hidden autocast is taken off, `autocast()` is visible.
        """
        if isinstance(model, FSDPModule):  # in parts already: DDP would make copies of parts
            return model, cast(torch.optim.Optimizer, self.accelerator.prepare(optimizer))
        wrapped, prepared = self.accelerator.prepare(model, optimizer)
        self.accelerator.unwrap_model(wrapped, keep_fp32_wrapper=False)
        return wrapped, prepared

    def autocast(self) -> AbstractContextManager[None]:
        """Products in the run's precision inside."""
        return cast(AbstractContextManager[None], self.accelerator.autocast())

    @contextmanager
    def gradients_of(self, model: nn.Module, *, exchanged: bool) -> Iterator[None]:
        """Whether backward passes inside exchange gradients between processes; only the last one of a step must."""
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(exchanged)
            yield
        elif exchanged:
            yield
        else:
            with self.accelerator.no_sync(model):
                yield

    def backward(self, loss: Tensor) -> None:
        """Gradients of a loss, scaled under fp16; DDP averages them over processes."""
        self.accelerator.backward(loss)

    def clip(self, model: nn.Module, max_norm: float) -> float:
        """Unscale gradients, scale them down to a global norm of `max_norm` (0: never); returns the norm they had."""
        norm = self.accelerator.clip_grad_norm_(model.parameters(), max_norm or math.inf)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Update the weights; False where fp16's scaler met an overflow and skipped the update.

        The scale that falls says so: Accelerate's own flag does not see what a fused optimizer skips by itself.
        """
        scaler = self.accelerator.scaler
        before = 0.0 if scaler is None else scaler.get_scale()
        optimizer.step()
        return scaler is None or scaler.get_scale() >= before

    def discard(self, optimizer: torch.optim.Optimizer) -> None:
        """Forget gradients that were unscaled but must not be used."""
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.update()
        optimizer.zero_grad(set_to_none=True)

    @property
    def scales_gradients(self) -> bool:
        """Whether gradients may overflow without harm, because fp16's scaler skips such a step by itself."""
        return self.accelerator.scaler is not None

    def scaler_state(self) -> dict[str, Any]:
        """What fp16's scaler must remember; empty in other precisions."""
        return {} if self.accelerator.scaler is None else dict(self.accelerator.scaler.state_dict())

    def load_scaler_state(self, state: dict[str, Any]) -> None:
        """Take over what `scaler_state` gave."""
        if self.accelerator.scaler is not None and state:
            self.accelerator.scaler.load_state_dict(state)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over processes, the same on each of them."""
        return tensor if self.world == 1 else cast(Tensor, reduce(tensor.to(self.device), reduction="sum"))

    def any(self, flag: bool) -> bool:
        """Whether the flag is up on at least one process."""
        return bool(self.sum(torch.tensor(int(flag))).item())

    def max(self, value: int) -> int:
        """The largest value any process gave."""
        return int(self.gather(torch.tensor([value])).max())

    def gather(self, tensor: Tensor) -> Tensor:
        """The processes' tensors of equal shape under each other, along the first axis."""
        return tensor if self.world == 1 else cast(Tensor, gather(tensor.to(self.device)))

    def gather_json(self, value: Any) -> list[Any]:
        """Every process's value, by rank; it travels as text, never as a pickle."""
        text = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
        padded = torch.full((1, self.max(len(text))), ord(" "), dtype=torch.uint8)
        padded[0, : len(text)] = torch.from_numpy(text.copy())
        return [json.loads(row.cpu().numpy().tobytes()) for row in self.gather(padded)]

    def barrier(self) -> None:
        """Wait for all processes."""
        self.accelerator.wait_for_everyone()


def leave_processes() -> None:
    """Leave the processes' group in order; without it a process that ends first can make another abort."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def use_processor(wanted: RuntimeConfig) -> None:
    """Set this process's threads as `runtime.threads` says, and keep the memory that tensors free."""
    keep_freed_memory()
    if wanted.threads is not None:
        torch.set_num_threads(wanted.threads)


def device_kind(wanted: RuntimeConfig) -> str:
    """cpu, cuda or mps. Raises ConfigError where the wanted device is not there."""
    there = ["cpu"]
    if torch.cuda.is_available():
        there.insert(0, "cuda")
    if torch.backends.mps.is_available():
        there.insert(0, "mps")
    if wanted.device == "auto":
        return "cpu" if os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes") else there[0]
    kind, _, number = wanted.device.partition(":")
    if kind not in there:
        raise ConfigError(
            [f"runtime.device: found {wanted.device}, which torch does not see here; allowed: auto, {', '.join(there)}"]
        )
    if number and int(number) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ConfigError([f"runtime.device: found {wanted.device}; allowed here: cuda:0 to cuda:{count - 1}"])
    return kind


def precision_for(wanted: RuntimeConfig, device: str) -> str:
    """fp32, bf16 or fp16. Raises ConfigError for fp16 without a GPU: Accelerate would not say that it is fp32."""
    if wanted.precision == "fp16" and device != "cuda":
        raise ConfigError([f"runtime.precision: found fp16 on {device}; allowed there: auto, fp32 or bf16"])
    if wanted.precision != "auto":
        return wanted.precision
    return "bf16" if multiplies_bf16(device) else "fp32"


def multiplies_bf16(device: str) -> bool:
    """Whether the hardware multiplies bf16 natively; emulated, it is slower than float32."""
    if device == "cuda":
        return torch.cuda.get_device_capability() >= (8, 0)
    if device == "cpu":
        capabilities = torch.cpu.get_capabilities()
        return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
    return False


def seed_everything(seed: int, *, rank: int = 0) -> None:
    """Seed Python, NumPy and torch on every device; each rank differently, for dropout must differ between rows."""
    mixed = (seed + 1_000_003 * rank) % 2**32
    random.seed(mixed)
    np.random.seed(mixed)
    torch.manual_seed(mixed)


def peak_bytes(device: torch.device) -> int:
    """Most memory used so far: the GPU's where there is one, else this process's own."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _one_device(wanted: RuntimeConfig) -> str | None:
    """The numbered device of a single process; with several, Accelerate gives each its own."""
    return wanted.device if ":" in wanted.device and int(os.environ.get("WORLD_SIZE", "1")) == 1 else None


@contextmanager
def _environment_variable(name: str, value: str | None) -> Iterator[None]:
    """The variable set inside, where there is a value."""
    before = os.environ.get(name)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        if value is not None:
            os.environ.pop(name)
            if before is not None:
                os.environ[name] = before
