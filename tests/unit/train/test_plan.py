"""Arithmetic of many processes against counting by hand, the page about it, and streams that do not share out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from tests.runs import tiny
from txl import cli
from txl.config import load_config, to_yaml
from txl.data import DataError, Streams, prepare
from txl.data.mixing import Share
from txl.model import build_model
from txl.train.plan import check_partition, plan

ROOT = Path(__file__).resolve().parents[3]


def test_a_plan_is_what_is_counted_by_hand(tmp_path: Path) -> None:
    config = tiny(tmp_path, "data.batch_size=24", "train.accumulate=2")
    found = plan(config, n_parameters=1000, world=4)
    assert (found.rows, found.micro_rows) == (6, 3)
    assert (found.step_tokens, found.context_tokens) == (24 * 7, 24 * 9)
    assert (found.weight_bytes, found.gradient_bytes, found.optimizer_bytes) == (4000, 4000, 8000)
    assert found.memory_bytes == 4 * 2 * 6 * 9 * 12
    assert found.fixed_bytes == 16_000 + 5184
    assert found.sent_bytes == 2 * 3 * 1000  # three quarters of 4,000 bytes, twice
    parts = plan(replace(config, runtime=replace(config.runtime, shard="full")), n_parameters=1000, world=4)
    assert (parts.weight_bytes, parts.optimizer_bytes, parts.sent_bytes) == (1000, 2000, 3 * 3 * 1000)
    assert parts.memory_bytes == found.memory_bytes
    assert plan(config, n_parameters=1000, world=1).sent_bytes == 0


def test_the_numbers_of_the_page_about_scaling_are_those_of_its_config() -> None:
    page = (ROOT / "docs" / "scaling.md").read_text("utf-8")
    config = load_config(ROOT / "configs" / "paper" / "enwik8_large.yaml", ["train.accumulate=1"])
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in build_model(config.model, 256).parameters())
    model, rows = config.model, config.data.batch_size
    assert f"P = {count:,}" in page
    assert f"{rows * model.tgt_len:,} tokens behind {rows * model.mem_len:,} positions" in page
    for world in (1, 8, 16, 64):
        memory = 4 * model.n_layer * (rows // world) * model.mem_len * model.d_model
        ring = 4 * count * (world - 1) / world
        sizes = (16 * count, 16 * count / world, memory, 2 * ring, 3 * ring)
        line = " | ".join([f"| {world} | {rows // world}", *(f"{size / 1e6:,.1f}" for size in sizes)]) + " |"
        assert line in page
        found = plan(config, n_parameters=count, world=world)
        assert (found.fixed_bytes, found.sent_bytes) == (16 * count + memory, int(2 * ring))
    assert f"{8 * count / 25e9:.2f} s at 25 GB/s" in page


def test_streams_are_shared_out_to_64_processes_on_one(tmp_path: Path) -> None:
    config = tiny(tmp_path, "data.batch_size=64", "data.shuffle_documents=true", "data.reset_memory=true")
    assert check_partition(prepare(config), config, world=64) == (
        "699 targets an epoch in 64 streams, each once; 699 of them compared with those of one process"
    )


def test_the_epoch_of_a_mixture_is_shared_out_too(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    corpus = prepare(config)  # documents of 234, 233 and 233 bytes; the first a source of weight 3, the others one of 1
    mixed = replace(corpus, train=replace(corpus.train, mixture=(Share(0, 3.0), Share(1, 1.0))))
    told = check_partition(mixed, config, world=4)
    assert told.startswith(f"{3 * 234 + 233 - 1} targets an epoch in 4 streams, each once")


def test_streams_that_are_not_shared_out_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(tmp_path)
    corpus = prepare(config)
    serve = Streams.__next__

    def swapped(self: Streams) -> object:
        batch = serve(self)
        return replace(batch, inputs=batch.inputs.flip(0)) if len(batch.inputs) == 2 else batch

    monkeypatch.setattr(Streams, "__next__", swapped)
    with pytest.raises(DataError, match="streams: inputs of segment 0 differ between 2 processes and one"):
        check_partition(corpus, config, world=2)


def test_validate_checks_a_config_for_64_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(tiny(tmp_path, "data.batch_size=64", "runtime.shard=full")), encoding="utf-8")
    assert cli.main(["validate", str(path), "--world", "64"]) == 0
    said = capsys.readouterr().out
    assert "64, each with 1 rows, 1 a micro-batch" in said
    assert "699 targets an epoch in 64 streams, each once" in said
    assert "448 tokens behind 576 of memory a layer" in said
    assert cli.main(["validate", str(path), "--world", "48"]) == 2
    assert "data.batch_size: found 64, for 48 processes" in capsys.readouterr().err
    assert cli.main(["validate", str(path), "--world", "0"]) == 2


def test_every_launch_config_starts_as_many_processes_as_its_name_says_and_shows_its_command() -> None:
    counts = {}
    for path in sorted((ROOT / "configs" / "launch").glob("*.yaml")):
        text = path.read_text("utf-8")
        settings = yaml.safe_load(text)
        counts[path.stem] = (settings["num_machines"], settings["num_processes"])
        assert f"accelerate launch --config_file configs/launch/{path.name}" in text
        assert "-m txl train CONFIG" in text
        assert settings["mixed_precision"] == "no"  # the run's own config decides
    assert counts == {"1-gpu": (1, 1), "2-cpus": (1, 2), "2-nodes": (2, 16), "8-gpus": (1, 8)}
