"""What a combination of values may be, on top of what each field may hold alone.

A `Config` or one of its sections -> a list of problems, each `section.field: found ...; allowed: ...`. Changes nothing
and fills nothing in. Knows nothing of files or of torch; what only a corpus can tell `txl.data` refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from txl.config.domains import field_problems, show
from txl.config.schema import (
    Config,
    DataConfig,
    EvalConfig,
    ModelConfig,
    OptimConfig,
    RuntimeConfig,
    TokenizerConfig,
    TrainConfig,
)

ABSOLUTE_POSITIONS = ("learned", "sinusoidal", "none")


def config_problems(config: Config) -> list[str]:
    """Every reason why this config cannot be run, each starting with the key it is about; an empty list if none."""
    problems: list[str] = []
    for section in fields(Config):
        problems += field_problems(section.name, getattr(config, section.name))
    broken = {problem.split(":", 1)[0] for problem in problems}
    found = _combinations(_with_defaults(config, broken))  # one message about an impossible value is enough
    return problems + [text for text in found if not any(key in text for key in broken)]


def model_problems(model: ModelConfig, *, vocab_size: int | None = None) -> list[str]:
    """Every reason why this model cannot be built, with a vocabulary of `vocab_size` ids where it is known."""
    problems = field_problems("model", model) or list(_model_combinations(model))
    if vocab_size is not None and model.cutoffs is None:
        allowed = "a list of ids; auto is for training, which counts the tokens (txl.model.softmax.auto_cutoffs)"
        problems.append(_wrong("model.cutoffs", "auto without text", allowed))
    if vocab_size is not None and model.cutoffs and model.cutoffs[-1] >= vocab_size:
        found = f"{list(model.cutoffs)} with a vocabulary of {vocab_size}"
        problems.append(_wrong("model.cutoffs", found, f"ids below {vocab_size}, so that every cluster has a token"))
    if vocab_size is not None and vocab_size < 2:
        problems.append(
            f"vocab_size: found {vocab_size}; allowed: at least 2 symbols, else there is nothing to predict"
        )
    return problems


def _combinations(config: Config) -> Iterator[str]:
    """Problems of values that are fine alone."""
    yield from _tokenizer_combinations(config.tokenizer)
    if config.data.separator is not None and config.tokenizer.kind == "byte" and config.train.init_from is None:
        found = f"{config.data.separator!r} with tokenizer.kind byte"
        yield _wrong("data.separator", found, "null, for all 256 ids are bytes of text")
    yield from _data_combinations(config.data)
    yield from _model_combinations(config.model)
    yield from _training_combinations(config.train, config.data, config.model)
    yield from _optim_combinations(config.optim, config.train)
    yield from _eval_combinations(config.eval, config.model)
    yield from _runtime_combinations(config.runtime)
    yield from _sharding_combinations(config.runtime, config.optim)
    yield from _compiled_combinations(config.runtime, config.model)


def _with_defaults(config: Config, keys: set[str]) -> Config:
    """The config with each of these keys at its default, so that the others can still be judged together."""
    for section, field in (key.split(".") for key in keys):
        part = getattr(config, section)
        default = next(item.default for item in fields(part) if item.name == field)
        config = replace(config, **{section: replace(part, **{field: default})})
    return config


def _wrong(key: str, found: object, allowed: str) -> str:
    return f"{key}: found {found}; allowed: {allowed}"


def _idle(name: str, section: Any, idle_fields: str, reason: str) -> Iterator[str]:
    """A problem for each of the named fields that was set away from its default although nothing would read it."""
    for field in fields(section):
        value = getattr(section, field.name)
        if field.name in idle_fields.split() and value != field.default:
            found = f"{show(value)}, which does nothing {reason}"
            yield _wrong(f"{name}.{field.name}", found, f"{show(field.default)} (leave it out)")


def _tokenizer_combinations(tokenizer: TokenizerConfig) -> Iterator[str]:
    kind = tokenizer.kind
    if kind == "file" and tokenizer.path is None:
        yield _wrong("tokenizer.path", "null with tokenizer.kind file", "the path of a tokenizer.json")
    readers = {"path": ("file",), "vocab_size": ("bpe",), "min_count": ("char", "word"), "max_size": ("char", "word")}
    readers |= {"split": ("word",), "lowercase": ("char", "word")}
    for field, kinds in readers.items():
        if kind not in kinds:
            reason = f"with tokenizer.kind {kind} (only with {' or '.join(kinds)})"
            yield from _idle("tokenizer", tokenizer, field, reason)


def _data_combinations(data: DataConfig) -> Iterator[str]:
    for name in ("valid", "test"):
        source = getattr(data, name)
        if source is not None:
            yield from _idle("data", data, f"{name}_fraction", f"where data.{name} names the text")
        elif getattr(data, f"{name}_fraction") == 0:
            allowed = f"a share above 0, or name the text in data.{name}"
            yield _wrong(f"data.{name}_fraction", f"0 without data.{name}", allowed)
        if source == data.train and ("@" in source or not source.startswith("hf:")):
            allowed = "other text, or null to hold out a share of data.train"
            yield _wrong(f"data.{name}", f"the training text, {source!r}", allowed)
    if data.mixture:
        unnamed = [name for name in ("valid", "test") if getattr(data, name) is None]
        if unnamed:
            found = f"null with data.mixture {show(data.mixture)}"
            yield _wrong(f"data.{unnamed[0]}", found, "text of its own: none is held out of a mixture")
    held_out = sum(getattr(data, f"{name}_fraction") for name in ("valid", "test") if getattr(data, name) is None)
    if held_out >= 1:
        found = f"{data.valid_fraction:g}, with data.test_fraction together {held_out:g}"
        yield _wrong("data.valid_fraction", found, "together below 1, so that text is left to train on")
    if data.valid is not None and data.test is not None:
        yield from _idle("data", data, "split_by split_seed", "where data.valid and data.test are both named")
    elif data.split_by == "position":
        yield from _idle("data", data, "split_seed", "with data.split_by position, where nothing is drawn")
    if not data.shuffle_segments:
        yield from _idle("data", data, "segments_together", "with data.shuffle_segments false")
    if not any(source is not None and source.startswith("hf:") for source in (data.train, data.valid, data.test)):
        yield from _idle("data", data, "streaming", "without a Hugging Face source (hf:NAME)")


def _model_combinations(model: ModelConfig) -> Iterator[str]:
    yield from _vocabulary_combinations(model)
    if model.dropout == 0:
        yield from _idle("model", model, "locked_dropout", "with model.dropout 0")
    position = model.position
    if model.arch == "lstm":
        yield from _lstm_combinations(model)
        return
    if model.arch == "transformer":
        if model.mem_len > 0:
            found = f"{model.mem_len} with model.arch transformer"
            yield _wrong("model.mem_len", found, "0, for the vanilla baseline keeps no memory")
    elif position in ABSOLUTE_POSITIONS and model.mem_len > 0:
        reason = "equal positions would name tokens of different segments; relative, shaw, rotary, alibi go with memory"
        yield _wrong("model.mem_len", f"{model.mem_len} with model.position {position}", f"0 ({reason})")
    if position in ("relative", "sinusoidal") and model.d_model % 2:
        found = f"{model.d_model} with model.position {position}"
        yield _wrong("model.d_model", found, "an even number, half sines and half cosines")
    if position == "rotary" and model.d_head % 2:
        found = f"{model.d_head} with model.position rotary"
        yield _wrong("model.d_head", found, "an even number, for features turn in pairs")
    if position not in ("relative", "shaw", "alibi"):
        reason = f"with model.position {position} (only with relative, shaw or alibi)"
        yield from _idle("model", model, "clamp_len", reason)
    if position != "relative":
        yield from _idle("model", model, "untie_r", f"with model.position {position} (only with relative)")
    if model.mem_len == 0:
        yield from _idle("model", model, "initial_memory window_includes_self", "without memory (model.mem_len 0)")
        if model.same_length:
            allowed = "false, for no query would see an earlier position"
            yield _wrong("model.same_length", "true with model.mem_len 0", allowed)


def _vocabulary_combinations(model: ModelConfig) -> Iterator[str]:
    """Clusters, widths and projections of embedding and softmax."""
    width = model.d_embed or model.d_model
    if model.cutoffs == ():
        yield from _idle("model", model, "div_val", "without model.cutoffs")
    elif model.cutoffs and width // model.div_val ** len(model.cutoffs) < 1:
        found = f"{model.div_val}, which leaves the last of {len(model.cutoffs) + 1} clusters no feature of {width}"
        yield _wrong("model.div_val", found, "a smaller factor, fewer model.cutoffs or a wider model.d_embed")
    if model.d_embed == model.d_model:
        yield _wrong("model.d_embed", f"{model.d_embed}, which is model.d_model", "null, or another width")
    if width == model.d_model and model.div_val == 1:
        reason = "without projections (model.div_val 1 and model.d_embed null)"
        yield from _idle("model", model, "tie_projs proj_init_std", reason)


def _lstm_combinations(model: ModelConfig) -> Iterator[str]:
    """An LSTM's state is its memory: nothing is attended, no position is encoded."""
    if model.position != "none":
        yield _wrong("model.position", f"{model.position} with model.arch lstm", "none")
    if model.mem_len > 0:
        yield _wrong("model.mem_len", f"{model.mem_len} with model.arch lstm", "0, for its state is all it keeps")
    shape = "n_head d_head d_inner dropatt clamp_len same_length untie_r"
    rest = "pre_lnorm norm qk_norm activation activation_checkpointing initial_memory window_includes_self"
    yield from _idle("model", model, f"{shape} {rest}", "with model.arch lstm")


def _training_combinations(train: TrainConfig, data: DataConfig, model: ModelConfig) -> Iterator[str]:
    if data.batch_size % train.accumulate:
        found = f"{data.batch_size}, not divisible by train.accumulate {train.accumulate}"
        yield _wrong("data.batch_size", found, f"a multiple of {train.accumulate}")
    if train.loss == "half" and min([model.tgt_len, *(length for _, length in train.tgt_len_schedule)]) < 2:
        found = f"half with model.tgt_len {model.tgt_len}" if model.tgt_len < 2 else "half with segments of 1 token"
        yield _wrong("train.loss", found, "full, or segments of at least 2 tokens")
    if data.shuffle_segments:
        yield from _shuffled_segments(train, data, model)
    yield from _stages(train, model)
    if train.keep_every % train.save_every:
        found = f"{train.keep_every} with train.save_every {train.save_every}"
        yield _wrong("train.keep_every", found, "0, or a multiple of train.save_every: only what is saved can be kept")
    if train.non_finite != "skip":
        yield from _idle("train", train, "max_skipped", "with train.non_finite raise")


def _shuffled_segments(train: TrainConfig, data: DataConfig, model: ModelConfig) -> Iterator[str]:
    """What cannot go with segments that do not follow each other in the text."""
    if data.segments_together == 1 and (model.mem_len > 0 or model.arch == "lstm"):
        keeps = "arch lstm" if model.arch == "lstm" else f"mem_len {model.mem_len}"
        found = f"1 with data.shuffle_segments true and model.{keeps}"
        yield _wrong("data.segments_together", found, "2 or more, for memory is of the text right before a segment")
    if train.tgt_len_schedule:
        found = "true with train.tgt_len_schedule"
        yield _wrong("data.shuffle_segments", found, "false, or segments of one length")


def _stages(train: TrainConfig, model: ModelConfig) -> Iterator[str]:
    """Problems of segments that change their length on the way."""
    stages, key = train.tgt_len_schedule, "train.tgt_len_schedule"
    if stages and stages[-1][1] != model.tgt_len:
        found = f"{show(stages)} with model.tgt_len {model.tgt_len}"
        yield _wrong(key, found, f"a last stage of {model.tgt_len} tokens, or another model.tgt_len")
    if stages and stages[-1][0] >= train.max_steps:
        yield _wrong(key, show(stages), f"a last stage that begins before train.max_steps, {train.max_steps}")
    if model.position == "learned" and any(length > model.tgt_len for _, length in stages):
        found = f"{show(stages)} with model.position learned"
        yield _wrong(key, found, f"at most {model.tgt_len} tokens, for the table has model.tgt_len positions")


def _optim_combinations(optim: OptimConfig, train: TrainConfig) -> Iterator[str]:
    if optim.warmup_steps >= train.max_steps:
        allowed = f"fewer than train.max_steps, {train.max_steps}"
        yield _wrong("optim.warmup_steps", optim.warmup_steps, allowed)
    if optim.min_lr > optim.lr:
        yield _wrong("optim.min_lr", f"{optim.min_lr:g}", f"at most optim.lr, {optim.lr:g}")
    if optim.schedule == "constant":
        yield from _idle("optim", optim, "min_lr", "with optim.schedule constant")
    if optim.schedule != "wsd":
        yield from _idle("optim", optim, "decay_steps", f"with optim.schedule {optim.schedule} (only with wsd)")
    elif optim.decay_steps > train.max_steps - optim.warmup_steps > 0:
        allowed = f"at most {train.max_steps - optim.warmup_steps}, the steps of train.max_steps after warm-up"
        yield _wrong("optim.decay_steps", optim.decay_steps, allowed)
    if optim.name != "muon":
        yield from _idle("optim", optim, "muon_lr muon_momentum", f"with optim.name {optim.name} (only with muon)")


def _eval_combinations(evaluation: EvalConfig, model: ModelConfig) -> Iterator[str]:
    window, longest = evaluation.window, model.tgt_len - 1
    if model.position == "learned" and window is not None and window > longest:
        found = f"{window} with model.position learned"
        yield _wrong("eval.window", found, f"at most {longest}, for the table has model.tgt_len positions")


def _runtime_combinations(runtime: RuntimeConfig) -> Iterator[str]:
    if runtime.precision == "fp16" and runtime.device in ("cpu", "mps"):
        yield _wrong("runtime.precision", f"fp16 with runtime.device {runtime.device}", "there auto, fp32 or bf16")
    if runtime.precision == "fp16" and runtime.shard == "full":
        yield _wrong("runtime.precision", "fp16 with runtime.shard full", "there auto, fp32 or bf16")
    if runtime.compile and runtime.shard == "full":
        yield _wrong("runtime.compile", "true with runtime.shard full", "there false")
    if runtime.compile and runtime.attention in ("reference", "blocked", "batched"):
        yield _wrong("runtime.attention", f"{runtime.attention} with runtime.compile", "there auto or sdpa")


def _sharding_combinations(runtime: RuntimeConfig, optim: OptimConfig) -> Iterator[str]:
    if runtime.shard == "full" and optim.name == "muon":
        yield _wrong("optim.name", "muon with runtime.shard full", "there adamw, for Muon needs whole matrices")
    if runtime.shard == "full" and optim.ema_decay:
        yield _wrong("optim.ema_decay", f"{optim.ema_decay:g} with runtime.shard full", "there 0")


def _compiled_combinations(runtime: RuntimeConfig, model: ModelConfig) -> Iterator[str]:
    if runtime.compile and (model.arch == "lstm" or model.cutoffs != ()):
        found = "lstm" if model.arch == "lstm" else "clusters (model.cutoffs)"
        yield _wrong("runtime.compile", f"true with {found}", "there false, for its shapes depend on the text")
