"""The general L-Softmax: cos mθ on the first piece, a function of your own beyond it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hypermargin.fields import number
from hypermargin.margins._base import Margin, register


@register("piecewise")
@dataclass(frozen=True)
class Piecewise(Margin):
    """ψ(θ) = cos mθ on [0, π/m], D(θ) beyond.

    D must be decreasing with D(π/m) = −1, which is the value of cos mθ at θ = π/m;
    `hypermargin.testing.check_margin` requires both. The default D is the straight line 1 − 2mθ/π, which
    equals g(mθ) at every knot. A lambda as D works but cannot be pickled; a module-level function can.
    """

    formula = "cos mθ up to π/m, then D(θ)"
    zero = 1.0
    m: float = number(2.0, 1.0, help="The first piece ends at π/m; m = 1 has no second piece.")
    D: Callable[[Tensor], Tensor] | None = None

    def psi(self, theta: Tensor, m: Tensor | None = None) -> Tensor:
        """Return ψ(θ) = cos mθ for θ ≤ π/m, else D(θ)."""
        if m is not None and self.D is not None:
            raise ValueError("Piecewise(D=…): D was made for one m, so m cannot vary; got a tensor m. Leave D out.")
        scale = self.m if m is None else m
        after = 1 - 2 * scale * theta / math.pi if self.D is None else self.D(theta)
        u = scale * theta
        return torch.where(u <= math.pi, u.cos(), after)
