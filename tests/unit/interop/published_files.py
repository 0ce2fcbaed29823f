"""Published checkpoints made by hand for tests: the 2019 code's names written out again, apart from the package's.

A model of ours -> the state dict and the arguments that the 2019 code would have for it. Knows nothing of transformers.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.models import BASE, VOCAB, make_model
from txl.config import ModelConfig
from txl.interop import export_transfo_xl
from txl.model import Model

WORDS = ["<eos>", "the", "<unk>", "river", "ran", "under", "a", "grey", "bridge", "and", "its", "boats", "π"]
"""A vocabulary of VOCAB words."""
PAPER = replace(BASE, untie_r=False, window_includes_self=True)
"""A model as the 2019 code has it: one u and v for all layers, windows that count the query."""
assert len(WORDS) == VOCAB


def paper_arguments(config: ModelConfig) -> dict[str, Any]:
    """Arguments of MemTransformerLM for a config."""
    tails = len(config.cutoffs)
    ties = {"all": [True] * (tails + 1), "all_but_first": [False] + [True] * tails, "none": [False] * (tails + 1)}
    same = "n_layer n_head d_model d_head d_inner dropout dropatt div_val mem_len tgt_len same_length tie_weight"
    return {name: getattr(config, name) for name in same.split()} | {
        "n_token": VOCAB,
        "d_embed": config.d_embed or config.d_model,
        "cutoffs": list(config.cutoffs),
        "clamp_len": config.clamp_len or -1,
        "tie_projs": ties[config.tie_projs],
        "pre_lnorm": False,
        "attn_type": 0,
        "ext_len": 0,
    }


def paper_state_dict(model: Model) -> dict[str, Tensor]:
    """The 2019 code's tensors for our model, shared ones under each of their names."""
    ours = {name: tensor.float() for name, tensor in model.state_dict().items()}
    config = model.config
    old = {"pos_emb.inv_freq": torch.ones(config.d_model // 2)}
    old["r_w_bias"], old["r_r_bias"] = ours["stack.biases.bias_u"], ours["stack.biases.bias_v"]
    for i in range(config.n_layer):
        layer, attention = f"stack.layers.{i}", f"stack.layers.{i}.attention"
        q, k, v = (ours[f"{attention}.{letter}_proj.weight"] for letter in "qkv")
        old[f"layers.{i}.dec_attn.qkv_net.weight"] = torch.cat([q, k, v])
        old[f"layers.{i}.dec_attn.r_net.weight"] = ours[f"{attention}.r_proj.weight"]
        old[f"layers.{i}.dec_attn.o_net.weight"] = ours[f"{attention}.o_proj.weight"]
        for kind in ("weight", "bias"):
            old[f"layers.{i}.dec_attn.layer_norm.{kind}"] = ours[f"{layer}.attention_norm.{kind}"]
            old[f"layers.{i}.pos_ff.layer_norm.{kind}"] = ours[f"{layer}.feed_forward_norm.{kind}"]
            old[f"layers.{i}.pos_ff.CoreNet.0.{kind}"] = ours[f"{layer}.feed_forward.in_proj.{kind}"]
            old[f"layers.{i}.pos_ff.CoreNet.3.{kind}"] = ours[f"{layer}.feed_forward.out_proj.{kind}"]
    count = len(config.cutoffs) + 1
    tables = [ours[f"stack.embedding.tables.{i}"] for i in range(count)]
    scores = tables if config.tie_weight else [ours[f"head.weights.{i}"] for i in range(count)]
    biases = [ours[f"head.biases.{i}"] for i in range(count)]
    if config.div_val == 1:
        tables, scores, biases = [torch.cat(tables)], [torch.cat(scores)], [torch.cat(biases)]
    for i, (table, score, bias) in enumerate(zip(tables, scores, biases, strict=True)):
        old[f"word_emb.emb_layers.{i}.weight"] = table
        old[f"crit.out_layers.{i}.weight"], old[f"crit.out_layers.{i}.bias"] = score, bias
    projections = [ours[name] for name in ours if name.startswith("stack.embedding.projections")]
    old |= {f"word_emb.emb_projs.{i}": projection for i, projection in enumerate(projections)}
    for i in range(count if projections else 0):
        own = ours.get(f"head.projections.{i}")
        old[f"crit.out_projs.{i}"] = projections[i if len(projections) > 1 else 0] if own is None else own
    if count > 1:
        rows = range(count - 2, -1, -1)  # the first tail has the last row
        old["crit.cluster_weight"] = torch.stack([ours["head.cluster_weight"][row] for row in rows])
        old["crit.cluster_bias"] = torch.stack([ours["head.cluster_bias"][row] for row in rows])
    return old


def write_paper_checkpoint(folder: Path, model: Model, **changed: Any) -> Path:
    """A state dict with its arguments and vocabulary in a folder; `changed` arguments differ from the model's."""
    torch.save(paper_state_dict(model), folder / "model.pt")
    (folder / "model.json").write_text(json.dumps(paper_arguments(model.config) | changed))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
    return folder / "model.pt"


def write_folder(folder: Path, config: ModelConfig = BASE, *, vocabulary: bool = True) -> Model:
    """A Hugging Face folder, written by the package itself, and the model in it."""
    model = make_model(config, dtype=torch.float32)
    export_transfo_xl(model, None, folder)
    if vocabulary:
        (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
    return model
