"""Where text comes from: the grammar of data.train, data.valid and data.test, and the only door to `datasets`.

A source's name -> `find_source` -> `Source`, the files and the stamp that changes with them. Knows nothing of what is
in a file (`txl.data.reading` does). A source is a file, a folder (searched for text files at any depth), a glob,
`hf:NAME[:CONFIG][@SPLIT]`, `stdlib`, or `recall`, a made-up text (`txl.data.recall`). Nothing is read here but the
rows of a hub data set, when they are asked for.
"""

from __future__ import annotations

import difflib
import glob
import os
import stat
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from txl.data import recall
from txl.data.errors import DataError

_SUFFIXES = """
.txt .text .md .markdown .rst .tex .org .adoc .html .htm .py .pyi .c .h .cc .cpp .hpp .cu .rs .go .java .kt .js .ts .jsx
.tsx .rb .php .pl .lua .r .jl .swift .scala .hs .ml .sh .sql .css
"""
TEXT_SUFFIXES = frozenset(_SUFFIXES.split())
RECORD_SUFFIXES = frozenset({".jsonl", ".ndjson", ".parquet"})
_NOT_LIBRARY = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "lib-dynload"})
_DEFAULT_SPLITS = {"data.train": "train", "data.valid": "validation", "data.test": "test"}


@dataclass(frozen=True)
class SourceFile:
    """One file: where it is, its name inside the source, and what changes when its content does."""

    path: Path
    name: str
    size: int
    stamp: tuple[int, int]
    """Times of the last change of content and of the file's record in ns; the second cannot be set back."""


@dataclass(frozen=True)
class HubName:
    """A Hugging Face data set: its name or folder, configuration and split."""

    name: str
    config: str | None
    split: str


@dataclass(frozen=True)
class Source:
    """What a source's name stands for; files in the order in which they are read."""

    key: str
    """The config key that names it, e.g. data.train: every message begins with it."""
    spec: str
    kind: Literal["files", "stdlib", "hub", "recall"]
    files: tuple[SourceFile, ...]
    hub: HubName | None = None

    @property
    def text_bytes(self) -> int | None:
        """Bytes of text in all files; None where they are packed or hold more than the text."""
        if self.kind == "recall":
            return recall.DOCUMENTS * recall.DOCUMENT_BYTES
        plain = all(Path(file.name).suffix.lower() not in RECORD_SUFFIXES | {".gz"} for file in self.files)
        return sum(file.size for file in self.files) if plain and self.hub is None else None

    @property
    def stamp(self) -> list[object]:
        """JSON that changes when a file is added, removed, renamed or written to; no text is read for it."""
        files = [[str(file.path), file.name, file.size, *file.stamp] for file in self.files]
        hub = None if self.hub is None else [self.hub.name, self.hub.config, self.hub.split]
        made = [recall.FORMAT, recall.DOCUMENTS, recall.DOCUMENT_BYTES] if self.kind == "recall" else []
        return [self.key, self.kind, hub, files, *made]


def find_source(key: str, spec: str) -> Source:
    """Resolve the source `spec` of config key `key`; DataError where nothing is there or nothing of it is text."""
    if spec == "stdlib":
        return Source(key, spec, "stdlib", tuple(_library_files(key)))
    if spec == "recall":
        return Source(key, spec, "recall", ())
    if spec.startswith("hf:"):
        hub = _hub_name(key, spec)
        folder = Path(hub.name)
        files = _folder_files(key, folder, lambda name: True) if folder.is_dir() else []
        return Source(key, spec, "hub", tuple(files), hub)
    path = Path(spec).expanduser()
    if path.is_dir():
        files = _folder_files(key, path, _is_text_name)
        if not files:
            raise DataError(_no_text(key, path))
        return Source(key, spec, "files", tuple(files))
    if path.exists():
        return Source(key, spec, "files", (_file(key, path, path.name),))
    if any(sign in spec for sign in "*?["):
        names = sorted(name for name in glob.glob(str(path), recursive=True) if not os.path.isdir(name))
        if not names:
            raise DataError(f"{key}: no file matches {spec}; ** matches any folders, * any part of a name")
        return Source(key, spec, "files", tuple(_file(key, Path(name), Path(name).as_posix()) for name in names))
    raise DataError(f"{key}: no such file or folder: {path}{_nearest(path)}")


def hub_revision(hub: HubName) -> str | None:
    """The commit the hub now offers, or None where it cannot be asked (no network, or a local folder)."""
    if Path(hub.name).is_dir():
        return None
    from huggingface_hub import HfApi

    try:
        return HfApi().dataset_info(hub.name, timeout=5).sha
    except Exception:  # whatever fails here fails again, with its message, when the rows are asked for
        return None


def hub_rows(source: Source, field: str, *, streaming: bool, revision: str | None) -> Iterator[object]:
    """The field of each row of a hub source, in order; DataError where the data set, split or field is missing.

    A folder is always streamed, but for a part of a split: the cache of the library would miss some changes to files.
    """
    assert source.hub is not None
    import datasets

    hub, where = source.hub, f"{source.key}: {source.spec}"
    streaming = streaming or (Path(hub.name).is_dir() and "[" not in hub.split)
    try:
        rows: Any = datasets.load_dataset(hub.name, hub.config, split=hub.split, streaming=streaming, revision=revision)
        columns = rows.column_names or list(next(iter(rows), {}))
        if columns and field not in columns:
            raise DataError(f"{where}: no field {field!r} (data.text_field); it has {', '.join(columns)}")
        if columns:
            for row in rows.select_columns([field]):
                yield row[field]
    except DataError:
        raise
    except Exception as error:  # the library and its file systems raise many kinds
        message = str(error).strip() or type(error).__name__
        raise DataError(f"{where}: cannot be read by the datasets library: {message}") from error


def overlaps(sources: dict[str, Source]) -> list[str]:
    """A note for each pair of splits that share a file."""
    notes = []
    files = {name: {os.path.realpath(file.path) for file in source.files} for name, source in sources.items()}
    for name, other in (("valid", "train"), ("test", "train"), ("test", "valid")):
        shared = sorted(files.get(name, set()) & files.get(other, set()))
        if shared and not (sources[name].hub and sources[other].hub):
            notes.append(f"data.{name}: {len(shared)} files are in data.{other} too, e.g. {shared[0]}")
    return notes


def _hub_name(key: str, spec: str) -> HubName:
    rest = spec.removeprefix("hf:")
    split = _DEFAULT_SPLITS.get(key, "train")
    if not Path(rest).is_dir() and "@" in rest:
        rest, _, split = rest.rpartition("@")
    name, config = rest, None
    if not Path(rest).is_dir() and ":" in rest:
        name, _, config = rest.rpartition(":")
    if not name or not split or config == "":
        raise DataError(
            f"{key}: {spec!r}, but must be hf:NAME[:CONFIG][@SPLIT], e.g. hf:wikitext:wikitext-2-raw-v1@test"
        )
    return HubName(name, config, split)


def _library_files(key: str) -> list[SourceFile]:
    """The running Python's library source without tests, installed packages and files made when Python was built."""
    folder = Path(sysconfig.get_path("stdlib"))

    def wanted(name: str) -> bool:
        *folders, file = name.split("/")
        built = file.startswith("_sysconfigdata") or any(part.startswith("config-") for part in folders)
        local = file in ("sitecustomize.py", "usercustomize.py") or not _NOT_LIBRARY.isdisjoint(folders)
        return file.endswith(".py") and not built and not local

    files = _folder_files(key, folder, wanted, skipped=_NOT_LIBRARY)
    if not files:
        raise DataError(f"{key}: this Python has no library source in {folder}; name a file or folder of text instead")
    return files


def _folder_files(
    key: str, folder: Path, wanted: Callable[[str], bool], *, skipped: frozenset[str] = frozenset()
) -> list[SourceFile]:
    """The wanted files at any depth, sorted by name; nothing hidden (a leading dot); links are followed, loops not."""
    files, visited = [], {os.path.realpath(folder)}
    for root, folders, names in os.walk(folder, followlinks=True, onerror=lambda error: _cannot_list(key, error)):
        kept = []
        for name in folders:
            real = os.path.realpath(os.path.join(root, name))
            if not name.startswith(".") and name not in skipped and name != "__pycache__" and real not in visited:
                visited.add(real)
                kept.append(name)
        folders[:] = kept
        for name in names:
            path = Path(root, name)
            relative = path.relative_to(folder).as_posix()
            if not name.startswith(".") and wanted(relative):
                files.append(_file(key, path, relative))
    return sorted(files, key=lambda file: file.name)


def _file(key: str, path: Path, name: str) -> SourceFile:
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{key}: {path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{key}: {path} is not a regular file; write the text to a file and name that")
    return SourceFile(path.absolute(), name, status.st_size, (status.st_mtime_ns, status.st_ctime_ns))


def _cannot_list(key: str, error: OSError) -> None:
    raise DataError(f"{key}: folder {error.filename} cannot be listed: {error.strerror}")


def _is_text_name(name: str) -> bool:
    suffixes = [suffix.lower() for suffix in Path(name).suffixes]
    if suffixes[-1:] == [".gz"]:
        suffixes.pop()
    return bool(suffixes) and suffixes[-1] in TEXT_SUFFIXES | RECORD_SUFFIXES


def _no_text(key: str, folder: Path) -> str:
    found = sorted({Path(name).suffix or "no suffix" for _, _, names in os.walk(folder) for name in names})
    seen = f"its files have {', '.join(found[:8])}" if found else "it is empty"
    return (
        f"{key}: no text file in folder {folder}: {seen}; read are .txt .md .py .rst and other source text, .jsonl, "
        f".parquet, and these with .gz; to read files whatever their suffix, name a glob, e.g. {folder}/**/*"
    )


def _nearest(path: Path) -> str:
    try:
        names = os.listdir(path.parent)
    except OSError:
        return f" (and no folder {path.parent})"
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.parent / near[0]}?" if near else f"; the folder {path.parent} has no such name"
