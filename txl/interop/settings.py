"""Published hyper-parameters <-> ModelConfig: what each name means to the two codes that wrote checkpoints.

A JSON object of Hugging Face's `config.json` or of the 2019 code's constructor arguments -> `read_settings` ->
ModelConfig and vocabulary size; a ModelConfig -> `write_settings` -> `config.json`. Knows nothing of tensors or files.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from txl.config import ModelConfig, model_problems
from txl.data import DataError

Code = Literal["hugging face", "2019"]
"""Who wrote a checkpoint: transformers up to 4.35 (TransfoXLLMHeadModel), or the paper's own PyTorch code
(MemTransformerLM)."""

MODEL_TYPE = "transfo-xl"
LAYER_NORM_EPSILON = 1e-5
REQUIRED = object()


@dataclass(frozen=True)
class Setting:
    """One published name: what its value must be, and what a missing one means to either code."""

    kind: Literal["whole", "number", "flag", "wholes", "flags", "whole or null"]
    hugging_face: Any
    paper: Any = REQUIRED


SETTINGS: Mapping[str, Setting] = {
    "vocab_size": Setting("whole", 267735),
    "n_layer": Setting("whole", 18),
    "n_head": Setting("whole", 16),
    "d_model": Setting("whole", 1024),
    "d_head": Setting("whole", 64),
    "d_inner": Setting("whole", 4096),
    "dropout": Setting("number", 0.1),
    "dropatt": Setting("number", 0.0),
    "tgt_len": Setting("whole", ModelConfig.tgt_len),
    "mem_len": Setting("whole", 1600),
    "ext_len": Setting("whole", 0, 0),
    "clamp_len": Setting("whole", 1000, -1),
    "same_length": Setting("flag", True, False),
    "untie_r": Setting("flag", True, False),
    "pre_lnorm": Setting("flag", False, False),
    "attn_type": Setting("whole", 0, 0),
    "cutoffs": Setting("wholes", [20000, 40000, 200000], []),
    "div_val": Setting("whole", 4, 1),
    "d_embed": Setting("whole or null", 1024, None),
    "tie_weight": Setting("flag", True, True),
    "tie_projs": Setting("flags", None, [False]),
    "sample_softmax": Setting("whole", -1, -1),
    "layer_norm_epsilon": Setting("number", LAYER_NORM_EPSILON, LAYER_NORM_EPSILON),
    "init_std": Setting("number", 0.02, 0.02),
    "proj_init_std": Setting("number", 0.01, 0.01),
}
OTHER_NAMES = {"n_token": "vocab_size", "tie_word_embeddings": "tie_weight"}
"""The same settings under the names of the 2019 code and of transformers."""
WITHOUT_EFFECT = ("adapt_inp", "dtype")
"""Arguments of the 2019 code, or of its successors, that change nothing in the model."""
OTHER_ATTENTION = {
    1: "learned distances and biases after Shaw et al.",
    2: "sinusoids counted back from the end of each segment",
    3: "positions learned for each layer after Al-Rfou et al.",
}


def read_settings(document: object, *, code: Code) -> tuple[ModelConfig, int]:
    """The model that published hyper-parameters describe, and the size V of its vocabulary.

    Raises DataError naming every setting that is unknown, missing, of a wrong type or not offered here, with the
    reason. In a `config.json`, which holds much that is no hyper-parameter, unknown names are passed over, and missing
    ones mean what they mean to transformers.
    """
    if not isinstance(document, dict):
        raise DataError(f"must be a JSON object of hyper-parameters, not {type(document).__name__}")
    if code == "hugging face" and document.get("model_type") != MODEL_TYPE:
        raise DataError(f"model_type: found {document.get('model_type')!r}; allowed: {MODEL_TYPE}")
    named = {OTHER_NAMES.get(str(name), str(name)): value for name, value in document.items()}
    problems = [] if code == "hugging face" else _unknown(named)
    values: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        value = named.get(name, setting.hugging_face if code == "hugging face" else setting.paper)
        values[name] = value
        if value is REQUIRED:
            problems.append(f"{name}: missing")
        elif not _fits(value, setting.kind) and not (name == "tie_projs" and value is None):
            problems.append(f"{name}: found {value!r}; allowed: {_ALLOWED[setting.kind]}")
    if problems:
        raise DataError("\n".join(problems))
    if values["tie_projs"] is None:  # as transformers fills it in
        shared = named.get("proj_share_all_but_first", True) is True
        values["tie_projs"] = [False] + [shared] * len(values["cutoffs"])
    problems = _not_offered(values)
    config = _model_config(values, code)
    problems += model_problems(config, vocab_size=values["vocab_size"])
    if problems:
        raise DataError("\n".join(problems))
    return config, values["vocab_size"]


def write_settings(config: ModelConfig, vocab_size: int, *, eos_id: int | None) -> tuple[dict[str, Any], list[str]]:
    """A `config.json` of transformers 4.35 for this model, and what its reader must know besides.

    Raises DataError naming every setting that the format has no words for.
    """
    if problems := _not_expressible(config):
        raise DataError("\n".join(problems))
    notes = []
    mem_len = config.mem_len
    if config.same_length and not config.window_includes_self:
        mem_len += 1
        notes.append(
            f"mem_len is {mem_len} in config.json: there a window of same_length counts the query, here it does not; "
            "the results are the same"
        )
    if config.mem_len > 0 and config.initial_memory == "empty":
        notes.append(
            "transformers attends zero vectors before the first token, this model was trained without: start a text "
            "with mems=[torch.zeros(0, batch_size, d_model)] * n_layer for the same results"
        )
    cutoffs = list(config.cutoffs or ())
    tails = len(cutoffs)
    ties = {"all": [True] * (tails + 1), "all_but_first": [False] + [True] * tails, "none": [False] * (tails + 1)}
    shared = {name: getattr(config, name) for name in (*_SAME, "init_std", "proj_init_std")}
    document = shared | {
        "model_type": MODEL_TYPE,
        "architectures": ["TransfoXLLMHeadModel"],
        "vocab_size": vocab_size,
        "mem_len": mem_len,
        "clamp_len": -1 if config.clamp_len is None else config.clamp_len,
        "cutoffs": cutoffs,
        "d_embed": config.d_embed or config.d_model,
        "tie_word_embeddings": config.tie_weight,
        "tie_projs": ties[config.tie_projs],
        "layer_norm_epsilon": LAYER_NORM_EPSILON,
        "attn_type": 0,
        "sample_softmax": -1,
        "adaptive": True,
        "init": "normal",
        "eos_token_id": eos_id,
        "torch_dtype": "float32",
    }
    return dict(sorted(document.items())), notes


_SAME = (
    *("n_layer", "d_model", "n_head", "d_head", "d_inner", "dropout", "dropatt"),
    *("tgt_len", "same_length", "untie_r", "pre_lnorm", "div_val"),
)
"""Settings that mean in ModelConfig what they mean in the published codes."""
_ALLOWED = {
    "whole": "a whole number",
    "number": "a number",
    "flag": "true or false",
    "wholes": "a list of whole numbers",
    "flags": "a list of true and false",
    "whole or null": "a whole number or null",
}


def _fits(value: object, kind: str) -> bool:
    """Whether a JSON value has the type that a setting needs; true is no number."""
    if kind == "whole or null":
        return value is None or _fits(value, "whole")
    if kind in ("wholes", "flags"):
        return isinstance(value, list) and all(_fits(item, kind.removesuffix("s")) for item in value)
    if kind == "flag":
        return isinstance(value, bool)
    return isinstance(value, int if kind == "whole" else int | float) and not isinstance(value, bool)


def _unknown(named: Mapping[str, object]) -> list[str]:
    """A problem for each name that is no argument of the 2019 code's model."""
    problems = []
    for name in sorted(named.keys() - SETTINGS.keys() - set(WITHOUT_EFFECT)):
        near = difflib.get_close_matches(name, SETTINGS, 1, cutoff=0.8)
        hint = f"did you mean {near[0]}?" if near else "give the arguments of MemTransformerLM alone"
        problems.append(f"{name}: no hyper-parameter of the model; {hint}")
    return problems


def _not_offered(values: Mapping[str, Any]) -> list[str]:
    """A problem for each published setting that no model here has."""
    problems = []

    def refuse(name: str, allowed: str) -> None:
        problems.append(f"{name}: found {values[name]!r}; allowed: {allowed}")

    if values["attn_type"] != 0:
        other = OTHER_ATTENTION.get(values["attn_type"], "unknown to the published code")
        refuse("attn_type", f"0, the paper's relative positions; this is {other}")
    if values["pre_lnorm"]:
        refuse("pre_lnorm", "false; the published code has no norm after the last layer, the pre-norm model here has")
    if values["layer_norm_epsilon"] != LAYER_NORM_EPSILON:
        refuse("layer_norm_epsilon", f"{LAYER_NORM_EPSILON}")
    if values["sample_softmax"] > 0:
        refuse("sample_softmax", "-1; a softmax trained on samples has other weights")
    if values["ext_len"] != 0:
        refuse("ext_len", "0; memory here holds every token of the segments before")
    if values["same_length"] and values["mem_len"] <= 0:
        refuse("same_length", "false with mem_len 0, where the published mask hides every key from every query")
    if values["div_val"] > 1 and not values["cutoffs"]:
        refuse("div_val", "1 without cutoffs; one cluster of full width has no projection here")
    if _has_projections(values) and _tie_projs(values) is None:
        refuse("tie_projs", "true for all clusters, for all but the first, or for none, in one entry a cluster")
    return problems


def _not_expressible(config: ModelConfig) -> list[str]:
    """A problem for each setting of ModelConfig that `config.json` cannot say."""
    only = {"position": "relative", "norm": "layer", "activation": "relu"}
    problems = [
        f"model.{name}: found {getattr(config, name)}; allowed: {value}, for the format knows no other"
        for name, value in only.items()
        if getattr(config, name) != value
    ]
    if config.arch == "lstm":
        problems.insert(0, "model.arch: found lstm; allowed: transformer_xl or transformer")
    if config.qk_norm:
        problems.append("model.qk_norm: found true; allowed: false, for the format knows no norm of queries and keys")
    if config.pre_lnorm:
        problems.append("model.pre_lnorm: found true; allowed: false, for the format has no norm after the last layer")
    return problems


def _has_projections(values: Mapping[str, Any]) -> bool:
    return values["div_val"] > 1 or values["d_embed"] not in (None, values["d_model"])


def _tie_projs(values: Mapping[str, Any]) -> str | None:
    """Which projections are shared, in our words; None for a pattern that we have none for. Missing entries are
    false, as in the published code."""
    ties = values["tie_projs"] + [False] * (len(values["cutoffs"]) + 1 - len(values["tie_projs"]))
    if len(ties) > len(values["cutoffs"]) + 1:
        return None
    if all(ties):
        return "all"
    if not any(ties) and len(ties) > 1:
        return "none"
    return "all_but_first" if all(ties[1:]) else None


def _model_config(values: Mapping[str, Any], code: Code) -> ModelConfig:
    """The ModelConfig of published settings; its problems are the caller's to find.

    The published window counts the query; Hugging Face fills memory with zeros before the first token.
    """
    remembers = values["mem_len"] > 0
    projected = _has_projections(values)
    kept: dict[str, Any] = {name: values[name] for name in (*_SAME, "mem_len", "init_std")}
    if projected:
        kept |= {"tie_projs": _tie_projs(values) or "all", "proj_init_std": values["proj_init_std"]}
    return ModelConfig(
        arch="transformer_xl",
        position="relative",
        clamp_len=values["clamp_len"] if values["clamp_len"] > 0 else None,
        cutoffs=tuple(values["cutoffs"]),
        d_embed=None if values["d_embed"] == values["d_model"] else values["d_embed"],
        tie_weight=values["tie_weight"],
        initial_memory="zeros" if remembers and code == "hugging face" else "empty",
        window_includes_self=remembers,
        **kept,
    )
