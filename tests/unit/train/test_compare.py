"""A measurement is made once, kept, and made anew when anything it depends on changed."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import words
from txl.checkpoint import CheckpointError
from txl.config import Config, ConfigError, apply_overrides
from txl.data import prepare
from txl.evaluation.kept import Kept
from txl.evaluation.measure import Measurement, measure
from txl.evaluation.perplexity import Settings
from txl.train.compare import corpus_for, effective_lengths, kept_losses, loaded, measured_run, reported
from txl.train.loop import train

TINY = (
    "tokenizer.kind=word data.separator=<eos> data.split_by=position data.batch_size=3 model.n_layer=2 "
    "model.d_model=12 model.n_head=2 model.d_head=5 model.d_inner=20 model.tgt_len=8 model.mem_len=6 train.max_steps=4 "
    "train.eval_tokens=50 train.sample_tokens=5 optim.warmup_steps=1 eval.contexts=3,6 eval.sample_targets=20"
).split()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A trained run of a word model."""
    folder = tmp_path_factory.mktemp("compare")
    (folder / "corpus.txt").write_text(words(3000), encoding="utf-8")
    (folder / "other.txt").write_text("the river ran under a zebra\n" * 9, encoding="utf-8")
    places = [f"data.train={folder / 'corpus.txt'}", f"data.cache_dir={folder / 'cache'}", f"run.dir={folder / 'run'}"]
    config = apply_overrides(Config(), [*TINY, *places])
    train(config)
    return config


def test_a_measurement_is_kept_and_read_back(config: Config) -> None:
    heard: list[str] = []
    first = measured_run(config, report=lambda what, done, total: heard.append(what))
    assert any("scoring" in what for what in heard)
    heard.clear()
    assert measured_run(config, report=lambda what, done, total: heard.append(what)) == first
    assert heard == []
    assert first.learning[0].steps[-1] == 4
    prompt, _, written = first.sample.partition(" ⟫ ")
    assert prompt.startswith(prepare(config).tokenizer.decode(prepare(config).test.ids[:20].tolist()))
    assert written


def test_it_is_made_anew_for_other_settings_or_when_damaged(config: Config) -> None:
    first = measured_run(config)
    other = dataclasses.replace(config, eval=dataclasses.replace(config.eval, contexts=(2, 6)))
    assert {point.context for point in measured_run(other).points} == {2, 6}
    assert {point.context for point in measured_run(config).points} == {3, 6}
    kept = Path(config.run.dir) / "measurement.json"
    kept.write_text('{"name": 3}', encoding="utf-8")
    assert measured_run(config).points == first.points
    assert Measurement.from_json(json.dumps(json.loads(kept.read_text("utf-8"))["measurement"])).points == first.points


def test_effective_lengths_come_from_the_losses_that_were_kept(config: Config) -> None:
    asked = dataclasses.replace(config, eval=dataclasses.replace(config.eval, contexts=(3, 9), recl_step=3))
    assert effective_lengths([config], [measured_run(config)], ["a"]) == []  # no step, so nobody asked
    measured = measured_run(asked)
    twice = effective_lengths([asked, asked], [measured, measured], ["a", "b"])
    assert [(found.model, found.share, found.step) for found in twice] == [
        (name, share, 3) for name in ("a", "b") for share in (0.1, 0.5, 1.0)
    ]
    assert [found.length for found in twice[:3]] == [found.length for found in twice[3:]]
    kept = Path(config.run.dir) / "report/eval/test"
    manifest = json.loads((kept / "truncated-6.json").read_text("utf-8"))
    assert manifest["facts"]["text"] == prepare(config).text_hash("test")
    (kept / "truncated-6.npy").write_bytes(b"")
    assert effective_lengths([asked], [measured], ["a"]) == []
    other = dataclasses.replace(asked, eval=dataclasses.replace(asked.eval, sample_targets=15))
    measured = measured_run(other)  # mends the file, on other tokens
    longest = json.loads((kept / "truncated-9.json").read_text("utf-8"))
    strange = longest["reading"] | {"positions": {"sample": 14, "of": 99, "seed": 0}}
    (kept / "truncated-9.json").write_text(json.dumps(longest | {"reading": strange}), encoding="utf-8")
    assert effective_lengths([asked], [measured], ["a"]) == []


@pytest.mark.parametrize("fact", ["step", "text", "max_tokens", "model", "weights"])
def test_losses_of_another_model_or_text_are_scored_anew_for_effective_lengths(config: Config, fact: str) -> None:
    asked = dataclasses.replace(config, eval=dataclasses.replace(config.eval, contexts=(3, 9), recl_step=3))
    measured = measured_run(asked)
    right = effective_lengths([asked], [measured], ["a"])
    path = Path(config.run.dir) / "report/eval/test/truncated-6.npy"
    losses, manifest = path.read_bytes(), json.loads(path.with_suffix(".json").read_text("utf-8"))
    np.save(path, np.zeros(manifest["targets"], dtype=np.float32))
    manifest["facts"][fact] = "another"
    path.with_suffix(".json").write_text(json.dumps(manifest), encoding="utf-8")
    assert effective_lengths([asked], [measured], ["a"]) == []
    again = measured_run(asked)
    assert again.points == measured.points
    assert effective_lengths([asked], [again], ["a"]) == right
    assert path.read_bytes() == losses


def test_a_run_is_not_measured_on_text_that_changed_since_it_was_trained(config: Config) -> None:
    """Other splits of a changed text would put what was trained on among what is scored."""
    first, source = measured_run(config), Path(config.data.train or "")
    held = source.read_text("utf-8")
    source.write_text(held[: len(held) - 40] + held[:40], encoding="utf-8")
    with pytest.raises(CheckpointError, match="the text changed since, and what is now test text may have been train"):
        measured_run(config)
    source.write_text(held, encoding="utf-8")
    assert measured_run(config).points == first.points


def test_corpora_share_the_hash_of_a_split_only_where_it_is_the_same_text(config: Config) -> None:
    text = Path(config.data.train or "")
    half, other = text.with_name("half.txt"), text.with_name("other.txt")
    half.write_text(text.read_text("utf-8")[:9000], encoding="utf-8")
    found = []
    for learned, test in ((text, other), (half, other), (text, half)):
        places = [f"data.train={learned}", f"data.valid={other}", f"data.test={test}", "tokenizer.kind=byte"]
        found.append(prepare(apply_overrides(config, [*places, "data.separator=null", "data.split_by=documents"])))
    assert len({corpus.fingerprint for corpus in found}) == 3
    assert found[0].text_hash("test") == found[1].text_hash("test") != found[2].text_hash("test")


def test_weights_trained_anew_at_the_same_step_are_measured_anew(config: Config) -> None:
    place = f"run.dir={config.run.dir}-again"
    again = apply_overrides(config, [place])
    train(again)
    first = measured_run(again)
    shutil.rmtree(again.run.dir + "/checkpoints")
    (Path(again.run.dir) / "result.json").unlink()
    train(apply_overrides(config, [place, "run.seed=7"]))
    checkpoint = next(Path(again.run.dir, "checkpoints").glob("step-*"))
    same_config = apply_overrides(config, [place, "run.seed=7"])
    assert measured_run(same_config).points != first.points
    kept = Path(again.run.dir) / "measurement.json"
    record = json.loads(kept.read_text("utf-8"))
    digest = json.loads((checkpoint / "manifest.json").read_text("utf-8"))["files"]["model.safetensors"]["sha256"]
    assert record["facts"]["losses"]["checkpoint_sha256"] == digest
    record["facts"]["losses"]["checkpoint_sha256"] = "of other weights"
    record["measurement"]["sample"] = "of other weights"
    kept.write_text(json.dumps(record), encoding="utf-8")
    assert measured_run(same_config).sample != "of other weights"


def test_lengths_survive_an_evaluation_on_a_smaller_sample(config: Config) -> None:
    asked = dataclasses.replace(config, eval=dataclasses.replace(config.eval, contexts=(3, 9), recl_step=3))
    before = effective_lengths([asked], [measured_run(asked)], ["a"])
    bundle = loaded(config.run.dir, "best", ["eval.contexts=3,6,9", "eval.sample_targets=7"])
    corpus = corpus_for(bundle, own_text=True)
    kept = kept_losses(bundle, corpus, "test")
    measure(bundle, corpus, bundle.config.eval, kind="truncated", kept=kept, timed=False)
    assert effective_lengths([asked], [measured_run(asked)], ["a"]) == before != []


def test_losses_that_the_disk_does_not_take_are_still_given(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    kept = Kept(tmp_path / "file" / "eval", {})
    kept.put("w", {}, np.zeros(2), Settings("window", 1, 1, 0, "float32", "cpu", 1, 1, None))
    assert kept.problem.startswith(f"{tmp_path}/file/eval/w.npy: cannot be written")
    assert kept.get("w", {}, 2) is None


def test_losses_of_weights_in_8_bits_are_not_those_of_full_ones(config: Config) -> None:
    folders = []
    for form in ("full", "int8"):
        bundle = loaded(config.run.dir, "best", [f"runtime.weights={form}"])
        corpus = corpus_for(bundle, own_text=True)
        kept = kept_losses(bundle, corpus, "test")
        assert kept.get("w", {}, 2) is None
        nll = np.full(2, 0.5 if form == "full" else 0.25)
        kept.put("w", {}, nll, Settings("window", 1, 1, 0, "float32", "cpu", 1, 1, None))
        found = kept.get("w", {}, 2)
        assert found is not None
        folders.append((kept.folder, found[0].tolist()))
    assert folders == [(folders[0][0], [0.5, 0.5]), (folders[0][0], [0.25, 0.25])]


def test_what_a_report_holds_is_read_back(config: Config, tmp_path: Path) -> None:
    measured = measured_run(config)
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"measurements": [json.loads(measured.to_json())] * 2}), encoding="utf-8")
    assert reported(path) == [measured.to_json()] * 2
    assert reported(tmp_path / "none.json") == []


def test_other_text_is_read_with_the_runs_own_vocabulary(config: Config) -> None:
    other = Path(config.run.dir).parent / "other.txt"
    bundle = loaded(config.run.dir, "best", [f"data.test={other}"])
    assert bundle.config.data.test == str(other)
    corpus = corpus_for(bundle, own_text=False)
    assert corpus.tokenizer.hash == bundle.tokenizer.hash
    assert corpus.test.unknowns == 9
    assert corpus_for(loaded(config.run.dir, "best", []), own_text=True).tokenizer.hash == bundle.tokenizer.hash


def test_a_trained_model_takes_what_changes_no_shape_and_refuses_the_rest(config: Config) -> None:
    bundle = loaded(config.run.dir, "newest", ["model.mem_len=40", "model.clamp_len=4", "runtime.device=cpu"])
    assert (bundle.model.config.mem_len, bundle.model.config.clamp_len) == (40, 4)
    assert bundle.config.model == bundle.model.config
    with pytest.raises(CheckpointError, match=r"model\.d_head"):
        loaded(config.run.dir, "newest", ["model.d_head=6"])
    with pytest.raises(ConfigError) as caught:
        loaded(config.run.dir, "newest", ["train.max_steps=9", "tokenizer.kind=byte", "optim.lr=1", "run.seed=1"])
    assert len(caught.value.problems) == 4
