"""Streamed text equals decoded text, and never holds half a character.

Byte and word ids, and a vocabulary whose ids are parts of characters -> text pushed bit by bit.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from txl.data.decoding import BytesDecoder, WindowDecoder, WordDecoder
from txl.data.symbols import ByteTokenizer

TEXT = "aé\u4e16\U0001f600e\u0301 \0z"


def test_a_character_comes_whole_with_its_last_byte() -> None:
    decoder = BytesDecoder([bytes([value]) for value in range(256)])
    pushed = [decoder.push(value) for value in "é\U0001f600b".encode()]
    assert pushed == ["", "é", "", "", "", "\U0001f600", "b"]
    assert decoder.flush() == ""


def test_a_cut_off_character_is_flushed_and_forgotten() -> None:
    decoder = BytesDecoder([bytes([value]) for value in range(256)])
    assert [decoder.push(0xE4), decoder.push(0xB8), decoder.flush(), decoder.flush()] == ["", "", "\ufffd", ""]
    assert decoder.push(97) == "a"


@pytest.mark.parametrize("seed", range(20))
def test_streamed_random_bytes_equal_the_decoded_whole(seed: int) -> None:
    draw = random.Random(seed)
    raw = b"".join(draw.choice([draw.randbytes(2), TEXT.encode()[draw.randrange(9) :]]) for _ in range(20))
    decoder = ByteTokenizer().stream_decoder()
    streamed = "".join(decoder.push(value) for value in raw) + decoder.flush()
    assert streamed == raw.decode("utf-8", "replace") == ByteTokenizer().decode(list(raw))


def test_words_get_one_space_between_them() -> None:
    decoder = WordDecoder(["<unk>", "<eos>", "a", "b"])
    assert [decoder.push(i) for i in (2, 3, 1, 3, 0)] == ["a", " b", "\n", "b", " <unk>"]
    assert decoder.flush() == ""
    assert decoder.push(2) == "a"


def test_a_window_decodes_any_vocabulary_by_its_whole_decoder() -> None:
    raw = TEXT.encode()
    pieces = [raw[i : i + 3] for i in range(0, len(raw), 3)]
    longest = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return b"".join(pieces[i] for i in ids).decode("utf-8", "replace")

    decoder = WindowDecoder(decode)
    shown = ""
    for i in list(range(len(pieces))) * 30:
        shown += decoder.push(i)
        assert "\ufffd" not in shown
    assert shown + decoder.flush() == TEXT * 30
    assert longest <= 4  # the work for an id does not grow with the text


def test_a_window_does_not_hold_back_for_ever() -> None:
    decoder = WindowDecoder(lambda ids: "\ufffd" * len(ids))
    pushed = [decoder.push(0) for _ in range(40)]
    assert "".join(pushed) + decoder.flush() == "\ufffd" * 40
    assert any(pushed)
