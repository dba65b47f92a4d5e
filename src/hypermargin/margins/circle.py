"""The target's side of the circle loss: Sun et al. 2020 (arXiv:2002.10857). The rivals' side is `rules.Circle`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hypermargin.fields import number
from hypermargin.margins._base import Margin, register


@register("circle")
@dataclass(frozen=True)
class Circle(Margin):
    """ψ(θ) = [1 + m − cos θ]·(cos θ − (1 − m)): the bracket, how far there is to go, has no gradient."""

    formula = "[1 + m − cos θ]·(cos θ − 1 + m)"
    zero = 0.0
    is_cosine = False
    m: float = number(0.25, 0.0, 1.0, help="Relaxation: targets go for 1 + m, rivals for −m.")

    @property
    def breaks(self) -> frozenset[str]:
        """The laws not kept: the weight has no gradient, and ψ with m = 0 is −(1 − cos θ)²."""
        return frozenset({"finite slope", "plain at zero"})

    def psi(self, theta: Tensor, m: Tensor | None = None) -> Tensor:
        """Return ψ(θ) = [1 + m − cos θ]·(cos θ − 1 + m)."""
        c, relaxed = theta.cos(), self.m if m is None else m
        return (1 + relaxed - c).clamp(min=0).detach() * (c - 1 + relaxed)
