"""Laws of evaluation: what is counted, what is seen, what can never change a number (laws 8 and 15, known values)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.evaluation.fakes import Counting, Reader, Uniform, reader_nll
from txl.config import ModelConfig
from txl.evaluation.fresh import Text, slide, stride
from txl.evaluation.perplexity import evaluate, evaluate_blocks, one_pass
from txl.model import Model, build_model

VOCAB = 11
RELATIVE = ModelConfig(
    n_layer=2, d_model=12, n_head=3, d_head=5, d_inner=14, tgt_len=6, mem_len=4, init_std=0.4, pre_lnorm=True
)
ABSOLUTE = ModelConfig(
    arch="transformer",
    position="sinusoidal",
    n_layer=2,
    d_model=12,
    n_head=3,
    d_head=5,
    d_inner=14,
    tgt_len=6,
    mem_len=0,
    init_std=0.4,
    pre_lnorm=True,
)
RECURRENT = ModelConfig(arch="lstm", position="none", n_layer=2, d_model=12, tgt_len=6, mem_len=0, init_std=0.4)
MODELS = {"transformer_xl": RELATIVE, "transformer": ABSOLUTE, "lstm": RECURRENT}


def network(name: str, dtype: torch.dtype = torch.float64) -> Model:
    """A small network whose every weight matters."""
    torch.manual_seed(3)
    return build_model(MODELS[name], VOCAB).to(dtype)


def text(n_tokens: int, *, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, n_tokens)


def flags(n_tokens: int, positions: list[int]) -> np.ndarray | None:
    if not positions:
        return None
    resets = np.zeros(n_tokens, dtype=bool)
    resets[positions] = True
    return resets


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7])
@pytest.mark.parametrize("segment_tokens", [1, 5, 64])
def test_n_tokens_have_n_minus_1_targets_each_scored_once(batch_size: int, segment_tokens: int) -> None:
    result = evaluate(Uniform(5), np.arange(103) % 5, 4, batch_size, segment_tokens=segment_tokens)
    assert result.tokens == 102
    assert result.nll.shape == (102,)
    assert torch.isfinite(result.nll).all()
    blocks = evaluate_blocks(Uniform(5, "slide"), np.arange(103) % 5, segment_tokens, batch_size)
    assert blocks.tokens == 102
    assert torch.isfinite(blocks.nll).all()


@pytest.mark.parametrize("vocab_size", [2, 7, 256, 1000])
@pytest.mark.parametrize("kind", ["window", "slide", "state"])
def test_a_uniform_model_needs_exactly_log2_v_bits_a_token(vocab_size: int, kind: str) -> None:
    ids = np.random.default_rng(0).integers(0, vocab_size, 58)
    for result in (
        evaluate(Uniform(vocab_size, kind), ids, None, 3),
        one_pass(Uniform(vocab_size, kind), ids, None, 3),
    ):
        assert result.nats / result.tokens / math.log(2) == pytest.approx(math.log2(vocab_size), rel=1e-14)
        assert result.perplexity == pytest.approx(vocab_size, rel=1e-12)


def test_an_oracle_needs_0_bits_and_only_of_the_right_text() -> None:
    for kind in ("window", "slide", "state"):
        assert evaluate(Counting(9, kind), np.arange(100) % 9, None, 4).nats == 0.0
        assert one_pass(Counting(9, kind), np.arange(100) % 9, None, 4).nats == 0.0
    wrong = np.arange(100) % 9
    wrong[50] = (wrong[50] + 4) % 9
    assert evaluate(Counting(9), wrong, None, 4).nll.isinf().sum() == 2  # into the wrong token and out of it


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_batch_segment_or_share_changes_what_is_scored(data: st.DataObject) -> None:
    n_tokens = data.draw(st.integers(2, 60), "tokens")
    kind = data.draw(st.sampled_from(["window", "slide", "state"]), "kind")
    window = data.draw(st.integers(0, 9), "window")
    positions = data.draw(st.lists(st.integers(0, n_tokens - 1), max_size=5, unique=True), "resets")
    first = data.draw(st.integers(0, n_tokens - 2), "first")
    stop = data.draw(st.integers(first + 1, n_tokens - 1), "stop")
    ids = text(n_tokens, seed=n_tokens)
    result = evaluate(
        Reader(VOCAB, kind, n_layer=2),
        ids,
        window,
        data.draw(st.integers(1, 9), "batch"),
        flags(n_tokens, positions),
        segment_tokens=data.draw(st.integers(1, 20), "segment"),
        span=(first, stop),
    )
    seen = None if kind == "state" else window
    wanted = reader_nll(ids.tolist(), window=seen, resets=positions, first=first, stop=stop)
    assert result.nll.tolist() == wanted
    assert result.nats == pytest.approx(sum(wanted), abs=1e-9)
    assert result.tokens == stop - first


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("positions", [[], [0, 5, 6, 31, 48]])
def test_a_network_gives_the_nats_of_batch_1_for_any_batch_segment_and_ranks(name: str, positions: list[int]) -> None:
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        model, ids, resets = network(name, dtype), text(53), flags(53, positions)
        alone = evaluate(model, ids, 3, 1, resets, segment_tokens=52)
        assert alone.nll.dtype == dtype
        assert alone.nll.std() > 0.15  # the network is not blind to its context
        for batch_size, segment_tokens in ((1, 1), (2, 7), (3, 52), (7, 4), (8, 16)):
            other = evaluate(model, ids, 3, batch_size, resets, segment_tokens=segment_tokens)
            torch.testing.assert_close(other.nll, alone.nll, atol=tolerance, rtol=0)
            assert other.nats == pytest.approx(alone.nats, abs=10 * tolerance)
        for world in (2, 3):
            shares = [52 * rank // world for rank in range(world + 1)]
            parts = [evaluate(model, ids, 3, 2, resets, span=(shares[rank], shares[rank + 1])) for rank in range(world)]
            assert sum(part.tokens for part in parts) == 52
            torch.testing.assert_close(torch.cat([part.nll for part in parts]), alone.nll, atol=tolerance, rtol=0)


@pytest.mark.parametrize(("name", "reach"), [("transformer_xl", 6), ("transformer", 3)])
def test_a_token_at_the_reach_changes_a_loss_and_one_beyond_it_does_not(name: str, reach: int) -> None:
    model, ids, at = network(name), text(40), 17
    changed = ids.copy()
    changed[at] = (changed[at] + 1) % VOCAB
    before, after = (evaluate(model, line, 3, 2).nll for line in (ids, changed))
    moved = (before != after).nonzero().flatten().tolist()
    # Input t scores target t + 1: the changed token is target 16 of the results and input of those from 17 on.
    assert min(moved) == at - 1
    assert max(moved) == at + reach
    assert evaluate(model, ids, 3, 2).settings.reach == reach


def test_a_slid_window_is_a_pass_of_its_own_over_the_last_tokens() -> None:
    model, ids = network("transformer"), text(40)
    line = torch.from_numpy(ids)
    for context in (1, 2, 5, 6):
        result = evaluate(model, ids, context - 1, 3)
        for t in range(39):
            window = line[max(0, t + 1 - context) : t + 1][None]
            alone = model(window).logits[0, -1].log_softmax(-1)
            assert result.nll[t].item() == pytest.approx(-alone[line[t + 1]].item(), abs=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_a_truncated_context_is_a_fresh_pass_over_exactly_its_tokens(name: str) -> None:
    model, ids = network(name), text(40)
    line = torch.from_numpy(ids)
    for context in (1, 2, 5, 9):  # longer than the segment, the memory and the reach of a window
        nll = slide(model, Text(ids, np.ones(VOCAB)), np.arange(39), context)
        moved = stride(model, Text(ids, np.ones(VOCAB)), context, 4)
        for t in range(39):
            alone, least = (
                model(line[first : t + 1][None]).logits[0, -1].log_softmax(-1)
                for first in (max(0, t + 1 - context), max(0, t - t % 4 + 1 - context))
            )
            assert nll[t] == pytest.approx(-alone[line[t + 1]].item(), abs=1e-10)
            assert moved[t] == pytest.approx(-least[line[t + 1]].item(), abs=1e-10)


def test_a_mask_of_training_does_not_shorten_a_truncated_context() -> None:
    ids = text(40)
    nll = []
    for same_length in (False, True):
        torch.manual_seed(3)
        model = build_model(replace(RELATIVE, same_length=same_length), VOCAB).double()
        nll.append(slide(model, Text(ids, np.ones(VOCAB)), np.arange(39), 12))
    np.testing.assert_allclose(nll[0], nll[1], atol=1e-12)


def test_context_1_knows_the_last_token_alone() -> None:
    model, ids = network("transformer"), text(60)
    nll = slide(model, Text(ids, np.ones(VOCAB)), np.arange(59), 1)
    table = model(torch.arange(VOCAB)[:, None]).logits[:, 0].log_softmax(-1)
    np.testing.assert_allclose(nll, -table[ids[:-1], ids[1:]].detach(), atol=1e-10)


def test_two_evaluations_agree_to_the_last_bit_and_draw_no_random_number() -> None:
    model, ids = network("transformer_xl", torch.float32), text(80)
    state = torch.get_rng_state()
    first, second = (evaluate(model, ids, 5, 3) for _ in range(2))
    assert torch.equal(first.nll, second.nll)
    assert first.settings == second.settings
    assert torch.equal(torch.get_rng_state(), state)
