"""Where memory pays: every target put into classes by what it is and where it stands, so that a loss can be split.

A text -> for each question the class of each target: how deep in its segment and its document it stands, how frequent
it was in training, how far back it could be copied from. Knows nothing of models or losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from txl.evaluation.context import Point, Reading
from txl.evaluation.fresh import Text
from txl.evaluation.scoring import Array

COPY_BYTES = 8
"""About how many bytes of text must come again for a token to count as a copy: longer than most single words."""
COPY_EDGES = (64, 512, 4096)
DOCUMENT_EDGES = (64, 512, 4096, 32_768)
SHARE_EDGES = (0.01, 0.001, 0.0001)


@dataclass(frozen=True)
class Classes:
    """One question: `labels` of its classes, and int8 N - 1, the class of the target after each input."""

    by: str
    labels: tuple[str, ...]
    of: Array


@dataclass(frozen=True)
class Group:
    """The loss of the targets of one class under one way of reading."""

    by: str
    label: str
    point: Point


def classes(text: Text, *, tgt_len: int, train_counts: Array) -> tuple[Classes, ...]:
    """The four questions about a text.

    position in segment of tgt_len: targets 1, 2, 3-4, 5-8, … of blocks of so many tokens from the beginning of the
    text.
    position in document: targets since the document began.  frequency: the target's share of the training text,
    train_counts: int64 V.  copied from: see `copy_distance`; the distances up to 64, 512 and 4096 tokens, and none.
    """
    count = len(text.ids) - 1
    depth = np.arange(count) % tgt_len + 1
    doubling = [1 << n for n in range(max(1, (tgt_len - 1).bit_length() + 1))]
    starts = np.zeros(1, dtype=np.int64) if text.starts is None else np.asarray(text.starts)
    # The target after input t stands at t + 1; a document's first token is target 0 of it, predicted by the one before.
    place = np.arange(1, count + 1)
    deep = place - starts[np.searchsorted(starts, place, side="right") - 1]
    share = (np.asarray(train_counts, dtype=np.float64) / max(1, int(np.sum(train_counts))))[text.ids[1:]]
    n = copied_tokens(text)
    distance = copy_distance(text, n)
    copied = np.where(distance == 0, len(COPY_EDGES), np.searchsorted(COPY_EDGES, distance))
    return (
        Classes(
            f"position in segment of {tgt_len}", _spans(doubling)[:-1], np.searchsorted(doubling, depth).astype(np.int8)
        ),
        Classes("position in document", _spans(DOCUMENT_EDGES), np.searchsorted(DOCUMENT_EDGES, deep).astype(np.int8)),
        Classes(
            "share of the training text",
            ("1 % or more", "0.1 to 1 %", "0.01 to 0.1 %", "below 0.01 %"),
            np.less.outer(share, SHARE_EDGES).sum(axis=1).astype(np.int8),
        ),
        Classes(
            f"copied from ({n} tokens come again)",
            (*_spans(COPY_EDGES)[:-1], "further or never"),
            copied.astype(np.int8),
        ),
    )


def copied_tokens(text: Text) -> int:
    """How many tokens must come again for the last of them to count as a copy: about COPY_BYTES bytes of this text."""
    bytes_a_token = float(text.bytes_per_id[text.ids].mean())
    return max(1, round(COPY_BYTES / bytes_a_token)) if bytes_a_token else 1


def copy_distance(text: Text, n: int) -> Array:
    """How many tokens before each target the last n tokens, itself included, came before most recently; 0: never.

    int64 N - 1, for the target after each input. Of `a b c a b d`, n = 2, targets b c a b d: the second b completes
    `a b`, which ended 3 tokens before; so 0 0 0 3 0. What lies before a reset does not count.
    """
    ids = np.asarray(text.ids, dtype=np.int64)
    if n > len(ids):
        return np.zeros(len(ids) - 1, dtype=np.int64)
    vocab_size = len(text.bytes_per_id)
    gram = ids
    if text.resets is not None:
        gram = np.cumsum(text.resets) * vocab_size + ids
    gram = np.unique(gram, return_inverse=True)[1]
    for back in range(
        1, n
    ):  # the gram that ends at i, by the one of n - 1 tokens that ends at i - 1 and its last token
        later = gram[:-1] * vocab_size + ids[back:]
        gram = np.unique(later, return_inverse=True)[1]
    order = np.argsort(gram, kind="stable")
    again = gram[order][1:] == gram[order][:-1]
    distance = np.zeros(len(ids), dtype=np.int64)
    distance[order[1:][again] + n - 1] = (order[1:] - order[:-1])[again]
    if text.resets is not None:  # a gram that straddles a reset is no text of one context
        context = np.cumsum(text.resets)
        distance[n - 1 :][context[n - 1 :] != context[: len(ids) - n + 1]] = 0
    return distance[1:]


def split(reading: Reading, text: Text, questions: Sequence[Classes]) -> list[Group]:
    """The loss of a reading by class, for every question; classes that hold no target are left out."""
    groups = []
    for question in questions:
        of = question.of[reading.positions]
        for index, label in enumerate(question.labels):
            among = of == index
            if among.any():
                groups.append(Group(question.by, label, reading.point(text, among)))
    return groups


def _spans(edges: Sequence[int]) -> tuple[str, ...]:
    """Names of the classes that the upper edges make: 1 2 4 -> 1, 2, 3 – 4, above 4."""
    names = [f"{first:,}" if first == last else f"{first:,} – {last:,}" for first, last in _pairs(edges)]
    return (*names, f"above {edges[-1]:,}")


def _pairs(edges: Sequence[int]) -> list[tuple[int, int]]:
    return [(before + 1, edge) for before, edge in zip((0, *edges[:-1]), edges, strict=True)]
