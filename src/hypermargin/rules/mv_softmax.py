"""MV-Softmax: Wang et al. 2020 (arXiv:1912.00833), which counts rivals above the margined target for more."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hypermargin.fields import choice, number
from hypermargin.margins import MarginAtRows, RowFacts
from hypermargin.rules._base import Rule, register


@register("mv-softmax")
@dataclass(frozen=True)
class MVSoftmax(Rule):
    """A rival with c > τ = ψ(θ_y) is hard, and counts as

        (1 + t)·c + t    adaptive        c + t    fixed

    and any other as c. With CosFace it is MV-AM-Softmax, with ArcFace MV-Arc-Softmax. t = 0 is the margin's own
    loss. ρ jumps at c = τ, by t·(1 + τ) or t. The paper's code has s = 32 and m = 0.35 for both, and leaves a
    target beyond 90° without a margin, which ArcFace does with beyond="easy"; its τ is then still cos(θ_y + m),
    which is compared="bare".
    """

    t: float = number(0.2, 0.0, help="How much more a hard rival counts; 0 is no difference.")
    kind: str = choice("adaptive", ("adaptive", "fixed"), help="Whether t grows with the rival's cosine.")
    compared: str = choice(
        "margined",
        ("margined", "bare"),
        help="What a hard rival exceeds: the margined target, or ψ as its formula stands, whatever `beyond` does.",
    )
    formula = "(1 + t)·c + t for c > ψ, else c"
    row_numbers = 1

    def rho(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return the cosine, raised where it exceeds the threshold."""
        assert threshold is not None
        raised = (1 + self.t) * cosine + self.t if self.kind == "adaptive" else cosine + self.t
        return torch.where(cosine > threshold, raised, cosine)

    def slope(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return 1 + t above the threshold if `kind` is adaptive, else 1."""
        assert threshold is not None
        more = self.t if self.kind == "adaptive" else 0.0
        return 1 + more * (cosine > threshold).to(cosine.dtype)

    def of_rows(self, rows: RowFacts, psi: MarginAtRows) -> Tensor:
        """Return τ of every row, (N, 1)."""
        return rows.ahead.margined(psi if self.compared == "margined" else psi.bare())
