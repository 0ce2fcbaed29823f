"""A made-up text that only memory can predict: values to be recalled by key, and strings to be copied, at known
distances.

A seed -> bytes, and where in them the answers stand, how far before each its only evidence ended, and what kind it is.
The same seed gives the same text on every machine. Knows nothing of corpora or models.

    ..=k7.....<QXAB......?k7....>QXAB..

`=k7` says that key k has the value 7; `?k7` asks for it, the answer being the 7, at distance 21 here: an answer at
position p with the distance d is the token of position p - d again. `<QXAB` is a string, `>QXAB` the same once more;
its first letter says which of the open strings it is, those after it are answers. Keys and letters are never in two
open questions, and dots fill what is left, so nothing but the far evidence tells a value from the nine others, or a
letter from the twenty-five others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

KEYS = b"abcdefghijklmnopqrstuvwxyz"
VALUES = b"0123456789"
LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
COPIED = 4
"""Letters of a string to be copied."""
DISTANCES = (8, 16, 32, 64, 128, 256, 512, 1024)
"""Distances that are drawn, each as often as the others; what stands in the way makes some a few tokens longer."""
FORMAT = 1
"""Raised when the same seed gives another text."""
DOCUMENT_BYTES = 16_384
DOCUMENTS = 128
"""Documents of the source `recall`: 2 MB."""
BUSY = 0.5
"""Chance that a free place begins something new instead of being filled: about a quarter of the text are dots."""


@dataclass(frozen=True)
class Answer:
    """A token that its evidence decides: where it stands, how many tokens before it the evidence has it, which task."""

    position: int
    distance: int
    task: Literal["recall", "copy"]


def recall_text(size: int, seed: int) -> tuple[bytes, list[Answer]]:
    """A document of `size` bytes and its answers, in order."""
    draw = np.random.Generator(np.random.PCG64(seed))
    text = bytearray()
    answers: list[Answer] = []
    due: list[tuple[int, bytes, int]] = []  # when it is to be asked, what is asked, where its evidence stands
    free = {"recall": set(KEYS), "copy": set(LETTERS)}
    while len(text) < size:
        ready = [item for item in due if item[0] <= len(text)]
        if ready:
            item = min(ready)
            due.remove(item)
            _, asked, told = item
            mark, rest = asked[:1], asked[1:]
            shift = len(text) - told
            begins = len(text) + 2  # behind the mark and the key, or the letter that says which string it is
            text += asked
            answers += [Answer(p, shift, "recall" if mark == b"?" else "copy") for p in range(begins, len(text))]
            free["recall" if mark == b"?" else "copy"].update(rest[:1] if mark == b"?" else rest)
        elif draw.random() < BUSY and (fact := _fact(draw, free)) is not None:
            distance = DISTANCES[int(draw.integers(len(DISTANCES)))]
            asked = (b"?" if fact[:1] == b"=" else b">") + fact[1:]
            due.append((len(text) + distance, asked, len(text)))
            text += fact
        else:
            text += b"."
    return bytes(text[:size]), [answer for answer in answers if answer.position < size]


def _fact(draw: np.random.Generator, free: dict[str, set[int]]) -> bytes | None:
    """A new key with its value, or a new string of letters that no open string has; None where all are taken."""
    if draw.random() < 0.5:
        keys = sorted(free["recall"])
        if not keys:
            return None
        key = keys[int(draw.integers(len(keys)))]
        free["recall"].discard(key)
        return b"=" + bytes([key, VALUES[int(draw.integers(len(VALUES)))]])
    letters = sorted(free["copy"])
    if len(letters) < COPIED:
        return None
    chosen = [letters[i] for i in draw.permutation(len(letters))[:COPIED]]
    free["copy"].difference_update(chosen)
    return b"<" + bytes(chosen)


def recall_documents() -> Iterator[str]:
    """The documents of the source `recall`, the i-th of seed i."""
    for seed in range(DOCUMENTS):
        yield recall_text(DOCUMENT_BYTES, seed)[0].decode("ascii")
