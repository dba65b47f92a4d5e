"""Inter-top-k: Zhao et al. 2021 (arXiv:2110.05042), a margin against the nearest rivals alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hypermargin.fields import number
from hypermargin.margins import MarginAtRows, RowFacts
from hypermargin.rules._angles import nearer, slope_nearer
from hypermargin.rules._base import Rule, register


@register("inter-topk")
@dataclass(frozen=True)
class InterTopK(Rule):
    """The k nearest rival classes of each row count as cos(θ − m_prime), any other as its cosine.

    They are found by a pass of its own over the classes, in blocks. With several centers a class is as near as its
    nearest center, and its centers that are near enough all count for more. Classes just as near as the k-th count
    too; with reduced operands the last of the k is uncertain by their rounding. Speaker recipes take k = 5 and
    m_prime = 0.06 beside ArcFace's m = 0.2, s = 32 and three centers.
    """

    k: float = number(5, 1, help="How many of the nearest classes; a whole number.")
    m_prime: float = number(0.06, 0.0, 1.5, help="Radians by which they count as nearer.")
    formula = "cos(θ − m′) for the k nearest, else c"
    row_numbers = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k != int(self.k):
            raise ValueError(f"InterTopK(k=…) must be a whole number; got {self.k:g}.")

    def rho(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return cos(θ − m_prime) above the threshold, else the cosine."""
        assert threshold is not None
        return torch.where(cosine > threshold, nearer(cosine, self.m_prime), cosine)

    def slope(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return sin(θ − m_prime)/sin θ above the threshold, else 1."""
        assert threshold is not None
        return torch.where(cosine > threshold, slope_nearer(cosine, self.m_prime), torch.ones_like(cosine))

    def of_rows(self, rows: RowFacts, psi: MarginAtRows) -> Tensor:
        """Return a number between the k-th largest cosine of a rival and the next, (N, 1); −2 if all count.

        It is halfway, since the backend's cosines are rounded differently; but just below the k-th, so that ties
        count.
        """
        last, next_one = rows.ahead.largest_rivals(int(self.k) + 1)[:, -2:].chunk(2, 1)
        below = last - 8 * torch.finfo(last.dtype).eps
        return torch.minimum((last + next_one) / 2, below).clamp(min=-2.0)
