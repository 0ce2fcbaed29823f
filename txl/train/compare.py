"""A trained run made ready to be used, and measured once: config or bundle in, `Measurement` out, kept with the run.

Knows nothing of the command line, nor of what is compared with what.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from txl.checkpoint import Bundle, CheckpointError, facts_of, load_run
from txl.config import Config, ConfigError, TokenizerConfig, apply_overrides
from txl.config.checks import ABSOLUTE_POSITIONS
from txl.data import Corpus, prepare
from txl.evaluation.fresh import sample_of
from txl.evaluation.kept import Kept
from txl.evaluation.measure import Measurement, ladder_of, measure
from txl.evaluation.recl import Recl, recl
from txl.infer import Session, generate_text
from txl.model import to_int8, use_attention, use_products
from txl.runtime import device_kind, use_processor
from txl.train.folder import write_text
from txl.train.history import history

Report = Callable[[str, int, int | None], None]
"""report(what, done, total)."""
OF_THE_RUN = ("tokenizer.", "train.", "optim.", "run.")
"""Settings that nothing reads once a run is trained, or that made it what it is."""
PROMPT_TOKENS = 128
"""Tokens from the start of the test split that the sample goes on from."""
SAMPLE_TEMPERATURE = 0.8
"""A little bolder than the model itself: its most probable text is dull, its own distribution strays."""


def measured_run(config: Config, *, report: Report | None = None) -> Measurement:
    """The measurement of a finished run's best checkpoint: the one kept in its folder if nothing changed, else anew.

    Nothing changed means: weights, config and text are the same, and the losses that `effective_lengths` needs are
    those of this checkpoint still. What was kept of single tokens is not scored again.
    Raises CheckpointError where there is no checkpoint or the text that the run was trained on is now another, so that
    it might be scored on what it learned, and DataError where the text is gone.
    """
    bundle = placed(load_run(config.run.dir, "best"), config)
    corpus = corpus_for(bundle, own_text=True, report=report)
    _refuse_other_text(bundle, corpus)
    losses = kept_losses(bundle, corpus, "test")
    path = Path(config.run.dir) / "measurement.json"
    facts = {"losses": losses.facts, "config": json.loads(json.dumps(asdict(config)))}
    found = _kept(path, facts)
    if found is not None and _rungs(config, found) is not None:
        return found
    measured = measure(
        bundle,
        corpus,
        config.eval,
        report,
        kept=losses,
        history=history(config.run.dir),
        sample=written_sample(bundle, corpus),
    )
    if losses.problem:
        raise CheckpointError(losses.problem)
    write_text(path, json.dumps({"facts": facts, "measurement": measured.to_record()}, indent=1, ensure_ascii=False))
    return measured


def _refuse_other_text(bundle: Bundle, corpus: Corpus) -> None:
    """Raise CheckpointError where what the config's sources give is not what the run was trained on."""
    trained_on = facts_of(bundle.path).get("corpus", corpus.fingerprint)
    if trained_on != corpus.fingerprint:
        raise CheckpointError(
            f"{bundle.config.run.dir}: found corpus {corpus.fingerprint[:12]}, the run was trained on "
            f"{trained_on[:12]}: the text changed since, and what is now test text may have been training text. Bring "
            f"back what it was, train anew with another run.dir, or score other text: txl eval {bundle.config.run.dir} "
            "data.test=FILE"
        )


def kept_losses(bundle: Bundle, corpus: Corpus, split: str) -> Kept:
    """Where the losses of single tokens are kept: report/eval of the run's folder, a folder for each split.

    They are used again only with the same weights, text, tokenizer, lengths and memory.
    """
    run = bundle.path.parent.parent if bundle.path.parent.name == "checkpoints" else bundle.path
    manifest = json.loads((bundle.path / "manifest.json").read_text("utf-8"))
    facts = {
        "step": bundle.step,
        "checkpoint_sha256": manifest["files"]["model.safetensors"]["sha256"],
        "text": corpus.text_hash(split),
        "tokenizer": bundle.tokenizer.hash,
        "split": split,
        "max_tokens": bundle.config.eval.max_tokens,
        "reset_memory": bundle.config.data.reset_memory,
        "model": asdict(bundle.config.model),
        "device": str(next(bundle.model.parameters()).device),
    }
    if bundle.config.runtime.weights != "full":
        facts["weights"] = bundle.config.runtime.weights
    return Kept(run / "report" / "eval" / split, facts)


def effective_lengths(
    configs: Sequence[Config], measurements: Sequence[Measurement], names: Sequence[str]
) -> list[Recl]:
    """The relative effective context lengths of measured runs as one group, from the losses kept with them.

    Targets too near the beginning of the text for the longest context are left out. Absolute positions read no more
    than their segment. Empty where `eval.recl_step` is not set or differs, or where the runs were not scored on the
    same tokens, each by the model of its measurement, or a loss is not finite.
    """
    ladders = [ladder_of(config.eval) for config in configs]
    if not ladders[0] or ladders.count(ladders[0]) < len(ladders):
        return []
    ladder, texts = ladders[0], []
    losses: dict[str, dict[int, Any]] = {}
    limits: dict[str, int] = {}
    for name, config, measured in zip(names, configs, measurements, strict=True):
        rungs = _rungs(config, measured)
        if rungs is None:
            return []
        if _reads_a_segment(config):
            limits[name] = max(rungs)
        losses[name] = {context: nll for context, (nll, _) in rungs.items()}
        texts += [text for _, text in rungs.values()]
    if any(text != texts[0] for text in texts):
        return []
    if not all(np.isfinite(nll).all() for own in losses.values() for nll in own.values()):
        return []  # the report says of each number that it is none
    sampled = texts[0]["positions"]
    whole = sample_of(sampled["of"], sampled["sample"]) + 1 >= ladder[-1]
    if not whole.any():
        return []
    return recl({name: {c: nll[whole] for c, nll in own.items()} for name, own in losses.items()}, limits=limits)


def _reads_a_segment(config: Config) -> bool:
    """Whether the model's context ends with its segment."""
    return config.model.position in ABSOLUTE_POSITIONS and config.model.arch != "lstm"


def _rungs(config: Config, measured: Measurement) -> dict[int, tuple[Any, dict[str, Any]]] | None:
    """The kept losses of a measured run by context, all that `effective_lengths` needs; None where one is missing.

    Each with what says which tokens of which text they are about.
    """
    ladder = ladder_of(config.eval)
    if not ladder:
        return {}
    kind, wanted = "truncated", set(ladder)
    if _reads_a_segment(config):
        own = config.model.tgt_len if config.eval.window is None else config.eval.window + 1
        kind, wanted = "slide", {own, *(context for context in ladder if context < own)}
    facts = {
        "step": measured.step,
        "text": measured.text_hash,
        "max_tokens": config.eval.max_tokens,
        "model": measured.config["model"],
        "weights": None if config.runtime.weights == "full" else config.runtime.weights,
    }
    sampled = min(measured.text_tokens - 1, config.eval.sample_targets)
    held = Kept.contexts(Path(config.run.dir) / "report" / "eval" / "test", kind, facts)
    found = {context: rung for context, rung in held.items() if len(rung[0]) == sampled}
    return {context: found[context] for context in sorted(wanted)} if wanted <= set(found) else None


def loaded(run: str | Path, checkpoint: str, overrides: Sequence[str]) -> Bundle:
    """A trained model under overrides, on the device they name.

    Data, evaluation and machine may differ from training, and of the model what leaves every parameter's shape alone
    (mem_len, clamp_len, tgt_len, ...). Raises ConfigError or CheckpointError for anything else.
    """
    fixed = [word for word in overrides if word.startswith(OF_THE_RUN)]
    if fixed:
        allowed = "allowed: data, eval, runtime, and of the model what changes no parameter's shape"
        raise ConfigError([f"override {word}: cannot be changed after training; {allowed}" for word in fixed])
    bundle = load_run(run, checkpoint)
    config = apply_overrides(bundle.config, overrides)
    before, now = asdict(bundle.config.model), asdict(config.model)
    if changed := {name: value for name, value in now.items() if value != before[name]}:
        bundle = load_run(run, checkpoint, **changed)
    return placed(bundle, config)


def placed(bundle: Bundle, config: Config) -> Bundle:
    """The bundle under another config, its model on the device and in the weights that config asks for.

    Raises ConfigError where that device is not there.
    """
    use_processor(config.runtime)
    wanted = config.runtime.device
    use_attention(bundle.model, config.runtime.attention)
    use_products(config.runtime.products)
    if config.runtime.weights == "int8":
        to_int8(bundle.model)
    bundle.model.to(wanted if ":" in wanted else device_kind(config.runtime))
    return replace(bundle, config=config)


def corpus_for(bundle: Bundle, *, own_text: bool, report: Report | None = None) -> Corpus:
    """The text of the bundle's config in the ids of the bundle's own tokenizer, also where it was not trained on it.

    What the config says of a tokenizer makes the same one of the run's own text, unless it was taken over.
    """
    if own_text and bundle.config.train.init_from is None:
        return prepare(bundle.config, report=report)
    tokenizer = TokenizerConfig(kind="file", path=str(bundle.path / "tokenizer.json"))
    return prepare(replace(bundle.config, tokenizer=tokenizer), report=report)


def written_sample(bundle: Bundle, corpus: Corpus) -> str:
    """The beginning of the test split, then ` ⟫ ` and what the model writes after it; the same for the same run."""
    prompt = bundle.tokenizer.decode([int(token) for token in corpus.test.ids[:PROMPT_TOKENS]])
    pieces = generate_text(
        Session(bundle.model),
        bundle.tokenizer,
        prompt,
        max_new_tokens=bundle.config.train.sample_tokens,
        temperature=SAMPLE_TEMPERATURE,
        seed=bundle.config.run.seed,
    )
    return f"{prompt} ⟫ {''.join(pieces)}"


def reported(path: Path) -> list[str]:
    """The measurements that a report.json holds, as their own JSON; none where there is no such file."""
    try:
        record = json.loads(path.read_text("utf-8"))
        return [json.dumps(measurement, indent=1, ensure_ascii=False) for measurement in record["measurements"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _kept(path: Path, facts: dict[str, Any]) -> Measurement | None:
    """The measurement that was kept under these facts, or None where there is none that can be read."""
    try:
        record = json.loads(path.read_text("utf-8"))
        return Measurement.from_record(record["measurement"]) if record["facts"] == facts else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
