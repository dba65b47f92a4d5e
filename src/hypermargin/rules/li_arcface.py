"""The rivals' side of Li-ArcFace: Li et al. 2019 (arXiv:1907.12256). The target's side is `margins.LiArcFace`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from hypermargin.rules._angles import angle, by_sine
from hypermargin.rules._base import Rule, register


@register("li-arcface")
@dataclass(frozen=True)
class LiArcFace(Rule):
    """A rival counts as 1 − 2θ/π, linear in its angle. With `margins.LiArcFace`, m = 0.45, s = 64."""

    formula = "1 − 2θ/π"

    def rho(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return 1 − 2θ/π."""
        return 1 - 2 / math.pi * angle(cosine)

    def slope(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return 2/(π sin θ), and 0 at ±1, where it is infinite."""
        return by_sine(cosine.new_full((), 2 / math.pi), cosine)
