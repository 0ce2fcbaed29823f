"""Verbs that carry models in from other software and out to it."""

from __future__ import annotations

from pathlib import Path


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
