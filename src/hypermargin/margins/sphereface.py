"""L-Softmax (Liu et al. 2016, arXiv:1612.02295) and A-Softmax / SphereFace (Liu et al. 2017, arXiv:1704.08063)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hypermargin.fields import choice, number
from hypermargin.margins._base import Margin, g, register


@register("sphereface")
@dataclass(frozen=True)
class SphereFace(Margin):
    """ψ(θ) = (λ cos θ + g(mθ)) / (1 + λ), with g(mθ) = (−1)^k cos mθ − 2k on [kπ/m, (k+1)π/m].

    m is any real number ≥ 1; at the knots mθ = kπ the two branches meet in value and slope. `beyond="none"`
    is the bare cos mθ, which turns back up at π/m; "flat" stays at −1 from there on. λ here is a constant;
    `schedule.LambdaAnnealing` moves it. SphereFace-R (Liu et al. 2022, arXiv:2109.05565), m = 1.5, is "smooth" in
    its version 0 and "flat" in its version 1.
    """

    formula = "g(mθ)"
    zero = 1.0
    m: float = number(4.0, 1.0, help="m = 1 is no margin; m < 1 would be a reward for large angles.")
    lam: float = number(0.0, 0.0, help="The share of plain cos θ: ψ = (λ cos θ + g(mθ)) / (1 + λ).")
    beyond: str = choice("smooth", ("smooth", "flat", "none"), help="What follows once mθ passes π.")

    @property
    def breaks(self) -> frozenset[str]:
        """The laws not kept: with `beyond="none"` the bare cosine rises again past π/m."""
        bare = self.beyond == "none" and self.m > 1
        return frozenset({"decreasing", "below cos"}) if bare else frozenset()

    def of_g(self) -> tuple[float, float, float] | None:
        """Return (m, 0, 0), unless λ blends in the cosine or ψ is the bare one."""
        return (self.m, 0.0, 0.0) if self.beyond == "smooth" and not self.lam else None

    def psi(self, theta: Tensor, m: Tensor | None = None) -> Tensor:
        """Return ψ(θ) = (λ cos θ + g(mθ)) / (1 + λ)."""
        u = theta * (self.m if m is None else m)
        carried = g(u) if self.beyond == "smooth" else (u.clamp(max=math.pi) if self.beyond == "flat" else u).cos()
        return (self.lam * theta.cos() + carried) / (1 + self.lam) if self.lam else carried

    def psi_of_cosine(self, cosine: Tensor, m: Tensor | None = None) -> Tensor:
        """Return ψ from cosines, for integer m by the Chebyshev polynomial T_m(cos θ) = cos mθ.

        It needs no acos, so that the slope at cos = ±1 is m² and not infinite.
        """
        if m is not None or self.m != int(self.m):
            return super().psi_of_cosine(cosine, m)
        before, carried = torch.ones_like(cosine), cosine  # T_0, T_1; T_{n+1} = 2c·T_n − T_{n−1}
        for _ in range(int(self.m) - 1):
            before, carried = carried, 2 * cosine * carried - before
        if self.beyond == "smooth":
            knots = [math.cos(i * math.pi / self.m) for i in range(1, int(self.m))]
            k = sum(((cosine <= knot).to(cosine.dtype) for knot in knots), torch.zeros_like(cosine))
            carried = (1 - 2 * (k % 2)) * carried - 2 * k
        elif self.beyond == "flat":
            carried = carried.masked_fill(cosine <= math.cos(math.pi / self.m), -1.0)
        return (self.lam * cosine + carried) / (1 + self.lam)
