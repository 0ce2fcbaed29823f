"""Streaming state of constant size: what `advance` needs of the past under a fixed window, updated in place.

ids B×T -> hidden B×T×D, each position seeing exactly min(age, window) earlier ones in every layer, so that neither
chunks nor batches can change a result. Three kinds of state, one use: keys and values where positions are relative
(`KeyValueCache`), the last ids where absolute positions force the window to be computed anew (`TokenCache`), h and c
of an LSTM (`lstm`). Unlike a `Memory`, a cache belongs to one session and changes under it; `clone` before an
experiment.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor

from txl.model.kernels.term import RelativeTerm
from txl.model.layers import Stack
from txl.model.memory import check_reset_in_front, first_visible, last_reset

RECOMPUTE_TOKENS = 16_384
"""Tokens of re-computed windows in one pass: bounds the memory of `advance_recomputed`."""


class Cache:
    """Tensors with rows B first, and how old each row is.

    The weights must not change while it lives. blank: what a fresh row holds, one row a tensor; valid: how many
    positions of a fresh row count as seen (0, or the window where the model was trained with zeros in front of a text).
    """

    def __init__(self, blank: dict[str, Tensor], *, window: int, batch_size: int, valid: int = 0) -> None:
        self.blank = blank
        self.tensors = {name: row.expand(batch_size, *row.shape[1:]).clone() for name, row in blank.items()}
        self.window = window
        self.valid = valid
        self.age = torch.zeros(batch_size, dtype=torch.int64, device=next(iter(blank.values())).device)
        self.terms: list[RelativeTerm] = []
        self.n_distances = 0

    @property
    def batch_size(self) -> int:
        """Rows B."""
        return self.age.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the state and of the tables of distances; grows with the longest chunk, never with age."""
        tables = (part for term in self.terms for part in (term.r, term.bias) if part is not None)
        return self.age.nbytes + sum(tensor.nbytes for tensor in (*self.tensors.values(), *tables))

    def reset(self, rows: Sequence[int] | None = None) -> None:
        """Forget the past of the given rows, or of all."""
        index = slice(None) if rows is None else torch.as_tensor(rows, dtype=torch.int64, device=self.age.device)
        self.age[index] = 0
        for name, tensor in self.tensors.items():
            tensor[index] = self.blank[name]

    def past(self) -> Tensor:
        """int64 B: positions a next token may see, at most the window."""
        return (self.age + self.valid).clamp(max=self.window)

    def terms_for(self, stack: Stack, n_keys: int, n_tokens: int, like: Tensor) -> list[RelativeTerm]:
        """Each layer's term for `n_keys` keys, from a table made once for the longest chunk so far."""
        if self.n_distances < self.window + n_tokens:
            self.n_distances = self.window + n_tokens
            self.terms = stack.terms(self.n_distances, like)
        return [term.newest(n_keys) for term in self.terms]

    def check(self, ids: Tensor) -> None:
        """Raise ValueError where the rows of `ids` are not this cache's."""
        if ids.shape[0] != self.batch_size:
            raise ValueError(f"the cache has {self.batch_size} rows but ids has {ids.shape[0]}")

    def select(self, rows: Tensor | Sequence[int]) -> Cache:
        """An independent cache of the given rows, in that order; a row may be named twice."""
        index = torch.as_tensor(rows, dtype=torch.int64, device=self.age.device)
        chosen = copy(self)
        chosen.tensors = {name: tensor[index] for name, tensor in self.tensors.items()}
        chosen.age = self.age[index]
        return chosen

    def clone(self) -> Cache:
        """An independent copy."""
        return self.select(range(self.batch_size))

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors by name, for safetensors."""
        return {**self.tensors, "age": self.age}

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


@torch.no_grad()
def key_value_cache(stack: Stack, batch_size: int, window: int) -> Cache:
    """Room for `window` keys and values a layer and row, B×window×H×E, newest last."""
    zeros = stack.embedding.tables[0].new_zeros(1, window, stack.config.d_model)
    blank: dict[str, Tensor] = {}
    for index, layer in enumerate(stack.typed_layers()):
        keys, values = layer.keys_values(zeros)
        blank |= {f"keys.{index}": keys, f"values.{index}": values}
    valid = window if stack.config.initial_memory == "zeros" else 0
    return Cache(blank, window=window, batch_size=batch_size, valid=valid)


def token_cache(stack: Stack, batch_size: int, window: int) -> Cache:
    """Room for the last `window` ids of a row, int64 B×window, newest last."""
    ids = torch.zeros(1, window, dtype=torch.int64, device=stack.embedding.tables[0].device)
    return Cache({"ids": ids}, window=window, batch_size=batch_size)


def advance_cached(stack: Stack, ids: Tensor, cache: Cache, resets: Tensor | None, lengths: Tensor | None) -> Tensor:
    """Hidden states of new tokens from kept keys and values; each token of the past is projected once, when it
    comes."""
    if resets is not None and cache.valid:
        check_reset_in_front(resets)
        cache.reset(resets[:, 0].nonzero().flatten().tolist())
        resets = None
    n_tokens = ids.shape[1]
    past = cache.past()
    filled = int(past.max())
    window = cache.window - int(stack.config.window_includes_self)
    first = first_visible(past, filled, n_tokens, resets, window=window)
    x = stack.embed(ids)
    terms = cache.terms_for(stack, filled + n_tokens, n_tokens, x)
    for index, (layer, term) in enumerate(zip(stack.typed_layers(), terms, strict=True)):
        seen = []
        for kind, new in zip(("keys", "values"), layer.keys_values(x), strict=True):
            kept = cache.tensors[f"{kind}.{index}"]
            seen.append(torch.cat([kept[:, cache.window - filled :].to(new.dtype), new], dim=1))
            push(kept, new, lengths)
        x = layer(x, seen[0], seen[1], term, first)
    grow(cache, n_tokens, resets, lengths)
    return stack.finish(x)


def advance_recomputed(
    stack: Stack, ids: Tensor, cache: Cache, resets: Tensor | None, lengths: Tensor | None
) -> Tensor:
    """Hidden states of new tokens, each from a pass of its own over its window, positions counted from the window's
    first.

    This is the sliding evaluation of a fixed-context model (Al-Rfou et al. 2019): exact, and window + 1 times the work.
    """
    batch_size, n_tokens = ids.shape
    width = min(cache.window, int(cache.age.max()) + n_tokens - 1)
    kept = cache.tensors["ids"]
    text = torch.cat([kept[:, cache.window - width :], ids], dim=1)
    windows = text.unfold(1, width + 1, 1).reshape(batch_size * n_tokens, width + 1)
    first = first_visible(cache.age.clamp(max=width), width, n_tokens, resets, window=cache.window)
    assert first is not None
    start = (first - torch.arange(n_tokens, device=ids.device)).clamp(min=0)
    rows = max(1, RECOMPUTE_TOKENS // (width + 1))
    hidden = [
        last_of_window(stack, w, s) for w, s in zip(windows.split(rows), start.reshape(-1).split(rows), strict=True)
    ]
    push(kept, ids, lengths)
    grow(cache, n_tokens, resets, lengths)
    return torch.cat(hidden).view(batch_size, n_tokens, -1)


def last_of_window(stack: Stack, windows: Tensor, start: Tensor) -> Tensor:
    """Hidden state of the last token of each window, rows×(w+1) -> rows×D; a window's text begins at column `start`."""
    steps = torch.arange(windows.shape[1], device=windows.device)
    position = (steps - start[:, None]).clamp(min=0)
    first = torch.minimum(start[:, None], steps).expand(len(start), -1)
    return stack(windows, position, (), first)[0][:, -1]


def push(kept: Tensor, new: Tensor, lengths: Tensor | None) -> None:
    """Shift rows `kept`, B×window×…, by the valid part of `new`, B×T×…, in place: newest last, oldest lost."""
    window, n_tokens = kept.shape[1], new.shape[1]
    if lengths is None:
        kept.copy_(torch.cat([kept, new.to(kept.dtype)], dim=1)[:, n_tokens:])
        return
    both = torch.cat([kept, new.to(kept.dtype)], dim=1)
    index = lengths[:, None] + torch.arange(window, device=kept.device)
    kept.copy_(both[torch.arange(len(kept), device=kept.device)[:, None], index])


def grow(cache: Cache, n_tokens: int, resets: Tensor | None, lengths: Tensor | None) -> None:
    """Advance the age of each row by its valid tokens, counting from its newest reset, in place."""
    valid = torch.full_like(cache.age, n_tokens) if lengths is None else lengths
    age = cache.age + valid
    if resets is not None:
        inside = resets & (torch.arange(n_tokens, device=resets.device) < valid[:, None])
        newest = last_reset(inside)[:, -1]
        age = torch.where(newest >= 0, valid - newest, age)
    cache.age.copy_(age)
