"""Segment-level memory: what the next segment may read, as a value that goes in and comes out.

Layer inputs of a segment -> the last `mem_len` of them, without gradient -> extra keys and values of the next segment
(Dai et al. 2019, section 3.2). Knows nothing of attention scores, positions or parameters.

A row whose text began recently has fewer valid rows than the tensor holds: `length` says how many, newest last, and
the rest is masked. Cold memory is therefore no memory, never zeros that receive attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Memory:
    """What a model may read besides the segment at hand.

    layers: one tensor a layer, B×M×D for attention, newest last (an LSTM keeps h and c, each B×D, for every layer).
    length: int64 B, how many of the M positions of each row are valid (an LSTM: tokens since the row began).
    """

    layers: tuple[Tensor, ...]
    length: Tensor

    @property
    def batch_size(self) -> int:
        """Rows B."""
        return self.length.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in (*self.layers, self.length))

    def select(self, rows: Tensor | Sequence[int]) -> Memory:
        """The memory of the given rows, in the given order; a row may be named twice (beams)."""
        index = torch.as_tensor(rows, dtype=torch.int64, device=self.length.device)
        return Memory(tuple(layer[index] for layer in self.layers), self.length[index])

    @staticmethod
    def cat(parts: Sequence[Memory]) -> Memory:
        """The rows of several memories under each other: the inverse of selecting consecutive rows."""
        layers = zip(*(part.layers for part in parts), strict=True)
        return Memory(tuple(torch.cat(tensors) for tensors in layers), torch.cat([part.length for part in parts]))

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors by name, contiguous, as a checkpoint wants them."""
        named = {f"layers.{i}": layer.contiguous() for i, layer in enumerate(self.layers)}
        return {**named, "length": self.length}

    @staticmethod
    def from_state_dict(state: dict[str, Tensor]) -> Memory:
        """The memory that `state_dict` wrote.

        Raises ValueError if the names are not `length` and `layers.0` to `layers.n`.
        """
        names = [f"layers.{i}" for i in range(len(state) - 1)]
        if set(state) != {"length", *names}:
            raise ValueError(f"a memory has the tensors length, layers.0, layers.1, …; found {sorted(state)}")
        return Memory(tuple(state[name] for name in names), state["length"])


def check_segment(ids: Tensor, targets: Tensor | None, resets: Tensor | None) -> None:
    """Raise ValueError unless ids are integers B×T of at least one token and the others have their shape."""
    if ids.dim() != 2 or ids.shape[1] == 0 or ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"ids: found {ids.dtype} of shape {tuple(ids.shape)}; allowed: int64 B×T, at least one token")
    for name, tensor in (("targets", targets), ("resets", resets)):
        if tensor is not None and tensor.shape != ids.shape:
            found = f"found shape {tuple(tensor.shape)} beside ids of {tuple(ids.shape)}"
            raise ValueError(f"{name}: {found}; allowed: the same shape, a row for each stream")
    if resets is not None and resets.dtype != torch.bool:
        raise ValueError(f"resets: found {resets.dtype}; allowed: bool, True where a document begins")


def check_batch(memory: Memory, ids: Tensor, n_tensors: int) -> None:
    """Raise ValueError where the memory's rows are not the rows of `ids`, or it is another model's."""
    if len(memory.layers) != n_tensors:
        raise ValueError(
            f"memory has {len(memory.layers)} tensors but this model keeps {n_tensors}: it comes from a model of "
            "another depth; start with memory=None"
        )
    if memory.batch_size != ids.shape[0]:
        raise ValueError(
            f"memory has {memory.batch_size} rows but ids has {ids.shape[0]}: each row's memory belongs to one stream; "
            "pass memory.select(rows) or start with memory=None"
        )


def check_reset_in_front(resets: Tensor) -> None:
    """Raise ValueError where a document begins inside a segment, which `initial_memory: zeros` has no room for."""
    if resets[:, 1:].any():
        raise ValueError(
            "with initial_memory: zeros a document can begin at the first token of a segment only, for the zeros stand "
            "in front of it; use initial_memory: empty"
        )


def remember(old: Tensor, inputs: Tensor, *, mem_len: int) -> Tensor:
    """The last `mem_len` rows of old memory and new layer inputs, B×M×D and B×T×D -> B×min(M+T, mem_len)×D, cut from
    the graph.

    With M = 3 rows a b c, T = 2 inputs d e and mem_len 4 the result is b c d e.
    """
    n_new = min(inputs.shape[1], mem_len)
    n_old = min(old.shape[1], mem_len - n_new)
    kept = (old[:, old.shape[1] - n_old :].to(inputs.dtype), inputs[:, inputs.shape[1] - n_new :])
    return torch.cat(kept, dim=1).detach()


def last_reset(resets: Tensor) -> Tensor:
    """B×T bool -> B×T int64: the newest position up to each one at which a document began, -1 where none did.

    False True False False True  ->  -1 1 1 1 4
    """
    steps = torch.arange(resets.shape[1], device=resets.device)
    return torch.where(resets, steps, -1).cummax(dim=1).values


def next_length(length: Tensor, n_tokens: int, resets: Tensor | None, *, mem_len: int) -> Tensor:
    """Valid rows of memory after a segment: the age of the row, at most `mem_len`; int64 B."""
    age = length + n_tokens
    if resets is not None:
        newest = last_reset(resets)[:, -1]
        age = torch.where(newest >= 0, n_tokens - newest, age)
    return age.clamp(max=mem_len)


def first_visible(
    length: Tensor, n_memory: int, n_tokens: int, resets: Tensor | None, *, window: int | None
) -> Tensor | None:
    """The oldest key each query may see, int64 B×T; None where that is key 0 for all of them.

    All there is to masking: query i of a row stands at key M + i and sees an unbroken range of keys that ends with
    itself. The range begins at the oldest valid memory row, `window` positions back, or at the newest reset,
    whichever is latest. With M = 2, T = 3, one valid memory row, window 2 and no reset the ranges are

        key        0 1 2 3 4
        query 0    . x x . .      first 1
        query 1    . x x x .      first 1
        query 2    . . x x x      first 2
    """
    fits = window is None or n_memory + n_tokens - 1 <= window
    if not torch.compiler.is_compiling() and fits and resets is None and int(length.min()) >= n_memory:
        return None
    steps = torch.arange(n_tokens, device=length.device)
    first = (n_memory - length)[:, None].expand(-1, n_tokens)
    if window is not None:
        first = torch.maximum(first, n_memory + steps - window)
    if resets is not None:
        newest = last_reset(resets)
        first = torch.where(newest >= 0, torch.maximum(first, n_memory + newest), first)
    if torch.compiler.is_compiling():  # what is compiled must not depend on what is in the tensors
        return first
    return first if bool((first > 0).any()) else None


def positions_since_reset(ids: Tensor, resets: Tensor | None) -> Tensor:
    """Absolute positions within the segment, int64 B×T for ids B×T, restarting from 0 at each reset."""
    steps = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
    return steps if resets is None else steps - last_reset(resets).clamp(min=0)
