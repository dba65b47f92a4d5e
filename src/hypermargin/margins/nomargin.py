"""No margin: softmax, modified softmax, NormFace."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hypermargin.margins._base import Margin, register


@register("none")
@dataclass(frozen=True)
class NoMargin(Margin):
    """ψ(θ) = cos θ, which every margin is at zero strength."""

    formula = "cos θ"

    def of_g(self) -> tuple[float, float, float] | None:
        """Return (1, 0, 0)."""
        return 1.0, 0.0, 0.0

    def psi(self, theta: Tensor, m: Tensor | None = None) -> Tensor:
        """Return ψ(θ) = cos θ; there is no m to override."""
        if m is not None:
            raise ValueError("NoMargin has no m; got one. Use CosFace, ArcFace, SphereFace or Combined.")
        return theta.cos()

    def psi_of_cosine(self, cosine: Tensor, m: Tensor | None = None) -> Tensor:
        """Return the cosine itself, with gradient 1 everywhere."""
        return cosine if m is None else self.psi(cosine, m)
