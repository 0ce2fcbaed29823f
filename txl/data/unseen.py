"""What a vocabulary of the tokenizers library would drop in silence, made visible: its JSON -> JSON that marks it.

Knows nothing of the library itself.
"""

from __future__ import annotations

from typing import Any

from txl.data.errors import DataError

UNSEEN = "\0unseen"
"""The symbol of what has none, never in a text's ids: it is refused where it is met."""


def marking_unseen(document: dict[str, Any], mark: int) -> dict[str, Any] | None:
    """The document of a tokenizer that gives the id `mark` for what has no symbol; None where one for it is there.

    Without an unknown symbol bpe leaves out what it does not know, and a list of words breaks off. DataError for a
    Unigram model without one, which can encode almost nothing.
    """
    model = document["model"]
    if model["type"] == "Unigram":
        if model.get("unk_id") is None:
            raise DataError("tokenizer JSON: its Unigram model has no unk_id, so few texts could be encoded; name one")
        return None
    if model.get("unk_token") in model["vocab"]:
        return None
    return document | {"model": model | {"vocab": model["vocab"] | {UNSEEN: mark}, "unk_token": UNSEEN}}
