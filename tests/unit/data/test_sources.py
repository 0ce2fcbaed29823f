"""The grammar of sources: files, folders, globs, hub names, the library's source; what is missing is named.

Files made here -> the list of files, or the message. Knows nothing of what is in a file.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

from txl.data import DataError
from txl.data.sources import find_source, hub_revision, hub_rows, overlaps


def write(path: Path, text: str = "text\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def names(spec: str | Path) -> list[str]:
    return [file.name for file in find_source("data.train", str(spec)).files]


def test_a_folder_gives_its_text_files_at_any_depth_sorted_by_name(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.md", "a/b/c.PY", "c.txt.gz", "d.jsonl", "e.parquet", "B.rst"):
        write(tmp_path / name)
    for name in ("x.png", "y.zip", "README", ".hidden.txt", ".git/x.txt", "__pycache__/x.py", "z.json"):
        write(tmp_path / name)
    assert names(tmp_path) == ["B.rst", "a/b/c.PY", "a/z.md", "b.txt", "c.txt.gz", "d.jsonl", "e.parquet"]


def test_a_named_file_is_read_whatever_its_suffix(tmp_path: Path) -> None:
    assert names(write(tmp_path / "corpus.dat")) == ["corpus.dat"]


def test_a_name_with_glob_signs_that_exists_is_that_file(tmp_path: Path) -> None:
    write(tmp_path / "a1.txt")
    assert names(write(tmp_path / "a[1].txt")) == ["a[1].txt"]


def test_a_glob_gives_what_it_matches_sorted(tmp_path: Path) -> None:
    for name in ("b.dat", "a.dat", "sub/c.dat", "d.txt"):
        write(tmp_path / name)
    assert [Path(name).name for name in names(tmp_path / "*.dat")] == ["a.dat", "b.dat"]
    assert [Path(name).name for name in names(tmp_path / "**" / "*.dat")] == ["a.dat", "b.dat", "c.dat"]


def test_links_are_followed_and_loops_are_not(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "t.txt")
    write(tmp_path / "corpus" / "a.txt")
    (tmp_path / "corpus" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "corpus" / "loop").symlink_to(tmp_path / "corpus")
    assert names(tmp_path / "corpus") == ["a.txt", "linked/t.txt"]


def test_home_and_relative_names_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.txt")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert names("~/a.txt") == names("a.txt") == ["a.txt"]
    assert find_source("data.train", "a.txt").files[0].path == tmp_path / "a.txt"


def test_a_missing_name_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    write(tmp_path / "train.txt")
    with pytest.raises(DataError, match=r"data.valid: no such file or folder: .*trian.txt; did you mean .*train.txt\?"):
        find_source("data.valid", str(tmp_path / "trian.txt"))
    with pytest.raises(DataError, match=r"has no such name"):
        find_source("data.valid", str(tmp_path / "zzz"))
    with pytest.raises(DataError, match=r"\(and no folder .*nowhere\)"):
        find_source("data.valid", str(tmp_path / "nowhere" / "x"))
    with pytest.raises(DataError, match=r"data.train: no file matches .*\*.txt"):
        find_source("data.train", str(tmp_path / "none" / "*.txt"))


def test_a_folder_without_text_says_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.train: no text file in folder .*: it is empty"):
        find_source("data.train", str(tmp_path))
    write(tmp_path / "a.bin")
    write(tmp_path / "README")
    with pytest.raises(DataError, match=r"its files have .bin, no suffix; read are .txt .md"):
        find_source("data.train", str(tmp_path))


def test_pipes_and_broken_links_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(DataError, match=r"pipe.txt is not a regular file"):
        find_source("data.train", str(tmp_path / "pipe.txt"))
    (tmp_path / "pipe.txt").unlink()
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"gone.txt cannot be read: No such file"):
        find_source("data.train", str(tmp_path))


def test_a_stamp_changes_with_content_even_when_size_and_time_are_put_back(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one")
    os.utime(path, ns=(10**18, 10**18))
    before = find_source("data.train", str(path)).stamp
    assert find_source("data.train", str(path)).stamp == before
    path.write_text("two")
    os.utime(path, ns=(10**18, 10**18))
    assert find_source("data.train", str(path)).stamp != before


def test_stdlib_is_the_library_without_tests_and_without_files_of_the_build() -> None:
    found = names("stdlib")
    library = Path(sysconfig.get_path("stdlib"))
    assert found == sorted(found)
    assert {"ast.py", "json/decoder.py", "email/message.py"} <= set(found)
    assert all((library / name).is_file() for name in found)
    unwanted = ("/test/", "/tests/", "/idle_test/", "site-packages", "_sysconfigdata", "/config-", "__pycache__")
    assert not [name for name in found if any(part in "/" + name for part in unwanted)]
    assert len(found) > 400


@pytest.mark.parametrize(
    ("key", "spec", "expected"),
    [
        ("data.train", "hf:wikitext", ("wikitext", None, "train")),
        ("data.valid", "hf:wikitext:wikitext-2-raw-v1", ("wikitext", "wikitext-2-raw-v1", "validation")),
        ("data.test", "hf:org/name", ("org/name", None, "test")),
        ("data.train", "hf:org/name:en@train[:10%]", ("org/name", "en", "train[:10%]")),
    ],
)
def test_hub_names_have_a_configuration_and_a_split(key: str, spec: str, expected: tuple[str, ...]) -> None:
    hub = find_source(key, spec).hub
    assert hub is not None
    assert (hub.name, hub.config, hub.split) == expected


def test_a_hub_folder_may_hold_the_grammars_signs(tmp_path: Path) -> None:
    folder = write(tmp_path / "a@b:c" / "train.jsonl", '{"text": "x"}\n').parent
    source = find_source("data.train", f"hf:{folder}")
    assert source.hub is not None
    assert (source.hub.name, source.hub.split) == (str(folder), "train")
    assert [file.name for file in source.files] == ["train.jsonl"]
    assert hub_revision(source.hub) is None


@pytest.mark.parametrize("spec", ["hf:", "hf:name@", "hf:name:@train", "hf::en"])
def test_incomplete_hub_names_are_refused(spec: str) -> None:
    with pytest.raises(DataError, match=r"must be hf:NAME\[:CONFIG\]\[@SPLIT\]"):
        find_source("data.train", spec)


@pytest.fixture
def hub_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub_cache")
    folder = tmp_path / "set"
    write(folder / "train.jsonl", '{"text": "one", "n": 1}\n{"text": "two\\n", "n": 2}\n')
    write(folder / "test.jsonl", '{"text": "three", "n": 3}\n')
    return folder


@pytest.mark.parametrize("streaming", [False, True])
def test_hub_rows_come_from_the_named_split(hub_folder: Path, streaming: bool) -> None:
    train = find_source("data.train", f"hf:{hub_folder}")
    test = find_source("data.valid", f"hf:{hub_folder}@test")
    assert list(hub_rows(train, "text", streaming=streaming, revision=None)) == ["one", "two\n"]
    assert list(hub_rows(test, "text", streaming=streaming, revision=None)) == ["three"]
    part = find_source("data.train", f"hf:{hub_folder}@train[1:]")
    if not streaming:
        assert list(hub_rows(part, "text", streaming=False, revision=None)) == ["two\n"]
    with pytest.raises(DataError, match=r"no field 'body' \(data.text_field\); it has text, n"):
        list(hub_rows(part if not streaming else train, "body", streaming=streaming, revision=None))


def test_what_the_hub_library_says_is_passed_on(hub_folder: Path) -> None:
    missing = find_source("data.train", f"hf:{hub_folder}@validation")
    with pytest.raises(DataError, match=r"data.train: hf:.*cannot be read by the datasets library: .*validation"):
        list(hub_rows(missing, "text", streaming=False, revision=None))
    unknown = find_source("data.train", "hf:nobody/nothing")
    with pytest.raises(DataError, match=r"data.train: hf:nobody/nothing: cannot be read by the datasets library"):
        list(hub_rows(unknown, "text", streaming=False, revision=None))


def test_a_hub_that_cannot_be_asked_has_no_revision() -> None:
    hub = find_source("data.train", "hf:nobody/nothing").hub
    assert hub is not None
    assert hub_revision(hub) is None  # the tests run offline


def test_files_in_two_splits_are_noted(tmp_path: Path) -> None:
    write(tmp_path / "a.txt")
    write(tmp_path / "b.txt")
    sources = {
        "train": find_source("data.train", str(tmp_path)),
        "valid": find_source("data.valid", str(tmp_path / "a.txt")),
    }
    assert overlaps(sources) == [f"data.valid: 1 files are in data.train too, e.g. {tmp_path / 'a.txt'}"]
