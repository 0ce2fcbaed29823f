"""What every kind of evaluation needs of a model: its mode kept, bounded logits, device and dtype, and checked input.

A model, hidden states, ids -> nats of targets. Knows nothing of streams, curves or reports.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from txl.model import Model
from txl.model.positions import ABSOLUTE

Array = npt.NDArray[Any]

LOGITS = 1 << 24
"""Logits made at once: 64 MiB in float32."""


def nll_of(model: Model, hidden: Tensor, targets: Tensor) -> Array:
    """Nats of each target, K×D hidden states and int64 K targets -> K on the CPU, not all logits at once."""
    at_once = max(1, LOGITS // model.vocab_size)
    pieces = zip(torch.split(hidden, at_once), torch.split(targets, at_once), strict=True)
    nll: Array = torch.cat([model.nll(h[None], t[None])[0] for h, t in pieces]).cpu().numpy()
    return nll


def fresh_nll(model: Model, inputs: Array, targets: Array, resets: Array) -> Array:
    """Nats of each target when every row is read by a fresh model; three arrays B×T -> B×T on the CPU, 0 for none.

    Every token sees all of its row before it, whatever mask training used.
    """
    device = device_of(model)
    ids, wanted = (torch.from_numpy(part.astype(np.int64)).to(device) for part in (inputs, targets))
    begins = torch.from_numpy(resets).to(device) if resets.any() else None
    kind = kind_of(model)
    if kind == "slide":  # its cache would compute the window anew for every token
        nll: Array = model(ids, targets=wanted, resets=begins).nll.cpu().numpy()
        return nll
    window = ids.shape[1] - 1 + int(model.config.window_includes_self)
    hidden = model.advance(ids, model.new_cache(len(ids), window=window if kind == "window" else None), resets=begins)
    scored = wanted != -100
    nll = np.zeros(targets.shape, dtype=result_dtype(model))
    nll[scored.cpu().numpy()] = nll_of(model, hidden[scored], wanted[scored])
    return nll


def kind_of(model: Model) -> str:
    """How the model uses a window: window, slide or state (see `perplexity.Settings.kind`)."""
    if model.reach(0) is None:
        return "state"
    return "slide" if model.config.position in ABSOLUTE else "window"


def device_of(model: Model) -> torch.device:
    """Where the parameters are; the CPU for a model without any."""
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def parameter_dtype(model: Model) -> torch.dtype:
    """What the parameters are kept in; float32 for a model without any."""
    parameter = next(model.parameters(), None)
    return torch.float32 if parameter is None else parameter.dtype


def result_dtype(model: Model) -> type[np.floating[Any]]:
    """What losses are kept in: float64 for a float64 model, else float32."""
    return np.float64 if parameter_dtype(model) == torch.float64 else np.float32


def dtype_name(model: Model) -> str:
    """The dtype to print beside a number: that of the parameters and, under autocast, that of the products."""
    kept = str(parameter_dtype(model)).removeprefix("torch.")
    device = device_of(model).type
    if torch.is_autocast_enabled(device):
        return f"{kept}, products in {str(torch.get_autocast_dtype(device)).removeprefix('torch.')}"
    return kept


def checked_ids(ids: Tensor | Array, vocab_size: int) -> Array:
    """The ids as a numpy array of their own width. Raises ValueError for anything a model cannot score."""
    text: Array = ids.detach().cpu().numpy() if isinstance(ids, Tensor) else np.asarray(ids)
    if text.ndim != 1 or text.dtype.kind not in "iu":
        raise ValueError(f"ids: found {text.dtype} of shape {text.shape}; expected one line of integers, shape (N,)")
    if len(text) < 2:
        raise ValueError(
            f"ids: found {len(text)} token(s); at least 2 are needed, because the first one is never scored"
        )
    low, high = int(text.min()), int(text.max())
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"ids: found values {low} to {high}; this model's vocabulary has the ids 0 to {vocab_size - 1}: "
            "was the text encoded with this model's tokenizer?"
        )
    return text


def context_starts(resets: Tensor | Array | None, tokens: int) -> Array:
    """Where contexts begin, int64, sorted; position 0 always does. Raises ValueError for resets that are not bool N."""
    if resets is None:
        return np.zeros(1, dtype=np.int64)
    flags: Array = resets.detach().cpu().numpy() if isinstance(resets, Tensor) else np.asarray(resets)
    if flags.dtype != np.bool_ or flags.shape != (tokens,):
        raise ValueError(
            f"resets: found {flags.dtype} of shape {flags.shape}; expected bool of shape ({tokens},), "
            "True where a document begins"
        )
    return np.union1d([0], np.flatnonzero(flags)).astype(np.int64)


def checked_span(span: tuple[int, int] | None, targets: int) -> tuple[int, int]:
    """The span, or the whole text. Raises ValueError for a span outside it."""
    first, stop = (0, targets) if span is None else span
    if not 0 <= first < stop <= targets:
        raise ValueError(f"span: found {span}; expected 0 <= first < stop <= {targets}, the number of targets")
    return first, stop


def check_positive(**sizes: int | None) -> None:
    """Raise ValueError naming the first size that is given and below 1."""
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ValueError(f"{name}: found {size}; expected at least 1")
