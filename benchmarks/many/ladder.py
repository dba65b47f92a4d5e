"""The ladder from the hinge loss to AM-Softmax as heads that can be trained."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from hypermargin import MarginHead, margins
from hypermargin.hinge import lse_hinge, max_hinge, softplus_hinge, sum_hinge

NAMES = "sum-hinge", "max-hinge", "lse-hinge", "softplus-hinge"


class Rung(MarginHead):
    """A head whose loss is a rung, times s where it is not so already: all then have the gradient of s·cosines."""

    def __init__(self, name: str, dim: int, classes: int, *, m: float, scale: float, check: bool = False) -> None:
        super().__init__(dim, classes, margins.CosFace(m), scale=scale, check=check, backend="dense")
        self.name, self.violation, self.s = name, m, scale

    def forward(self, features: Tensor, labels: Tensor | None = None, **_: Any) -> Tensor:
        """Return the loss, or the logits without labels."""
        if labels is None:
            return self.logits(features)
        scores = F.linear(F.normalize(features.float()), F.normalize(self.weight.float()))
        if self.name == "softplus-hinge":
            return softplus_hinge(scores, labels, m=self.violation, s=self.s)
        if self.name == "lse-hinge":
            return self.s * lse_hinge(scores, labels, m=self.violation, s=self.s)
        return self.s * (sum_hinge if self.name == "sum-hinge" else max_hinge)(scores, labels, m=self.violation)
