"""Which documents an epoch of a mixture of corpora has, and in which order: by weights, none left out for good.

Document lengths, the sources' first documents and weights, an epoch -> document numbers. Knows nothing of text or ids.

A mixture of N tokens has epochs of about N tokens; a source of weight w of W in all gives N·w/W of them, whatever its
own size n. Think of the source as read for ever, pass after pass, each pass in an order of its own where documents are
shuffled: epoch e takes the documents that begin in tokens [e·q, (e+1)·q) of that, q = N·w/W. So no document is read
twice before all others of its source were read once, and an epoch is known without the ones before it. The epoch's
documents of all sources are merged by how far each stands in its source's share. With sources A (documents 0, 1, 2 of
1, 1, 2 tokens, weight 1) and B (document 3 of 4 tokens, weight 3), q is 2 and 6: epoch 0 reads 0 3 1 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Share:
    """A source of a mixture: the number of its first document in the split, and its weight."""

    first_document: int
    weight: float


def shuffled(count: int, *seed: int) -> np.ndarray:
    """The numbers below `count` in an order that depends on the seeds alone, for ever: by PCG64's 64-bit keys."""
    return np.argsort(np.random.PCG64(list(seed)).random_raw(count), kind="stable")


def mixed_epoch(lengths: np.ndarray, shares: Sequence[Share], *, epoch: int, seed: int | None) -> np.ndarray:
    """The documents of one epoch, int64; `lengths` in tokens, `seed` None where documents keep their order."""
    tokens, weight = int(lengths.sum()), sum(share.weight for share in shares)
    stops = [share.first_document for share in shares[1:]] + [len(lengths)]
    documents, progress = [], []
    for number, (share, stop) in enumerate(zip(shares, stops, strict=True)):
        own = lengths[share.first_document : stop]
        quota, size = max(1, int(tokens * share.weight / weight)), int(own.sum())
        begin, end = epoch * quota, (epoch + 1) * quota
        for turn in range(begin // size, -(-end // size)):
            order = np.arange(len(own)) if seed is None else shuffled(len(own), seed, number, turn)
            places = turn * size + np.cumsum(own[order]) - own[order]
            taken = (places >= begin) & (places < end)
            documents.append(share.first_document + order[taken])
            progress.append((places[taken] - begin) / quota)
    merged = np.argsort(np.concatenate(progress), kind="stable")
    return np.concatenate(documents)[merged]
