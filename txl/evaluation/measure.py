"""One trained run measured once: a bundle and a corpus -> a `Measurement` that says all a report needs, also as JSON.

Every number in it carries what it depends on: text, tokens, window, dtype, step, versions. Knows nothing of folders,
command lines or pictures.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from txl.config import Config, EvalConfig
from txl.environment import environment
from txl.evaluation.context import Point, Reading, readings
from txl.evaluation.fresh import Text
from txl.evaluation.kept import Kept
from txl.evaluation.learning import Learning, learning_of, step_seconds_of
from txl.evaluation.payoff import Group, classes
from txl.evaluation.payoff import split as split_losses
from txl.evaluation.perplexity import Progress, Settings
from txl.evaluation.scoring import Array
from txl.evaluation.speed import Speed, speeds
from txl.model import Model

if TYPE_CHECKING:
    from txl.data import Corpus, Split, Tokenizer

Report = Callable[[str, int, int | None], None]
"""report(what, done, total)."""

COUNTED_TOKENS = 1 << 22
"""Tokens counted at a time."""


class Trained(Protocol):
    """A trained model with what is needed to use it, as `txl.load` gives it."""

    @property
    def model(self) -> Model: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def config(self) -> Config: ...
    @property
    def step(self) -> int: ...


@dataclass(frozen=True)
class Measurement:
    """What is known of one run.

    name: last part of run.dir.  config: the whole config as plain data.
    corpus_hash: of training and scored text together.  split, text_hash, tokenizer_hash, text_tokens, unknowns: the
    text scored.
    incomparable: why its bits a byte must not be compared with those of other tokenizers, or "".
    points: losses by context, the headline first.  groups: the loss at the run's own context by class of target.
    speeds: tokens a second by context.
    step_seconds: median, 10 % and 90 % quantile of a training step; None where no log was given.
    sample: text the model wrote.  environment: versions and machine.
    """

    name: str
    arch: str
    parameters: int
    step: int
    config: Mapping[str, Any]
    split: str
    corpus_hash: str
    text_hash: str
    tokenizer_hash: str
    vocab_size: int
    text_tokens: int
    unknowns: int
    incomparable: str
    points: tuple[Point, ...]
    groups: tuple[Group, ...]
    speeds: tuple[Speed, ...]
    learning: tuple[Learning, ...]
    step_seconds: tuple[float, float, float] | None
    sample: str
    environment: Mapping[str, Any]

    @property
    def headline(self) -> Point:
        """All N - 1 targets at the window asked for."""
        return self.points[0]

    @property
    def trained_tokens(self) -> int:
        """Tokens of text the model was trained on up to its checkpoint, repeats counted; 0 where no log was given."""
        seen = (pair for curve in self.learning for pair in zip(curve.steps, curve.tokens, strict=True))
        return max((tokens for step, tokens in seen if step <= self.step), default=0)

    @property
    def text(self) -> tuple[Any, ...]:
        """What two runs must share for their points to be about the same tokens."""
        sampled = next((point.tokens for point in self.points if point.targets == "sample"), 0)
        return (self.split, self.text_hash, self.tokenizer_hash, self.text_tokens, sampled)

    def to_record(self) -> dict[str, Any]:
        """Plain data that `from_record` turns back into an equal measurement; None for a number that is not finite."""
        return dict(_finite(dataclasses.asdict(self)))

    def to_json(self) -> str:
        """The same as JSON, which `from_json` reads back."""
        return json.dumps(self.to_record(), indent=1, allow_nan=False, ensure_ascii=False)

    @staticmethod
    def from_record(record: dict[str, Any]) -> Measurement:
        """The measurement that `to_record` made plain."""
        return _measurement(record)

    @staticmethod
    def from_json(text: str) -> Measurement:
        """The measurement that `to_json` wrote."""
        return Measurement.from_record(json.loads(text))


def measure(
    bundle: Trained,
    corpus: Corpus,
    config: EvalConfig,
    report: Report | None = None,
    *,
    split: str = "test",
    kind: str | None = None,
    stride: int | None = None,
    kept: Kept | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    sample: str = "",
    timed: bool = True,
) -> Measurement:
    """Score a split of the corpus at every context, time the model, and add what is known of the run.

    kind, stride, kept: see `context.readings`.
    history: the records of the run's metrics.jsonl.  sample: text the model wrote.  timed: whether to measure speed.
    report(what, done, total): tokens fed while scoring, points while timing.
    Raises ValueError where the corpus was not encoded with the bundle's tokenizer or the split is too short to score.
    """
    model, tokenizer = bundle.model, bundle.tokenizer
    if corpus.tokenizer.hash != tokenizer.hash:
        raise ValueError(
            f"{bundle.config.run.dir} was trained with tokenizer {tokenizer.hash[:12]}, the corpus was prepared with "
            f"{corpus.tokenizer.hash[:12]}: prepare the text with the run's own tokenizer"
        )
    part: Split = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}[split]
    name = Path(bundle.config.run.dir).name
    text = _text(part, tokenizer, config.max_tokens, resets=bundle.config.data.reset_memory)
    questions = classes(text, tgt_len=model.config.tgt_len, train_counts=_counts(corpus.train, tokenizer))
    points: list[Point] = []
    groups: list[Group] = []
    for reading in readings(
        model,
        text,
        config.contexts,
        kind=kind,
        stride=stride,
        window=config.window,
        ladder=ladder_of(config),
        sample_targets=config.sample_targets,
        batch_size=config.batch_size,
        kept=kept,
        progress=_named(report, f"scoring {name}"),
    ):
        points.append(reading.point(text))
        if _is_split(reading, points[0]):
            groups += split_losses(reading, text, questions)
    rates: tuple[Speed, ...] = ()
    if timed:
        contexts = sorted({*config.contexts, *(p.context for p in points[:1] if p.context is not None)})
        rates = speeds(model, contexts, batch_size=config.batch_size, progress=_named(report, f"timing {name}"))
    unknowns = 0 if tokenizer.unknown_id is None else int(np.count_nonzero(text.ids[1:] == tokenizer.unknown_id))
    return Measurement(
        name=name,
        arch=model.config.arch,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        step=bundle.step,
        config=_finite(dataclasses.asdict(bundle.config)),
        split=split,
        corpus_hash=corpus.fingerprint,
        text_hash=corpus.text_hash(split),
        tokenizer_hash=tokenizer.hash,
        vocab_size=tokenizer.vocab_size,
        text_tokens=len(text.ids),
        unknowns=unknowns,
        incomparable=_incomparable(tokenizer, unknowns),
        points=tuple(points),
        groups=tuple(groups),
        speeds=rates,
        learning=learning_of(history, corpus),
        step_seconds=step_seconds_of(history),
        sample=sample,
        environment=environment(),
    )


def ladder_of(config: EvalConfig) -> list[int]:
    """The contexts of the relative effective context length; none where it is not asked for."""
    step, longest = config.recl_step, max(config.contexts, default=0)
    return [] if step is None or longest < 2 * step else list(range(step, longest + 1, step))


def _text(part: Split, tokenizer: Tokenizer, max_tokens: int | None, *, resets: bool) -> Text:
    """The scored beginning of a split, with the bytes of each id: exact, or pro rata for a lossy tokenizer."""
    ids = np.asarray(part.ids[:max_tokens])
    if len(ids) < 2:
        raise ValueError(f"the {part.name} split has {len(ids)} token(s); scoring needs at least 2")
    lengths = (
        tokenizer.byte_lengths() if tokenizer.lossless else np.full(tokenizer.vocab_size, part.bytes / part.tokens)
    )
    flags = None
    if resets:
        flags = np.zeros(len(ids), dtype=bool)
        flags[part.document_starts[part.document_starts < len(ids)]] = True
    starts = part.document_starts[part.document_starts < len(ids)]
    return Text(ids, np.asarray(lengths, dtype=np.float64), flags, starts)


def _is_split(reading: Reading, headline: Point) -> bool:
    """Whether a reading's loss is split by class: the headline's, and the sample at the same context."""
    kinds = (headline.settings.kind, "slide")
    return reading.context == headline.context and reading.settings.kind in kinds


def _counts(part: Split, tokenizer: Tokenizer) -> Array:
    """How often each id stands in a split, int64 V."""
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for at in range(0, part.tokens, COUNTED_TOKENS):
        counts += np.bincount(part.ids[at : at + COUNTED_TOKENS], minlength=len(counts))
    return counts


def _incomparable(tokenizer: Tokenizer, unknowns: int) -> str:
    """Why bits a byte of this tokenizer mean something else than those of another one; "" where they do not."""
    reasons = (
        [] if tokenizer.lossless else ["the tokenizer does not keep all of the text, so bytes are counted pro rata"]
    )
    if unknowns:
        reasons.append(f"{unknowns:,} of the scored tokens are <unk>")
    return "; ".join(reasons)


def _named(report: Report | None, what: str) -> Progress | None:
    """A report about one piece of work."""
    return None if report is None else lambda done, total: report(what, done, total)


def _finite(value: Any) -> Any:
    """The same plain data with None for every number that is not finite and lists for tuples."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _measurement(record: dict[str, Any]) -> Measurement:
    """Plain data -> the nested records; a loss that was null is NaN."""
    points = tuple(_point(point) for point in record["points"])
    groups = tuple(Group(group["by"], group["label"], _point(group["point"])) for group in record["groups"])
    series = ("steps", "tokens", "seconds", "nll")
    learning = tuple(
        Learning(**{**curve, **{key: tuple(curve[key]) for key in series}}) for curve in record["learning"]
    )
    step_seconds = None if record["step_seconds"] is None else tuple(record["step_seconds"])
    timed = tuple(Speed(**speed) for speed in record["speeds"])
    return Measurement(
        **{
            **record,
            "points": points,
            "groups": groups,
            "speeds": timed,
            "learning": learning,
            "step_seconds": step_seconds,
        }
    )


def _point(point: dict[str, Any]) -> Point:
    """A point of a record; a loss that was null is NaN."""
    return Point(
        **{
            **point,
            "nats": math.nan if point["nats"] is None else point["nats"],
            "stretch_nats": tuple(math.nan if nats is None else nats for nats in point["stretch_nats"]),
            "stretch_tokens": tuple(point["stretch_tokens"]),
            "settings": Settings(**point["settings"]),
        }
    )
