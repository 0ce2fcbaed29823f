"""How much memory endless text takes: a run and a number of bytes in, anonymous memory and state bytes out.

    python -m benchmarks.soak RUN --bytes 10_000_000 [--source FILE]

Streams so many bytes of text through a session of one row, in portions of 480 tokens, and compares what the process
holds besides files (RssAnon of /proc; a file that is mapped makes plain RSS grow by its own size) and the bytes of the
session's state at a fifth of the way, when everything has warmed up, with those at the end. Nothing of the text is
kept. The source is read over and over, from its start, without a reset. Needs Linux. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import txl
from txl.terminal import progress

PORTION_TOKENS = 480
"""Below the 512 a session reads at once, so that every portion is one step of the same size."""
READ_BYTES = 65_536


def anonymous_bytes() -> int:
    """RssAnon of this process."""
    gc.collect()
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


def live_tensors() -> int:
    """Tensors that Python's collector knows."""
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def portions(source: Path, tokenizer: object, n_bytes: int) -> Iterator[tuple[torch.Tensor, int]]:
    """Ids, 1×PORTION_TOKENS, and the bytes read so far, until n_bytes of text were read."""
    held: list[int] = []
    done = 0
    while done < n_bytes:
        with source.open("rb") as file:
            while done < n_bytes and (raw := file.read(min(READ_BYTES, n_bytes - done))):
                held += tokenizer.encode(raw.decode("utf-8", "replace"))  # type: ignore[attr-defined]
                done += len(raw)
                whole = len(held) // PORTION_TOKENS * PORTION_TOKENS
                for start in range(0, whole, PORTION_TOKENS):
                    yield torch.tensor([held[start : start + PORTION_TOKENS]]), done
                held = held[whole:]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder, or one of its checkpoints")
    parser.add_argument("--bytes", type=int, default=10_000_000, metavar="N", help="how much text (10_000_000)")
    parser.add_argument(
        "--source", type=Path, metavar="FILE", help="the text, read over and over (this Python's typing.py)"
    )
    parser.add_argument(
        "--window", type=int, metavar="N", help="earlier positions each layer may see (the model's own)"
    )
    given = parser.parse_args()
    source = given.source or Path(json.__file__).parents[1] / "typing.py"
    bundle = txl.load(given.run)
    session = txl.Session(bundle.model, window=given.window)

    def measured() -> dict[str, int]:
        return {"anonymous_bytes": anonymous_bytes(), "state_bytes": session.nbytes, "live_tensors": live_tensors()}

    start: dict[str, int] = {}
    nats, tokens, began = 0.0, 0, time.perf_counter()
    with progress() as report:
        for ids, done in portions(source, bundle.tokenizer, given.bytes):
            found = session.feed(ids)
            nats += float(torch.nansum(found, dtype=torch.float64))
            tokens += ids.shape[1]
            if not start and done * 5 >= given.bytes:
                start = measured()
                print(f"after {done:,} bytes: {start}")
            report("streaming", done, given.bytes, f"perplexity {math.exp(nats / max(1, tokens - 1)):.3f}")
    end = measured()
    print(f"after {given.bytes:,} bytes: {end}")
    record = {
        "benchmark": "soak",
        "run": str(given.run),
        "bytes": given.bytes,
        "tokens": tokens,
        "window": session.window,
        "start": start,
        "end": end,
        "anonymous_growth_bytes": end["anonymous_bytes"] - start["anonymous_bytes"],
        "bits_per_token": nats / math.log(2) / (tokens - 1),
        "tokens_per_second": tokens / (time.perf_counter() - began),
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
