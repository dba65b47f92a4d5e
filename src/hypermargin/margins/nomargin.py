"""No margin: softmax, modified softmax, NormFace."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hypermargin.margins._base import Margin, register


@register("none")
@dataclass(frozen=True)
class NoMargin(Margin):
    """ψ(θ) = cos θ. What is left of every margin at zero strength."""

    formula = "cos θ"

    def psi(self, theta: Tensor, m: Tensor | None = None) -> Tensor:
        """ψ(θ) = cos θ; there is no m to override."""
        if m is not None:
            raise ValueError("NoMargin has no m; got one. Use CosFace, ArcFace, SphereFace or Combined.")
        return theta.cos()

    def psi_of_cosine(self, cosine: Tensor, m: Tensor | None = None) -> Tensor:
        """The cosine itself, with gradient 1 everywhere."""
        return cosine if m is None else self.psi(cosine, m)
