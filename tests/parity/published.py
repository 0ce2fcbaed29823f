"""Runs the published model of transformers 4.35, in a process of its own with that release on PYTHONPATH.

`python published.py make DIR`: DIR/cases.json -> for each case a folder with random weights and outputs.safetensors.
`python published.py read DIR`: DIR/reads.json, folders that txl wrote -> outputs.safetensors in each. Knows nothing of
txl.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import TransfoXLConfig, TransfoXLLMHeadModel


def make(folder: Path, case: dict[str, Any]) -> None:
    """Random weights for a case's settings, saved as transformers saves them, and what they compute."""
    torch.manual_seed(case["seed"])
    model = TransfoXLLMHeadModel(TransfoXLConfig(**case["settings"])).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "cluster_weight")):  # zeros, or nothing at all, until trained
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder, safe_serialization=case["safe"])
    ids = torch.randint(0, model.config.vocab_size, (case["batch_size"], sum(case["segments"])))
    save_file(
        {"ids": ids, **compute(model, ids, case["segments"], start=case["start"])}, folder / "outputs.safetensors"
    )


def read(folder: Path, case: dict[str, Any]) -> None:
    """What transformers computes from a folder that txl wrote."""
    model, report = TransfoXLLMHeadModel.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    ids = load_file(folder / "ids.safetensors")["ids"]
    save_file(compute(model.eval(), ids, case["segments"], start=case["start"]), folder / "outputs.safetensors")


@torch.no_grad()
def compute(model: Any, ids: Tensor, segments: list[int], *, start: str) -> dict[str, Tensor]:
    """Log-probabilities B×T×V and memory B×M×D a layer after each segment; start: zeros (transformers' own) or empty
    memory."""
    batch_size, n_layer, width = len(ids), model.config.n_layer, model.config.d_model
    memory = None if start == "zeros" else [torch.zeros(0, batch_size, width)] * n_layer
    found = {}
    for number, part in enumerate(ids.split(segments, dim=1)):
        out = model(part, mems=memory, return_dict=True)
        memory = out.mems
        found[f"{number}.log_probabilities"] = out.prediction_scores.contiguous()
        for layer, rows in enumerate(memory or ()):
            found[f"{number}.memory.{layer}"] = rows.transpose(0, 1).contiguous()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, root = sys.argv[1], Path(sys.argv[2])
    listed, act = ("cases.json", make) if what == "make" else ("reads.json", read)
    for name, case in json.loads((root / listed).read_text()).items():
        act(root / name, case)
