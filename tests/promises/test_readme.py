"""Promise 30: the README's commands run as they are written, on two tiny books.

Every `txl` command and the Python of README.md -> run in a folder with two books, against the shipped quickstart made
small by settings alone. What downloads and installs (scripts/quickstart, scripts/test) or serves is not run here.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import words
from tests.models import make_model
from tests.unit.interop.published_files import PAPER, write_paper_checkpoint
from txl import cli
from txl.cli.table import VERBS
from txl.config import load_config, to_yaml

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
FENCES = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
SMALL = (
    *("model.n_layer=2", "model.d_model=16", "model.n_head=2", "model.d_head=8", "model.d_inner=24"),
    "model.tgt_len=16",
    *("data.batch_size=4", "train.max_steps=4", "train.eval_every=2", "train.save_every=2", "train.eval_tokens=200"),
    *("train.sample_tokens=5", "optim.warmup_steps=2", "eval.contexts=[4,8]", "eval.sample_targets=20"),
)
SYNOPSIS = {
    "CONFIG [CONFIG ...]": "configs/quickstart.yaml",
    "CONFIG": "configs/quickstart.yaml",
    "RUN OUT": "runs/imported exported",
    "RUN": "runs/quickstart/xl",
    "TEXT": "'The '",
    "PATH": "published/model.pt --out runs/imported",
}
"""What the words in capitals stand for."""
RUN_HERE = ("compare", "train", "eval", "generate", "prepare", "validate", "config", "import", "export")


def commands(text: str) -> list[str]:
    """The commands of a block, their comments left out, lines that go on joined."""
    joined = re.sub(r"\\\n\s*", " ", text)
    return [line.split("   ")[0].strip() for line in joined.splitlines() if line.startswith("txl ")]


LENGTHS = {"[[0,16],[300,64]]": "[[0,8],[2,16]]", "optim.decay_steps=160": "optim.decay_steps=2"}
"""Steps and lengths that are made for the real quickstart, and what they are in the small one."""
EXAMPLES = [line for kind, text in FENCES if kind == "bash" and "txl score" not in text for line in commands(text)]
"""What scores and goes on from states is run by a shell, in tests/integration/test_text_without_end.py."""
VERB_LINES = [line for kind, text in FENCES if not kind for line in commands(text)]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with two books of three chapters under every name the README gives to text, and small configs."""
    folder = tmp_path_factory.mktemp("workshop")
    for name in ("quickstart", "quickstart-vanilla"):
        memory = ("model.mem_len=12",) if name == "quickstart" else ()
        config = load_config(ROOT / "configs" / f"{name}.yaml", [*SMALL, *memory, "data.train=my-texts/"])
        (folder / "configs").mkdir(exist_ok=True)
        (folder / "configs" / f"{name}.yaml").write_text(to_yaml(config), encoding="utf-8")
    for book in ("one", "two"):
        (folder / "my-texts" / book).mkdir(parents=True)
        for chapter in range(3):
            text = words(160, seed=len(book) + chapter + (book == "two") * 10)
            (folder / "my-texts" / book / f"{chapter}.txt").write_text(text, encoding="utf-8")
    (folder / "letters").mkdir()
    for letter in range(4):
        (folder / "letters" / f"{letter}.txt").write_text(words(160, seed=50 + letter), encoding="utf-8")
    for split, seed in (("train", 1), ("valid", 2), ("test", 3)):
        (folder / "books" / split).mkdir(parents=True)
        (folder / "books" / split / "book.txt").write_text(words(400, seed=seed), encoding="utf-8")
    (folder / "plays.txt").write_text(words(800, seed=4), encoding="utf-8")
    articles = [f" = Article {number} = \n" + words(120, seed=number) for number in range(5)]
    (folder / "wiki.txt").write_text("".join(articles), encoding="utf-8")
    (folder / "NAME").mkdir()
    rows = (json.dumps({"text": words(90, seed=number)}) + "\n" for number in range(6))
    (folder / "NAME" / "train.jsonl").write_text("".join(rows), encoding="utf-8")
    (folder / "published").mkdir()
    write_paper_checkpoint(folder / "published", make_model(PAPER))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        assert cli.main(["train", "configs/quickstart.yaml"]) == 0
        yield folder


@pytest.fixture(autouse=True)
def inside(workshop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(workshop / "cache"))


def test_p30_the_readme_has_the_commands_that_are_tested_here() -> None:
    assert len(EXAMPLES) >= 5
    assert {line.split()[1] for line in VERB_LINES} >= set(RUN_HERE)
    assert all(line.split()[1] in VERBS for line in EXAMPLES + VERB_LINES)


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=[pytest.mark.slow] * line.startswith("txl compare")) for line in EXAMPLES]
)
def test_p30_a_command_of_the_readme_runs_as_it_is_written(line: str) -> None:
    for real, small in LENGTHS.items():
        line = line.replace(real, small)
    assert cli.main(shlex.split(line)[1:]) == 0


@pytest.mark.parametrize("line", [line for line in VERB_LINES if line.split()[1] in RUN_HERE])
def test_p30_a_verb_of_the_readme_runs_as_it_is_written(line: str) -> None:
    for word, meaning in SYNOPSIS.items():
        line = re.sub(rf"{re.escape(word)}(?=\s|$)", meaning, line, count=1)
    assert cli.main(shlex.split(line)[1:]) == 0


def test_p30_the_python_of_the_readme_runs_as_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = (text for kind, text in FENCES if kind == "python")
    names: dict[str, object] = {}
    exec(compile(source, "README.md", "exec"), names)
    assert len(names["text"]) == 20  # type: ignore[arg-type]
    assert names["more"].logits.shape[:2] == names["ids"][None].shape  # type: ignore[attr-defined, index]
