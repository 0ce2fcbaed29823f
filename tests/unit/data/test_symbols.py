"""Byte, character and word vocabularies against values written out by hand.

Small vocabularies -> ids, texts, byte lengths. Knows nothing of how vocabularies are counted.
"""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from txl.data import DataError, tokenizer_from_json
from txl.data.symbols import ByteTokenizer, CharTokenizer, Tokenizer, WordTokenizer

HARD = "a\r\nb\0 \U0001f600 é e\u0301 \u4e16\n\n\t x"


def test_byte_ids_are_the_bytes_of_utf8() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("aé\n") == [97, 0xC3, 0xA9, 10]
    assert (tokenizer.vocab_size, tokenizer.lossless) == (256, True)
    assert (tokenizer.unknown_id, tokenizer.separator_id) == (None, None)
    assert tokenizer.byte_lengths().tolist() == [1] * 256
    assert tokenizer.token_id("\n") == 10
    assert tokenizer.token_id("é") is None
    assert tokenizer.decode(tokenizer.encode(HARD)) == HARD


def test_byte_decodes_random_bytes_without_failing() -> None:
    ids = list(random.Random(5).randbytes(400))
    assert ByteTokenizer().decode(ids) == bytes(ids).decode("utf-8", "replace")


@pytest.mark.parametrize("token", [256, -1, 10**9])
def test_an_id_outside_the_vocabulary_is_refused_with_its_range(token: int) -> None:
    word = WordTokenizer(["<unk>", "<eos>", "a"], split="whitespace")
    with pytest.raises(DataError, match=rf"id {token} is not in the vocabulary: ids go from 0 to 255"):
        ByteTokenizer().decode([token])
    with pytest.raises(DataError, match=rf"id {token} is not in the vocabulary: ids go from 0 to 2"):
        word.decode([token])


def test_half_a_surrogate_pair_is_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"character 2 is U\+D800, half of a surrogate pair"):
        ByteTokenizer().encode("ab\ud800")


def test_char_ids_follow_the_list_and_unseen_characters_are_unknown() -> None:
    tokenizer = CharTokenizer(["<unk>", "<eos>", "b", "a", "é"], separator="<eos>")
    assert tokenizer.encode("abéz\U0001f600") == [3, 2, 4, 0, 0]
    assert (tokenizer.vocab_size, tokenizer.unknown_id, tokenizer.separator_id) == (5, 0, 1)
    assert tokenizer.byte_lengths().tolist() == [0, 0, 1, 1, 2]
    assert tokenizer.decode([3, 1, 4]) == "a<eos>é"
    assert (tokenizer.token_id("é"), tokenizer.token_id("<eos>"), tokenizer.token_id("q")) == (4, 1, None)


def test_char_without_separator_keeps_line_ends_and_nul() -> None:
    tokenizer = CharTokenizer(["<unk>", "\n", "\r", "\0", "x"])
    assert tokenizer.separator_id is None
    assert tokenizer.decode(tokenizer.encode("x\r\n\0\n")) == "x\r\n\0\n"


def test_char_lowercase_reads_the_whole_word() -> None:
    tokenizer = CharTokenizer(["<unk>", "σ", "ς", "ο", " "], lowercase=True)
    assert tokenizer.encode("ΟΣ ΣΟ") == [3, 2, 4, 1, 3]  # a sigma that ends a word has its own small letter
    assert tokenizer.cut("ΟΣ ΣΟ") == 3


def test_word_has_eos_at_each_line_end_and_unk_for_the_unseen() -> None:
    tokenizer = WordTokenizer(["<unk>", "<eos>", "b", "a"], split="whitespace")
    assert tokenizer.encode("a  b\r\n\na\tc") == [3, 2, 1, 1, 3, 0]
    assert tokenizer.encode("") == []
    assert tokenizer.decode([3, 2, 1, 1, 3, 0]) == "a b\n\na <unk>"
    assert tokenizer.byte_lengths().tolist() == [0, 0, 1, 1]
    assert (tokenizer.separator_id, tokenizer.token_id("<eos>"), tokenizer.token_id("c")) == (None, 1, None)


def test_word_separator_may_be_the_line_end_or_another_token() -> None:
    own = WordTokenizer(["<unk>", "<eos>", "<doc>", "a"], split="whitespace", separator="<doc>")
    line = WordTokenizer(["<unk>", "<eos>", "a"], split="whitespace", separator="<eos>")
    assert (own.separator_id, line.separator_id) == (2, 1)
    assert own.byte_lengths().tolist() == [0, 0, 0, 1]
    with pytest.raises(DataError, match="must begin with <unk>, <eos>, <doc>"):
        WordTokenizer(["<unk>", "<eos>", "a"], split="whitespace", separator="<doc>")


def test_punctuation_stands_alone() -> None:
    symbols = ["<unk>", "<eos>", "(", ")", ".", "Hello", "bracket"]
    marked = WordTokenizer(symbols, split="punctuation")
    assert marked.encode("Hello (bracket).\n") == [5, 2, 6, 3, 4, 1]
    assert WordTokenizer(symbols, split="whitespace").encode("Hello (bracket).\n") == [5, 0, 1]


def test_a_literal_unk_of_a_prepared_corpus_is_one_unknown() -> None:
    for split in ("whitespace", "punctuation"):
        assert WordTokenizer(["<unk>", "<eos>", "a"], split=split).encode("a <unk> a") == [2, 0, 2]


ALL: list[Tokenizer] = [
    ByteTokenizer(),
    CharTokenizer(["<unk>", "é", "a"], lowercase=True),
    CharTokenizer(["<unk>", "<sep>", "\n", "a"], separator="<sep>"),
    WordTokenizer(["<unk>", "<eos>", "a", "é"], split="punctuation", lowercase=True),
    WordTokenizer(["<unk>", "<eos>", "<doc>", "a"], split="whitespace", separator="<doc>"),
]


@pytest.mark.parametrize("tokenizer", ALL, ids=lambda t: type(t).__name__)
def test_json_gives_back_an_equal_tokenizer(tokenizer: Tokenizer) -> None:
    again = tokenizer_from_json(tokenizer.to_json())
    text = "A a é\n." + HARD
    assert again.encode(text) == tokenizer.encode(text)
    assert (again.hash, again.to_json()) == (tokenizer.hash, tokenizer.to_json())
    assert again.separator_id == tokenizer.separator_id
    assert np.array_equal(again.byte_lengths(), tokenizer.byte_lengths())
    assert json.loads(tokenizer.to_json())["txl_tokenizer"] == 1


def test_hashes_differ_where_tokenizers_do() -> None:
    assert len({tokenizer.hash for tokenizer in ALL}) == len(ALL)


@pytest.mark.parametrize("tokenizer", ALL, ids=lambda t: type(t).__name__)
def test_text_cut_where_allowed_encodes_as_the_whole(tokenizer: Tokenizer) -> None:
    text = "a é A\nbc.d ΟΣ  \u00a0Σ\taa\n\né"
    whole = tokenizer.encode(text)
    for end in range(1, len(text)):
        at = tokenizer.cut(text[:end])
        assert 0 <= at <= end
        assert tokenizer.encode(text[:at]) + tokenizer.encode(text[at:]) == whole
