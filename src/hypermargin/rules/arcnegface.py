"""ArcNegFace: Liu et al. 2019 (arXiv:1909.00632), where rivals count by how near they are to the target."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hypermargin.fields import number
from hypermargin.rules._base import Rule, register


@register("arcnegface")
@dataclass(frozen=True)
class ArcNegFace(Rule):
    """With ψ the row's margined target and a weight w that has no gradient, a rival counts as

        w·c + w − 1,     w = alpha·exp(−(c − ψ)²/sigma)

    It goes with ArcFace, m = 0.5, s = 64; its public codes have beyond="linear".
    """

    alpha: float = number(1.2, 0.0, open_low=True, help="The weight of a rival as near as the target.")
    sigma: float = number(2.0, 0.0, open_low=True, help="How slowly the weight falls with the distance.")
    formula = "w·c + w − 1, w = 1.2·exp(−(c − ψ)²/2)"
    row_numbers = 1
    detached = True

    def rho(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return w·c + w − 1."""
        w = self.slope(cosine, threshold)
        return w * cosine + w - 1

    def slope(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return w."""
        assert threshold is not None
        return (self.alpha * (-(cosine - threshold).square() / self.sigma).exp()).detach()
