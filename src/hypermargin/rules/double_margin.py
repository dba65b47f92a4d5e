"""Double margins: asv-subtools (Tong et al. 2021), a margin on the rivals beside the target's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hypermargin.fields import choice, number
from hypermargin.rules._angles import nearer, slope_nearer
from hypermargin.rules._base import Rule, register


@register("double-margin")
@dataclass(frozen=True)
class DoubleMargin(Rule):
    """Every rival counts as cos(θ − m) (kind "angle", beside ArcFace) or c + m (kind "cosine", beside CosFace).

    The second is CosFace with twice the margin, to the last digit; the first is a loss of its own.
    """

    m: float = number(0.2, 0.0, 1.5, help="Radians by which a rival counts as nearer, or a cosine.")
    kind: str = choice("angle", ("angle", "cosine"), help="What m is added to.")
    formula = "cos(θ − m)"

    def rho(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return cos(θ − m) or c + m."""
        return cosine + self.m if self.kind == "cosine" else nearer(cosine, self.m)

    def slope(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return sin(θ − m)/sin θ, or 1."""
        return torch.ones_like(cosine) if self.kind == "cosine" else slope_nearer(cosine, self.m)
