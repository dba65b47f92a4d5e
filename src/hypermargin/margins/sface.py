"""The target's side of SFace: Zhong et al. 2021 (arXiv:2205.12010). The rivals' side is `rules.SFace`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hypermargin.fields import number
from hypermargin.margins._base import Margin, register


@register("sface")
@dataclass(frozen=True)
class SFace(Margin):
    """ψ(θ) = w·cos θ, w = σ(k·(θ − a)) without gradient: a target nearer than a is left alone."""

    formula = "σ(k(θ − a))·cos θ"
    is_cosine = False
    k: float = number(80.0, 0.0, open_low=True, help="How sharp both bounds are.")
    a: float = number(0.8, 0.0, 3.2, help="The angle down to which targets are drawn, in radians.")

    @property
    def breaks(self) -> frozenset[str]:
        """The laws not kept: the weight has no gradient, and near its class a target counts for less and less."""
        return frozenset({"finite slope", "decreasing"})

    def psi(self, theta: Tensor, m: Tensor | None = None) -> Tensor:
        """Return ψ(θ) = w·cos θ."""
        return (self.k * (theta - self.a)).sigmoid().detach() * theta.cos()
