"""What one field may hold: its type and, within the type, its domain; and the sentences that say so.

A section of the schema -> problems of single fields. Knows nothing of files, nor of what two fields mean together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

_BIGGEST = 2**63


@dataclass(frozen=True)
class Domain:
    """Which values of the right type a field takes: the sentence a user reads, and the test itself."""

    allowed: str
    holds: Callable[[Any], bool]


def _whole(least: int) -> Domain:
    return Domain(f"a whole number of at least {least}", lambda value: least <= value < _BIGGEST)


def _is_pattern(value: str) -> bool:
    try:
        re.compile(value, re.MULTILINE)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


_TEXT = Domain("text that is not empty", lambda value: bool(value.strip()) and "\0" not in value)
_SOURCE = Domain(
    "a file, a folder, a glob, hf:NAME[:CONFIG][@SPLIT], stdlib or recall",
    lambda value: (
        _TEXT.holds(value)
        and (not value.startswith("hf:") or bool(re.fullmatch(r"hf:[^:@\s]+(:[^:@\s]+)?(@\S+)?", value)))
    ),
)
_SHARE = Domain("a number from 0 up to, but without, 1", lambda value: 0 <= value < 1)
_ABOVE_0 = Domain("a finite number above 0", lambda value: 0 < value < math.inf)
_FROM_0 = Domain("a finite number of at least 0", lambda value: 0 <= value < math.inf)
_POSITIVE, _COUNT = _whole(1), _whole(0)

DOMAINS: Mapping[str, Domain] = {
    "run.dir": _TEXT,
    "run.seed": Domain("a whole number from 0 to 4294967295", lambda value: 0 <= value < 2**32),
    "tokenizer.path": _TEXT,
    "tokenizer.vocab_size": _whole(257),  # 256 bytes and one merge: below that nothing is trained
    "tokenizer.min_count": _POSITIVE,
    "tokenizer.max_size": _whole(3),  # <unk>, <eos> and one symbol
    "data.train": _SOURCE,
    "data.valid": _SOURCE,
    "data.test": _SOURCE,
    "data.valid_fraction": _SHARE,
    "data.test_fraction": _SHARE,
    "data.split_seed": Domain("a whole number from 0 to 4294967295", lambda value: 0 <= value < 2**32),
    "data.text_field": _TEXT,
    "data.document_pattern": Domain(
        "a regular expression of Python's re", lambda value: bool(value) and _is_pattern(value)
    ),
    "data.separator": _TEXT,
    "data.batch_size": _POSITIVE,
    "data.cache_dir": _TEXT,
    "model.n_layer": _POSITIVE,
    "model.d_model": _POSITIVE,
    "model.n_head": _POSITIVE,
    "model.d_head": _POSITIVE,
    "model.d_inner": _POSITIVE,
    "model.dropout": _SHARE,
    "model.dropatt": _SHARE,
    "model.tgt_len": _POSITIVE,
    "model.mem_len": _COUNT,
    "model.clamp_len": _POSITIVE,
    "model.cutoffs": Domain(
        "a list of whole numbers of at least 1, each larger than the one before",
        lambda value: all(least < cut for least, cut in pairwise((0, *value))),
    ),
    "model.div_val": _POSITIVE,
    "model.d_embed": _POSITIVE,
    "model.init_std": _ABOVE_0,
    "model.proj_init_std": _ABOVE_0,
    "train.max_steps": _POSITIVE,
    "train.accumulate": _POSITIVE,
    "train.log_every": _POSITIVE,
    "train.eval_every": _POSITIVE,
    "train.eval_tokens": _whole(2),
    "train.sample_every": _COUNT,
    "train.sample_tokens": _POSITIVE,
    "train.save_every": _POSITIVE,
    "train.keep_last": _POSITIVE,
    "train.max_skipped": _POSITIVE,
    "optim.lr": _ABOVE_0,
    "optim.min_lr": _FROM_0,
    "optim.weight_decay": _FROM_0,
    "optim.beta1": _SHARE,
    "optim.beta2": _SHARE,
    "optim.eps": _ABOVE_0,
    "optim.warmup_steps": _COUNT,
    "optim.clip": _FROM_0,
    "eval.window": _COUNT,
    "eval.batch_size": _POSITIVE,
    "eval.contexts": Domain(
        "a list of at least one whole number of at least 1, each larger than the one before",
        lambda value: len(value) > 0 and value[0] >= 1 and all(a < b for a, b in pairwise(value)),
    ),
    "eval.sample_targets": _POSITIVE,
    "eval.recl_step": _POSITIVE,
    "eval.max_tokens": _whole(2),
    "runtime.device": Domain(
        "auto, cpu, cuda, cuda:N or mps", lambda value: bool(re.fullmatch(r"auto|cpu|mps|cuda(:[0-9]{1,3})?", value))
    ),
    "runtime.threads": _POSITIVE,
}


def field_problems(name: str, section: Any) -> list[str]:
    """Problems of single fields: a wrong type, or a value of the right type outside its domain."""
    problems = []
    kind: Any = type(section)
    for field, hint in hints(kind).items():
        key, value = f"{name}.{field}", getattr(section, field)
        if not _has_type(value, hint):
            problems.append(f"{key}: found {show(value)}; allowed: {allowed_type(hint)}")
        elif value is not None and key in DOMAINS and not DOMAINS[key].holds(value):
            optional = " (or null)" if without_none(hint)[1] else ""
            problems.append(f"{key}: found {show(value)}; allowed: {DOMAINS[key].allowed}{optional}")
    return problems


def allowed_type(hint: Any) -> str:
    """The sentence a user reads about a field's type: `allowed_type(int | None)` is "a whole number or null"."""
    core, optional = without_none(hint)
    if get_origin(core) is Literal:
        return "one of " + ", ".join(get_args(core)) + (", or null" if optional else "")
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    name = "a list of whole numbers" if get_origin(core) is tuple else names[core]
    return name + (" or null" if optional else "")


def show(value: Any) -> str:
    """A value as it stands in YAML: null, true, 'text', 0.5."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(list(value)) if isinstance(value, tuple) else repr(value)


@cache
def hints(section: Any) -> dict[str, Any]:
    """Field name -> resolved type of a section's dataclass."""
    return get_type_hints(section)


def without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) is UnionType:
        return next(part for part in get_args(hint) if part is not NoneType), True
    return hint, False


def _has_type(value: Any, hint: Any) -> bool:
    core, optional = without_none(hint)
    if value is None:
        return optional
    if get_origin(core) is Literal:
        return isinstance(value, str) and value in get_args(core)
    if get_origin(core) is tuple:
        return isinstance(value, tuple) and all(_has_type(item, int) for item in value)
    if core in (int, float):  # True is an int to Python, never to us
        return isinstance(value, (int, core)) and not isinstance(value, bool)
    return isinstance(value, core)
