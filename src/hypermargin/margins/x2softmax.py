"""X2-Softmax: Xu et al. 2023 (arXiv:2312.05281), a parabola of the angle in place of its cosine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from hypermargin.fields import number
from hypermargin.margins._base import Margin, register


@register("x2-softmax")
@dataclass(frozen=True)
class X2Softmax(Margin):
    """ψ(θ) = a·(θ − h)² + k, a parabola that opens downwards: the margin grows with the angle.

    At the paper's numbers ψ(0) = 0.65, so no sample is ever satisfied. The paper's code has `gradient="straight"`.
    """

    formula = "a(θ − h)² + k"
    a: float = number(-0.9, -math.inf, 0.0, help="Curvature; below 0.")
    h: float = number(0.0, -math.pi, math.pi, help="Angle of the vertex; ψ decreases from there on.")
    k: float = number(0.65, -math.inf, 1.0000001, help="Largest value of ψ.")

    @property
    def breaks(self) -> frozenset[str]:
        """The laws not kept: a vertex inside [0, π], or a parabola that is too flat to stay below the cosine."""
        broken = {"decreasing"} if self.h > 0 else set()
        # cos θ ≥ 1 − θ²/2, so a parabola at least as steep and no higher stays below.
        return frozenset(broken | (set() if self.h == 0 and self.a <= -0.5 else {"below cos"}))

    def psi(self, theta: Tensor, m: Tensor | None = None) -> Tensor:
        """Return ψ(θ) = a·(θ − h)² + k."""
        return self.a * (theta - self.h).square() + self.k
