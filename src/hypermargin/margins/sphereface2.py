"""The target's side of SphereFace2: Wen et al. 2022 (arXiv:2108.01513). The rivals' side is `rules.SphereFace2`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hypermargin.fields import choice, number
from hypermargin.margins._base import Margin, register
from hypermargin.numerics import constant


@register("sphereface2")
@dataclass(frozen=True)
class SphereFace2(Margin):
    """ψ(θ) = g(cos θ) − m with g(c) = 2·((c + 1)/2)^t − 1, which spreads the large cosines and crowds the small.

    That is variant "C". In "A" the margin is on the angle: ψ(θ) = g(cos(θ + m)), and g(cos θ − (1 − cos m)) past π,
    where a power of a negative number is that of its size, with its sign. WeSpeaker has m = 0.15 there, s = 32.
    """

    formula = "2((1+cos θ)/2)^t − 1 − m"
    zero = 0.0
    m: float = number(0.4, 0.0, 2.0, help="A cosine; cosines are 2 apart at most.")
    t: float = number(3.0, 1.0, help="Exponent of g; 1 is the plain cosine.")
    variant: str = choice("C", ("C", "A"), help="Whether m is taken off the cosine or added to the angle.")

    @property
    def breaks(self) -> frozenset[str]:
        """The laws not kept: for t ≠ 1, ψ with m = 0 is g and not the cosine."""
        return frozenset() if self.t == 1 else frozenset({"plain at zero"})

    def psi(self, theta: Tensor, m: Tensor | None = None) -> Tensor:
        """Return ψ(θ), in both variants."""
        if self.variant == "C":
            # (cos θ + 1)/2 = cos²(θ/2), which keeps its digits near π.
            return 2 * (theta / 2).cos().square() ** self.t - 1 - (self.m if m is None else m)
        m = constant(self.m, theta) if m is None else m
        within = theta + m <= math.pi
        near = ((theta + m).masked_fill(~within, 0.0) / 2).cos().square()
        past = (theta.cos() + m.cos()) / 2
        power = torch.where(within, near**self.t, past.sign() * past.abs() ** self.t)
        return 2 * power - 1
