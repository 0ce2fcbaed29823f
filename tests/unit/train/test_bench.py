"""What `txl bench` times and says: three kinds of work, what computes them, numbers that fit together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from txl import cli
from txl.config import Config, apply_overrides
from txl.model import build_model
from txl.model.kernels import reference
from txl.runtime import Runtime
from txl.train.backends import attention_of, use_backends
from txl.train.bench import bench

CPU = ("runtime.device=cpu", "runtime.precision=fp32")
SMALL = (*CPU, "model.n_layer=1", "model.d_model=8", "model.tgt_len=6", "data.batch_size=3", "eval.batch_size=2")
TINY = (*SMALL, "model.n_head=2", "model.d_head=4", "model.d_inner=12")
OWN = {
    "transformer_xl": (*TINY, "model.mem_len=7"),
    "transformer": (*TINY, "model.mem_len=0", "model.position=rotary"),
    "lstm": (*SMALL, "model.mem_len=0", "model.position=none"),
}


@pytest.mark.parametrize("arch", ["transformer_xl", "transformer", "lstm"])
def test_every_architecture_is_timed(arch: str) -> None:
    found = bench(apply_overrides(Config(), [*OWN[arch], f"model.arch={arch}"]))
    assert [row.what.split(",")[0] for row in found.rows] == ["train", "score", "stream"]
    for row in found.rows:
        assert 0 < row.low <= row.median <= row.high
        assert row.flops > 0
    attention = dict(found.facts)["attention"]
    assert attention == {"transformer_xl": "blocked (auto)", "transformer": "sdpa (auto)", "lstm": "none"}[arch]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ((), "sdpa (sdpa)"),
        (("model.dropatt=0.1",), "reference (sdpa; torch's fused kernels do not drop attention weights by a mask"),
        (("model.dropatt=0.1", "runtime.attention=auto"), "blocked (auto)"),
    ],
)
def test_attention_is_named_by_what_computes_it(
    changes: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    attend = reference.attend
    monkeypatch.setattr(reference, "attend", lambda *given, **more: calls.append(1) or attend(*given, **more))
    config = apply_overrides(Config(), [*OWN["transformer_xl"], "runtime.attention=sdpa", *changes])
    runtime = Runtime.create(config)
    assert attention_of(config, runtime).startswith(said)
    model = build_model(config.model, 256)
    use_backends(model, config)
    model.train()(torch.zeros(2, 6, dtype=torch.long), targets=torch.zeros(2, 6, dtype=torch.long))
    assert bool(calls) == said.startswith("reference")


def test_the_verb_prints_a_table_and_writes_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.yaml").write_text("run: {dir: runs/none}\n")
    words = [*TINY, "model.mem_len=7", "runtime.products=torch", "--json", str(tmp_path / "out.json")]
    assert cli.main(["bench", str(tmp_path / "empty.yaml"), *words]) == 0
    shown = capsys.readouterr().out
    assert "train, 3 rows of 6" in shown
    assert "torch (torch; oneDNN" in shown
    record = json.loads((tmp_path / "out.json").read_text())
    assert [row["what"] for row in record["rows"]] == [
        "train, 3 rows of 6",
        "score, 2 rows, window 7",
        "stream, 1 row, window 7",
    ]
