"""AdaFace: Kim et al. 2022 (arXiv:2204.00964), a margin that follows the length of the feature."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hypermargin.fields import number
from hypermargin.margins._base import Margin, RowFacts, RowMargin, register
from hypermargin.numerics import constant, snapshot

EDGE = 1e-3  # angles are kept this far from 0 and π, as in the paper's code


@register("adaface")
@dataclass(frozen=True)
class AdaFace(Margin):
    """ψ(θ) = cos(θ − m·q) − m·(1 + q), the angle kept in [0.001, π − 0.001].

    q in [−1, 1] is the row's quality. A head computes it from the length of the feature and the running mean μ and
    deviation σ of all lengths:

        q = clip(h·(|x| − μ)/(σ + 0.001), −1, 1),     |x| clipped to [0.001, 100], without gradient

    q = −1 is ArcFace's margin, 0 CosFace's, 1 cos(θ − m) − 2m. μ and σ begin at 20 and 100 and are moved by
    `momentum` towards the batch's before use. Without a head, q is 0. The class in the paper's code has a momentum
    of 1 unless told otherwise, its scripts 0.01.
    """

    formula = "cos(θ − m·q) − m·(1 + q)"
    zero = 0.0
    m: float = number(0.4, 0.0, 1.0, help="Radians at q = −1, a cosine at q = 0.")
    h: float = number(0.333, 0.0, help="How strongly q follows the length; 0 is CosFace.")
    momentum: float = number(
        0.01, 0.0, 1.0, open_low=True, closed_high=True,
        help="Share of the batch in the running statistics; 1 takes the batch's own.",
    )  # fmt: skip

    @property
    def breaks(self) -> frozenset[str]:
        """The laws not kept: the angle is clipped at both ends, so ψ without a margin is not quite the cosine."""
        return frozenset({"plain at zero"} if self.m else {"plain at zero", "below cos"})

    def psi(self, theta: Tensor, m: Tensor | None = None) -> Tensor:
        """Return ψ(θ) = cos(θ − m·q) − m·(1 + q); an m with one more dimension than θ holds (m, q) in it."""
        m = constant(self.m, theta) if m is None else m
        strength, q = m.unbind(-1) if m.dim() > theta.dim() else (m, torch.zeros_like(m))
        return (theta - strength * q).clamp(EDGE, math.pi - EDGE).cos() - strength * (1 + q)

    def row_margin(self) -> RowMargin:
        """Return the running statistics that q is computed from."""
        return NormStatistics(self)


class NormStatistics(RowMargin):
    """Computes q of each row from |x| and its running mean and deviation, which are buffers."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, margin: AdaFace) -> None:
        super().__init__()
        self.margin = margin
        self.register_buffer("mean", torch.tensor(20.0))
        self.register_buffer("deviation", torch.tensor(100.0))
        self._next: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Begin anew, as the paper's code does."""
        self.mean.fill_(20.0)
        self.deviation.fill_(100.0)

    def forward(self, m: Tensor | None, rows: RowFacts) -> Tensor:
        """Return (m, q) for every row: (N, 1, 2), or (N, L, 2) where m differs by label."""
        norm = rows.norm.detach().clamp(1e-3, 100.0)
        mean, deviation = snapshot(self.mean).to(norm.dtype), snapshot(self.deviation).to(norm.dtype)
        if self.training:
            mean, deviation = self._moved(norm.squeeze(1), rows.labels[:, 0] >= 0, mean, deviation)
            self._next = mean, deviation
        q = (self.margin.h * (norm - mean) / (deviation + 1e-3)).clamp(-1.0, 1.0)
        m = constant(self.margin.m, norm) if m is None else m.to(norm.dtype)
        return torch.stack((m + 0 * q, q + 0 * m), -1)

    def _moved(self, norm: Tensor, used: Tensor, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
        """Return the statistics after this batch; fewer than two rows have no deviation and change nothing.

        A row of NaN, where values are not checked, must not stay in them for ever.
        """
        used = used & norm.isfinite()
        count = used.sum()
        average = norm.masked_fill(~used, 0.0).sum() / count.clamp(min=1)
        squares = (norm - average).square().masked_fill(~used, 0.0).sum()
        spread = (squares / (count - 1).clamp(min=1)).sqrt()
        share = self.margin.momentum * (count > 1).to(norm.dtype)
        return mean + share * (average - mean), deviation + share * (spread - deviation)

    def advance(self) -> None:
        """Store the statistics that the last training forward used."""
        if self._next is not None:
            self.mean.copy_(self._next[0])
            self.deviation.copy_(self._next[1])
            self._next = None
