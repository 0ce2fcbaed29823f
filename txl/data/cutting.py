"""Where text may be cut into parts that encode as in the whole: text of any length is encoded in constant memory.

Text -> indices or parts. Knows nothing of vocabularies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

UNIT = 65_536
"""Characters encoded in one call, and where bpe cuts an endless line (30 million in one call took 4.6 GB)."""
BATCH = 2_097_152
"""Characters encoded side by side on all cores: about 100 MB of the library's records."""


def after_white_space(text: str) -> int:
    """The index just after the last space, tab or line end; 0 where there is none."""
    return max(text.rfind(white) for white in " \t\n") + 1


def line_units(text: str) -> Iterator[str]:
    """Text that starts a line, in parts of whole lines, at most UNIT characters each; a longer line is cut there."""
    start = 0
    while start < len(text):
        stop = len(text) if len(text) - start <= UNIT else text.rfind("\n", start, start + UNIT) + 1 or start + UNIT
        yield text[start:stop]
        start = stop


def after_line_end(text: str) -> int:
    """The last index at which `line_units` of text that goes on may cut."""
    line = text.rfind("\n") + 1
    return line + (len(text) - line) // UNIT * UNIT


def before_line_end(text: str, start: int, stop: int) -> int:
    """The last index inside (start, stop) where a line ends after a letter or digit; 0 where there is none."""
    at = text.rfind("\n", start + 1, stop)
    while at > start and not text[at - 1].isalnum():
        at = text.rfind("\n", start + 1, at)
    return max(at, 0)


def batches(units: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """The units in groups of at most BATCH characters."""
    batch: list[tuple[int, str]] = []
    characters = 0
    for number, unit in units:
        if batch and characters + len(unit) > BATCH:
            yield batch
            batch, characters = [], 0
        batch.append((number, unit))
        characters += len(unit)
    if batch:
        yield batch
