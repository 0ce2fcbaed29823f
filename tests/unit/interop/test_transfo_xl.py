"""Checkpoints in and out: folders and state dicts, hostile files, and the run that comes of them."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models import BASE, VOCAB, assert_close, make_model, random_ids
from tests.unit.interop.published_files import PAPER, WORDS, paper_state_dict, write_folder, write_paper_checkpoint
from txl.checkpoint import Snapshot, load_run, save
from txl.config import ModelConfig, config_problems, load_config
from txl.data import DataError
from txl.data.symbols import ByteTokenizer
from txl.infer.session import Session
from txl.interop import Imported, begin_run, export_transfo_xl, import_transfo_xl
from txl.model import build_model

OLD = replace(PAPER, cutoffs=(4, 9), div_val=2, tie_projs="all_but_first", clamp_len=5)


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        import_transfo_xl(path, **options)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_state_dict_of_the_2019_code_is_imported_with_what_lies_beside_it(tmp_path: Path) -> None:
    model = make_model(OLD, dtype=torch.float32)
    imported = import_transfo_xl(write_paper_checkpoint(tmp_path, model))
    assert imported.config == replace(OLD, init_std=0.02)
    assert imported.tokenizer is not None
    assert imported.tokenizer.encode("the river\n") == [1, 3, 0]
    ids = random_ids(2, 9)
    assert_close(imported.model()(ids).logits, model(ids).logits, tolerance=0)


@pytest.mark.parametrize("legacy", [True, False])
def test_weights_may_be_in_any_format_of_torch(legacy: bool, tmp_path: Path) -> None:
    model = make_model(OLD, dtype=torch.float32)
    path = write_paper_checkpoint(tmp_path, model)
    torch.save(paper_state_dict(model), path, _use_new_zipfile_serialization=not legacy)
    assert zipfile.is_zipfile(path) is not legacy
    weights = import_transfo_xl(path).weights
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())


def test_a_folder_of_transformers_is_imported_from_either_weights_file(tmp_path: Path) -> None:
    model = write_folder(tmp_path / "a")
    imported = import_transfo_xl(tmp_path / "a")
    assert imported.config == replace(BASE, initial_memory="zeros", window_includes_self=True)
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    (tmp_path / "a" / "model.safetensors").unlink()
    torch.save(tensors, tmp_path / "a" / "pytorch_model.bin")
    again = import_transfo_xl(tmp_path / "a")
    for name, tensor in model.state_dict().items():
        assert torch.equal(imported.weights[name], tensor)
        assert torch.equal(again.weights[name], tensor)


def test_importing_changes_no_random_numbers(tmp_path: Path) -> None:
    write_folder(tmp_path / "a")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    import_transfo_xl(tmp_path / "a").model()
    assert torch.equal(torch.rand(3), expected)


def test_hyper_parameters_and_vocabulary_may_lie_elsewhere(tmp_path: Path) -> None:
    path = write_paper_checkpoint(tmp_path, make_model(OLD, dtype=torch.float32))
    (tmp_path / "other").mkdir()
    (tmp_path / "model.json").rename(tmp_path / "other" / "arguments.json")
    (tmp_path / "vocab.txt").rename(tmp_path / "other" / "words.txt")
    text = refusal(path.with_suffix(".json"), hyper_parameters=None)
    assert "no such file or folder" in text
    with pytest.raises(DataError, match=r"model\.json: missing; a state dict needs the arguments"):
        import_transfo_xl(path)
    settings = tmp_path / "other" / "arguments.json"
    assert import_transfo_xl(path, hyper_parameters=settings).tokenizer is None
    words = tmp_path / "other" / "words.txt"
    assert import_transfo_xl(path, hyper_parameters=settings, vocabulary=words).tokenizer is not None


def test_a_folder_that_is_none_of_transformers_is_refused(tmp_path: Path) -> None:
    assert "has no config.json" in refusal(tmp_path)
    write_folder(tmp_path / "a")
    with pytest.raises(DataError, match="leave this out"):
        import_transfo_xl(tmp_path / "a", hyper_parameters="x.json")
    (tmp_path / "a" / "model.safetensors").rename(tmp_path / "a" / "tf_model.h5")
    assert "has no weights; allowed: model.safetensors or pytorch_model.bin" in refusal(tmp_path / "a")


def write_shards(folder: Path, n_files: int = 3, suffix: str = ".safetensors") -> dict[str, str]:
    """Weights of a folder divided among files, as transformers does, and the index's weight_map."""
    stem = "model" if suffix == ".safetensors" else "pytorch_model"
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = [f"{stem}-{number + 1:05}-of-{n_files:05}{suffix}" for number in range(n_files)]
    places = {name: names[number % n_files] for number, name in enumerate(tensors)}
    for file in names:
        part = {name: tensors[name] for name in tensors if places[name] == file}
        save_file(part, folder / file) if suffix == ".safetensors" else torch.save(part, folder / file)
    (folder / f"{stem}{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return places


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_weights_may_be_divided_among_several_files(suffix: str, tmp_path: Path) -> None:
    model = write_folder(tmp_path / "a")
    write_shards(tmp_path / "a", suffix=suffix)
    imported = import_transfo_xl(tmp_path / "a")
    assert imported.tokenizer is not None
    assert all(torch.equal(imported.weights[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("../secret.safetensors", "found '../secret.safetensors'; allowed: names of .safetensors files in this folder"),
        ("{root}/secret.safetensors", "allowed: names of .safetensors files in this folder"),
        ("sub/../model-00001-of-00003.safetensors", "allowed: names of .safetensors files in this folder"),
        ("..", "allowed: names of .safetensors files in this folder"),
        ("", "allowed: names of .safetensors files in this folder"),
        ("vocab.txt", "allowed: names of .safetensors files in this folder"),
        ("\0.safetensors", "missing, but model.safetensors.index.json lists it"),
        ("model-00004-of-00003.safetensors", "missing, but model.safetensors.index.json lists it"),
        ("link.safetensors", "a link to {root}/secret.safetensors, outside the folder"),
    ],
)
def test_an_index_names_files_of_its_own_folder_alone(file: str, said: str, tmp_path: Path) -> None:
    root, folder = tmp_path.resolve(), tmp_path.resolve() / "a"
    write_folder(folder)
    places = write_shards(folder)
    save_file({"x": torch.zeros(3)}, root / "secret.safetensors")
    (folder / "link.safetensors").symlink_to(root / "secret.safetensors")
    places[next(iter(places))] = file.format(root=root)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert said.format(root=root) in refusal(folder)


def test_an_index_that_is_none_and_shards_of_another_model_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "a")
    places = write_shards(tmp_path / "a")
    index = tmp_path / "a" / "model.safetensors.index.json"
    for content in ("[]", "{}", '{"weight_map": {}}', '{"weight_map": {"x": 3}}', '{"weight_map": ["x"]}'):
        index.write_text(content)
        assert "has no weight_map of tensors and their files" in refusal(tmp_path / "a")
    first, second, _ = sorted(set(places.values()))
    index.write_text(json.dumps({"weight_map": {name: file for name, file in places.items() if file != first}}))
    assert "crit.out_layers.0.bias: missing" in refusal(tmp_path / "a")
    with (tmp_path / "a" / second).open("ab") as file:
        file.write(bytes(2_000_000))
    assert "and 1 more: has 2," in refusal(tmp_path / "a")
    index.write_text(json.dumps({"weight_map": places}))
    shutil.copy(tmp_path / "a" / first, tmp_path / "a" / second)
    assert f"{second}: crit." in refusal(tmp_path / "a")


def test_errors_name_the_file_and_each_problem(tmp_path: Path) -> None:
    path = write_paper_checkpoint(tmp_path, make_model(OLD, dtype=torch.float32), attn_type=2, pre_lnorm=True)
    with pytest.raises(DataError) as caught:
        import_transfo_xl(path)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        str(tmp_path / "model.json"),
        "attn_type",
        "pre_lnorm",
    ]
    path = write_paper_checkpoint(tmp_path, make_model(OLD, dtype=torch.float32), d_inner=13)
    text = refusal(path)
    assert text.startswith(f"{path}:\n")
    assert len(text.splitlines()) == 1 + 2 * 3


def test_a_file_whose_size_the_hyper_parameters_do_not_explain_is_not_opened(tmp_path: Path) -> None:
    model = make_model(OLD, dtype=torch.float32)
    path = write_paper_checkpoint(tmp_path, model, n_layer=10**15)
    assert "Do both belong to one model?" in refusal(path)
    path = write_paper_checkpoint(tmp_path, model)
    path.write_bytes(path.read_bytes() + bytes(2_000_000))
    assert "Do both belong to one model?" in refusal(path)
    path = write_paper_checkpoint(tmp_path, model)
    with zipfile.ZipFile(path, "a", compression=zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/999", bytes(50_000_000))
    assert path.stat().st_size < 1_000_000
    assert "has 50," in refusal(path)


@pytest.mark.parametrize("legacy", [True, False])
def test_a_hostile_file_runs_nothing(legacy: bool, tmp_path: Path) -> None:
    path = write_paper_checkpoint(tmp_path, make_model(OLD, dtype=torch.float32))
    tensors: dict[str, Any] = paper_state_dict(make_model(OLD, dtype=torch.float32))
    tensors["extra"] = Hostile(f"touch {tmp_path / 'ran'}")
    torch.save(tensors, path, _use_new_zipfile_serialization=not legacy)
    text = refusal(path)
    assert "holds more than tensors" in text
    assert "weights_only" not in text
    assert "torch.save(model.state_dict(), 'weights.pt')" in text
    assert not (tmp_path / "ran").exists()
    path.rename(tmp_path / "model.safetensors")
    (tmp_path / "model.json").rename(tmp_path / "settings.json")
    text = refusal(tmp_path / "model.safetensors", hyper_parameters=tmp_path / "settings.json")
    assert "is no safetensors file" in text
    assert not (tmp_path / "ran").exists()


def test_a_whole_model_pickled_is_refused_with_a_way_out(tmp_path: Path) -> None:
    model = make_model(OLD, dtype=torch.float32)
    path = write_paper_checkpoint(tmp_path, model)
    torch.save(model, path)
    text = refusal(path)
    assert "holds more than tensors (txl." in text
    assert "write its tensors alone" in text
    torch.save([*paper_state_dict(model).values()], path)
    assert "holds a list; allowed: a state dict" in refusal(path)


@pytest.mark.parametrize("kept", [0, 40, 4000])
def test_a_damaged_file_is_refused(kept: int, tmp_path: Path) -> None:
    path = write_paper_checkpoint(tmp_path, make_model(OLD, dtype=torch.float32))
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:kept] + b"\1" * (size - kept))
    assert "is no weights file or damaged" in refusal(path)
    huge = (2**60).to_bytes(8, "little") + bytes(size)
    (tmp_path / "model.safetensors").write_bytes(huge)
    assert "is no safetensors file" in refusal(tmp_path / "model.safetensors")


def imported_run(tmp_path: Path, config: ModelConfig = BASE) -> tuple[Imported, Path]:
    write_folder(tmp_path / "published", config)
    imported = import_transfo_xl(tmp_path / "published")
    run = tmp_path / "runs" / "imported"
    save(run, Snapshot(**begin_run(imported, run)))
    return imported, run


def test_an_imported_model_becomes_a_run_that_loads_and_streams(tmp_path: Path) -> None:
    imported, run = imported_run(tmp_path, replace(BASE, same_length=True))
    bundle = load_run(run)
    ids = random_ids(2, 20)
    expected = imported.model()(ids).logits
    assert_close(bundle.model(ids).logits, expected, tolerance=0)
    assert bundle.step == 0
    assert bundle.tokenizer.encode("the river\n") == [1, 3, 0]
    assert config_problems(load_config(run / "config.yaml")) == []
    assert load_config(run / "config.yaml") == bundle.config
    assert Path(bundle.config.tokenizer.path or "").read_text(encoding="utf-8") == bundle.tokenizer.to_json()
    session = Session(bundle.model, batch_size=2)
    nats = torch.cat([session.feed(part) for part in ids.split([6, 14], dim=1)], dim=1)
    scores = expected[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    assert_close(nats[:, 1:], -scores, tolerance=1e-5)
    longer = load_run(run, mem_len=16, initial_memory="empty")
    assert longer.config.model.mem_len == 16


def test_a_run_is_begun_again_but_never_over_another(tmp_path: Path) -> None:
    imported, run = imported_run(tmp_path)
    with pytest.raises(DataError, match="is not empty; choose another folder"):
        begin_run(imported, run)
    begun = tmp_path / "begun"
    begin_run(imported, begun)
    begin_run(imported, begun)  # what a full disk left behind
    (begun / "metrics.jsonl").write_text("")
    with pytest.raises(DataError, match="is not empty; choose another folder"):
        begin_run(imported, begun)
    with pytest.raises(DataError, match="no vocabulary came with the weights"):
        begin_run(replace(imported, tokenizer=None), tmp_path / "third")
    with pytest.raises(DataError, match="cannot be written"):
        begin_run(imported, run / "config.yaml")


def test_an_exported_folder_holds_all_that_its_reader_needs(tmp_path: Path) -> None:
    model = build_model(replace(BASE, mem_len=0), 256)
    notes = export_transfo_xl(model, ByteTokenizer(), tmp_path / "out")
    assert notes == ()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    imported = import_transfo_xl(tmp_path / "out")
    assert imported.tokenizer is not None
    assert imported.tokenizer.encode("é") == [195, 169]
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] is None
    with pytest.raises(DataError, match="is not empty; choose another folder"):
        export_transfo_xl(model, None, tmp_path / "out")


def test_what_the_format_cannot_express_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    model = build_model(replace(BASE, norm="rms"), VOCAB)
    with pytest.raises(DataError, match=r"the model cannot be exported:\nmodel\.norm: found rms"):
        export_transfo_xl(model, None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_words_and_line_ends_are_told_to_the_reader(tmp_path: Path) -> None:
    imported, run = imported_run(tmp_path)
    bundle = load_run(run)
    assert export_transfo_xl(bundle.model, bundle.tokenizer, tmp_path / "out") == ()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] == WORDS.index("<eos>")
    again = import_transfo_xl(tmp_path / "out")
    assert again.config == imported.config
    assert again.tokenizer is not None
    assert again.tokenizer.encode("the river\n") == [1, 3, 0]
