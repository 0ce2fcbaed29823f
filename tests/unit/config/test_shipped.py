"""The configs that come with txl: each can be run, and twins differ only in what a comparison is about."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from txl.config import load_config
from txl.model import build_model

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
SHIPPED = sorted(path for path in CONFIGS.rglob("*.yaml") if path.parent.name != "launch")  # those are Accelerate's


def test_there_are_configs() -> None:
    assert {"quickstart.yaml", "quickstart-vanilla.yaml"} <= {path.name for path in SHIPPED}


@pytest.mark.parametrize("path", SHIPPED, ids=[str(path.relative_to(CONFIGS)) for path in SHIPPED])
def test_a_shipped_config_is_valid_and_says_how_to_run_it(path: Path) -> None:
    config = load_config(path)
    assert config.run.dir.startswith("runs/")
    header = path.read_text("utf-8").split("\nrun:")[0]
    assert all(line.startswith("#") or not line for line in header.splitlines())
    assert re.search(r"txl \w+ configs/|scripts/", header), header


WORDS = {"enwik8": 204, "text8": 27, "wt103": 267_735, "lm1b": 793_471}
"""Symbols or words of the published data sets."""


@pytest.mark.parametrize("path", sorted((CONFIGS / "paper").iterdir()), ids=lambda path: path.stem)
def test_a_published_setting_has_as_many_parameters_as_its_first_line_says(path: Path) -> None:
    said = re.search(r"([\d.]+)([MB]) parameters", path.read_text("utf-8"))
    assert said is not None
    with torch.device("meta"):  # shapes without numbers
        model = build_model(load_config(path).model, WORDS[path.stem.split("_")[0]])
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert counted / {"M": 1e6, "B": 1e9}[said[2]] == pytest.approx(float(said[1]), rel=0.02, abs=0.05)


def test_the_quickstarts_twins_differ_in_model_rate_and_order_of_segments_alone() -> None:
    xl, vanilla = (load_config(CONFIGS / name) for name in ("quickstart.yaml", "quickstart-vanilla.yaml"))
    ordered, as_xl = replace(vanilla.data, shuffle_segments=False), replace(vanilla.optim, lr=xl.optim.lr)
    assert replace(vanilla, run=xl.run, data=ordered, model=xl.model, optim=as_xl) == xl
    assert vanilla.data.shuffle_segments
    assert replace(vanilla.run, dir=xl.run.dir) == xl.run
    assert (xl.run.dir, vanilla.run.dir) == ("runs/quickstart/xl", "runs/quickstart/vanilla")
    assert (xl.model.arch, vanilla.model.arch) == ("transformer_xl", "transformer")
    differing = {name for name, value in asdict(xl.model).items() if asdict(vanilla.model)[name] != value}
    assert differing <= {"arch", "position", "mem_len", "n_layer", "d_model", "d_inner", "tgt_len"}


def test_the_quickstarts_twins_have_about_as_many_parameters() -> None:
    counts = [
        sum(parameter.numel() for parameter in build_model(load_config(CONFIGS / name).model, 256).parameters())
        for name in ("quickstart.yaml", "quickstart-vanilla.yaml")
    ]
    assert max(counts) < 1.1 * min(counts), counts


def test_the_probes_twins_differ_in_the_model_alone_and_are_of_one_size() -> None:
    xl, vanilla = (load_config(CONFIGS / "probe" / name) for name in ("xl.yaml", "vanilla.yaml"))
    assert replace(vanilla, run=xl.run, model=xl.model) == xl
    sizes = [sum(p.numel() for p in build_model(config.model, 256).parameters()) for config in (xl, vanilla)]
    assert max(sizes) < 1.01 * min(sizes), sizes
