"""Quality for time: bits per byte after so many minutes of training, ours against x-transformers' decoder (row Q1).

python -m benchmarks.bench_quality FOLDER [--minutes N] [--only NAMES] [--rates R ...] -> a JSON line a run, a table,
one JSON line of everything. FOLDER holds train/ valid/ test/ with books as text.

Physics: both read as much text as the machine manages in the minutes, at equal parameters and in the same precision, so
speed is quality. Every rate of a contender's grid gets the whole minutes (what is best in a short run is too high for a
longer one), and the run that is best on validation text counts, of a contender and of all on a side; a grid whose best
rate is at its edge goes on beyond it, unless --rates names the rates. Both follow a cosine with a twentieth of warm-up.
Ours is told a number of steps, the same at every rate, from how long its first ones take: it takes longer where the
machine slows down. Theirs stop by the clock, and are given as long as ours took at most. What counts are the bits per
byte of the first 200,000 bytes of test text: ours through its cache; theirs with memory carried along, or without
memory in windows moved by a quarter, which favours them. Their softmax has a matrix of its own, as is their default:
tied to the embedding it learns far more slowly. Their attention is torch's fused kernel or their own plain one,
whichever trains faster on this machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import txl
from txl.config import Config, ModelConfig, load_config
from txl.runtime import multiplies_bf16
from txl.train.folder import read_result
from txl.train.muon import Muon

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "configs/quality.yaml"
PLACE = ROOT / "build/peers"
TEST_BYTES = 200_000
VALID_BYTES = 50_000
ADAMW_RATES = (5e-4, 1e-3, 2e-3)
MUON_RATES = (0.01, 0.02, 0.04)
"""Of the matrices; everything else is AdamW's at the config's own optim.lr."""
STEP_OF_GRID = 2
CALIBRATING_STEPS = 150
"""Half a minute or more, for machines whose speed comes and goes; fewer where less than a minute is asked for."""
TIMED_STEPS = 5
WARM_UP = 0.05
CLIP = 1.0


@dataclass(frozen=True)
class Peer:
    """A variant of x-transformers' decoder, rotary positions throughout."""

    mem_len: int
    tgt_len: int
    optimizer: str
    gated: bool = False
    """Whether it has SwiGLU, as ours, and queries and keys normalised its own way: to length 1, scores scaled by 10."""


PEERS = {
    "x-transformers no-memory AdamW": Peer(0, 256, "adamw"),
    "x-transformers no-memory Muon": Peer(0, 256, "muon"),
    "x-transformers no-memory gated Muon": Peer(0, 256, "muon", gated=True),
    "x-transformers memory AdamW": Peer(128, 128, "adamw"),
    "x-transformers memory Muon": Peer(128, 128, "muon"),
}
OURS = {"txl AdamW": "adamw", "txl Muon": "muon"}


def main() -> None:
    """Train every contender at every rate, then print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=12.0, help="of training, each rate of each contender (12)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", help="contenders whose name holds one of these words, with commas between")
    parser.add_argument("--rates", type=float, nargs="*", help="learning rates instead of the grid of the optimizer")
    parser.add_argument("--set", nargs="*", default=[], metavar="k=v", help="settings of ours on top of the config")
    given = parser.parse_args()
    wanted = [word.strip() for word in given.only.split(",")] if given.only else [""]
    names = [name for name in (*OURS, *PEERS) if any(word in name for word in wanted)]
    if any(name in PEERS for name in names):
        if not (PLACE / "x_transformers").exists():
            sys.exit("x-transformers is not installed: run scripts/peers_env, then this again (or --only txl)")
        sys.path.append(str(PLACE))
    torch.set_num_threads(given.threads)
    texts = Texts.read(given.folder)
    rows: list[dict[str, Any]] = []
    minutes_of_peers = given.minutes
    for name in names:
        minutes = given.minutes if name in OURS else minutes_of_peers
        contender: Ours | Theirs = (
            Ours(name, OURS[name], given.folder, given.set, given.threads)
            if name in OURS
            else Theirs(name, PEERS[name], texts)
        )
        grid = MUON_RATES if contender.optimizer == "muon" else ADAMW_RATES
        found = search(contender, texts, given.rates or grid, minutes, beyond=not given.rates)
        if name in OURS:
            minutes_of_peers = max(minutes_of_peers, *(run["seconds"] / 60 for run in found))
        rows.append({"name": name, "parameters": contender.parameters, **best_of(found), "rates": found})
    finish(rows, given.minutes, given.threads)


def search(
    contender: Ours | Theirs, texts: Texts, rates: Sequence[float], minutes: float, *, beyond: bool
) -> list[dict[str, Any]]:
    """A run at each rate; with `beyond`, further ones until the best rate is inside the grid."""
    found: list[dict[str, Any]] = []
    missing = list(rates)
    while missing:
        for rate in missing:
            found.append({"lr": rate, **vars(contender.train(rate, minutes)), "bits": contender.test_bits(texts)})
            print(f"{contender.name}: {json.dumps(found[-1])}", flush=True)
        tried, best = [run["lr"] for run in found], best_of(found)["lr"]
        further = {min(tried): min(tried) / STEP_OF_GRID, max(tried): max(tried) * STEP_OF_GRID}
        missing = [further[best]] if beyond and best in further else []
    return found


def best_of(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The run with the fewest bits on the validation text."""
    return min(runs, key=lambda run: run["valid_bits"] if math.isfinite(run["valid_bits"]) else math.inf)


@dataclass(frozen=True)
class Texts:
    """Bytes of the three splits, documents in the order of their names."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray

    @staticmethod
    def read(folder: Path) -> Texts:
        """Every file of FOLDER/train, valid and test."""
        parts = []
        for name in ("train", "valid", "test"):
            files = sorted(path for path in (folder / name).glob("*") if path.is_file())
            if not files:
                sys.exit(f"{folder / name}: found no file; allowed: a folder with books as text")
            parts.append(np.frombuffer(b"".join(path.read_bytes() for path in files), np.uint8))
        return Texts(*parts)


@dataclass(frozen=True)
class Trained:
    """A run: bits per byte of the validation text, tokens read, seconds it took."""

    valid_bits: float
    tokens: int
    seconds: float


class Ours:
    """txl under configs/quality.yaml, each run a `txl train` of as many steps as fit into the minutes."""

    def __init__(self, name: str, optimizer: str, folder: Path, changes: Sequence[str], threads: int) -> None:
        self.name, self.optimizer = name, optimizer
        places = [f"data.{split}={folder.absolute() / split}" for split in ("train", "valid", "test")]
        machine = [f"runtime.threads={threads}", "run.resume=never"]
        self.words = [*places, f"optim.name={optimizer}", *machine, *changes]
        self.folder = ROOT / "build/quality" / f"{optimizer}-{os.getpid()}"
        self.parameters = n_parameters(txl.build_model(load_config(CONFIG, self.words).model, 256))
        self.step_seconds: float | None = None
        self.latest: Config | None = None

    def train(self, rate: float, minutes: float) -> Trained:
        """A run of as many steps as fit into the minutes, the same number at every rate."""
        key = "optim.muon_lr" if self.optimizer == "muon" else "optim.lr"
        if self.step_seconds is None:
            few = max(5, round(CALIBRATING_STEPS * min(1.0, minutes)))
            self.step_seconds = self._run([], few, "calibrating").seconds / few
        steps = max(20, round(60 * minutes / self.step_seconds))
        return self._run([f"{key}={rate}"], steps, f"{minutes:g}-minutes")

    def _run(self, words: Sequence[str], steps: int, name: str) -> Trained:
        warm = max(1, round(WARM_UP * steps))
        place = self.folder / f"{name}-{time.time_ns()}"
        every = [*words, f"train.max_steps={steps}", f"optim.warmup_steps={warm}", f"run.dir={place}"]
        config = load_config(CONFIG, [*self.words, *every])
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "txl", "train", str(CONFIG), *self.words, *every]
        subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
        records = [json.loads(line) for line in (place / "metrics.jsonl").read_text("utf-8").splitlines()]
        seen, taken = 0, []
        for record in records:
            taken.append((record["tokens"] - seen) / record["tokens_per_second"])
            seen = record["tokens"]
        seconds = sum(taken)
        result = read_result(place)
        assert result is not None
        if self.latest is not None:  # the model asked about is always the latest; others would fill the disk
            shutil.rmtree(self.latest.run.dir, ignore_errors=True)
        self.latest = config
        return Trained(float(result["valid_bits_per_byte"] or math.inf), seen, seconds)

    def test_bits(self, texts: Texts) -> float:
        """Through the cache of the latest run's model, at its own window."""
        assert self.latest is not None
        bundle = txl.load(self.latest.run.dir, "newest")
        found = txl.evaluate(bundle.model, texts.test[:TEST_BYTES], batch_size=8)
        return found.nats / found.tokens / math.log(2)


class Theirs:
    """x-transformers' decoder with rotary positions, of as many parameters as ours."""

    def __init__(self, name: str, peer: Peer, texts: Texts) -> None:
        self.name, self.peer, self.texts, self.optimizer = name, peer, texts, peer.optimizer
        config = load_config(CONFIG)
        self.rows = config.data.batch_size * config.model.tgt_len // peer.tgt_len
        self.shape, self.optim = config.model, config.optim
        self.target = n_parameters(txl.build_model(config.model, 256))
        self.flash = self._fused_is_faster()
        self.model = self._fresh(flash=self.flash)
        self.parameters = n_parameters(self.model)

    def _fused_is_faster(self) -> bool:
        """Whether a pass forward and back is faster with torch's fused attention; medians of steps taken in turn."""
        models = {flash: self._fresh(flash=flash).train() for flash in (True, False)}
        seconds: dict[bool, list[float]] = {flash: [] for flash in models}
        ids = self._crops(np.random.default_rng(0))
        for _ in range(TIMED_STEPS):
            for flash, model in models.items():
                begun = time.monotonic()
                self._loss(model, ids, None)[0].backward()
                seconds[flash].append(time.monotonic() - begun)
        fused, plain = (statistics.median(seconds[flash]) for flash in (True, False))
        print(f"{self.name}: {fused:.3f} s a pass with fused attention, {plain:.3f} with plain", flush=True)
        return fused < plain

    def _fresh(self, *, flash: bool) -> Any:
        """A new model; its inner width is what makes the parameters equal."""
        width = self.shape.d_inner
        a_feature = self.shape.n_layer * ((2 + self.peer.gated) * self.shape.d_model + 1 + self.peer.gated)
        for _ in range(3):  # each inner feature costs the same, so the second try fits already
            torch.manual_seed(1)
            model = decoder(self.shape, self.peer, width, flash=flash)
            width += round((self.target - n_parameters(model)) / a_feature)
        return model

    def train(self, rate: float, minutes: float) -> Trained:
        """Adam or Muon under a cosine over the minutes, which the clock decides."""
        self.model = self._fresh(flash=self.flash).train()
        optimizers = self._optimizers(rate)
        peaks = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
        memory: Any = None
        tokens, begun, draw = 0, time.monotonic(), np.random.default_rng(1)
        stream = self._segments() if self.peer.mem_len else None
        while (done := (time.monotonic() - begun) / (60 * minutes)) < 1:
            share = min(1.0, done / WARM_UP) if done < WARM_UP else 0.5 + 0.5 * math.cos(math.pi * done)
            groups = [group for optimizer in optimizers for group in optimizer.param_groups]
            for group, peak in zip(groups, peaks, strict=True):
                group["lr"] = peak * share
            ids = next(stream) if stream is not None else self._crops(draw)
            loss, memory = self._loss(self.model, ids, memory)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            tokens += ids[:, 1:].numel()
        seconds = time.monotonic() - begun
        return Trained(self._bits(self.texts.valid[:VALID_BYTES]), tokens, seconds)

    def test_bits(self, texts: Texts) -> float:
        """Of the latest run's model."""
        return self._bits(texts.test[:TEST_BYTES])

    def _optimizers(self, rate: float) -> list[torch.optim.Optimizer]:
        """AdamW for everything, or Muon for the matrices of the layers and AdamW for the rest.

        Muon is ours: torch's own takes fifty times as long where bf16 is emulated.
        """
        named = dict(self.model.named_parameters())
        if self.optimizer == "adamw":
            return [torch.optim.AdamW(named.values(), lr=rate, weight_decay=0.0)]
        matrices = [p for name, p in named.items() if p.ndim == 2 and "attn_layers" in name]
        ids = {id(p) for p in matrices}
        rest = [p for p in named.values() if id(p) not in ids]
        muon = Muon(matrices, lr=rate, weight_decay=0.0, momentum=self.optim.muon_momentum)
        return [muon, torch.optim.AdamW(rest, lr=self.optim.lr, weight_decay=0.0)]

    def _loss(self, model: Any, ids: Tensor, memory: Any) -> tuple[Tensor, Any]:
        """Mean nats of a segment after its memory, and the memory after it."""
        with autocast():
            logits, memory = self._read(model, ids[:, :-1], memory)
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten()), memory

    def _read(self, model: Any, ids: Tensor, memory: Any) -> tuple[Tensor, Any]:
        """Logits of a segment, after its memory where the variant has one."""
        if not self.peer.mem_len:
            return model(ids), None
        logits, memory = model(ids, mems=memory, return_mems=True)
        return logits, [rows.detach() for rows in memory]

    def _crops(self, draw: np.random.Generator) -> Tensor:
        """Segments from anywhere in the training text."""
        length = self.peer.tgt_len + 1
        first = draw.integers(0, len(self.texts.train) - length, self.rows)
        return torch.from_numpy(self.texts.train[first[:, None] + np.arange(length)].astype(np.int64))

    def _segments(self) -> Any:
        """Segments of parallel streams, for ever: memory needs what went before."""
        ids, length = self.texts.train, self.peer.tgt_len
        stream = (len(ids) - 1) // self.rows
        while True:
            for at in range(0, stream - length, length):
                place = np.arange(self.rows)[:, None] * stream + at + np.arange(length + 1)
                yield torch.from_numpy(ids[place].astype(np.int64))

    @torch.no_grad()
    def _bits(self, ids: np.ndarray) -> float:
        """Bits per byte of all but the first byte."""
        self.model.eval()
        text = torch.from_numpy(ids.astype(np.int64))[None]
        length = self.peer.tgt_len
        step = length if self.peer.mem_len else length // 4
        nats, memory, count = 0.0, None, text.shape[1] - 1
        for at in range(0, count, step):
            begin = at if self.peer.mem_len else max(0, at + step - length)
            stop = min(at + step, count)
            with autocast():
                logits, memory = self._read(self.model, text[:, begin:stop], memory)
            scored = logits[0, at - begin :].float()
            nats += float(torch.nn.functional.cross_entropy(scored, text[0, at + 1 : stop + 1], reduction="sum"))
        return nats / count / math.log(2)


def decoder(shape: ModelConfig, peer: Peer, width: int, *, flash: bool) -> Any:
    """x-transformers' decoder of our sizes, its feed-forward `width` wide."""
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=shape.d_model,
        depth=shape.n_layer,
        heads=shape.n_head,
        attn_dim_head=shape.d_head,
        ff_mult=width / shape.d_model,
        rotary_pos_emb=True,
        attn_flash=flash,
        ff_glu=peer.gated,
        ff_swish=peer.gated,
        attn_qk_norm=peer.gated,
    )
    return TransformerWrapper(
        num_tokens=256,
        max_seq_len=peer.tgt_len + peer.mem_len,
        max_mem_len=peer.mem_len,
        use_abs_pos_emb=False,
        attn_layers=layers,
    )


def autocast() -> torch.autocast:
    """The precision that `runtime.precision: auto` gives ours on a CPU."""
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=multiplies_bf16("cpu"))


def n_parameters(model: torch.nn.Module) -> int:
    """Numbers a model learns."""
    return sum(parameter.numel() for parameter in model.parameters())


def finish(rows: Sequence[dict[str, Any]], minutes: float, threads: int) -> None:
    """The table, then everything as one JSON line."""
    print(f"\n{'contender':<36}{'bits/byte':>10}{'rate':>8}{'tokens':>12}{'seconds':>9}{'tokens/s':>10}{'weights':>12}")
    for row in sorted(rows, key=lambda row: row["bits"]):
        speed = row["tokens"] / row["seconds"]
        told = f"{row['bits']:>10.4f}{row['lr']:>8g}{row['tokens']:>12,}{row['seconds']:>9.0f}{speed:>10,.0f}"
        print(f"{row['name']:<36}{told}{row['parameters']:>12,}")
    of_each = [[row for row in rows if row["name"] in names] for names in (OURS, PEERS)]
    ours, theirs = (best_of(found)["bits"] if found else None for found in of_each)
    below = None if ours is None or theirs is None else 1 - ours / theirs
    if below is not None:
        print(f"ours is {100 * below:.1f} % below their best; aimed at: at least 5 %")
    peers = {} if theirs is None else {"x-transformers": version("x-transformers")}
    packages = {"torch": torch.__version__, "txl": txl.__version__, "python": platform.python_version(), **peers}
    cpu = torch.cpu.get_capabilities().get("cpu_name") or platform.machine()
    record = {"benchmark": "bench_quality", "minutes": minutes, "test_bytes": TEST_BYTES, "rows": rows, "below": below}
    record |= {"cpu": cpu, "threads": threads, "bf16": multiplies_bf16("cpu"), "packages": packages}
    print(json.dumps(record))


if __name__ == "__main__":
    main()
