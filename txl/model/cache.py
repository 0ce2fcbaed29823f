"""Streaming state of constant size: what `advance` needs of the past, updated in place.

Two kinds: named tensors with rows first (`Cache`: the h and c of an LSTM, or the last ids where absolute positions
force the window to be computed anew), and the keys and values of the last `window` positions (`KeyValueCache`). Unlike
a `Memory`, a cache belongs to one session and changes under it; `clone` before an experiment. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor

from txl.model.kernels.term import RelativeTerm
from txl.model.memory import last_reset


class Cache:
    """Tensors with rows B first, zeros in a row that has read nothing, and how old each row is.

    The weights must not change while it lives. rows: the tensors, all zeros; they are the cache's from then on.
    """

    def __init__(self, rows: dict[str, Tensor], *, window: int, batch_size: int, device: torch.device) -> None:
        self.window = window
        self.age = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self._rows = rows

    @property
    def batch_size(self) -> int:
        """Rows B."""
        return self.age.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the state; they never change."""
        return self.age.nbytes + sum(tensor.nbytes for tensor in self.rows().values())

    def rows(self) -> dict[str, Tensor]:
        """The state by name, rows first: what is written into these tensors is the cache's from then on."""
        return self._rows

    def reset(self, rows: Sequence[int] | None = None) -> None:
        """Forget the past of the given rows, or of all."""
        index = slice(None) if rows is None else torch.as_tensor(rows, dtype=torch.int64, device=self.age.device)
        self.age[index] = 0
        for tensor in self._rows.values():
            tensor[index] = 0

    def check(self, ids: Tensor) -> None:
        """Raise ValueError where the rows of `ids` are not this cache's."""
        if ids.shape[0] != self.batch_size:
            raise ValueError(f"the cache has {self.batch_size} rows but ids has {ids.shape[0]}")

    def select(self, rows: Tensor | Sequence[int]) -> Self:
        """An independent cache of the given rows, in that order; a row may be named twice."""
        index = torch.as_tensor(rows, dtype=torch.int64, device=self.age.device)
        chosen = copy(self)
        chosen._rows = {name: tensor[index] for name, tensor in self._rows.items()}
        chosen.age = self.age[index]
        return chosen

    def clone(self) -> Self:
        """An independent copy."""
        return self.select(range(self.batch_size))

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors by name, for safetensors."""
        return {**self.rows(), "age": self.age}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` gave. Raises ValueError where names, shapes or dtypes differ."""
        own = self.state_dict()
        for name in sorted(own.keys() | state.keys()):
            found, wanted = (
                f"{tuple(d[name].shape)} {d[name].dtype}" if name in d else "nothing" for d in (state, own)
            )
            if found != wanted:
                raise ValueError(
                    f"state {name!r}: found {found}, this cache holds {wanted}: same model, window and batch?"
                )
        for name, tensor in own.items():
            tensor.copy_(state[name])

    def grow(self, n_tokens: int, resets: Tensor | None, lengths: Tensor | None) -> None:
        """Advance the age of each row by its valid tokens, counting from its newest reset, in place."""
        if resets is None:
            self.age += n_tokens if lengths is None else lengths
            return
        valid = torch.full_like(self.age, n_tokens) if lengths is None else lengths
        inside = resets & (torch.arange(n_tokens, device=resets.device) < valid[:, None])
        newest = last_reset(inside)[:, -1]
        self.age.copy_(torch.where(newest >= 0, valid - newest, self.age + valid))


class KeyValueCache(Cache):
    """The keys and values of the last N = `window` positions of each row, kept without moving them at each token.

    data: layers×2×H×B×C×E. The newest position of every row stands before column `end`; new ones are written there, and
    when the C = 2N columns are used up the last N move to the front: every head's keys stay one matrix, and a token
    costs one row of copying. valid: how many positions of a fresh row count as seen (0, or N where the model was
    trained with zeros in front of a text).
    """

    def __init__(self, fresh: Tensor, *, window: int, batch_size: int, valid: int = 0) -> None:
        """fresh: what a row of no age holds, layers×2×H×1×N×E, or a single column where all N are alike.

        Raises ValueError for a window that does not fit into memory.
        """
        super().__init__({}, window=window, batch_size=batch_size, device=fresh.device)
        n_layer, _, n_head, _, _, width = fresh.shape
        self.fresh = fresh
        self.valid = valid
        try:
            self.data = fresh.new_zeros(n_layer, 2, n_head, batch_size, 2 * window, width)
        except RuntimeError as error:
            needed = fresh.itemsize * n_layer * 2 * n_head * batch_size * 2 * window * width
            found = f"found {window}, whose keys and values for {batch_size} rows take {needed:,} bytes"
            raise ValueError(f"window: {found}; allowed: what fits into memory") from error
        self.end = window
        self.reset()
        self.terms: list[RelativeTerm] = []
        self.n_distances = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the state and of the tables of distances; grows with the longest chunk, never with age."""
        tables = (part for term in self.terms for part in (term.r, term.bias) if part is not None)
        return self.age.nbytes + self.data.nbytes + sum(table.nbytes for table in tables)

    def past(self) -> Tensor:
        """int64 B: positions a next token may see, at most the window."""
        return (self.age + self.valid).clamp(max=self.window)

    def rows(self) -> dict[str, Tensor]:
        """Views B×N×H×E of each layer's keys and values, newest last."""
        kept = self.data[..., self.end - self.window : self.end, :].permute(0, 1, 3, 4, 2, 5)
        return {
            f"{kind}.{layer}": kept[layer, index]
            for layer in range(len(kept))
            for index, kind in enumerate(("keys", "values"))
        }

    def reset(self, rows: Sequence[int] | None = None) -> None:
        """Forget the past of the given rows, or of all: nothing of it stays in the tensors."""
        index = slice(None) if rows is None else torch.as_tensor(rows, dtype=torch.int64, device=self.age.device)
        self.age[index] = 0
        self.data[:, :, :, index] = 0
        self.data[:, :, :, index, self.end - self.window : self.end] = self.fresh

    def select(self, rows: Tensor | Sequence[int]) -> Self:
        """An independent cache of the given rows, in that order; a row may be named twice."""
        chosen = super().select(rows)
        chosen.data = self.data[:, :, :, torch.as_tensor(rows, dtype=torch.int64, device=self.age.device)]
        return chosen

    def make_room(self, n_tokens: int) -> int:
        """The column where the next `n_tokens` positions of each layer are to be written."""
        if self.end + n_tokens > self.data.shape[4]:
            kept = self.data[..., self.end - self.window : self.end, :].clone()
            if self.window + n_tokens > self.data.shape[4]:
                self.data = self.data.new_zeros(*self.data.shape[:4], self.window + n_tokens, self.data.shape[5])
            self.data[..., : self.window, :] = kept
            self.end = self.window
        return self.end

    def keep(self, n_tokens: int, lengths: Tensor | None) -> None:
        """Count the positions written after `end` as kept; where a row has fewer valid ones, move its past up to
        them."""
        begin, self.end = self.end, self.end + n_tokens
        if lengths is None:
            return
        for valid in set(lengths.tolist()) - {n_tokens}:
            short = (lengths == valid).nonzero().flatten()
            newest = self.data[:, :, :, short, begin + valid - self.window : begin + valid]
            self.data[:, :, :, short, self.end - self.window : self.end] = newest
