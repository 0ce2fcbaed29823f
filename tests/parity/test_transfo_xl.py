"""Our model against the published one: random weights of transformers' TransfoXLLMHeadModel in, equal numbers out.

transformers 4.35 runs in a process of its own, for it cannot share an environment with txl; `scripts/parity_env` makes
the folder it needs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models import BASE, VOCAB, make_model, random_ids
from txl.interop import export_transfo_xl, import_transfo_xl
from txl.model import Model

pytestmark = pytest.mark.slow  # half a minute, most of it importing transformers twice
REPOSITORY = Path(__file__).resolve().parents[2]
PLACE = REPOSITORY / "build" / "parity"
TOLERANCE = 1e-5
SEGMENTS = [5, 4, 6, 5, 1]
SETTINGS: dict[str, Any] = {
    "vocab_size": 23,
    "n_layer": 3,
    "n_head": 3,
    "d_model": 10,
    "d_head": 4,
    "d_inner": 14,
    "d_embed": 10,
    "cutoffs": [4, 9],
    "div_val": 1,
    "mem_len": 7,
    "clamp_len": -1,
    "same_length": False,
    "untie_r": True,
    "init_std": 0.3,
    "proj_init_std": 0.3,
}
CASES: dict[str, dict[str, Any]] = {
    "memory": {},
    "full softmax": {"cutoffs": []},
    "div_val 2": {"div_val": 2},
    "div_val 2, three tails, projections not shared": {
        "div_val": 2,
        "cutoffs": [3, 8, 15],
        "proj_share_all_but_first": False,
    },
    "div_val 2, all projections shared": {"div_val": 2, "tie_projs": [True, True, True]},
    "d_embed 6": {"d_embed": 6},
    "d_embed 6, projections not shared": {"d_embed": 6, "proj_share_all_but_first": False},
    "d_embed 6, all projections shared, full softmax": {"d_embed": 6, "cutoffs": [], "tie_projs": [True]},
    "d_embed 6, div_val 2": {"d_embed": 6, "div_val": 2},
    "weights not tied": {"div_val": 2, "tie_word_embeddings": False},
    "weights not tied, div_val 1": {"tie_word_embeddings": False},
    "same_length": {"same_length": True},
    "same_length, clamp_len 4": {"same_length": True, "clamp_len": 4},
    "clamp_len 4": {"clamp_len": 4},
    "clamp_len 0 is none": {"clamp_len": 0},
    "shared u and v": {"untie_r": False},
    "shared u and v, same_length, div_val 2": {"untie_r": False, "same_length": True, "div_val": 2},
    "no memory": {"mem_len": 0},
    "memory shorter than the segment": {"mem_len": 3},
    "memory shorter than the segment, same_length": {"mem_len": 3, "same_length": True},
    "memory longer than the text": {"mem_len": 40, "same_length": True, "clamp_len": 9},
    "memory of one row, same_length": {"mem_len": 1, "same_length": True},
}
OLD_CASES = (
    "memory",
    "div_val 2",
    "d_embed 6",
    "same_length, clamp_len 4",
    "memory shorter than the segment, same_length",
)
"""Those that are also read as state dicts of the 2019 code, whose u and v are shared and whose memory starts empty."""
EXPORTS: dict[str, dict[str, Any]] = {
    "as trained here": {},
    "zeros": {"initial_memory": "zeros", "window_includes_self": True, "same_length": True},
    "same_length": {"same_length": True, "clamp_len": 4},
    "adaptive": {"cutoffs": (4, 9), "div_val": 2, "tie_projs": "all_but_first", "untie_r": False},
    "nothing tied": {"cutoffs": (4, 9), "d_embed": 6, "tie_projs": "none", "tie_weight": False},
    "all tied": {"cutoffs": (4, 9), "d_embed": 6, "tie_projs": "all"},
    "not tied, one table": {"cutoffs": (4, 9), "tie_weight": False},
    "no memory": {"arch": "transformer", "mem_len": 0},
}


def run_published(what: str, root: Path) -> None:
    """Run the other process over what `root` lists."""
    if not (PLACE / "transformers").is_dir():
        pytest.skip(f"transformers 4.35 is not in {PLACE.relative_to(REPOSITORY)}; make it with: scripts/parity_env")
    script = str(Path(__file__).with_name("published.py"))
    environment = os.environ | {"PYTHONPATH": str(PLACE), "PYTHONWARNINGS": "ignore", "USE_TORCH": "1"}
    command = [sys.executable, script, what, str(root)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every case computed by the published model, from zeros and from empty memory."""
    root = tmp_path_factory.mktemp("published")
    cases = {}
    for number, (name, changes) in enumerate(CASES.items()):
        common = {"seed": number, "batch_size": 2, "segments": SEGMENTS}
        cases[name] = common | {"settings": SETTINGS | changes, "start": "zeros", "safe": number % 3 != 1}
    for name in OLD_CASES:
        old = {"settings": SETTINGS | CASES[name] | {"untie_r": False}, "start": "empty", "safe": True}
        cases[f"2019 {name}"] = cases[name] | old
    (root / "cases.json").write_text(json.dumps(cases))
    run_published("make", root)
    return root


def largest_gap(model: Model, ids: Tensor, expected: dict[str, Tensor]) -> float:
    """Furthest entries of log-probabilities, nll and memory after any of the five segments."""
    gaps, memory = [], None
    with torch.no_grad():
        for number, part in enumerate(ids.split(SEGMENTS, dim=1)):
            targets = part.roll(1, dims=1)
            nll = model(part, memory, targets).nll
            out = model(part, memory)
            memory = out.memory
            theirs = expected[f"{number}.log_probabilities"]
            assert out.logits is not None
            gaps.append(out.logits.log_softmax(-1) - theirs)
            gaps.append(nll + theirs.gather(2, targets[..., None])[..., 0])
            if model.config.mem_len:
                gaps += [rows - expected[f"{number}.memory.{i}"] for i, rows in enumerate(memory.layers)]
    assert any(gap.numel() for gap in gaps)
    return max(float(gap.abs().max()) for gap in gaps if gap.numel())


@pytest.mark.parametrize("case", CASES)
def test_an_imported_model_computes_what_the_published_one_does(case: str, published: Path) -> None:
    folder = published / case
    expected = load_file(folder / "outputs.safetensors")
    imported = import_transfo_xl(folder)
    assert imported.config.initial_memory == ("zeros" if imported.config.mem_len else "empty")
    model = imported.model()
    gap = largest_gap(model, expected["ids"], expected)
    print(f"largest difference, {case}: {gap:.2e}")
    assert gap <= TOLERANCE
    if imported.config.same_length:  # the published mask is then our fixed window, so streaming is the same again
        with torch.no_grad():
            streamed = model.logits(model.advance(expected["ids"], model.new_cache(2))).log_softmax(-1)
        theirs = torch.cat([expected[f"{number}.log_probabilities"] for number in range(5)], dim=1)
        assert float((streamed - theirs).abs().max()) <= TOLERANCE


@pytest.mark.parametrize("case", OLD_CASES)
def test_a_state_dict_of_the_2019_code_computes_what_the_published_one_does(
    case: str, published: Path, tmp_path: Path
) -> None:
    folder = published / f"2019 {case}"
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        old = name.removeprefix("transformer.")
        tensors[old] = tensor.flip(0) if old.startswith("crit.cluster") else tensor
    torch.save(tensors, tmp_path / "model.pt")
    known = json.loads((folder / "config.json").read_text())
    arguments = {name: known[name] for name in SETTINGS if name not in ("vocab_size", "untie_r")}
    arguments |= {"n_token": known["vocab_size"], "tie_projs": known["tie_projs"], "tgt_len": 5}
    arguments |= {"dropout": 0.1, "dropatt": 0.0}
    (tmp_path / "model.json").write_text(json.dumps(arguments))
    expected = load_file(folder / "outputs.safetensors")
    imported = import_transfo_xl(tmp_path / "model.pt")
    assert imported.config.initial_memory == "empty"
    gap = largest_gap(imported.model(), expected["ids"], expected)
    print(f"largest difference, 2019 {case}: {gap:.2e}")
    assert gap <= TOLERANCE


def test_an_exported_model_computes_the_same_in_transformers_and_comes_back_equal(tmp_path: Path) -> None:
    cases, models = {}, {}
    for number, (name, changes) in enumerate(EXPORTS.items()):
        model = make_model(replace(BASE, **changes), dtype=torch.float32, seed=number)
        export_transfo_xl(model, None, tmp_path / name)
        save_file({"ids": random_ids(2, sum(SEGMENTS), seed=number)}, tmp_path / name / "ids.safetensors")
        cases[name] = {"segments": SEGMENTS, "start": model.config.initial_memory}
        models[name] = model
    (tmp_path / "reads.json").write_text(json.dumps(cases))
    run_published("read", tmp_path)
    for name, model in models.items():
        expected = load_file(tmp_path / name / "outputs.safetensors")
        ids = load_file(tmp_path / name / "ids.safetensors")["ids"]
        window_grew = model.config.same_length and not model.config.window_includes_self
        same_memory = {key: rows[:, -model.config.mem_len :] if window_grew else rows for key, rows in expected.items()}
        gap = largest_gap(model, ids, {key: expected[key] if "log" in key else same_memory[key] for key in expected})
        print(f"largest difference, exported {name}: {gap:.2e}")
        assert gap <= TOLERANCE, name
        again = import_transfo_xl(tmp_path / name)
        assert again.vocab_size == VOCAB
        assert all(torch.equal(again.weights[key], tensor) for key, tensor in model.state_dict().items())
