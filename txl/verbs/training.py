"""Verbs that train: one config, or several to be compared."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from txl.config import Config, ConfigError, load_config
from txl.verbs.checked import arguments_checked

SETTING = re.compile(r"\w+\.\w+=")
"""How a word that is a setting, and not a file, begins."""


def train(config: Path, overrides: Sequence[str]) -> None:
    """Train one config, going on from what is there."""
    settings = load_config(config, overrides)
    from txl.runtime import leave_processes
    from txl.train.loop import train

    run = train(settings).run_dir
    leave_processes()
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"{run} is trained; next: txl eval {run}, or txl generate {run}")


def compare(words: Sequence[str]) -> None:
    """Train what is missing, measure every run on the same tokens, write the report and say what was found."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(["compare: found several processes; allowed: one (train the configs with several before)"])
    configs = configs_to_compare(words)
    from txl.evaluation.answer import answer
    from txl.evaluation.caveats import caveats
    from txl.evaluation.summary import labels, ranked, table
    from txl.terminal import printable, progress, show_table
    from txl.train.compare import effective_lengths, measured_run, reported
    from txl.train.loop import is_finished, train

    for settings in configs:
        if is_finished(settings):
            print(f"{settings.run.dir}: trained before, nothing to do")
        else:
            train(settings)
    with progress() as report, arguments_checked():
        measurements = [measured_run(settings, report=report) for settings in configs]
    folder = report_folder(configs)
    page = folder / "report.html"
    if not (page.exists() and reported(folder / "report.json") == [m.to_json() for m in measurements]):
        from txl.evaluation.report import write_report

        lengths = effective_lengths(configs, measurements, labels(measurements))
        page = write_report(folder, measurements, command=f"txl compare {shlex.join(words)}", lengths=lengths)
    show_table(*table(measurements))
    print(answer(measurements), "", *(f"- {note}" for note in caveats(measurements)), sep="\n")
    _, best = ranked(measurements)[0]
    first = shlex.quote(configs[measurements.index(best)].run.dir)
    print(f"\n{first} goes on from a prompt, whose end is ⟫:\n\n{printable(best.sample)}\n")
    print(f"report      {page}")
    prompt = "def main(" if configs[0].data.train == "stdlib" else "The "
    print(f"try next    txl generate {first} --prompt '{prompt}' --temperature 0.8")
    print(f"            txl eval {first} --context 16,64,256,1024")
    if configs[0].data.train == "stdlib":
        kept = shlex.join(word for word in words if not word.startswith(("data.", "run.dir=")))
        print(f"            txl compare {kept} data.train=YOUR-FILE-OR-FOLDER run.dir=runs/mine")


def report_folder(configs: Sequence[Config]) -> Path:
    """Where the report goes: beside the runs; beside the first where runs share no more than the root of the disk."""
    parents = [Path(settings.run.dir).absolute().parent for settings in configs]
    shared = Path(os.path.commonpath(parents))
    return Path(os.path.relpath(parents[0] if shared == Path(shared.anchor) else shared)) / "report"


def configs_to_compare(words: Sequence[str]) -> list[Config]:
    """The configs named among `words` under the settings among them, each with a run folder of its own.

    A word that is a run's folder stands for its config.yaml, and the run stays where it is. Raises ConfigError with
    the problems of all of them.
    """
    settings = [word for word in words if SETTING.match(word)]
    paths = [Path(word) for word in words if not SETTING.match(word)]
    if len(paths) == 1 and not paths[0].is_dir():
        twin = paths[0].with_name(f"{paths[0].stem}-vanilla{paths[0].suffix}")
        if not twin.exists():
            allowed = f"two configs or more, or one with its twin {twin.name} beside it"
            raise ConfigError([f"compare: found {paths[0]} alone; allowed: {allowed}"])
        paths.append(twin)
    parents = [word.partition("=")[2] for word in settings if word.startswith("run.dir=")]
    configs: list[Config] = []
    problems = (
        []
        if paths
        else [
            "compare: found no config; allowed: one that has a -vanilla twin beside it, or several, or folders of runs"
        ]
    )
    for path in paths:
        if not path.exists():
            near = get_close_matches(path.name, [other.name for other in path.parent.glob("*")], n=1)
            meant = f"; did you mean {path.with_name(near[0])}?" if near else ""
            problems.append(f"{path}: no such file or folder; allowed: a YAML file, or the folder of a run{meant}")
            continue
        try:
            changes = [word for word in settings if not word.startswith("run.dir=")]
            is_run = path.is_dir()
            found = load_config(path / "config.yaml" if is_run else path, changes)
            own = path if is_run else Path(found.run.dir)
            own = Path(parents[-1]) / own.name if parents and not is_run else own
            configs.append(replace(found, run=replace(found.run, dir=str(own))))
        except ConfigError as error:
            problems += [text if text.startswith(str(path)) else f"{path}: {text}" for text in error.problems]
    if len({os.path.abspath(found.run.dir) for found in configs}) < len(configs):
        dirs = ", ".join(found.run.dir for found in configs)
        problems.append(f"run.dir: found {dirs}; allowed: a folder of its own for each run")
    if problems:
        raise ConfigError(problems)
    return configs
