"""The target's side of Li-ArcFace: Li et al. 2019 (arXiv:1907.12256). The rivals' side is `rules.LiArcFace`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from hypermargin.fields import number
from hypermargin.margins._base import Margin, register


@register("li-arcface")
@dataclass(frozen=True)
class LiArcFace(Margin):
    """ψ(θ) = 1 − 2(θ + m)/π: linear in the angle, so the slope is the same at every angle."""

    formula = "1 − 2(θ + m)/π"
    zero = 0.0
    m: float = number(0.45, 0.0, math.pi, help="Radians. Angles end at π, so a margin of π can never be met.")

    @property
    def breaks(self) -> frozenset[str]:
        """The laws not kept: ψ without a margin is 1 − 2θ/π, up to 0.2105 above the cosine past π/2."""
        above = math.sqrt(1 - 4 / math.pi**2) - 1 + 2 / math.pi * math.asin(2 / math.pi)  # where sin θ = 2/π
        return frozenset({"plain at zero"} | ({"below cos"} if 2 / math.pi * self.m < above else set()))

    def psi(self, theta: Tensor, m: Tensor | None = None) -> Tensor:
        """Return ψ(θ) = 1 − 2(θ + m)/π."""
        return 1 - 2 / math.pi * (theta + (self.m if m is None else m))
