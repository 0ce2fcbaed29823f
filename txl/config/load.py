"""A YAML file and dotted overrides -> one frozen `Config`, or one error that lists every problem with its place.

`txl.config.read` finds keys and lines, OmegaConf converts values to the schema's types, `txl.config.checks` judges.
A value is read by the type of its field, so no word turns into something else: `no` is never a bool or a text by
surprise, `3e-4` is a number. Knows nothing of torch.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from txl.config.checks import config_problems
from txl.config.domains import allowed_type, hints, without_none
from txl.config.read import (
    NULL_WORDS,
    Scalar,
    Setting,
    Value,
    read_file,
    settings_of_overrides,
    settings_of_yaml,
    written,
)
from txl.config.schema import Config

AUTO_WORDS = ("auto", "null", "~", "Null", "NULL")
"""What leaves a list to be chosen from the data: None in the schema."""
_TRUTH_WORDS = ("true", "false", "yes", "no", "on", "off")


class ConfigError(ValueError):
    """A config that cannot be used; `problems` has one sentence for each reason, str() one a line."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The config of a YAML file with overrides `section.field=value` on top.

    Raises ConfigError with every problem of the file and of the overrides at once, each with file and line or override.
    """
    problems: list[str] = []
    text = read_file(Path(path), problems)
    settings = [] if text is None else list(settings_of_yaml(text, str(path), problems))
    return _merge(Config(), [*settings, *settings_of_overrides(overrides, problems)], problems)


def apply_overrides(config: Config, overrides: Sequence[str]) -> Config:
    """A new config with overrides `section.field=value` on top of an existing one; raises as `load_config` does."""
    problems: list[str] = []
    return _merge(config, list(settings_of_overrides(overrides, problems)), problems)


def to_yaml(config: Config) -> str:
    """The whole config as YAML, every field present; `load_config` reads it back to an equal config."""
    return yaml.safe_dump(asdict(config), sort_keys=False, allow_unicode=True, width=1000)


def _merge(config: Config, settings: list[Setting], problems: list[str]) -> Config:
    """Set key by key, so that every problem is met; then judge the whole. Raises ConfigError if anything was wrong."""
    tree = OmegaConf.structured(config)
    for node in (tree, *(tree[section.name] for section in fields(Config))):
        OmegaConf.set_readonly(node, False)
    where: dict[str, str] = {}
    broken: set[str] = set()
    for setting in settings:
        problem = _assign(tree, setting)
        known = setting.key.split(".")[0] in hints(Config)
        name = setting.key if known else setting.key.split(".")[0]
        if problem is not None and (
            known or name not in broken
        ):  # an unknown section is named once, not for each field
            broken.add(name)
            problems.append(f"{setting.where}: {problem}")
        where[setting.key] = setting.where
    merged = cast(Config, OmegaConf.to_object(tree))
    for problem in config_problems(merged):
        if not any(key in problem for key in broken if "." in key):  # what a broken value was meant to be nobody knows
            key = problem.split(":", 1)[0]
            problems.append(f"{where[key]}: {problem}" if key in where else problem)
    if problems:
        raise ConfigError(problems)
    return merged


def _assign(tree: DictConfig, setting: Setting) -> str | None:
    """Set one value; the problem if it cannot be."""
    value, hint = setting.value, _hint(setting.key)
    found = written(value)
    if setting.key in hints(Config):
        return f"{setting.key}: found {found}; allowed: the fields of the section, as indented lines of `field: value`"
    if hint is None:
        return _unknown(setting.key)
    refused = f"{setting.key}: found {found}; allowed: {allowed_type(hint)}"
    try:
        OmegaConf.update(tree, setting.key, _typed(value, hint))
    except _SurpriseError as surprise:
        return f"{refused}{surprise}"
    except (OmegaConfBaseException, ValueError, TypeError):
        return refused
    return None


class _SurpriseError(Exception):
    """A value that would be read as something its writer did not mean; str() ends the sentence on what is allowed."""


def _typed(value: Value, hint: Any) -> Any:
    """What to hand to OmegaConf for a field of this type; raises for a word that it would read as another thing."""
    core, _ = without_none(hint)
    if get_origin(core) is tuple and not (isinstance(value, Scalar) and value.bare and value.text in AUTO_WORDS):
        items = value if isinstance(value, tuple) else value.items()
        return [_typed(item, get_args(core)[0]) for item in items]
    if isinstance(value, tuple):
        raise _SurpriseError("")
    if value.bare and (value.text in NULL_WORDS or get_origin(core) is tuple):
        return None
    if core is bool:
        if not value.bare or value.text.lower() not in ("true", "false"):
            raise _SurpriseError("")
        return value.text.lower() == "true"
    if core is str or get_origin(core) is Literal:
        if core is str and value.bare and value.text.lower() in _TRUTH_WORDS:
            raise _SurpriseError(", in quotes where YAML would read a bare word as true or false")
        if "${" in value.text or value.text == "???":
            raise _SurpriseError(" written out, for ${...} and ??? are not filled in")
        return value.text
    if not value.bare or re.match(r"[-+]?0\d", value.text):
        raise _SurpriseError(" without quotes or leading zeros")
    return value.text


def _hint(key: str) -> Any:
    """The type of `section.field`, or None for a key that the schema does not have."""
    section, _, field = key.partition(".")
    kinds = hints(Config)
    return hints(kinds[section]).get(field) if section in kinds else None


def _unknown(key: str) -> str:
    """The sentence about a key that the schema does not have, with the nearest one or with all that there are."""
    section, dot, field = key.partition(".")
    kinds = hints(Config)
    elsewhere = [f"{name}.{field or section}" for name, kind in kinds.items() if (field or section) in hints(kind)]
    if section in kinds:
        near = elsewhere or [f"{section}.{name}" for name in difflib.get_close_matches(field, hints(kinds[section]), 1)]
        allowed = f"allowed in {section}: {', '.join(hints(kinds[section]))}"
        return f"{key}: unknown key; " + (f"did you mean {near[0]}?" if near else allowed)
    near = difflib.get_close_matches(section, list(kinds), 1) or elsewhere
    if not near and not dot:
        fields_of_all = {name: f"{section_name}.{name}" for section_name, kind in kinds.items() for name in hints(kind)}
        near = [fields_of_all[name] for name in difflib.get_close_matches(section, fields_of_all, 1)]
    allowed = f"allowed: {', '.join(kinds)}"
    return f"{section}: unknown section; " + (f"did you mean {near[0]}?" if near else allowed)
