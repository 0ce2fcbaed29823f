"""A YAML text, or dotted overrides -> the settings they ask for, as text with its place; nothing is converted yet.

Only PyYAML's node tree is used: tags, and with them objects, are never constructed, and each key keeps its line.
Knows nothing of which fields exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

BIGGEST_FILE_BYTES = 1_000_000
NULL_WORDS = ("", "~", "null", "Null", "NULL")
_PLAIN_NAMES = ("null", "bool", "int", "float", "str", "timestamp", "value", "merge", "seq", "map")
_PLAIN_TAGS = {f"tag:yaml.org,2002:{name}" for name in _PLAIN_NAMES}


@dataclass(frozen=True)
class Scalar:
    """One word or text of YAML; `bare` when it stood without quotes."""

    text: str
    bare: bool

    def __str__(self) -> str:
        """As a message shows it: bare words as they stood, text in quotes."""
        return ("null" if self.text in NULL_WORDS else self.text) if self.bare else repr(self.text)

    def items(self) -> tuple[Value, ...]:
        """The items of `16,32` or `[16, 32]`, each bare; of `[[0, 16], [9, 32]]` two lists."""
        text = self.text.strip()
        inside = text[1:-1] if re.fullmatch(r"\[[^\[\]]*\]|\[\s*\[.*\]\s*\]", text) else text
        found = [Scalar(item.strip(), True) for item in re.findall(r"\s*\[[^\]]*\]|[^,]+", inside) if item.strip()]
        return tuple(item.items() if item.text.startswith("[") else item for item in found)


Value = Scalar | tuple["Value", ...]
"""A word, or a list of words or lists."""


@dataclass(frozen=True)
class Setting:
    """What a file or an override wants: the dotted key, the value not yet converted, and where it stands."""

    key: str
    value: Value
    where: str


def written(value: Value) -> str:
    """A value as a message shows it."""
    return str(value) if isinstance(value, Scalar) else f"[{', '.join(map(written, value))}]"


def read_file(path: Path, problems: list[str]) -> str | None:
    """The text of a config file, or None after noting why there is none."""
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "there is no such file"
        near = sorted(str(other) for other in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        inside = path / "config.yaml"
        hint = (
            f"e.g. {inside if inside.is_file() else ', '.join(near)}"
            if inside.is_file() or near
            else "none stands beside it"
        )
        problems.append(f"{path}: {found}; allowed: a YAML file ({hint})")
        return None
    try:
        raw = path.read_bytes()
        if len(raw) > BIGGEST_FILE_BYTES:
            problems.append(
                f"{path}: found {len(raw):,} bytes; allowed: a config of at most {BIGGEST_FILE_BYTES:,} bytes"
            )
            return None
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problems.append(f"{path}: found a byte that is not UTF-8 at offset {error.start}; allowed: text in UTF-8")
    except OSError as error:
        problems.append(f"{path}: cannot be read ({error.strerror}); allowed: a readable YAML file")
    return None


def settings_of_yaml(text: str, name: str, problems: list[str]) -> Iterator[Setting]:
    """Every `section: {field: value}` of a YAML text; a section may be empty. `name` is what messages call the file."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        problems.append(
            f"{name}{line}: not YAML: {reason}; allowed: sections of `field: value` lines, indented by spaces"
        )
        return
    except RecursionError:
        problems.append(f"{name}: nested too deeply; allowed: sections of `field: value` lines")
        return
    if root is None:
        return
    for section, node in _entries(root, "", name, problems):
        if isinstance(node, yaml.MappingNode):
            for key, value in _entries(node, section, name, problems):
                yield from _setting(key, value, name, problems)
        elif not (isinstance(node, yaml.ScalarNode) and node.style is None and node.value in NULL_WORDS):
            yield from _setting(section, node, name, problems)


def settings_of_overrides(overrides: Sequence[str], problems: list[str]) -> Iterator[Setting]:
    """Every `section.field=value`; quotes around the value make it text."""
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            problems.append(f"override {override}: found no `=`; allowed: section.field=value, e.g. model.mem_len=64")
            continue
        quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
        yield Setting(key.strip(), Scalar(text[1:-1] if quoted else text, not quoted), f"override {override}")


def _entries(node: yaml.Node, prefix: str, name: str, problems: list[str]) -> Iterator[tuple[str, yaml.Node]]:
    """Dotted key and value node of each entry of a mapping; a key given twice is a problem that names both lines."""
    here = f"{name}:{node.start_mark.line + 1}:" + (f" {prefix}:" if prefix else "")
    if not isinstance(node, yaml.MappingNode) or node.tag not in _PLAIN_TAGS:
        kind = "a list" if isinstance(node, yaml.SequenceNode) else "a value"
        found = kind if node.tag in _PLAIN_TAGS else f"the tag {node.tag}"
        problems.append(
            f"{here} found {found}; allowed: {'fields' if prefix else 'sections'}, as lines of `key: value`"
        )
        return
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag not in _PLAIN_TAGS:
            problems.append(
                f"{name}:{line}: found a key that is no plain word; allowed: the name of a section or a field"
            )
            continue
        key = f"{prefix}.{key_node.value}" if prefix else key_node.value
        if key in seen:
            problems.append(f"{name}:{line}: {key}: found twice, first in line {seen[key]}; allowed: once")
            continue
        seen[key] = line
        yield key, value_node


def _setting(key: str, node: yaml.Node, name: str, problems: list[str]) -> Iterator[Setting]:
    """The scalar, or the list, that a key is set to; nothing after noting a tag, a mapping or a deeper structure."""
    where = f"{name}:{node.start_mark.line + 1}"
    value = _value(node, depth=2)
    if value is not None:
        yield Setting(key, value, where)
    elif node.tag not in _PLAIN_TAGS:
        found = f"the tag {node.tag}; allowed: a plain value, for no object is ever made from a file"
        problems.append(f"{where}: {key}: found {found}")
    elif isinstance(node, yaml.SequenceNode):
        found = "a list with more than plain values in it; allowed: a plain value or a list of them"
        problems.append(f"{where}: {key}: found {found}")
    else:
        problems.append(f"{where}: {key}: found a mapping; allowed: a plain value or a list of them")


def _value(node: yaml.Node, *, depth: int) -> Value | None:
    """The words of a node with at most `depth` lists around them; None for anything else."""
    if node.tag in _PLAIN_TAGS and isinstance(node, yaml.ScalarNode):
        return Scalar(node.value, node.style is None)
    if node.tag in _PLAIN_TAGS and isinstance(node, yaml.SequenceNode) and depth:
        items = [_value(item, depth=depth - 1) for item in node.value]
        return None if None in items else tuple(item for item in items if item is not None)
    return None
