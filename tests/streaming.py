"""Run folders for tests of streaming: small random models with a tokenizer, saved as a finished run is.

A folder and a few settings -> a run that `txl score` and `txl generate` can read. Knows nothing of what is tested.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.conftest import words
from tests.models import make_model
from txl.checkpoint import Snapshot, save, weights
from txl.config import Config, apply_overrides
from txl.data import train_tokenizer

SMALL = (
    *("model.n_layer=2", "model.d_model=16", "model.n_head=2", "model.d_head=6", "model.d_inner=24"),
    *("model.tgt_len=12", "model.mem_len=10", "model.init_std=0.3"),
)


def make_run(folder: Path, *overrides: str, seed: int = 0) -> Path:
    """A run folder with one checkpoint of a random model."""
    config = apply_overrides(Config(), [*SMALL, f"run.dir={folder}", *overrides])
    tokenizer = train_tokenizer(config.tokenizer, [words(500)], separator=config.data.separator)
    model = make_model(config.model, dtype=torch.float32, vocab=tokenizer.vocab_size, seed=seed)
    empty: dict[str, Any] = {}
    state = {"step": 1, "best_step": None}
    save(folder, Snapshot(1, config, tokenizer.to_json(), weights(model), empty, empty, state, []))
    return folder


def anonymous_bytes() -> int:
    """RssAnon of this process: what it holds besides files, which a memory map or a library would be."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])
