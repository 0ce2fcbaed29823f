"""Two gloo processes are one run: gradients, losses, log and checkpoints are those of one process at the same batch."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

from tests.commands import config_file
from tests.runs import NO_DROPOUT, UNUSUAL, differences, in_clusters, metrics, remains, stop_at, tensors, tiny
from txl.checkpoint import checkpoints
from txl.runtime import Runtime
from txl.train.loop import Preempted, train

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def started(folder: Path, what: str, *, world: int) -> list[tuple[int, str]]:
    """Run a part of the worker in `world` processes; the exit code and the output of each."""
    shared = {
        "PYTHONPATH": str(ROOT),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    command = [sys.executable, str(Path(__file__).with_name("worker.py")), str(folder), what]
    workers = [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        said = [worker.communicate(timeout=110)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    return [(worker.returncode, text) for worker, text in zip(workers, said, strict=True)]


def launch(folder: Path, *, world: int) -> list[dict[str, Any]]:
    """Run all scenarios of the worker in `world` processes; what each noted."""
    ended = started(folder, "all", world=world)
    assert [code for code, _ in ended] == [0] * world, "\n".join(text for _, text in ended)
    assert all(not line.startswith("step ") for line in ended[1][1].splitlines())  # one process prints
    assert "Warning" not in "".join(text for _, text in ended)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world)]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of all runs of two processes, and what each process noted."""
    folder = tmp_path_factory.mktemp("together")
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 4)
        with pytest.raises(Preempted):
            train(tiny(folder, *NO_DROPOUT, run="begun-alone"))  # two processes go on with it
    noted = launch(folder, world=2)
    for copy in ("moved-to-4", "moved-again"):
        shutil.copytree(folder / "moved", folder / copy)
    return folder, noted


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[float]]]:
    """The same runs in one process."""
    folder, taken, clip = tmp_path_factory.mktemp("alone"), [], Runtime.clip

    def noted(self: Runtime, model: torch.nn.Module, max_norm: float) -> float:
        taken.append([float(parameter.grad.norm()) for parameter in model.parameters() if parameter.grad is not None])
        return clip(self, model, max_norm)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runtime, "clip", noted)
        train(tiny(folder, *NO_DROPOUT, "train.max_steps=5", run="two", train_bytes=110))
    train(tiny(folder, *NO_DROPOUT, run="all"))
    return folder, taken


Together = tuple[Path, list[dict[str, Any]]]
Alone = tuple[Path, list[list[float]]]


def close(one: list[dict[str, Any]], other: list[dict[str, Any]], *, rel: float) -> None:
    """Logs with the same steps and numbers; memory_bytes are those of one process."""
    assert len(one) == len(other)
    for line, twin in zip(one, other, strict=True):
        ours, theirs = ({k: v for k, v in record.items() if k != "memory_bytes"} for record in (line, twin))
        assert ours == pytest.approx(theirs, rel=rel)


def test_18_two_processes_of_two_rows_give_the_gradient_of_one_with_four(together: Together, alone: Alone) -> None:
    for name in ("gradients", "accumulated"):
        for rank in (0, 1):
            found = torch.tensor(together[1][rank][name])
            assert found.shape[0] == 5
            torch.testing.assert_close(found, torch.tensor(alone[1]), atol=1e-6, rtol=1e-5)


def test_18_processes_whose_targets_lie_in_different_clusters_take_the_steps_of_one(together: Together) -> None:
    folder, (first, second) = together
    train(in_clusters(folder, run="clusters-alone"))
    close(metrics(folder / "clusters"), metrics(folder / "clusters-alone"), rel=1e-5)
    assert first["clusters"] == second["clusters"]


def test_p7_losses_norms_tokens_and_validations_are_those_of_one_process(together: Together, alone: Alone) -> None:
    for run in ("two", "two-accumulated"):
        close(metrics(together[0] / run), metrics(alone[0] / "two"), rel=2e-6)
    assert [line["tokens"] for line in metrics(together[0] / "two")] == [28, 56, 84, 109, 137]


def test_p7_two_processes_have_the_rates_of_one_and_count_the_tokens_a_second_of_both(
    together: Together, alone: Alone
) -> None:
    one, two = metrics(alone[0] / "two"), metrics(together[0] / "two")
    assert [line["lr"] for line in one] == [line["lr"] for line in two]
    assert [line["lr"] for line in two] == pytest.approx([0.01 / 3, 0.02 / 3, 0.01, 0.01, 0.01], abs=1e-15)
    lines = metrics(together[0] / "saved-by-all", without=())
    assert len(lines) == 12
    shares = [  # of the time since the step before; what one process reads a second would be about half of it
        line["tokens_per_second"] * (line["elapsed_seconds"] - before["elapsed_seconds"]) / 28
        for before, line in pairwise(lines)
    ]
    assert median(shares) > 0.95
    ratios = [line["mfu"] / line["tokens_per_second"] for line in lines]
    assert ratios == pytest.approx([ratios[0]] * 12, rel=1e-9)


def test_p5_after_a_signal_to_one_of_two_processes_both_stop_save_once_and_go_on_bit_for_bit(
    together: Together,
) -> None:
    folder, (first, second) = together
    assert first["stopped"] == second["stopped"]
    assert first["stopped"][0] == signal.SIGUSR1
    one, other = remains(folder / "whole", 6), remains(folder / "parts", 6)
    assert len(one["rng"]) == 2
    assert one["rng"][0]["torch"] != one["rng"][1]["torch"]
    assert differences(one, other) == []


def test_p7_a_run_moves_from_two_processes_to_one_with_the_same_losses(together: Together, alone: Alone) -> None:
    folder = together[0]
    assert checkpoints(folder / "moved")[0].name == "step-000004"
    train(tiny(folder, *NO_DROPOUT, run="moved"))
    close(metrics(folder / "moved"), metrics(alone[0] / "all"), rel=1e-5)


def test_p7_a_run_moves_from_one_process_to_two_with_the_same_losses(together: Together, alone: Alone) -> None:
    close(metrics(together[0] / "begun-alone"), metrics(alone[0] / "all"), rel=1e-5)
    memory = [tensors(folder, 12, "memory") for folder in (together[0] / "begun-alone", alone[0] / "all")]
    for name, tensor in memory[0].items():
        torch.testing.assert_close(tensor, memory[1][name], atol=1e-5, rtol=1e-4)


def test_p6_a_number_that_is_not_finite_on_one_process_is_skipped_or_ends_the_run_on_both(together: Together) -> None:
    folder, (first, second) = together
    assert (first["skipped"], second["skipped"]) == ("", "")
    lines = metrics(folder / "skipped")
    assert [line["skipped"] for line in lines] == [0, 0, 1, 1]
    assert [line["grad_norm"] is None for line in lines] == [False, False, True, False]
    for name in ("model", "optimizer", "memory"):
        before, after = (tensors(folder / "skipped", step, name) for step in (2, 3))
        assert all(torch.equal(before[key], after[key]) for key in before)
    assert first["raised"] == second["raised"]
    assert "step 3" in first["raised"]


def test_p7_with_dropout_a_change_of_ranks_reseeds_deterministically_and_the_log_says_so(
    together: Together, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, ends = together[0], []
    for run in ("moved-once", "moved-twice"):
        shutil.copytree(folder / "moved-with-dropout", folder / run)
        train(tiny(folder, run=run))
        assert (
            "begun with 2 process(es), now 1: dropout takes new random numbers, seeded by run"
            in capsys.readouterr().out
        )
        ends.append(remains(folder / run, 12))
    assert differences(*ends) == []
    train(tiny(folder, run="never-moved"))
    assert "model head.biases.0" in differences(ends[0], remains(folder / "never-moved", 12))


@pytest.mark.slow
def test_p7_a_run_moves_from_two_processes_to_four_with_the_same_losses(together: Together, alone: Alone) -> None:
    folder = together[0]
    assert len(json.loads((checkpoints(folder / "moved-to-4")[0] / "rng.json").read_text())) == 2
    ended = started(folder, "moved", world=4)
    assert [code for code, _ in ended] == [0] * 4, "\n".join(text for _, text in ended)
    close(metrics(folder / "moved-to-4"), metrics(alone[0] / "all"), rel=1e-5)


def test_p8_every_process_takes_part_in_every_save(together: Together) -> None:
    first, second = together[1]
    assert first["saves"] == second["saves"] == [4, 6, 8, 12]


def test_p8_streams_of_unequal_length_hang_nobody(together: Together) -> None:
    # 109 pairs are four streams of 28, 27, 27 and 27: at the fourth step the rows of the second process are shorter.
    folder = together[0]
    assert [line["tokens"] for line in metrics(folder / "two")] == [28, 56, 84, 109, 137]


def test_p8_when_one_process_fails_the_other_ends_with_an_error_and_does_not_wait_for_ever(tmp_path: Path) -> None:
    began = time.monotonic()
    first, second = started(tmp_path, "failing", world=2)
    assert time.monotonic() - began < 100
    assert first[0] != 0
    assert second[0] != 0
    assert "rank 1 is broken" in second[1]
    assert [line["step"] for line in metrics(tmp_path / "failing")] == [1, 2]


def test_p8_a_process_that_has_done_its_work_is_not_aborted_by_what_gloo_still_does(tmp_path: Path) -> None:
    ended = started(tmp_path, "unfinished", world=2)
    assert [code for code, _ in ended] == [0, 0], "\n".join(text for _, text in ended)


def test_sharded_parameters_are_dtensors_and_losses_are_those_of_whole_ones(together: Together, alone: Alone) -> None:
    folder, (first, second) = together
    assert first["sharded"] == second["sharded"]
    assert len(first["sharded"]) == 7
    assert min(first["sharded"]) > 20  # every parameter is in parts
    close(metrics(folder / "sharded"), metrics(alone[0] / "all")[:6], rel=1e-5)
    for name in ("model", "optimizer", "memory"):  # what is saved is whole
        found, whole = tensors(folder / "sharded", 6, name), tensors(alone[0] / "all", 12, name)
        assert {key: t.shape for key, t in found.items()} == {key: t.shape for key, t in whole.items()}


def test_sharding_goes_with_clusters_recomputed_activations_and_micro_batches(together: Together) -> None:
    folder = together[0]
    train(tiny(folder, *NO_DROPOUT, *UNUSUAL, "train.max_steps=4", "train.eval_every=100", run="unusual-alone"))
    close(metrics(folder / "sharded-unusual"), metrics(folder / "unusual-alone"), rel=1e-5)


def test_p1_sharded_runs_go_on_bit_for_bit_and_in_one_process_without_shards(together: Together, alone: Alone) -> None:
    folder = together[0]
    assert differences(remains(folder / "sharded-whole", 4), remains(folder / "sharded-parts", 4)) == []
    assert checkpoints(folder / "sharded-moved")[0].name == "step-000003"
    train(tiny(folder, *NO_DROPOUT, run="sharded-moved"))
    close(metrics(folder / "sharded-moved"), metrics(alone[0] / "all"), rel=1e-5)


def test_p6_a_number_that_is_not_finite_changes_no_shard(together: Together) -> None:
    run = together[0] / "sharded-skipped"
    assert [line["skipped"] for line in metrics(run)] == [0, 0, 1, 1]
    for name in ("model", "optimizer", "memory"):
        before, after = (tensors(run, step, name) for step in (2, 3))
        assert all(torch.equal(before[key], after[key]) for key in before)


def test_the_command_that_the_launch_config_shows_trains_in_two_processes(alone: Alone, tmp_path: Path) -> None:
    path = config_file(tmp_path, tiny(tmp_path, *NO_DROPOUT, run="launched"))
    launcher = ["-m", "accelerate.commands.launch", "--config_file", str(ROOT / "configs" / "launch" / "2-cpus.yaml")]
    done = subprocess.run(
        [sys.executable, *launcher, "--main_process_port", str(free_port()), "-m", "txl", "train", path],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert " 2 processes, corpus " in done.stdout
    assert "Warning" not in done.stderr
    close(metrics(tmp_path / "launched"), metrics(alone[0] / "all"), rel=1e-5)
