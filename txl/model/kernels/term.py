"""What a position scheme adds to a score, as tensors: the part of the contract that differs between schemes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class RelativeTerm:
    """What a scheme adds to the score of a query and a key for the distance between them; any part may be None.

    r: S×H×E, the vector of each distance, column c for distance S - 1 - c; adds (q + bias_v) · r.
    bias_u, bias_v: H×E, added to the query of the content and of the position product.
    bias: H×S, a number for each distance, same columns, added after scaling; a constant, never learned.
    """

    r: Tensor | None = None
    bias_u: Tensor | None = None
    bias_v: Tensor | None = None
    bias: Tensor | None = None

    def newest(self, n_keys: int) -> RelativeTerm:
        """The term of fewer keys: columns count from the newest, so the shorter table is the end of the longer one."""
        r = None if self.r is None else self.r[self.r.shape[0] - n_keys :]
        bias = None if self.bias is None else self.bias[:, self.bias.shape[1] - n_keys :]
        return RelativeTerm(r, self.bias_u, self.bias_v, bias)

    def head_first(self) -> RelativeTerm:
        """The same numbers, each head's vectors laid side by side in memory."""
        r = None if self.r is None else self.r.transpose(0, 1).contiguous().transpose(0, 1)
        return RelativeTerm(r, self.bias_u, self.bias_v, self.bias)


def plus(q: Tensor, bias: Tensor | None) -> Tensor:
    """q with a bias H×E added in q's dtype."""
    return q if bias is None else q + bias.to(q.dtype)


def split_heads(x: Tensor, n_head: int) -> Tensor:
    """…×(H·E) -> …×H×E, a view; done at every token of a stream, so without a pattern to parse."""
    return x.view(*x.shape[:-1], n_head, x.shape[-1] // n_head)


def join_heads(x: Tensor) -> Tensor:
    """…×H×E -> …×(H·E), the way back."""
    return x.flatten(-2)
