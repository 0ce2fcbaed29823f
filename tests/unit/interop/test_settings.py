"""Published hyper-parameters against the ModelConfig they must become, written out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.models import BASE, VOCAB
from tests.unit.interop.published_files import PAPER, paper_arguments
from txl.config import ModelConfig
from txl.data import DataError
from txl.interop.settings import read_settings, write_settings

WIKITEXT = {  # config.json of the model that Hugging Face published, with the names of its first release
    "model_type": "transfo-xl",
    "adaptive": True,
    "attn_type": 0,
    "clamp_len": 1000,
    "cutoffs": [20000, 40000, 200000],
    "d_embed": 1024,
    "d_head": 64,
    "d_inner": 4096,
    "d_model": 1024,
    "div_val": 4,
    "dropatt": 0.0,
    "dropout": 0.1,
    "eos_token_id": 0,
    "ext_len": 0,
    "init": "normal",
    "init_range": 0.01,
    "init_std": 0.02,
    "layer_norm_epsilon": 1e-05,
    "mem_len": 1600,
    "n_head": 16,
    "n_layer": 18,
    "n_token": 267735,
    "pre_lnorm": False,
    "proj_init_std": 0.01,
    "same_length": True,
    "sample_softmax": -1,
    "tgt_len": 128,
    "tie_projs": [False, True, True, True],
    "tie_weight": True,
    "untie_r": True,
    "vocab_size": 267735,
}
EXPECTED = ModelConfig(
    n_layer=18,
    d_model=1024,
    n_head=16,
    d_head=64,
    d_inner=4096,
    dropout=0.1,
    tgt_len=128,
    mem_len=1600,
    clamp_len=1000,
    same_length=True,
    cutoffs=(20000, 40000, 200000),
    div_val=4,
    tie_projs="all_but_first",
    initial_memory="zeros",
    window_includes_self=True,
)


def refusal(document: Any, code: Any = "hugging face") -> str:
    with pytest.raises(DataError) as caught:
        read_settings(document, code=code)
    return str(caught.value)


def test_the_published_wikitext_model_is_read() -> None:
    assert read_settings(WIKITEXT, code="hugging face") == (EXPECTED, 267735)


def test_what_a_config_json_leaves_out_means_what_it_means_to_transformers() -> None:
    assert read_settings({"model_type": "transfo-xl"}, code="hugging face") == (EXPECTED, 267735)
    apart, _ = read_settings({"model_type": "transfo-xl", "proj_share_all_but_first": False}, code="hugging face")
    assert apart == replace(EXPECTED, tie_projs="none")


def test_arguments_of_the_2019_code_are_read() -> None:
    arguments = {
        "n_token": 204,
        "n_layer": 12,
        "n_head": 8,
        "d_model": 512,
        "d_head": 64,
        "d_inner": 2048,
        "dropout": 0.1,
        "dropatt": 0.0,
        "tgt_len": 512,
        "mem_len": 512,
        "dtype": None,
        "adapt_inp": False,
    }
    expected = ModelConfig(
        n_layer=12,
        d_model=512,
        n_head=8,
        d_head=64,
        d_inner=2048,
        dropout=0.1,
        tgt_len=512,
        mem_len=512,
        untie_r=False,
        window_includes_self=True,
    )
    assert read_settings(arguments, code="2019") == (expected, 204)


@pytest.mark.parametrize(
    ("ties", "expected"),
    [
        ([True, True, True], "all"),
        ([False, True, True], "all_but_first"),
        ([False, False, False], "none"),
        ([False], "none"),
        ([], "none"),
    ],
)
def test_shared_projections(ties: list[bool], expected: str) -> None:
    arguments = paper_arguments(replace(PAPER, cutoffs=(4, 9), d_embed=6)) | {"tie_projs": ties}
    assert read_settings(arguments, code="2019")[0].tie_projs == expected


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"attn_type": 2}, "attn_type: found 2; allowed: 0, the paper's relative positions; this is sinusoids"),
        ({"attn_type": 7}, "attn_type: found 7"),
        ({"pre_lnorm": True}, "pre_lnorm: found True; allowed: false; the published code has no norm after the last"),
        ({"layer_norm_epsilon": 1e-12}, "layer_norm_epsilon: found 1e-12; allowed: 1e-05"),
        ({"sample_softmax": 50}, "sample_softmax: found 50"),
        ({"ext_len": 3}, "ext_len: found 3; allowed: 0"),
        ({"mem_len": 0}, "same_length: found True; allowed: false with mem_len 0"),
        ({"cutoffs": []}, "div_val: found 4; allowed: 1 without cutoffs"),
        ({"tie_projs": [True, False, True, True]}, r"tie_projs: found [True, False, True, True]"),
        ({"tie_projs": [False] * 5}, "tie_projs: found [False, False, False, False, False]"),
        ({"n_layer": "18"}, "n_layer: found '18'; allowed: a whole number"),
        ({"same_length": 1}, "same_length: found 1; allowed: true or false"),
        ({"cutoffs": [True]}, "cutoffs: found [True]; allowed: a list of whole numbers"),
        ({"dropout": None}, "dropout: found None; allowed: a number"),
        ({"cutoffs": [40000, 20000]}, "model.cutoffs: found [40000, 20000]"),
        ({"vocab_size": 100000}, "model.cutoffs: found [20000, 40000, 200000] with a vocabulary of 100000"),
        ({"n_head": 0}, "model.n_head: found 0"),
        ({"n_layer": 2**70}, "model.n_layer: found 1180591620717411303424"),
        ({"dropout": float("nan")}, "model.dropout: found nan"),
        ({"model_type": "xlnet"}, "model_type: found 'xlnet'; allowed: transfo-xl"),
    ],
)
def test_what_is_not_offered_is_refused_by_name(changed: dict[str, Any], named: str) -> None:
    assert named in refusal(WIKITEXT | changed)


def test_all_problems_are_named_at_once() -> None:
    text = refusal(WIKITEXT | {"attn_type": 1, "pre_lnorm": True, "n_head": 0})
    assert [line.split(":")[0] for line in text.splitlines()] == ["attn_type", "pre_lnorm", "model.n_head"]


def test_arguments_that_are_none_and_those_that_are_missing_are_named() -> None:
    arguments = paper_arguments(PAPER) | {"n_layers": 3, "batch_size": 60}
    del arguments["d_head"]
    lines = refusal(arguments, "2019").splitlines()
    assert lines == [
        "batch_size: no hyper-parameter of the model; give the arguments of MemTransformerLM alone",
        "n_layers: no hyper-parameter of the model; did you mean n_layer?",
        "d_head: missing",
    ]
    assert "must be a JSON object" in refusal([1, 2], "2019")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mem_len": 0},
        {"untie_r": False, "clamp_len": 4, "tie_weight": False},
        {"cutoffs": (4, 9), "div_val": 2, "tie_projs": "none", "proj_init_std": 0.5},
        {"cutoffs": (4, 9), "d_embed": 6, "tie_projs": "all_but_first"},
        {"same_length": True, "window_includes_self": True},
    ],
)
def test_settings_that_are_written_are_read_back(changes: dict[str, Any]) -> None:
    config = replace(BASE, **changes)
    document, _ = write_settings(config, VOCAB, eos_id=0)
    remembers = config.mem_len > 0
    expected = replace(
        config, initial_memory="zeros" if remembers else "empty", window_includes_self=remembers, arch="transformer_xl"
    )
    assert read_settings(document, code="hugging face") == (expected, VOCAB)


def test_a_reader_is_told_what_the_format_does_otherwise() -> None:
    document, notes = write_settings(replace(BASE, same_length=True), VOCAB, eos_id=None)
    assert document["mem_len"] == BASE.mem_len + 1
    assert "mem_len is 8 in config.json" in notes[0]
    assert "mems=[torch.zeros(0, batch_size, d_model)] * n_layer" in notes[1]
    zeros = replace(BASE, initial_memory="zeros", window_includes_self=True)
    assert write_settings(zeros, VOCAB, eos_id=None)[1] == []


def test_what_the_format_cannot_express_is_refused_by_name() -> None:
    config = replace(BASE, position="rotary", norm="rms", activation="swiglu", qk_norm=True, pre_lnorm=True)
    with pytest.raises(DataError) as caught:
        write_settings(config, VOCAB, eos_id=None)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "model.position",
        "model.norm",
        "model.activation",
        "model.qk_norm",
        "model.pre_lnorm",
    ]
    with pytest.raises(DataError, match=r"model\.arch: found lstm"):
        write_settings(ModelConfig(arch="lstm", position="none", mem_len=0), VOCAB, eos_id=None)
