"""An import may only point down, each dependency has one door, and nothing of a file is ever run as code.

Read from the sources alone (`ast`), so that a lazy import inside a function counts like any other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
DIAGRAM = """
 5  scripts/  benchmarks/  tests/     import txl; txl imports none of them
 4  txl/cli/ -> txl/verbs/            argv, exit codes -> paths, printing (txl/terminal.py, txl/plot.py draw)
 3  txl/train/                        loop · state · optim · journal
 2  txl/evaluation/  txl/infer/  txl/interop/  txl/checkpoint.py
 1  txl/data/  txl/model/  txl/runtime.py  txl/environment.py      know nothing of each other
 0  txl/config/  txl/allocator.py     dataclasses + omegaconf, no torch
"""
LAYERS = {
    "txl.config": 0,
    "txl.allocator": 0,
    "txl.data": 1,
    "txl.model": 1,
    "txl.runtime": 1,
    "txl.environment": 1,
    "txl.evaluation": 2,
    "txl.infer": 2,
    "txl.interop": 2,
    "txl.checkpoint": 2,
    "txl.train": 3,
    "txl.terminal": 3,
    "txl.plot": 3,
    "txl.verbs": 4,
    "txl.cli": 5,
    "txl.__main__": 6,
    "txl": 6,  # the public names, lazily: it may name every room, and no room may import it
}
DOORS = {
    "omegaconf": "txl/config/",
    "yaml": "txl/config/",
    "datasets": "txl/data/sources.py",
    "tokenizers": "txl/data/tokenizer.py",
    "accelerate": "txl/runtime.py",
    "einops": "txl/model/",
    "argparse": "txl/cli/",
    "matplotlib": "txl/evaluation/report",
    "fastapi": "txl/infer/serve.py",
    "uvicorn": "txl/infer/serve.py",
    "transformers": "txl/interop/",
}
WITHOUT_TORCH = (
    "txl/config/",
    "txl/cli/",
    "txl/verbs/",
    "txl/terminal.py",
    "txl/plot.py",
    "txl/__init__.py",
    "txl/__main__.py",
)
OUTSIDE = ("tests", "benchmarks", "scripts")
UNSAFE_MODULES = ("pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib")
UNSAFE_CALLS = ("yaml.load", "yaml.full_load", "yaml.unsafe_load", "os.system", "eval", "exec", "__import__")
UNSAFE_KEYWORDS = ("trust_remote_code", "allow_pickle", "shell")
ONE_TORCH_LOAD = "txl/interop/transfo_xl.py"


def sources(*folders: str) -> dict[str, str]:
    """Path in the repository -> text of every Python file there, with scripts that only say so in their first line."""
    found = {}
    for folder in folders:
        for path in sorted((REPOSITORY / folder).rglob("*")):
            is_python = path.suffix == ".py" or (
                path.is_file() and not path.suffix and b"python" in path.read_bytes()[:40]
            )
            if path.is_file() and is_python:
                found[path.relative_to(REPOSITORY).as_posix()] = path.read_text(encoding="utf-8")
    return found


TXL = sources("txl")


def module_of(path: str) -> str:
    """The dotted name of a file: txl/data/__init__.py is txl.data."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def room_of(module: str) -> str:
    """The entry of LAYERS a module belongs to; unknown modules belong to none and fail there."""
    parts = module.split(".")
    return ".".join(parts[:2]) if len(parts) > 1 else parts[0]


def imports_of(path: str, source: str) -> Iterator[tuple[int, str]]:
    """Line and dotted module of every import in a file, wherever it stands; `from txl import data` names txl.data."""
    package = module_of(path).split(".") if path.endswith("__init__.py") else module_of(path).split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*parent, *(node.module.split(".") if node.module else [])])
            if module == "txl":  # the version is a number, not an arrow
                named = [name for name in node.names if name.name != "__version__"]
                rooms = {f"txl.{name.name}" for name in named}
                yield from ((node.lineno, room if room in LAYERS else "txl") for room in sorted(rooms))
            else:
                yield node.lineno, module


def arrow_problems(path: str, source: str) -> list[str]:
    """Imports that point up, sideways into another room, out of the package, or past a door."""
    problems = []
    room = room_of(module_of(path))
    for line, module in imports_of(path, source):
        root = module.split(".")[0]
        if root == "txl" and room_of(module) != room:
            if room not in LAYERS or room_of(module) not in LAYERS:
                problems.append(f"{path}:{line}: {room} -> {module}: a room that the diagram does not have")
            elif LAYERS[room] <= LAYERS[room_of(module)]:
                problems.append(f"{path}:{line}: {room} -> {module} does not point down")
        elif root in OUTSIDE:
            problems.append(f"{path}:{line}: txl imports {module}, which stands outside the package")
        elif root in DOORS and not path.startswith(DOORS[root]):
            problems.append(f"{path}:{line}: {module} is imported outside its door, {DOORS[root]}")
        elif root == "torch" and path.startswith(WITHOUT_TORCH):
            problems.append(f"{path}:{line}: {module} is imported where torch must stay out")
    return problems


def unsafe_problems(path: str, source: str) -> list[str]:
    """Imports and calls that could run code out of a file."""
    problems = [
        f"{path}:{line}: imports {module}"
        for line, module in imports_of(path, source)
        if module.split(".")[0] in UNSAFE_MODULES
    ]
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if name in UNSAFE_CALLS:
            problems.append(f"{path}:{node.lineno}: calls {name}")
        if name == "torch.load" and not (path == ONE_TORCH_LOAD and keywords.get("weights_only") == "True"):
            problems.append(f"{path}:{node.lineno}: calls torch.load")
        for keyword in UNSAFE_KEYWORDS:
            if keywords.get(keyword, "False") != "False":
                problems.append(f"{path}:{node.lineno}: passes {keyword}={keywords[keyword]}")
    return problems


def test_an_import_may_only_point_down() -> None:
    problems = [problem for path, source in TXL.items() for problem in arrow_problems(path, source)]
    assert not problems, "\n".join(["", DIAGRAM, *problems])


def test_nothing_from_a_file_is_run_as_code() -> None:
    problems = [
        problem
        for path, source in sources("txl", "benchmarks", "scripts").items()
        for problem in unsafe_problems(path, source)
    ]
    assert not problems, "\n".join(problems)
    loads = [
        f"{path}:{node.lineno}"
        for path, source in TXL.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
    ]
    assert len(loads) <= 1, f"one torch.load is allowed in all, found {loads}"


def test_every_file_begins_by_saying_what_it_does() -> None:
    silent = [path for path, source in TXL.items() if not ast.get_docstring(ast.parse(source))]
    assert not silent, f"no docstring: {silent}"


def test_only_lazy_public_names_are_imported_by_their_text_and_only_from_their_own_room() -> None:
    for path, source in TXL.items():
        if "import_module" in source:
            assert path.endswith("/__init__.py"), f"{path}: imports a module by its text"
            texts = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
            homes = {text for text in texts if isinstance(text, str) and text.startswith("txl.") and " " not in text}
            assert all(home.startswith(module_of(path)) for home in homes), f"{path}: {homes}"


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        ("txl/data/corpus.py", "from txl.model import Memory", "txl.data -> txl.model does not point down"),
        ("txl/data/corpus.py", "from ..model import Memory", "txl.data -> txl.model does not point down"),
        ("txl/data/corpus.py", "from txl import model", "txl.data -> txl.model does not point down"),
        ("txl/model/build.py", "import txl", "txl.model -> txl does not point down"),
        (
            "txl/model/build.py",
            "def f():\n    import txl.train.loop",
            "txl.model -> txl.train.loop does not point down",
        ),
        ("txl/infer/session.py", "from txl.checkpoint import load", "txl.infer -> txl.checkpoint does not point down"),
        ("txl/infer/session.py", "from txl.helpers import x", "a room that the diagram does not have"),
        ("txl/infer/session.py", "from tests.reference import x", "outside the package"),
        ("txl/data/streams.py", "import datasets.iterable", "outside its door, txl/data/sources.py"),
        ("txl/train/loop.py", "from yaml import safe_load", "outside its door, txl/config/"),
        ("txl/config/load.py", "import torch", "torch must stay out"),
    ],
)
def test_a_wrong_arrow_is_seen(path: str, source: str, message: str) -> None:
    (problem,) = arrow_problems(path, source)
    assert message in problem


@pytest.mark.parametrize(
    ("path", "source", "unsafe"),
    [
        ("txl/a.py", "import pickle", True),
        ("txl/a.py", "from dill import loads", True),
        ("txl/a.py", "import torch\ntorch.load('x', weights_only=True)", True),
        (ONE_TORCH_LOAD, "import torch\ntorch.load('x')", True),
        (ONE_TORCH_LOAD, "import torch\ntorch.load('x', weights_only=True)", False),
        ("txl/a.py", "yaml.load(text, Loader=Loader)", True),
        ("txl/a.py", "eval('1')", True),
        ("txl/a.py", "model.eval()", False),
        ("txl/a.py", "load_dataset('x', trust_remote_code=True)", True),
        ("txl/a.py", "np.load('x', allow_pickle=True)", True),
        ("txl/a.py", "np.load('x', allow_pickle=False)", False),
        ("txl/a.py", "subprocess.run('ls', shell=True)", True),
    ],
)
def test_code_that_would_run_a_file_is_seen(path: str, source: str, unsafe: bool) -> None:
    assert bool(unsafe_problems(path, source)) is unsafe
