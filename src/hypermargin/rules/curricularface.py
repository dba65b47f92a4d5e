"""CurricularFace: Huang et al. 2020 (arXiv:2004.00288), where hard rivals count for more as training goes on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hypermargin.fields import choice, number
from hypermargin.margins import MarginAtRows, RowFacts
from hypermargin.numerics import snapshot
from hypermargin.rules._base import Rule, RuleState, register


@register("curricularface")
@dataclass(frozen=True)
class CurricularFace(Rule):
    """A rival with c > τ is hard, and counts as c·(t + c); any other as c. It goes with ArcFace, m = 0.5, s = 64.

    τ = cos(θ_y + m) as it stands, also past π, or with compared="margined" the margined target ψ(θ_y). t is a
    running mean of the target's cosine. It is in state_dict, begins at 0, and is moved towards the batch's by
    `momentum` before use:

        t ← momentum·mean cos θ_y + (1 − momentum)·t

    The paper prints the two shares the other way round; 0.01 is what its code does. The code also has
    beyond="linear" for the target. While t is small, hard rivals count for less than their cosine, since c² < c.
    Without a head, t is 0.
    """

    momentum: float = number(
        0.01, 0.0, 1.0, open_low=True, closed_high=True, help="Share of the batch in the running mean t."
    )
    compared: str = choice(
        "bare",
        ("bare", "margined"),
        help="What a hard rival exceeds: cos(θ + m) even past π, or the margined target.",
    )
    formula = "c·(t + c) for c > cos(θ + m), else c"
    row_numbers = 2  # τ and t

    def rho(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return c·(t + c) above the threshold, else the cosine."""
        tau, t = _split(threshold)
        return torch.where(cosine > tau, cosine * (t + cosine), cosine)

    def slope(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return t + 2c above the threshold, else 1."""
        tau, t = _split(threshold)
        return torch.where(cosine > tau, t + 2 * cosine, torch.ones_like(cosine))

    def of_rows(self, rows: RowFacts, psi: MarginAtRows, t: Tensor | float = 0.0) -> Tensor:
        """Return τ and t of every row, (N, 2)."""
        tau = rows.ahead.margined(psi if self.compared == "margined" else psi.bare())
        return torch.cat((tau, torch.zeros_like(tau) + t), 1)

    def state(self) -> RuleState:
        """Return the running mean t."""
        return RunningCosine(self)


def _split(threshold: Tensor | None) -> tuple[Tensor, Tensor]:
    assert threshold is not None
    tau, t = threshold.chunk(2, 1)
    return tau, t


class RunningCosine(RuleState):
    """The running mean t of the target's cosine, a buffer."""

    t: Tensor

    def __init__(self, rule: CurricularFace) -> None:
        super().__init__()
        self.momentum = rule.momentum
        self.register_buffer("t", torch.zeros(()))
        self._next: Tensor | None = None

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Begin anew at 0."""
        self.t.zero_()

    def forward(self, rule: Rule, rows: RowFacts, psi: MarginAtRows) -> Tensor:
        """Return τ and t of every row, (N, 2)."""
        assert isinstance(rule, CurricularFace)
        t = snapshot(self.t).to(rows.norm.dtype)
        if self.training:
            t = self._next = self._moved(rows, t)
        return rule.of_rows(rows, psi, t)

    def _moved(self, rows: RowFacts, t: Tensor) -> Tensor:
        """Return t after this batch; rows that do not count, or hold NaN, change nothing."""
        cosine = rows.ahead.cosine()
        used = (rows.labels[:, 0] >= 0) & cosine.isfinite()
        count = used.sum()
        mean = cosine.masked_fill(~used, 0.0).sum() / count.clamp(min=1)
        return t + self.momentum * (count > 0).to(t.dtype) * (mean - t)

    def advance(self) -> None:
        """Store the t that the last training forward used."""
        if self._next is not None:
            self.t.copy_(self._next)
            self._next = None
