"""From hidden states to the next token: log-probabilities, and the negative log-likelihood of targets, in nats.

B×T×D -> B×T×V or B×T. Targets are already shifted; nothing is shifted here. Knows nothing of layers or memory.

Adaptive softmax (Grave et al. 2017): the head scores the frequent tokens of the first cluster and one entry for each
rarer cluster; a rare token's probability is its cluster's entry times its share within the cluster. Only the tokens
whose targets lie in a cluster are scored against it, so no B×T×V tensor exists in training.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from txl.config import ModelConfig
from txl.model.embedding import Embedding, cluster_bounds, cluster_width, has_projections
from txl.model.kernels.linear import linear

SCORES_AT_ONCE = 1 << 25
"""Scores of one cluster that exist at a time in a loss: 128 MiB in float32."""
IGNORED = -100
"""The target that counts neither as a numerator nor as a denominator."""


class Softmax(nn.Module):
    """The output layer: a bias for each token, an entry for each tail cluster, and matrices of its own where they are
    not tied.

    With one cluster this is the full softmax. weights: V_i×E_i a cluster, projections: D×E_i a cluster; both are the
    embedding's own tensors where `tie_weight` and `tie_projs` say so.
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.bounds = cluster_bounds(config, vocab_size)
        n_tails = len(self.bounds) - 1
        widths = [cluster_width(config, index) for index in range(len(self.bounds))]
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(stop - start)) for start, stop in self.bounds)
        self.weights = nn.ParameterList()
        if not config.tie_weight:
            self.weights.extend(
                nn.Parameter(torch.zeros(stop - start, width))
                for (start, stop), width in zip(self.bounds, widths, strict=True)
            )
        self.n_own_projections = 0
        if has_projections(config):
            self.n_own_projections = {"all": 0, "all_but_first": 1, "none": len(widths)}[config.tie_projs]
        self.projections = nn.ParameterList(
            nn.Parameter(torch.zeros(config.d_model, width)) for width in widths[: self.n_own_projections]
        )
        self.cluster_weight = nn.Parameter(torch.zeros(n_tails, widths[0])) if n_tails else None
        self.cluster_bias = nn.Parameter(torch.zeros(n_tails)) if n_tails else None

    def logits(self, hidden: Tensor, embedding: Embedding) -> Tensor:
        """…×D -> …×V: the full softmax's logits, or with clusters the log-probabilities of all tokens, at least
        float32."""
        if self.cluster_weight is None:
            return self.scores(0, hidden, embedding)
        head = self.log_probabilities(0, hidden, embedding)
        n_frequent = self.bounds[0][1]
        parts = [head[..., :n_frequent]]
        for index in range(1, len(self.bounds)):
            entry = head[..., n_frequent + index - 1, None]
            parts.append(entry + self.log_probabilities(index, hidden, embedding))
        return torch.cat(parts, dim=-1)

    def nll(self, hidden: Tensor, targets: Tensor, embedding: Embedding) -> Tensor:
        """Nats of each target in input order, B×T×D and int64 B×T -> B×T; at least float32, 0 where ignored.

        A target of cluster i is scored by the head on the cluster's entry, and within the cluster on its own rows
        alone.
        """
        rows, target = hidden.flatten(0, -2), targets.flatten()
        n_frequent = self.bounds[0][1]
        entry = target
        for index, (start, stop) in enumerate(self.bounds[1:], start=1):
            entry = torch.where((target >= start) & (target < stop), n_frequent + index - 1, entry)
        nll = self.cluster_nll(0, rows, entry, embedding)
        for index, (start, stop) in enumerate(self.bounds[1:], start=1):
            where = ((target >= start) & (target < stop)).nonzero().flatten()
            within = self.cluster_nll(index, rows[where], target[where] - start, embedding)
            nll = nll.index_add(0, where, within)
        return nll.view(targets.shape)

    def cluster_nll(self, index: int, rows: Tensor, target: Tensor, embedding: Embedding) -> Tensor:
        """Nats of int64 N targets within cluster `index`, N×D -> N, in pieces where all scores at once are too many.

        The scores of a piece are computed again in the backward pass, so that no two pieces' exist at a time.
        """

        def piece(some: Tensor, wanted: Tensor) -> Tensor:
            return cross_entropy(self.scores(index, some, embedding), wanted)

        start, stop = self.bounds[index]
        n_rows = max(1, SCORES_AT_ONCE // (stop - start))
        if len(rows) <= n_rows:
            return piece(rows, target)
        pairs = zip(rows.split(n_rows), target.split(n_rows), strict=True)
        if not torch.is_grad_enabled():
            return torch.cat([piece(*pair) for pair in pairs])
        return torch.cat([checkpoint(piece, *pair, use_reentrant=False) for pair in pairs])

    def log_probabilities(self, index: int, hidden: Tensor, embedding: Embedding) -> Tensor:
        """Log of each share within cluster `index`, the entries of the tails after those of the head; at least
        float32."""
        scores = self.scores(index, hidden, embedding)
        return scores.to(torch.promote_types(scores.dtype, torch.float32)).log_softmax(dim=-1)

    def scores(self, index: int, hidden: Tensor, embedding: Embedding) -> Tensor:
        """Unnormalised scores of the tokens of cluster `index`; the head's end with one for each tail cluster."""
        own = index < self.n_own_projections
        projection = self.projections[index] if own else embedding.projection(index)
        if projection is not None:
            hidden = linear(hidden, projection.t())
        weight = self.weights[index] if len(self.weights) else embedding.tables[index]
        bias = self.biases[index]
        if index == 0 and self.cluster_weight is not None and self.cluster_bias is not None:
            weight, bias = torch.cat([weight, self.cluster_weight]), torch.cat([bias, self.cluster_bias])
        return linear(hidden, weight, bias)


def cross_entropy(scores: Tensor, target: Tensor) -> Tensor:
    """Nats of int64 N targets under scores N×C, in at least float32; 0 where ignored."""
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return F.cross_entropy(wide, target, reduction="none", ignore_index=IGNORED)


def auto_cutoffs(counts: Tensor, shares: tuple[float, ...] = (0.8, 0.92, 0.98)) -> tuple[int, ...]:
    """Cutoffs whose clusters cover the given cumulative shares of training tokens.

    counts: V, tokens of the training split by id, ids in order of frequency. A cutoff is the smallest id at which the
    tokens before it make up the share; cuts that would leave a cluster empty are left out, so small vocabularies get
    fewer or none.
    """
    total = counts.to(torch.float64).cumsum(0) / counts.sum()
    cuts = [int(torch.searchsorted(total, share)) + 1 for share in shares]
    return tuple(sorted({cut for cut in cuts if 0 < cut < len(counts)}))
