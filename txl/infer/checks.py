"""What a session is given, checked before anything changes: arguments in, tensors of known shape out, or ValueError.

Knows nothing of models or of what the values are for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """The next ids of B rows: ids int64 B×T, 0 at padding; resets bool B×T or None.

    lengths int64 B and valid bool B×T say what is no padding; both None where all of it is text.
    """

    ids: Tensor
    lengths: Tensor | None
    valid: Tensor | None
    resets: Tensor | None

    def piece(self, start: int, stop: int) -> Batch:
        """Columns start to stop, at most T."""
        ids = self.ids[:, start:stop]
        lengths = None if self.lengths is None else (self.lengths - start).clamp(0, ids.shape[1])
        valid, resets = (None if t is None else t[:, start:stop] for t in (self.valid, self.resets))
        return Batch(ids, lengths, valid, resets)


def checked_batch(
    ids: Tensor,
    lengths: Tensor | Sequence[int] | None,
    resets: Tensor | None,
    *,
    batch_size: int,
    vocab_size: int,
    device: torch.device,
) -> Batch:
    """The arguments of `feed` on a device; raises ValueError saying what was found and what is allowed."""
    if ids.dtype != torch.int64 or ids.dim() != 2:
        raise ValueError(f"ids is {_described(ids)}: must be int64 of shape B×T, here {batch_size}×T")
    if ids.shape[0] != batch_size:
        raise ValueError(f"ids has {ids.shape[0]} rows but the session has {batch_size}: every call feeds all rows")
    valid = None
    if lengths is not None:
        lengths = checked_lengths(lengths, batch_size=batch_size, most=ids.shape[1]).to(ids.device)
        valid = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        ids = ids.masked_fill(~valid, 0)
    least, most = (int(end) for end in ids.aminmax()) if ids.numel() else (0, 0)
    if least < 0 or most >= vocab_size:
        row, column = ((ids < 0) | (ids >= vocab_size)).nonzero()[0].tolist()
        found = int(ids[row, column])
        raise ValueError(f"ids[{row}, {column}] is {found}: the model's vocabulary has ids 0 to {vocab_size - 1}")
    if resets is not None:
        if resets.dtype != torch.bool or resets.shape != ids.shape:
            raise ValueError(f"resets is {_described(resets)}: must be bool of the shape of ids, {tuple(ids.shape)}")
        resets = resets.to(ids.device) if valid is None else resets.to(ids.device) & valid
    lengths, valid, resets = (None if t is None else t.to(device) for t in (lengths, valid, resets))
    return Batch(ids.to(device), lengths, valid, resets)


def checked_lengths(lengths: Tensor | Sequence[int], *, batch_size: int, most: int) -> Tensor:
    """int64 B: valid ids of each row, 0 to T."""
    lengths = torch.as_tensor(lengths)
    if lengths.shape != (batch_size,) or lengths.dtype.is_floating_point or lengths.dtype == torch.bool:
        raise ValueError(f"lengths is {_described(lengths)}: must be {batch_size} integers, one a row")
    if bool(((lengths < 0) | (lengths > most)).any()):
        raise ValueError(f"lengths is {lengths.tolist()}: each must be 0 to {most}, the columns of ids")
    return lengths.to(torch.int64)


def checked_rows(rows: Iterable[int] | None, *, batch_size: int) -> list[int]:
    """Row numbers as a list; all rows for None."""
    chosen = list(range(batch_size)) if rows is None else [int(row) for row in rows]
    if any(not 0 <= row < batch_size for row in chosen):
        raise ValueError(f"rows is {chosen}: the session has rows 0 to {batch_size - 1}")
    return chosen


def checked_stop(stop: Iterable[Sequence[int]], *, vocab_size: int, name: str = "stop") -> list[list[int]]:
    """Stop sequences as lists of ids; `name` is what the caller knows them as."""
    sequences = [one if isinstance(one, str | int) else [int(i) for i in one] for one in stop]
    lists = [one for one in sequences if isinstance(one, list)]
    if len(lists) < len(sequences):
        raise ValueError(
            f"{name} is {sequences}: must be lists of ids such as [[10], [13, 10]]; for strings see generate_text"
        )
    if any(not one or any(not 0 <= i < vocab_size for i in one) for one in lists):
        raise ValueError(f"{name} is {lists}: each list must have at least one id, each id 0 to {vocab_size - 1}")
    return lists


def checked_seeds(seed: int | Sequence[int], *, batch_size: int) -> list[int]:
    """One seed a row: seed + b for row b, or the given list."""
    seeds = [seed + row for row in range(batch_size)] if isinstance(seed, int) else [int(one) for one in seed]
    if len(seeds) != batch_size or any(not 0 <= one < 2**63 for one in seeds):
        raise ValueError(f"seed is {seed}: must be an integer from 0 to 2^63 - 1, or {batch_size} of them, one a row")
    return seeds


def checked_state(found: dict[str, Tensor], like: dict[str, Tensor]) -> dict[str, Tensor]:
    """`found`, copied to the devices of `like`, whose names, shapes, dtypes, window and model it must have."""
    causes = []
    problems = [f"{name} is missing" for name in like.keys() - found.keys()]
    problems += [f"{name} is unknown" for name in found.keys() - like.keys()]
    for name in like.keys() & found.keys():
        if (found[name].shape, found[name].dtype) != (like[name].shape, like[name].dtype):
            problems.append(f"{name} is {_described(found[name])} instead of {_described(like[name])}")
        elif name == "window" and int(found[name]) != int(like[name]):
            causes.append(f"window is {int(found[name])} instead of {int(like[name])}")
        elif name == "model" and not torch.equal(found[name].cpu(), like[name].cpu()):
            causes.append(f"model is {_digest(found[name])} instead of {_digest(like[name])}")
    if causes or problems:  # another window or model explains every tensor of another shape
        raise ValueError(
            f"the state is not of a session like this one: {'; '.join(sorted(causes or problems))}. "
            "Make the session with the same model, batch_size and window"
        )
    return {name: tensor.to(like[name].device, copy=True) for name, tensor in found.items()}


def _digest(fingerprint: Tensor) -> str:
    """The beginning of a model's fingerprint in letters."""
    return bytes(fingerprint.flatten()[:4].tolist()).hex()


def _described(tensor: Tensor) -> str:
    """Dtype and shape in words."""
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {'×'.join(map(str, tensor.shape)) or '()'}"
