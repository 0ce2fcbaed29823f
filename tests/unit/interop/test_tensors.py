"""Published tensors against ours by a mapping written out apart from the package's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models import BASE, VOCAB, assert_close, make_model, random_ids
from tests.unit.interop.published_files import PAPER, paper_state_dict
from txl.config import ModelConfig
from txl.data import DataError
from txl.interop.tensors import duplicate_count, from_published, parameter_count, to_published
from txl.model import build_model

CHANGES: list[dict[str, Any]] = [
    {},
    {"cutoffs": (4, 9)},
    {"cutoffs": (3, 6, 11), "div_val": 2},
    {"cutoffs": (4, 9), "d_embed": 6, "tie_projs": "all_but_first"},
    {"cutoffs": (4, 9), "div_val": 2, "tie_projs": "none", "tie_weight": False},
    {"d_embed": 6, "tie_weight": False},
    {"cutoffs": (4, 9), "tie_weight": False},
]


def read(tensors: dict[str, Any], config: ModelConfig = PAPER) -> dict[str, Tensor]:
    return from_published(tensors, config, VOCAB, reversed_clusters=True)


def refusal(tensors: dict[str, Any], config: ModelConfig = PAPER) -> list[str]:
    with pytest.raises(DataError) as caught:
        read(tensors, config)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("changes", CHANGES)
def test_a_state_dict_of_the_2019_code_gives_equal_logits(changes: dict[str, Any]) -> None:
    model = make_model(replace(PAPER, **changes), dtype=torch.float32)
    again = build_model(model.config, VOCAB)
    again.load_state_dict(read(paper_state_dict(model), model.config))
    ids = random_ids(2, 9)
    assert_close(again(ids).logits, model(ids).logits, tolerance=0)


@pytest.mark.parametrize("changes", CHANGES)
def test_shared_tensors_may_stand_in_a_file_once_or_twice(changes: dict[str, Any]) -> None:
    model = make_model(replace(PAPER, **changes), dtype=torch.float32)
    whole = paper_state_dict(model)
    once = {f"module.{name}": t for name, t in whole.items() if "inv_freq" not in name}
    if model.config.tie_weight:  # the copy alone stands for both
        once = {name: t for name, t in once.items() if "emb_layers" not in name}
    for tensors in (whole, once):
        found = read(tensors, model.config)
        assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())


def test_clusters_are_reversed_for_the_2019_code_alone() -> None:
    model = make_model(replace(PAPER, cutoffs=(4, 9)), dtype=torch.float32)
    tensors = paper_state_dict(model)
    natural = from_published(tensors, model.config, VOCAB, reversed_clusters=False)
    assert torch.equal(natural["head.cluster_weight"], model.state_dict()["head.cluster_weight"].flip(0))


def test_every_tensor_that_is_wrong_is_named_in_one_error() -> None:
    tensors: dict[str, Any] = paper_state_dict(make_model(PAPER, dtype=torch.float32))
    del tensors["layers.1.dec_attn.r_net.weight"]
    del tensors["r_w_bias"]
    tensors["layers.2.pos_ff.layer_norm.bias"] = torch.zeros(10)
    tensors["module.optimizer"] = {"state": {}}
    tensors["layers.0.dec_attn.o_net.weight"] = torch.zeros(12, 10)
    tensors["r_r_bias"] = torch.zeros(3, 4, dtype=torch.int64)
    tensors["layers.0.pos_ff.CoreNet.0.bias"] = torch.zeros(14).to_sparse()
    tensors["layers.0.pos_ff.CoreNet.3.bias"] = [0.0] * 10
    assert refusal(tensors) == [
        "layers.1.dec_attn.r_net.weight: missing, of shape (12, 10)",
        "r_w_bias: missing, of shape (3, 4)",
        "layers.2.pos_ff.layer_norm.bias: unexpected",
        "module.optimizer: unexpected",
        "layers.0.dec_attn.o_net.weight: found shape (12, 10), the hyper-parameters make it (10, 12)",
        "layers.0.pos_ff.CoreNet.0.bias: found Tensor; allowed: a dense tensor",
        "layers.0.pos_ff.CoreNet.3.bias: found list; allowed: a dense tensor",
        "r_r_bias: found torch.int64; allowed: floating-point numbers",
    ]


def test_copies_that_should_be_shared_and_differ_are_named() -> None:
    config = replace(PAPER, cutoffs=(4, 9), d_embed=6)
    tensors = paper_state_dict(make_model(config, dtype=torch.float32))
    tensors["crit.out_projs.1"] = tensors["crit.out_projs.1"] + 1
    tensors["crit.out_layers.0.weight"] = tensors["crit.out_layers.0.weight"] * 2
    lines = refusal(tensors, config)
    assert [line.split(":")[0] for line in lines] == ["crit.out_layers.0.weight", "crit.out_projs.1"]
    assert "differs from word_emb.emb_projs.0" in lines[1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_every_precision_is_read_as_float32_in_storage_of_its_own(dtype: torch.dtype) -> None:
    model = make_model(replace(PAPER, cutoffs=(4, 9)), dtype=torch.float32)
    kept = {name: tensor.to(dtype) for name, tensor in paper_state_dict(model).items()}
    found = read(kept, model.config)
    for name, tensor in model.state_dict().items():
        assert found[name].dtype == torch.float32
        assert found[name].is_contiguous()
        assert torch.equal(found[name], tensor.to(dtype).float())
    places = {tensor.untyped_storage().data_ptr() for tensor in (*found.values(), *kept.values())}
    assert len(places) >= len(found) + len({id(tensor) for tensor in kept.values()})


@pytest.mark.parametrize("changes", [*CHANGES, {"untie_r": True}])
def test_numbers_are_counted_without_building_the_model(changes: dict[str, Any]) -> None:
    config = replace(PAPER, **changes)
    model = build_model(config, VOCAB)
    assert parameter_count(config, VOCAB) == sum(parameter.numel() for parameter in model.parameters())
    if config.untie_r:
        return
    whole = sum(tensor.numel() for name, tensor in paper_state_dict(model).items() if "inv_freq" not in name)
    in_each_layer = 2 * 2 * 3 * 4  # u and v, which Hugging Face repeats and the 2019 code does not
    assert duplicate_count(config, VOCAB) == whole + in_each_layer - parameter_count(config, VOCAB)


def test_what_is_written_is_what_is_read() -> None:
    for config in (BASE, replace(PAPER, cutoffs=(4, 9), div_val=2)):
        model = make_model(config, dtype=torch.float32)
        published = to_published(model.state_dict(), config)
        assert "transformer.layers.1.dec_attn.r_w_bias" in published
        again = from_published(published, config, VOCAB, reversed_clusters=False)
        assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())
