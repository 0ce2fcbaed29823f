"""Options of the model that no law speaks of: initial zeros, windows that count the query, finite tables,
initialisation."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests import reference
from tests.models import (
    ATTENTION_OPTIONS,
    BASE,
    OPTIONS,
    VOCAB,
    assert_close,
    make_model,
    random_ids,
    read_in_segments,
    weights_of,
)
from txl.config import ConfigError, ModelConfig
from txl.model import build_model, fit_tables, use_attention
from txl.model.softmax import auto_cutoffs


@pytest.mark.parametrize("pre_lnorm", [False, True])
@pytest.mark.parametrize("position", ["relative", "shaw", "rotary", "alibi"])
def test_initial_zeros_are_attended_in_segments_and_in_streaming(position: Any, pre_lnorm: bool) -> None:
    config = replace(BASE, position=position, initial_memory="zeros", same_length=True, pre_lnorm=pre_lnorm)
    model = make_model(config)
    ids = random_ids(2, 11)
    zeros = [np.zeros((7, 10)) for _ in range(2)]
    cache = model.new_cache(2)
    with torch.no_grad():
        streamed = torch.cat([model.logits(model.advance(part, cache)) for part in ids.split([3, 8], dim=1)], dim=1)
    segments, _ = read_in_segments(model, ids, [5, 5, 1])
    for row in range(2):
        expected = reference.decode(config, weights_of(model), ids[row].tolist(), past=zeros, window=7).logits
        assert_close(segments[row], expected, tolerance=1e-10)
        assert_close(streamed[row], expected, tolerance=1e-10)
    assert not np.allclose(expected, reference.decode(config, weights_of(model), ids[1].tolist(), window=7).logits)
    cache.reset([1])
    with torch.no_grad():
        again = model.logits(model.advance(ids, cache))
    assert_close(again[1], expected, tolerance=1e-10)


def test_initial_zeros_restart_at_the_first_token_of_a_segment() -> None:
    model = make_model(replace(BASE, initial_memory="zeros"))
    ids = random_ids(2, 10)
    resets = torch.zeros(2, 5, dtype=torch.bool)
    resets[1, 0] = True
    memory = model(ids[:, :5]).memory
    logits = model(ids[:, 5:], memory, resets=resets).logits
    assert torch.equal(logits[0], model(ids[:, 5:], memory).logits[0])
    assert_close(logits[1:], model(ids[1:, 5:]).logits, tolerance=1e-12)
    caches = [model.new_cache(2), model.new_cache(2), model.new_cache(2)]
    for cache in caches[:2]:
        model.advance(ids[:, :5], cache)
    begun, going_on, fresh = (
        model.advance(ids[:, 5:], cache, resets=marks)
        for cache, marks in zip(caches, (resets, None, None), strict=True)
    )
    assert torch.equal(begun, torch.stack([going_on[0], fresh[1]]))
    assert [cache.age.tolist() for cache in caches] == [[10, 5], [10, 10], [5, 5]]


@pytest.mark.parametrize(
    ("changes", "window", "message"),
    [
        ({"mem_len": 3}, -1, "window: found -1; allowed: at least 0"),
        ({"window_includes_self": True, "same_length": True}, 0, "window: found 0; allowed: at least 1"),
        ({"position": "learned", "mem_len": 0}, 5, "window: found 5; allowed: 0 to 4, for learned positions end"),
    ],
)
def test_an_impossible_window_is_refused(changes: dict[str, Any], window: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_model(replace(BASE, **changes)).new_cache(1, window)


def test_initial_zeros_refuse_resets_inside_a_segment() -> None:
    model = make_model(replace(BASE, initial_memory="zeros"))
    for t in range(1, 5):
        resets = torch.arange(5).expand(2, 5) == t
        with pytest.raises(ValueError, match="first token of a segment only"):
            model(random_ids(2, 5), resets=resets)
        with pytest.raises(ValueError, match="first token of a segment only"):
            model.advance(random_ids(2, 5), model.new_cache(2), resets=resets)


def test_a_window_that_includes_the_query_is_one_shorter() -> None:
    config = replace(BASE, same_length=True, window_includes_self=True, mem_len=3)
    model = make_model(config)
    ids = random_ids(1, 9)
    expected = reference.decode(config, weights_of(model), ids[0].tolist(), window=2).logits
    assert_close(read_in_segments(model, ids, [4, 5])[0][0], expected, tolerance=1e-10)
    cache = model.new_cache(1)
    assert_close(model.logits(model.advance(ids, cache))[0], expected, tolerance=1e-10)


def test_a_learned_table_refuses_longer_input_with_both_numbers() -> None:
    model = make_model(replace(BASE, position="learned", mem_len=0))
    with pytest.raises(ValueError, match=r"holds 5 positions .* the input has 6"):
        model(random_ids(1, 6))


def test_shaw_reuses_its_last_row_beyond_its_table() -> None:
    config = replace(BASE, position="shaw", mem_len=3, tgt_len=2)
    model = make_model(config)
    ids = random_ids(1, 9)
    expected = reference.decode(config, weights_of(model), ids[0].tolist()).logits
    assert model.stack.layers[0].attention.distance_table.shape == (5, 3, 4)
    assert_close(model(ids).logits[0], expected, tolerance=1e-10)


def test_an_impossible_model_is_refused_with_every_problem() -> None:
    with pytest.raises(ConfigError) as caught:
        build_model(replace(BASE, d_model=9, mem_len=-1), 1)
    assert "model.mem_len" in str(caught.value)
    with pytest.raises(ConfigError, match=r"\[4, 13\] with a vocabulary of 13"):
        build_model(replace(BASE, cutoffs=(4, 13)), VOCAB)


def test_initial_weights_have_the_published_spread() -> None:
    torch.manual_seed(0)
    config = replace(BASE, d_model=200, d_inner=300, init_std=0.02, d_embed=100, proj_init_std=0.01)
    model = build_model(config, 500)
    spread = {name: (value.mean().item(), value.std().item()) for name, value in model.named_parameters()}
    layer = "stack.layers.0."
    for name, mean, std in (
        ("stack.embedding.tables.0", 0.0, 0.02),
        ("stack.embedding.projections.0", 0.0, 0.01),
        (layer + "attention.q_proj.weight", 0.0, 0.02),
        (layer + "feed_forward.in_proj.weight", 0.0, 0.02),
        (layer + "feed_forward.in_proj.bias", 0.0, 0.0),
        (layer + "attention_norm.weight", 1.0, 0.02),
        (layer + "attention_norm.bias", 0.0, 0.0),
    ):
        assert spread[name][0] == pytest.approx(mean, abs=0.006)
        assert spread[name][1] == pytest.approx(std, rel=0.15)


def test_auto_cutoffs_cover_the_shares_of_the_counts() -> None:
    counts = torch.tensor([50, 30, 8, 4, 3, 3, 1, 1])
    assert auto_cutoffs(counts, (0.8, 0.92, 0.98)) == (2, 4, 6)
    assert auto_cutoffs(torch.tensor([99, 1]), (0.8, 0.92)) == (1,)
    assert auto_cutoffs(torch.tensor([1]), (0.5,)) == ()


@pytest.mark.parametrize(("mem_len", "tgt_len"), [(9, 2), (1, 1)])
def test_a_shaw_table_loaded_with_other_lengths_uses_its_last_row_beyond(mem_len: int, tgt_len: int) -> None:
    config = replace(BASE, position="shaw", mem_len=3, tgt_len=2)
    trained = make_model(config)
    model = make_model(replace(config, mem_len=mem_len, tgt_len=tgt_len), seed=5)
    model.load_state_dict(fit_tables(model, trained.state_dict()))
    table = trained.stack.layers[1].attention.distance_table
    found = model.stack.layers[1].attention.distance_table
    for distance in range(mem_len + tgt_len):
        assert torch.equal(found[distance], table[min(distance, 4)])


def test_a_learned_table_is_cut_but_never_grown() -> None:
    trained = make_model(replace(BASE, position="learned", mem_len=0))
    shorter = make_model(replace(BASE, position="learned", mem_len=0, tgt_len=3), seed=5)
    shorter.load_state_dict(fit_tables(shorter, trained.state_dict()))
    ids = random_ids(2, 3)
    assert torch.equal(shorter(ids).logits, trained(ids).logits)
    longer = make_model(replace(BASE, position="learned", mem_len=0, tgt_len=8))
    assert fit_tables(longer, trained.state_dict())["stack.position_table"].shape == (5, 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"targets": torch.zeros(5, 3, dtype=torch.int64)}, r"targets: found shape \(5, 3\) beside ids of \(3, 5\)"),
        ({"targets": torch.zeros(15, dtype=torch.int64)}, r"targets: found shape \(15,\)"),
        ({"resets": torch.ones(3, 1, dtype=torch.bool)}, r"resets: found shape \(3, 1\)"),
        ({"resets": torch.ones(3, 5, dtype=torch.int64)}, "resets: found torch.int64; allowed: bool"),
        ({"ids": torch.zeros(3, 0, dtype=torch.int64)}, r"ids: found torch.int64 of shape \(3, 0\)"),
        ({"ids": torch.zeros(3, 5)}, "ids: found torch.float32"),
        ({"ids": torch.zeros(5, dtype=torch.int64)}, r"ids: found torch.int64 of shape \(5,\)"),
        ({"ids": torch.zeros(3, 5, 2, dtype=torch.int64)}, r"ids: found torch.int64 of shape \(3, 5, 2\)"),
    ],
)
@pytest.mark.parametrize("arch", ["transformer_xl", "lstm"])
def test_arguments_of_the_wrong_shape_are_refused_by_name(arch: str, arguments: dict[str, Any], message: str) -> None:
    small = {"arch": "lstm", "position": "none", "mem_len": 0, "d_model": 6}
    config = BASE if arch == "transformer_xl" else ModelConfig(**small)
    with pytest.raises(ValueError, match=message):
        make_model(config)(**{"ids": random_ids(3, 5), **arguments})


def test_the_vanilla_baseline_is_the_same_decoder_with_no_memory_however_many_segments_it_reads() -> None:
    config = replace(BASE, mem_len=0)
    vanilla, recurrent = make_model(replace(config, arch="transformer")), make_model(config)
    memory = None
    for number in range(100):
        ids = random_ids(2, 5, seed=number)
        out = recurrent(ids, memory)
        memory = out.memory
        assert [tuple(rows.shape) for rows in memory.layers] == [(2, 0, 10)] * 2
        assert memory.length.tolist() == [0, 0]
        assert torch.equal(out.logits, vanilla(ids).logits)


def test_memory_of_another_depth_and_ids_outside_the_vocabulary_are_refused() -> None:
    memory = make_model(replace(BASE, n_layer=3))(random_ids(2, 5)).memory
    with pytest.raises(ValueError, match="memory has 3 tensors but this model keeps 2"):
        make_model(BASE)(random_ids(2, 5), memory)
    for ids in ([[1, 13]], [[-1, 2]]):
        with pytest.raises(IndexError, match="allowed: 0 to 12"):
            make_model(replace(BASE, cutoffs=(4, 9)))(torch.tensor(ids))


def test_every_combination_of_options_is_built_or_refused_by_what_cannot_be() -> None:
    """Which can be is said here once more, by hand."""
    valid = 0
    for values in itertools.product(*(OPTIONS[name] for name in ATTENTION_OPTIONS)):
        chosen = dict(zip(ATTENTION_OPTIONS, values, strict=True))
        position = chosen["position"]
        wrong = {
            "model.mem_len": chosen["mem_len"] > 0 and position in ("none", "sinusoidal", "learned"),
            "model.same_length": chosen["same_length"] and chosen["mem_len"] == 0,
            "model.clamp_len": chosen["clamp_len"] is not None and position not in ("relative", "shaw", "alibi"),
            "model.untie_r": not chosen["untie_r"] and position != "relative",
        }
        if any(wrong.values()):
            with pytest.raises(ConfigError) as caught:
                build_model(replace(BASE, **chosen), VOCAB)
            assert {problem.split(":")[0] for problem in caught.value.problems} == {n for n in wrong if wrong[n]}
        else:
            build_model(replace(BASE, **chosen), VOCAB)
            valid += 1
    assert valid == 96


def test_rows_of_any_age_go_on_alone_together_and_in_any_order() -> None:
    """As beams do: a row's memory is chosen twice, another one's is younger than the memory is long."""
    model = make_model(BASE)
    ids, resets = random_ids(3, 11), torch.zeros(3, 6, dtype=torch.bool)
    resets[1, 4] = True
    memory = model(ids[:, :6], resets=resets).memory
    assert memory.length.tolist() == [6, 2, 6]
    order = [1, 2, 1]
    found = model(ids[order, 6:], memory.select(order))
    assert found.memory.length.tolist() == [7, 7, 7]
    for place, row in enumerate(order):
        start = 4 if row == 1 else 0
        expected = reference.decode(BASE, weights_of(model), ids[row, start:].tolist()).logits[6 - start :]
        assert_close(found.logits[place], expected, tolerance=1e-10)


def test_the_chosen_backend_reaches_every_layer() -> None:
    """Told by the one backend that refuses several queries: alone in any layer, then in all."""
    model = make_model(replace(BASE, n_layer=3))
    for chosen in range(3):
        use_attention(model, "reference")
        use_attention(model.stack.layers[chosen], "decode")
        with pytest.raises(ValueError, match="takes one query without dropout, found 5"):
            model(random_ids(2, 5))
    use_attention(model, "decode")
    assert {layer.attention.backend for layer in model.stack.layers} == {"decode"}
