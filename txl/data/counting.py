"""Vocabularies of characters and words, counted on the training split.

A `TokenizerConfig` and texts -> `count_vocabulary` -> `CharTokenizer` or `WordTokenizer`. Knows nothing of where texts
come from; memory grows with the number of different symbols, not with the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from txl.config import TokenizerConfig
from txl.data.errors import DataError
from txl.data.symbols import UNKNOWN, CharTokenizer, WordTokenizer, word_specials, words

MARKS = list("!\"#$%&'()*+,-./:;<=>?@[\\]^`{|}~")
"""Known to every vocabulary with split "punctuation", so that a bracket never seen is no unknown."""


def count_vocabulary(
    config: TokenizerConfig, texts: Iterable[str], separator: str | None
) -> CharTokenizer | WordTokenizer:
    """The tokenizer of kind char or word; special tokens first, then symbols by falling count and by name."""
    if config.kind == "char":
        special = [UNKNOWN] + ([separator] if separator is not None else [])
        symbols = special + _select(_characters(texts, lowercase=config.lowercase), config, special)
        return CharTokenizer(symbols, lowercase=config.lowercase, separator=separator)
    special = word_specials(separator) + (MARKS if config.split == "punctuation" else [])
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(words(text, split=config.split, lowercase=config.lowercase))
    symbols = special + _select(counts, config, special)
    return WordTokenizer(symbols, split=config.split, lowercase=config.lowercase, separator=separator)


def _characters(texts: Iterable[str], *, lowercase: bool) -> dict[str, int]:
    counts = np.zeros(0x110000, np.int64)
    for text in texts:
        points = np.frombuffer((text.lower() if lowercase else text).encode("utf-32-le"), "<u4")
        found = np.bincount(points)
        counts[: len(found)] += found
    return {chr(point): int(counts[point]) for point in np.flatnonzero(counts)}


def _select(counts: Mapping[str, int], config: TokenizerConfig, special: list[str]) -> list[str]:
    """The symbols seen at least min_count times that find room beside the special ones, most frequent first."""
    known = set(special)
    kept = [symbol for symbol, count in counts.items() if count >= config.min_count and symbol not in known]
    kept.sort(key=lambda symbol: (-counts[symbol], symbol))
    if not kept:
        raise DataError(
            f"tokenizer.min_count: {config.min_count}, but no symbol of the training split occurs that often; lower it"
        )
    if config.max_size is None:
        return kept
    room = config.max_size - len(special)
    if room < 1:
        raise DataError(
            f"tokenizer.max_size: {config.max_size}, but the special tokens and marks alone are {len(special)}; "
            f"must be at least {len(special) + 1}"
        )
    return kept[:room]
