"""What a tracker is told, through Accelerate, and the way out where its package is not there."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
from accelerate import tracking
from accelerate.utils import LoggerType

from tests.runs import metrics, tiny
from txl.config import Config, ConfigError, RunConfig, TrainConfig
from txl.train.loop import train
from txl.train.trackers import settings

FEW = ("train.max_steps=4", "train.sample_every=0", "train.save_every=2")


class Service:
    """Stands for the package `wandb` or `trackio`: keeps what it is told."""

    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.settings: dict[str, Any] = {}
        self.ended = 0

    def install(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        module = types.ModuleType(name)
        config = types.SimpleNamespace(update=lambda values, **rest: self.settings.update(values))
        module.__dict__.update(init=self.init, config=config)
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(tracking, "_available_trackers", [*tracking._available_trackers, LoggerType(name)])

    def init(self, **asked: Any) -> Service:
        self.begun.append(asked)
        return self

    def log(self, values: dict[str, Any], step: int, **rest: Any) -> None:
        self.logged.append((step, values))

    def finish(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_tracker_that_is_not_there_is_refused_with_the_command_that_installs_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "_available_trackers", [])
    config = tiny(tmp_path, f"run.trackers=[{name}]")
    way_out = rf"run\.trackers: found {name}, which is not installed; allowed: .*: pip install 'txl\[{name}\]'"
    with pytest.raises(ConfigError, match=way_out):
        train(config)
    assert not Path(config.run.dir).exists()


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_every_step_s_numbers_are_told_and_a_run_that_goes_on_is_the_same_curve(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service()
    service.install(name, monkeypatch)
    train(tiny(tmp_path, *FEW, f"run.trackers={name}"))
    train(tiny(tmp_path, *FEW, f"run.trackers={name}", "train.max_steps=6"))
    assert [step for step, _ in service.logged] == [1, 2, 3, 4, 5, 6]
    lines = metrics(tmp_path / "run", without=())
    for (step, told), line in zip(service.logged, lines, strict=True):
        assert {"step": step, **told} == line
    assert service.settings["model.mem_len"] == 9
    assert service.ended == 2
    first, second = service.begun
    assert first == second
    assert first["project"] == "txl"
    assert first["name"].startswith("run-")
    assert first["resume"] == "allow"
    assert first.get("id", first["name"].removeprefix("run-")) == first["name"].removeprefix("run-")


def test_it_is_ended_when_the_run_fails_and_another_run_is_another_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service()
    service.install("trackio", monkeypatch)
    monkeypatch.setattr("txl.train.loop.count_bytes", lambda *args: 1 // 0)
    for name in ("one", "other"):
        with pytest.raises(ZeroDivisionError):
            train(tiny(tmp_path, *FEW, "run.trackers=trackio", run=name))
    assert service.ended == 2
    assert service.begun[0]["name"].startswith("one-")
    assert service.begun[0]["name"].removeprefix("one") != service.begun[1]["name"].removeprefix("other")


def test_settings_are_plain_values_under_dotted_keys() -> None:
    found = settings(Config(run=RunConfig(dir="runs/a"), train=TrainConfig(tgt_len_schedule=((0, 16), (9, 128)))))
    assert found["run.dir"] == "runs/a"
    assert found["optim.lr"] == 1e-3
    assert found["data.shuffle_documents"] is False
    assert found["data.valid"] == "null"
    assert found["train.tgt_len_schedule"] == "[[0, 16], [9, 128]]"
    assert all(isinstance(value, bool | int | float | str) for value in found.values())
