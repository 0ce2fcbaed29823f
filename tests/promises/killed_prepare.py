"""Run by a test: preparations killed with SIGKILL at every third touch of the disk, each in a forked process.

FOLDER -> a line of JSON for each kill: what the next preparation read, counted and encoded, and whether it left the
bytes of one that was never killed. A process of its own, so that it can fork before any thread exists.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.conftest import words
from txl.config import Config, DataConfig, TokenizerConfig
from txl.data import making, spool
from txl.data.corpus import prepare
from txl.data.store import PLAN

SEPARATOR = "<eos>"


def texts(folder: Path) -> Config:
    """Two sources of training text, one of them with a byte order mark that is noted, and two more splits."""
    for number, name in enumerate(("a/0.txt", "a/1.txt", "a/2.txt", "b.txt", "valid.txt", "test.txt")):
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        mark = "\ufeff" if name == "a/1.txt" else ""
        path.write_text(mark + words(90, seed=number), encoding="utf-8", newline="")
    data = DataConfig(
        mixture=(f"2 {folder}/a", f"1 {folder}/b.txt"),
        valid=f"{folder}/valid.txt",
        test=f"{folder}/test.txt",
        separator=SEPARATOR,
    )
    return Config(tokenizer=TokenizerConfig(kind="word", max_size=13), data=data)


def kill_at(number: int) -> None:
    """This process dies by SIGKILL before its `number`-th touch of the disk."""
    count = [0]

    def mortal(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return wrapped

    for name in ("fsync", "rename", "replace", "unlink"):
        setattr(os, name, mortal(getattr(os, name)))


def watched(config: Config) -> tuple[dict[str, bytes], dict[str, int]]:
    """Prepare; every file that is there then, and how often something was done for it."""
    done = {"read": 0, "trained": 0, "encoded": 0}
    read, train, encode = spool.read, making.train_tokenizer, making.encoded_in_order

    def counted_read(*args: Any, **kwargs: Any) -> Any:
        done["read"] += 1
        return read(*args, **kwargs)

    def counted_train(*args: Any, **kwargs: Any) -> Any:
        done["trained"] += 1
        return train(*args, **kwargs)

    def counted_encode(tokenizer: Any, groups: Iterable[Any], *, workers: int) -> Iterator[Any]:
        for group in encode(tokenizer, groups, workers=workers):
            done["encoded"] += 1
            yield group

    spool.read, making.train_tokenizer, making.encoded_in_order = counted_read, counted_train, counted_encode  # type: ignore[assignment]
    try:
        made = prepare(config)
    finally:
        spool.read, making.train_tokenizer, making.encoded_in_order = read, train, encode
    assert [path.name for path in made.folder.parent.iterdir() if path.suffix != ".lock"] == [made.folder.name]
    made.verify()
    return {path.name: path.read_bytes() for path in made.folder.iterdir() if path.name != PLAN}, done


def main(folder: Path) -> None:
    making.BATCH = spool.BLOCK_BYTES = 200  # type: ignore[misc]
    config, number = texts(folder / "texts"), -1
    whole, all_done = watched(replace(config, data=replace(config.data, cache_dir=str(folder / "whole"))))
    print(json.dumps({"files": sorted(whole), "notes": json.loads(whole["manifest.json"])["notes"], **all_done}))
    while True:
        number += 3
        cache = folder / f"cache-{number}"
        mortal = replace(config, data=replace(config.data, cache_dir=str(cache)))
        child = os.fork()
        if child == 0:
            kill_at(number)
            prepare(mortal)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        noted = [json.loads(path.read_bytes()) for path in cache.glob("*.new/*.kept")]
        groups = sum(record["written"]["groups"] for record in noted if "written" in record)
        files, done = watched(mortal)
        print(json.dumps({"killed": os.WIFSIGNALED(status), "same": files == whole, "groups": groups, **done}))
        shutil.rmtree(cache)
        if not os.WIFSIGNALED(status):
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
