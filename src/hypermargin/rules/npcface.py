"""The rivals' side of NPCFace: Zeng et al. 2020 (arXiv:2007.10172). The target's side is `margins.NPCFace`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hypermargin.fields import number
from hypermargin.margins import ArcFace, MarginAtRows, RowFacts
from hypermargin.rules._base import Rule, register


@register("npcface")
@dataclass(frozen=True)
class NPCFace(Rule):
    """A rival with c > cos(θ_y + reach) is hard, and counts as t·c + a; any other as c.

    With `margins.NPCFace` the margin of a row grows with the mean cosine of its hard rivals. s = 64.
    """

    t: float = number(1.1, 0.0, help="Factor of a hard rival's cosine.")
    a: float = number(0.2, 0.0, help="A cosine that is added to it.")
    reach: float = number(0.5, 0.0, math.pi, help="Radians within which a rival is hard.")
    formula = "t·c + a for c > cos(θ + 0.5), else c"
    row_numbers = 1

    def rho(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return t·c + a above the threshold, else the cosine."""
        assert threshold is not None
        return torch.where(cosine > threshold, self.t * cosine + self.a, cosine)

    def slope(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return t above the threshold, else 1."""
        assert threshold is not None
        return 1 + (self.t - 1) * (cosine > threshold).to(cosine.dtype)

    def of_rows(self, rows: RowFacts, psi: MarginAtRows) -> Tensor:
        """Return cos(θ_y + reach), (N, 1), whatever the margin is."""
        return rows.ahead.margined(ArcFace(self.reach, beyond="none").at(None, 0.0, "exact"))
