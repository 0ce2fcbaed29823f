"""What every test starts from: one torch thread, fixed seeds, a private cache folder, and small texts made on the spot.

Nothing -> fixtures. Knows nothing of models or training; a test that needs a model builds its own, as small as it can.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

# Two processes with two OpenMP threads each on two cores slow each other many times over: one thread a worker,
# set before torch loads.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ.setdefault("MPLBACKEND", "Agg")

import numpy as np
import pytest
import torch

torch.set_num_threads(1)

WORDS = (
    "the",
    "river",
    "ran",
    "under",
    "a",
    "grey",
    "bridge",
    "and",
    "nobody",
    "counted",
    "its",
    "boats",
    "naïve",
    "café",
    "π",
)

CorpusFactory = Callable[..., Path]


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Same random numbers for every test, whatever ran before it; a changed default dtype does not leak out."""
    random.seed(11)
    np.random.seed(11)
    torch.manual_seed(11)
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prepared corpora go into a folder of this test alone, never into the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setenv("HF_HOME", str(folder / "huggingface"))
    return folder


def words(count: int, *, seed: int = 0) -> str:
    """`count` words of a small vocabulary (some outside ASCII) as lines of nine, the same for the same seed."""
    draw = random.Random(seed)
    drawn = [draw.choice(WORDS) for _ in range(count)]
    return "".join(" ".join(drawn[i : i + 9]) + "\n" for i in range(0, count, 9))


@pytest.fixture
def make_corpus(tmp_path: Path) -> CorpusFactory:
    """A factory: `make_corpus(documents=7, words_each=120, name="corpus", suffix=".txt", seed=0)` -> a folder."""

    def make(
        *, documents: int = 7, words_each: int = 120, name: str = "corpus", suffix: str = ".txt", seed: int = 0
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(documents):
            text = words(words_each + number, seed=1000 * seed + number)
            (folder / f"doc{number:03d}{suffix}").write_text(text, encoding="utf-8", newline="")
        return folder

    return make


@pytest.fixture
def corpus_folder(make_corpus: CorpusFactory) -> Path:
    """Seven documents of about 120 words, one a file."""
    return make_corpus()


@pytest.fixture
def corpus_file(tmp_path: Path) -> Path:
    """One file of 3,000 words."""
    path = tmp_path / "corpus.txt"
    path.write_text(words(3000), encoding="utf-8", newline="")
    return path


PROMISE = re.compile(r"p(\d+) ")
"""How the name of a promise's test begins, wherever it stands."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List laws and promises that were tested by name, with the number of their cases, and say whether each held."""
    cases: dict[str, dict[str, list[str]]] = {"laws": {}, "promises": {}}
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            name = report.nodeid.partition("::")[2].split("[")[0].removeprefix("test_").replace("_", " ")
            of = "promises" if PROMISE.match(name) else "laws" if report.nodeid.startswith("tests/laws/") else None
            if of is not None and (report.when == "call" or outcome != "passed"):
                cases[of].setdefault(name, []).append(outcome)
    for title, named in cases.items():
        if named:
            terminalreporter.section(title)
        for name in sorted(named, key=lambda name: (int(PROMISE.match(name)[1]) if title == "promises" else 0, name)):
            verdict = "holds " if set(named[name]) == {"passed"} else "BROKEN"
            count = len(named[name])
            terminalreporter.line(f"{verdict}  {name}" + (f"  ({count} cases)" if count > 1 else ""))
