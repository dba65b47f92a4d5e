"""The target's side of P2SGrad: Zhang et al. 2019 (arXiv:1905.02479). The rivals' side is `rules.P2SGrad`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hypermargin.margins._base import Margin, register


@register("p2sgrad")
@dataclass(frozen=True)
class P2SGrad(Margin):
    """ψ(θ) = −(1 − cos θ)²/2: the squared distance of the cosine from 1."""

    formula = "−(1 − cos θ)²/2"
    is_cosine = False

    def psi(self, theta: Tensor, m: Tensor | None = None) -> Tensor:
        """Return ψ(θ) = −(1 − cos θ)²/2."""
        return -(1 - theta.cos()).square() / 2
