"""The verb that scores text as it comes: files and endless pipes to JSON lines or TSV, with a state to go on from.

What is scored, and how, is `txl.infer.score`; here are names, formats, the state's file and the ways to end.
"""

from __future__ import annotations

import heapq
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from txl.config import ConfigError
from txl.verbs.checked import arguments_checked, files_and_settings, go_on_from
from txl.verbs.reading import Source, check_readable, opened

if TYPE_CHECKING:
    from txl.infer.score import Scored, Scorer
    from txl.infer.spans import Cutter, Span, Unit
    from txl.terminal import Report
    from txl.train.signals import Signals

SAVE_SECONDS = 30.0
"""Between two writes of the state while the work goes on."""


def score(
    run: Path,
    checkpoint: str,
    window: int | None,
    words: Sequence[str],
    unit: Unit,
    as_format: str,
    above: float | None,
    top: int | None,
    isolate: bool,
    state: Path | None,
) -> None:
    """Print the surprisal of each token, line, sentence or document of text, as it comes."""
    files, overrides = files_and_settings(words)
    total = _checked(files, unit, above, top, isolate, state)
    from txl.infer import Session
    from txl.infer.score import Scorer
    from txl.terminal import progress
    from txl.train.compare import loaded
    from txl.train.signals import Preempted, Signals

    bundle = loaded(run, checkpoint, overrides)
    with arguments_checked("window"):
        scorer = Scorer(Session(bundle.model, window=window), bundle.tokenizer, unit=unit, isolate=isolate)
    if scorer.session.recomputes:
        anew = f"each token's window of {scorer.session.window} is computed anew"
        print(f"{run}: positions are absolute, so nothing can be cached and {anew}", file=sys.stderr)
    output = Output(sys.stdout, as_format, above, top)  # before the progress bar takes sys.stdout
    job = Job(files, scorer, output, state, bundle.config.data.document_pattern)
    with Signals() as signals:
        signals.arm()
        with nullcontext(None) if sys.stdout.isatty() and top is None else progress() as report:
            job.work(signals, report, total)
        output.finish()
    print(summary(scorer), file=sys.stderr)
    if signals.received:
        raise Preempted(signals.received, job.how_to_go_on())


@dataclass
class Output:
    """Writes what is scored, each record on a line, flushed with the block it belongs to.

    above: only records of more bits a token. top: only that many, those of most bits a token, at the end.
    """

    stream: TextIO
    as_format: str
    above: float | None
    top: int | None
    _best: list[tuple[float, int, str]] = field(default_factory=list)
    _count: int = 0

    def write(self, name: str, records: Sequence[Scored]) -> None:
        """Write records of a file."""
        for record in records:
            bits = record.sums.bits_per_token
            if self.above is not None and (bits is None or bits <= self.above):
                continue
            if self.top is None:
                self.stream.write(self._line(name, record))
            elif bits is not None:
                self._count += 1
                keep = heapq.heappushpop if len(self._best) >= self.top else heapq.heappush
                keep(self._best, (bits, -self._count, self._line(name, record)))
        if records and self.top is None:
            self.stream.flush()

    def finish(self) -> None:
        """Write those of most bits, the first one first."""
        for _, _, line in sorted(self._best, reverse=True):
            self.stream.write(line)
        self.stream.flush()

    def _line(self, name: str, record: Scored) -> str:
        from txl.terminal import printable

        line = json_line(name, record) if self.as_format == "json" else tsv_line(name, record)
        return (printable(line) if self.stream.isatty() else line) + "\n"


def json_line(name: str, record: Scored) -> str:
    """A record as a JSON object; bits are null where nothing comes before the text."""
    sums, bits = record.sums, {}
    if record.token is None:
        bits = {"tokens": sums.tokens, "bits": sums.bits, "bits_per_token": sums.bits_per_token}
        bits["bits_per_byte"] = sums.bits_per_byte
    else:
        bits = {"token": record.token, "bits": sums.bits}
    rounded = {key: round(value, 4) if isinstance(value, float) else value for key, value in bits.items()}
    place = {"file": name, "line": record.line, "offset": record.offset, "bytes": record.size}
    return json.dumps({**place, **rounded, "text": record.text}, ensure_ascii=False)


def tsv_line(name: str, record: Scored) -> str:
    """A record as columns: bits a token, a byte and in all, tokens, file, line, offset, bytes, text.

    nan where there is no number; a backslash, tab or line end in a text is written \\\\, \\t, \\n or \\r.
    """
    sums = record.sums
    numbers = (
        "nan" if value is None else f"{value:.4f}" for value in (sums.bits_per_token, sums.bits_per_byte, sums.bits)
    )
    place = ("nan" if value is None else str(value) for value in (record.line, record.offset, record.size))
    text = record.text
    for mark, written in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(mark, written)
    return "\t".join([*numbers, str(sums.tokens), name, *place, text])


@dataclass
class Job:
    """Files to score one after the other, and where the work stands."""

    files: Sequence[str]
    scorer: Scorer
    output: Output
    state: Path | None
    document_pattern: str | None
    index: int = 0
    place: dict[str, Any] = field(default_factory=dict)
    before: str | None = None
    """What `Source.digest_before` the place says; None where nothing is known."""
    _saved: float = field(default_factory=time.monotonic)

    def work(self, signals: Signals, report: Report | None, total: int) -> None:
        """Go on from the state if there is one; score until the end or a signal; save."""
        if self.state is not None and self.state.exists():
            self._load(self.state)
        self._save()  # a place that cannot be written to is known before the work, not after it
        before = check_readable(self.files[: self.index])
        for index in range(self.index, len(self.files)):
            if index > self.index:
                self.output.write(self.files[self.index], self.scorer.end())
                self.index, self.place, self.before = index, {}, None
            with opened(self.files[index]) as source:
                for spans, cutter in self._blocks(source, signals):
                    self.output.write(source.name, self.scorer.score(spans))
                    self.place = cutter.state()
                    self._save_when_due(source)
                    if report is not None:
                        note = f"perplexity {self.scorer.totals.perplexity:.3f}"
                        report("scoring", before + cutter.place.offset, total or None, note)
                    if signals.received:
                        break
                self.before = source.digest_before(self.place.get("offset", 0))
                before += source.size
            if signals.received:
                break
        self._save()
        self.output.write(self.files[self.index], self.scorer.end())

    def how_to_go_on(self) -> str:
        """What to do after the work was stopped."""
        name, offset = self.files[self.index], self.place.get("offset", 0)
        where = f"stopped after byte {offset:,} of {'standard input' if name == '-' else name}"
        if self.state is None:
            return f"{where}; with --state FILE such a job can go on"
        if name == "-":
            return f"{where}; {self.state} is saved: the same command goes on with what tail -c +{offset + 1} gives"
        return f"{where}; {self.state} is saved: the same command goes on"

    def _blocks(self, source: Source, signals: Signals) -> Iterator[tuple[list[Span], Cutter]]:
        """The blocks of a source from where the work stands."""
        from txl.infer.spans import Cutter, Place

        place = Place(**self.place)
        if not source.endless and place.offset > source.size:
            found = f"has {source.size:,} bytes, and byte {place.offset:,} of it was scored"
            raise ConfigError([f"{source.name}: {found}: another file? Remove {self.state} to begin anew"])
        if self.before not in (None, source.digest_before(place.offset)):
            found = f"what was scored, up to byte {place.offset:,}, is not what stands there now"
            raise ConfigError([f"{source.name}: {found}: another text? Remove {self.state} to begin anew"])
        source.go_to(place.offset)
        cutter = Cutter(self.scorer.unit, self.document_pattern, place)
        for raw in source.portions(signals):
            cutter.push(raw)
            for spans in cutter.blocks(eager=source.endless):
                yield spans, cutter
        if not signals.received:
            for spans in cutter.finish():
                yield spans, cutter

    def _settings(self) -> dict[str, Any]:
        """What a state must have been made with to be gone on from."""
        return {
            "unit": self.scorer.unit,
            "isolate": self.scorer.isolate,
            "data.document_pattern": self.document_pattern,
        }

    def _save_when_due(self, source: Source) -> None:
        if time.monotonic() - self._saved > SAVE_SECONDS:
            self.before = source.digest_before(self.place["offset"])
            self._save()

    def _save(self) -> None:
        """Write all that the work needs to go on, if there is a file for it."""
        from txl.checkpoint import save_stream

        self._saved = time.monotonic()
        if self.state is not None:
            done = list(self.files[: self.index + 1])
            place = {"place": self.place, "before": self.before}
            record = {"settings": self._settings(), "files": done, **place, "score": self.scorer.state()}
            save_stream(self.state, self.scorer.session.state_dict(), record)

    def _load(self, path: Path) -> None:
        """Go on from a state. Raises ConfigError where it belongs to another job."""
        from txl.checkpoint import read_stream

        tensors, record = read_stream(path)
        settings, done = record.get("settings"), list(record.get("files", ()))
        if settings != self._settings():
            raise ConfigError([f"--state {path}: found {settings}, asked for {self._settings()}; use another FILE"])
        if done != list(self.files[: len(done)]):
            raise ConfigError([f"--state {path}: scored {', '.join(done)}; found {', '.join(self.files)}"])
        go_on_from(self.scorer.session, tensors, path)
        self.scorer.load_state(record["score"])
        self.index, self.place, self.before = len(done) - 1, record["place"], record.get("before")


def summary(scorer: Scorer) -> str:
    """The sums of all that was scored, and what makes them less than exact."""
    sums, window = scorer.totals, scorer.session.window
    if not sums.tokens:
        return "nothing was scored: the first token of a text has none before it"
    said = (
        f"{sums.tokens:,} tokens, {sums.nats:,.2f} nats: {sums.bits_per_token:.4f} bits a token, perplexity "
        f"{sums.perplexity:.3f}"
    )
    if sums.bits_per_byte is not None:
        said += f", {sums.bits_per_byte:.4f} bits per byte"
    said += "" if window is None else f"; window {window}"
    if sums.unknowns:
        said += f"; {sums.unknowns:,} tokens unknown to the vocabulary, so that bits do not compare with other models'"
    if sums.replaced:
        said += f"; {sums.replaced:,} sequences that are no UTF-8 were scored as U+FFFD"
    return said


def _checked(
    files: Sequence[str], unit: str, above: float | None, top: int | None, isolate: bool, state: Path | None
) -> int:
    """Bytes of all files; ConfigError naming everything that cannot be done."""
    problems = []
    if not files:
        problems.append("FILE: found none; allowed: files, or - for standard input")
    if files.count("-") > 1:
        problems.append(f"-: found {files.count('-')} times; allowed: once, for standard input comes once")
    if above is not None and math.isnan(above):
        problems.append("--above: found nan; allowed: a number of bits a token")
    if top is not None and top < 1:
        problems.append(f"--top: found {top}; allowed: at least 1")
    if top is not None and state is not None:
        problems.append("--top with --state: the best of a text that is not read in one go are not kept")
    if isolate and unit == "document":
        problems.append(
            "--isolate with --unit document: every document is scored alone; allowed: token, line, sentence"
        )
    total = 0
    try:
        total = check_readable(files)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    return total
