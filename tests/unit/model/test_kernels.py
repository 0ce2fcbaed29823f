"""Every attention backend against the float64 reference: outputs and all gradients, over masks, windows and dropout."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models import assert_close
from txl.model.kernels import attend as contract
from txl.model.kernels import blocked, decode, reference, sdpa
from txl.model.kernels.term import RelativeTerm
from txl.model.memory import first_visible

B, H, E = 2, 3, 4
SIZES = {"M0": (5, 0), "T1": (1, 6), "T>M": (7, 2), "T<M": (3, 9)}
KINDS = ("relative", "shaw", "alibi", "plain")
MASKS = ("none", "window", "cold", "resets")
BACKENDS: dict[str, Any] = {
    "blocked": lambda *args, **kwargs: blocked.attend(*args, **kwargs, whole=False),
    "batched": lambda *args, **kwargs: blocked.attend(*args, **kwargs, whole=True),
    "sdpa": sdpa.attend,
}


def inputs(kind: str, size: str, dtype: torch.dtype) -> tuple[dict[str, Tensor], Tensor | None]:
    """Leaves by name, and the constant bias of ALiBi."""
    n_queries, n_memory = SIZES[size]
    n_keys = n_queries + n_memory
    draw = torch.Generator().manual_seed(5)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()

    leaves = {"q": leaf(B, n_queries, H, E), "k": leaf(B, n_keys, H, E), "v": leaf(B, n_keys, H, E)}
    if kind in ("relative", "shaw"):
        leaves["r"] = leaf(n_keys, H, E)
    if kind == "relative":
        leaves |= {"bias_u": leaf(H, E), "bias_v": leaf(H, E)}
    distance = torch.arange(n_keys - 1, -1, -1, dtype=torch.float64).clamp(max=4)
    return leaves, -torch.tensor([[0.5], [0.2], [0.1]]) * distance if kind == "alibi" else None


def first_of(mask: str, size: str) -> Tensor | None:
    """The oldest visible key of each query under a kind of mask."""
    n_queries, n_memory = SIZES[size]
    length = torch.tensor([n_memory, n_memory // 2 if mask == "cold" else n_memory])
    resets = torch.zeros(B, n_queries, dtype=torch.bool)
    resets[1, n_queries // 2] = True
    window = 2 if mask == "window" else None
    return first_visible(length, n_memory, n_queries, resets if mask == "resets" else None, window=window)


def run(function: Any, leaves: dict[str, Tensor], bias: Tensor | None, first: Any, keep: Any) -> list[Tensor]:
    """The output and the gradient of every leaf for a fixed output gradient."""
    parts = {name: leaves[name] for name in ("r", "bias_u", "bias_v") if name in leaves}
    term = RelativeTerm(**parts, bias=bias)
    out = function(leaves["q"], leaves["k"], leaves["v"], term, first=first, keep=keep)
    draw = torch.Generator().manual_seed(6)
    grad = torch.randn(out.shape, generator=draw, dtype=torch.float64).to(out.dtype)
    return [out, *torch.autograd.grad(out, list(leaves.values()), grad)]


def keep_of(dropped: bool, size: str, dtype: torch.dtype) -> Tensor | None:
    """The same dropout factors for all: a quarter of the weights dropped."""
    n_queries, n_memory = SIZES[size]
    draw = torch.Generator().manual_seed(7)
    shape = (B, H, n_queries, n_queries + n_memory)
    return (torch.rand(shape, generator=draw) > 0.25).to(dtype) / 0.75 if dropped else None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6), (torch.bfloat16, 4e-2)]
)
def test_a_backend_gives_the_reference_and_all_its_gradients(
    backend: str, kind: str, dtype: torch.dtype, tolerance: float
) -> None:
    for size, mask, dropped in itertools.product(SIZES, MASKS, (False, True)):
        leaves, bias = inputs(kind, size, dtype)
        exact = {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
        first = first_of(mask, size)
        expected = run(reference.attend, exact, bias, first, keep_of(dropped, size, torch.float64))
        found = run(BACKENDS[backend], leaves, bias, first, keep_of(dropped, size, dtype))
        for left, right in zip(found, expected, strict=True):
            assert left.dtype == dtype
            assert_close(left, right, tolerance=tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", ["none", "cold", "window"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6), (torch.bfloat16, 4e-2)]
)
def test_decode_gives_the_reference(kind: str, mask: str, dtype: torch.dtype, tolerance: float) -> None:
    leaves, bias = inputs(kind, "T1", dtype)
    exact = {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
    first = first_of(mask, "T1")
    expected = run(reference.attend, exact, bias, first, None)[0]
    assert_close(run(decode.attend, leaves, bias, first, None)[0], expected, tolerance=tolerance)


def test_decode_refuses_more_than_one_query() -> None:
    leaves, _ = inputs("plain", "M0", torch.float64)
    with pytest.raises(ValueError, match="takes one query without dropout, found 5"):
        decode.attend(leaves["q"], leaves["k"], leaves["v"], RelativeTerm(), first=None, keep=None)


@pytest.mark.parametrize("dropped", [False, True])
def test_weights_beyond_the_byte_budget_are_computed_again(monkeypatch: pytest.MonkeyPatch, dropped: bool) -> None:
    leaves, _ = inputs("relative", "T<M", torch.float64)
    keep = keep_of(dropped, "T<M", torch.float64)
    kept = run(BACKENDS["blocked"], leaves, None, None, keep)
    monkeypatch.setattr(blocked, "KEEP_BYTES", 0)
    again = run(BACKENDS["blocked"], leaves, None, None, keep)
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("queries", "block_bytes"), [(1, 1), (2, 1), (3, 2 * 3 * 16 * 8 * 2), (100, 2 * 3 * 12 * 8)])
def test_the_size_of_a_block_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, kind: str, mask: str, queries: int, block_bytes: int
) -> None:
    """Blocks of one head, of two with a smaller one at the end, and of some of the queries with the keys they see."""
    monkeypatch.setattr(blocked, "BLOCK_QUERIES", queries)
    monkeypatch.setattr(blocked, "BLOCK_BYTES", block_bytes)
    for size, dropped in itertools.product(SIZES, (False, True)):
        leaves, bias = inputs(kind, size, torch.float64)
        first, keep = first_of(mask, size), keep_of(dropped, size, torch.float64)
        expected = run(reference.attend, leaves, bias, first, keep)
        for left, right in zip(run(BACKENDS["blocked"], leaves, bias, first, keep), expected, strict=True):
            assert_close(left, right, tolerance=1e-12)


def test_a_block_leaves_out_the_keys_that_none_of_its_queries_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """M = 3, T = 4, a window of 2, two queries a block: query 0 sees keys 1 to 3, query 3 keys 4 to 6."""
    monkeypatch.setattr(blocked, "BLOCK_QUERIES", 2)
    first = first_visible(torch.tensor([3]), 3, 4, None, window=2)
    content, keys = torch.zeros(1, 1, 4, E), torch.zeros(1, 1, 7, E)
    found = [(block.queries, block.keys) for block in blocked.blocks_of(content, keys, first, whole=False)]
    assert found == [(slice(0, 2), slice(1, 5)), (slice(2, 4), slice(3, 7))]
    whole = [(block.queries, block.keys) for block in blocked.blocks_of(content, keys, None, whole=True)]
    assert whole == [(slice(0, 4), slice(0, 7))]


def test_the_shift_by_hand() -> None:
    """T = 3 queries over S = 5 keys; columns hold the distances 4 to 0, entries are query·10 + distance."""
    by_distance = torch.tensor([[4, 3, 2, 1, 0], [14, 13, 12, 11, 10], [24, 23, 22, 21, 20]], dtype=torch.float64)
    by_key = torch.tensor([[2, 1, 0, -1, -1], [13, 12, 11, 10, -1], [24, 23, 22, 21, 20]], dtype=torch.float64)
    seen = reference.visible(3, 5, None, torch.device("cpu"))
    assert torch.equal(seen, by_key >= 0)
    for shifted in (reference.rel_shift(by_distance), blocked.by_key(by_distance[None, :, None])[0, 0]):
        assert torch.equal(shifted[seen], by_key[seen])
    spread = blocked.spread(torch.tensor([[4, 3, 2, 1, 0]]), 3)[0]
    assert torch.equal(spread[seen], (by_key % 10)[seen].long())


def test_first_visible_by_hand() -> None:
    """M = 2, T = 3: a cold row, a window of 2, and a reset at the second query of the second row."""
    length = torch.tensor([1, 2])
    resets = torch.tensor([[False, False, False], [False, True, False]])
    assert first_visible(length, 2, 3, None, window=None).tolist() == [[1, 1, 1], [0, 0, 0]]
    assert first_visible(length, 2, 3, None, window=2).tolist() == [[1, 1, 2], [0, 1, 2]]
    assert first_visible(length, 2, 3, resets, window=None).tolist() == [[1, 1, 1], [0, 3, 3]]
    assert first_visible(torch.tensor([2, 2]), 2, 3, None, window=None) is None


def chosen(device: str = "cpu", dtype: torch.dtype = torch.float32, **changes: Any) -> str:
    sizes = {"n_queries": 128, "n_keys": 256, "learning": True, "distances_learned": True, "dropped": False}
    return contract.choose(device, dtype, **{**sizes, **changes})


def test_auto_chooses_by_size_dtype_device_and_scheme() -> None:
    assert chosen() == chosen(n_queries=1) == chosen(distances_learned=False, dropped=True) == "blocked"
    assert chosen(distances_learned=False) == chosen("cuda") == chosen("cuda", torch.bfloat16) == "sdpa"
    assert chosen(dtype=torch.bfloat16) == chosen("cuda", torch.bfloat16, dropped=True) == "batched"
    assert chosen(dtype=torch.bfloat16, n_queries=512, n_keys=1024) == "blocked"
    assert chosen(dtype=torch.bfloat16, distances_learned=False) == "blocked"
    assert chosen(dtype=torch.bfloat16, distances_learned=False, learning=False) == "sdpa"
    assert chosen("cuda", torch.bfloat16, distances_learned=False) == "sdpa"
    assert chosen(n_queries=1, learning=False) == chosen("cuda", n_queries=1, learning=False) == "decode"


def test_dropout_on_attention_drops_the_share_it_is_asked_to() -> None:
    leaves, _ = inputs("relative", "M0", torch.float64)
    q = leaves["q"].expand(B, 5, H, E)
    keep = contract.keep_mask(q.repeat(1, 40, 1, 1), q.repeat(1, 40, 1, 1), 0.25)
    assert set(keep.unique().tolist()) == {0.0, 1 / 0.75}
    assert abs((keep == 0).double().mean().item() - 0.25) < 0.01
