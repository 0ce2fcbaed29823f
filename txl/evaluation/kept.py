"""Losses of single tokens kept in files, so that later questions are answered without scoring anything again.

Nats by position and all they depend on <-> a folder of `.npy` files (float32, mapped into memory when read), each with
a JSON manifest beside it. A file whose manifest differs in anything is not used. Knows nothing of models or texts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from txl.evaluation.perplexity import Settings

Array = npt.NDArray[Any]
FORMAT = 1


class Kept:
    """The losses kept in one folder for one model and one text.

    facts: JSON of all that a loss depends on besides how the text is read: the text's and the weights' hashes, the
    model's settings. What was kept under other facts is scored anew, and replaced.
    """

    def __init__(self, folder: str | Path, facts: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.facts = json.loads(json.dumps(facts))
        self.problem = ""
        """Why some losses could not be written, "" where all were: what was scored is no worse for it."""

    def get(self, name: str, wanted: Mapping[str, Any], count: int) -> tuple[Array, Settings] | None:
        """The nats of `count` targets kept under a name and their settings; None where there are none such.

        wanted: what the manifest must say of how the text was read, e.g. kind, context, positions.
        """
        try:
            manifest = json.loads((self.folder / f"{name}.json").read_text("utf-8"))
            if manifest["format"] != FORMAT or manifest["facts"] != self.facts:
                return None
            if manifest["reading"] != json.loads(json.dumps(wanted)):
                return None
            nll = np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            if nll.dtype != np.float32 or nll.shape != (count,):
                return None
            return nll, Settings(**manifest["settings"])
        except (OSError, EOFError, ValueError, KeyError, TypeError):
            return None

    def put(self, name: str, wanted: Mapping[str, Any], nll: Array, settings: Settings) -> None:
        """Keep nats under a name, or say in `problem` why the disk did not take them."""
        try:
            self._write(name, wanted, nll, settings)
        except OSError as error:
            self.problem = f"{self.folder / name}.npy: cannot be written: {error.strerror}"

    def _write(self, name: str, wanted: Mapping[str, Any], nll: Array, settings: Settings) -> None:
        """Both files; the manifest is written last, so that a killed write is never read."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path, manifest = (self.folder / f"{name}.{ending}" for ending in ("npy", "json"))
        manifest.unlink(missing_ok=True)
        draft = self.folder / f".{name}.{os.getpid()}.npy"
        np.save(draft, np.ascontiguousarray(nll, dtype=np.float32), allow_pickle=False)
        os.replace(draft, path)
        record = {"format": FORMAT, "file": path.name, "dtype": "float32", "unit": "nats a token", "targets": len(nll)}
        record |= {"reading": dict(wanted), "settings": asdict(settings), "facts": self.facts}
        draft = self.folder / f".{name}.{os.getpid()}.json"
        draft.write_text(json.dumps(record, indent=1), encoding="utf-8")
        os.replace(draft, manifest)

    @staticmethod
    def contexts(folder: Path, kind: str, facts: Mapping[str, Any]) -> dict[int, tuple[Array, dict[str, Any]]]:
        """All losses of one kind in a folder by context, each with what says which tokens of which text they are about.

        facts: what must be among the facts they were kept under; None for one that must not be there.
        Files of others, or not whole, are left out.
        """
        wanted = json.loads(json.dumps(facts))
        found = {}
        for path in sorted(folder.glob(f"{kind}-*.json")):
            try:
                manifest = json.loads(path.read_text("utf-8"))
                reading, held = manifest["reading"], manifest["facts"]
                nll = np.load(folder / manifest["file"], mmap_mode="r", allow_pickle=False)
                alike = all(held.get(key) == value for key, value in wanted.items())
                if alike and reading["kind"] == kind and nll.shape == (manifest["targets"],):
                    keys = ("text", "tokenizer", "split", "max_tokens", "reset_memory")
                    text = {key: held.get(key) for key in keys} | {"positions": reading["positions"]}
                    found[int(reading["context"])] = (nll, text)
            except (OSError, EOFError, ValueError, KeyError, TypeError):
                continue
        return found
