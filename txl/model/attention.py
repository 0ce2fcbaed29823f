"""Multi-head attention over memory and segment under any position scheme: layer inputs in, weighted values out.

Knows nothing of residuals, norms or how memory is kept. `Geometry` is what one forward pass computes once for all
layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor, nn

from txl.config import ModelConfig
from txl.model.kernels.attend import Backend, attend
from txl.model.kernels.linear import Linear
from txl.model.kernels.term import RelativeTerm, join_heads, split_heads
from txl.model.norm import make_norm
from txl.model.positions import Rotation, alibi_slopes, distances, sinusoid


@dataclass(frozen=True)
class Geometry:
    """The distances between queries and keys of one forward pass, the same for every layer.

    R: S×D, the sinusoid of each distance, column c for distance S - 1 - c (relative), already dropped out.
    distance: int64 S, the clamped distances themselves (shaw, alibi).
    biases: u and v, where the layers share one pair.
    """

    R: Tensor | None = None
    distance: Tensor | None = None
    biases: RelativeBiases | None = None


def make_geometry(
    config: ModelConfig, n_keys: int, like: Tensor, shared: RelativeBiases | None, drop: nn.Module
) -> Geometry:
    """The geometry of a pass over `n_keys` keys; `like` gives device and dtype, `drop` is the dropout on positions."""
    if config.position not in ("relative", "shaw", "alibi"):
        return Geometry()
    distance = distances(n_keys, limit=config.clamp_len, device=like.device)
    if config.position != "relative":
        return Geometry(distance=distance)
    return Geometry(R=drop(sinusoid(distance, config.d_model, like.dtype)), biases=shared)


def use_attention(model: nn.Module, backend: Backend) -> None:
    """Compute every layer's attention with this backend (`kernels.attend`); only speed changes."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.backend = backend


class RelativeBiases(nn.Module):
    """u and v of the paper: what a query asks of content and of distance whatever it is, H×E each."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.bias_u = nn.Parameter(torch.zeros(config.n_head, config.d_head))
        self.bias_v = nn.Parameter(torch.zeros(config.n_head, config.d_head))


class Attention(nn.Module):
    """Attention of one layer.

    The paper's scheme (section 3.3): score = E^-1/2 [(q_i + u)·k_j + (q_i + v)·r(i - j)], r = r_proj(R).
    Shaw et al. 2018 (keys only, as the paper compares it): E^-1/2 q_i·(k_j + a(i - j)) with a learned table `a`.
    Rotary, ALiBi and the absolute schemes: E^-1/2 q_i·k_j of rotated vectors, with a bias, or as it is.
    With qk_norm every q_i and k_j is normalised before it is used (Dehghani et al. 2023).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.position = config.position
        self.n_head = config.n_head
        self.dropatt = config.dropatt
        self.backend: Backend = "auto"
        inner = config.n_head * config.d_head
        self.q_proj = Linear(config.d_model, inner, bias=False)
        self.k_proj = Linear(config.d_model, inner, bias=False)
        self.v_proj = Linear(config.d_model, inner, bias=False)
        # gains alone: a shift of all keys adds the same to all scores of a query, and the softmax takes it out again
        self.q_norm = make_norm(config, config.d_head, bias=False) if config.qk_norm else None
        self.k_norm = make_norm(config, config.d_head, bias=False) if config.qk_norm else None
        self.o_proj = Linear(inner, config.d_model, bias=False)
        if self.position == "relative":
            self.r_proj = Linear(config.d_model, inner, bias=False)
            self.biases = RelativeBiases(config) if config.untie_r else None
        if self.position == "shaw":
            n_rows = config.clamp_len or config.mem_len + config.tgt_len
            self.distance_table = nn.Parameter(torch.zeros(n_rows, config.n_head, config.d_head))

    def keys_values(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Keys and values of rows of any age, B×S×D -> twice B×S×H×E; nothing in them changes as the text goes on, so
        they can be kept.

        rotation: of the S positions, for rotary embedding alone.
        """
        k = self.heads(self.k_proj(x), self.k_norm)
        v = split_heads(self.v_proj(x), self.n_head)
        return k if rotation is None else rotation.turn(k), v

    def heads(self, x: Tensor, norm: nn.LayerNorm | nn.RMSNorm | None) -> Tensor:
        """Queries or keys by heads, each normalised where the model asks for it, B×T×HE -> B×T×H×E."""
        x = split_heads(x, self.n_head)
        return x if norm is None else norm(x.to(norm.weight.dtype)).to(x.dtype)

    def forward(
        self, x: Tensor, k: Tensor, v: Tensor, term: RelativeTerm, first: Tensor | None, rotation: Rotation | None
    ) -> Tensor:
        """Attend from the T newest positions, x B×T×D, to S keys and values, B×S×H×E: B×T×D.

        term: what `term` gave for S keys. first: int64 B×T, the oldest key each query sees, None for key 0. rotation:
        of the T positions, where the keys were rotated.
        """
        q = self.heads(self.q_proj(x), self.q_norm)
        if rotation is not None:
            q = rotation.turn(q)
        dropatt = self.dropatt if self.training else 0.0
        mixed = attend(q, k, v, term, first=first, dropatt=dropatt, backend=self.backend)
        out: Tensor = self.o_proj(join_heads(mixed))
        return out

    def term(self, geometry: Geometry) -> RelativeTerm:
        """What this layer's scheme adds to a score for the distance between query and key."""
        if self.position == "relative":
            r = rearrange(self.r_proj(geometry.R), "s (h e) -> s h e", h=self.n_head)
            pair = geometry.biases if self.biases is None else self.biases
            assert pair is not None
            return RelativeTerm(r=r, bias_u=pair.bias_u, bias_v=pair.bias_v)
        if self.position == "shaw":
            assert geometry.distance is not None
            rows = geometry.distance.clamp(max=self.distance_table.shape[0] - 1)
            return RelativeTerm(r=self.distance_table[rows])
        if self.position == "alibi":
            assert geometry.distance is not None
            slopes = alibi_slopes(self.n_head).to(geometry.distance.device)
            return RelativeTerm(bias=-slopes[:, None] * geometry.distance)
        return RelativeTerm()
