"""SphereFace-R, version 2: Liu et al. 2022 (arXiv:2109.05565), whose margin is on the rivals."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hypermargin.fields import choice, number
from hypermargin.rules._angles import angle, by_sine
from hypermargin.rules._base import Rule, register


@register("sphereface-r")
@dataclass(frozen=True)
class SphereFaceR(Rule):
    """A rival counts as cos(θ/m), the target as its plain cosine (`NoMargin`); m = 1.5, s = 30.

    Versions 0 and 1 are margins on the target: `SphereFace(1.5)` with beyond "smooth" and "flat". The paper's code
    takes the slope of ρ for 1 (derivative="straight"; for the target, gradient="straight" says the same) and
    multiplies the loss by 50/s.
    """

    m: float = number(1.5, 1.0, help="Rivals count as so many times nearer; 1 is no difference.")
    derivative: str = choice("exact", ("exact", "straight"), help="The slope of ρ: its own, or 1 as in the code.")
    formula = "cos(θ/m)"

    @property
    def detached(self) -> bool:  # type: ignore[override]  # it depends on the derivative that was chosen
        """Whether the slope is not the derivative of ρ."""
        return self.derivative == "straight"

    def rho(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return cos(θ/m)."""
        if self.derivative == "straight":
            return cosine + ((angle(cosine) / self.m).cos() - cosine).detach()
        return (angle(cosine) / self.m).cos()

    def slope(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return sin(θ/m)/(m sin θ), and 0 at ±1; or 1."""
        if self.derivative == "straight":
            return torch.ones_like(cosine)
        return by_sine((angle(cosine) / self.m).sin() / self.m, cosine)
