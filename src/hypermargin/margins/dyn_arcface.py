"""Dyn-ArcFace: Jiao et al. 2021, ArcFace with a margin that follows how far away the nearest class is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from hypermargin.fields import number
from hypermargin.margins._base import RowFacts, RowMargin, register
from hypermargin.margins.arcface import ArcFace
from hypermargin.numerics import constant


@register("dyn-arcface")
@dataclass(frozen=True)
class DynArcFace(ArcFace):
    """ArcFace's ψ with a margin that a head computes for every row, without gradient:

        m_i = m + k2·max(φ − k1, 0) + 0.03·m/(1 + (20·|φ − k1|)^1.1)

    φ is the angle between W_y and the class nearest to it: what has room gets more. It takes a pass of its own over
    the classes (those of the sample, with PartialFC), in blocks. m is the paper's k3; with another m, as in a
    warm-up, all of it is as many times larger or smaller. Without a head m_i is m.

    The formula is that of X2-Softmax's repository, which leaves k1, k2 and k3 to be given; these are a guess. Its
    gradient is "straight", its ψ `beyond="none"`. With several centers per class φ is that of the nearest pair.
    """

    m: float = number(0.5, 0.0, math.pi, help="The margin in radians of a class with a near neighbour (k3).")
    k1: float = number(1.2, 0.0, math.pi, help="The angle to the nearest class from which on the margin grows.")
    k2: float = number(0.5, 0.0, 5.0, help="How fast it grows, per radian.")

    def row_margin(self) -> RowMargin:
        """Return what looks for the nearest class."""
        return NearestClass(self)


class NearestClass(RowMargin):
    """Computes the margin of every row from the angle between its class and the nearest other; it has no state."""

    def __init__(self, margin: DynArcFace) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, m: Tensor | None, rows: RowFacts) -> Tensor:
        """Return m_i, (N, L)."""
        own = self.margin
        away = rows.ahead.nearest_class().clamp(-1.0, 1.0).acos() - own.k1
        m = constant(own.m, away) if m is None else m.to(away.dtype)
        grown = own.k2 * away.clamp(min=0) * (m / own.m if own.m else 1.0)
        return m + grown + 0.03 * m / (1 + (20 * away.abs()) ** 1.1)
