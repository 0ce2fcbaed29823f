"""What each verb of the command line does: settings and paths in, the work of the rooms, its results printed.

One short function a verb; heavy rooms are imported inside it, so that `txl config` loads no torch. Knows nothing of
argv, nor of how anything is computed.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from txl.config import Config, ConfigError, load_config, to_yaml

if TYPE_CHECKING:
    from txl.data import Corpus

SETTING = re.compile(r"\w+\.\w+=")
"""How a word that is a setting, and not a file, begins."""


def config(config: Path, overrides: Sequence[str]) -> None:
    """Print the resolved YAML of a config."""
    print(to_yaml(load_config(config, overrides)), end="")


def prepare(config: Path, overrides: Sequence[str]) -> None:
    """Turn text into ids once, and say what was found."""
    settings = load_config(config, overrides)
    from txl.data import prepare
    from txl.terminal import progress

    with progress() as report:
        corpus = prepare(settings, report=report)
    show_corpus(corpus)


def validate(config: Path, overrides: Sequence[str]) -> None:
    """Do everything but the training, and say what the run would be."""
    settings = load_config(config, overrides)
    from txl.terminal import progress, show_table
    from txl.train.validate import validate

    with progress() as report:
        found = validate(settings, report=report)
    show_corpus(found.corpus)
    show_table(("", ""), found.facts())
    for warning in found.warnings:
        print(f"warning: {warning}")
    print(f"{config} is valid; nothing but the prepared text was kept")


def train(config: Path, overrides: Sequence[str]) -> None:
    """Train one config, going on from what is there."""
    settings = load_config(config, overrides)
    from txl.runtime import leave_processes
    from txl.train.loop import train

    run = train(settings).run_dir
    leave_processes()
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"{run} is trained; next: txl eval {run}, or txl generate {run}")


def evaluate(
    run: Path,
    checkpoint: str,
    window: int | None,
    context: str | None,
    split: str,
    batch_size: int | None,
    json: Path | None,
    overrides: Sequence[str],
) -> None:
    """Score a split of a run's text, or of other text, and print loss, perplexity and bits per byte."""
    from txl.evaluation.measure import measure
    from txl.evaluation.summary import table
    from txl.terminal import progress, show_table
    from txl.train.compare import corpus_for, loaded

    options = {"eval.contexts": context, "eval.window": window, "eval.batch_size": batch_size}
    words = [*overrides, *(f"{key}={value}" for key, value in options.items() if value is not None)]
    bundle = loaded(run, checkpoint, words)
    settings = bundle.config.eval if context else replace(bundle.config.eval, contexts=())
    own_text = not any(word.startswith("data.") for word in words)
    with progress() as report, arguments_checked():
        corpus = corpus_for(bundle, own_text=own_text, report=report)
        measured = measure(bundle, corpus, settings, report, split=split, timed=False)
    point = measured.headline
    if math.isnan(point.nll):
        raise FloatingPointError(
            f"{run}, step {measured.step}: the model's loss is not a number; its weights are broken"
        )
    print(
        f"{run}, step {measured.step}: {point.nll:.4f} nats a token, perplexity {point.perplexity:.3f}, "
        f"{point.bits_per_byte:.4f} bits per byte on {point.tokens:,} tokens of {measured.split}"
        + (f" (bits not comparable: {measured.incomparable})" if measured.incomparable else "")
    )
    show_table(*table([measured], every_point=True))
    if json is not None:
        json.write_text(measured.to_json(), encoding="utf-8")
        print(f"everything measured is in {json}")


def generate(
    run: Path,
    checkpoint: str,
    window: int | None,
    prompt: str | None,
    prompt_file: str | None,
    max_new_tokens: int,
    temperature: float,
    greedy: bool,
    top_k: int | None,
    top_p: float | None,
    stop: Sequence[str] | None,
    seed: int,
    overrides: Sequence[str],
) -> None:
    """Write text after a prompt, as it comes."""
    text = prompt_of(prompt, "-" if "-" in overrides else prompt_file)
    from txl.infer import Session, generate_text, opening_note
    from txl.terminal import printable
    from txl.train.compare import loaded

    bundle = loaded(run, checkpoint, [word for word in overrides if word != "-"])
    session = Session(bundle.model)
    note = opening_note(session, bundle.tokenizer, text)
    with arguments_checked():
        pieces = generate_text(
            session if window is None else Session(bundle.model, window=window),
            bundle.tokenizer,
            text,
            max_new_tokens=max_new_tokens,
            temperature=0.0 if greedy else temperature,
            top_k=top_k,
            top_p=top_p,
            stop=stop or (),
            seed=seed,
        )
    if note:
        print(note, file=sys.stderr)
    for piece in pieces:
        print(printable(piece) if sys.stdout.isatty() else piece, end="", flush=True)
    print()


def compare(words: Sequence[str]) -> None:
    """Train what is missing, measure every run on the same tokens, write the report and say what was found."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(["compare: found several processes; allowed: one (train the configs with several before)"])
    configs = configs_to_compare(words)
    from txl.evaluation.summary import answer, caveats, table
    from txl.terminal import printable, progress, show_table
    from txl.train.compare import measured_run, reported
    from txl.train.loop import is_finished, train

    for settings in configs:
        if is_finished(settings):
            print(f"{settings.run.dir}: trained before, nothing to do")
        else:
            train(settings)
    with progress() as report, arguments_checked():
        measurements = [measured_run(settings, report=report) for settings in configs]
    parents = [Path(settings.run.dir).absolute().parent for settings in configs]
    folder = Path(os.path.relpath(os.path.commonpath(parents))) / "report"
    page = folder / "report.html"
    if not (page.exists() and reported(folder / "report.json") == [m.to_json() for m in measurements]):
        from txl.evaluation.report import write_report

        page = write_report(folder, measurements, command=f"txl compare {shlex.join(words)}")
    show_table(*table(measurements))
    print(answer(measurements), "", *(f"- {note}" for note in caveats(measurements)), sep="\n")
    first = shlex.quote(configs[0].run.dir)
    print(f"\n{first} goes on from a prompt, whose end is ⟫:\n\n{printable(measurements[0].sample)}\n")
    print(f"report      {page}")
    prompt = "def main(" if configs[0].data.train == "stdlib" else "The "
    print(f"try next    txl generate {first} --prompt '{prompt}' --temperature 0.8")
    print(f"            txl eval {first} --context 16,64,256,1024")
    if configs[0].data.train == "stdlib":
        kept = shlex.join(word for word in words if not word.startswith(("data.", "run.dir=")))
        print(f"            txl compare {kept} data.train=YOUR-FILE-OR-FOLDER run.dir=runs/mine")


def import_run(path: Path, out: Path | None, hparams: Path | None, vocab: Path | None) -> None:
    """Read a published checkpoint into a run folder that every other verb takes."""
    from txl.checkpoint import Snapshot, save
    from txl.interop.transfo_xl import begin_run, import_transfo_xl

    found = import_transfo_xl(path, hyper_parameters=hparams, vocabulary=vocab)
    run = out or Path("runs") / path.stem
    save(run, Snapshot(**begin_run(found, run)))
    n_parameters = sum(weight.numel() for weight in found.weights.values())
    print(f"{run}: {found.config.n_layer} layers, {n_parameters:,} numbers, vocabulary of {found.vocab_size:,}")
    print(f"next: txl eval {run} data.test=YOUR-TEXT, or txl generate {run}")


def export_run(run: Path, out: Path, as_format: str, checkpoint: str) -> None:
    """Write a run's model as a folder of another format; the only one yet is transfo-xl."""
    from txl.checkpoint import load_run
    from txl.interop.transfo_xl import export_transfo_xl

    bundle = load_run(run, checkpoint)
    for note in export_transfo_xl(bundle.model, bundle.tokenizer, out):
        print(note)
    print(f"{out}: step {bundle.step} of {run} as {as_format}")


@contextmanager
def arguments_checked() -> Iterator[None]:
    """A plain ValueError inside is about what the user asked for, and no fault of txl."""
    try:
        yield
    except ValueError as error:
        if type(error) is not ValueError:  # a named error of a room says more
            raise
        raise ConfigError([str(error)]) from error


def configs_to_compare(words: Sequence[str]) -> list[Config]:
    """The configs named among `words` under the settings among them, each with a run folder of its own.

    Raises ConfigError with the problems of all of them.
    """
    settings = [word for word in words if SETTING.match(word)]
    paths = [Path(word) for word in words if not SETTING.match(word)]
    if len(paths) == 1:
        twin = paths[0].with_name(f"{paths[0].stem}-vanilla{paths[0].suffix}")
        if not twin.exists():
            allowed = f"two configs or more, or one with its twin {twin.name} beside it"
            raise ConfigError([f"compare: found {paths[0]} alone; allowed: {allowed}"])
        paths.append(twin)
    parents = [word.partition("=")[2] for word in settings if word.startswith("run.dir=")]
    configs: list[Config] = []
    problems = (
        [] if paths else ["compare: found no config; allowed: one that has a -vanilla twin beside it, or several"]
    )
    for path in paths:
        try:
            found = load_config(path, [word for word in settings if not word.startswith("run.dir=")])
            own = Path(found.run.dir)
            configs.append(
                replace(found, run=replace(found.run, dir=str(Path(parents[-1]) / own.name if parents else own)))
            )
        except ConfigError as error:
            problems += [text if text.startswith(str(path)) else f"{path}: {text}" for text in error.problems]
    if len({os.path.abspath(found.run.dir) for found in configs}) < len(configs):
        dirs = ", ".join(found.run.dir for found in configs)
        problems.append(f"run.dir: found {dirs}; allowed: a folder of its own for each run")
    if problems:
        raise ConfigError(problems)
    return configs


def prompt_of(prompt: str | None, source: str | None) -> str:
    """The prompt: given, from a file, from standard input (-), or none. Raises ConfigError where it is no UTF-8."""
    if source is None:
        return prompt or ""
    if prompt is not None:
        raise ConfigError([f"prompt: found --prompt and {source}; allowed: one of them"])
    try:
        return (sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()).decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"a byte that is not UTF-8 at offset {error.start}"
        raise ConfigError([f"prompt {source}: found {found}; allowed: text in UTF-8"]) from None
    except OSError as error:
        raise ConfigError([f"prompt {source}: cannot be read ({error.strerror}); allowed: a file, or - "]) from None


def show_corpus(corpus: Corpus) -> None:
    """What each split of a prepared corpus holds, and where it is."""
    from txl.terminal import show_table

    rows = [
        (part.name, f"{part.documents:,}", f"{part.bytes:,}", f"{part.tokens:,}", f"{part.unknowns:,}")
        for part in (corpus.train, corpus.valid, corpus.test)
    ]
    show_table(("split", "documents", "bytes", "tokens", "unknown"), rows)
    print(f"vocabulary of {corpus.tokenizer.vocab_size:,}; corpus {corpus.fingerprint[:12]} in {corpus.folder}")
