"""How one text is shared out to parallel streams: a range of inputs -> what each row is fed and what of it is scored.

Knows nothing of models or tokens, only of positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Stream:
    """One row's work: feed ids[begin:stop], score the targets of the inputs from `first` on."""

    begin: int
    first: int
    stop: int


def plan_streams(
    first: int, stop: int, *, starts: npt.NDArray[np.int64], reach: int | None, batch_size: int
) -> list[Stream]:
    """Cut the inputs first … stop-1 into at most `batch_size` streams that are fed equally many, lead-in included.

    starts: int64, sorted, begins with 0: where contexts begin.  With reach 2, no reset and two streams for six inputs:

        input      0 1 2 3 4 5
        stream 0   x x x x . .
        stream 1   . . o o x x      o: fed, not scored
    """

    def begin_at(position: int) -> int:
        context = int(starts[np.searchsorted(starts, position, side="right") - 1])
        return context if reach is None else max(context, position - reach)

    def cut(fed: int) -> list[Stream] | None:
        streams: list[Stream] = []
        position = first
        while position < stop:
            begin = begin_at(position)
            if len(streams) == batch_size or begin + fed <= position:
                return None
            streams.append(Stream(begin, position, min(stop, begin + fed)))
            position = streams[-1].stop
        return streams

    low, high = 1, stop - begin_at(first)  # what a single stream is fed: always enough
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if cut(middle) else (middle + 1, high)
    streams = cut(low)
    assert streams is not None
    return streams
