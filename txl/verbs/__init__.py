"""What each verb of the command line does: settings and paths in, the work of the rooms, its results printed.

One short function a verb; heavy rooms are imported inside it, so that `txl config` loads no torch. Knows nothing of
argv, nor of how anything is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module


def function(name: str) -> Callable[..., None]:
    """The function `module.name` of this room, its module imported now, when its verb was called for."""
    module, _, verb = name.partition(".")
    found: Callable[..., None] = getattr(import_module(f"txl.verbs.{module}"), verb)
    return found
