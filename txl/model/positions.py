"""Positions as the schemes see them: integer distances -> vectors, rotations or biases.

Distances run over one axis of S columns in the order of the keys: column c holds the distance S - 1 - c, so the
newest query finds its distances in place and every other query finds them by a shift (`kernels`). Knows nothing of
text or memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ABSOLUTE = ("learned", "sinusoidal")
"""Schemes that add a vector to the embedding: a window that moves must be computed anew."""


def distances(n_keys: int, *, limit: int | None, device: torch.device) -> Tensor:
    """int64 S: the distance of each column, S - 1 down to 0, none above `limit` (Dai et al.'s clamp_len)."""
    column = torch.arange(n_keys - 1, -1, -1, device=device)
    return column if limit is None else column.clamp(max=limit)


def angles(position: Tensor, width: int) -> Tensor:
    """Position over wavelength, …×(width/2) float64: p / 10000^(2i/width) (Vaswani et al. 2017, section 3.5).

    float64 on the CPU because 3,000 positions must stay 3,000 different angles, in bf16 models too.
    """
    wavelength = 10000.0 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    return position.cpu().to(torch.float64)[..., None] / wavelength


def sinusoid(position: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Integer positions … -> …×width: all sines, then all cosines, as the paper's code lays them out."""
    angle = angles(position, width)
    return torch.cat([angle.sin(), angle.cos()], dim=-1).to(device=position.device, dtype=dtype)


@dataclass(frozen=True)
class Rotation:
    """Rotary embedding (Su et al. 2021): angles that turn the feature pairs of queries and keys.

    Only differences of positions survive in the product of a rotated query and a rotated key. cos, sin: S×1×(E/2), or
    B×S×1×(E/2) where rows stand at different positions; at least float32.
    """

    cos: Tensor
    sin: Tensor

    @staticmethod
    def at(position: Tensor, width: int, dtype: torch.dtype) -> Rotation:
        """The rotation of vectors of E = `width` features at int64 positions S or B×S."""
        angle = angles(position, width).unsqueeze(-2)
        dtype = torch.promote_types(dtype, torch.float32)
        return Rotation(*(f.to(device=position.device, dtype=dtype) for f in (angle.cos(), angle.sin())))

    def newest(self, n: int) -> Rotation:
        """That of the last n positions."""
        return Rotation(*(f[..., f.shape[-3] - n :, :, :] for f in (self.cos, self.sin)))

    def turn(self, x: Tensor) -> Tensor:
        """Vectors B×S×H×E, each turned by the angles of its position."""
        even, odd = x.to(self.cos.dtype).chunk(2, dim=-1)
        turned = torch.cat([even * self.cos - odd * self.sin, odd * self.cos + even * self.sin], dim=-1)
        return turned.to(x.dtype)


def alibi_slopes(n_head: int) -> Tensor:
    """Slope of each head, float64 H: the geometric sequence that starts at 2^(-8/H) with that ratio (Press et al.
    2022)."""
    return 2.0 ** (-8.0 * torch.arange(1, n_head + 1, dtype=torch.float64) / n_head)
