"""Reading on under a fixed window: ids B×T and a cache -> hidden states B×T×D, the cache updated in place.

Each position sees exactly min(age, window) earlier ones in every layer, so that neither chunks nor batches can change a
result. Where positions are relative, each token is projected once, when it comes; absolute positions force the window
to be computed anew for every token. Knows nothing of sessions or evaluation, which are built on it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from txl.model.cache import Cache, KeyValueCache
from txl.model.kernels.term import RelativeTerm
from txl.model.layers import Stack
from txl.model.memory import check_reset_in_front, first_visible, last_reset

RECOMPUTE_TOKENS = 16_384
"""Tokens of re-computed windows in one pass: bounds the memory of `advance_recomputed`."""


@torch.no_grad()
def key_value_cache(stack: Stack, batch_size: int, window: int) -> KeyValueCache:
    """Room for `window` keys and values a layer and row; a fresh row holds those of zero vectors where the model was
    trained with them, else zeros, of which one column serves for all."""
    config = stack.config
    valid = window if config.initial_memory == "zeros" else 0
    n_columns = valid or 1
    zeros = stack.embedding.tables[0].new_zeros(1, n_columns, config.d_model)
    rotation = stack.rotation(torch.arange(-n_columns, 0, device=zeros.device), zeros)
    layers = [layer.attention.keys_values(layer.ready(zeros), rotation) for layer in stack.typed_layers()]
    fresh = torch.stack([torch.stack(pair) for pair in layers]).permute(0, 1, 4, 2, 3, 5)
    return KeyValueCache(fresh if valid else torch.zeros_like(fresh), window=window, batch_size=batch_size, valid=valid)


def token_cache(stack: Stack, batch_size: int, window: int) -> Cache:
    """Room for the last `window` ids of a row, int64 B×window, newest last."""
    ids = torch.zeros(batch_size, window, dtype=torch.int64, device=stack.embedding.tables[0].device)
    return Cache({"ids": ids}, window=window, batch_size=batch_size, device=ids.device)


@torch.no_grad()
def advance_cached(
    stack: Stack, ids: Tensor, cache: KeyValueCache, resets: Tensor | None, lengths: Tensor | None
) -> Tensor:
    """Hidden states of new tokens from kept keys and values."""
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
    terms = terms_for(stack, cache, filled + n_tokens, n_tokens, x)
    rotation = None
    if stack.config.position == "rotary":
        rotation = stack.rotation(positions_of(cache.age, n_tokens, resets), x)
    begin = cache.make_room(n_tokens)
    new, seen = slice(begin, begin + n_tokens), slice(begin - filled, begin + n_tokens)
    by_row = cache.data.permute(0, 1, 3, 4, 2, 5)
    fresh, past_and_new = by_row[:, :, :, new].unbind(0), by_row[:, :, :, seen].unbind(0)
    for index, (layer, term) in enumerate(zip(stack.typed_layers(), terms, strict=True)):
        ready = layer.ready(x)
        for kept, rows in zip(fresh[index].unbind(0), layer.attention.keys_values(ready, rotation), strict=True):
            kept.copy_(rows)
        k, v = past_and_new[index].unbind(0)
        x = layer.mix(x, layer.attention(ready, k, v, term, first, rotation))
    cache.keep(n_tokens, lengths)
    cache.grow(n_tokens, resets, lengths)
    return stack.finish(x)


def terms_for(stack: Stack, cache: KeyValueCache, n_keys: int, n_tokens: int, like: Tensor) -> list[RelativeTerm]:
    """Each layer's term for `n_keys` keys, from a table made once for the longest chunk so far, a head's vectors side
    by side."""
    if cache.n_distances < cache.window + n_tokens:
        cache.n_distances = cache.window + n_tokens
        cache.terms = [term.head_first() for term in stack.terms(cache.n_distances, like)]
    return [term.newest(n_keys) for term in cache.terms]


def positions_of(age: Tensor, n_tokens: int, resets: Tensor | None) -> Tensor:
    """Positions of new tokens since their document began, int64 B×T, for rows of int64 B tokens before them."""
    steps = torch.arange(n_tokens, device=age.device)
    position = age[:, None] + steps
    if resets is None:
        return position
    newest = last_reset(resets)
    return torch.where(newest >= 0, steps - newest, position)


@torch.no_grad()
def advance_recomputed(
    stack: Stack, ids: Tensor, cache: Cache, resets: Tensor | None, lengths: Tensor | None
) -> Tensor:
    """Hidden states of new tokens, each from a pass of its own over its window, positions counted from the window's
    first.

    This is the sliding evaluation of a fixed-context model (Al-Rfou et al. 2019): exact, and window + 1 times the work.
    """
    batch_size, n_tokens = ids.shape
    width = min(cache.window, int(cache.age.max()) + n_tokens - 1)
    kept = cache.rows()["ids"]
    text = torch.cat([kept[:, cache.window - width :], ids], dim=1)
    windows = text.unfold(1, width + 1, 1).reshape(batch_size * n_tokens, width + 1)
    first = first_visible(cache.age.clamp(max=width), width, n_tokens, resets, window=cache.window)
    start = torch.zeros_like(ids)
    if first is not None:
        start = (first - torch.arange(n_tokens, device=ids.device)).clamp(min=0)
    rows = max(1, RECOMPUTE_TOKENS // (width + 1))
    hidden = [
        last_of_window(stack, w, s) for w, s in zip(windows.split(rows), start.reshape(-1).split(rows), strict=True)
    ]
    push(kept, ids, lengths)
    cache.grow(n_tokens, resets, lengths)
    return torch.cat(hidden).view(batch_size, n_tokens, -1)


def last_of_window(stack: Stack, windows: Tensor, start: Tensor) -> Tensor:
    """Hidden state of the last token of each window, rows×(w+1) -> rows×D; a window's text begins at column `start`."""
    steps = torch.arange(windows.shape[1], device=windows.device)
    position = (steps - start[:, None]).clamp(min=0)
    first = torch.minimum(start[:, None], steps).expand(len(start), -1)
    return stack(windows, position, (), first, newest_alone=True)[0][:, -1]


def push(kept: Tensor, new: Tensor, lengths: Tensor | None) -> None:
    """Shift rows `kept`, B×window, by the valid part of `new`, B×T, in place: newest last, oldest lost."""
    window, n_tokens = kept.shape[1], new.shape[1]
    both = torch.cat([kept, new], dim=1)
    if lengths is None:
        kept.copy_(both[:, n_tokens:])
        return
    kept.copy_(both.gather(1, lengths[:, None] + torch.arange(window, device=kept.device)))
