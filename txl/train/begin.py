"""All that comes before the first step: what cannot begin or go on is refused here, with the reason.

Config, Runtime, Journal -> the parts of a `Run` and the `TrainState` it goes on from. Knows nothing of how a step is
taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch

from txl.checkpoint import (
    CheckpointError,
    Snapshot,
    check_space,
    checkpoint_path,
    checkpoints,
    newest_valid,
    read,
    weights,
)
from txl.config import Config, ConfigError
from txl.data import DataError
from txl.data.corpus import Corpus, prepare
from txl.data.streams import Streams
from txl.model import Model, build_model
from txl.model.softmax import auto_cutoffs
from txl.runtime import Runtime, seed_everything
from txl.train.backends import cold_memories, compile_to_one_graph, describe_backends, use_backends
from txl.train.folder import write_records
from txl.train.journal import Journal
from txl.train.optim import build_optimizer
from txl.train.plan import training_streams
from txl.train.schedules import learning_rate
from txl.train.shard import sharded
from txl.train.start import find_start, take_weights, taking_over, tokenizer_of
from txl.train.state import Run, TrainState, restore, undisturbed
from txl.train.work import product_speed, trained_flops

COUNTED_TOKENS = 1 << 22
"""Tokens counted at a time for automatic cutoffs."""
FREE_SECTIONS = ("run", "eval", "runtime")
FREE_SETTINGS = (
    *("tokenizer.path", "train.max_steps", "train.log_every", "train.eval_every", "train.save_every"),
    *("train.keep_last", "train.keep_every"),
    *("train.sample_every", "train.sample_tokens", "train.non_finite", "train.max_skipped", "data.cache_dir"),
    "data.workers",
)
"""What may differ between a run's start and its resumption; anything else would make it another run (a tokenizer that
moved is judged by its hash)."""


def begin(config: Config, runtime: Runtime, journal: Journal) -> tuple[Run, TrainState]:
    """Prepare the text, build the model, and take over the newest checkpoint where there is one.

    Raises ConfigError, CheckpointError or DataError where the run cannot begin or go on.
    """
    check_rows(config, world=runtime.world)
    notes: list[str] = []  # said after the line that tells what runs
    snapshot = find_snapshot(config, warn=notes.append)
    start = find_start(config) if snapshot is None else None
    config = taking_over(config, start) if snapshot is None else as_begun(config, snapshot)
    corpus = prepare(config, report=journal.working)
    notes += corpus.manifest["notes"]
    if corpus.valid.tokens < 2:
        raise DataError("data.valid: found 1 token; at least 2 are needed to validate, for the first is never scored")
    config = with_cutoffs(config, corpus)
    seed_everything(config.run.seed)
    bare = build_model(config.model, corpus.tokenizer.vocab_size)
    if start is not None:
        take_weights(bare, start, config, corpus.tokenizer)
        notes.append(str(start))
    use_backends(bare, config)
    streams = training_streams(corpus, config, rank=runtime.rank, world=runtime.world)
    bare.to(runtime.device)
    speed, flops = product_speed(runtime.device, runtime.precision), flops_by_length(config, bare, streams)
    if config.runtime.shard == "full":
        bare = sharded(bare, runtime)
    if config.runtime.compile:
        compile_to_one_graph(bare)
    model, optimizer = runtime.prepare(bare, build_optimizer(bare, config.optim))
    run = Run(config, runtime, journal, corpus, streams, bare, model, optimizer, flops, speed)
    journal.say(describe(run, step=0 if snapshot is None else snapshot.step))
    seed_everything(config.run.seed, rank=runtime.rank)  # rows of different processes drop out differently
    state = TrainState(memory=(None,) * config.train.accumulate, position=streams.position())
    if snapshot is not None:
        state = restore(run, snapshot, warn=notes.append)
        streams.seek(dict(state.position))
        notes += changed_schedule(snapshot, config)
    elif config.runtime.compile:
        state = replace(state, memory=cold_memories(run))
    for note in (*notes, describe_work(run), describe_backends(run)):
        journal.say(note)
    if runtime.is_main:
        journal.say(check_disk(run))
        write_records(Path(config.run.dir), config)
    journal.begin(state.step, {} if snapshot is None else snapshot.state["journal"])
    return run, state


def as_begun(config: Config, snapshot: Snapshot) -> Config:
    """The config of a run that goes on: its seed, and what it chose or took over when it began, stay what they were."""
    begun = snapshot.config
    config = replace(config, run=replace(config.run, seed=begun.run.seed))
    if begun.train.init_from is not None and begun.tokenizer.kind == "file":
        config = replace(config, tokenizer=tokenizer_of(checkpoint_path(config.run.dir, snapshot.step)))
    if config.model.cutoffs is None:
        config = replace(config, model=replace(config.model, cutoffs=begun.model.cutoffs))
    return config


def with_cutoffs(config: Config, corpus: Corpus) -> Config:
    """The config with `model.cutoffs: auto` replaced by cuts that cover shares of the training tokens."""
    if config.model.cutoffs is not None:
        return config
    counts = torch.zeros(corpus.tokenizer.vocab_size, dtype=torch.int64)
    for start in range(0, corpus.train.tokens, COUNTED_TOKENS):
        block = torch.from_numpy(corpus.train.ids[start : start + COUNTED_TOKENS].astype(np.int64))
        counts += torch.bincount(block, minlength=len(counts))
    return replace(config, model=replace(config.model, cutoffs=auto_cutoffs(counts)))


def describe(run: Run, *, step: int) -> str:
    """What runs, in one line."""
    config, corpus = run.config, run.corpus
    n_parameters = sum(parameter.numel() for parameter in run.bare.parameters())
    return (
        f"{config.run.dir}: {config.model.arch} of {n_parameters:,} parameters on {run.runtime}, "
        f"corpus {corpus.fingerprint[:12]} of {corpus.train.tokens:,} tokens, steps {step} to {config.train.max_steps}"
    )


def describe_work(run: Run) -> str:
    """What a token costs and how fast products are here, in one line: of this the mfu of every step is a share."""
    flops = run.flops[run.config.model.tgt_len]
    return f"{flops / 1e6:,.2f} million FLOPs a token trained; products: {run.speed}; mfu is the share of it"


def flops_by_length(config: Config, model: Model, streams: Streams) -> dict[int, float]:
    """FLOPs of training one token for each length that segments have in the run, counted on a row of the text."""
    position, found = streams.position(), {}
    with undisturbed():
        for length in {config.model.tgt_len, *(length for _, length in config.train.tgt_len_schedule)}:
            streams.tgt_len = length
            batch = next(streams)
            streams.seek(position)
            device = next(model.parameters()).device
            found[length] = trained_flops(model, batch.inputs[:1].to(device), batch.targets[:1].to(device))
    streams.tgt_len = config.model.tgt_len
    return found


def check_rows(config: Config, *, world: int) -> None:
    """Raise ConfigError where the rows of a step cannot be shared evenly by processes and micro-batches."""
    rows, accumulate = config.data.batch_size, config.train.accumulate
    if rows % (world * accumulate):
        raise ConfigError(
            [
                f"data.batch_size: found {rows}, for {world} processes with {accumulate} micro-batches each; "
                f"allowed: a multiple of {world * accumulate}"
            ]
        )


def check_disk(run: Run) -> str:
    """What all checkpoints of the run take on the disk, in a sentence: those kept, the best one and the next one.

    Raises CheckpointError where they do not fit.
    """
    config, model = run.config.train, run.config.model
    memory = run.config.data.batch_size * model.mem_len * model.d_model * model.n_layer * 4
    copies = 3 + (run.config.optim.ema_decay > 0)  # weights, two moments, an average
    size = copies * sum(tensor.nbytes for tensor in weights(run.bare).values()) + memory
    count = config.keep_last + 2 + (config.max_steps // config.keep_every if config.keep_every else 0)
    free = check_space(run.dir, size * max(1, count - len(checkpoints(run.dir))))
    sizes = f"{size / 1e6:,.1f} MB, and {count} at most {size * count / 1e6:,.1f} MB"
    return f"a checkpoint takes {sizes} of the {free / 1e6:,.0f} MB that are free"


def find_snapshot(config: Config, *, warn: Callable[[str], None]) -> Snapshot | None:
    """The newest whole checkpoint of the run, if it may go on with this config; None where there is none to go on from.

    Raises CheckpointError where `run.resume` forbids it, where a setting differs that would make it another run, or
    where the run is past `train.max_steps`.
    """
    run_dir = config.run.dir
    if config.run.resume == "never" and checkpoints(run_dir):
        raise CheckpointError(
            f"{run_dir}: run.resume is never and there are checkpoints; choose another run.dir, or run.resume=auto"
        )
    newest = newest_valid(run_dir, strict=config.run.resume == "strict", warn=warn)
    if newest is None:
        return None
    snapshot = read(newest)
    differing = changed_settings(snapshot.config, config)
    if differing:
        lines = "\n".join(differing)
        raise CheckpointError(
            f"{newest}: this config is another run's:\n{lines}\nTake the old values, or another run.dir"
        )
    if snapshot.step > config.train.max_steps:
        raise CheckpointError(
            f"train.max_steps: found {config.train.max_steps}, but {run_dir} has gone on to step {snapshot.step}; "
            "raise it, or choose another run.dir"
        )
    return snapshot


def changed_schedule(snapshot: Snapshot, config: Config) -> list[str]:
    """A sentence where another `train.max_steps` gives the next step another rate than the run was begun with."""
    before, now, step = snapshot.config.train.max_steps, config.train.max_steps, snapshot.step + 1
    if before == now or config.optim.schedule in ("constant", "inverse_sqrt"):
        return []
    old, new = (learning_rate(step, config.optim, steps) for steps in (before, now))
    return [
        f"warning: train.max_steps is {now:,} and was {before:,}, so optim.schedule {config.optim.schedule} is another "
        f"curve: the rate goes on from {learning_rate(snapshot.step, config.optim, before):.3g} at step {step - 1:,} "
        f"to {new:.3g} at step {step:,} (it would have been {old:.3g}), and to {config.optim.min_lr:g} at step {now:,}"
    ]


def changed_settings(saved: Config, config: Config) -> list[str]:
    """A line with both values for each setting that may not differ from the start of a run and does."""
    lines = []
    for section in fields(Config):
        before, now = getattr(saved, section.name), getattr(config, section.name)
        for field in fields(before):
            key, old, new = f"{section.name}.{field.name}", getattr(before, field.name), getattr(now, field.name)
            if key == "model.cutoffs" and new is None:  # auto: the run has chosen
                continue
            if section.name == "tokenizer" and saved.train.init_from is not None:  # taken over, and judged by its hash
                continue
            if old != new and section.name not in FREE_SECTIONS and key not in FREE_SETTINGS:
                lines.append(f"{key}: found {new!r}, the run was begun with {old!r}")
    return lines
