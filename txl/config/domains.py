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


def _is_share(item: str) -> bool:
    """A weight, white space and a source."""
    weight, _, source = item.strip().partition(" ")
    try:
        return 0 < float(weight) < math.inf and _SOURCE.holds(source.strip())
    except ValueError:
        return False


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
    "data.mixture": Domain(
        "a list of weights above 0, each with a different source after it, e.g. [2 books/, 1 code/]",
        lambda value: (
            all(_is_share(item) for item in value) and len({item.split(None, 1)[1] for item in value}) == len(value)
        ),
    ),
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
    "data.segments_together": _POSITIVE,
    "data.workers": _POSITIVE,
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
    "train.init_from": _TEXT,
    "train.tgt_len_schedule": Domain(
        "a list of stages [step, tgt_len], the first from step 0, each later than the one before, with segments of at "
        "least 1 token",
        lambda value: (
            not value
            or (value[0][0] == 0 and all(a[0] < b[0] for a, b in pairwise(value)) and all(n >= 1 for _, n in value))
        ),
    ),
    "train.accumulate": _POSITIVE,
    "train.log_every": _POSITIVE,
    "train.eval_every": _POSITIVE,
    "train.eval_tokens": _whole(2),
    "train.sample_every": _COUNT,
    "train.sample_tokens": _POSITIVE,
    "train.save_every": _POSITIVE,
    "train.keep_last": _POSITIVE,
    "train.keep_every": _COUNT,
    "train.max_skipped": _POSITIVE,
    "optim.lr": _ABOVE_0,
    "optim.min_lr": _FROM_0,
    "optim.weight_decay": _FROM_0,
    "optim.beta1": _SHARE,
    "optim.beta2": _SHARE,
    "optim.eps": _ABOVE_0,
    "optim.muon_lr": _ABOVE_0,
    "optim.muon_momentum": _SHARE,
    "optim.warmup_steps": _COUNT,
    "optim.decay_steps": _POSITIVE,
    "optim.clip": _FROM_0,
    "optim.ema_decay": _SHARE,
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
    if get_origin(core) is tuple:
        return f"a list of {_several(get_args(core)[0])}" + (" or null" if optional else "")
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names[core] + (" or null" if optional else "")


def _several(item: Any) -> str:
    """What the items of a list may be, in words."""
    if get_origin(item) is Literal:
        return "any of " + ", ".join(get_args(item))
    return "pairs of whole numbers" if get_origin(item) is tuple else "whole numbers"


def show(value: Any) -> str:
    """A value as it stands in YAML: null, true, 'text', 0.5."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"[{', '.join(map(show, value))}]" if isinstance(value, tuple) else repr(value)


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
        kinds = get_args(core)
        if isinstance(value, tuple) and kinds[-1] is Ellipsis:
            kinds = kinds[:1] * len(value)
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(_has_type, value, kinds))
    if core in (int, float):  # True is an int to Python, never to us
        return isinstance(value, (int, core)) and not isinstance(value, bool)
    return isinstance(value, core)
