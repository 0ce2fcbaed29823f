"""Laws of attention, each named by its sentence: who sees whom at what distance, against the paper written as loops
(tests/reference.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from torch import Tensor

from tests import reference
from tests.models import (
    BASE,
    TOLERANCE,
    VOCAB,
    assert_close,
    make_model,
    random_ids,
    read_in_segments,
    weights_of,
    window_of,
)
from tests.options import (
    BACKENDS,
    FEW,
    both_dtypes,
    drawn,
    every_attention,
    every_model_and_attention,
    label,
    splits,
)
from txl.config import ModelConfig
from txl.model import Model
from txl.model.kernels.attend import Backend
from txl.model.positions import ABSOLUTE, Rotation, distances, sinusoid


def expected_logits(config: ModelConfig, model: Model, ids: Tensor, window: int | None) -> Tensor:
    """The reference's logits of whole texts, row by row."""
    weights = weights_of(model)
    rows = [reference.decode(config, weights, row, window=window).logits for row in ids.tolist()]
    return torch.stack([torch.from_numpy(row) for row in rows])


def longest_text(config: ModelConfig) -> int:
    """Tokens up to which segments of any length read a text as if it were one."""
    if config.arch == "lstm" or config.same_length:
        return 11
    return config.mem_len + 1


@every_model_and_attention
def test_law_01_any_split_of_a_text_into_segments_gives_the_result_of_the_whole(
    config: ModelConfig, backend: Backend, dtype: torch.dtype
) -> None:
    model = make_model(config, dtype=dtype, backend=backend)
    n_tokens = longest_text(config)
    ids = random_ids(2, max(5, n_tokens))
    expected = expected_logits(config, model, ids, window_of(config))
    assert_close(model(ids[:, :5]).logits, expected[:, :5], tolerance=TOLERANCE[dtype])

    @drawn
    @given(splits(n_tokens))
    @example([n_tokens])
    @example([1] * n_tokens)
    def check(split: list[int]) -> None:
        logits, _ = read_in_segments(model, ids, split)
        assert_close(logits, expected[:, : sum(split)], tolerance=TOLERANCE[dtype])

    check()


@every_model_and_attention
def test_law_02_no_output_depends_on_a_later_token(config: ModelConfig, backend: Backend, dtype: torch.dtype) -> None:
    model = make_model(config, dtype=dtype, backend=backend)
    ids = random_ids(2, 10)
    resets = torch.zeros(2, 5, dtype=torch.bool)
    resets[0, 3] = True
    memory = model(ids[:, :5]).memory
    for marks in (None, resets):
        before = model(ids[:, 5:], memory, resets=marks).logits
        for t in range(5):
            changed = ids[:, 5:].clone()
            changed[:, t] = (changed[:, t] + 1) % VOCAB
            after = model(changed, memory, resets=marks).logits
            assert torch.equal(after[:, :t], before[:, :t])
            assert not torch.equal(after[:, t], before[:, t])


def last_logits(model: Model, ids: Tensor, lengths: list[int]) -> Tensor:
    """Logits of the last position of a text read in segments."""
    return read_in_segments(model, ids, lengths)[0][:, -1]


@pytest.mark.parametrize(
    ("position", "backend"),
    [*(("relative", name) for name in BACKENDS), ("shaw", "sdpa"), ("rotary", "auto"), ("alibi", "batched")],
)
def test_law_07_with_a_fixed_window_reach_is_layers_times_window(position: str, backend: Backend) -> None:
    config = replace(BASE, position=position, mem_len=3, same_length=True)
    model = make_model(config, backend=backend)
    ids = random_ids(1, 13)
    reach = config.n_layer * 3
    assert model.reach(3) == reach
    base = last_logits(model, ids, [5, 5, 3])
    for back in range(13):
        changed = ids.clone()
        changed[0, 12 - back] = (changed[0, 12 - back] + 1) % VOCAB
        same = torch.equal(last_logits(model, changed, [5, 5, 3]), base)
        assert same == (back > reach), f"the token {back} back {'did not matter' if same else 'mattered'}"


def test_law_07_without_one_reach_is_bounded_by_layers_times_memory_and_segment() -> None:
    config = replace(BASE, mem_len=3)
    model = make_model(config)
    ids = random_ids(1, 25)
    bound = config.n_layer * (3 + 5 - 1)
    base = last_logits(model, ids, [5] * 5)
    reacting = []
    for back in range(25):
        changed = ids.clone()
        changed[0, 24 - back] = (changed[0, 24 - back] + 1) % VOCAB
        reacting += [back] if not torch.equal(last_logits(model, changed, [5] * 5), base) else []
    assert 3 * config.n_layer < max(reacting) <= bound


@pytest.mark.parametrize("window", [0, 1, 3, 7])
@pytest.mark.parametrize(
    ("chunk", "backend"),
    [(1, "decode"), (1, "reference"), (4, "blocked"), (4, "batched"), (5, "sdpa"), (12, "auto"), (12, "sdpa")],
)
def test_law_08_with_a_fixed_window_every_query_sees_exactly_its_window_and_itself(
    window: int, chunk: int, backend: Backend
) -> None:
    """One layer, so that what a query sees is what it reacts to; through the streaming cache and the training mask."""
    model = make_model(replace(BASE, n_layer=1, mem_len=window, same_length=window > 0), backend=backend)
    ids = random_ids(1, 12)

    def hidden(text: Tensor) -> Tensor:
        cache = model.new_cache(1, window)
        return torch.cat([model.advance(part, cache) for part in text.split(chunk, dim=1)], dim=1)

    def masked(text: Tensor) -> Tensor:
        return read_in_segments(model, text, [len(part) for part in torch.arange(12).split(chunk)])[0]

    for read in (hidden, masked) if window else (hidden,):
        base = read(ids)
        for t in range(12):
            changed = ids.clone()
            changed[0, t] = (changed[0, t] + 1) % VOCAB
            reacting = (read(changed) != base).any(-1)[0].nonzero().flatten().tolist()
            assert reacting == list(range(t, min(12, t + window + 1)))


@every_attention
def test_law_08_with_a_fixed_window_the_result_is_independent_of_segments(
    config: ModelConfig, backend: Backend, dtype: torch.dtype
) -> None:
    model = make_model(config, dtype=dtype, backend=backend)
    window = 4
    ids = random_ids(2, 11)
    expected = expected_in_windows(config, model, ids, window)

    @drawn
    @given(splits(11))
    @example([11])
    @example([1] * 11)
    def check(lengths: list[int]) -> None:
        cache = model.new_cache(2, window)
        parts = ids[:, : sum(lengths)].split(lengths, dim=1)
        logits = torch.cat([model.logits(model.advance(part, cache)) for part in parts], dim=1)
        assert_close(logits, expected[:, : sum(lengths)], tolerance=TOLERANCE[dtype])
        assert cache.age.tolist() == [sum(lengths)] * 2

    check()


def expected_in_windows(config: ModelConfig, model: Model, ids: Tensor, window: int) -> Tensor:
    """The reference's logits of whole texts under a window, which absolute positions compute anew for each token."""
    if config.position not in ABSOLUTE:
        return expected_logits(config, model, ids, window)
    starts = [max(0, t - window) for t in range(ids.shape[1])]
    parts = [expected_logits(config, model, ids[:, s : t + 1], None)[:, -1:] for t, s in enumerate(starts)]
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("config", FEW, ids=label)
@both_dtypes
def test_laws_1_3_6_7_and_8_hold_for_one_token_at_a_time_by_decode(config: ModelConfig, dtype: torch.dtype) -> None:
    model, tolerance = make_model(config, dtype=dtype, backend="decode"), TOLERANCE[dtype]
    ids = random_ids(2, 11)
    whole = expected_logits(config, model, ids, window_of(config))
    n_tokens = longest_text(config)
    read, memory = read_in_segments(model, ids, [1] * n_tokens)
    assert_close(read, whole[:, :n_tokens], tolerance=tolerance)
    assert memory is not None
    last, fresh = ids[:, -1:], model(ids[:, -1:]).logits
    cold = replace(memory, length=torch.tensor([0, config.mem_len]))
    assert_close(model(last, cold).logits[0], fresh[0], tolerance=tolerance)
    reset = model(last, memory, resets=torch.tensor([[True], [False]])).logits
    assert_close(reset[0], fresh[0], tolerance=tolerance)
    assert torch.equal(reset[1], model(last, memory).logits[1])
    cache = model.new_cache(2, 2)
    streamed = torch.cat([model.logits(model.advance(part, cache)) for part in ids.split(1, dim=1)], dim=1)
    assert_close(streamed, expected_in_windows(config, model, ids, 2), tolerance=tolerance)
    changed = ids.clone()
    changed[:, 3:6] = (ids[:, 3:6] + 1) % VOCAB
    again, cache = [], model.new_cache(2, 2)
    for part in changed.split(1, dim=1):
        again.append(model.logits(model.advance(part, cache)))
    same = [torch.equal(one[:, 0], streamed[:, t]) for t, one in enumerate(again)]
    assert same == [t < 3 or t > 5 + config.n_layer * 2 for t in range(11)]


def test_law_09_positions_are_integers_and_three_thousand_of_them_stay_distinct_in_bf16() -> None:
    distance = distances(3000, limit=None, device=torch.device("cpu"))
    assert distance.dtype == torch.int64
    assert distance.tolist() == list(range(2999, -1, -1))
    assert len(sinusoid(distance, 410, torch.bfloat16).unique(dim=0)) == 3000
    model = make_model(replace(BASE, d_model=64, mem_len=2995), dtype=torch.bfloat16)
    table = model.stack.geometry(3000, torch.zeros(1, dtype=torch.bfloat16)).R
    assert table is not None
    assert table.dtype == torch.bfloat16
    assert len(table.unique(dim=0)) == 3000


def test_law_09_rotations_have_float32_angles_and_leave_bf16_vectors_bf16() -> None:
    rotation = Rotation.at(torch.arange(3000), 4, torch.bfloat16)
    assert rotation.cos.dtype == rotation.sin.dtype == torch.float32
    assert len(torch.cat([rotation.cos, rotation.sin], dim=-1).unique(dim=0)) == 3000
    x = torch.randn(1, 3000, 3, 4).bfloat16()
    turned = rotation.turn(x)
    assert turned.dtype == torch.bfloat16
    for p in (0, 1, 2999):  # rounded once, to 8 bits
        expected = [reference.turn(head.double().numpy(), p) for head in x[0, p]]
        assert_close(turned[0, p], expected, tolerance=2**-8)


def test_law_09_a_sinusoid_is_exact_to_float32_at_any_distance() -> None:
    """Up to one that float32 itself cannot hold, as the position in a text without end."""
    for distance in (0, 1, 2999, 100_003, 2**24 + 1):
        found = sinusoid(torch.tensor([distance]), 10, torch.float32)[0]
        assert_close(found, reference.sinusoid(distance, 10), tolerance=1e-7)
