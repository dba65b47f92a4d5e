"""The rivals' side of the circle loss: Sun et al. 2020 (arXiv:2002.10857). The target's is `margins.Circle`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hypermargin.fields import number
from hypermargin.rules._base import Rule, register


@register("circle")
@dataclass(frozen=True)
class Circle(Rule):
    """In the form with class weights, γ the scale (256 for faces, 128 for re-identification):

        T = γ·[1 + m − c_y]·(c_y − (1 − m)),     ρ_j = γ·max(c_j + m, 0)·(c_j − m)

    The weights in front have no gradient, in the paper's code too: a rival with c ≤ −m counts as 0 and is left
    alone.
    """

    m: float = number(0.25, 0.0, 1.0, help="Relaxation: targets go for 1 + m, rivals for −m.")
    formula = "[c + m]·(c − m)"
    detached = True

    def rho(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return max(c + m, 0)·(c − m)."""
        return self.slope(cosine, threshold) * (cosine - self.m)

    def slope(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return max(c + m, 0)."""
        return (cosine + self.m).clamp(min=0).detach()
