"""Training from a token file of 2 GB takes no more anonymous memory than from a small one: the file stays on the disk.

A sparse file -> a run of some steps in a process of its own -> its peak of RssAnon (Linux). Mapped pages are no part of
it: they go when others need the room.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import config_file
from tests.runs import metrics, tiny

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
import dataclasses, sys, threading, time
from pathlib import Path
import numpy as np
from txl.config import load_config
from txl.train import begin
from txl.train.loop import train

peak, prepare = [0], begin.prepare

def watch():
    while True:
        lines = Path("/proc/self/status").read_text().splitlines()
        peak[0] = max(peak[0], *(int(line.split()[1]) for line in lines if line.startswith("RssAnon")))
        time.sleep(0.005)

def large(config, **settings):
    corpus = prepare(config, **settings)
    ids = np.memmap(sys.argv[2], "u1", mode="r")
    starts = np.arange(0, len(ids), 500_000)
    split = dataclasses.replace(corpus.train, ids=ids, document_starts=starts, tokens=len(ids), documents=len(starts))
    return dataclasses.replace(corpus, train=split)

threading.Thread(target=watch, daemon=True).start()
begin.prepare = large
train(load_config(Path(sys.argv[1])))
print("peak", peak[0] * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="RssAnon is Linux's")
def test_p10_training_from_2_gb_of_tokens_stays_within_300_mb_of_anonymous_memory(tmp_path: Path) -> None:
    tokens = tmp_path / "large.ids"
    with tokens.open("wb") as file:
        file.truncate(2_000_000_000)
        for at in range(0, 2_000_000_000, 40_000_000):  # some of it is not zeros
            file.seek(at)
            file.write(b"some text in a very large file " * 100)
    shuffled = ("data.shuffle_documents=true", "data.reset_memory=true", "train.max_steps=60", "train.save_every=20")
    path = config_file(tmp_path, tiny(tmp_path, *shuffled, "data.batch_size=32", "model.tgt_len=64"))
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, path, str(tokens)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout.split()[-1]) < 300_000_000
    assert metrics(tmp_path / "run")[-1]["tokens"] == 60 * 32 * 64
    state = json.loads((tmp_path / "run/checkpoints/step-000060/state.json").read_text())
    assert state["position"] == {"epoch": 0, "token": 60 * 64}
