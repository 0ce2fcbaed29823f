"""Words to a verb and an exit code; quick to start, and every message on standard error."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import txl
from txl import cli
from txl.checkpoint import CheckpointError
from txl.config import Config, ConfigError, load_config
from txl.data import DataError
from txl.train.loop import NonFiniteError, Preempted
from txl.verbs import corpus, measuring, writing

REPOSITORY = Path(__file__).resolve().parents[2]
QUICKSTART = REPOSITORY / "configs" / "quickstart.yaml"
# What takes long to load and must stay out of what only reads words and YAML.
HEAVY = ("torch", "numpy", "datasets", "tokenizers", "accelerate", "matplotlib", "transformers")


def python(*words: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter with these arguments, in the repository."""
    return subprocess.run(
        [sys.executable, *words], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )


def cpu_seconds(*words: str, enough: float) -> float:
    """Processor time of a fresh interpreter: the least of a few, for other work on the machine only adds to it."""
    least = 9.9
    for _ in range(12):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert python(*words).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        least = min(least, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if least < enough:
            break
    return least


@pytest.mark.parametrize(
    ("words", "limit_seconds"),
    [
        (["-c", "import txl"], 0.2),
        (["-m", "txl", "--help"], 0.3),
        (["-m", "txl", "train", "--help"], 0.3),
        (["-m", "txl", "config", str(QUICKSTART)], 0.3),
    ],
)
def test_it_starts_quickly(words: list[str], limit_seconds: float) -> None:
    assert cpu_seconds(*words, enough=limit_seconds) < limit_seconds


@pytest.mark.parametrize(
    "words", [["--help"], ["compare", "--help"], ["config", str(QUICKSTART)], ["config", "none.yaml"]]
)
def test_what_only_reads_words_and_yaml_loads_no_torch(words: list[str]) -> None:
    source = (
        "import sys, txl, txl.cli\n"
        "try:\n    txl.cli.main(sys.argv[1:])\n"
        "except SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    assert python("-c", source, *words).stderr.splitlines()[-1] == "[]"


def test_every_public_name_is_there_and_an_unknown_one_says_what_is() -> None:
    for name in txl.__all__:
        assert getattr(txl, name) is not None
        assert name in dir(txl)
    with pytest.raises(AttributeError, match=r"module 'txl' has no attribute 'Trainer'; it offers .*build_model"):
        _ = txl.Trainer
    assert txl.load_config is load_config


def test_the_overview_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    verbs = "compare train watch eval score probe generate prepare validate bench import export config".split()
    assert list(cli.VERBS) == verbs
    for verb in verbs:
        assert f"\n  {verb} " in shown


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_help_with_an_example_that_parses(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([verb, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: txl {verb}" in shown
    assert "for example:\n  " in shown
    for line in cli.VERBS[verb].examples.splitlines():
        assert f"  {line}\n" in shown
        assert f"txl {verb} " in line


def test_no_word_or_an_unknown_one_is_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "usage: txl VERB" in capsys.readouterr().out
    assert cli.main(["trian"]) == 2
    assert capsys.readouterr().err == "txl: unknown verb 'trian'; did you mean train?\n"
    assert cli.main(["x"]) == 2
    assert "allowed: compare, train, watch, eval" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        cli.main(["train"])
    assert end.value.code == 2


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"txl {txl.__version__}\n"


def test_options_and_settings_may_come_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}
    monkeypatch.setattr(measuring, "evaluate", lambda **given: seen.update(given))
    assert (
        cli.main(["eval", "--window", "5", "run", "--json", "f", "data.test=a", "--context", "4,8", "data.valid=b"])
        == 0
    )
    assert seen == {
        "run": Path("run"),
        "checkpoint": "newest",
        "window": 5,
        "context": "4,8",
        "kind": None,
        "stride": None,
        "split": "test",
        "batch_size": None,
        "json": Path("f"),
        "overrides": ["data.test=a", "data.valid=b"],
    }
    monkeypatch.setattr(writing, "generate", lambda **given: seen.update(given))
    assert cli.main(["generate", "run", "-", "--top-k", "3", "--stop", "a", "--stop", "b", "--greedy"]) == 0
    assert (seen["overrides"], seen["top_k"], seen["stop"], seen["greedy"]) == (["-"], 3, ["a", "b"], True)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError(["model.n_layer: found 0"]), 2),
        (DataError("data.train: empty"), 2),
        (CheckpointError("no checkpoint"), 2),
        (NonFiniteError("step 3: not finite"), 3),
        (FloatingPointError("the model gives NaN"), 3),
        (Preempted(signal.SIGTERM, "saved; go on with the same command"), 143),
        (Preempted(signal.SIGUSR1, "saved"), 143),
        (Preempted(signal.SIGINT, "saved"), 130),
        (KeyboardInterrupt(), 130),
        (PermissionError(errno.EACCES, "Permission denied", "out.json"), 2),
        (OSError(errno.ENOSPC, "No space left on device"), 2),
    ],
)
def test_an_error_becomes_its_exit_code_and_one_message(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**given: object) -> None:
        raise error

    monkeypatch.setattr(corpus, "config", fail)
    assert cli.main(["config", "c.yaml"]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert str(error) in shown.err
    assert "Traceback" not in shown.err


def test_a_fault_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**given: object) -> None:
        raise fault

    for fault in (ZeroDivisionError(), OSError(errno.EBADF, "Bad file descriptor")):
        monkeypatch.setattr(corpus, "config", fail)
        with pytest.raises(type(fault)):
            cli.main(["config", "c.yaml"])


def test_config_prints_yaml_that_reads_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["config", str(QUICKSTART), "model.mem_len=64"]) == 0
    printed = tmp_path / "printed.yaml"
    printed.write_text(capsys.readouterr().out, encoding="utf-8")
    assert load_config(printed) == load_config(QUICKSTART, ["model.mem_len=64"]) != Config()


def test_bad_config_ends_with_code_2_and_every_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", str(QUICKSTART), "model.n_layer=0", "model.foo=1"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 2
    assert shown.err.startswith("txl config: override model.foo=1: model.foo: unknown key; ")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    words = [sys.executable, "-m", "txl", "config", str(QUICKSTART)]
    done = subprocess.run(
        words, cwd=REPOSITORY, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")
