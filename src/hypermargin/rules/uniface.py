"""UniFace: Zhou et al. 2023 (ICCV), one binary classification per class against one threshold for all."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from hypermargin.fields import number
from hypermargin.numerics import softplus
from hypermargin.rules._aggregates import SUM_OF_SOFTPLUS
from hypermargin.rules._base import Rule, register


@register("uniface")
@dataclass(frozen=True)
class UniFace(Rule):
    """With `CosFace(0.4)`, s = 64 and a learned bias −b, one for all classes, b/s is the threshold of verification:

        L = softplus(b − s·(cos θ_y − m)) + l·Σ_{j≠y} softplus(s·cos θ_j − b)

    It begins at b = ln 10C, C the classes that take part in a step. With a bias per class (bias=True) it is the
    paper's BCE. Its code keeps all logits in [−s, s], which takes the gradient from those beyond; here they have
    it.
    """

    l: float = number(1.0, 0.0, open_low=True, help="Weight of the rivals.")  # noqa: E741  the paper's letter
    aggregate = SUM_OF_SOFTPLUS
    formula = "c"

    def link(self, R: Tensor, T: Tensor, scale: Tensor | float) -> Tensor:
        """Return softplus(−T) + l·R."""
        return softplus(-T) + self.l * R

    def first_bias(self, classes: int, scale: float) -> float:
        """Return −ln 10C."""
        return -math.log(10 * max(classes, 1))
