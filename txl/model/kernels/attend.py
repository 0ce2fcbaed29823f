"""The one contract of attention: queries, keys, values and what position adds -> the weighted values.

Knows nothing of modules, memory or where keys came from: a query sees the keys from `first` to its own, whatever they
are.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from txl.model.kernels import reference


@dataclass(frozen=True)
class RelativeTerm:
    """What a scheme adds to the score of a query and a key for the distance between them; any part may be None.

    r: S×H×E, the vector of each distance, column c for distance S - 1 - c; adds (q + bias_v) · r.
    bias_u, bias_v: H×E, added to the query of the content and of the position product.
    bias: H×S, a number for each distance, same columns, added after scaling.
    """

    r: Tensor | None = None
    bias_u: Tensor | None = None
    bias_v: Tensor | None = None
    bias: Tensor | None = None


def attend(
    q: Tensor, k: Tensor, v: Tensor, term: RelativeTerm, *, first: Tensor | None = None, dropatt: float = 0.0
) -> Tensor:
    """Causal attention of T queries over S = M + T keys, query i standing at key M + i.

        score(i, j) = E^-1/2 [(q_i + bias_u)·k_j + (q_i + bias_v)·r(M + i - j)] + bias(M + i - j)

    q: B×T×H×E.  k, v: B×S×H×E, oldest first.  first: int64 B×T, the oldest key each query sees; None means key 0.
    dropatt: probability with which an attention weight is dropped; pass 0 in evaluation.
    Returns B×T×H×E in the dtype of v (Dai et al. 2019, section 3.3; the scale multiplies both products).
    """
    return reference.attend(q, k, v, term, first=first, dropatt=dropatt)
