"""evaluate, evaluate_blocks and one_pass: what they take, refuse, leave alone and say of themselves."""

from __future__ import annotations

import math
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import txl
from tests.unit.evaluation.fakes import Reader, Uniform, reader_nll
from txl.config import ModelConfig
from txl.evaluation import scoring
from txl.evaluation.perplexity import Settings, evaluate, evaluate_blocks, one_pass, perplexity
from txl.model import build_model

SMALL = ModelConfig(n_layer=2, d_model=8, n_head=2, d_head=3, d_inner=10, tgt_len=6, mem_len=5, dropout=0.3)
IDS = np.random.default_rng(2).integers(0, 13, 70)


def test_evaluate_is_public() -> None:
    assert txl.evaluate is evaluate


def test_the_models_own_window_is_the_default_and_the_result_says_so() -> None:
    result = evaluate(Reader(13, tgt_len=8), IDS, None, 3)
    assert result.nll.tolist() == reader_nll(IDS.tolist(), window=8)
    assert result.settings == Settings("window", 8, 24, 0, "float64", "cpu", 3, 256)
    slid = evaluate(Reader(13, "slide", tgt_len=8), IDS, None, 3)
    assert slid.nll.tolist() == reader_nll(IDS.tolist(), window=7)
    assert slid.settings == Settings("slide", 7, 7, 0, "float64", "cpu", 3, 256)


def test_a_recurrent_state_has_no_window_and_begins_at_resets_only() -> None:
    resets = np.zeros(70, dtype=bool)
    resets[[0, 30, 31, 69]] = True
    result = evaluate(Reader(13, "state"), IDS, 5, 4, resets)
    assert result.nll.tolist() == reader_nll(IDS.tolist(), window=None, resets=[30, 31])
    assert result.settings.window is None
    assert result.settings.reach is None
    assert (
        result.settings.resets == 2
    )  # the one before the first token and the one at a token never read change nothing
    assert evaluate(Reader(13, "state"), IDS, None, 4).settings.streams == 1


def test_lead_ins_are_fed_but_work_is_shared() -> None:
    model = Reader(13, n_layer=2)
    evaluate(model, IDS, 3, 4, segment_tokens=7)
    assert model.fed == 69 + 3 * 6  # three rows begin 2 * 3 tokens early
    model = Reader(13, n_layer=2)
    evaluate(model, IDS, 3, 4, segment_tokens=100)
    assert model.calls == 1


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32, np.int64])
def test_ids_may_be_of_any_integer_type_and_lie_on_disk(kind: type, tmp_path: Path) -> None:
    path = tmp_path / "ids"
    IDS.astype(kind).tofile(path)
    on_disk = np.memmap(path, dtype=kind, mode="r")
    wanted = reader_nll(IDS.tolist(), window=2)
    assert evaluate(Reader(13), on_disk, 2, 3).nll.tolist() == wanted
    assert evaluate(Reader(13), torch.from_numpy(IDS.astype(np.int64)), 2, 3).nll.tolist() == wanted


def test_resets_may_be_a_tensor() -> None:
    resets = np.arange(70) == 33
    results = [evaluate(Reader(13), IDS, 4, 2, flags).nll for flags in (resets, torch.from_numpy(resets))]
    assert torch.equal(*results)
    assert results[0].tolist() == reader_nll(IDS.tolist(), window=4, resets=[33])


def test_nats_are_summed_in_float64() -> None:
    model = build_model(SMALL, 13)
    result = evaluate(model, IDS, None, 2)
    assert result.nll.dtype == torch.float32
    assert result.nats == math.fsum(result.nll.tolist())


def test_every_modules_mode_is_left_as_it_was() -> None:
    model = build_model(SMALL, 13).train()
    frozen = model.stack.layers[0]
    frozen.eval()
    evaluate(model, IDS, None, 2)
    evaluate_blocks(model, IDS, 6, 2)
    assert model.training
    assert not any(module.training for module in frozen.modules())
    with pytest.raises(RuntimeError, match="stop here"):
        evaluate(model, IDS, None, 2, progress=stop_here)
    assert model.training


def stop_here(done: int, total: int) -> None:
    raise RuntimeError("stop here")


def test_dropout_is_off_and_no_graph_is_kept() -> None:
    model = build_model(SMALL, 13).train()
    first, second = (evaluate(model, IDS, None, 2).nll for _ in range(2))
    assert torch.equal(first, second)
    assert first.grad_fn is None


def test_progress_rises_to_all_targets() -> None:
    for run in (evaluate, one_pass):
        told: list[tuple[int, int]] = []
        run(Reader(13, n_layer=1), IDS, 3, 2, progress=lambda done, total, told=told: told.append((done, total)))
        assert told == sorted(told)
        assert told[-1] == (69, 69)


def test_a_share_of_the_text_is_scored_with_all_the_context_before_it() -> None:
    result = evaluate(Reader(13), IDS, 6, 3, span=(20, 50))
    assert result.nll.tolist() == reader_nll(IDS.tolist(), window=6, first=20, stop=50)
    told: list[tuple[int, int]] = []
    evaluate_blocks(Reader(13, "slide"), IDS, 8, 2, span=(20, 50), progress=lambda *now: told.append(now))
    assert told[-1] == (30, 30)
    assert all(done >= 0 for done, _ in told)


@pytest.mark.parametrize("block", [1, 7, 23, 69, 100])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_blocks_are_read_by_a_fresh_model_each(block: int, batch_size: int) -> None:
    resets = np.isin(np.arange(70), [9, 40])
    result = evaluate_blocks(Reader(13, "slide"), IDS, block, batch_size, resets)
    wanted = reader_nll(IDS.tolist(), window=None, resets=[*range(0, 70, block), 9, 40])
    assert result.nll.tolist() == wanted
    assert result.settings == Settings("block", block - 1, block - 1, 2, "float64", "cpu", batch_size, block)


@pytest.mark.parametrize("world", [2, 3, 5])
def test_blocks_stay_where_they_are_when_processes_share_them(world: int) -> None:
    whole = evaluate_blocks(Reader(13, "slide"), IDS, 8, 3)
    cuts = [69 * rank // world for rank in range(world + 1)]
    parts = [evaluate_blocks(Reader(13, "slide"), IDS, 8, 3, span=(a, b)) for a, b in pairwise(cuts)]
    assert torch.equal(torch.cat([part.nll for part in parts]), whole.nll)


def test_one_pass_is_exact_with_a_cache_and_blocks_without() -> None:
    cached, fixed = Reader(13), Reader(13, "slide", tgt_len=8)
    assert torch.equal(one_pass(cached, IDS, 4, 2).nll, evaluate(Reader(13), IDS, 4, 2).nll)
    blocks = one_pass(fixed, IDS, None, 2)
    assert blocks.settings.kind == "block"
    assert torch.equal(blocks.nll, evaluate_blocks(Reader(13, "slide"), IDS, 8, 2).nll)
    assert fixed.fed == 69  # read once, as its name says
    assert one_pass(fixed, IDS, 4, 2).settings.segment_tokens == 5


def test_logits_are_made_a_bounded_number_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(SMALL, 13)
    whole = evaluate(model, IDS, None, 2, segment_tokens=30)
    monkeypatch.setattr(scoring, "LOGITS", 13 * 4)
    sizes: list[int] = []
    nll = model.nll

    def counted(hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        sizes.append(targets.numel())
        return nll(hidden, targets)

    monkeypatch.setattr(model, "nll", counted)
    pieces = evaluate(model, IDS, None, 2, segment_tokens=30)
    assert max(sizes) == 4
    torch.testing.assert_close(pieces.nll, whole.nll)
    assert evaluate(model, IDS, None, 2).settings.segment_tokens == 16  # the least, where a vocabulary is large


def test_settings_are_plain_data_and_name_the_dtype_of_products() -> None:
    model = build_model(SMALL, 13)
    assert asdict(evaluate(model, IDS).settings)["dtype"] == "float32"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = evaluate(model, IDS)
    assert result.settings.dtype == "float32, products in bfloat16"
    assert result.nll.dtype == torch.float32
    assert evaluate(model.double(), IDS).settings.dtype == "float64"


def test_perplexity_is_the_exponential_and_overflows_to_infinity() -> None:
    assert perplexity(3 * math.log(7), 3) == pytest.approx(7)
    assert perplexity(1e6, 1) == math.inf
    assert evaluate(Uniform(6), np.arange(9) % 6).perplexity == pytest.approx(6)


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        (np.arange(6).reshape(2, 3), r"int64 of shape \(2, 3\)"),
        (np.arange(6.0), "float64"),
        (np.array([True, False, True]), "bool"),
        (np.array([3]), r"1 token\(s\); at least 2"),
        (np.array([], dtype=np.int64), r"0 token\(s\)"),
        (np.array([0, 13]), "values 0 to 13; this model's vocabulary has the ids 0 to 12"),
        (torch.tensor([-100, 3]), "values -100 to 3"),
    ],
)
def test_ids_that_cannot_be_scored_are_refused(ids: np.ndarray, found: str) -> None:
    for run in (evaluate, one_pass):
        with pytest.raises(ValueError, match=f"ids: found {found}"):
            run(Reader(13), ids, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"resets": np.zeros(69, dtype=bool)}, r"resets: found bool of shape \(69,\); expected bool of shape \(70,\)"),
        ({"resets": np.zeros(70, dtype=np.int64)}, "resets: found int64"),
        ({"batch_size": 0}, "batch_size: found 0; expected at least 1"),
        ({"segment_tokens": 0}, "segment_tokens: found 0"),
        ({"span": (5, 5)}, r"span: found \(5, 5\); expected 0 <= first < stop <= 69"),
        ({"span": (0, 70)}, "span"),
        ({"span": (-1, 3)}, "span"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(Reader(13), IDS, 3, **settings)  # type: ignore[arg-type]
