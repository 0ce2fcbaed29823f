"""Vocabularies counted by hand: order, min_count, max_size, marks, special tokens."""

from __future__ import annotations

import pytest

from txl.config import TokenizerConfig
from txl.data import DataError
from txl.data.counting import MARKS, count_vocabulary


def test_words_come_by_falling_count_and_then_by_name() -> None:
    tokenizer = count_vocabulary(TokenizerConfig(kind="word"), ["d b a a\n", "b c b"], None)
    assert tokenizer.symbols == ["<unk>", "<eos>", "b", "a", "c", "d"]


def test_min_count_and_max_size_bound_a_word_vocabulary() -> None:
    texts = ["b a c a\n", "b d b"]
    often = count_vocabulary(TokenizerConfig(kind="word", min_count=2), texts, "<doc>")
    few = count_vocabulary(TokenizerConfig(kind="word", max_size=4), texts, None)
    assert often.symbols == ["<unk>", "<eos>", "<doc>", "b", "a"]
    assert few.symbols == ["<unk>", "<eos>", "b", "a"]
    assert few.encode("c a") == [0, 3]


def test_every_mark_is_known_with_the_punctuation_rule() -> None:
    tokenizer = count_vocabulary(TokenizerConfig(kind="word", split="punctuation"), ["Hello bracket\n"], None)
    assert tokenizer.symbols == ["<unk>", "<eos>", *MARKS, "Hello", "bracket"]
    assert len(MARKS) == 31
    assert 0 not in tokenizer.encode("Hello (bracket).")


def test_lowercase_counts_and_encodes_small_letters() -> None:
    tokenizer = count_vocabulary(TokenizerConfig(kind="word", lowercase=True), ["The the THE end"], None)
    assert tokenizer.symbols == ["<unk>", "<eos>", "the", "end"]
    assert tokenizer.encode("tHe END") == [2, 3]


def test_characters_are_counted_over_all_texts() -> None:
    tokenizer = count_vocabulary(TokenizerConfig(kind="char", min_count=2), ["abé\U0001f600", "éb\U0001f600b"], "<eos>")
    assert tokenizer.symbols == ["<unk>", "<eos>", "b", "é", "\U0001f600"]


def test_a_size_without_room_says_the_least_one() -> None:
    with pytest.raises(DataError, match=r"tokenizer.max_size: 20, but .* alone are 33; must be at least 34"):
        count_vocabulary(TokenizerConfig(kind="word", split="punctuation", max_size=20), ["a"], None)


def test_a_count_that_no_symbol_reaches_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"tokenizer.min_count: 3, but no symbol of the training split occurs that often"
    ):
        count_vocabulary(TokenizerConfig(kind="char", min_count=3), ["aabb"], None)
