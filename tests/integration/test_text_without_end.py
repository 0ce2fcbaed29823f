"""The README's commands for text without end, each run as it is written, on a tiny run that was trained for it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import words
from tests.runs import tiny
from txl import cli
from txl.train import loop

REPOSITORY = Path(__file__).resolve().parents[2]
SECTION = (REPOSITORY / "README.md").read_text("utf-8").split("## Text without end")[1].split("\n## ")[0]
BLOCK = SECTION.split("```bash\n")[1].split("```")[0]
COMMANDS = [re.sub(r"\s+# .*", "", line) for line in BLOCK.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader stands after the quickstart, with a book, a log, and `txl` in bin/."""
    folder = tmp_path_factory.mktemp("reader")
    loop.train(tiny(folder, "train.max_steps=4", "train.eval_every=4", run="runs/quickstart/xl"))
    (folder / "book.txt").write_text(words(200), encoding="utf-8")
    (folder / "server.log").write_text(words(27, seed=1), encoding="utf-8")
    (folder / "bin").mkdir()
    script = folder / "bin" / "txl"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m txl "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return folder


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words_ = ["bash", "-c", command]
    done = subprocess.run(words_, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return done


def test_the_commands_are_those_this_file_runs() -> None:
    assert len(COMMANDS) == 7
    for command in COMMANDS:
        for words_ in re.findall(r"txl (score|generate) ([^|>)]*)", command):
            cli.parser_of(words_[0]).parse_intermixed_args(shlex.split(words_[1]))


def test_the_plain_commands_print_what_they_promise(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)

    def run(command: str) -> str:
        words_ = shlex.split(command.split(">")[0])
        assert words_[0] == "txl"
        assert cli.main(words_[1:]) == 0
        return capsys.readouterr().out

    strangest = [json.loads(line)["bits_per_token"] for line in run(COMMANDS[1]).splitlines()]
    assert len(strangest) == 10
    assert strangest == sorted(strangest, reverse=True)
    scores = [json.loads(line) for line in run(COMMANDS[3]).splitlines()]
    assert [one["text"] for one in scores] == words(200).splitlines()
    assert run(COMMANDS[3]) == ""  # all was scored
    assert len(run(COMMANDS[4])) > 100


@pytest.mark.slow
def test_every_command_runs_in_a_shell(folder: Path) -> None:
    (folder / "book.state").unlink(missing_ok=True)  # of another test
    log = subprocess.Popen(
        ["bash", "-c", COMMANDS[0]],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert log.stdout is not None
    found = [json.loads(log.stdout.readline())["text"] for _ in range(3)]
    assert found == words(27, seed=1).splitlines()
    with (folder / "server.log").open("a", encoding="utf-8") as file:
        file.write("a new line\n")
    assert json.loads(log.stdout.readline())["text"] == "a new line"
    os.killpg(log.pid, signal.SIGINT)  # what Ctrl-C does to a pipe
    _, err = log.communicate(timeout=60)
    assert b"stopped after byte" in err or b"tokens" in err
    shown = [shell(command, folder).stdout for command in COMMANDS[1:]]
    assert len(shown[0].splitlines()) == 10
    ranked = [float(line.split("\t")[0]) for line in shown[1].splitlines()]
    assert ranked == sorted(ranked, reverse=True)
    assert len(ranked) == 10
    assert (folder / "book.state").exists()
    assert len((folder / "scores.jsonl").read_text("utf-8").splitlines()) == len(words(200).splitlines())
    assert len(shown[3]) > 100
    assert [json.loads(line)["prompt"] for line in shown[5].splitlines()].count(0) >= 20
