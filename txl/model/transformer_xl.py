"""Transformer-XL: a decoder whose segments read the memory of earlier ones, under positions that only know distances.

ids B×T and a Memory -> Output with the next Memory (Dai et al. 2019). Knows nothing of streams, optimizers or files.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from txl.config import ModelConfig
from txl.model.advance import advance_cached, advance_recomputed, key_value_cache, token_cache
from txl.model.cache import Cache, KeyValueCache
from txl.model.layers import Stack
from txl.model.memory import (
    Memory,
    check_batch,
    check_reset_in_front,
    check_segment,
    first_visible,
    next_length,
    positions_since_reset,
    remember,
)
from txl.model.output import Output
from txl.model.positions import ABSOLUTE
from txl.model.softmax import Softmax


class TransformerXL(nn.Module):
    """The paper's model; with `mem_len` 0 it is a plain decoder under any position scheme."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.stack = Stack(config, vocab_size)
        self.head = Softmax(config, vocab_size)

    def forward(
        self, ids: Tensor, memory: Memory | None = None, targets: Tensor | None = None, resets: Tensor | None = None
    ) -> Output:
        """Read one segment after `memory`.

        ids, targets: int64 B×T, targets already shifted (targets[t] follows ids[t]), -100 for none. resets: bool B×T,
        True
        where a document begins: from there on the row sees nothing older. memory: of the segment before, None for a
        fresh text. Returns logits, or nll where targets are given. Raises ValueError where the rows of memory and ids
        differ.
        """
        config = self.config
        check_segment(ids, targets, resets)
        memory = self.fresh_memory(ids) if memory is None else memory
        check_batch(memory, ids, config.n_layer)
        if resets is not None and config.initial_memory == "zeros":
            check_reset_in_front(resets)
            memory, resets = self.restarted(memory, ids, resets[:, 0]), None
        n_memory, n_tokens = memory.layers[0].shape[1], ids.shape[1]
        window = config.mem_len - int(config.window_includes_self) if config.same_length else None
        first = first_visible(memory.length, n_memory, n_tokens, resets, window=window)
        position = positions_since_reset(ids, resets)

        hidden, inputs = self.stack(ids, position, memory.layers, first)

        layers = tuple(remember(old, x, mem_len=config.mem_len) for old, x in zip(memory.layers, inputs, strict=True))
        length = next_length(memory.length, n_tokens, resets, mem_len=config.mem_len)
        if targets is None:
            return Output(hidden, Memory(layers, length), logits=self.logits(hidden))
        return Output(hidden, Memory(layers, length), nll=self.nll(hidden, targets))

    def fresh_memory(self, ids: Tensor) -> Memory:
        """Memory before the first segment: no rows, or `mem_len` rows of zeros that count as valid."""
        rows = self.config.mem_len if self.config.initial_memory == "zeros" else 0
        weight = self.stack.embedding.tables[0]
        empty = torch.zeros(len(ids), rows, self.config.d_model, dtype=weight.dtype, device=weight.device)
        length = torch.full((len(ids),), rows, dtype=torch.int64, device=ids.device)
        return Memory((empty,) * self.config.n_layer, length)

    def cold_memory(self, n_rows: int) -> Memory:
        """Memory of `mem_len` rows none of which counts: what a fresh text has, in the shapes of a full memory."""
        weight = self.stack.embedding.tables[0]
        size = (n_rows, self.config.mem_len, self.config.d_model)
        layers = tuple(weight.detach().new_zeros(size) for _ in range(self.config.n_layer))
        return Memory(layers, torch.zeros(n_rows, dtype=torch.int64, device=weight.device))

    def restarted(self, memory: Memory, ids: Tensor, rows: Tensor) -> Memory:
        """Memory with the zeros of a fresh text in the given rows, bool B."""
        fresh = self.fresh_memory(ids)
        layers = (
            torch.where(rows[:, None, None], new, kept) for new, kept in zip(fresh.layers, memory.layers, strict=True)
        )
        return Memory(tuple(layers), torch.where(rows, fresh.length, memory.length))

    def logits(self, hidden: Tensor) -> Tensor:
        """Unnormalised log-probabilities of the next token, …×D -> …×V."""
        return self.head.logits(hidden, self.stack.embedding)

    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Nats of each target, B×T×D and int64 B×T -> B×T; 0 where a target is -100."""
        return self.head.nll(hidden, targets, self.stack.embedding)

    @property
    def default_window(self) -> int:
        """Earlier positions a layer sees in evaluation and streaming unless told otherwise."""
        return self.config.mem_len or self.config.tgt_len - 1

    def reach(self, window: int) -> int:
        """Tokens back that can still matter under a fixed window: through every layer, or once where it is
        re-computed."""
        return window if self.config.position in ABSOLUTE else self.config.n_layer * window

    def check_window(self, window: int) -> None:
        """Raise ValueError for a window this model cannot have."""
        least = int(self.config.window_includes_self)
        most = self.config.tgt_len - 1 if self.config.position == "learned" else None
        if window < least or (most is not None and window > most):
            allowed = (
                f"at least {least}" if most is None else f"{least} to {most}, for learned positions end at tgt_len"
            )
            raise ValueError(f"window: found {window}; allowed: {allowed}")

    def new_cache(self, batch_size: int, window: int | None = None) -> Cache:
        """Streaming state for `batch_size` fresh texts; its bytes never change.

        Raises ValueError for a window the model cannot have.
        """
        window = self.default_window if window is None else window
        self.check_window(window)
        if self.config.position in ABSOLUTE:
            return token_cache(self.stack, batch_size, window)
        return key_value_cache(self.stack, batch_size, window)

    def advance(
        self, ids: Tensor, cache: Cache, *, resets: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        """Hidden states B×T×D of the next tokens of every row under the cache's fixed window; updates the cache in
        place.

        resets: bool B×T, True where a document begins. lengths: int64 B, valid tokens of each row; what stands to the
        right of them is padding, never kept, its hidden states meaningless. Call in eval mode without gradients.
        """
        cache.check(ids)
        if isinstance(cache, KeyValueCache):
            return advance_cached(self.stack, ids, cache, resets, lengths)
        return advance_recomputed(self.stack, ids, cache, resets, lengths)
