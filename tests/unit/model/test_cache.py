"""Streaming state by itself: rows, ages and bytes against lists of numbers written out by hand."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from txl.model.cache import Cache, KeyValueCache
from txl.model.kernels.term import RelativeTerm

FRESH = -5.0
"""What a column of a fresh row holds here; a model has zeros, or what it makes of them."""


def of_ids() -> Cache:
    """Three rows of the last four ids, ages 5, 6 and 7."""
    ids = torch.arange(12).view(3, 4)
    cache = Cache({"ids": ids}, window=4, batch_size=3, device=ids.device)
    cache.age += torch.tensor([5, 6, 7])
    return cache


def of_keys(*, batch_size: int = 2, window: int = 3, valid: int = 0) -> KeyValueCache:
    """Keys and values of one number each."""
    return KeyValueCache(torch.full((1, 2, 1, 1, 1, 1), FRESH), window=window, batch_size=batch_size, valid=valid)


def write(cache: KeyValueCache, numbers: Tensor, lengths: Tensor | None = None) -> None:
    """Keep B×T numbers as keys, and a thousand more as values."""
    begin, n_tokens = cache.make_room(numbers.shape[1]), numbers.shape[1]
    cache.data[0, 0, 0, :, begin : begin + n_tokens, 0] = numbers
    cache.data[0, 1, 0, :, begin : begin + n_tokens, 0] = numbers + 1000
    cache.keep(n_tokens, lengths)
    cache.grow(n_tokens, None, lengths)


def keys(cache: KeyValueCache) -> list[list[float]]:
    """The keys of each row, newest last; the values must be those beside them."""
    rows = cache.rows()
    found, values = rows["keys.0"][:, :, 0, 0], rows["values.0"][:, :, 0, 0]
    assert torch.equal(values, torch.where(found == FRESH, found, found + 1000))
    assert cache.batch_size == len(found)
    return [[float(number) for number in row] for row in found]


def test_ages_count_valid_tokens_from_the_newest_reset_in_place() -> None:
    cache = of_ids()
    age = cache.age
    cache.grow(2, None, None)
    assert age.tolist() == [7, 8, 9]
    cache.grow(4, None, torch.tensor([4, 1, 0]))
    assert age.tolist() == [11, 9, 9]
    resets = torch.zeros(3, 4, dtype=torch.bool)
    resets[0, :2] = resets[1, 2] = resets[2, 0] = True
    cache.grow(4, resets, torch.tensor([4, 2, 3]))  # the second row's reset stands behind its last valid token
    assert age.tolist() == [3, 11, 3]
    cache.grow(4, resets, None)
    assert age.tolist() == [3, 2, 4]
    assert cache.age is age


def test_rows_are_chosen_copied_and_forgotten() -> None:
    cache = of_ids()
    chosen, copy = cache.select([2, 0, 2]), cache.clone()
    assert chosen.rows()["ids"].tolist() == [[8, 9, 10, 11], [0, 1, 2, 3], [8, 9, 10, 11]]
    assert chosen.age.tolist() == [7, 5, 7]
    cache.reset([1])
    assert cache.rows()["ids"].tolist() == [[0, 1, 2, 3], [0] * 4, [8, 9, 10, 11]]
    assert cache.age.tolist() == [5, 0, 7]
    cache.reset()
    assert not cache.rows()["ids"].any()
    assert not cache.age.any()
    assert copy.rows()["ids"].tolist() == torch.arange(12).view(3, 4).tolist()
    assert copy.age.tolist() == [5, 6, 7]
    assert chosen.rows()["ids"][1].tolist() == [0, 1, 2, 3]


def test_bytes_are_those_counted_by_hand() -> None:
    assert of_ids().nbytes == 3 * 8 + 3 * 4 * 8
    cache = KeyValueCache(torch.zeros(2, 2, 3, 1, 1, 5), window=4, batch_size=6)
    ages, numbers = 6 * 8, 2 * 2 * 3 * 6 * 8 * 5
    assert cache.nbytes == ages + 4 * numbers
    cache.terms = [RelativeTerm(r=torch.zeros(3, 9, 5)), RelativeTerm(bias=torch.zeros(3, 9))]
    assert cache.nbytes == ages + 4 * (numbers + 3 * 9 * 5 + 3 * 9)


def test_a_state_is_taken_over_or_refused_by_name() -> None:
    state = {name: tensor.clone() for name, tensor in of_ids().state_dict().items()}
    cache = of_ids()
    cache.reset()
    ids, age = cache.rows()["ids"], cache.age
    cache.load_state_dict(state)
    assert ids.tolist() == torch.arange(12).view(3, 4).tolist()
    assert age.tolist() == [5, 6, 7]
    for wrong, message in (
        ({"age": state["age"]}, "state 'ids': found nothing"),
        (state | {"more": state["age"]}, r"state 'more': found \(3,\) torch.int64, this cache holds nothing"),
        (state | {"ids": state["ids"][:, :3]}, r"state 'ids': found \(3, 3\) torch.int64, this cache holds \(3, 4\)"),
        (state | {"age": state["age"].int()}, "state 'age': found .* torch.int32, this cache holds .* torch.int64"),
    ):
        with pytest.raises(ValueError, match=message):
            cache.load_state_dict(wrong)
    with pytest.raises(ValueError, match="the cache has 3 rows but ids has 2"):
        cache.check(torch.zeros(2, 5, dtype=torch.int64))


@pytest.mark.parametrize("window", [1, 3, 4])
def test_kept_keys_are_the_last_of_a_list_whatever_the_chunks(window: int) -> None:
    draw, cache = random.Random(window), of_keys(window=window)
    texts, number = [[FRESH] * window, [FRESH] * window], 0
    largest = cache.data.shape[4]
    for _ in range(60):
        n_tokens = draw.choice([1, 1, 1, 2, 3, 5, 9])
        lengths = None if draw.random() < 0.5 else torch.tensor([draw.randint(0, n_tokens) for _ in texts])
        numbers = torch.arange(number, number + 2 * n_tokens).view(2, n_tokens)
        write(cache, numbers, lengths)
        number += 2 * n_tokens
        for row, text in enumerate(texts):
            text += numbers[row, : None if lengths is None else int(lengths[row])].tolist()
        assert keys(cache) == [[float(entry) for entry in text[len(text) - window :]] for text in texts]
        assert cache.age.tolist() == [len(text) - window for text in texts]
        assert cache.past().tolist() == [min(window, len(text) - window) for text in texts]
        largest = max(largest, window + n_tokens)
        assert cache.data.shape[4] == largest  # room for the longest chunk, and no more


def test_kept_keys_are_chosen_copied_and_forgotten() -> None:
    cache = of_keys()
    write(cache, torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]))
    chosen, copy = cache.select([1, 1, 0]), cache.clone()
    cache.reset([0])
    assert keys(cache) == [[FRESH] * 3, [6, 7, 8]]
    assert cache.age.tolist() == [0, 4]
    assert set(cache.data[0, :, 0, 0].flatten().tolist()) == {0.0, FRESH}  # nothing of the text anywhere
    assert keys(chosen) == [[6, 7, 8], [6, 7, 8], [2, 3, 4]]
    write(chosen, torch.tensor([[9], [10], [11]]))
    assert keys(chosen) == [[7, 8, 9], [7, 8, 10], [3, 4, 11]]
    assert keys(copy) == [[2, 3, 4], [6, 7, 8]]
    assert (chosen.age.tolist(), copy.age.tolist()) == ([5, 5, 5], [4, 4])
    cache.reset()
    assert keys(cache) == [[FRESH] * 3] * 2
    assert set(cache.data.flatten().tolist()) == {0.0, FRESH}


def test_positions_before_a_text_count_as_seen_where_it_is_said_so() -> None:
    cache = of_keys(valid=3)
    assert cache.past().tolist() == [3, 3]
    write(cache, torch.tensor([[1], [2]]))
    assert cache.past().tolist() == [3, 3]
    assert keys(cache) == [[FRESH, FRESH, 1], [FRESH, FRESH, 2]]
