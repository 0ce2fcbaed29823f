"""Laws of memory and attention, each named by its sentence, against the paper written as loops (tests/reference.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
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
)
from tests.options import (
    BACKENDS,
    FEW,
    both_dtypes,
    drawn,
    every_attention,
    every_model,
    every_model_and_attention,
    label,
    splits,
)
from txl.config import ModelConfig
from txl.model import Memory, Model
from txl.model.kernels.attend import Backend
from txl.model.layers import Layer
from txl.model.positions import ABSOLUTE, distances, sinusoid


def window_of(config: ModelConfig) -> int | None:
    """The window of the training mask: mem_len earlier positions where every query sees the same number."""
    return config.mem_len if config.same_length else None


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


@every_attention
def test_law_03_cold_memory_equals_no_memory(config: ModelConfig, backend: Backend, dtype: torch.dtype) -> None:
    model = make_model(config, dtype=dtype, backend=backend)
    ids = random_ids(2, 5)
    garbage = torch.full((2, config.mem_len, config.d_model), 100.0, dtype=dtype)
    cold = Memory((garbage,) * config.n_layer, torch.zeros(2, dtype=torch.int64))
    half = replace(cold, length=torch.tensor([0, config.mem_len]))
    fresh = model(ids).logits
    assert_close(model(ids, cold).logits, fresh, tolerance=TOLERANCE[dtype])
    assert_close(model(ids, half).logits[0], fresh[0], tolerance=TOLERANCE[dtype])
    if config.mem_len:
        assert not torch.allclose(model(ids, half).logits[1], fresh[1])


def test_law_03_without_memory_the_result_does_not_depend_on_mem_len() -> None:
    ids = random_ids(2, 5)
    logits = [make_model(replace(BASE, mem_len=mem_len))(ids).logits for mem_len in (0, 8, 64)]
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


@every_model
@both_dtypes
def test_law_04_memory_is_an_argument_and_a_result(config: ModelConfig, dtype: torch.dtype) -> None:
    model = make_model(config, dtype=dtype).train()
    ids = random_ids(2, 15)
    first = model(ids[:, :5])
    copies = [layer.clone() for layer in first.memory.layers]
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    names = {id(m): set(vars(m)) for m in model.modules()}
    out = model(ids[:, 5:10], first.memory, targets=ids[:, 6:11])
    out.nll.sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(first.memory.layers, copies, strict=True))
    assert all(layer.grad_fn is None and not layer.requires_grad for layer in out.memory.layers)
    assert {id(m): set(vars(m)) for m in model.modules()} == names
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())
    again = model(ids[:, 5:10], first.memory, targets=ids[:, 6:11])
    assert torch.equal(again.nll, out.nll)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(1, 8), min_size=1, max_size=6), mem_len=st.sampled_from([0, 1, 3, 7]))
def test_law_05_the_rows_kept_are_exactly_the_last_layer_inputs(lengths: list[int], mem_len: int) -> None:
    model = make_model(replace(BASE, mem_len=mem_len))
    layers = [layer for layer in model.modules() if isinstance(layer, Layer)]
    seen: list[list[Tensor]] = [[] for _ in layers]
    for index, layer in enumerate(layers):
        layer.register_forward_hook(lambda _, args, __, index=index: seen[index].append(args[0].detach()))
    ids = random_ids(2, sum(lengths))
    memory, start = None, 0
    for length in lengths:
        memory = model(ids[:, start : start + length], memory).memory
        start += length
        for kept, inputs in zip(memory.layers, seen, strict=True):
            text = torch.cat(inputs, dim=1)
            assert torch.equal(kept, text[:, text.shape[1] - min(start, mem_len) :])
        assert memory.length.tolist() == [min(start, mem_len)] * 2


@every_model_and_attention
@pytest.mark.parametrize("where", [0, 2, 4])
def test_law_06_a_reset_equals_a_fresh_model_and_leaves_other_rows_alone(
    config: ModelConfig, backend: Backend, dtype: torch.dtype, where: int
) -> None:
    model = make_model(config, dtype=dtype, backend=backend)
    ids = random_ids(2, 15)
    memory = model(ids[:, :5]).memory
    resets = torch.zeros(2, 5, dtype=torch.bool)
    resets[1, where] = True
    plain = model(ids[:, 5:10], memory)
    out = model(ids[:, 5:10], memory, resets=resets)
    fresh = model(ids[1:, 5 + where : 10])
    assert torch.equal(out.logits[0], plain.logits[0])
    assert_close(out.logits[1, :where], plain.logits[1, :where], tolerance=TOLERANCE[dtype])
    assert_close(out.logits[1:, where:], fresh.logits, tolerance=TOLERANCE[dtype])
    assert out.memory.length.tolist() == [plain.memory.length[0], fresh.memory.length[0]]
    later = model(ids[:, 10:], out.memory)
    assert_close(later.logits[1:], model(ids[1:, 10:], fresh.memory).logits, tolerance=TOLERANCE[dtype])
    assert torch.equal(later.logits[0], model(ids[:, 10:], plain.memory).logits[0])


@every_model_and_attention
def test_law_06_resets_agree_with_the_reference(config: ModelConfig, backend: Backend, dtype: torch.dtype) -> None:
    """A segment behind a memory, both of any length, with resets anywhere in the second."""
    model = make_model(config, dtype=dtype, backend=backend)
    weights = weights_of(model)

    @drawn
    @given(splits(5), st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=2, max_size=2))
    @example([4], [[False, True, False, True, False], [True, False, False, False, True]])
    def check(before: list[int], marks: list[list[bool]]) -> None:
        n_before = sum(before)
        ids, resets = random_ids(2, n_before + 5), torch.tensor(marks)
        _, memory = read_in_segments(model, ids, before)
        out = model(ids[:, n_before:], memory, resets=resets)
        for row, text in enumerate(ids.tolist()):
            if config.arch == "lstm":
                expected = reference.decode(config, weights, text, resets=[False] * n_before + marks[row])
                assert_close(out.logits[row], expected.logits[n_before:], tolerance=TOLERANCE[dtype])
                continue
            assert memory is not None
            past = [layer[row].detach().double().numpy() for layer in memory.layers]
            expected = reference.decode(
                config, weights, text[n_before:], past=past, resets=marks[row], window=window_of(config)
            )
            assert_close(out.logits[row], expected.logits, tolerance=TOLERANCE[dtype])
            age = 5 - max((t for t in range(5) if marks[row][t]), default=-n_before)
            assert out.memory.length[row] == min(age, config.mem_len)

    check()


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


def test_law_09_a_sinusoid_is_exact_to_float32_at_any_distance() -> None:
    for distance in (0, 1, 2999, 100_003):
        found = sinusoid(torch.tensor([distance]), 10, torch.float32)[0]
        assert_close(found, reference.sinusoid(distance, 10), tolerance=1e-7)


@pytest.mark.parametrize("rows", [1, 3])
def test_law_10_memory_of_another_batch_size_is_refused_with_both_numbers(rows: int) -> None:
    model = make_model(BASE)
    memory = model(random_ids(2, 5)).memory
    with pytest.raises(ValueError, match=f"memory has 2 rows but ids has {rows}"):
        model(random_ids(rows, 5), memory)


@pytest.mark.parametrize("pre_lnorm", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_law_10_memory_has_the_dtype_of_each_layers_input(pre_lnorm: bool, autocast: bool, dtype: torch.dtype) -> None:
    model = make_model(replace(BASE, pre_lnorm=pre_lnorm), dtype=dtype)
    found: list[torch.dtype] = []
    for layer in model.modules():
        if isinstance(layer, Layer):
            layer.register_forward_hook(lambda _, args, __: found.append(args[0].dtype))
    memory = None
    for part in random_ids(2, 10).split(5, dim=1):
        found.clear()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            memory = model(part, memory).memory
        assert [layer.dtype for layer in memory.layers] == found


def test_law_10_memory_of_another_dtype_is_carried_on_in_that_of_the_layers_input() -> None:
    model = make_model(BASE, dtype=torch.float32)
    ids = random_ids(2, 10)
    memory = model(ids[:, :5]).memory
    wide = replace(memory, layers=tuple(layer.double() for layer in memory.layers))
    found, expected = model(ids[:, 5:], wide), model(ids[:, 5:], memory)
    assert {layer.dtype for layer in found.memory.layers} == {torch.float32}
    assert torch.equal(found.logits, expected.logits)


def test_memory_can_be_selected_joined_and_saved() -> None:
    model = make_model(BASE)
    memory = model(random_ids(3, 5)).memory
    assert memory.batch_size == 3
    assert memory.nbytes == 2 * 3 * 5 * 10 * 8 + 3 * 8
    swapped = memory.select([2, 0, 0])
    assert torch.equal(swapped.layers[1][2], memory.layers[1][0])
    again = Memory.cat([memory.select([0]), memory.select([1, 2])])
    assert all(torch.equal(a, b) for a, b in zip(again.layers, memory.layers, strict=True))
    loaded = Memory.from_state_dict(memory.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(loaded.layers, memory.layers, strict=True))
    with pytest.raises(ValueError, match=r"found \['layers.0', 'size'\]"):
        Memory.from_state_dict({"layers.0": torch.zeros(1), "size": torch.zeros(1)})
