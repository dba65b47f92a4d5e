"""The target's side of NPCFace: Zeng et al. 2020 (arXiv:2007.10172). The rivals' side is `rules.NPCFace`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from hypermargin.fields import number
from hypermargin.margins._base import RowFacts, RowMargin, register
from hypermargin.margins.arcface import ArcFace
from hypermargin.numerics import constant


@register("npcface")
@dataclass(frozen=True)
class NPCFace(ArcFace):
    """ArcFace's ψ with m_i = m + more·(mean cosine of the row's hard rivals), those with c > cos(θ_y + reach).

    A row without hard rivals has m. They are found by a pass of its own over the classes, in blocks, which a head
    makes; without one, m is m. The code has beyond="easy".
    """

    m: float = number(0.4, 0.0, math.pi, help="The margin of a row without hard rivals, in radians.")
    more: float = number(0.2, 0.0, 1.5, help="What the mean cosine of the hard rivals is multiplied with.")
    reach: float = number(0.5, 0.0, math.pi, help="Radians within which a rival is hard.")

    def row_margin(self) -> RowMargin:
        """Return what looks for the hard rivals."""
        return HardRivals(self)


class HardRivals(RowMargin):
    """Adds to the m of every row what its hard rivals ask for; it has no state."""

    def __init__(self, margin: NPCFace) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, m: Tensor | None, rows: RowFacts) -> Tensor:
        """Return m + more·mean, (N, 1), or (N, L) where m differs by label."""
        bare = ArcFace(self.margin.reach, beyond="none").at(None, 0.0, "exact")
        mean = rows.ahead.mean_above(rows.ahead.margined(bare))
        return self.margin.more * mean + (constant(self.margin.m, mean) if m is None else m.to(mean.dtype))
