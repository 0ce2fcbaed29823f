"""Everything but the training: a config in, what a run of it would be out, or the reason why it cannot run.

Prepares the text, checks the tokenizer and the streams on it, takes a few steps with the real model and throws them
away. Nothing is written but the prepared corpus. Knows nothing of the command line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from txl.config import Config
from txl.data import Corpus, DataError, SegmentBatch, prepare
from txl.model import Model, build_model
from txl.runtime import Runtime, seed_everything
from txl.train.begin import check_rows, with_cutoffs
from txl.train.mock import MockStep, Report, mock_step
from txl.train.plan import Plan, check_partition, plan, training_streams
from txl.train.schedules import mean_segment_length
from txl.train.start import find_start, take_weights, taking_over

ROUND_TRIP_TOKENS = 20_000
"""Tokens of each split that are decoded, encoded and decoded again."""
SHOWN_TOKENS = 48
"""Tokens of the first stream that are shown as text, cut at `SHOWN_CHARACTERS`."""
SHOWN_CHARACTERS = 60
PARTS = {
    ("_norm.",): "norms",
    ("embedding.", "position_table"): "embedding",
    ("attention.", "biases.bias_"): "attention",
    ("feed_forward.",): "feed-forward",
    ("head.",): "softmax",
    ("layers.",): "recurrence",
}
"""What a parameter is for, by the first of these words that its name has."""
HIGH_UNKNOWN_SHARE = 0.01
"""Share of unknown symbols above which something is probably wrong."""


@dataclass(frozen=True)
class Validation:
    """What a run would be.

    first_text: how the first stream begins.  round_trip: what encoding and decoding do to text, in words.  warnings:
    what deserves a look.  parameters: by part of the model.  reach_tokens: how far back a token can matter, None for
    no bound.  world: processes it was asked for.  partition: how streams are shared out to them, in words.
    """

    config: Config
    corpus: Corpus
    place: str
    first_text: str
    round_trip: str
    warnings: tuple[str, ...]
    parameters: dict[str, int]
    steps_an_epoch: int
    reach_tokens: int | None
    step: MockStep
    world: int
    partition: str

    def facts(self) -> list[tuple[str, str]]:
        """Name and value, in words, of everything found."""
        step, steps, vocab_size = self.step, self.config.train.max_steps, self.corpus.tokenizer.vocab_size
        parts = ", ".join(f"{name} {count:,}" for name, count in self.parameters.items())
        sizes = self.sizes()
        seconds = step.seconds * steps
        in_all = f"{seconds / 60:,.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
        epochs = steps / self.steps_an_epoch * mean_segment_length(self.config) / self.config.model.tgt_len
        millions = (f"{flops / 1e6:,.2f}" for flops in (step.trained_flops, step.scored_flops, step.streamed_flops))
        return [
            ("text begins", repr(self.first_text)),
            ("round trip", self.round_trip),
            ("parameters", f"{sum(self.parameters.values()):,} ({parts})"),
            ("reach", "unbounded" if self.reach_tokens is None else f"{self.reach_tokens:,} tokens back"),
            ("first loss", f"{step.first_nll:.3f} nats a token; a uniform guess has {math.log(vocab_size):.3f}"),
            ("streams", self.partition),
            ("steps", f"{steps:,}, an epoch has {self.steps_an_epoch:,}: {epochs:.2f} epochs"),
            ("work a token", "{} million FLOPs trained, {} scored, {} streamed".format(*millions)),
            (
                "time",
                f"{step.seconds:.3f} s a step here ({self.place}), about {in_all} in all",
            ),
            (
                "bytes",
                f"{sum(sizes.values()) / 1e6:,.1f} MB a process: "
                + ", ".join(f"{name} {size / 1e6:,.1f}" for name, size in sizes.items()),
            ),
            *(self.plan().facts() if self.world > 1 else ()),
        ]

    def plan(self) -> Plan:
        """The arithmetic of a step on all processes."""
        return plan(self.config, n_parameters=sum(self.parameters.values()), world=self.world)

    def sizes(self) -> dict[str, int]:
        """Bytes of one process, by what they hold."""
        step = self.step
        parts = self.world if self.config.runtime.shard == "full" else 1
        return {
            "weights": math.ceil(step.weight_bytes / parts),
            "gradients": math.ceil(step.gradient_bytes / parts),
            "optimizer": math.ceil(step.optimizer_bytes / parts),
            "memory": step.memory_bytes,
            "activations": step.activation_bytes,
        }


def validate(config: Config, *, world: int | None = None, report: Report | None = None) -> Validation:
    """Check a config against its data and its model, and say what a run would cost.

    world: processes it would run on; None for those there are. One process takes the steps of one of them.
    Raises ConfigError or DataError for what cannot run, FloatingPointError where the first steps are not finite.
    """
    runtime = Runtime.create(config)
    world = runtime.world if world is None else world
    check_rows(config, world=world)
    start = find_start(config)
    config = taking_over(config, start)
    corpus = prepare(config, report=report)
    config = with_cutoffs(config, corpus)
    tokenizer = corpus.tokenizer
    round_trip = check_round_trip(corpus)
    streams = training_streams(corpus, config)
    steps_an_epoch = len(streams)  # before a short epoch is over: the next may be another length
    first = next(streams)
    check_targets(first, next(streams))
    seed_everything(config.run.seed)
    model = build_model(config.model, tokenizer.vocab_size)
    if start is not None:
        take_weights(model, start, config, tokenizer)
    return Validation(
        config=config,
        corpus=corpus,
        place=str(runtime),
        first_text=tokenizer.decode(first.inputs[0, :SHOWN_TOKENS].tolist())[:SHOWN_CHARACTERS],
        round_trip=round_trip,
        warnings=unknown_warnings(corpus),
        parameters=parameters_by_part(model),
        steps_an_epoch=steps_an_epoch,
        reach_tokens=model.reach(model.default_window),
        step=mock_step(config, runtime, model, first, world=world, report=report),
        world=world,
        partition=check_partition(corpus, config, world=world),
    )


def check_round_trip(corpus: Corpus) -> str:
    """What becomes of text that is encoded and decoded, in words.

    Raises DataError where a tokenizer that says it loses nothing changes a text.
    """
    tokenizer, tokens, changed = corpus.tokenizer, 0, []
    for split in (corpus.train, corpus.valid, corpus.test):
        ids = [int(token) for token in split.ids[:ROUND_TRIP_TOKENS]]
        tokens += len(ids)
        text = tokenizer.decode(ids)
        back = tokenizer.decode(tokenizer.encode(text))
        if back != text:
            changed.append(f"{split.name} split: {_first_change(text, back)}")
    if changed and tokenizer.lossless:
        raise DataError(
            f"tokenizer: encoding and decoding changed text though nothing should get lost; {'; '.join(changed)}"
        )
    if changed:
        return f"not exact, as this tokenizer is: {changed[0]}"
    return f"exact on {tokens:,} tokens" + ("" if tokenizer.lossless else " (of text as the tokenizer writes it)")


def unknown_warnings(corpus: Corpus) -> tuple[str, ...]:
    """A sentence for each split that has many unknown symbols."""
    return tuple(
        f"{part.unknowns / part.tokens:.1%} of the {part.name} split are unknown symbols: was the vocabulary made from "
        "such text, and is it large enough (tokenizer.max_size, tokenizer.min_count)?"
        for part in (corpus.train, corpus.valid, corpus.test)
        if part.unknowns > HIGH_UNKNOWN_SHARE * part.tokens
    )


def check_targets(first: SegmentBatch, second: SegmentBatch) -> None:
    """Raise DataError unless each target is the input that comes next, inside a segment and from one to the next.

    A row that ends early is filled up with inputs that are nothing, whose targets are ignored.
    """
    ignored, over = first.targets == -100, second.targets[:, 0] == -100
    fits = (first.targets[:, :-1] == first.inputs[:, 1:]) | ignored[:, :-1] | ignored[:, 1:]
    goes_on = (first.targets[:, -1] == second.inputs[:, 0]) | ignored[:, -1] | over | second.resets[:, 0]
    if not (bool(fits.all()) and bool(goes_on.all())):
        raise DataError("streams: a target is not the token after its input; remove the prepared corpus and try again")


def parameters_by_part(model: Model) -> dict[str, int]:
    """Parameters by what they are for; what a tied softmax shares is counted with the embedding."""
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        part = next(part for words, part in PARTS.items() if any(word in name for word in words))
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


def _first_change(text: str, back: str) -> str:
    """Where two texts part, with some of both."""
    at = next((i for i, (a, b) in enumerate(zip(text, back, strict=False)) if a != b), min(len(text), len(back)))
    return f"character {at:,}, {text[at : at + 20]!r} became {back[at : at + 20]!r}"
