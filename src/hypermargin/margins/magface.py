"""MagFace: Meng et al. 2021 (arXiv:2103.06627), a margin that grows with the length of the feature."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hypermargin.fields import choice, number
from hypermargin.margins._base import Margin, RowFacts, RowMargin, register
from hypermargin.margins.arcface import BEYOND, ArcFace
from hypermargin.numerics import constant
from hypermargin.terms import MagFaceTerm


@register("magface")
@dataclass(frozen=True)
class MagFace(Margin):
    """ArcFace's ψ with a margin that follows the length of the row's feature:

        m(a) = l_m + (u_m − l_m)·(a − l_a)/(u_a − l_a),     a = clip(|x|, l_a, u_a)

    Every head with this margin adds λ_g·(a/u_a² + 1/a) to the loss of the row, which draws lengths up; without it
    they would shrink, since a shorter feature has a smaller margin. The term outweighs the margin at the shortest
    length from λ_g = s·K·u_a²·l_a²/(u_a² − l_a²) on, K the slope of m(a): 22.6 at its defaults with s = 64.
    Outside [l_a, u_a] a feature gets no gradient by its length. Without a head m is l_m.

    The paper's code is `beyond="easy"`; a and its lengths suit features of dimension 512 after batch normalisation.
    """

    formula = "g(θ + m(|x|))"
    zero = (0.0, 0.0)
    l_m: float = number(0.45, 0.0, 3.14, help="Margin in radians of the shortest features.")
    u_m: float = number(0.8, 0.0, 3.14, help="Margin in radians of the longest features.")
    l_a: float = number(10.0, 0.0, open_low=True, help="Lengths below count as this.")
    u_a: float = number(110.0, 0.0, open_low=True, help="Lengths above count as this.")
    lambda_g: float = number(35.0, 0.0, help="Weight of the term that draws lengths up; 0 leaves it out.")
    beyond: str = choice("smooth", BEYOND, help="What ψ does once θ + m passes π, as in ArcFace.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.l_a < self.u_a:
            raise ValueError(f"MagFace(l_a=…) must be below u_a; got l_a={self.l_a:g}, u_a={self.u_a:g}.")

    @property
    def m(self) -> tuple[float, float]:
        """The margins (l_m, u_m) of the shortest and the longest features."""
        return self.l_m, self.u_m

    @property
    def breaks(self) -> frozenset[str]:
        """The laws not kept: those of ArcFace with the same `beyond`."""
        return ArcFace(self.l_m, self.beyond).breaks

    def psi(self, theta: Tensor, m: Tensor | None = None) -> Tensor:
        """Return ArcFace's ψ(θ); a tensor `m` holds (l_m, u_m) in its last dimension, by row (m(a), u_m)."""
        return ArcFace(self.l_m, self.beyond).psi(theta, None if m is None else m[..., 0])

    def row_margin(self) -> RowMargin:
        """Return what computes m(a) of every row."""
        return _MarginOfLength(self)

    def row_term(self) -> nn.Module | None:
        """Return λ_g·(a/u_a² + 1/a)."""
        return MagFaceTerm(self.lambda_g, self.l_a, self.u_a) if self.lambda_g else None


class _MarginOfLength(RowMargin):
    """Computes m(a) of every row from |x|, with its gradient."""

    def __init__(self, margin: MagFace) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, m: Tensor | None, rows: RowFacts) -> Tensor:
        """Return (m(a), u_m) for every row: (N, 1, 2), or (N, L, 2) where m differs by label."""
        margin = self.margin
        least, most = (constant(margin.m, rows.norm) if m is None else m.to(rows.norm.dtype)).unbind(-1)
        share = (rows.norm.clamp(margin.l_a, margin.u_a) - margin.l_a) / (margin.u_a - margin.l_a)
        found = least + (most - least) * share
        return torch.stack((found, most.expand_as(found)), -1)
