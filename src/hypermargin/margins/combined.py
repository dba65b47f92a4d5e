"""The combined margin of Deng et al. 2019 (arXiv:1801.07698, section 2.3): all three margins in one ψ."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from hypermargin.fields import choice, number
from hypermargin.margins._base import Margin, g, register


@register("combined")
@dataclass(frozen=True)
class Combined(Margin):
    """ψ(θ) = g(m1·θ + m2) − m3. (m, 0, 0) is SphereFace, (1, m, 0) ArcFace, (1, 0, m) CosFace.

    `beyond="none"` is the bare cos(m1·θ + m2) − m3. With m1 < 1 it can exceed cos θ: a reward, not a margin.
    A tensor `m` holds (m1, m2, m3) in its last dimension.
    """

    formula = "g(m1·θ + m2) − m3"
    zero = (1.0, 0.0, 0.0)
    m1: float = number(1.0, 0.0, open_low=True, help="Multiplies the angle.")
    m2: float = number(0.3, 0.0, math.pi, help="Added to the angle, in radians.")
    m3: float = number(0.2, 0.0, 2.0, help="Subtracted from the cosine.")
    beyond: str = choice("smooth", ("smooth", "none"), help="What follows once m1·θ + m2 passes π.")

    @property
    def m(self) -> tuple[float, float, float]:
        """The three numbers (m1, m2, m3)."""
        return (self.m1, self.m2, self.m3)

    @property
    def breaks(self) -> frozenset[str]:
        """The laws not kept: the bare cosine rises again past π, and with m1 < 1 ψ may exceed cos θ."""
        broken: set[str] = set()
        if self.beyond == "none" and self.m1 * math.pi + self.m2 > math.pi:
            broken |= {"decreasing", "below cos"}
        if self.m1 < 1:
            broken |= {"below cos"}
        return frozenset(broken)

    def of_g(self) -> tuple[float, float, float] | None:
        """Return the three numbers, unless ψ is the bare cosine."""
        return self.m if self.beyond == "smooth" else None

    def psi(self, theta: Tensor, m: Tensor | None = None) -> Tensor:
        """Return ψ(θ) = g(m1·θ + m2) − m3."""
        m1, m2, m3 = self.m if m is None else m.unbind(-1)
        u = m1 * theta + m2
        return (g(u) if self.beyond == "smooth" else u.cos()) - m3
