"""What is in a source: files and rows to pieces of text that know where documents begin.

A `Source` and the data section -> `read` -> pieces, a few hundred kB at a time; what was unusual -> `Findings`. Knows
nothing of tokens. Text is kept byte for byte (CRLF, NUL, white space, a missing last line end), but for a byte order
mark at the start of a file.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from txl.config import DataConfig
from txl.data.errors import DataError
from txl.data.recall import recall_documents
from txl.data.sources import Source, SourceFile, hub_rows

BLOCK_BYTES = 262_144
_BOM = b"\xef\xbb\xbf"
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Piece:
    """Some text; `starts` where it begins a document, else it goes on with the one before."""

    text: str
    starts: bool


@dataclass
class Findings:
    """What was unusual in a source, in counts and names; `notes` says it in sentences."""

    key: str
    empty: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    bom: list[str] = field(default_factory=list)
    crlf: list[str] = field(default_factory=list)
    nul: list[str] = field(default_factory=list)
    replaced: int = 0

    def notes(self) -> list[str]:
        """A sentence for each kind of thing found."""
        said = [
            (self.empty, "empty, skipped"),
            (self.skipped, "not UTF-8, skipped"),
            (self.bom, "began with a byte order mark, which is left out"),
            (self.crlf, "with CRLF line ends, kept as they are"),
            (self.nul, "with NUL characters, kept"),
        ]
        notes = [f"{self.key}: {_names(names)}: {what}" for names, what in said if names]
        if self.replaced:
            notes.append(f"{self.key}: {self.replaced} invalid sequences became U+FFFD (data.invalid_utf8: replace)")
        return notes


def read(source: Source, data: DataConfig, findings: Findings, *, revision: str | None = None) -> Iterator[Piece]:
    """All text of a source in order.

    A file is a document, or begins one at each line that data.document_pattern matches; a row of a .jsonl, .parquet or
    hub source is a document, or, with a pattern, a line of one running text. Empty files and rows are left out and
    noted. DataError for text that is not UTF-8 (naming file and byte), damaged files and missing fields.
    """
    if source.kind == "hub":
        rows = hub_rows(source, data.text_field, streaming=data.streaming, revision=revision)
        yield from _records(rows, source.spec, source.key, data, findings)
        return
    if source.kind == "recall":
        yield from (Piece(text, True) for text in recall_documents())
    for file in source.files:
        if source.kind == "stdlib" and not _is_utf8(file.path):
            findings.skipped.append(file.name)
            continue
        try:
            yield from _file_pieces(file, source.key, data, findings)
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"{source.key}: {file.path} cannot be read: {reason}") from None


def at_headings(blocks: Iterable[str], pattern: re.Pattern[str]) -> Iterator[Piece]:
    """Text in whole lines, cut before each line that the pattern matches (from its start, without its line end).

    What stands before the first heading is a document of its own, or goes with the first one if it is only white space.
    """
    starts, blank = True, True
    for text in _whole_lines(blocks):
        start = at = 0
        for line in text.split("\n"):
            if at < len(text) and pattern.match(line.removesuffix("\r")):
                lead = blank and not text[start:at].strip()
                blank = False
                if not lead:
                    if at > start:
                        yield Piece(text[start:at], starts)
                    starts, start = True, at
            at += len(line) + 1
        if start < len(text):
            blank = blank and not text[start:].strip()
            yield Piece(text[start:], starts)
            starts = False


def _file_pieces(file: SourceFile, key: str, data: DataConfig, findings: Findings) -> Iterator[Piece]:
    suffixes = [suffix.lower() for suffix in file.path.suffixes]
    packed = suffixes[-1:] == [".gz"]
    kind = suffixes[-2:-1] if packed else suffixes[-1:]
    if kind == [".parquet"]:
        if packed:
            raise DataError(f"{key}: {file.path}: a packed .parquet file; unpack it first")
        yield from _records(_parquet_rows(file.path, key, data.text_field), file.name, key, data, findings)
        return
    where = f"{key}: {file.path}" + (" (unpacked)" if packed else "")
    with gzip.open(file.path) if packed else file.path.open("rb") as handle:
        stream = cast(BinaryIO, handle)
        if kind in ([".jsonl"], [".ndjson"]):
            rows = _json_rows(stream, file.name, where, data, findings)
            yield from _records(rows, file.name, key, data, findings)
            return
        blocks = _text_blocks(stream, file.name, where, data, findings)
        if data.document_pattern is not None:
            yield from at_headings(blocks, re.compile(data.document_pattern))
            return
        starts = True
        for block in blocks:
            yield Piece(block, starts)
            starts = False


def _text_blocks(handle: BinaryIO, name: str, where: str, data: DataConfig, findings: Findings) -> Iterator[str]:
    """The text of a file in blocks that end between characters and not inside a CRLF."""
    raw, offset, crlf, nul, any_text = handle.read(BLOCK_BYTES), 0, False, False, False
    if raw.startswith(_BOM):
        findings.bom.append(name)
        raw, offset = raw[len(_BOM) :] or handle.read(BLOCK_BYTES), len(_BOM)
    while raw:
        following = handle.read(BLOCK_BYTES)
        stop = _between_characters(raw) if following else len(raw)
        text = decoded(raw[:stop], offset, where, data.invalid_utf8, findings)
        crlf, nul = crlf or "\r\n" in text, nul or "\0" in text
        if text:
            any_text = True
            yield text
        raw, offset = raw[stop:] + following, offset + stop
    if not any_text:
        findings.empty.append(name)
    if crlf:
        findings.crlf.append(name)
    if nul:
        findings.nul.append(name)


def decoded(raw: bytes, offset: int, where: str, invalid: str, findings: Findings) -> str:
    """The text of UTF-8 bytes that begin at byte `offset` of a file; invalid ones raise DataError or are replaced."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if invalid == "strict":
            kind = _other_encoding(raw) if offset == 0 else ""
            raise DataError(
                f"{where}: not valid UTF-8 at byte {offset + error.start} (0x{raw[error.start]:02x}){kind}; convert "
                "the file to UTF-8, or set data.invalid_utf8=replace to put U+FFFD there"
            ) from None
    text = raw.decode("utf-8", "replace")
    findings.replaced += text.count("\ufffd") - raw.count("\ufffd".encode())
    return text


def _json_rows(handle: BinaryIO, name: str, where: str, data: DataConfig, findings: Findings) -> Iterator[object]:
    """The text field of each line of a .jsonl file; one line at a time is in memory."""
    offset = 0
    for number, raw in enumerate(handle, start=1):
        line = decoded(raw, offset, where, data.invalid_utf8, findings).strip()
        offset += len(raw)
        if number == 1 and line.startswith("\ufeff"):
            findings.bom.append(name)
            line = line[1:]
        if not line:
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = "nested too deep" if isinstance(error, RecursionError) else error
            raise DataError(
                f"{where}: line {number} is not JSON: {reason}; each line must be one JSON object"
            ) from None
        if not isinstance(row, dict) or data.text_field not in row:
            found = f"has {', '.join(map(str, row))}" if isinstance(row, dict) else f"is {type(row).__name__}"
            raise DataError(f"{where}: line {number} {found}, but no field {data.text_field!r}; set data.text_field")
        yield row[data.text_field]


def _parquet_rows(path: Path, key: str, text_field: str) -> Iterator[object]:
    """The text field of each row of a .parquet file, a few rows at a time."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as table:
            if text_field not in table.schema_arrow.names:
                names = ", ".join(table.schema_arrow.names)
                raise DataError(f"{key}: {path}: no field {text_field!r}; it has {names}; set data.text_field")
            for batch in table.iter_batches(batch_size=64, columns=[text_field]):
                yield from batch.column(0).to_pylist()
    except pyarrow.ArrowException as error:
        raise DataError(f"{key}: {path}: not a readable .parquet file: {error}") from None


def _records(rows: Iterable[object], name: str, key: str, data: DataConfig, findings: Findings) -> Iterator[Piece]:
    """Rows as documents, or, with data.document_pattern, as the lines of one text; empty ones and nulls are noted."""
    texts = _row_texts(rows, f"{key}: {name}", data, findings)
    if data.document_pattern is not None:
        lines = (text if text.endswith("\n") else text + "\n" for text in texts)
        yield from at_headings(lines, re.compile(data.document_pattern))
        return
    empty = 0
    for text in texts:
        if text:
            yield Piece(text, True)
        else:
            empty += 1
    if empty:
        findings.empty.append(f"{empty} rows of {name}")


def _row_texts(rows: Iterable[object], where: str, data: DataConfig, findings: Findings) -> Iterator[str]:
    for number, row in enumerate(rows, start=1):
        text = "" if row is None else row
        if not isinstance(text, str):
            raise DataError(
                f"{where}: row {number} has {type(text).__name__} in field {data.text_field!r}, which must be text; "
                "set data.text_field to the field that holds the text"
            )
        if _SURROGATE.search(text):
            if data.invalid_utf8 == "strict":
                raise DataError(
                    f"{where}: row {number} holds half of a surrogate pair, which is no Unicode text; correct it, or "
                    "set data.invalid_utf8=replace to put U+FFFD there"
                )
            text, count = _SURROGATE.subn("\ufffd", text)
            findings.replaced += count
        yield text


def _whole_lines(blocks: Iterable[str]) -> Iterator[str]:
    """The same text in blocks that end with a line end (but perhaps the last): a line is never in two blocks."""
    held: list[str] = []
    for block in blocks:
        end = block.rfind("\n") + 1
        if end:
            yield "".join([*held, block[:end]])
            held = []
        if end < len(block):
            held.append(block[end:])
    if held:
        yield "".join(held)


def _between_characters(raw: bytes) -> int:
    """The last index at which UTF-8 may be cut: not inside a character and not inside a CRLF."""
    for back in range(1, min(3, len(raw)) + 1):
        value = raw[-back]
        if value >= 0xC0:  # the first byte of a character of 2, 3 or 4 bytes
            length = 2 if value < 0xE0 else 3 if value < 0xF0 else 4
            return len(raw) - back if length > back else len(raw)
        if value < 0x80:
            break
    return len(raw) - 1 if raw.endswith(b"\r") else len(raw)


def _is_utf8(path: Path) -> bool:
    try:
        path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return False
    except OSError:
        return True  # reading it says why it cannot be read
    return True


def _other_encoding(raw: bytes) -> str:
    """What a file that is not UTF-8 seems to be."""
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "; it looks like UTF-16"
    if raw[:4] == b"PAR1" or raw[:2] in (b"\x1f\x8b", b"PK"):
        return "; it looks like a packed or binary file: name it with its suffix (.gz, .parquet)"
    return ""


def _names(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
