"""How a run ended: its last numbers written down, and whether it was done before.

A run that is through -> result.json -> `TrainResult`. Knows nothing of how a step is taken.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txl.checkpoint import CheckpointError, checkpoints, problem
from txl.config import Config, ConfigError, load_config
from txl.train.begin import changed_settings
from txl.train.folder import read_result, write_result
from txl.train.journal import describe_valid
from txl.train.state import Run, TrainState


@dataclass(frozen=True)
class TrainResult:
    """How a run ended: steps done, nats a token over the whole validation split, where it is, whether all is done."""

    step: int
    valid_nll: float
    run_dir: Path
    finished: bool


def finish(run: Run, state: TrainState, valid: dict[str, Any]) -> TrainResult:
    """Write down and say how the run ended."""
    result = {"step": state.step, **valid, "tokens": state.tokens, "skipped": state.skipped}
    result |= {"best_step": state.best_step, "best_nll": state.best_nll, "elapsed_seconds": state.elapsed_seconds}
    if run.runtime.is_main:
        write_result(run.dir, result)
    tokens = f"{valid['valid_tokens']:,} tokens of validation"
    run.journal.say(f"{run.dir}: done after {state.step} steps: {describe_valid(valid)} on {tokens}")
    return _result(run.dir, result)


def is_finished(config: Config) -> bool:
    """Whether this run is trained to `train.max_steps` and evaluated with these settings, its last checkpoint whole."""
    run_dir = Path(config.run.dir)
    result = read_result(run_dir)
    if result is None or result.get("step") != config.train.max_steps:
        return False
    try:
        saved = load_config(run_dir / "config.yaml")
        newest = checkpoints(run_dir)
        return not changed_settings(saved, config) and bool(newest) and problem(newest[0]) is None
    except (ConfigError, CheckpointError):
        return False


def finished_before(config: Config) -> TrainResult:
    """The result of a run that was done before."""
    run_dir = Path(config.run.dir)
    result = read_result(run_dir)
    assert result is not None
    if int(os.environ.get("RANK", "0")) == 0:
        nll = "not finite" if result["valid_nll"] is None else f"{result['valid_nll']:.4f}"
        print(f"{run_dir}: done before, {result['step']} steps, valid nll {nll}", flush=True)
    return _result(run_dir, result)


def _result(run_dir: Path, result: dict[str, Any]) -> TrainResult:
    nll = result["valid_nll"]
    return TrainResult(int(result["step"]), math.nan if nll is None else float(nll), run_dir, finished=True)
