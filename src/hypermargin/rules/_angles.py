"""The angle of a rival from its cosine, with slopes that stay finite.

Near ±1 a cosine has lost its angle: where sin² θ is at most 4 eps, sin θ is 0, θ is 0 or π, and both have slope 0,
as the target's angle has where its tangent is rounding noise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sine(cosine: Tensor) -> Tensor:
    """Return sin θ."""
    squared, inside = _squared_sine(cosine)
    return torch.where(inside, squared.masked_fill(~inside, 1.0).sqrt(), 0.0)


def angle(cosine: Tensor) -> Tensor:
    """Return θ in [0, π]."""
    _, inside = _squared_sine(cosine)
    ends = torch.where(cosine > 0, 0.0, math.pi).to(cosine.dtype)
    return torch.where(inside, cosine.masked_fill(~inside, 0.0).acos(), ends)


def by_sine(x: Tensor, cosine: Tensor) -> Tensor:
    """Return x/sin θ, 0 where sin θ is: dθ/dcos is −1/sin θ."""
    squared, inside = _squared_sine(cosine)
    return torch.where(inside, x / squared.masked_fill(~inside, 1.0).sqrt(), 0.0)


def _squared_sine(cosine: Tensor) -> tuple[Tensor, Tensor]:
    squared = (1 - cosine) * (1 + cosine)
    return squared, squared > 4 * torch.finfo(cosine.dtype).eps


def nearer(cosine: Tensor, m: float) -> Tensor:
    """Return cos(θ − m)."""
    return math.cos(m) * cosine + math.sin(m) * sine(cosine)


def slope_nearer(cosine: Tensor, m: float) -> Tensor:
    """Return the derivative of `nearer` by the cosine, sin(θ − m)/sin θ."""
    return math.cos(m) - math.sin(m) * by_sine(cosine, cosine)
