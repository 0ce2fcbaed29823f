"""Published tensors <-> ours: which name stands for which, in what order they are joined, how many numbers they are.

Tensors by published name -> `from_published` -> tensors by the names of `model.state_dict()`, and `to_published` back.
The names are those of the 2019 code; Hugging Face puts `transformer.` before all but the softmax's. Knows nothing of
files or of hyper-parameters' names.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from txl.config import ModelConfig
from txl.data import DataError
from txl.model import build_model
from txl.model.embedding import cluster_bounds, cluster_width, has_projections

WAVES = "pos_emb.inv_freq"
"""The one tensor of the published codes that is no parameter: 10000^(-2i/D), half a D of them."""
_LAYER = {
    "dec_attn.qkv_net.weight": ("attention.q_proj.weight", "attention.k_proj.weight", "attention.v_proj.weight"),
    "dec_attn.r_net.weight": ("attention.r_proj.weight",),
    "dec_attn.o_net.weight": ("attention.o_proj.weight",),
    "dec_attn.layer_norm.weight": ("attention_norm.weight",),
    "dec_attn.layer_norm.bias": ("attention_norm.bias",),
    "pos_ff.CoreNet.0.weight": ("feed_forward.in_proj.weight",),
    "pos_ff.CoreNet.0.bias": ("feed_forward.in_proj.bias",),
    "pos_ff.CoreNet.3.weight": ("feed_forward.out_proj.weight",),
    "pos_ff.CoreNet.3.bias": ("feed_forward.out_proj.bias",),
    "pos_ff.layer_norm.weight": ("feed_forward_norm.weight",),
    "pos_ff.layer_norm.bias": ("feed_forward_norm.bias",),
}
_BIASES = {"r_w_bias": "bias_u", "r_r_bias": "bias_v"}


def correspondence(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Published name -> our names, whose tensors joined along their first axis are the published one.

    Queries, keys and values are one matrix there; with div_val 1 the clusters are one table.
    """
    clusters = range(_n_clusters(config))
    groups = [tuple(clusters)] if config.div_val == 1 else [(index,) for index in clusters]
    names: dict[str, tuple[str, ...]] = {}
    for number, group in enumerate(groups):
        names[f"word_emb.emb_layers.{number}.weight"] = tuple(f"stack.embedding.tables.{i}" for i in group)
        names[f"crit.out_layers.{number}.bias"] = tuple(f"head.biases.{i}" for i in group)
        if not config.tie_weight:
            names[f"crit.out_layers.{number}.weight"] = tuple(f"head.weights.{i}" for i in group)
    for i in range(_n_projections(config)):
        names[f"word_emb.emb_projs.{i}"] = (f"stack.embedding.projections.{i}",)
    for i in range(_n_own_projections(config)):
        names[f"crit.out_projs.{i}"] = (f"head.projections.{i}",)
    if config.cutoffs:
        names |= {f"crit.{name}": (f"head.{name}",) for name in ("cluster_weight", "cluster_bias")}
    for layer in range(config.n_layer):
        ours, theirs = f"stack.layers.{layer}", f"layers.{layer}"
        names |= {f"{theirs}.{name}": tuple(f"{ours}.{part}" for part in parts) for name, parts in _LAYER.items()}
        if config.untie_r:
            names |= {f"{theirs}.dec_attn.{a}": (f"{ours}.attention.biases.{b}",) for a, b in _BIASES.items()}
    if not config.untie_r:
        names |= {theirs: (f"stack.biases.{ours}",) for theirs, ours in _BIASES.items()}
    return names


def duplicates(config: ModelConfig) -> dict[str, str]:
    """Published names under which a file may hold a shared tensor once more -> the name it belongs to."""
    again: dict[str, str] = {}
    if config.tie_weight:
        tables = range(1 if config.div_val == 1 else _n_clusters(config))
        again |= {f"crit.out_layers.{i}.weight": f"word_emb.emb_layers.{i}.weight" for i in tables}
    if has_projections(config):
        shared = range(_n_own_projections(config), _n_clusters(config))
        newest = _n_projections(config) - 1
        again |= {f"crit.out_projs.{i}": f"word_emb.emb_projs.{min(i, newest)}" for i in shared}
    if not config.untie_r:
        again |= {f"layers.{i}.dec_attn.{name}": name for i in range(config.n_layer) for name in _BIASES}
    return again


def parameter_count(config: ModelConfig, vocab_size: int) -> int:
    """Numbers in all parameters of the model, by arithmetic alone: what a weights file must hold at least."""
    width, inner = config.d_model, config.n_head * config.d_head
    attention = 5 * width * inner + (2 * inner if config.untie_r else 0)
    feed_forward = 2 * width * config.d_inner + config.d_inner + width
    shared = 0 if config.untie_r else 2 * inner
    return config.n_layer * (attention + feed_forward + 4 * width) + shared + _vocabulary_count(config, vocab_size)


def duplicate_count(config: ModelConfig, vocab_size: int) -> int:
    """Numbers in the copies of shared tensors that a file may hold besides: those of `duplicates`."""
    sizes, widths = _clusters(config, vocab_size)
    tables = sum(size * width for size, width in zip(sizes, widths, strict=True)) if config.tie_weight else 0
    projections = sum(widths[_n_own_projections(config) :]) if has_projections(config) else 0
    biases = 0 if config.untie_r else 2 * config.n_layer * config.n_head * config.d_head
    return tables + config.d_model * projections + biases


def from_published(
    tensors: Mapping[str, object], config: ModelConfig, vocab_size: int, *, reversed_clusters: bool
) -> dict[str, Tensor]:
    """Our float32 parameters, each with storage of its own, from what a weights file holds.

    reversed_clusters: the 2019 code scores the first tail cluster with the last row of cluster_weight, Hugging Face
    with the first. Raises DataError naming every tensor that is missing, unexpected, of another shape or type, or
    unlike the one it should be shared with.
    """
    found = {_bare(name): value for name, value in tensors.items()}
    names, again = correspondence(config), duplicates(config)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in build_model(config, vocab_size).state_dict().items()}
    expected = {name: _joined_shape([shapes[part] for part in parts]) for name, parts in names.items()}
    for copy, original in again.items():  # a file may keep the copy alone
        if original not in found and copy in found:
            found[original] = found[copy]
    known = {*names, *again, WAVES}
    problems = [f"{name}: missing, of shape {expected[name]}" for name in names if name not in found]
    problems += [f"{name}: unexpected" for name in tensors if _bare(name) not in known]
    for name in (*names, *again):
        if name in found and (problem := _misfit(found[name], expected[again.get(name, name)])):
            problems.append(f"{name}: {problem}")
    if not problems:
        problems = [
            f"{copy}: differs from {original}, with which the hyper-parameters say it is shared"
            for copy, original in again.items()
            if copy in found and not _equal(found[copy], found[original])
        ]
    if problems:
        raise DataError("\n".join(problems))
    ours: dict[str, Tensor] = {}
    for name, parts in names.items():
        whole = found[name]
        assert isinstance(whole, Tensor)
        if reversed_clusters and name.startswith("crit.cluster_"):
            whole = whole.flip(0)
        pieces = whole.detach().split([shapes[part][0] for part in parts])
        ours |= {part: piece.to(torch.float32, copy=True) for part, piece in zip(parts, pieces, strict=True)}
    return {name: ours[name].contiguous() for name in shapes}


def to_published(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Tensors under the names and in the order of Hugging Face; shared ones come once, but u and v with every layer,
    for a reader there takes a layer without them for one to initialise."""
    published = {name: torch.cat([weights[part] for part in parts]) for name, parts in correspondence(config).items()}
    again = {copy: name for copy, name in duplicates(config).items() if name in _BIASES}
    published |= {copy: published[name].clone() for copy, name in again.items()}
    steps = torch.arange(0, config.d_model, 2, dtype=torch.float64) / config.d_model
    published[WAVES] = 10000.0**-steps
    prefixed = {(name if name.startswith("crit.") else f"transformer.{name}"): t for name, t in published.items()}
    return {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in prefixed.items()}


def _n_clusters(config: ModelConfig) -> int:
    return len(config.cutoffs or ()) + 1


def _n_projections(config: ModelConfig) -> int:
    """Projections of the embedding: one a cluster, or with div_val 1 one for all."""
    if not has_projections(config):
        return 0
    return _n_clusters(config) if config.div_val > 1 else 1


def _n_own_projections(config: ModelConfig) -> int:
    """Projections of the softmax that are not the embedding's."""
    if not has_projections(config):
        return 0
    return {"all": 0, "all_but_first": 1, "none": _n_clusters(config)}[config.tie_projs]


def _vocabulary_count(config: ModelConfig, vocab_size: int) -> int:
    """Numbers in embedding and softmax."""
    sizes, widths = _clusters(config, vocab_size)
    tables = sum(size * width for size, width in zip(sizes, widths, strict=True))
    projected = sum(widths[: _n_projections(config)]) + sum(widths[: _n_own_projections(config)])
    clusters = (len(sizes) - 1) * (widths[0] + 1)
    return (1 if config.tie_weight else 2) * tables + config.d_model * projected + clusters + vocab_size


def _clusters(config: ModelConfig, vocab_size: int) -> tuple[list[int], list[int]]:
    """Tokens of each cluster, and the width of their vectors."""
    bounds = cluster_bounds(config, vocab_size)
    return [stop - start for start, stop in bounds], [cluster_width(config, i) for i in range(len(bounds))]


def _bare(name: str) -> str:
    """A tensor's name without what wrappers put before it."""
    return name.removeprefix("module.").removeprefix("transformer.")


def _joined_shape(shapes: list[torch.Size]) -> tuple[int, ...]:
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _misfit(value: object, shape: tuple[int, ...]) -> str | None:
    """Why a value cannot be the tensor of this shape."""
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.device.type != "cpu":
        return f"found {type(value).__name__}; allowed: a dense tensor"
    if not value.is_floating_point():
        return f"found {value.dtype}; allowed: floating-point numbers"
    if tuple(value.shape) != shape:
        return f"found shape {tuple(value.shape)}, the hyper-parameters make it {shape}"
    return None


def _equal(left: object, right: object) -> bool:
    assert isinstance(left, Tensor)
    assert isinstance(right, Tensor)
    return left is right or torch.equal(left, right)
