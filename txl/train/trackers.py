"""Experiment trackers: each step's numbers to TensorBoard, Weights & Biases or Trackio, through Accelerate.

run.trackers, a Runtime and records -> whatever those packages keep; on the main process alone. metrics.jsonl has the
same numbers without any of them. Knows nothing of models or of what the numbers mean.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from txl.config import Config, ConfigError
from txl.config.domains import show
from txl.runtime import Runtime

PROJECT = "txl"


class Trackers:
    """The trackers of one run, from `begin` to the end of a `with` block; often none, and none on other processes."""

    def __init__(self, config: Config, runtime: Runtime) -> None:
        """Raises ConfigError, with the command that installs it, for one that is not there."""
        self._accelerator, self._config = runtime.accelerator, config
        self._active = bool(config.run.trackers) and runtime.is_main
        there = {str(name) for name in self._accelerator.log_with}
        missing = [name for name in config.run.trackers if name not in there]
        if missing:
            raise ConfigError(
                [
                    f"run.trackers: found {name}, which is not installed; allowed: leave it out, or install it: "
                    f"pip install 'txl[{name}]'"
                    for name in missing
                ]
            )

    def __enter__(self) -> Trackers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for tracker in self._accelerator.trackers:
            tracker.finish()
        self._accelerator.trackers.clear()

    def begin(self) -> None:
        """Open them, now that the run can begin or go on."""
        if self._active:
            name, number = Path(self._config.run.dir).name, _identity(Path(self._config.run.dir))
            hosted = {"name": f"{name}-{number}", "resume": "allow"}
            self._accelerator.init_trackers(
                PROJECT,
                config=settings(self._config),
                init_kwargs={"wandb": {**hosted, "id": number, "dir": self._config.run.dir}, "trackio": hosted},
            )

    def log(self, record: Mapping[str, Any]) -> None:
        """A step's numbers; one that is not there, or not finite, is a gap."""
        if self._active:
            numbers = {name: value for name, value in record.items() if value is not None and name != "step"}
            self._accelerator.log(numbers, step=int(record["step"]))


def settings(config: Config) -> dict[str, bool | int | float | str]:
    """The config by dotted keys, in the plain types that every tracker takes."""
    return {
        f"{section}.{name}": value if isinstance(value, bool | int | float | str) else show(value)
        for section, fields in asdict(config).items()
        for name, value in fields.items()
    }


def _identity(run_dir: Path) -> str:
    """What tells this run from others of its name, drawn once: a run that goes on is one curve."""
    path = run_dir / ".tracked"
    if not path.exists():
        path.write_text(uuid.uuid4().hex[:8], encoding="utf-8")
    return path.read_text("utf-8")
