"""Memory: bytes that a layer saves for its backward (row M1), and bytes of streaming state, ours against the peers.

python -m benchmarks.bench_memory -> a table, one JSON line. B 2, T = M = 512, float32. What is counted are the distinct
storages that autograd keeps, parameters left out; a layer's share is a third of what 4 layers keep beyond 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.timing import machine
from txl.model.kernels import blocked

N_ROWS, LENGTH = 2, 512


def main() -> None:
    """Count, print, one JSON line."""
    peers.add_to_path()
    config = {n: peers.shape(LENGTH, LENGTH, n_layer=n) for n in (1, 4)}
    budget = blocked.KEEP_BYTES
    saved = {"txl, weights kept": a_layer(lambda n: peers.Ours(config[n]))}
    blocked.KEEP_BYTES = 0
    saved["txl, weights computed again"] = a_layer(lambda n: peers.Ours(config[n]))
    blocked.KEEP_BYTES = budget
    saved["hugging face"] = a_layer(lambda n: peers.HuggingFace(peers.Ours(config[n])))
    saved["x-transformers"] = a_layer(lambda n: peers.XTransformers(config[n]))
    print("\nM1: bytes saved for the backward of a layer (aim: at most 0.6 of Hugging Face's)")
    for name, count in sorted(saved.items(), key=lambda pair: pair[1]):
        print(f"    {name:<34}{count / 2**20:>8.1f} MiB   {count / saved['hugging face']:.2f} of Hugging Face's")
    state = {}
    for window in (512, 2048):
        ours = peers.Ours(peers.shape(64, window))
        ours.token(peers.random_ids(1, 64))
        state[window] = ours.cache.nbytes
        print(f"streaming state, batch 1, window {window}: {state[window] / 2**20:.1f} MiB, constant")
    found = {"saved_bytes_a_layer": saved, "streaming_state_bytes": state}
    print(json.dumps({"benchmark": "bench_memory", "machine": machine(), **found}))


def a_layer(make: Callable[[int], peers.Ours | peers.HuggingFace | peers.XTransformers]) -> float:
    """Bytes that one more layer keeps."""
    return (bytes_saved(make(4)) - bytes_saved(make(1))) / 3


def bytes_saved(contender: peers.Ours | peers.HuggingFace | peers.XTransformers) -> int:
    """Bytes of distinct storages saved for the backward of a step with full memory."""
    ids = peers.random_ids(N_ROWS, LENGTH + 1)
    contender.train(ids[:, :-1], ids[:, 1:])
    parameters = {p.untyped_storage().data_ptr() for p in contender.model.parameters()}
    seen: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        contender.train(ids[:, :-1], ids[:, 1:])
    return sum(seen.values())


if __name__ == "__main__":
    main()
