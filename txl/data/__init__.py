"""Text to parallel streams of token ids: tokenizers, prepared corpora, streams.

A `Config` -> `prepare` -> `Corpus` -> `Streams` -> `SegmentBatch`. Knows nothing of models.
Names are loaded when first used, so that `from txl.data import DataError` loads neither torch nor a tokenizer library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from txl.data.errors import DataError

if TYPE_CHECKING:
    from txl.data.corpus import Corpus, Split, prepare
    from txl.data.decoding import StreamDecoder
    from txl.data.streams import SegmentBatch, Streams
    from txl.data.tokenizer import Tokenizer, tokenizer_from_json, train_tokenizer

_HOMES = {
    "Corpus": "txl.data.corpus",
    "SegmentBatch": "txl.data.streams",
    "Split": "txl.data.corpus",
    "StreamDecoder": "txl.data.decoding",
    "Streams": "txl.data.streams",
    "Tokenizer": "txl.data.tokenizer",
    "prepare": "txl.data.corpus",
    "tokenizer_from_json": "txl.data.tokenizer",
    "train_tokenizer": "txl.data.tokenizer",
}

__all__ = [
    "Corpus",
    "DataError",
    "SegmentBatch",
    "Split",
    "StreamDecoder",
    "Streams",
    "Tokenizer",
    "prepare",
    "tokenizer_from_json",
    "train_tokenizer",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'txl.data' has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOMES[name]), name)
