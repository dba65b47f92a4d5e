"""ElasticFace: Boutros et al. 2022 (arXiv:2109.09416), a margin drawn anew for every row."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hypermargin.fields import choice, number
from hypermargin.margins._base import RowFacts, RowMargin, register
from hypermargin.margins.arcface import ArcFace
from hypermargin.margins.cosface import CosFace
from hypermargin.numerics import constant, hashed, snapshot

PAIRINGS = ("none", "paper", "published")


@register("elasticface-arc")
@dataclass(frozen=True)
class ElasticArcFace(ArcFace):
    """ArcFace's ψ with a margin drawn for every row in training, m_i ~ N(m, σ²). In evaluation it is m.

    `pairing` says which row gets which of a batch's margins:

    - none       as they are drawn
    - paper      the largest margin goes to the smallest cosine: ElasticFace-Arc+, with σ = 0.0175
    - published  what the paper's code does instead: it takes a permutation where its inverse is needed, so margin
      and cosine are not related

    The draws are a hash of a seed, the step and the row, so they are the same on all ranks and after a resume. The
    paper's code is `beyond="none"`.
    """

    m: float = number(0.5, 0.0, math.pi, help="Mean of the margins, in radians.")
    sigma: float = number(0.05, 0.0, help="Deviation of the margins; 0 is ArcFace.")
    pairing: str = choice("none", PAIRINGS, help="Which row gets which margin.")

    def row_margin(self) -> RowMargin:
        """Return what draws the margins."""
        return DrawnMargins(self)


@register("elasticface-cos")
@dataclass(frozen=True)
class ElasticCosFace(CosFace):
    """CosFace's ψ with a margin drawn for every row in training, m_i ~ N(m, σ²): see `ElasticArcFace`.

    ElasticFace-Cos+ has pairing="paper" and σ = 0.02.
    """

    m: float = number(0.35, 0.0, 2.0, help="Mean of the margins, a cosine.")
    sigma: float = number(0.05, 0.0, help="Deviation of the margins; 0 is CosFace.")
    pairing: str = choice("none", PAIRINGS, help="Which row gets which margin.")

    def row_margin(self) -> RowMargin:
        """Return what draws the margins."""
        return DrawnMargins(self)


class DrawnMargins(RowMargin):
    """Draws m_i = m + σ·n_i for every row. Its state is the number of steps, which the draws depend on."""

    step: Tensor

    def __init__(self, margin: ElasticArcFace | ElasticCosFace, seed: int = 0) -> None:
        super().__init__()
        self.margin, self.seed = margin, seed
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def reset_parameters(self) -> None:
        """Count from the beginning."""
        self.step.zero_()

    def forward(self, m: Tensor | None, rows: RowFacts) -> Tensor | None:
        """Return m_i, (N, 1), or (N, L) where m differs by label; in evaluation the m that was given."""
        if not self.training or not self.margin.sigma:
            return m
        noise = self.margin.sigma * normal(snapshot(self.step), self.seed, rows.norm)
        if self.margin.pairing != "none":
            smallest_last = torch.argsort(rows.ahead.cosine(), descending=True, stable=True)
            place = smallest_last.argsort() if self.margin.pairing == "paper" else smallest_last
            noise = noise.sort(0).values[place]
        return noise + (constant(self.margin.m, noise) if m is None else m.to(noise.dtype))

    def advance(self) -> None:
        """Count a step."""
        self.step += 1


def normal(step: Tensor, seed: int, like: Tensor) -> Tensor:
    """Return (N, 1) normal numbers, a hash of seed, step and row, for a tensor of N rows."""
    row = torch.arange(len(like), device=like.device)
    bits = hashed(2 * row + hashed(step.to(like.device) + hashed(torch.full_like(row[:1], seed))))
    inside = (bits.to(torch.float64) + 0.5) / 2**32  # never 0 or 1
    return (math.sqrt(2.0) * torch.erfinv(2 * inside - 1)).to(like.dtype).unsqueeze(1)
