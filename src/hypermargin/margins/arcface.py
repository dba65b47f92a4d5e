"""ArcFace: Deng et al. 2019 (arXiv:1801.07698), in the six forms that public code gives it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hypermargin.fields import choice, number
from hypermargin.margins._base import Margin, g, register
from hypermargin.numerics import constant

BEYOND = ("smooth", "linear", "continuous", "flat", "none", "easy")


@register("arcface")
@dataclass(frozen=True)
class ArcFace(Margin):
    """ψ(θ) = cos(θ + m) while θ + m ≤ π. `beyond` names what ψ is for larger angles:

    - smooth      g(θ + m) = −cos(θ + m) − 2: C¹ and decreasing; ours, the default
    - linear      cos θ − m sin m: drops by cos m + m sin m − 1 at π − m
    - continuous  cos θ − (1 − cos m): no drop, a kink
    - flat        −1: gradient 0, so the hardest samples teach nothing
    - none        cos(θ + m) as printed: turns back up, the hardest samples are pushed away
    - easy        cos θ already for θ ≥ π/2: jumps up by sin m there
    """

    formula = "g(θ + m)"
    zero = 0.0
    m: float = number(0.5, 0.0, math.pi, help="Radians. Angles end at π, so a margin of π can never be met.")
    beyond: str = choice("smooth", BEYOND, help="What ψ does once θ + m passes π.")

    @property
    def breaks(self) -> frozenset[str]:
        """The laws that the chosen variant does not keep."""
        broken = {
            "linear": {"continuous"},
            "none": {"decreasing", "below cos"},
            "easy": {"continuous", "decreasing"},
        }
        return frozenset(broken.get(self.beyond, ())) if self.m else frozenset()

    def of_g(self) -> tuple[float, float, float] | None:
        """Return (1, m, 0), unless ψ is continued otherwise."""
        return (1.0, self.m, 0.0) if self.beyond == "smooth" else None

    def psi(self, theta: Tensor, m: Tensor | None = None) -> Tensor:
        """Return ψ(θ) = cos(θ + m), continued as `beyond` says."""
        if self.beyond == "smooth":
            return g(theta + (self.m if m is None else m))
        m = constant(self.m, theta) if m is None else m
        u = theta + m
        if self.beyond == "none":
            return u.cos()
        if self.beyond == "easy":
            return torch.where(theta < math.pi / 2, u.cos(), theta.cos())
        if self.beyond == "linear":
            after = theta.cos() - m * m.sin()
        elif self.beyond == "continuous":
            after = theta.cos() - (1 - m.cos())
        else:
            after = torch.full_like(u, -1.0)
        return torch.where(u <= math.pi, u.cos(), after)
