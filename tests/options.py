"""What the laws run over, as marks: option sets, attention backends, architectures, dtypes, and texts cut anywhere.

Nothing -> marks and strategies. Options meet pairwise always and in full with `scripts/check --all`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st

from tests.models import BASE, LSTM, OPTIONS, combinations
from txl.config import ModelConfig

PAIRWISE = combinations(full=False)
FULL = [config for config in combinations(full=True) if config not in PAIRWISE]
FEW = (
    BASE,
    replace(BASE, untie_r=False, mem_len=3, clamp_len=4, same_length=True, pre_lnorm=True),
    replace(BASE, position="shaw", clamp_len=4),
    replace(BASE, position="alibi", mem_len=3, same_length=True),
    replace(BASE, position="rotary"),
)
"""A config of each kind of position, for what is the same whatever the other options are."""
LSTMS = (LSTM, replace(LSTM, cutoffs=(4, 9), div_val=2, tie_weight=False, tie_projs="none"))
BACKENDS = ("reference", "blocked", "batched", "sdpa")
"""Attention backends that can do everything; `decode` can do one token a row."""


def label(value: ModelConfig | str | torch.dtype) -> str:
    """A test id: the options that differ from BASE, or the name of a backend or dtype."""
    if not isinstance(value, ModelConfig):
        return str(value).removeprefix("torch.")
    changed = {name: getattr(value, name) for name in ("arch", *OPTIONS)}
    return ",".join(f"{k}={v}" for k, v in changed.items() if v != getattr(BASE, k)) or "base"


every_option = pytest.mark.parametrize(
    "config", [*PAIRWISE, *(pytest.param(config, marks=pytest.mark.slow) for config in FULL)], ids=label
)
every_model = pytest.mark.parametrize(
    "config", [*PAIRWISE, *LSTMS, *(pytest.param(config, marks=pytest.mark.slow) for config in FULL)], ids=label
)
DTYPES = (torch.float64, torch.float32)
_ATTENTION = [
    *((config, "auto", dtype) for config in PAIRWISE for dtype in DTYPES),
    *((config, backend, torch.float64) for config in FEW for backend in BACKENDS),
    *(pytest.param(config, "auto", dtype, marks=pytest.mark.slow) for config in FULL for dtype in DTYPES),
]
_STATE = [(config, "auto", dtype) for config in LSTMS for dtype in DTYPES]
every_attention = pytest.mark.parametrize(("config", "backend", "dtype"), _ATTENTION, ids=label)
every_model_and_attention = pytest.mark.parametrize(("config", "backend", "dtype"), [*_ATTENTION, *_STATE], ids=label)
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=label)
drawn = settings(max_examples=2, deadline=None)
"""Few examples, for each is drawn again under every option set."""


@st.composite
def splits(draw: st.DrawFn, longest: int) -> list[int]:
    """Lengths of the segments of a text of 1 to `longest` tokens, cut anywhere."""
    n_tokens = draw(st.integers(1, longest))
    cuts = draw(st.sets(st.integers(1, n_tokens - 1))) if n_tokens > 1 else set()
    ends = [*sorted(cuts), n_tokens]
    return [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]
