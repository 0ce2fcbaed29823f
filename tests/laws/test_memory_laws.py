"""Laws of memory, each named by its sentence: cold, kept, reset and refused, against the paper written as loops
(tests/reference.py)."""

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
    assert_close,
    make_model,
    random_ids,
    read_in_segments,
    weights_of,
    window_of,
)
from tests.options import (
    both_dtypes,
    drawn,
    every_attention,
    every_model,
    every_model_and_attention,
    splits,
)
from txl.config import ModelConfig
from txl.model import Memory
from txl.model.kernels.attend import Backend
from txl.model.layers import Layer


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
    resets = torch.tensor([[False] * 5, [False, True, False, False, False], [False, False, False, True, False]])
    memory = model(random_ids(3, 5), resets=resets).memory
    assert memory.batch_size == 3
    assert memory.length.tolist() == [5, 4, 2]
    assert memory.nbytes == 2 * 3 * 5 * 10 * 8 + 3 * 8
    swapped = memory.select([2, 0, 0])
    assert torch.equal(swapped.layers[1][2], memory.layers[1][0])
    assert swapped.length.tolist() == [2, 5, 5]
    again = Memory.cat([memory.select([0]), memory.select([1, 2])])
    assert all(torch.equal(a, b) for a, b in zip(again.layers, memory.layers, strict=True))
    assert again.length.tolist() == [5, 4, 2]
    loaded = Memory.from_state_dict(memory.state_dict())
    assert loaded.length.tolist() == [5, 4, 2]
    assert all(torch.equal(a, b) for a, b in zip(loaded.layers, memory.layers, strict=True))
    turned = replace(memory, layers=tuple(layer.transpose(0, 1) for layer in memory.layers))
    assert all(tensor.is_contiguous() for tensor in turned.state_dict().values())  # as safetensors wants them
    with pytest.raises(ValueError, match=r"found \['layers.0', 'size'\]"):
        Memory.from_state_dict({"layers.0": torch.zeros(1), "size": torch.zeros(1)})
