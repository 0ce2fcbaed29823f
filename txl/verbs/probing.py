"""Verbs that ask a trained run about texts made up for the purpose."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from txl.config import ConfigError
from txl.verbs.checked import arguments_checked

PROBE_SEED = 1_000_000
"""Seed of the first document asked about: far from those that are trained on."""


def probe(runs: Sequence[Path], checkpoint: str, window: int | None, documents: int, json: Path | None) -> None:
    """Print how often each run recalls and copies, by distance, on documents of `data.train: recall` it never saw."""
    import numpy as np

    from txl.data.recall import DOCUMENT_BYTES, recall_text
    from txl.evaluation.probe import probe
    from txl.terminal import progress, show_table
    from txl.train.compare import loaded

    if documents < 1:
        raise ConfigError([f"--documents: found {documents}; allowed: a whole number of at least 1"])
    made = [recall_text(DOCUMENT_BYTES, PROBE_SEED + number) for number in range(documents)]
    tables, fields, record = [], [], []
    for run in runs:
        bundle = loaded(run, checkpoint, [])
        texts = [(np.array(bundle.tokenizer.encode(text.decode("ascii"))), answers) for text, answers in made]
        if any(len(ids) != DOCUMENT_BYTES for ids, _ in texts):
            found = f"{run}: found tokenizer.kind {bundle.config.tokenizer.kind}"
            raise ConfigError([f"{found}; allowed: byte or char, so that a letter is a token"])
        data = bundle.config.data
        if "recall" not in (data.train, *(item.split(None, 1)[-1] for item in data.mixture)):
            note = "it was not trained on texts of this kind (data.train: recall), and the answers will be guesses"
            print(f"{run}: {note}", file=sys.stderr)
        with progress() as report, arguments_checked():
            given = probe(bundle.model, texts, window=window, progress=partial(report, f"probing {run}"))
        used = bundle.model.default_window if window is None else window
        reach = bundle.model.reach(used)
        tables.append({(p.task, p.distance): p for p in given})
        fields.append("unbounded" if reach is None else f"{reach:,} tokens")
        about = {"run": str(run), "step": bundle.step, "window": used, "reach_tokens": reach}
        record.append(about | {"found": [asdict(p) for p in given]})
    rows = []
    for task, distance in sorted({key for table in tables for key in table}):
        shares = (f"{table[task, distance].accuracy:.1%}" for table in tables)
        rows.append((task, f"{distance:,}", f"{tables[0][task, distance].answers:,}", *shares))
    rows.append(("", "receptive field", "", *fields))
    show_table(("task", "distance from", "answers", *(str(run) for run in runs)), rows)
    print("guessing gives 10 % for recall and 3.8 % for copy; beyond the receptive field there is nothing but guessing")
    if json is not None:
        json.write_text(json_format.dumps({"documents": documents, "runs": record}, indent=1) + "\n", encoding="utf-8")
        print(f"everything measured is in {json}")
