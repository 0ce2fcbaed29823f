"""The experiment on books: trains and measures what is missing, then writes the report; what is done is never repeated.

A folder of books -> runs under runs/books -> report.html, pictures and books.json. Every run is a `txl train` in a
process of its own with one thread, as many at a time as there are cores. Knows nothing of how a run is trained or
measured.

    tune    each candidate at each rate of the grid, for fewer steps, judged on validation text as it is judged at last
    train   each model at its best rate: three seeds, one for the LSTM
    time    vanilla again, with as many more steps as xl's training time allows (steps of both timed in turn)
    measure bits per byte on the test text, context curves, effective context, speeds; the first seeds side by side
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from txl.checkpoint import load_run
from txl.config import Config, load_config
from txl.evaluation.context import Point
from txl.evaluation.measure import Measurement, Report, measure
from txl.evaluation.report import write_report
from txl.evaluation.summary import Metric, at_best_use, change
from txl.terminal import progress
from txl.train.bench import timed_training
from txl.train.compare import corpus_for, effective_lengths, kept_losses, measured_run
from txl.train.folder import write_text
from txl.train.loop import is_finished

ROOT = Path(__file__).resolve().parents[1]
RATES = ("1e-3", "2e-3", "4e-3", "8e-3", "1.6e-2")
SEEDS = (1111, 2222, 3333)
FULL_STEPS = 1600
TUNING_TARGETS, TUNING_TOKENS = 2000, 50_000
"""Of the validation text: tokens that candidates are judged on, and how much of it they are drawn from."""
TIMED_IN_TURN = 5
"""How often the training steps of two models are timed in turn to compare them."""
CHUNKS = ["data.shuffle_segments=true", "data.segments_together=16"]
CANDIDATES: dict[str, dict[str, list[str]]] = {
    "xl": {"xl": [], "xl-chunks": CHUNKS},
    "xl-no-memory": {"xl-no-memory": []},
    "vanilla": {
        "vanilla-full": [],
        "vanilla-half": ["train.loss=half"],
        "vanilla-full-long": ["model.tgt_len=128", "data.batch_size=16"],
        "vanilla-half-long": ["train.loss=half", "model.tgt_len=128", "data.batch_size=16"],
    },
    "lstm": {"lstm": [], "lstm-chunks": CHUNKS},
}
"""Of each model what is tuned. For those that keep memory or a state, text as it goes on and in shuffled chunks of 16
segments (the others have their segments shuffled); for vanilla both losses, with segments of T and of T + M tokens and
as many in a step."""
SEEDED = ("xl", "xl-no-memory", "vanilla")
"""Models trained with every seed of the plan; the others with its first."""
BITS = Metric("bits per byte")


@dataclass(frozen=True)
class Plan:
    """How much is done: everything, or the small form."""

    runs: Path
    out: Path
    steps: int
    tuning_steps: int
    rates: Sequence[str]
    seeds: Sequence[int]
    changes: Sequence[str]


def plan_of(small: bool, steps: int | None) -> Plan:
    """The plan; `steps` shortens the small one further, to try the script."""
    if not small:
        return Plan(Path("runs/books"), Path("docs/books"), FULL_STEPS, FULL_STEPS // 4, RATES, SEEDS, ())
    changes = ["eval.contexts=16,32,64,128,256", "eval.sample_targets=1000", "eval.max_tokens=50000"]
    steps = steps or FULL_STEPS // 4
    return Plan(Path("runs/books-small"), Path("build/books-small"), steps, steps // 4, RATES[1:-1], SEEDS[:1], changes)


def main(words: Sequence[str] | None = None) -> None:
    """Do what is missing, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds train/, valid/ and test/ with books as text")
    parser.add_argument(
        "--small", action="store_true", help="a quarter of the steps, three rates, one seed, to build/books-small"
    )
    parser.add_argument("--steps", type=int, help="steps of a run of the small form")
    given = parser.parse_args(words)
    for name in ("train", "valid", "test"):
        if not (given.folder / name).is_dir():
            sys.exit(
                f"{given.folder}: found no folder {name}; it must hold train/, valid/ and test/ with books as text"
            )
    run(plan_of(given.small, given.steps), given.folder.absolute())


def run(plan: Plan, folder: Path) -> None:
    """Everything, in the repository's folder, so that configs and reports name no place of this machine."""
    texts = linked(plan, folder)
    chosen, tuned = tune(plan, texts)
    trainings = []
    for model, settings in chosen.items():
        for number, seed in enumerate(plan.seeds if model in SEEDED else plan.seeds[:1], start=1):
            place = [f"run.dir={plan.runs / model}-{number}", f"run.seed={seed}", f"train.max_steps={plan.steps}"]
            trainings.append(Training(model, [*texts, *settings, *plan.changes, *place]))
    runs: dict[str, list[Config]] = {}
    for training, config in zip(trainings, trained(trainings, "training"), strict=True):
        runs.setdefault(training.model, []).append(config)
    equal = equal_time(plan, runs, [*texts, *chosen["vanilla"], *plan.changes])
    report(plan, folder, runs, equal, tuned)


def linked(plan: Plan, folder: Path) -> list[str]:
    """Settings that name the texts by a link among the runs; from here on the repository's folder is where we are."""
    os.chdir(ROOT)
    link = plan.runs / "texts"
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_symlink() and link.readlink() != folder:
        sys.exit(
            f"{link}: found {link.readlink()}, which the runs beside it were trained on, not {folder}; move "
            f"{plan.runs} away to begin anew, or, where the books only moved, remove the link"
        )
    if not link.is_symlink():
        link.symlink_to(folder, target_is_directory=True)
    return [f"data.{name}={link / name}" for name in ("train", "valid", "test")]


def tune(plan: Plan, texts: Sequence[str]) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """The settings of each model that were best on the validation text, and every result of the grid."""
    asked: dict[tuple[str, str, str], Training] = {}
    for model, candidates in CANDIDATES.items():
        for name, settings in candidates.items():
            for rate in plan.rates:
                place = [f"run.dir={plan.runs / 'tuning' / name}-{rate}", f"optim.lr={rate}"]
                steps = schedule(plan.tuning_steps)
                asked[model, name, rate] = Training(model, [*texts, *settings, *plan.changes, *place, *steps])
    configs = trained(list(asked.values()), "tuning")
    with progress() as told:
        bits = {key: valid_bits(config, told) for key, config in zip(asked, configs, strict=True)}
    chosen: dict[str, list[str]] = {}
    tuned: dict[str, Any] = {}
    for model, candidates in CANDIDATES.items():
        results = {(name, rate): value for (of, name, rate), value in bits.items() if of == model}
        name, rate = min(results, key=lambda key: results[key])
        chosen[model] = [*candidates[name], f"optim.lr={rate}"]
        if plan.steps < FULL_STEPS:
            chosen[model] += schedule(plan.steps)[1:]  # equal time has more steps, and the same warm-up
        tuned[model] = {
            "chosen": chosen[model],
            "judged_on": f"{TUNING_TARGETS} targets of the first {TUNING_TOKENS} bytes of validation text, at best use",
            "valid_bits_per_byte": {f"{name} {rate}": value for (name, rate), value in results.items()},
        }
        print(f"{model}: {' '.join(chosen[model])}", flush=True)
    return chosen, tuned


def schedule(steps: int) -> list[str]:
    """Settings of a run of so many steps, a tenth of them warm-up."""
    return [f"train.max_steps={steps}", f"optim.warmup_steps={max(1, steps // 10)}"]


@dataclass(frozen=True)
class Training:
    """A run to be trained: one of configs/books and what is changed of it."""

    model: str
    words: Sequence[str]

    @property
    def path(self) -> Path:
        """Its config file."""
        return Path("configs/books") / f"{self.model}.yaml"

    def config(self) -> Config:
        """Its config, read from its file."""
        return load_config(self.path, list(self.words))


def trained(trainings: Sequence[Training], what: str) -> list[Config]:
    """The configs of runs that are all finished when this returns; what each prints goes to its folder, train.log."""
    configs = [training.config() for training in trainings]
    pairs = zip(trainings, configs, strict=True)
    missing = [(training, Path(config.run.dir)) for training, config in pairs if not is_finished(config)]
    began = time.monotonic()
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        try:
            waiting = [pool.submit(train_one, *one) for one in missing]
            for done, future in enumerate(as_completed(waiting), start=1):
                name, minutes = future.result(), (time.monotonic() - began) / 60
                left = minutes / done * (len(missing) - done)
                print(f"{what}: {done} of {len(missing)}, {name}, about {left:.0f} min left", flush=True)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return configs


def train_one(training: Training, folder: Path) -> Path:
    """Train in a process of its own with one thread; returns the run's folder. Ends the script where that fails."""
    command = [sys.executable, "-m", "txl", "train", str(training.path), *training.words]
    folder.mkdir(parents=True, exist_ok=True)
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with (folder / "train.log").open("a", encoding="utf-8") as log:
        print(shlex.join(["txl", *command[3:]]), file=log, flush=True)
        done = subprocess.run(command, check=False, stdout=log, stderr=log, env={**os.environ, **one_thread})
    if done.returncode:
        sys.exit(f"{folder}: training ended with code {done.returncode}, see train.log; the same command goes on")
    return folder


def valid_bits(config: Config, told: Report) -> float:
    """Bits per byte of a finished run on a sample of validation text, at its best use, as it is judged at last."""
    asked = replace(headline_only(config).eval, sample_targets=TUNING_TARGETS, max_tokens=TUNING_TOKENS)
    if config.model.arch != "transformer":  # what has a cache or a state is judged by its own context alone
        asked = replace(asked, contexts=())
    bundle = replace(load_run(config.run.dir, "best"), config=replace(config, eval=asked))
    corpus = corpus_for(bundle, own_text=True)
    kept = kept_losses(bundle, corpus, "valid")
    bits = BITS.of(at_best_use(measure(bundle, corpus, asked, told, split="valid", kept=kept, timed=False)))
    return bits if math.isfinite(bits) else math.inf


def equal_time(plan: Plan, runs: dict[str, list[Config]], settings: Sequence[str]) -> Config:
    """Vanilla trained for as long as xl was: more steps, by what a step of each takes where they are timed in turn."""
    held = plan.runs / "equal-time-steps.json"
    if not held.exists():  # measured once: a run that goes on must keep its schedule
        rates: dict[str, list[float]] = {"xl": [], "vanilla": []}
        threads = torch.get_num_threads()
        for _ in range(TIMED_IN_TURN):
            for model, seen in rates.items():
                config = runs[model][0]
                alike = replace(config, runtime=replace(config.runtime, threads=1))  # as every run here is trained
                seen.append(timed_training(alike).median)
        torch.set_num_threads(threads)  # what is measured later is measured with all of them
        ratio = statistics.median(v / x for x, v in zip(rates["xl"], rates["vanilla"], strict=True))
        steps = max(plan.steps, round(plan.steps * ratio))
        write_text(held, json.dumps({"steps": steps, "ratio": ratio, "tokens_per_second": rates}))
    steps = json.loads(held.read_text("utf-8"))["steps"]
    place = [f"run.dir={plan.runs / 'vanilla-equal-time'}", f"run.seed={SEEDS[0]}", f"train.max_steps={steps}"]
    return trained([Training("vanilla", [*settings, *place])], "equal time")[0]


def report(plan: Plan, folder: Path, runs: dict[str, list[Config]], equal: Config, tuned: dict[str, Any]) -> None:
    """Measure every run, the first seeds and the equal-time one wholly, and write the pages and numbers."""
    first = [*((configs[0], model) for model, configs in runs.items()), (equal, "vanilla, equal time")]
    others = [config for configs in runs.values() for config in configs[1:]]
    with progress() as told:
        whole = [replace(measured_run(config, report=told), name=name) for config, name in first]
        short = {config.run.dir: measured_run(headline_only(config), report=told) for config in others}
    lengths = effective_lengths([config for config, _ in first[:-1]], whole[:-1], [m.name for m in whole[:-1]])
    command = f"scripts/reproduce_books.sh {'--small ' if plan.steps < FULL_STEPS else ''}FOLDER"
    write_report(plan.out, whole, command=command, lengths=lengths)
    (plan.out / "report.json").unlink()  # megabytes; books.json has what a reader checks
    by_model = {
        model: [whole[i], *(short[c.run.dir] for c in configs[1:])] for i, (model, configs) in enumerate(runs.items())
    }
    record = {
        "command": command,
        "books": {name: sorted(path.name for path in (folder / name).iterdir()) for name in ("train", "valid", "test")},
        "corpus": whole[0].corpus_hash,
        "rates_tried": plan.rates,
        "tuning_steps": plan.tuning_steps,
        "tuned": tuned,
        "runs": [facts(m) for measured in by_model.values() for m in measured] + [facts(whole[-1])],
        "models": {model: over_seeds(measured) for model, measured in by_model.items()},
        "xl_against": {
            model: [against(a, b) for a, b in zip(by_model["xl"], by_model[model], strict=True)]
            for model in by_model
            if model in SEEDED and model != "xl"
        },
        "xl_against_xl_no_memory_on_all_tokens": [
            compared(a.headline, b.headline)
            for a, b in zip(by_model["xl"], by_model.get("xl-no-memory", []), strict=False)
        ],
        "equal_time": json.loads((plan.runs / "equal-time-steps.json").read_text("utf-8")),
        "xl_against_vanilla_at_equal_time": against(by_model["xl"][0], whole[-1]),
        "xl_at_longer_contexts": longer(by_model["xl"][0]),
        "effective_context_lengths": [vars(found) | {"gains": [vars(g) for g in found.gains]} for found in lengths],
        "speeds": {m.name: [vars(s) for s in m.speeds] for m in whole},
        "environment": whole[0].environment,
    }
    (plan.out / "books.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for model, entry in record["models"].items():
        print(f"{model}: {entry['bits_per_byte']} bits per byte at best use on the sample, {entry['seeds']} seed(s)")
    for model, entries in record["xl_against"].items():
        for seed, entry in zip(plan.seeds, entries, strict=True):
            print(f"xl against {model}, seed {seed}: {entry}")
    print(f"xl against vanilla, equal time: {record['xl_against_vanilla_at_equal_time']}")
    print(f"report: {os.path.relpath(plan.out / 'report.html')}")


def headline_only(config: Config) -> Config:
    """The config measured up to its own context alone, on the same sample."""
    contexts = tuple(context for context in config.eval.contexts if context <= config.model.tgt_len)
    return replace(config, eval=replace(config.eval, contexts=contexts, recl_step=None))


def facts(m: Measurement) -> dict[str, Any]:
    """What a reader checks of one run."""
    best = at_best_use(m)
    low, high = best.interval
    return {
        "run": m.name,
        "parameters": m.parameters,
        "trained_tokens": m.trained_tokens,
        "seed": m.config["run"]["seed"],
        "lr": m.config["optim"]["lr"],
        "model": m.config["model"],
        "loss": m.config["train"]["loss"],
        "bits_per_byte": BITS.of(m.headline),
        "tokens": m.headline.tokens,
        "kind": m.headline.settings.kind,
        "best_use": {"kind": best.settings.kind, "context": best.context, "tokens": best.tokens},
        "bits_per_byte_at_best_use": BITS.of(best),
        "interval_95": [BITS.of(best, low), BITS.of(best, high)],
        "step_seconds": m.step_seconds,
        "training_seconds": max((curve.seconds[-1] for curve in m.learning), default=None),
        "valid_bits_per_byte_by_step": {
            step: round(nll / math.log(2) / curve.bytes_per_token, 4)
            for curve in m.learning
            if curve.name == "valid"
            for step, nll in zip(curve.steps, curve.nll, strict=True)
        },
        "curve": [
            {"kind": p.settings.kind, "context": p.context, "targets": p.targets, "bits_per_byte": BITS.of(p)}
            for p in m.points
        ],
    }


def over_seeds(measured: Sequence[Measurement]) -> dict[str, Any]:
    """Mean and spread over seeds of the bits per byte at best use."""
    bits = [BITS.of(at_best_use(m)) for m in measured]
    spread = statistics.stdev(bits) if len(bits) > 1 else None
    return {"bits_per_byte": round(statistics.mean(bits), 4), "standard_deviation": spread, "seeds": len(bits)}


def against(a: Measurement, b: Measurement) -> dict[str, Any] | None:
    """By what share the first needs more (negative: less) than the second at best use."""
    return compared(at_best_use(a), at_best_use(b))


def compared(a: Point, b: Point) -> dict[str, Any] | None:
    """By what share one point is above the other (negative: below), with its paired 95 % interval."""
    difference = change(a, b, BITS)
    return None if difference is None else dict(zip(("change", "low", "high"), difference, strict=True))


def longer(m: Measurement) -> list[dict[str, Any]]:
    """What each longer context brings over the trained one, by the same way of reading, paired."""
    found = []
    for kind in ("window", "truncated"):
        points = [p for p in m.points if (p.settings.kind, p.targets) == (kind, "sample") and p.context]
        own = next((p for p in points if p.context == m.headline.context), None)
        for p in sorted(points, key=lambda p: p.context or 0):
            if own is not None and (p.context or 0) > (own.context or 0):
                found.append({"kind": kind, "context": p.context} | (compared(p, own) or {}))
    return found


if __name__ == "__main__":
    main()
