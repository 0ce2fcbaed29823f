"""The recurrent baseline: an LSTM language model whose state is its memory, trained by truncated back-propagation.

ids B×T and a Memory of (h, c) -> Output with the next state, through the contract of the Transformers (Hochreiter &
Schmidhuber 1997; sizes as in Merity et al. 2018). Knows nothing of streams, optimizers or files.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from txl.config import ModelConfig
from txl.model.cache import Cache
from txl.model.dropout import Dropout
from txl.model.embedding import Embedding
from txl.model.memory import Memory, check_batch, check_segment, next_length
from txl.model.output import Output
from txl.model.softmax import Softmax


class LSTM(nn.Module):
    """`n_layer` LSTM layers of width D between a tied embedding and softmax."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.embedding = Embedding(config, vocab_size)
        self.layers = nn.ModuleList(
            nn.LSTM(config.d_model, config.d_model, batch_first=True) for _ in range(config.n_layer)
        )
        self.drop = Dropout(config.dropout, locked=config.locked_dropout)
        self.head = Softmax(config, vocab_size)

    def forward(
        self, ids: Tensor, memory: Memory | None = None, targets: Tensor | None = None, resets: Tensor | None = None
    ) -> Output:
        """Read one segment after `memory`, whose layers are h and c, B×D, of each LSTM layer and whose length is the
        row's age.

        Arguments, results and errors as for `TransformerXL.forward`; a reset restarts h and c before that token.
        """
        check_segment(ids, targets, resets)
        if memory is None:
            memory = Memory(tuple(self.fresh_state(len(ids))), torch.zeros_like(ids[:, 0]))
        check_batch(memory, ids, 2 * self.config.n_layer)
        hidden, state = self.run(ids, list(memory.layers), resets)
        length = next_length(memory.length, ids.shape[1], resets, mem_len=torch.iinfo(torch.int64).max)
        kept = Memory(tuple(tensor.detach() for tensor in state), length)
        if targets is None:
            return Output(hidden, kept, logits=self.logits(hidden))
        return Output(hidden, kept, nll=self.nll(hidden, targets))

    def fresh_state(self, batch_size: int) -> list[Tensor]:
        """h and c of every layer before the first token: zeros, B×D each."""
        weight = self.embedding.tables[0]
        return [weight.new_zeros(batch_size, self.config.d_model) for _ in range(2 * self.config.n_layer)]

    def run(self, ids: Tensor, state: list[Tensor], resets: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """Hidden states B×T×D and the state after the last token.

        The segment is cut where any row resets inside it. Rows that do not are read in one piece all the same, so that
        another row's reset cannot change their last bit.
        """
        if resets is None:
            return self.run_unbroken(ids, state)
        state = [torch.where(resets[:, :1], 0.0, tensor) for tensor in state]
        if not resets[:, 1:].any():
            return self.run_unbroken(ids, state)
        whole, whole_after = self.run_unbroken(ids, state)
        starts = sorted({0, *resets.any(dim=0).nonzero().flatten().tolist()})
        hidden = []
        for start, stop in zip(starts, [*starts[1:], ids.shape[1]], strict=True):
            state = [torch.where(resets[:, start, None], 0.0, tensor) for tensor in state]
            part, state = self.run_unbroken(ids[:, start:stop], state)
            hidden.append(part)
        broken = resets[:, 1:].any(dim=1)[:, None]
        after = [torch.where(broken, cut, piece) for cut, piece in zip(state, whole_after, strict=True)]
        return torch.where(broken[..., None], torch.cat(hidden, dim=1), whole), after

    def run_unbroken(self, ids: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Hidden states and next state of a stretch without resets."""
        x = self.drop(self.embedding(ids) * self.config.d_model**0.5)
        after = []
        for index, layer in enumerate(self.layers):
            h, c = (tensor[None].to(x.dtype).contiguous() for tensor in state[2 * index : 2 * index + 2])
            kind = x.device.type  # on a CPU always in float32: few processors have an LSTM in 16 bit
            with torch.autocast(kind, enabled=torch.is_autocast_enabled(kind) and kind != "cpu"):
                x, (h, c) = layer(x, (h, c))
            x = self.drop(x)
            after += [h[0], c[0]]
        return x.contiguous(), after

    def logits(self, hidden: Tensor) -> Tensor:
        """Unnormalised log-probabilities of the next token, …×D -> …×V."""
        return self.head.logits(hidden, self.embedding)

    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Nats of each target, B×T×D and int64 B×T -> B×T; 0 where a target is -100."""
        return self.head.nll(hidden, targets, self.embedding)

    @property
    def default_window(self) -> int:
        """An LSTM has no window: its state reaches back without bound, so there is nothing to choose."""
        return 0

    def reach(self, window: int) -> int | None:
        """Unbounded: any earlier token may still matter."""
        return None

    def new_cache(self, batch_size: int, window: int | None = None) -> Cache:
        """h and c of every layer for `batch_size` fresh texts."""
        rows = {f"state.{index}": tensor for index, tensor in enumerate(self.fresh_state(batch_size))}
        window = self.default_window if window is None else window
        return Cache(rows, window=window, batch_size=batch_size, device=rows["state.0"].device)

    def advance(
        self, ids: Tensor, cache: Cache, *, resets: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        """Hidden states B×T×D of the next tokens of every row; updates the cache in place, as
        `TransformerXL.advance`."""
        cache.check(ids)
        kept = list(cache.rows().values())
        state = kept
        if lengths is None:
            hidden, state = self.run(ids, state, resets)
        else:
            hidden, state = self.run_ragged(ids, state, resets, lengths)
        for tensor, new in zip(kept, state, strict=True):
            tensor.copy_(new)
        cache.grow(ids.shape[1], resets, lengths)
        return hidden

    def run_ragged(
        self, ids: Tensor, state: list[Tensor], resets: Tensor | None, lengths: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """As `run`, but the state of each row stays at its last valid token; the text is cut where any row ends."""
        ends = sorted({*lengths.clamp(1, ids.shape[1]).tolist(), ids.shape[1]})
        hidden = []
        for start, stop in zip([0, *ends[:-1]], ends, strict=True):
            marks = None if resets is None else resets[:, start:stop]
            part, after = self.run(ids[:, start:stop], state, marks)
            alive = (lengths >= stop)[:, None]
            state = [torch.where(alive, new, old) for new, old in zip(after, state, strict=True)]
            hidden.append(part)
        return torch.cat(hidden, dim=1), state
