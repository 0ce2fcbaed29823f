"""Training on from another run's weights: what is taken over, what is new, and what is refused by name."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import txl
from tests.runs import NO_DROPOUT, differences, metrics, remains, tensors, text, tiny, train_in_parts
from txl.checkpoint import Snapshot, save
from txl.config import Config, ConfigError, TokenizerConfig, apply_overrides
from txl.data import DataError, prepare
from txl.data.streams import Streams
from txl.interop.transfo_xl import Imported, begin_run
from txl.train.compare import measured_run
from txl.train.loop import is_finished, train
from txl.train.validate import validate

CHARACTERS = ("tokenizer.kind=char", "data.separator=<eos>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of a character vocabulary, one of bytes that keeps averages, and one of bpe."""
    folder = tmp_path_factory.mktemp("base")
    few = ("train.max_steps=4", "train.sample_every=0", *NO_DROPOUT)
    train(tiny(folder, *few, *CHARACTERS, run="characters"))
    train(tiny(folder, *few, "optim.ema_decay=0.9", run="bytes"))
    train(tiny(folder, *few, "tokenizer.kind=bpe", "tokenizer.vocab_size=264", "data.separator=<eos>", run="pairs"))
    return folder


def on_other_text(folder: Path, place: Path, base: str, *overrides: str, run: str = "tuned") -> Config:
    """A run of six steps from that base on other text, of which only some symbols are known to it."""
    other = place / "other.txt"
    other.write_bytes(text(400, seed=7) + b"abc xyz\n" * 9)
    steps = ("train.max_steps=6", "train.eval_every=3", "train.sample_every=0", "train.save_every=2")
    places = (f"data.train={other}", f"train.init_from={folder / base}")
    config = tiny(folder, *NO_DROPOUT, *steps, *places, *overrides)
    return apply_overrides(config, [f"run.dir={place / run}", f"data.cache_dir={place / 'cache'}"])


def first_loss(base: Path, config: Config) -> float:
    """What the base model loses on the first segment of the new text, in its own symbols."""
    bundle = txl.load(base)
    tokenizer = TokenizerConfig(kind="file", path=str(bundle.path / "tokenizer.json"))
    corpus = prepare(replace(config, tokenizer=tokenizer))
    ids, starts = corpus.train.ids, corpus.train.document_starts
    batch = next(Streams(ids, starts, batch_size=4, tgt_len=config.model.tgt_len))
    with torch.no_grad():
        return float(bundle.model(batch.inputs, targets=batch.targets).nll.mean())


def test_a_run_begins_with_the_weights_and_the_tokenizer_of_the_other_and_all_else_new(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = on_other_text(folder, tmp_path, "characters", "data.separator=<eos>")
    train(config)
    assert f"starts from the weights of {folder}/characters/checkpoints/step-000004; memory" in capsys.readouterr().out
    lines = metrics(config.run.dir)
    assert lines[0]["nll"] == pytest.approx(first_loss(folder / "characters", config), abs=1e-5)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["lr"] for line in lines[:3]] == pytest.approx([0.01 / 3, 0.02 / 3, 0.01])
    moments = tensors(config.run.dir, 6, "optimizer")
    assert all(float(value) == 6 for name, value in moments.items() if name.startswith("step."))
    one, other = txl.load(config.run.dir), txl.load(folder / "characters")
    assert one.tokenizer.hash == other.tokenizer.hash
    assert one.tokenizer.vocab_size < 20


def test_it_goes_on_bit_for_bit_also_when_the_other_run_is_gone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "characters", tmp_path / "gone")
    whole = on_other_text(tmp_path, tmp_path, "gone", *CHARACTERS, run="whole")
    parts = on_other_text(tmp_path, tmp_path, "gone", *CHARACTERS, run="parts")
    train(whole)
    load = txl.train.loop.begin
    begun = 0

    def noted(*args: object) -> object:
        nonlocal begun
        begun += 1
        if begun == 2:
            shutil.rmtree(tmp_path / "gone")
        return load(*args)

    monkeypatch.setattr(txl.train.loop, "begin", noted)
    train_in_parts(parts, (1, 4), monkeypatch)
    assert begun == 3
    assert differences(remains(whole.run.dir, 6), remains(parts.run.dir, 6)) == []
    assert is_finished(parts)
    assert train(apply_overrides(parts, ["train.max_steps=7"])).step == 7
    measured = measured_run(apply_overrides(parts, ["train.max_steps=7", "eval.contexts=4", "eval.sample_targets=9"]))
    assert measured.step in (3, 6, 7)


def test_averaged_weights_are_what_is_trained_on(folder: Path, tmp_path: Path) -> None:
    config = on_other_text(folder, tmp_path, "bytes", "train.max_steps=4")
    train(config)
    assert metrics(config.run.dir)[0]["nll"] == pytest.approx(first_loss(folder / "bytes", config), abs=1e-5)


def test_an_imported_model_is_trained_on_in_its_own_symbols(folder: Path, tmp_path: Path) -> None:
    bundle = txl.load(folder / "characters")
    weights = {name: tensor.clone() for name, tensor in bundle.model.state_dict().items()}
    imported = Imported(bundle.config.model, bundle.tokenizer.vocab_size, weights, bundle.tokenizer)
    save(tmp_path / "imported", Snapshot(**begin_run(imported, tmp_path / "imported")))
    with pytest.raises(DataError, match=r"was made with data.separator '<eos>', not None; set the same one"):
        train(on_other_text(tmp_path, tmp_path, "imported"))
    config = on_other_text(tmp_path, tmp_path, "imported", "train.max_steps=4", "data.separator=<eos>")
    train(config)
    assert metrics(config.run.dir)[0]["nll"] == pytest.approx(first_loss(tmp_path / "imported", config), abs=1e-5)


def test_merged_pairs_are_taken_over_and_not_learned_anew_with_or_without_separators(
    folder: Path, tmp_path: Path
) -> None:
    own = ("tokenizer.kind=bpe", "tokenizer.vocab_size=264", "data.separator=<eos>")
    for number, overrides in enumerate(((), own, ("data.separator=<eos>",))):
        config = on_other_text(folder, tmp_path, "pairs", *overrides, "train.max_steps=4", run=f"{number}")
        train(config)
        assert metrics(config.run.dir)[0]["nll"] == pytest.approx(first_loss(folder / "pairs", config), abs=1e-5)


def test_lengths_and_dropout_may_differ(folder: Path, tmp_path: Path) -> None:
    other = ("model.mem_len=4", "model.tgt_len=5", "model.clamp_len=6", "model.dropout=0.3", "model.dropatt=0.2")
    config = on_other_text(folder, tmp_path, "bytes", *other, "train.max_steps=4")
    assert train(config).step == 4


@pytest.mark.parametrize(
    ("base", "overrides", "messages"),
    [
        (
            "bytes",
            ("model.d_inner=28", "model.pre_lnorm=true", "model.n_layer=3"),
            (
                r"model.n_layer: found 3; allowed: 2, with which the weights of .*step-000004 were trained",
                r"model.d_inner: found 28; allowed: 20, with",
                r"model.pre_lnorm: found true; allowed: false, with",
            ),
        ),
        (
            "characters",
            ("tokenizer.kind=word",),
            (
                r"tokenizer.kind: found word, another tokenizer of \d+ symbols than .* \(kind char\)",
                r"allowed: leave the section tokenizer out, .*tokenizer.kind=file tokenizer.path=.*tokenizer.json\)",
            ),
        ),
        ("bytes", ("tokenizer.kind=char", "model.n_head=2"), (r"tokenizer.kind: found char", r"model.n_head: found 2")),
        ("bytes", ("data.separator=<eos>",), (r"data.separator: found '<eos>' with the tokenizer of .*allowed: null",)),
        ("nowhere", (), (r"train.init_from: .*nowhere: no checkpoint here; give a run folder",)),
    ],
)
def test_what_does_not_fit_is_refused_at_once_with_all_names_and_nothing_written(
    base: str, overrides: Sequence[str], messages: Sequence[str], folder: Path, tmp_path: Path
) -> None:
    config = on_other_text(folder, tmp_path, base, *overrides)
    for begin in (train, validate):
        with pytest.raises(ConfigError) as caught:
            begin(config)
        for message in messages:
            assert any(re.search(message, problem) for problem in caught.value.problems), caught.value
        assert not (Path(config.run.dir) / "checkpoints").exists()


def test_a_published_checkpoint_is_to_be_imported_first(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"train.init_from: .*hub.* \(a published .* by: txl import .*hub\)"):
        train(on_other_text(tmp_path, tmp_path, "hub"))


def test_validate_looks_at_the_weights_the_run_would_start_from(folder: Path, tmp_path: Path) -> None:
    config = on_other_text(folder, tmp_path, "characters", "data.separator=<eos>")
    found = validate(config)
    assert found.step.first_nll == pytest.approx(first_loss(folder / "characters", config), abs=1e-5)
    assert not Path(config.run.dir).exists()
