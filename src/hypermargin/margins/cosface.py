"""CosFace / AM-Softmax: Wang et al. 2018 (arXiv:1801.09414), Wang et al. 2018 (arXiv:1801.05599)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hypermargin.fields import number
from hypermargin.margins._base import Margin, register


@register("cosface")
@dataclass(frozen=True)
class CosFace(Margin):
    """ψ(θ) = cos θ − m. The margin is a cosine: it lowers the target's logit by s·m and keeps its slope."""

    formula = "cos θ − m"
    zero = 0.0
    m: float = number(0.35, 0.0, 2.0, help="Cosines span [−1, 1], so a margin of 2 can never be met.")

    def of_g(self) -> tuple[float, float, float] | None:
        """Return (1, 0, m)."""
        return 1.0, 0.0, self.m

    def psi(self, theta: Tensor, m: Tensor | None = None) -> Tensor:
        """Return ψ(θ) = cos θ − m."""
        return theta.cos() - (self.m if m is None else m)

    def psi_of_cosine(self, cosine: Tensor, m: Tensor | None = None) -> Tensor:
        """Return the cosine minus m, which needs no angle."""
        return cosine - (self.m if m is None else m)
