"""Training, in one function to read from top to bottom: a config in, a run folder and its result out.

Set the rate; for each micro-batch take the next segment, go forward with its memory, keep the new memory, go backward;
clip; check that all is finite; step; when due validate, write down, sample, save. Knows nothing of the command line.
"""

from __future__ import annotations

import math
import shlex
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl.checkpoint import checkpoints
from txl.config import Config, TrainConfig
from txl.data.corpus import Split
from txl.data.streams import SegmentBatch
from txl.evaluation.perplexity import one_pass
from txl.infer.session import Session
from txl.runtime import Runtime, peak_bytes
from txl.train.begin import begin
from txl.train.folder import locked
from txl.train.journal import Journal
from txl.train.optim import average_weights, averaged, set_learning_rate
from txl.train.result import TrainResult, finish, finished_before, is_finished
from txl.train.schedules import average_decay, learning_rate, segment_length
from txl.train.signals import Preempted, Signals
from txl.train.state import Run, TrainState, save_state, undisturbed
from txl.train.trackers import Trackers

__all__ = ["NonFiniteError", "Preempted", "TrainResult", "is_finished", "train"]

PROMPT_TOKENS = 64
"""Tokens from the start of the validation split that a text sample goes on from."""
OVERFLOWS_ALLOWED = 30
"""Overflows in a row at which a run in fp16 ends: a scale of 65536, halved as often, is no cause any more."""


class NonFiniteError(RuntimeError):
    """A loss or gradient was not finite and the run ends; weights and checkpoints are as they were before that step."""


def train(config: Config) -> TrainResult:
    """Train the model of `config`, going on from the newest checkpoint in `run.dir` where there is one.

    With several processes each calls this with the same config. Writes metrics.jsonl (a line a step), samples.txt,
    checkpoints, config.yaml, environment.json and, when all is done, result.json; returns at once where that was done
    before. Raises ConfigError, CheckpointError and DataError where the run cannot begin or go on, NonFiniteError, and
    Preempted once it has stopped and saved after a signal.
    """
    if config.run.resume != "never" and is_finished(config):
        return finished_before(config)
    runtime = Runtime.create(config)
    journal, trackers = Journal(Path(config.run.dir), config.train, active=runtime.is_main), Trackers(config, runtime)
    with locked(Path(config.run.dir), active=runtime.is_main), journal, Signals() as signals, trackers:
        run, state = begin(config, runtime, journal)
        trackers.begin()
        config = run.config
        model, optimizer, streams = run.model, run.optimizer, run.streams
        started = time.monotonic() - state.elapsed_seconds
        signals.arm()
        model.train()

        while state.step < config.train.max_steps:
            step, began = state.step + 1, time.monotonic()
            rate = learning_rate(step, config.optim, config.train.max_steps)
            set_learning_rate(optimizer, rate)
            streams.tgt_len = segment_length(step, config)

            # Forward and backward: rows are split into micro-batches, each with its own memory. The loss of a step is
            # the sum of nats over micro-batches and processes, divided once by all their targets; DDP averages, hence
            # `world`.
            batch = next(streams)
            parts = micro_batches(batch, config.train)
            counts = [count_targets([batch]), count_targets(parts), count_bytes(parts, run.corpus.train)]
            n_tokens, n_targets, n_bytes = (int(number) for number in runtime.sum(torch.tensor(counts)))
            nats, memory = torch.zeros((), device=runtime.device), []
            for index, (part, before) in enumerate(zip(parts, state.memory, strict=True)):
                inputs, targets, resets = on_device(part, runtime)
                with runtime.gradients_of(model, exchanged=index == len(parts) - 1):
                    with runtime.autocast():
                        out = model(inputs, memory=before, targets=targets, resets=resets)
                    runtime.backward(out.nll.sum() * (runtime.world / n_targets))
                nats += out.nll.detach().sum()
                memory.append(out.memory)
            nll = float(runtime.sum(nats)) / n_targets
            norm = runtime.clip(model, config.optim.clip)

            # The step, unless a number in any process is not finite: then weights, moments and memory stay as they are.
            finite = math.isfinite(nll) and (math.isfinite(norm) or runtime.scales_gradients)
            broken = runtime.any(not finite)
            if broken:
                runtime.discard(optimizer)
                state = replace(state, skipped=state.skipped + 1, skipped_in_a_row=state.skipped_in_a_row + 1)
            else:
                updated = runtime.step(optimizer)
                optimizer.zero_grad(set_to_none=True)
                if updated and config.optim.ema_decay:
                    average_weights(run.bare.parameters(), optimizer, average_decay(step, config.optim))
                in_a_row = 0 if updated else state.skipped_in_a_row + 1
                state = replace(
                    state, memory=tuple(memory), skipped=state.skipped + (not updated), skipped_in_a_row=in_a_row
                )
            elapsed, tokens_per_second = time.monotonic() - started, n_tokens / (time.monotonic() - began)
            state = replace(
                state, step=step, tokens=state.tokens + n_tokens, position=streams.position(), elapsed_seconds=elapsed
            )
            record = {
                "step": step,
                "epoch": state.tokens / run.corpus.train.tokens,
                "nll": finite_or_none(nll),
                "bits": finite_or_none(nll / math.log(2)),
                "bits_per_byte": finite_or_none(nll * n_targets / math.log(2) / (n_bytes or math.nan)),
                "grad_norm": finite_or_none(norm),
                "lr": rate,
                "tokens": state.tokens,
                "tokens_per_second": tokens_per_second,
                "mfu": run.speed.share(tokens_per_second, run.flops[streams.tgt_len], world=runtime.world),
                "skipped": state.skipped,
                "memory_bytes": state.memory_bytes,
                "peak_bytes": peak_bytes(runtime.device),
                "elapsed_seconds": elapsed,
            }
            if state.skipped_in_a_row >= (skips_allowed(config.train) if broken else OVERFLOWS_ALLOWED):
                journal.step(record)
                raise NonFiniteError(_not_finite(run, state, nll, norm))

            # What is due. A signal is answered here, by all processes at the same step.
            signum = runtime.max(signals.received)
            last, improved = step == config.train.max_steps, False
            if last or due(step, config.train.eval_every):
                valid = validate(run, tokens=config.train.eval_tokens, progress=journal.validating)
                record.update(valid)
                improved = is_better(valid["valid_nll"], than=state.best_nll)
            if improved:
                state = replace(state, best_nll=valid["valid_nll"], best_step=step)
            journal.step(record)
            trackers.log(record)
            if last or due(step, config.train.sample_every):
                journal.sample(step, *sample(run, step))
            if last or improved or signum or due(step, config.train.save_every):
                save_state(run, state)
            if signum:
                raise Preempted(signum, _go_on(run, signum))

        # The whole validation split (or eval.max_tokens of it), now that everything is safe on the disk.
        valid = validate(
            run, tokens=config.eval.max_tokens, progress=lambda done, total: watch(run, signals, done, total)
        )
        return finish(run, state, valid)


def micro_batches(batch: SegmentBatch, config: TrainConfig) -> list[SegmentBatch]:
    """The batch as `accumulate` batches of rows; under loss half the first half of every segment is no target.

    T = 5: the targets . . 7 8 9 are left of 5 6 7 8 9, where . is -100.
    """
    targets = batch.targets
    if config.loss == "half":
        targets = targets.clone()
        targets[:, : targets.shape[1] // 2] = -100
    tensors = (batch.inputs, targets, batch.resets)
    return [SegmentBatch(*rows) for rows in zip(*(tensor.chunk(config.accumulate) for tensor in tensors), strict=True)]


def count_targets(batches: Sequence[SegmentBatch]) -> int:
    """Targets that are scored."""
    return sum(int((batch.targets != -100).sum()) for batch in batches)


def count_bytes(batches: Sequence[SegmentBatch], split: Split) -> int:
    """Bytes of text that the scored targets stand for; their share of the split's where ids alone do not say it."""
    if not split.bytes_exact:
        return round(count_targets(batches) * split.bytes / split.tokens)
    targets = (batch.targets[batch.targets != -100].numpy() for batch in batches)
    return sum(int(split.byte_lengths[ids].sum()) for ids in targets)


def on_device(batch: SegmentBatch, runtime: Runtime) -> tuple[Tensor, Tensor, Tensor | None]:
    """Inputs, targets and resets where the model is; None where no document begins, which spares the model a mask."""
    resets = batch.resets.to(runtime.device) if batch.resets.any() else None
    return batch.inputs.to(runtime.device), batch.targets.to(runtime.device), resets


def due(step: int, every: int) -> bool:
    """Whether something done every so many steps is due after this one; 0 is never."""
    return every > 0 and step % every == 0


def skips_allowed(config: TrainConfig) -> float:
    """Skipped steps in a row at which the run ends."""
    return 1 if config.non_finite == "raise" else config.max_skipped


def is_better(nll: float | None, *, than: float | None) -> bool:
    """Whether a validation is the best so far; one that is not a finite number never is."""
    return nll is not None and (than is None or nll < than)


def finite_or_none(number: float) -> float | None:
    """The number, or None for what JSON cannot write: a gap in the log, never a substitute."""
    return number if math.isfinite(number) else None


def validate(run: Run, *, tokens: int | None, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Losses on the first `tokens` tokens of the validation split (None: on all), each process scoring its share.

    The window is the model's own. Changes nothing of training: neither generators, nor memory, nor the modules' modes.
    """
    split, runtime = run.corpus.valid, run.runtime
    scored = min(tokens or split.tokens, split.tokens - 1)
    first, stop = (scored * rank // runtime.world for rank in (runtime.rank, runtime.rank + 1))
    nats, model = 0.0, run.whole_model()
    if first < stop:
        ids, resets = split.ids[: scored + 1], None
        if run.config.data.reset_memory:
            starts = np.asarray(split.document_starts)
            resets = np.zeros(scored + 1, dtype=bool)
            resets[starts[starts <= scored]] = True
        batch_size = run.config.eval.batch_size
        with undisturbed(), averaged(run.bare.parameters(), run.optimizer), runtime.autocast():
            nats = one_pass(model, ids, None, batch_size, resets, span=(first, stop), progress=progress).nats
    nats = float(runtime.sum(torch.tensor(nats, dtype=torch.float64)))
    text_bytes = split.scored_bytes(1, scored + 1) or math.nan  # nothing but separators
    return {
        "valid_nll": finite_or_none(nats / scored),
        "valid_bits": finite_or_none(nats / scored / math.log(2)),
        "valid_bits_per_byte": finite_or_none(nats / math.log(2) / text_bytes),
        "valid_tokens": scored,
    }


def sample(run: Run, step: int) -> tuple[str, str]:
    """The beginning of the validation split, and what the model writes after it, seeded by the step; nothing but for
    the main process."""
    model = run.whole_model()
    if not run.runtime.is_main:
        return "", ""
    prompt = [int(token) for token in run.corpus.valid.ids[:PROMPT_TOKENS]]
    with undisturbed(), averaged(run.bare.parameters(), run.optimizer):
        session = Session(model)
        session.feed(torch.tensor([prompt]))
        drawn = session.generate(run.config.train.sample_tokens, seed=run.config.run.seed + step)
        written = [int(ids[0]) for ids in drawn]
    decode = run.corpus.tokenizer.decode
    return decode(prompt), decode(written)


def watch(run: Run, signals: Signals, done: int, total: int) -> None:
    """Progress of the last evaluation; all is saved, so a signal may end it at once."""
    run.journal.validating(done, total)
    if signals.received:
        raise Preempted(signals.received, _go_on(run, signals.received))


def _go_on(run: Run, signum: int) -> str:
    """The sentence that ends a run which was asked to stop."""
    return (
        f"{run.dir}: stopped by {signal.Signals(signum).name} and saved. The same command goes on from there; so does: "
        f"txl train {shlex.quote(str(run.dir / 'config.yaml'))}"
    )


def _not_finite(run: Run, state: TrainState, nll: float, norm: float) -> str:
    """The sentence that ends a run whose numbers broke down."""
    last = next(iter(checkpoints(run.dir)), None)
    where = "There is no checkpoint yet: from the start" if last is None else f"Last checkpoint: {last}. From it"
    return (
        f"step {state.step}: the loss is {nll}, the gradient's norm {norm} ({state.skipped_in_a_row} such in a row); "
        f"the weights are as before. {where} train.non_finite=skip passes over a few bad steps; a run that breaks down "
        "for good wants a new run.dir and a lower optim.lr, more warm-up or runtime.precision=fp32"
    )
