"""Inter-class filtering, as in insightface (An et al. 2022, arXiv:2203.15565), for classes with two labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hypermargin.fields import number
from hypermargin.rules._base import Rule, register


@register("filter")
@dataclass(frozen=True)
class Filter(Rule):
    """A rival with c > above is taken for the row's own class under another label: it counts as 0, with gradient 0.

    It stays in the sum, as exp 0, as in the code.
    """

    above: float = number(0.4, -1.0, 1.5, help="The cosine from which on a rival is left out.")
    formula = "c, 0 for c > 0.4"

    def rho(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return the cosine, or 0 above the limit."""
        return cosine.masked_fill(cosine > self.above, 0.0)

    def slope(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return 1, or 0 above the limit."""
        return torch.ones_like(cosine).masked_fill(cosine > self.above, 0.0)
