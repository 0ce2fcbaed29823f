"""The decoder stack both Transformers share: ids -> embedding -> layers -> hidden states, with keys and values from
outside.

Knows nothing of how memory is kept between segments (`memory`, `cache`) or of the loss (`softmax`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from txl.config import ModelConfig
from txl.model.attention import Attention, Geometry, RelativeBiases, make_geometry
from txl.model.dropout import Dropout
from txl.model.embedding import Embedding
from txl.model.kernels.linear import Linear
from txl.model.kernels.term import RelativeTerm
from txl.model.norm import make_norm
from txl.model.positions import ABSOLUTE, Rotation, sinusoid


class FeedForward(nn.Module):
    """Two products with a non-linearity between, B×T×D -> B×T×D; swiglu gates the inner width with a third."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.in_proj = Linear(config.d_model, config.d_inner)
        self.out_proj = Linear(config.d_inner, config.d_model)
        if self.activation == "swiglu":
            self.gate_proj = Linear(config.d_model, config.d_inner)
        self.drop = Dropout(config.dropout, locked=config.locked_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to every position alike."""
        inner = self.in_proj(x)
        if self.activation == "swiglu":
            inner = F.silu(self.gate_proj(x)) * inner
        else:
            inner = F.relu(inner) if self.activation == "relu" else F.gelu(inner)
        out: Tensor = self.out_proj(self.drop(inner))
        return out


class Layer(nn.Module):
    """Attention and feed-forward, each with dropout, a residual and a norm after it (the paper) or before it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pre_lnorm = config.pre_lnorm
        self.attention = Attention(config)
        self.attention_norm = make_norm(config, config.d_model)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = make_norm(config, config.d_model)
        self.drop = Dropout(config.dropout, locked=config.locked_dropout)

    def ready(self, x: Tensor) -> Tensor:
        """What attention reads of layer inputs B×S×D: each row depends on its own input alone."""
        normed: Tensor = self.attention_norm(x) if self.pre_lnorm else x
        return normed

    def forward(
        self, x: Tensor, old: Tensor | None, term: RelativeTerm, first: Tensor | None, rotation: Rotation | None
    ) -> Tensor:
        """Layer inputs of the segment, B×T×D, and of memory, B×M×D -> layer outputs, B×T×D."""
        seen = self.ready(x if old is None else torch.cat([old, x], dim=1))
        k, v = self.attention.keys_values(seen, rotation)
        own = None if rotation is None else rotation.newest(x.shape[1])
        return self.mix(x, self.attention(seen[:, seen.shape[1] - x.shape[1] :], k, v, term, first, own))

    def mix(self, x: Tensor, attended: Tensor) -> Tensor:
        """Layer inputs and what attention gave for them, B×T×D twice -> layer outputs, B×T×D."""
        if self.pre_lnorm:
            x = x + self.drop(attended)
            return x + self.drop(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x + self.drop(attended))
        normed: Tensor = self.feed_forward_norm(x + self.drop(self.feed_forward(x)))
        return normed


class Stack(nn.Module):
    """Embedding, layers and, with pre-norm, the final norm."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config, vocab_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layer))
        self.final_norm = make_norm(config, config.d_model) if config.pre_lnorm else nn.Identity()
        self.drop = Dropout(config.dropout, locked=config.locked_dropout)
        shared = config.position == "relative" and not config.untie_r
        self.biases = RelativeBiases(config) if shared else None
        if config.position == "learned":
            self.position_table = nn.Parameter(torch.zeros(config.tgt_len, config.d_model))

    def embed(self, ids: Tensor, position: Tensor | None = None) -> Tensor:
        """Scaled embedding plus, for absolute schemes, the vector of each position; int64 B×T twice -> B×T×D.

        Raises ValueError where a learned table has too few positions.
        """
        x: Tensor = self.embedding(ids) * self.config.d_model**0.5
        if self.config.position in ABSOLUTE:
            assert position is not None
            x = x + self.position_vectors(position, x.dtype)
        dropped: Tensor = self.drop(x)
        return dropped

    def position_vectors(self, position: Tensor, dtype: torch.dtype) -> Tensor:
        """B×T×D for absolute positions B×T."""
        if self.config.position == "sinusoidal":
            return sinusoid(torch.arange(position.shape[1], device=position.device), self.config.d_model, dtype)[
                position
            ]
        if position.shape[1] > self.position_table.shape[0]:
            raise ValueError(
                f"position: learned holds {self.position_table.shape[0]} positions (model.tgt_len), the input has "
                f"{position.shape[1]}: feed shorter segments, or train with sinusoidal positions"
            )
        return self.position_table[position]

    def geometry(self, n_keys: int, like: Tensor) -> Geometry:
        """What all layers share in a pass over `n_keys` keys."""
        return make_geometry(self.config, n_keys, like, self.biases, self.drop)

    def terms(self, n_keys: int, like: Tensor) -> list[RelativeTerm]:
        """What each layer adds to its scores for the distances between queries and `n_keys` keys."""
        geometry = self.geometry(n_keys, like)
        return [layer.attention.term(geometry) for layer in self.typed_layers()]

    def rotation(self, position: Tensor, like: Tensor) -> Rotation | None:
        """What turns queries and keys at int64 positions S or B×S under rotary embedding; None without."""
        if self.config.position != "rotary":
            return None
        return Rotation.at(position, self.config.d_head, like.dtype)

    def typed_layers(self) -> list[Layer]:
        """The layers, for the type checker: a ModuleList only knows modules."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def forward(
        self,
        ids: Tensor,
        position: Tensor,
        memory: Sequence[Tensor],
        first: Tensor | None,
        *,
        newest_alone: bool = False,
    ) -> tuple[Tensor, list[Tensor]]:
        """Hidden states B×T×D and the input of each layer, for ids B×T after memory of B×M×D a layer (or none).

        newest_alone: the last layer computes the last position alone, B×1×D, which is all that a window slid by one
        token needs; without memory.
        """
        x = self.embed(ids, position)
        n_memory = memory[0].shape[1] if memory else 0
        n_keys = n_memory + ids.shape[1]
        terms = self.terms(n_keys, x)
        rotation = self.rotation(torch.arange(n_keys, device=x.device), x)
        inputs = []
        for index, (layer, term) in enumerate(zip(self.typed_layers(), terms, strict=True)):
            inputs.append(x)
            old = memory[index].to(x.dtype) if n_memory else None
            if newest_alone and layer is self.layers[-1] and x.shape[1] > 1:
                old, x, first = x[:, :-1], x[:, -1:], None if first is None else first[:, -1:]
            if self.config.activation_checkpointing and torch.is_grad_enabled():
                x = checkpoint(layer, x, old, term, first, rotation, use_reentrant=False)
            else:
                x = layer(x, old, term, first, rotation)
        return self.finish(x), inputs

    def finish(self, x: Tensor) -> Tensor:
        """The final norm, where there is one, and the last dropout."""
        out: Tensor = self.drop(self.final_norm(x))
        return out
