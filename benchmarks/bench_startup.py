"""Start-up: `import txl`, and the first training step of a fresh process, ours against the peers.

python -m benchmarks.bench_startup [--rounds N] -> a table, one JSON line. Each call is a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks import peers
from benchmarks.timing import Row, finish, take_turns

STEP = (
    "from benchmarks import peers\n"
    "{path}config = peers.shape(128, 128)\n"
    "ids = peers.random_ids(4, 129)\n"
    "{make}.train(ids[:, :-1], ids[:, 1:])\n"
)
MAKE = {
    "txl": ("", "peers.Ours(config)"),
    "hugging face": ("peers.add_to_path()\n", "peers.HuggingFace(peers.Ours(config))"),
    "x-transformers": ("peers.add_to_path()\n", "peers.XTransformers(config)"),
}


def main() -> None:
    """Time imports and first steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    peers.add_to_path()
    imports = {name: program(source) for name, source in {"import txl": "import txl", "python alone": "pass"}.items()}
    steps = {name: program(STEP.format(path=path, make=make)) for name, (path, make) in MAKE.items()}
    rows = [
        Row("start-up without torch", "process", take_turns(imports, rounds=asked.rounds), "import txl"),
        Row("first training step, B 4, T = M = 128", "process", take_turns(steps, rounds=asked.rounds), "txl"),
    ]
    finish("bench_startup", rows)


def program(source: str):  # type: ignore[no-untyped-def]
    """A call that runs Python source in a process of its own."""
    return lambda: subprocess.run([sys.executable, "-W", "ignore", "-c", source], check=True, capture_output=True)


if __name__ == "__main__":
    main()
