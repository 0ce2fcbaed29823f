"""Encoding on several cores: groups of texts in -> the ids of each group out, in order, however many processes do it.

A tokenizer travels as its JSON and each worker makes its own from it. Knows nothing of corpora and files.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TypeVar

import numpy as np

from txl.data.tokenizer import Tokenizer, tokenizer_from_json

GROUPS_AHEAD = 2
"""Groups a worker that are read before the oldest is waited for: what is in memory does not grow with the text."""
Group = TypeVar("Group")
_tokenizer: Tokenizer | None = None


def encoded_in_order(
    tokenizer: Tokenizer, groups: Iterable[tuple[Group, Sequence[str]]], *, workers: int
) -> Iterator[tuple[Group, list[np.ndarray]]]:
    """Each group, whatever it is, with the ids of its texts, in the order in which they came.

    With one worker all is done in this process. Others are started anew (spawned), so a script that calls this needs
    the usual `if __name__ == "__main__":`.
    """
    if workers == 1:
        for group, texts in groups:
            yield group, tokenizer.encode_batch(texts)
        return
    started = multiprocessing.get_context("spawn")
    waiting: deque[tuple[Group, Future[list[np.ndarray]]]] = deque()
    with ProcessPoolExecutor(workers, started, initializer=_begin, initargs=(tokenizer.to_json(),)) as pool:
        try:
            for group, texts in groups:
                waiting.append((group, pool.submit(_encode, list(texts))))
                if len(waiting) > GROUPS_AHEAD * workers:
                    group, ids = waiting.popleft()
                    yield group, ids.result()
            for group, ids in waiting:
                yield group, ids.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(text: str) -> None:
    """Make a worker's tokenizer. It ends when its parent was killed, and leaves Ctrl-C to that one."""
    global _tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _tokenizer = tokenizer_from_json(text)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _encode(texts: list[str]) -> list[np.ndarray]:
    assert _tokenizer is not None
    return _tokenizer.encode_batch(texts)
