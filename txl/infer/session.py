"""Streaming inference over one text a row: ids in any chunks in, nats of each id or new ids out, in constant memory.

The model's cache holds what its fixed window may see; beside it stand the newest hidden state of each row, which
scores the row's next token, and the last few ids, for the penalties of sampling. Knows nothing of text, tokenizers or
files.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from txl.infer.checks import Batch, checked_batch, checked_rows, checked_seeds, checked_state, checked_stop
from txl.infer.drawing import Drawn, Rows
from txl.infer.identity import fingerprint
from txl.infer.recent import RECENT_TOKENS, latest
from txl.infer.sampling import Sampling, choose
from txl.model.modes import evaluating
from txl.model.positions import ABSOLUTE

if TYPE_CHECKING:
    from txl.model import Model

_CHUNK_TOKENS = 512
"""Tokens a row is fed at once, so that the memory of a call does not grow with its length."""
_CHUNK_LOGITS = 2**25
"""Logits made at once, 128 MiB in float32; below 16 tokens a chunk costs more than it saves."""


class Session:
    """Inference over B texts at once, each as long as it likes, in a constant number of bytes.

    model: any architecture; its weights, dtype, device and training flags are left alone. batch_size: rows B.
    window: earlier positions each layer may see; None: the model's own (for an LSTM the only choice).
    Sums of nats are the caller's, in float64.
    Raises ValueError if batch_size or window cannot be.
    """

    def __init__(self, model: Model, batch_size: int = 1, window: int | None = None) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: a session has at least 1 row")
        if window is not None and window < 0:
            raise ValueError(
                f"window is {window}: must be at least 0, or None for the model's own ({model.default_window})"
            )
        self._unbounded = model.reach(0) is None
        self.recomputes = model.config.arch != "lstm" and model.config.position in ABSOLUTE
        """Whether each token costs a pass over its whole window, as absolute positions do, and nothing is cached."""
        if window is not None and self._unbounded:
            raise ValueError(f"window is {window}: must be None, for the model's state reaches back without bound")
        weight = next(model.parameters())
        self.model = model
        # Walking the tree of modules at every token would cost more than the rest of a step.
        self._modules = tuple(model.modules())
        self._cache = model.new_cache(batch_size, window)
        self._hidden = weight.new_zeros(batch_size, model.config.d_model)
        self._recent = torch.full((batch_size, RECENT_TOKENS), -1)
        self._model_id: Tensor | None = None
        self._all_read = False

    @property
    def batch_size(self) -> int:
        """Rows B."""
        return self._cache.batch_size

    @property
    def window(self) -> int | None:
        """Earlier positions each layer sees, the query not counted; None where a state reaches back without bound."""
        return None if self._unbounded else self._cache.window

    @property
    def ages(self) -> Tensor:
        """Tokens of each row since its reset, int64 B."""
        return self._cache.age.clone()

    @property
    def nbytes(self) -> int:
        """Bytes of the whole state: grows with the longest chunk fed so far, up to 512 tokens, never with the text."""
        return self._cache.nbytes + self._hidden.nbytes + self._recent.nbytes

    def feed(self, ids: Tensor, lengths: Tensor | Sequence[int] | None = None, resets: Tensor | None = None) -> Tensor:
        """Read the next tokens of every row; B×T nats of each, given all that was fed before it.

        ids: int64 B×T, any T; how a text is cut into calls changes nothing.
        lengths: B, the valid ids of each row; what stands to the right of them is padding and is not looked at.
        resets: bool B×T, True where a document begins: that token is scored by the old context and is the first of the
        new one.

        The nats are float32 (float64 for a float64 model) and NaN where there is no score: at a row's very first token,
        which nothing predicts, and at padding. `torch.nansum(nats, dtype=torch.float64)` is the total.
        Raises ValueError before anything is read if shapes, dtypes or ids are wrong, FloatingPointError if the model
        gives no number.
        """
        batch = self._checked(ids, lengths, resets)
        nats = torch.empty(ids.shape, dtype=_wide(self._hidden.dtype), device=self._hidden.device)
        with self._running():
            for start, piece in self._pieces(batch):
                unread = self._unread()
                before = self._advance(piece.ids, piece.lengths, piece.resets)
                targets = piece.ids if piece.valid is None else piece.ids.masked_fill(~piece.valid, -100)
                if unread is not None:
                    targets = torch.cat([targets[:, :1].masked_fill(unread[:, None], -100), targets[:, 1:]], dim=1)
                scored = self.model.nll(before, targets)
                _check_numbers(scored)
                if targets is not piece.ids:
                    scored = scored.masked_fill(targets == -100, math.nan)
                nats[:, start : start + piece.ids.shape[1]] = scored
        return nats

    def read(self, ids: Tensor, lengths: Tensor | Sequence[int] | None = None, resets: Tensor | None = None) -> None:
        """As `feed`, without the nats and their cost: what a prompt needs. Arguments and errors are the same."""
        batch = self._checked(ids, lengths, resets)
        with self._running():
            for _, piece in self._pieces(batch):
                self._advance(piece.ids, piece.lengths, piece.resets)
        _check_numbers(self._hidden)

    def log_probs(self) -> Tensor:
        """Log-probabilities of each row's next token, B×V; those of a row that was fed nothing are uniform."""
        with self._running():
            logits = self.model.logits(self._hidden[:, None])[:, 0]
        logits = logits.to(_wide(logits.dtype))
        if (unread := self._unread()) is not None:
            logits = logits.masked_fill(unread[:, None], 0.0)
        return logits.log_softmax(dim=-1)

    def generate(
        self,
        max_new_tokens: int | None = None,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        repetition_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        stop: Iterable[Sequence[int]] = (),
        seed: int | Sequence[int] = 0,
    ) -> Iterator[Tensor]:
        """Draw tokens after what was fed: yields int64 B on the CPU, each id already fed when it is yielded.

        max_new_tokens: None for no end. temperature to frequency_penalty: see `Sampling`; the penalties look at the
        last RECENT_TOKENS ids of the row since its reset, those fed before included.
        stop: lists of ids. A row whose new ids end with one of them is finished: from then on it yields -1 and ages no
        more. The end comes when every row is finished.
        seed: row b draws its numbers from seed + b, or from the b-th seed of a list, and from nothing else, so that a
        row's text depends on its own context and seed alone. A row that was fed nothing draws its first id uniformly.

        A consumer that stops early leaves the session in the state after the last yielded ids.
        Raises ValueError at the call if an argument is out of range.
        """
        sampling = Sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            typical_p=typical_p,
            repetition_penalty=repetition_penalty,
            frequency_penalty=frequency_penalty,
        )
        return (step.ids for step in self.draw(max_new_tokens, sampling, stop=stop, seed=seed))

    def draw(
        self,
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        *,
        stop: Iterable[Sequence[int]] = (),
        seed: int | Sequence[int] = 0,
    ) -> Iterator[Drawn]:
        """As `generate`, by rules given as one object (None: the model's own distribution), with what the model
        thought of every id."""
        if max_new_tokens is not None and max_new_tokens < 0:
            raise ValueError(f"max_new_tokens is {max_new_tokens}: must be at least 0, or None for no end")
        stops = checked_stop(stop, vocab_size=self.model.vocab_size)
        rows = Rows(checked_seeds(seed, batch_size=self.batch_size), stops)
        steps = itertools.count() if max_new_tokens is None else range(max_new_tokens)
        return self._draw(steps, sampling or Sampling(), rows)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything the session knows, by name: independent tensors, ready for safetensors.

        `window` and `model`, the fingerprint of the weights and of what they mean, say which sessions may load it.
        """
        if self._model_id is None:
            self._model_id = fingerprint(self.model)
        state = {f"cache.{name}": tensor for name, tensor in self._cache.state_dict().items()}
        state |= {"hidden": self._hidden, "recent": self._recent, "model": self._model_id}
        state["window"] = torch.tensor(self._cache.window)
        return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from the state of a session of the same model, batch size and window, in this process or another.

        Raises ValueError naming another window or model, or else every tensor that does not fit; the session is then
        unchanged.
        """
        state = checked_state(state, self.state_dict())
        cached = {name: tensor for name, tensor in state.items() if name.startswith("cache.")}
        with self._running():
            self._cache.load_state_dict({name.removeprefix("cache."): tensor for name, tensor in cached.items()})
        self._hidden, self._recent, self._all_read = state["hidden"], state["recent"], False

    def reset(self, rows: Sequence[int] | None = None) -> None:
        """Forget the texts of the given rows (None: of all): their next token is scored NaN, as a first token is."""
        chosen = checked_rows(rows, batch_size=self.batch_size)
        with self._running():
            self._cache.reset(chosen)
            self._hidden[chosen] = 0
            self._recent[chosen] = -1
        self._all_read = False

    def fork(self, rows: Sequence[int] | None = None) -> Session:
        """An independent session that stands where this one does, of the given rows (one may be named twice) or all."""
        chosen = checked_rows(rows, batch_size=self.batch_size)
        twin = copy.copy(self)
        twin._cache = self._cache.select(chosen)
        twin._hidden, twin._recent = self._hidden[chosen], self._recent[chosen]
        return twin

    def _draw(self, steps: Iterable[int], sampling: Sampling, rows: Rows) -> Iterator[Drawn]:
        """The steps that `draw` promises."""
        for _ in steps:
            if not any(rows.active):
                return
            log_probs, uniforms = self.log_probs(), rows.uniforms()
            ids = choose(log_probs, sampling, self._recent, uniforms)
            if (unread := self._unread()) is not None:
                ids = torch.where(unread.cpu(), (uniforms * self.model.vocab_size).long(), ids)
            lengths = rows.lengths()
            with self._running():
                self._advance(ids[:, None], lengths, None)
            if lengths is not None:
                ids = ids.masked_fill(lengths == 0, -1)
            rows.see(ids)
            yield Drawn(ids, log_probs)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """What the model computes inside belongs to no graph, now or ever, which saves torch an eighth of a step; what
        callers are given is made outside and theirs to change."""
        with evaluating(self._modules), torch.inference_mode():
            yield

    def _unread(self) -> Tensor | None:
        """bool B: rows that have read nothing; None where there are none, which is asked again after a reset alone."""
        if self._all_read:
            return None
        unread = self._cache.age == 0
        self._all_read = not bool(unread.any())
        return None if self._all_read else unread

    def _checked(self, ids: Tensor, lengths: Tensor | Sequence[int] | None, resets: Tensor | None) -> Batch:
        """The arguments of `feed` on the model's device; ValueError where they are wrong."""
        vocab_size, device = self.model.vocab_size, self._hidden.device
        return checked_batch(ids, lengths, resets, batch_size=self.batch_size, vocab_size=vocab_size, device=device)

    def _pieces(self, batch: Batch) -> Iterator[tuple[int, Batch]]:
        """The batch in pieces that take a bounded memory, each with the column it starts at."""
        step = max(16, min(_CHUNK_TOKENS, _CHUNK_LOGITS // (self.batch_size * self.model.vocab_size)))
        if 0 < batch.ids.shape[1] <= step:
            return iter([(0, batch)])
        return ((start, batch.piece(start, start + step)) for start in range(0, batch.ids.shape[1], step))

    def _advance(self, ids: Tensor, lengths: Tensor | None, resets: Tensor | None) -> Tensor:
        """Read ids, B×T; the hidden state *before* each of them, B×T×D."""
        device = self._hidden.device
        here = None if lengths is None else lengths.to(device)
        hidden = self.model.advance(ids.to(device), self._cache, resets=resets, lengths=here)
        hidden = hidden.to(self._hidden.dtype)
        before = self._hidden[:, None]
        if hidden.shape[1] > 1:
            before = torch.cat([before, hidden[:, :-1]], dim=1)
        if here is None:
            self._hidden = hidden[:, -1].clone()
        else:
            newest = hidden[torch.arange(self.batch_size, device=device), (here - 1).clamp(min=0)]
            self._hidden = torch.where(here[:, None] > 0, newest, self._hidden)
        self._recent = latest(self._recent, ids, lengths, resets)
        return before


def _check_numbers(nats: Tensor) -> None:
    """Raise FloatingPointError lest the NaN of broken weights pass for that of a token that is not scored."""
    if math.isnan(float(nats.sum())):
        raise FloatingPointError("the model's nats are not numbers: are its weights finite?")


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a model's nats: at least float32."""
    return torch.promote_types(dtype, torch.float32)
