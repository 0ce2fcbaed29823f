"""Weights that transformers saved in several files: their index -> the files, none of them outside the folder.

Knows nothing of what the files hold.
"""

from __future__ import annotations

from pathlib import Path

from txl.data import DataError
from txl.interop.files import LARGEST_SETTINGS_BYTES, member, read_json


def shard_files(folder: Path, name: str) -> list[Path]:
    """The files among which the weights file `name` was divided, as `name`.index.json lists them; none without it.

    Raises DataError where the index is none, lists a file that is not there, or one outside the folder.
    """
    index = member(folder, f"{name}.index.json")
    if index is None:
        return []
    document = read_json(index, limit_bytes=LARGEST_SETTINGS_BYTES)
    places = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(places, dict) or not places or not all(isinstance(file, str) for file in places.values()):
        raise DataError(
            f"{index}: has no weight_map of tensors and their files; is it an index that transformers wrote?"
        )
    suffix = Path(name).suffix
    found = []
    for file in sorted(set(places.values())):
        if Path(file).name != file or Path(file).suffix != suffix:
            raise DataError(f"{index}: weight_map: found {file!r}; allowed: names of {suffix} files in this folder")
        path = member(folder, file)
        if path is None:
            raise DataError(f"{folder / file}: missing, but {index.name} lists it; put all its files into the folder")
        found.append(path)
    return found
