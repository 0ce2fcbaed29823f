"""Files that others wrote, read within limits: a path -> text or JSON, or a DataError that names the file and says why.

Nothing in a file is executed, and no link leads out of a folder. Knows nothing of what the files mean.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from txl.data import DataError

LARGEST_SETTINGS_BYTES = 1_000_000
"""Of a file of hyper-parameters; published ones take about a thousand."""


def member(folder: Path, name: str) -> Path | None:
    """The file `name` of a folder, None where there is none.

    Links may stay inside the folder, or lead to the `blobs` of a Hugging Face download cache, which is made of such
    links. Raises DataError for any other.
    """
    path = folder / name
    if not path.is_file():
        return None
    home, real = folder.resolve(), path.resolve()
    in_download_cache = home.parent.name == "snapshots" and real.parent == home.parent.parent / "blobs"
    if not real.is_relative_to(home) and not in_download_cache:
        raise DataError(f"{path}: a link to {real}, outside the folder; put the file itself there")
    return path


def read_text(path: Path, *, limit_bytes: int) -> str:
    """A file's text, without the byte order mark that some editors begin with. Raises DataError where it cannot be
    read, is larger than `limit_bytes` or is no UTF-8."""
    try:
        size = path.stat().st_size
        if size > limit_bytes:
            raise DataError(f"{path}: has {size:,} bytes, but at most {limit_bytes:,} are read; is it the right file?")
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 at byte {error.start}; write it as UTF-8") from None


def read_json(path: Path, *, limit_bytes: int) -> Any:
    """What a JSON file holds. Raises DataError as `read_text` does, and where it is no JSON or nested too deep."""
    text = read_text(path, limit_bytes=limit_bytes)
    try:
        return json.loads(text)
    except RecursionError:
        raise DataError(f"{path}: nested too deep; is it the right file?") from None
    except ValueError as error:
        raise DataError(f"{path}: is not JSON: {error}") from None
