"""The experiment on books with models that train in a second: all its parts, once, and nothing twice."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import words
from txl.config import load_config
from txl.model import build_model

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGS = REPOSITORY / "configs/books"
TINY = [
    *("model.n_layer=1", "model.d_model=16", "model.tgt_len=16", "data.batch_size=4", "train.eval_tokens=50"),
    *("train.sample_tokens=5", "eval.contexts=8,16,24", "eval.sample_targets=25", "eval.recl_step=8"),
    *("eval.max_tokens=300", "runtime.threads=1"),
]


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/books.py as a module, with one candidate a model but for vanilla."""
    spec = importlib.util.spec_from_file_location("books", REPOSITORY / "scripts/books.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "books", module)
    spec.loader.exec_module(module)
    halves = {"vanilla-full": [], "vanilla-half": ["train.loss=half"]}
    monkeypatch.setattr(module, "CANDIDATES", {"xl": {"xl": []}, "vanilla": halves, "lstm": {"lstm": []}})
    return module


def test_the_four_models_have_equal_parameters_and_differ_else_in_rate_and_order_of_text_alone() -> None:
    configs = {path.stem: load_config(path) for path in sorted(CONFIGS.glob("*.yaml"))}
    assert set(configs) == {"xl", "xl-no-memory", "vanilla", "lstm"}
    counts = [sum(p.numel() for p in build_model(c.model, 256).parameters()) for c in configs.values()]
    assert max(counts) <= 1.02 * min(counts), counts
    for name, count in zip(configs, counts, strict=True):
        assert f"{count:,} parameters" in (CONFIGS / f"{name}.yaml").read_text("utf-8")
    assert [name for name, c in configs.items() if c.data.shuffle_segments] == ["vanilla", "xl-no-memory"]
    xl = configs["xl"]
    for config in configs.values():
        ordered, as_xl = replace(config.data, shuffle_segments=False), replace(config.optim, lr=xl.optim.lr)
        assert replace(config, run=xl.run, data=ordered, model=xl.model, optim=as_xl) == xl
        assert config.model.tgt_len == xl.model.tgt_len
    assert max(configs["xl"].eval.contexts) == 8 * configs["xl"].model.tgt_len


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_does_what_is_missing_and_nothing_twice(
    books: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(("train", "valid", "test")):
        (tmp_path / "texts" / name).mkdir(parents=True)
        (tmp_path / "texts" / name / "book.txt").write_text(words(600, seed=number), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    changes = [*TINY, f"data.cache_dir={tmp_path / 'cache'}"]
    plan = books.Plan(tmp_path / "runs", tmp_path / "docs", 6, 3, ("1e-2",), (1111, 2222), changes)
    books.run(plan, tmp_path / "texts")
    record = json.loads((tmp_path / "docs/books.json").read_text("utf-8"))
    assert [run["run"] for run in record["runs"]] == [
        *("xl", "xl-2", "vanilla", "vanilla-2", "lstm", "vanilla, equal time")
    ]
    assert {model: entry["seeds"] for model, entry in record["models"].items()} == {"xl": 2, "vanilla": 2, "lstm": 1}
    assert {model: len(entries) for model, entries in record["xl_against"].items()} == {"vanilla": 2}
    assert all(entry["low"] <= entry["change"] <= entry["high"] for entry in record["xl_against"]["vanilla"])
    assert set(record["tuned"]["vanilla"]["valid_bits_per_byte"]) == {"vanilla-full 1e-2", "vanilla-half 1e-2"}
    assert {found["model"] for found in record["effective_context_lengths"]} == {"xl", "vanilla", "lstm"}
    page = (tmp_path / "docs/report.html").read_text("utf-8")
    assert "vanilla, equal time" in page
    assert "scripts/reproduce_books.sh --small FOLDER" in page
    assert not (tmp_path / "docs/report.json").exists()

    def never(*given: object, **named: object) -> None:
        raise AssertionError(given)

    monkeypatch.setattr(books, "train_one", never)
    monkeypatch.setattr(books, "timed_training", never)
    monkeypatch.setattr("txl.evaluation.context.slide", never)
    books.run(plan, tmp_path / "texts")
    assert json.loads((tmp_path / "docs/books.json").read_text("utf-8"))["runs"] == record["runs"]


def test_runs_of_other_books_are_not_taken_for_these(books: ModuleType, tmp_path: Path) -> None:
    plan = books.Plan(tmp_path / "runs", tmp_path / "docs", 6, 3, ("1e-2",), (1111,), ())
    for name in ("these", "those"):
        (tmp_path / name).mkdir()
    assert books.linked(plan, tmp_path / "these") == books.linked(plan, tmp_path / "these")
    with pytest.raises(SystemExit, match=r"these, which the runs beside it were trained on, not .*those; move"):
        books.linked(plan, tmp_path / "those")


def test_a_folder_that_is_none_of_books_is_refused_before_anything(books: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(SystemExit, match="found no folder valid; it must hold train/, valid/ and test/"):
        books.main([str(tmp_path)])
