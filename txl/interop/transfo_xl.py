"""Checkpoints of the 2019 code and of Hugging Face's TransfoXL: numbers in as our models, and out again.

A folder of transformers, or a state dict with its hyper-parameters -> `import_transfo_xl` -> `Imported`, which
`begin_run` makes a run of; a model -> `export_transfo_xl` -> a folder that transformers up to 4.35 reads. Knows nothing
of training. Nothing is unpickled but weights, by torch's weights-only loader, in one line.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from txl.config import Config, ModelConfig, RunConfig, TokenizerConfig, to_yaml
from txl.data import DataError, Tokenizer
from txl.interop.files import LARGEST_SETTINGS_BYTES, member, read_json
from txl.interop.settings import Code, read_settings, write_settings
from txl.interop.shards import shard_files
from txl.interop.tensors import duplicate_count, from_published, parameter_count, to_published
from txl.interop.vocabulary import find_vocabulary, line_end_id, read_vocabulary, write_vocabulary
from txl.model import Model, build_model

WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin")
"""Where transformers keeps weights, or their index where they are in several files; the first that is there is read."""


@dataclass(frozen=True)
class Imported:
    """A published model in our terms.

    weights: float32 tensors by the names of `model.state_dict()`. tokenizer: None where no vocabulary came with the
    weights.
    """

    config: ModelConfig
    vocab_size: int
    weights: dict[str, Tensor]
    tokenizer: Tokenizer | None

    def model(self) -> Model:
        """The network with these weights, in evaluation mode, on the CPU."""
        with torch.random.fork_rng(devices=[]):  # importing is no reason for the caller's numbers to change
            model = build_model(self.config, self.vocab_size)
        model.load_state_dict(self.weights)
        return model.eval()


def import_transfo_xl(
    path: str | Path, *, hyper_parameters: str | Path | None = None, vocabulary: str | Path | None = None
) -> Imported:
    """Read a published checkpoint.

    path: a Hugging Face folder (config.json with model.safetensors or pytorch_model.bin, or the index of several), or a
    state dict of the 2019 code. hyper_parameters: for a state dict, the JSON of its model's arguments; None: the file
    of the same name that ends in .json. vocabulary: vocab.txt, vocab.json or tokenizer.json; None: the one beside the
    weights, if any.

    The two codes' differences are put right or become settings: fused queries, keys and values, one table with div_val
    1, the order of cluster rows, zeros in front of a text (`initial_memory: zeros`, Hugging Face), windows that count
    the query (`window_includes_self`). Raises DataError naming the file and everything about it that cannot be used.
    """
    path = Path(path)
    code, settings, weights = _folder(path) if path.is_dir() else _state_dict(path, hyper_parameters)
    if path.is_dir() and hyper_parameters is not None:
        raise DataError(f"{hyper_parameters}: the folder has its hyper-parameters in config.json; leave this out")
    document = read_json(settings, limit_bytes=LARGEST_SETTINGS_BYTES)
    with _naming(settings):
        config, vocab_size = read_settings(document, code=code)
    source = find_vocabulary(weights[0].parent) if vocabulary is None else Path(vocabulary)
    tokenizer = None if source is None else read_vocabulary(source, vocab_size)
    tensors = _read_tensors(weights, config, vocab_size)
    with _naming(weights[0] if len(weights) == 1 else path):
        ours = from_published(tensors, config, vocab_size, reversed_clusters=code == "2019")
    return Imported(config, vocab_size, ours, tokenizer)


def begin_run(imported: Imported, run_dir: str | Path) -> dict[str, Any]:
    """Make a run folder for an imported model; `save(run_dir, Snapshot(**fields))` with the result completes it.

    Writes config.yaml and tokenizer.json. Raises DataError where the folder holds anything else, cannot be written, or
    the model has no vocabulary.
    """
    run_dir = Path(run_dir)
    if imported.tokenizer is None:
        raise DataError(
            f"{run_dir}: no vocabulary came with the weights, so no text could be read or written; name one: vocab.txt "
            "with a symbol a line, vocab.json, or the tokenizer.json of the tokenizers library"
        )
    text = imported.tokenizer.to_json()
    place = run_dir.resolve() / "tokenizer.json"
    config = Config(
        run=RunConfig(dir=str(run_dir)),
        tokenizer=TokenizerConfig(kind="file", path=str(place)),
        model=imported.config,
    )
    with _writing(run_dir, own=("tokenizer.json", "config.yaml")):
        place.write_text(text, encoding="utf-8", newline="")
        (run_dir / "config.yaml").write_text(to_yaml(config), encoding="utf-8", newline="")
    empty: dict[str, Any] = {"optimizer": {}, "memory": {}, "rng": []}
    fields = {"step": 0, "config": config, "tokenizer": text, "model": imported.weights, "state": {"step": 0}}
    return fields | empty


def export_transfo_xl(model: Model, tokenizer: Tokenizer | None, folder: str | Path) -> tuple[str, ...]:
    """Write a folder that transformers up to 4.35 reads: config.json, model.safetensors and the vocabulary.

    Returns what its reader must know, a sentence each. Raises DataError naming every setting that the format cannot
    express, or where the folder is not empty or cannot be written.
    """
    folder = Path(folder)
    eos_id = None if tokenizer is None else line_end_id(tokenizer)
    with _naming("the model cannot be exported"):
        document, notes = write_settings(model.config, model.vocab_size, eos_id=eos_id)
    with _writing(folder):
        if tokenizer is not None:
            notes += write_vocabulary(tokenizer, folder)
        save_file(to_published(model.state_dict(), model.config), folder / WEIGHTS_FILES[0], metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8", newline="")
    return tuple(notes)


def _folder(path: Path) -> tuple[Code, Path, list[Path]]:
    """Who wrote a folder, and the files of its hyper-parameters and weights."""
    settings = member(path, "config.json")
    if settings is None:
        raise DataError(f"{path}: has no config.json; allowed: a TransfoXL folder of transformers, or a state dict")
    for name in WEIGHTS_FILES:
        if (whole := member(path, name)) is not None:
            return "hugging face", settings, [whole]
        if shards := shard_files(path, name):
            return "hugging face", settings, shards
    raise DataError(f"{path}: has no weights; allowed: {' or '.join(WEIGHTS_FILES)}")


def _state_dict(path: Path, hyper_parameters: str | Path | None) -> tuple[Code, Path, list[Path]]:
    """Who wrote a state dict, and its hyper-parameters and weights."""
    if not path.is_file():
        raise DataError(f"{path}: no such file or folder")
    settings = path.with_suffix(".json") if hyper_parameters is None else Path(hyper_parameters)
    if not settings.is_file():
        raise DataError(
            f"{settings}: missing; a state dict needs the arguments its MemTransformerLM was made with, as JSON: "
            '{"n_token": …, "n_layer": …, "cutoffs": […], …}'
        )
    return "2019", settings, [path]


def _read_tensors(weights: list[Path], config: ModelConfig, vocab_size: int) -> dict[str, Any]:
    """What weights files hold by name, once their size together is one that the hyper-parameters explain.

    Raises DataError where they are too small or too large, damaged, hold objects besides tensors or a tensor twice.
    """
    count = parameter_count(config, vocab_size)
    least = 2 * count  # all in half precision, shared tensors once
    most = 8 * (count + duplicate_count(config, vocab_size)) + 1_000_000 + 10_000 * config.n_layer
    size = sum(map(_unpacked_bytes, weights))
    if not least <= size <= most:
        several = f" and {len(weights) - 1} more" if len(weights) > 1 else ""
        raise DataError(
            f"{weights[0]}{several}: has {size:,} bytes; the hyper-parameters are those of {count:,} parameters, in "
            f"{least:,} to {most:,} bytes. Do both belong to one model?"
        )
    tensors: dict[str, Any] = {}
    for path in weights:
        found = _loaded(path)
        if again := sorted(found.keys() & tensors.keys()):
            raise DataError(f"{path}: {again[0]} is in another of its files too; are they all of one model?")
        tensors |= found
    return tensors


def _loaded(path: Path) -> dict[str, Any]:
    """What one weights file holds by name."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # the loaders raise whatever they meet in a damaged file
        raise DataError(f"{path}: {_reason(error)}") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise DataError(f"{path}: holds a {type(found).__name__}; allowed: a state dict, {_AS_STATE_DICT}")
    return found


_AS_STATE_DICT = (
    "in the environment it comes from: torch.save(model.state_dict(), 'weights.pt') with the model alone, not its "
    "wrapper or training state"
)


def _unpacked_bytes(path: Path) -> int:
    """Bytes of a file, or of what an archive unpacks to."""
    try:
        if path.suffix == ".safetensors" or not zipfile.is_zipfile(path):
            return path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            return sum(item.file_size for item in archive.infolist())
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _reason(error: Exception) -> str:
    """A loader's error in one line, without its advice to load the file unsafely."""
    if isinstance(error, SafetensorError):
        return f"is no safetensors file: {error}"
    refused = re.search(r"GLOBAL (\S+)", str(error))
    if refused is not None:
        return (
            f"holds more than tensors ({refused[1]}), which could run code and is not opened here. Where you trust it, "
            f"write its tensors alone, {_AS_STATE_DICT}"
        )
    return f"is no weights file or damaged ({type(error).__name__}: {str(error).partition('. ')[0].strip()[:200]})"


@contextmanager
def _naming(what: object) -> Iterator[None]:
    """Head the problems found inside with what they are about."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{what}:\n{error}") from None


@contextmanager
def _writing(folder: Path, *, own: tuple[str, ...] = ()) -> Iterator[None]:
    """Make a folder to write in, which must be empty but for files of these names, left by a try before.

    Raises DataError where it is not, or where writing fails.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        left = {path.name for path in folder.iterdir()}
        if left and not (own and set(own[:1]) <= left <= {*own, "checkpoints"} and not _has_entries(folder)):
            raise DataError(f"{folder}: is not empty; choose another folder")
        yield
    except (OSError, SafetensorError) as error:
        raise DataError(f"{folder}: cannot be written ({getattr(error, 'strerror', None) or error})") from None


def _has_entries(folder: Path) -> bool:
    return any(folder.glob("checkpoints/*"))
