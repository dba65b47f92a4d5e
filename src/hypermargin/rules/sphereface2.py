"""SphereFace2: Wen et al. 2022 (arXiv:2108.01513), one binary classification per class instead of one softmax."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hypermargin.fields import choice, number
from hypermargin.numerics import softplus
from hypermargin.rules._aggregates import SUM_OF_SOFTPLUS
from hypermargin.rules._angles import nearer, slope_nearer
from hypermargin.rules._base import Rule, register


@register("sphereface2")
@dataclass(frozen=True)
class SphereFace2(Rule):
    """With g(c) = 2·((c + 1)/2)^t − 1, the margin `margins.SphereFace2(m, t)` on the target and one bias b for all:

        T = s·(g(cos θ_y) − m) + b,   ρ_j = s·(g(cos θ_j) + m) + b
        L = (weight/s)·(positive·softplus(−T) + (1 − positive)·Σ_{j≠y} softplus(ρ_j))

    `positive` is the share of the target's own question. s in the factor of the loss has no gradient: a learned
    s would make the loss smaller by growing. The head learns b (bias="shared"), which begins where its gradient
    is 0 if all cosines are 0. OpenSphere's defaults; WeSpeaker has weight = s and begins with b = 0. OpenSphere
    takes the slope of ρ for 1 too (derivative="straight"; for the target, gradient="straight" says the same).

    That is variant "C". In "A" the margin is on the angles: T = s·g(cos(θ_y + m)) + b, ρ_j = s·g(cos(θ_j − m)) + b.
    """

    m: float = number(0.4, 0.0, help="A cosine, taken off the target and added to the rivals.")
    t: float = number(3.0, 1.0, help="Exponent of g; 1 is the plain cosine.")
    positive: float = number(0.7, 0.0, 1.0, open_low=True, help="Share of the target's own question in the loss.")
    weight: float = number(50.0, 0.0, open_low=True, help="Factor of the loss, divided by s.")
    variant: str = choice("C", ("C", "A"), help="Whether m is added to the cosine or taken off the angle.")
    derivative: str = choice("exact", ("exact", "straight"), help="The slope of ρ: its own, or 1 as in OpenSphere.")
    formula = "2((c+1)/2)^t − 1 + m"
    aggregate = SUM_OF_SOFTPLUS

    @property
    def detached(self) -> bool:  # type: ignore[override]  # it depends on the derivative that was chosen
        """Whether the slope is not the derivative of ρ."""
        return self.derivative == "straight"

    def rho(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return g(c) + m for every cosine c, or g(cos(θ − m))."""
        rho = self._g(nearer(cosine, self.m)) if self.variant == "A" else self._g(cosine) + self.m
        return cosine + (rho - cosine).detach() if self.derivative == "straight" else rho

    def slope(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return g′(c) = t·((c + 1)/2)^(t−1), or g′(cos(θ − m))·sin(θ − m)/sin θ; or 1."""
        if self.derivative == "straight":
            return torch.ones_like(cosine)
        at = nearer(cosine, self.m) if self.variant == "A" else cosine
        slope = self.t * ((at + 1) / 2).clamp(min=0) ** (self.t - 1)
        return slope * slope_nearer(cosine, self.m) if self.variant == "A" else slope

    def _g(self, cosine: Tensor) -> Tensor:
        return 2 * ((cosine + 1) / 2).clamp(min=0) ** self.t - 1

    def link(self, R: Tensor, T: Tensor, scale: Tensor | float) -> Tensor:
        """Return (weight/s)·(positive·softplus(−T) + (1 − positive)·R)."""
        return self.weight / scale * (self.positive * softplus(-T) + (1 - self.positive) * R)

    def first_bias(self, classes: int, scale: float) -> float:
        """Return the b at which dL/db = 0 if all cosines are 0.

        With a_y = T − b and a_j = ρ_j − b at these cosines, and ζ = positive/((1 − positive)(C − 1)), it is

            b = ln 2ζ − a_j − ln(1 − ζ + √((1 − ζ)² + 4ζ·exp(a_y − a_j)))
        """
        if classes == 1:
            return 0.0
        if self.variant == "A":
            own = scale * (2 * math.pow((1 - math.sin(self.m)) / 2, self.t) - 1)
            rival = scale * (2 * math.pow((1 + math.sin(self.m)) / 2, self.t) - 1)
        else:
            zero = 2 * math.pow(0.5, self.t) - 1
            own, rival = scale * (zero - self.m), scale * (zero + self.m)
        share = self.positive / ((1 - self.positive) * (classes - 1))
        root = math.hypot(1 - share, 2 * math.sqrt(share) * math.exp((own - rival) / 2))
        # (1 − share) + root loses digits for share > 1; its conjugate does not.
        if share > 1:
            log_sum = math.log(4 * share) + own - rival - math.log(root - (1 - share))
        else:
            log_sum = math.log(1 - share + root)
        return math.log(2 * share) - rival - log_sum
