"""A split as B parallel streams, served segment by segment: each token once an epoch, each target once.

Token ids and document starts -> `Streams` -> a `SegmentBatch` at each `next`, for ever. Knows nothing of text and
models; no iterator of another library stands between, because those cut by rank again and repeat the end.

An epoch of N tokens has N - 1 pairs of an input and its target, the token after it. They are cut into B streams, one
a row, whose lengths differ by at most one, and each stream into segments of T. With N = 12, B = 3, T = 2 the pairs
are

    row 0:  0 1 | 2 3        and row 2 is one shorter: its last slot has input 0 and target -100.
    row 1:  4 5 | 6 7
    row 2:  8 9 | 10 -       The last segment of an epoch may be shorter than T, for all rows.

Row g is stream g on whatever rank: rank r of W serves rows [r B / W, (r + 1) B / W).

Neighbours in training need not be neighbours in the text: with `shuffle_segments` the streams are cut into chunks of
`segments_together` segments, which are dealt to the rows in an order drawn anew each epoch. One segment suits a model
without memory; with more, memory goes through the chunk and starts anew at the next. Each token is still served once
an epoch. A segment that ends early is filled up to T with input 0 and target -100, and where the chunk of a row ends
before those of the others, so is what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from txl.data.errors import DataError
from txl.data.mixing import Share, mixed_epoch, shuffled

IGNORED = -100


@dataclass(frozen=True)
class SegmentBatch:
    """One segment of this rank's rows; b rows, at most T positions. The tensors are never written to again."""

    inputs: Tensor
    """int64 b×T."""
    targets: Tensor
    """int64 b×T, the token after each input; -100 where there is none."""
    resets: Tensor
    """bool b×T: memory starts anew before this input."""


class Streams(Iterator[SegmentBatch]):
    """Endless segments of a split, epoch after epoch; `len` is the number of segments of this epoch.

    ids: N token ids, e.g. a memory map; document_starts: ascending indices, the first 0. With `reset_memory` resets
    are marked at each document's first token (a separator ends the document before it); each epoch starts with one
    in any case. With `shuffle_documents` the documents of each epoch come in an order that depends on (seed, epoch)
    alone, each with the separator after it; else as they are. With a `mixture` epochs are those of
    `txl.data.mixing`: whole documents of several sources by their weights, so epochs differ a little in length.
    `tgt_len` may be set anew between segments: the text goes on where it was. With `shuffle_segments` it may not,
    each chunk begins with a reset, and the order, by (seed, epoch), takes 8 bytes a chunk of an epoch; epochs differ
    by a few segments in length, for chunks at the ends of streams may be shorter.
    `vocab_size` given: an id outside of it raises DataError. DataError where there are fewer pairs than streams, or
    B is not divisible by `world`.
    """

    def __init__(
        self,
        ids: np.ndarray,
        document_starts: np.ndarray,
        *,
        batch_size: int,
        tgt_len: int,
        rank: int = 0,
        world: int = 1,
        reset_memory: bool = False,
        shuffle_documents: bool = False,
        shuffle_segments: bool = False,
        segments_together: int = 1,
        seed: int = 0,
        vocab_size: int | None = None,
        mixture: Sequence[Share] = (),
    ) -> None:
        starts = np.asarray(document_starts, np.int64)
        if min(tgt_len, batch_size, segments_together) < 1 or not 0 <= rank < world:
            sizes = f"batch_size {batch_size}, tgt_len {tgt_len}, segments_together {segments_together}"
            raise ValueError(f"{sizes}, rank {rank} of {world}")
        if not len(starts) or starts[0] != 0 or (np.diff(starts) <= 0).any() or starts[-1] >= max(len(ids), 1):
            raise ValueError(f"document_starts: must ascend from 0 and stay below the {len(ids)} ids")
        if batch_size % world:
            raise DataError(f"data.batch_size: {batch_size}, not divisible by the {world} processes")
        if len(ids) - 1 < batch_size:
            raise DataError(_too_little(len(ids), batch_size, world))
        self._ids, self._starts = ids, starts
        self.tgt_len, self._vocab_size = tgt_len, vocab_size
        self._reset_memory, self._shuffle, self._seed = reset_memory, shuffle_documents, seed
        self._deal, self._together = shuffle_segments, segments_together
        self._mixture, self._lengths = tuple(mixture), np.diff(starts, append=len(ids))
        self._batch_size, self._world = batch_size, world
        self._rows = slice(rank * batch_size // world, (rank + 1) * batch_size // world)
        self._epoch = self._token = 0
        self._lay_out()

    def __len__(self) -> int:
        return -(-self._span // self.tgt_len)

    @property
    def targets(self) -> int:
        """Targets an epoch of this rank's rows."""
        if not self._deal:
            return int(self._length[self._rows].sum())
        stream, begin = self._cut(self._deck)
        return int(np.clip(self._length[stream] - begin, 0, self._together * self.tgt_len).sum())

    def __next__(self) -> SegmentBatch:
        at, stop = self._token, min(self._token + self.tgt_len, self._span)
        fresh = at == 0
        if self._deal:
            segment = at // self.tgt_len
            deal = int(np.searchsorted(self._ends, segment, side="right"))
            in_chunk = segment - (int(self._ends[deal - 1]) if deal else 0)
            fresh = in_chunk == 0
            stream, begin = self._cut(self._deck[deal, :, None])
            within = begin + in_chunk * self.tgt_len + np.arange(min(self.tgt_len, self._longest))
        else:
            stream, within = np.arange(self._batch_size)[self._rows, None], np.arange(at, stop)
        there = within < self._length[stream]
        place = np.where(there, self._first[stream] + within, 0)
        document, token = self._tokens_at(place)
        following = self._tokens_at(place + 1)[1]
        inputs = np.where(there, self._ids[token].astype(np.int64), 0)
        targets = np.where(there, self._ids[following].astype(np.int64), IGNORED)
        resets = there & (token == self._starts[document]) if self._reset_memory else np.zeros_like(there)
        if fresh:
            resets[:, 0] = True
        if self._vocab_size is not None and max(inputs.max(), targets.max()) >= self._vocab_size:
            largest = max(inputs.max(), targets.max())
            raise DataError(f"token id {largest} in the corpus, but the vocabulary has {self._vocab_size} ids")
        self._token = stop
        if stop == self._span:
            self._epoch, self._token = self._epoch + 1, 0
            self._lay_out()
        return SegmentBatch(torch.from_numpy(inputs), torch.from_numpy(targets), torch.from_numpy(resets))

    def position(self) -> dict[str, int]:
        """Where the next segment begins: the epoch and the tokens already served of each stream in it."""
        return {"epoch": self._epoch, "token": self._token}

    def seek(self, position: dict[str, int]) -> None:
        """Go on from a `position()`, also of streams with another tgt_len, rank or world; DataError for any other."""
        epoch, token = position.get("epoch"), position.get("token")
        if set(position) != {"epoch", "token"} or not isinstance(epoch, int) or not isinstance(token, int):
            raise DataError(f"data position {position}: must hold epoch and token")
        before = self._epoch
        self._epoch = max(epoch, 0)
        self._lay_out()  # epochs of a mixture differ in length
        if epoch < 0 or not 0 <= token < self._span or (self._deal and token % self.tgt_len):
            span, self._epoch = self._span, before
            self._lay_out()
            raise DataError(
                f"data position {position}: epoch must be at least 0 and token from 0 to {span - 1}, the "
                "last of a stream of this corpus and batch size; it belongs to other data"
            )
        self._token = token

    def _lay_out(self) -> None:
        """The order of this epoch: which document stands at each place, where each begins, and what each row serves."""
        seed = self._seed if self._shuffle else None
        if self._mixture:
            order = mixed_epoch(self._lengths, self._mixture, epoch=self._epoch, seed=seed)
        elif seed is not None:
            order = shuffled(len(self._starts), seed, self._epoch)
        else:
            order = np.arange(len(self._starts))
        lengths = self._lengths[order]
        self._order, self._places = order, np.cumsum(lengths) - lengths
        pairs = int(lengths.sum()) - 1
        if pairs < self._batch_size:  # an epoch of a mixture that has fewer tokens than its corpus
            raise DataError(_too_little(pairs + 1, self._batch_size, self._world))
        # Stream g is pairs [first[g], first[g] + length[g]): the first `longer` streams have one more than the others.
        shortest, longer = divmod(pairs, self._batch_size)
        length = shortest + (np.arange(self._batch_size) < longer)
        first = np.cumsum(length) - length
        self._first, self._length, self._longest = first, length, int(length.max())
        self._span = self._longest  # places of a row in this epoch, those that stay empty too
        if self._deal:
            self._deal_out()

    def _deal_out(self) -> None:
        """The chunks as this epoch deals them, a row's in a column; a deal lasts as long as its longest chunk."""
        segments = -(-self._longest // self.tgt_len)
        chunks = -(-segments // self._together)
        deck = shuffled(chunks * self._batch_size, self._seed, self._epoch).reshape(chunks, self._batch_size)
        last = deck // self._batch_size == chunks - 1
        lasting = np.where(last, segments - (chunks - 1) * self._together, self._together)
        self._deck, self._ends = deck[:, self._rows], np.cumsum(lasting.max(axis=1))
        self._span = int(self._ends[-1]) * self.tgt_len

    def _cut(self, card: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which stream the chunk on each card is cut from, and from which of its pairs on."""
        return card % self._batch_size, card // self._batch_size * self._together * self.tgt_len

    def _tokens_at(self, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The document and the index in `ids` of the tokens at these places of the epoch."""
        at = np.searchsorted(self._places, place, side="right") - 1
        document = self._order[at]
        return document, self._starts[document] + place - self._places[at]


def _too_little(tokens: int, batch_size: int, world: int) -> str:
    largest = (tokens - 1) // world * world
    if largest < 1:
        return (
            f"data: {tokens} token{'s' * (tokens != 1)} in the split, but {world + 1} are needed for one stream on "
            f"each of {world} process{'es' * (world > 1)}; give more text"
        )
    return (
        f"data.batch_size: {batch_size} streams, but the split has only {tokens} tokens; at most {largest} streams "
        f"fit: set data.batch_size={largest} or less, or give more text"
    )
