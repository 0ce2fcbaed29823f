"""Where targets stand and what they repeat: small texts whose classes are worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from txl.evaluation.context import Reading
from txl.evaluation.fresh import Text
from txl.evaluation.payoff import classes, copied_tokens, copy_distance, split
from txl.evaluation.perplexity import Settings

LETTERS = "abcdefghijklmnopqrstuvwxyz ."


def spelled(words: str, **more: object) -> Text:
    return Text(np.array([LETTERS.index(letter) for letter in words]), np.ones(len(LETTERS)), **more)


def test_the_docstrings_distances() -> None:
    assert copy_distance(spelled("abcabd"), 2).tolist() == [0, 0, 0, 3, 0]


@pytest.mark.parametrize(
    ("words", "n", "expected"),
    [
        ("aaaa", 1, [1, 1, 1]),
        ("aaaa", 2, [0, 1, 1]),
        ("abcxabcyabc", 3, [0, 0, 0, 0, 0, 4, 0, 0, 0, 4]),  # the nearest of the two earlier ones
        ("abab", 4, [0, 0, 0]),
        ("ab", 5, [0]),
    ],
)
def test_distances_to_the_latest_occurrence(words: str, n: int, expected: list[int]) -> None:
    assert copy_distance(spelled(words), n).tolist() == expected


def test_distances_agree_with_a_search_by_hand_in_random_text() -> None:
    ids = np.random.default_rng(3).integers(0, 3, 200)
    text = Text(ids, np.ones(3))
    for n in (1, 2, 4):
        wanted = []
        for end in range(1, 200):
            gram = ids[end - n + 1 : end + 1].tolist() if end >= n - 1 else None
            earlier = [e for e in range(n - 1, end) if ids[e - n + 1 : e + 1].tolist() == gram]
            wanted.append(end - earlier[-1] if gram and earlier else 0)
        assert copy_distance(text, n).tolist() == wanted


def test_nothing_is_copied_over_a_reset() -> None:
    resets = np.array([False, False, False, True, False, False, False])
    assert copy_distance(spelled("ababbab"), 2).tolist() == [0, 0, 2, 0, 3, 3]
    assert copy_distance(spelled("ababbab", resets=resets), 2).tolist() == [0, 0, 0, 0, 0, 0]
    resets = np.array([False] * 4 + [True] + [False] * 6)
    assert copy_distance(spelled("xabcabcxabc", resets=resets), 2).tolist()[-2:] == [4, 4]


@pytest.mark.parametrize("n_tokens", [2, 5, 6])
def test_a_text_shorter_than_a_copy_holds_none(n_tokens: int) -> None:
    resets = np.array([True, *[False] * (n_tokens - 2), True])
    assert copy_distance(spelled("ababab"[:n_tokens], resets=resets), 8).tolist() == [0] * (n_tokens - 1)


def test_about_eight_bytes_must_come_again() -> None:
    assert copied_tokens(spelled("abc")) == 8
    assert copied_tokens(Text(np.zeros(5, dtype=int), np.array([3.9]))) == 2
    assert copied_tokens(Text(np.zeros(5, dtype=int), np.array([20.0]))) == 1


def test_classes_of_position_and_frequency() -> None:
    text = spelled("ab" * 60, starts=np.array([0, 70]))
    counts = np.zeros(len(LETTERS), dtype=int)
    counts[:3] = 9990, 9, 1
    segment, document, share, copied = classes(text, tgt_len=6, train_counts=counts)
    assert segment.labels == ("1", "2", "3 – 4", "5 – 8")
    assert segment.of[:8].tolist() == [0, 1, 2, 2, 3, 3, 0, 1]
    assert document.labels[0] == "1 – 64"
    # Targets are tokens 1 … 119: tokens 65 to 69 are deeper than 64, token 70 begins the second document.
    assert np.flatnonzero(document.of == 1).tolist() == list(range(64, 69))
    assert document.of[69] == 0
    assert share.of[:2].tolist() == [2, 0]  # b is 0.0009 of the training text, a nearly all
    assert copied.by == "copied from (8 tokens come again)"
    assert copied.labels == ("1 – 64", "65 – 512", "513 – 4,096", "further or never")
    assert copied.of[:8].tolist() == [3] * 8
    assert set(copied.of[8:].tolist()) == {0}


def test_a_loss_is_split_without_losing_a_target() -> None:
    text = spelled("the cat sat. the cat sat. the dog sat.")
    questions = classes(text, tgt_len=4, train_counts=np.ones(len(LETTERS)))
    positions = np.arange(1, 37, 2)
    nll = np.linspace(1, 2, len(positions))
    reading = Reading(4, "sample", positions, nll, Settings("window", 4, 8, 0, "float32", "cpu", 1, 4))
    groups = split(reading, text, questions)
    for question in questions:
        mine = [group.point for group in groups if group.by == question.by]
        assert sum(point.tokens for point in mine) == 18
        assert sum(point.nats for point in mine) == pytest.approx(nll.sum())
        assert sum(point.text_bytes for point in mine) == 18
    (copies,) = (g.point for g in groups if g.by.startswith("copied") and g.label == "1 – 64")
    # `the cat sat. ` comes again after 13: tokens 20 (the 8th of it) to 26, and `sat. the ` up to token 29.
    wanted = [t for t in positions.tolist() if 20 <= t + 1 <= 29]
    assert copies.tokens == len(wanted)
    assert copies.nats == pytest.approx(nll[np.isin(positions, wanted)].sum())
