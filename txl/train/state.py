"""What must survive a crash, and how it goes into a checkpoint and back.

`TrainState` + model, optimizer, random generators <-> `txl.checkpoint.Snapshot`. Memory and data position are those of
the global streams, so they do not depend on how many processes share them. Knows nothing of how a step is taken.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from txl.checkpoint import CheckpointError, Snapshot, checkpoint_path, load_weights, prune, save, weights
from txl.config import Config
from txl.data.corpus import Corpus
from txl.data.streams import Streams
from txl.model import Memory, Model, use_products
from txl.model.kernels.linear import chosen
from txl.runtime import Runtime, seed_everything
from txl.train.journal import Journal
from txl.train.optim import load_optimizer_state, optimizer_state
from txl.train.shard import gathered, shared_out, whole_model
from txl.train.work import ProductSpeed


@dataclass(frozen=True)
class TrainState:
    """Everything that changes from step to step besides weights and moments.

    memory: of this process's rows, one for each micro-batch, None before the first step.  position: where streams
    stand. step: optimizer steps done.  tokens: positions trained on.  skipped, skipped_in_a_row: steps that were not
    finite. best_nll, best_step: of the best validation.  elapsed_seconds: of training, over all its parts.
    """

    memory: tuple[Memory | None, ...]
    position: Mapping[str, int]
    step: int = 0
    tokens: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    best_nll: float | None = None
    best_step: int | None = None
    elapsed_seconds: float = 0.0

    @property
    def memory_bytes(self) -> int:
        """Bytes of this process's segment memory."""
        return sum(memory.nbytes for memory in self.memory if memory is not None)


NUMBERS = tuple(field.name for field in dataclasses.fields(TrainState) if field.name != "memory")
"""The fields that go into state.json as they are."""


@dataclass(frozen=True)
class Run:
    """The parts a run is made of.

    bare: the model itself; model: the same in DDP where there are several processes. flops: of training one token, by
    length of segment. speed: of matrix products on each process's device.
    """

    config: Config
    runtime: Runtime
    journal: Journal
    corpus: Corpus
    streams: Streams
    bare: Model
    model: nn.Module
    optimizer: torch.optim.Optimizer
    flops: Mapping[int, float]
    speed: ProductSpeed

    def whole_model(self) -> Model:
        """A model that one process can call alone; all call this, as the weights may be in parts."""
        return whole_model(self.bare, self.config, self.runtime, vocab_size=self.corpus.tokenizer.vocab_size)

    @property
    def dir(self) -> Path:
        """The run folder."""
        return Path(self.config.run.dir)


def save_state(run: Run, state: TrainState) -> Path:
    """Write a checkpoint and remove what is no longer to be kept. All processes call it; the main one writes.

    Raises CheckpointError in every process where the main one could not write.
    """
    rng = run.runtime.gather_json(rng_state())
    memory, keep = gathered_memory(state.memory, run.runtime), run.runtime.is_main
    whole = gathered(weights(run.bare), keep=keep)
    moments = gathered(optimizer_state(run.bare, run.optimizer), keep=keep)
    failure: CheckpointError | None = None
    if run.runtime.is_main:
        tokenizer = run.corpus.tokenizer
        try:
            facts = {
                **{name: getattr(state, name) for name in NUMBERS},
                "tokenizer_hash": tokenizer.hash,
                "vocab_size": tokenizer.vocab_size,
                "corpus": run.corpus.fingerprint,
                "scaler": run.runtime.scaler_state(),
                "products": chosen(),
                "journal": run.journal.position(),
            }
            snapshot = Snapshot(state.step, run.config, tokenizer.to_json(), whole, moments, memory, facts, rng)
            save(run.dir, snapshot)
            kept = {"keep_last": run.config.train.keep_last, "keep_every": run.config.train.keep_every}
            prune(run.dir, **kept, best_step=state.best_step, warn=run.journal.say)
        except CheckpointError as error:
            failure = error
    if run.runtime.any(failure is not None):
        raise failure or CheckpointError(f"{run.dir}: the main process could not save; see its message")
    return checkpoint_path(run.dir, state.step)


def restore(run: Run, snapshot: Snapshot, *, warn: Callable[[str], None]) -> TrainState:
    """Put weights, moments and generators back and return the state of the step at which the checkpoint was written.

    Raises CheckpointError where text or tokenizer are not those the run was begun with, or where processes disagree.
    """
    saved, runtime, tokenizer = snapshot.state, run.runtime, run.corpus.tokenizer
    for what, now in (("tokenizer_hash", tokenizer.hash), ("corpus", run.corpus.fingerprint)):
        if saved[what] != now:
            raise CheckpointError(
                f"{what}: found {now[:12]}, the run was begun with {saved[what][:12]}: the text, or how it is cut into "
                "tokens, changed since. Bring back what it was, or choose another run.dir"
            )
    if runtime.max(snapshot.step) != -runtime.max(-snapshot.step):
        raise CheckpointError(
            f"{run.dir}: processes found different checkpoints; run.dir must be on a disk that all of them see"
        )
    load_weights(run.bare, shared_out(snapshot.model, run.bare))
    moments = shared_out(snapshot.optimizer, run.bare, parameter_of=lambda name: name.partition(".")[2])
    load_optimizer_state(run.bare, run.optimizer, moments)
    runtime.load_scaler_state(saved["scaler"])
    if run.config.runtime.products == "auto":  # measured when the run began; another answer now would change its bits
        use_products(saved["products"])
    if len(snapshot.rng) == runtime.world:
        set_rng_state(snapshot.rng[runtime.rank])
    else:
        seed_everything(run.config.run.seed + snapshot.step, rank=runtime.rank)
        warn(
            f"begun with {len(snapshot.rng)} process(es), now {runtime.world}: dropout takes new random numbers, "
            "seeded by run and step; without dropout nothing changes"
        )
    memory = own_memory(snapshot.memory, runtime, accumulate=run.config.train.accumulate)
    return TrainState(memory=memory, **{name: saved[name] for name in NUMBERS})


def gathered_memory(memory: tuple[Memory | None, ...], runtime: Runtime) -> dict[str, Tensor]:
    """The memory of all streams in their global order, B rows; empty before the first step."""
    parts = [part for part in memory if part is not None]
    if not parts:
        return {}
    return {name: runtime.gather(tensor) for name, tensor in Memory.cat(parts).state_dict().items()}


def own_memory(tensors: Mapping[str, Tensor], runtime: Runtime, *, accumulate: int) -> tuple[Memory | None, ...]:
    """The rows of this process, one memory for each micro-batch, from what `gathered_memory` gave with any world."""
    if not tensors:
        return (None,) * accumulate
    memory = Memory.from_state_dict({name: tensor.to(runtime.device) for name, tensor in tensors.items()})
    rows = torch.arange(memory.batch_size).chunk(runtime.world)[runtime.rank]
    return tuple(memory.select(part) for part in rows.chunk(accumulate))


def rng_state() -> dict[str, Any]:
    """Where the generators of Python, NumPy and torch stand, as JSON."""
    version, words, gauss = random.getstate()
    _, numpy_words, position, has_gauss, numpy_gauss = cast(tuple[Any, ...], np.random.get_state())
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
    return {
        "python": [version, list(words), gauss],
        "numpy": [numpy_words.tolist(), int(position), int(has_gauss), float(numpy_gauss)],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "cuda": None if cuda is None else cuda.numpy().tobytes().hex(),
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Put the generators where `rng_state` found them."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    numpy_words, position, has_gauss, numpy_gauss = state["numpy"]
    np.random.set_state(("MT19937", np.array(numpy_words, dtype=np.uint32), position, has_gauss, numpy_gauss))
    torch.set_rng_state(_bytes(state["torch"]))
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(_bytes(state["cuda"]))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Whatever draws random numbers inside, those after are the ones that would have come."""
    state = rng_state()
    try:
        yield
    finally:
        set_rng_state(state)


def _bytes(text: str) -> Tensor:
    """A uint8 tensor of hexadecimal text."""
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
