"""The rivals' side of SFace: Zhong et al. 2021 (arXiv:2205.12010). The target's side is `margins.SFace`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hypermargin.fields import number
from hypermargin.rules._aggregates import SUM
from hypermargin.rules._angles import angle
from hypermargin.rules._base import Rule, register


@register("sface")
@dataclass(frozen=True)
class SFace(Rule):
    """Targets are drawn down to the angle a, and rivals pushed away up to the angle b:

        L = −s·w(θ_y)·cos θ_y + s·Σ_{j≠y} v(θ_j)·cos θ_j,     w = σ(k·(θ − a)),     v = σ(k·(b − θ))

    w and v are the lengths of the steps and have no gradient. s = 64. The value of L says little, since it falls as
    the weights do.
    """

    k: float = number(80.0, 0.0, open_low=True, help="How sharp both bounds are.")
    b: float = number(1.23, 0.0, 3.2, help="The angle up to which rivals are pushed away, in radians.")
    formula = "σ(k(b − θ))·c"
    aggregate = SUM
    detached = True

    def rho(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return v·c."""
        return self.slope(cosine, threshold) * cosine

    def slope(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return v."""
        return (self.k * (self.b - angle(cosine))).sigmoid().detach()

    def link(self, R: Tensor, T: Tensor, scale: Tensor | float) -> Tensor:
        """Return R − T."""
        return R - T
