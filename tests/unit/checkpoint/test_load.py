"""A trained model is read back as it was, or with other lengths; what its weights do not allow is refused by name."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import txl
from tests.models import BASE, make_model
from tests.runs import tiny
from txl.checkpoint import CheckpointError, Snapshot, checkpoints, load_run, load_weights, read, save, weights
from txl.config import Config, ConfigError
from txl.data.symbols import ByteTokenizer
from txl.model import Model, build_model
from txl.train.loop import train


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Config:
    config = tiny(tmp_path_factory.mktemp("trained"), "train.max_steps=4", "train.eval_every=3", "train.save_every=1")
    train(config)
    return config


def test_a_run_folder_and_each_of_its_checkpoints_can_be_loaded(trained: Config) -> None:
    newest = txl.load(trained.run.dir)
    assert (newest.step, newest.path, newest.config) == (4, Path(trained.run.dir) / "checkpoints/step-000004", trained)
    assert not newest.model.training
    assert newest.tokenizer.decode(newest.tokenizer.encode("é")) == "é"
    older = txl.load(checkpoints(trained.run.dir)[1])
    assert older.step == 3
    saved = read(older.path).model
    assert {name: tensor.tolist() for name, tensor in weights(older.model).items()} == {
        name: tensor.tolist() for name, tensor in saved.items()
    }


def test_a_checkpoint_folder_is_complete_by_itself_under_any_name(trained: Config, tmp_path: Path) -> None:
    shutil.copytree(checkpoints(trained.run.dir)[0], tmp_path / "elsewhere")
    assert load_run(tmp_path / "elsewhere").step == 4


def test_best_is_the_checkpoint_of_the_best_validation(trained: Config, tmp_path: Path) -> None:
    for path in reversed(checkpoints(trained.run.dir)):
        snapshot = read(path)
        save(tmp_path, type(snapshot)(**{**vars(snapshot), "state": {**snapshot.state, "best_step": 3}}))
    assert load_run(tmp_path, "best").step == 3
    assert load_run(tmp_path, "newest").step == 4
    shutil.rmtree(tmp_path / "checkpoints" / "step-000003")
    with pytest.raises(CheckpointError, match=r"step-000003: manifest\.json: missing"):
        load_run(tmp_path, "best")
    snapshot = read(tmp_path / "checkpoints" / "step-000004")
    save(tmp_path, type(snapshot)(**{**vars(snapshot), "step": 5, "state": {**snapshot.state, "best_step": None}}))
    with pytest.raises(CheckpointError, match="no validation has given a number yet"):
        load_run(tmp_path, "best")


@pytest.mark.parametrize(
    "changes", [{"mem_len": 3}, {"clamp_len": 4}, {"tgt_len": 5, "mem_len": 20}, {"same_length": True}]
)
def test_another_length_equals_a_model_built_so(changes: dict[str, Any], trained: Config) -> None:
    bundle = load_run(trained.run.dir, **changes)
    built = build_model(type(trained.model)(**{**asdict(trained.model), **changes}), 256).eval()
    load_weights(built, read(bundle.path).model)
    assert bundle.config.model == built.config
    models = (bundle.model, built, load_run(trained.run.dir).model)
    memory = [None, None, None]
    for segment in (torch.arange(33)[None] % 256).split(11, dim=1):
        outs = [model(segment, memory=before) for model, before in zip(models, memory, strict=True)]
        memory = [out.memory for out in outs]
        assert torch.equal(outs[0].logits, outs[1].logits)
    assert not torch.equal(outs[0].logits, outs[2].logits)  # the last segment has memory of 22 tokens


def saved(folder: Path, model: Model) -> Path:
    """A run folder with an untrained model."""
    config = Config(model=model.config)
    nothing: dict[str, Any] = {"state": {"step": 0}, "optimizer": {}, "memory": {}, "rng": []}
    text = ByteTokenizer().to_json()
    save(folder, Snapshot(step=0, config=config, tokenizer=text, model=weights(model), **nothing))
    return folder


FLAT = {"mem_len": 0}
LENGTHS: list[tuple[str, dict[str, Any], dict[str, Any], list[int] | None]] = [
    ("relative", {}, {"mem_len": 3, "tgt_len": 4}, None),
    ("relative", {"clamp_len": 4}, {"mem_len": 9, "clamp_len": 6}, None),
    ("shaw", {}, {"mem_len": 3, "tgt_len": 2}, [0, 1, 2, 3, 4]),
    ("shaw", {}, {"mem_len": 9}, [*range(12), 11, 11]),
    ("shaw", {}, {"clamp_len": 4}, [0, 1, 2, 3]),
    ("shaw", {"clamp_len": 4}, {"clamp_len": 6}, [0, 1, 2, 3, 3, 3]),
    ("shaw", {"clamp_len": 4}, {"clamp_len": None, "mem_len": 1}, [0, 1, 2, 3, 3, 3]),
    ("rotary", {}, {"mem_len": 3, "tgt_len": 4}, None),
    ("alibi", {}, {"mem_len": 3, "clamp_len": 4}, None),
    ("learned", FLAT, {"tgt_len": 3}, [0, 1, 2]),
    ("sinusoidal", FLAT, {"tgt_len": 3}, None),
    ("none", FLAT, {"tgt_len": 3}, None),
]
"""Position, what it was trained with, what it is loaded with, and which rows of its table that leaves."""


@pytest.mark.parametrize(("position", "trained_with", "changes", "rows"), LENGTHS)
def test_other_lengths_equal_a_model_built_so_under_every_position(
    position: Any, trained_with: dict[str, Any], changes: dict[str, Any], rows: list[int] | None, tmp_path: Path
) -> None:
    config = replace(BASE, position=position, **trained_with)
    model = make_model(config, dtype=torch.float32, vocab=256)
    loaded = txl.load(saved(tmp_path / "run", model), **changes).model
    built = make_model(replace(config, **changes), dtype=torch.float32, vocab=256, seed=5)
    held = model.state_dict()
    tables = {name for name in held if name.endswith(("distance_table", "position_table"))}
    assert (rows is not None) == bool(tables)
    built.load_state_dict({name: table[rows] if name in tables else table for name, table in held.items()})
    assert (loaded.config, loaded.default_window) == (built.config, built.default_window)
    ids = torch.arange(18).view(2, 9)
    memories = [None, None]
    for part in ids.split(3, dim=1):
        outs = [each(part, memory) for each, memory in zip((loaded, built), memories, strict=True)]
        memories = [out.memory for out in outs]
        assert torch.equal(outs[0].logits, outs[1].logits)
    nats = [txl.Session(each, batch_size=2).feed(ids)[:, 1:] for each in (loaded, built, model)]
    assert torch.equal(nats[0], nats[1])
    assert position in ("none", "shaw") or not torch.equal(nats[0], nats[2])


def test_a_learned_table_that_would_have_to_grow_is_refused(tmp_path: Path) -> None:
    model = make_model(replace(BASE, position="learned", mem_len=0), dtype=torch.float32, vocab=256)
    with pytest.raises(CheckpointError, match=r"position_table is \(5, 10\) .* and \(8, 10\) .*loaded with tgt_len=8"):
        txl.load(saved(tmp_path / "run", model), tgt_len=8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layer": 3}, "model.n_layer: found 3, trained with 2, which changes the weights' shapes or meaning"),
        ({"activation": "gelu"}, "model.activation: found 'gelu', trained with 'relu'"),
        ({"men_len": 3}, "model.men_len: unknown key; did you mean mem_len?"),
        ({"mem_len": -1}, "model.mem_len: found -1; allowed: a whole number of at least 0"),
    ],
)
def test_overrides_that_cannot_be_are_refused_by_name(changes: dict[str, Any], message: str, trained: Config) -> None:
    with pytest.raises((CheckpointError, ConfigError)) as caught:
        load_run(trained.run.dir, **changes)
    assert message in str(caught.value)


def test_an_override_with_the_trained_value_is_no_change(trained: Config) -> None:
    assert load_run(trained.run.dir, n_layer=2).config == trained


def test_loading_draws_no_random_number(trained: Config) -> None:
    before = torch.get_rng_state()
    load_run(trained.run.dir)
    assert torch.equal(before, torch.get_rng_state())


def test_a_folder_without_checkpoints_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint here; give a run folder"):
        load_run(tmp_path)
    with pytest.raises(CheckpointError, match="checkpoint: found 'last'; allowed: newest or best"):
        load_run(tmp_path, "last")


def test_weights_of_another_shape_are_named(trained: Config) -> None:
    snapshot = read(checkpoints(trained.run.dir)[0])
    model = build_model(type(trained.model)(**{**asdict(trained.model), "d_inner": 21}), 256)
    with pytest.raises(CheckpointError) as caught:
        load_weights(model, snapshot.model)
    assert "stack.layers.0.feed_forward.in_proj.bias is (20,) in the checkpoint and (21,) in the model" in str(
        caught.value
    )
    assert "and 3 more" in str(caught.value)


class Tied(nn.Module):
    """Two names for one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.embedding.weight


def test_tied_weights_are_saved_once_and_stay_tied(trained: Config, tmp_path: Path) -> None:
    model, other = Tied(), Tied()
    assert list(weights(model)) == ["embedding.weight"]
    snapshot = read(checkpoints(trained.run.dir)[0])
    path = save(tmp_path, type(snapshot)(**{**vars(snapshot), "model": weights(model)}))
    load_weights(other, read(path).model)
    assert torch.equal(other.out.weight, model.embedding.weight)
    assert other.out.weight is other.embedding.weight


def test_the_shipped_model_s_output_matrix_stays_the_embedding(trained: Config) -> None:
    model = load_run(trained.run.dir).model
    ids = torch.arange(6)[None]
    before = model(ids).logits
    with torch.no_grad():
        model.stack.embedding.tables[0][200] += 1.0
    changed = (model(ids).logits != before).any(dim=(0, 1)).nonzero().flatten().tolist()
    assert changed == [200]
