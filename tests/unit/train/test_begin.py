"""What may differ when a run goes on, what is refused by name, and the line that tells what runs."""

from __future__ import annotations

import re
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tests.runs import metrics, text, tiny
from txl.checkpoint import CheckpointError, checkpoints, read
from txl.config import Config, ConfigError
from txl.data import DataError
from txl.train.begin import FREE_SECTIONS, FREE_SETTINGS, changed_settings
from txl.train.loop import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of four steps that has six to go."""
    folder = tmp_path_factory.mktemp("begun")
    train(begun(folder, "train.max_steps=4"))
    return folder


def begun(folder: Path, *overrides: str) -> Config:
    return tiny(folder, "train.save_every=2", "train.eval_every=100", *overrides)


def other(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else (*value, 7) if isinstance(value, tuple) else f"{value}x"


def test_every_setting_is_either_free_or_refused_with_both_values() -> None:
    config = Config()
    seen = 0
    for section in fields(Config):
        part = getattr(config, section.name)
        for field in fields(part):
            key, old = f"{section.name}.{field.name}", getattr(part, field.name)
            changed = replace(config, **{section.name: replace(part, **{field.name: other(old)})})
            lines = changed_settings(config, changed)
            free = section.name in FREE_SECTIONS or key in FREE_SETTINGS
            assert lines == ([] if free else [f"{key}: found {other(old)!r}, the run was begun with {old!r}"])
            seen += 1
    assert seen > 70
    for name in ("model.mem_len", "data.batch_size", "optim.lr", "train.accumulate", "train.loss", "tokenizer.kind"):
        assert name not in FREE_SETTINGS


def test_a_run_goes_on_with_other_free_settings_and_its_own_seed(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    free = ("train.max_steps=6", "train.save_every=1", "train.sample_every=2", "eval.batch_size=3")
    config = begun(folder, *free, f"run.dir={tmp_path / 'run'}", "run.seed=77", f"data.cache_dir={tmp_path / 'cache'}")
    train(config)
    assert [line["step"] for line in metrics(config.run.dir)] == [1, 2, 3, 4, 5, 6]
    assert read(checkpoints(config.run.dir)[0]).config.run.seed == 5


def test_all_that_differs_is_refused_at_once_and_nothing_is_touched(folder: Path) -> None:
    config = begun(folder, "train.max_steps=6", "model.mem_len=8", "optim.lr=0.5")
    before = sorted((path, path.stat().st_mtime_ns) for path in Path(config.run.dir).rglob("*") if path.is_file())
    with pytest.raises(CheckpointError) as caught:
        train(config)
    assert "model.mem_len: found 8, the run was begun with 9\n" in str(caught.value)
    assert "optim.lr: found 0.5, the run was begun with 0.01\n" in str(caught.value)
    assert "Take the old values, or another run.dir" in str(caught.value)
    assert before == sorted(
        (path, path.stat().st_mtime_ns) for path in Path(config.run.dir).rglob("*") if path.is_file()
    )


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        # w = 1: of 4 steps the fourth is the last; of 7 it stands in the middle, and the fifth at (5 - 1)/(7 - 1)
        (
            ("optim.schedule=linear",),
            "is 7 and was 4, so optim.schedule linear is another curve: the rate goes on from 0 at step 4 "
            "to 0.00333 at step 5 (it would have been 0), and to 0 at step 7",
        ),
        (
            ("optim.schedule=wsd", "optim.decay_steps=2", "optim.min_lr=0.002"),
            "optim.schedule wsd is another curve: the rate goes on from 0.002 at step 4 to 0.01 at step 5 "
            "(it would have been 0.002), and to 0.002 at step 7",
        ),
        (("optim.schedule=constant",), None),
        (("optim.schedule=inverse_sqrt",), None),
    ],
)
def test_more_steps_than_a_run_was_begun_with_are_warned_of_where_they_change_its_rate(
    overrides: tuple[str, ...], said: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("optim.warmup_steps=1", "train.sample_every=0", *overrides)
    train(begun(tmp_path, *few, "train.max_steps=4"))
    assert "warning" not in capsys.readouterr().out
    train(begun(tmp_path, *few, "train.max_steps=7"))
    shown = capsys.readouterr().out
    assert (said is None and "warning" not in shown) or f"{said}\n" in shown


def test_fewer_steps_than_were_taken_are_refused(folder: Path) -> None:
    config = begun(folder)
    fewer = replace(config, train=replace(config.train, max_steps=3))
    with pytest.raises(CheckpointError, match=r"train.max_steps: found 3, but .*run has gone on to step 4; raise it"):
        train(fewer)


def test_never_refuses_a_folder_with_checkpoints(folder: Path) -> None:
    for steps in (4, 6):  # also where all is done
        with pytest.raises(CheckpointError, match=r"run.resume is never and there are checkpoints; choose another run"):
            train(begun(folder, "run.resume=never", f"train.max_steps={steps}"))


def test_a_single_token_cannot_be_validated_on(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("x")
    config = tiny(tmp_path)
    with pytest.raises(DataError, match=r"data.valid: .*1 token.*at least 2"):
        train(replace(config, data=replace(config.data, valid=str(tmp_path / "one.txt"))))


def test_text_that_changed_is_refused_by_its_hash(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    config = begun(folder, "train.max_steps=6")
    corpus = Path(config.data.train)
    shutil.copytree(corpus, tmp_path / "train")
    before = (corpus / "0.txt").read_bytes()
    try:
        (corpus / "0.txt").write_bytes(text(len(before), seed=50))
        with pytest.raises(
            CheckpointError, match=r"corpus: found \w{12}, the run was begun with \w{12}: the text, or how"
        ):
            train(replace(config, run=replace(config.run, dir=str(tmp_path / "run"))))
    finally:
        (corpus / "0.txt").write_bytes(before)


def test_a_damaged_newest_checkpoint_is_named_and_passed_over_or_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    config = begun(folder, "train.max_steps=6", f"run.dir={tmp_path / 'run'}")
    newest = checkpoints(config.run.dir)[0]
    (newest / "optimizer.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"step-000004: optimizer.safetensors: 0 bytes"):
        train(replace(config, run=replace(config.run, resume="strict")))
    train(config)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("steps 2 to 6")
    assert lines[1].startswith("damaged checkpoint passed over: ")
    assert [line["step"] for line in metrics(config.run.dir)] == [1, 2, 3, 4, 5, 6]


def test_the_first_line_tells_what_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = begun(tmp_path, "train.max_steps=4")
    train(config)
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert re.fullmatch(
        r"0\.0\d million FLOPs a token trained; products: .*LOP/s, measured now; mfu is the share of it", second
    )
    # 256·12 embedding + 256 bias + 2 layers of 5·12·12 attention, 2·12 u and v, 2·12·20+32 feed-forward, 4·12 norms
    assert first.startswith(
        f"{config.run.dir}: transformer_xl of {256 * 12 + 256 + 2 * (720 + 24 + 512 + 48):,} parameters on cpu"
    )
    assert " fp32, 1 process, corpus " in first
    assert first.endswith(" of 700 tokens, steps 0 to 4")


def test_the_streams_are_those_the_config_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Opened(Exception):  # noqa: N818
        pass

    def noted(ids: Any, starts: Any, **settings: Any) -> None:
        assert len(ids) == 700
        assert len(starts) == 3
        raise Opened(settings)

    monkeypatch.setattr("txl.train.plan.Streams", noted)
    asked = (
        "data.reset_memory=true",
        "data.shuffle_documents=true",
        "data.shuffle_segments=true",
        "data.segments_together=5",
        "run.seed=9",
        "data.batch_size=6",
        "model.tgt_len=11",
    )
    with pytest.raises(Opened) as opened:
        train(tiny(tmp_path, *asked))
    assert opened.value.args[0] == {
        "batch_size": 6,
        "tgt_len": 11,
        "rank": 0,
        "world": 1,
        "reset_memory": True,
        "shuffle_documents": True,
        "shuffle_segments": True,
        "segments_together": 5,
        "seed": 9,
        "vocab_size": 256,
        "mixture": (),
    }


def test_rows_that_cannot_be_shared_are_refused(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    uneven = replace(config, train=replace(config.train, accumulate=3))
    with pytest.raises(
        ConfigError, match=r"data.batch_size: found 4, for 1 processes with 3 micro-batches each; .* of 3"
    ):
        train(uneven)
