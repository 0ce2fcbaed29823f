"""Every field of every section, one line each: values that are taken, values that are refused."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Literal

import pytest

from txl.config import Config, DataConfig, ModelConfig, config_problems, model_problems
from txl.config.domains import DOMAINS, allowed_type, show

NAN, INF = float("nan"), float("inf")
WHOLE = ["3", 2.5, 2.0, True, 2**63]
NUMBER = ["0.1", True, NAN, INF, -INF]
TRUTH = [0, 1, "true", "no", None]

# key: (values that are fine, with what else they need to make sense; values that are refused)
FIELDS: dict[str, tuple[list[Any], list[Any]]] = {
    "run.dir": (["runs/x", "/tmp/ü"], ["", "  ", "a\0b", None, 3]),
    "run.seed": ([0, 4294967295], [-1, 4294967296, None, *WHOLE]),
    "run.resume": (["auto", "strict", "never"], ["", "always", None, True]),
    "run.trackers": (
        [(), ("tensorboard",), ("wandb", "trackio")],
        [("mlflow",), ("wandb", 3), ["wandb"], "wandb", None],
    ),
    "tokenizer.kind": (["byte", "char", "word", "bpe"], ["bytes", None, 1]),
    "tokenizer.path": ([None], ["", 3]),
    "tokenizer.vocab_size": ([8192], [256, 0, -1, None, *WHOLE]),
    "tokenizer.min_count": ([1], [0, -1, None, *WHOLE]),
    "tokenizer.max_size": ([None], [2, 0, -1, *WHOLE]),
    "tokenizer.split": (["whitespace"], ["words", None]),
    "tokenizer.lowercase": ([False], TRUTH),
    "data.train": (["stdlib", "books", "a/*.txt", "hf:a/b:c@train[:5%]"], ["", None, 3, "hf:", "hf:a b", "hf:a@"]),
    "data.mixture": (
        [()],
        [("books",), ("0 books",), ("-1 a",), ("1",), ("x a",), ("1 a", "2 a"), ("inf a",), (3,), None],
    ),
    "data.valid": (["v.txt", "hf:x@validation", None], ["", 3, "hf:@train"]),
    "data.test": (["t.txt", "hf:x@test", None], ["", 3, "hf::x"]),
    "data.valid_fraction": ([0.2, 0.001], [1, 1.0, -0.1, None, *NUMBER]),
    "data.test_fraction": ([0.2, 0.001], [1, 1.0, -0.1, None, *NUMBER]),
    "data.split_by": (["documents", "position"], ["random", None]),
    "data.split_seed": ([0, 7], [-1, 4294967296, None, *WHOLE]),
    "data.text_field": (["body"], ["", None, 4]),
    "data.document_pattern": ([None, "^ = [^=]", "^"], ["", "(", "[a", 3]),
    "data.separator": ([None], ["", " ", 3]),
    "data.invalid_utf8": (["strict", "replace"], ["ignore", None]),
    "data.streaming": ([False], TRUTH),
    "data.batch_size": ([1, 64], [0, -4, None, *WHOLE]),
    "data.reset_memory": ([True, False], TRUTH),
    "data.shuffle_documents": ([True, False], TRUTH),
    "data.shuffle_segments": ([True, False], TRUTH),
    "data.segments_together": ([1, 64], [0, -1, None, *WHOLE]),
    "data.workers": ([1, 8], [0, -1, None, *WHOLE]),
    "data.cache_dir": ([None, "cache"], ["", 3]),
    "model.arch": (["transformer_xl"], ["bert", "transformer-xl", None]),
    "model.n_layer": ([1, 24], [0, -1, None, *WHOLE]),
    "model.d_model": ([2, 410], [0, -2, None, *WHOLE]),
    "model.n_head": ([1, 10], [0, -1, None, *WHOLE]),
    "model.d_head": ([1, 41], [0, -1, None, *WHOLE]),
    "model.d_inner": ([1, 2100], [0, -1, None, *WHOLE]),
    "model.dropout": ([0, 0.5], [1, 1.0, -0.1, None, *NUMBER]),
    "model.dropatt": ([0, 0.5], [1, 1.0, -0.1, None, *NUMBER]),
    "model.position": (["relative", "shaw", "rotary", "alibi"], ["absolute", None, False]),
    "model.tgt_len": ([1, 150], [0, -1, None, *WHOLE]),
    "model.mem_len": ([0, 1600], [-1, None, *WHOLE]),
    "model.clamp_len": ([None, 1, 400], [0, -1, *WHOLE]),
    "model.same_length": ([True, False], TRUTH),
    "model.untie_r": ([True, False], TRUTH),
    "model.pre_lnorm": ([True, False], TRUTH),
    "model.norm": (["layer", "rms"], ["batch", None]),
    "model.qk_norm": ([True, False], TRUTH),
    "model.activation": (["relu", "gelu", "swiglu"], ["tanh", None]),
    "model.cutoffs": ([(), (3,), (20, 40), None], [(0,), (-1, 4), (4, 4), (8, 4), (2.5,), ("4",), (True,), [16], 16]),
    "model.div_val": ([1], [0, -1, None, *WHOLE]),
    "model.d_embed": ([None, 1, 64], [0, -1, *WHOLE]),
    "model.tie_weight": ([True, False], TRUTH),
    "model.tie_projs": (["all"], ["first", None, True]),
    "model.init_std": ([0.005, 1], [0, -0.1, None, *NUMBER]),
    "model.proj_init_std": ([0.01], [0, -0.1, None, *NUMBER]),
    "model.locked_dropout": ([False], TRUTH),
    "model.activation_checkpointing": ([True, False], TRUTH),
    "model.initial_memory": (["empty", "zeros"], ["zero", None]),
    "model.window_includes_self": ([True, False], TRUTH),
    "train.max_steps": ([101, 10**6], [0, -1, None, *WHOLE]),
    "train.init_from": ([None, "runs/base", "runs/base/checkpoints/step-000200"], ["", " ", 3]),
    "train.tgt_len_schedule": (
        [(), ((0, 128),), ((0, 16), (500, 64), (900, 128))],
        [
            ((1, 128),),
            ((0, 16), (0, 128)),
            ((0, 0), (5, 128)),
            ((0, 128, 3),),
            (0, 128),
            ((0, "128"),),
            [[0, 128]],
            5,
            None,
        ],
    ),
    "train.accumulate": ([1, 8], [0, -1, None, *WHOLE]),
    "train.loss": (["full", "half"], ["both", None]),
    "train.log_every": ([1], [0, -1, None, *WHOLE]),
    "train.eval_every": ([1], [0, -1, None, *WHOLE]),
    "train.eval_tokens": ([2], [1, 0, -1, None, *WHOLE]),
    "train.sample_every": ([0, 5], [-1, None, *WHOLE]),
    "train.sample_tokens": ([1], [0, -1, None, *WHOLE]),
    "train.save_every": ([1], [0, -1, None, *WHOLE]),
    "train.keep_last": ([1], [0, -1, None, *WHOLE]),
    "train.keep_every": ([0, 5000], [-1, None, *WHOLE]),
    "train.non_finite": (["raise", "skip"], ["ignore", None]),
    "train.max_skipped": ([10], [0, -1, None, *WHOLE]),
    "optim.name": (["adamw", "muon"], ["adam", "", None]),
    "optim.lr": ([2.5e-4, 1], [0, -1, None, *NUMBER]),
    "optim.min_lr": ([0, 1e-4], [-1, None, *NUMBER]),
    "optim.weight_decay": ([0, 0.1], [-0.1, None, *NUMBER]),
    "optim.beta1": ([0, 0.95], [1, -0.1, None, *NUMBER]),
    "optim.beta2": ([0, 0.98], [1, -0.1, None, *NUMBER]),
    "optim.eps": ([1e-6], [0, -1e-8, None, *NUMBER]),
    "optim.muon_lr": ([0.02], [0, -1, None, *NUMBER]),
    "optim.muon_momentum": ([0.95], [1, -0.1, None, *NUMBER]),
    "optim.schedule": (["cosine", "linear", "wsd", "inverse_sqrt", "constant"], ["exponential", None]),
    "optim.warmup_steps": ([0, 999], [-1, None, *WHOLE]),
    "optim.decay_steps": ([100], [0, -1, None, *WHOLE]),
    "optim.clip": ([0, 1], [-0.1, None, *NUMBER]),
    "optim.ema_decay": ([0, 0.999], [1, -0.1, None, *NUMBER]),
    "eval.window": ([None, 0, 2100], [-1, *WHOLE]),
    "eval.batch_size": ([1, 10], [0, -1, None, *WHOLE]),
    "eval.contexts": ([(1,), (16, 32)], [(), (0, 1), (4, 4), (8, 4), (2.5,), ("4",), (True,), [16], 16, None]),
    "eval.sample_targets": ([1], [0, -1, None, *WHOLE]),
    "eval.recl_step": ([None, 1, 256], [0, -1, *WHOLE]),
    "eval.max_tokens": ([None, 2], [1, 0, -1, *WHOLE]),
    "runtime.device": (["auto", "cpu", "cuda", "cuda:1", "mps"], ["", "gpu", "cuda:", "cuda:x", None, 0]),
    "runtime.precision": (["auto", "fp32", "bf16", "fp16"], ["float32", "half", None]),
    "runtime.attention": (["auto", "reference"], ["flash", None]),
    "runtime.products": (["auto", "torch", "onednn"], ["mkl", "", None]),
    "runtime.weights": (["full", "int8"], ["int4", "", None, 8]),
    "runtime.compile": ([True, False], ["yes", None, 1]),
    "runtime.shard": (["none", "full"], ["ddp", "", None, True]),
    "runtime.threads": ([None, 1, 16], [0, -1, *WHOLE]),
}
WITH = {
    "data.shuffle_segments": Config(model=ModelConfig(mem_len=0)),
    "data.segments_together": Config(data=DataConfig(shuffle_segments=True), model=ModelConfig(mem_len=0)),
}
"""What a field needs beside it, where that is not the default."""
EVERY_FIELD = [
    f"{section.name}.{field.name}" for section in fields(Config) for field in fields(section.default_factory)
]


def with_value(key: str, value: Any) -> Config:
    """The default config with one field changed, whatever its value, and what must go with it."""
    section, field = key.split(".")
    config = WITH.get(key, Config())
    return replace(config, **{section: replace(getattr(config, section), **{field: value})})


def test_the_table_has_every_field_of_every_section() -> None:
    assert sorted(FIELDS) == sorted(EVERY_FIELD)
    assert set(DOMAINS) <= set(EVERY_FIELD)


def test_the_defaults_have_no_problem() -> None:
    assert config_problems(Config()) == []


@pytest.mark.parametrize("key", EVERY_FIELD)
def test_a_field_takes_what_it_should_and_refuses_the_rest_by_name(key: str) -> None:
    taken, refused = FIELDS[key]
    assert taken
    assert refused
    for value in taken:
        assert config_problems(with_value(key, value)) == []
    for value in refused:
        problems = config_problems(with_value(key, value))
        assert len(problems) == 1, (value, problems)
        assert problems[0].startswith(f"{key}: found {show(value)}; allowed: "), problems


def test_a_model_built_in_python_is_judged_like_one_from_yaml() -> None:
    for key in EVERY_FIELD:
        if key.startswith("model."):
            for value in FIELDS[key][1]:
                config = with_value(key, value)
                assert model_problems(config.model) == config_problems(config)


def test_types_are_said_in_words() -> None:
    assert allowed_type(int | None) == "a whole number or null"
    assert allowed_type(float) == "a number"
    assert allowed_type(tuple[int, ...]) == "a list of whole numbers"
    assert allowed_type(tuple[tuple[int, int], ...]) == "a list of pairs of whole numbers"
    assert allowed_type(tuple[Literal["a", "b"], ...]) == "a list of any of a, b"


def test_values_are_shown_as_they_stand_in_yaml() -> None:
    assert [show(value) for value in (None, True, False, 3, 0.5, "a", (1, (2, 3)))] == [
        *("null", "true", "false", "3", "0.5", "'a'", "[1, [2, 3]]")
    ]
