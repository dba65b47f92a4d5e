"""ExpFace (2025): a power of the angle, which gives easy samples the larger margin."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from hypermargin.fields import number
from hypermargin.margins._base import Margin, register

LEAST = 1e-12  # of θ/π, where the slope of a power below 1 is still finite


@register("expface")
@dataclass(frozen=True)
class ExpFace(Margin):
    """ψ(θ) = cos(π·(θ/π)^m), m < 1: the margin is largest at small angles and vanishes at θ = 0 and π.

    m = 1 is no margin; above it ψ exceeds the cosine, a reward. The paper's code has `gradient="straight"`.
    """

    formula = "cos(π(θ/π)^m)"
    zero = 1.0
    m: float = number(0.7, 0.5, 2.0, help="Exponent; below 0.5 the slope at θ = 0 would be infinite.")

    @property
    def breaks(self) -> frozenset[str]:
        """The laws not kept: with m > 1, ψ is above the cosine."""
        return frozenset({"below cos"} if self.m > 1 else ())

    def psi(self, theta: Tensor, m: Tensor | None = None) -> Tensor:
        """Return ψ(θ) = cos(π·(θ/π)^m)."""
        return (math.pi * (theta / math.pi).clamp(min=LEAST) ** (self.m if m is None else m)).cos()
