"""What a model is and where it computes, as evaluation sees it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.unit.evaluation.fakes import Reader
from txl.config import ModelConfig
from txl.evaluation import scoring
from txl.model import build_model
from txl.model.modes import evaluating


@pytest.mark.parametrize(
    ("arch", "position", "mem_len", "kind"),
    [
        ("transformer_xl", "relative", 4, "window"),
        ("transformer_xl", "relative", 0, "window"),
        ("transformer_xl", "rotary", 4, "window"),
        ("transformer", "sinusoidal", 0, "slide"),
        ("transformer", "learned", 0, "slide"),
    ],
)
def test_kinds_of_real_models(arch: str, position: str, mem_len: int, kind: str) -> None:
    config = ModelConfig(arch, 2, 8, 2, 4, 10, position=position, tgt_len=6, mem_len=mem_len)  # type: ignore[arg-type]
    assert scoring.kind_of(build_model(config, 5)) == kind


@pytest.mark.parametrize("kind", ["window", "slide", "state"])
def test_kinds_of_fakes(kind: str) -> None:
    assert scoring.kind_of(Reader(5, kind)) == kind


def test_device_and_dtype_come_from_the_parameters() -> None:
    model = build_model(ModelConfig(n_layer=1, d_model=8, n_head=1, d_head=4, d_inner=8), 5)
    assert scoring.device_of(model) == torch.device("cpu")
    assert scoring.result_dtype(model) is np.float32
    assert scoring.dtype_name(model.to(torch.bfloat16)) == "bfloat16"
    assert scoring.result_dtype(model.double()) is np.float64
    assert scoring.device_of(torch.nn.Module()) == torch.device("cpu")  # type: ignore[arg-type]
    assert scoring.dtype_name(torch.nn.Module()) == "float32"  # type: ignore[arg-type]


def test_contexts_begin_at_the_first_token_and_at_resets() -> None:
    assert scoring.context_starts(None, 5).tolist() == [0]
    assert scoring.context_starts(np.array([False, True, False, True]), 4).tolist() == [0, 1, 3]
    assert scoring.context_starts(torch.tensor([True, False, True]), 3).tolist() == [0, 2]


def test_fresh_rows_pass_resets_only_where_there_are_any() -> None:
    model = Reader(13, "slide")
    given: list[object] = []
    advance = model.advance

    def watched(*args: object, **named: object) -> torch.Tensor:
        given.append(named["resets"])
        return advance(*args, **named)  # type: ignore[arg-type]

    model.advance = watched  # type: ignore[method-assign]
    ids = np.arange(12, dtype=np.uint8).reshape(3, 4)
    with evaluating(model.modules()):
        scoring.fresh_nll(model, ids, ids, np.zeros((3, 4), dtype=bool))
        scoring.fresh_nll(model, ids, ids, np.eye(3, 4, dtype=bool))
    assert given[0] is None
    assert torch.equal(given[1], torch.eye(3, 4, dtype=torch.bool))  # type: ignore[arg-type]
