"""txl generate on a small random model: several prompts, log-probabilities, beams, states, and what excludes what."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import words
from tests.streaming import make_run
from txl import Session, cli, load

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("byte") / "run")


@pytest.fixture(scope="module")
def word_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("word") / "run", "tokenizer.kind=word", "data.separator=<doc>")


def generate(*words: Any, code: int = 0) -> None:
    assert cli.main(["generate", *map(str, words)]) == code


def test_several_prompts_give_what_each_gives_alone(word_run: Path, capsys: Capture) -> None:
    prompts = ["the river", "a grey bridge and its boats " * 9, ""]
    rules = ("--max-new-tokens", 12, "--top-k", 9, "--repetition-penalty", 1.2, "--stop", " boats")
    generate(word_run, *rules, "--seed", 5, *(word for prompt in prompts for word in ("--prompt", prompt)))
    together = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["prompt"] for one in together] == prompts
    for number, (prompt, one) in enumerate(zip(prompts, together, strict=True)):
        generate(word_run, *rules, "--seed", 5 + number, "--prompt", prompt)
        assert capsys.readouterr().out == one["text"] + "\n"


def test_log_probabilities_are_the_models_own(run: Path, capsys: Capture) -> None:
    generate(run, "--prompt", "the café", "--max-new-tokens", 8, "--temperature", 0.5, "--log-probs", "--seed", 2)
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    generate(run, "--prompt", "the café", "--max-new-tokens", 8, "--temperature", 0.5, "--seed", 2)
    assert "".join(one["text"] for one in found) + "\n" == capsys.readouterr().out
    ids = [one["token"] for one in found if one["token"] is not None]
    said = list("the café".encode())
    nats = Session(load(run).model).feed(torch.tensor([said + ids]))[0, len(said) :]
    assert [one["log_prob"] for one in found if one["token"] is not None] == pytest.approx((-nats).tolist(), abs=1e-5)


@pytest.mark.parametrize(
    "rule",
    [
        ["--min-p", 0.3],
        ["--typical-p", 0.3],
        ["--top-p", 0.3],
        ["--frequency-penalty", 5],
        ["--repetition-penalty", 3],
        ["--window", 2],
    ],
)
def test_every_rule_reaches_the_text(rule: list[Any], run: Path, capsys: Capture) -> None:
    texts = []
    for words_ in ([], rule):
        generate(run, "--prompt", "the the the the", "--max-new-tokens", 30, "--seed", 1, *words_)
        texts.append(capsys.readouterr().out)
    assert texts[0] != texts[1]


def test_ids_end_a_text_after_themselves(run: Path, capsys: Capture) -> None:
    common = (run, "--prompt", "the", "--max-new-tokens", 30, "--seed", 1, "--log-probs")
    generate(*common)
    ids = [json.loads(line)["token"] for line in capsys.readouterr().out.splitlines()]
    generate(*common, "--stop-ids", f"{ids[5]},{ids[6]}")
    shown = [json.loads(line)["token"] for line in capsys.readouterr().out.splitlines()]
    assert [one for one in shown if one is not None] == ids[:7]


def test_beams_print_the_best_or_all_that_was_found(word_run: Path, capsys: Capture) -> None:
    common = (word_run, "--prompt", "the river", "--max-new-tokens", 2)
    bundle = load(word_run)
    session = Session(bundle.model)
    session.feed(torch.tensor([bundle.tokenizer.encode("the river")]))
    sums = {}
    for ids in itertools.product(range(bundle.tokenizer.vocab_size), repeat=2):
        sums[ids] = -float(session.fork().feed(torch.tensor([ids])).double().sum())
    best = sorted(sums, key=lambda ids: sums[ids], reverse=True)
    generate(*common, "--beams", bundle.tokenizer.vocab_size)
    assert capsys.readouterr().out == " " + bundle.tokenizer.decode(list(best[0])) + "\n"
    generate(*common, "--beams", bundle.tokenizer.vocab_size, "--log-probs", "--length-penalty", 0.5)
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(found) == bundle.tokenizer.vocab_size
    for one, ids in zip(found, best, strict=False):
        assert one["log_prob"] == pytest.approx(sums[ids], abs=1e-4)
        assert one["score"] == pytest.approx(sums[ids] / math.sqrt(2), abs=1e-4)
    generate(word_run, "--max-new-tokens", 2, "--beams", 3)
    assert "starts after a document separator" in capsys.readouterr().err


def test_beams_without_anything_to_go_on_from_draw_the_first_token(run: Path, capsys: Capture) -> None:
    generate(run, "--max-new-tokens", 4, "--beams", 2, "--seed", 3)
    shown = capsys.readouterr()
    assert "drawn uniformly" in shown.err
    generate(run, "--max-new-tokens", 1, "--seed", 3, "--log-probs")
    first = json.loads(capsys.readouterr().out.splitlines()[0])["token"]
    assert shown.out.encode()[:1] == bytes([first]) or first > 127


def test_a_text_goes_on_where_scoring_stopped(run: Path, tmp_path: Path, capsys: Capture) -> None:
    text, state = words(200), tmp_path / "s.state"
    (tmp_path / "book.txt").write_text(text, encoding="utf-8")
    assert cli.main(["score", str(run), str(tmp_path / "book.txt"), "--window", "6", "--state", str(state)]) == 0
    before = state.read_bytes()
    capsys.readouterr()
    generate(run, "--state", state, "--max-new-tokens", 40, "--seed", 4)
    shown = capsys.readouterr()
    assert shown.err == ""
    assert state.read_bytes() == before
    generate(run, "--prompt", text, "--window", 6, "--max-new-tokens", 40, "--seed", 4)
    assert capsys.readouterr().out == shown.out
    generate(run, "--state", state, "--prompt", "π", "--prompt", "a", "--max-new-tokens", 9, "--seed", 4)
    both = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    generate(run, "--prompt", text + "a", "--window", 6, "--max-new-tokens", 9, "--seed", 5)
    assert capsys.readouterr().out == both[1] + "\n"
    generate(run, "--state", state, "--window", 3, code=2)
    assert (
        f"--state {state}: the state is not of a session like this one: window is 6 instead of 3"
        in capsys.readouterr().err
    )
    generate(run, "--state", tmp_path / "book.txt", code=2)
    assert "cannot be read as a state" in capsys.readouterr().err


def test_endless_text_comes_until_ctrl_c(run: Path) -> None:
    command = [sys.executable, "-m", "txl", "generate", str(run), "--prompt", "a", "--max-new-tokens", "inf"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert len(process.stdout.read(300)) == 300
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_a_parent_of_runs_says_which_runs_it_holds(tmp_path: Path, capsys: Capture) -> None:
    for name in ("xl", "vanilla"):
        os.mkdir(tmp_path / name)
        make_run(tmp_path / name)
    generate(tmp_path, code=2)
    assert f"; did you mean {tmp_path / 'vanilla'} or {tmp_path / 'xl'}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt", "a", "--prompt", "b", "--max-new-tokens", "inf"], "--max-new-tokens: found inf with several"),
        (["--beams", "2", "--temperature", "0.5", "--top-k", "3"], "--beams: found --temperature, --top-k too"),
        (["--beams", "2", "--greedy"], "--beams: found --temperature"),
        (["--beams", "2", "--max-new-tokens", "inf"], "--beams: found --max-new-tokens inf"),
        (["--beams", "2", "--stop", "x"], "--beams: found --stop; allowed: --stop-ids"),
        (["--beams", "2", "--prompt", "a", "--prompt", "b"], "--beams: found 2 prompts; allowed: one"),
        (["--beams", "0", "--prompt", "a"], "--beams is 0: must be at least 1"),
        (["--length-penalty", "2"], "--length-penalty: found 2.0 without --beams"),
        (["--beams", "2", "--prompt", "a", "--length-penalty", "-2"], "--length-penalty is -2.0"),
        (["--max-new-tokens", "-5"], "--max-new-tokens: found -5; allowed: at least 0, or inf for no end"),
        (["--min-p", "2"], "--min-p is 2.0: must be 0 to 1"),
        (
            ["--typical-p", "0", "--top-p", "0"],
            "--top-p is 0.0: must be above 0 and at most 1; --typical-p is",
        ),
        (["--seed", "-1"], "--seed is -1"),
        (["--stop-ids", "9999"], "--stop-ids is [[9999]]: each list must have at least one id, each id 0 to 255"),
        (["--stop-ids", "9999", "--beams", "2", "--prompt", "a"], "--stop-ids is [[9999]]"),
        (["--greedy", "--temperature", "2"], "--greedy: found --temperature 2.0 too; allowed: one of them"),
    ],
)
def test_what_cannot_be_is_named_as_it_was_given(words: list[str], message: str, run: Path, capsys: Capture) -> None:
    generate(run, *words, code=2)
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


def test_words_that_are_no_number_are_misuse(run: Path, capsys: Capture) -> None:
    for option, word, allowed in (
        ("--max-new-tokens", "many", "a whole number, or inf for no end"),
        ("--stop-ids", "1;2", "whole numbers with commas, e.g. 13,10"),
    ):
        with pytest.raises(SystemExit) as end:
            generate(run, option, word)
        assert end.value.code == 2
        assert f"argument {option}: found '{word}'; allowed: {allowed}" in capsys.readouterr().err
