"""The verb that says how fast a config runs here."""

from __future__ import annotations

import json as json_format
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from txl.config import load_config


def bench(config: Path, json: Path | None, overrides: Sequence[str]) -> None:
    """Time training, scoring and streaming of a config on this machine, and say what computes them."""
    settings = load_config(config, overrides)
    from txl.terminal import progress, show_table
    from txl.train.bench import bench

    with progress() as report:
        found = bench(settings, report=report)
    show_table(("", "tokens/s", "slowest – fastest", "of product speed"), [row.row(found.speed) for row in found.rows])
    show_table(("", ""), found.facts)
    if json is not None:
        json.write_text(json_format.dumps(asdict(found), indent=1), encoding="utf-8")
        print(f"everything measured is in {json}")
