"""Row terms: what is added to the loss of each row besides the margin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from hypermargin import checks

if TYPE_CHECKING:
    from hypermargin.margins import RowFacts


class RowTerm(Protocol):
    """A function that returns a number per row, (N,), from |x| or x, to add to the loss: a feature regulariser."""

    def __call__(self, rows: RowFacts) -> Tensor:
        """Return the terms of these rows, (N,)."""
        ...


def checked_terms(terms: object) -> list[nn.Module]:
    """Return the row terms given to a head; require modules, since their parameters are the head's."""
    if not isinstance(terms, Sequence) or not all(isinstance(term, nn.Module) for term in terms):
        raise TypeError(f"row_terms must be a list of modules such as [terms.RingLoss()]; got {terms!r}.")
    return list(terms)


class RingLoss(nn.Module):
    """(weight/2)·(|x| − r)²: draws the lengths of the features to one radius r, which is learned.

    Zheng et al. 2018 (arXiv:1803.00130).
    """

    def __init__(self, weight: float = 0.01, radius: float = 1.0) -> None:
        super().__init__()
        checks.positive("RingLoss(weight=…)", weight)
        checks.positive("RingLoss(radius=…)", radius)
        self.weight, self.first_radius = weight, float(radius)
        self.radius = nn.Parameter(torch.tensor(self.first_radius))

    def reset_parameters(self) -> None:
        """Begin anew with the radius that was given."""
        nn.init.constant_(self.radius, self.first_radius)

    def forward(self, rows: RowFacts) -> Tensor:
        """Return (weight/2)·(|x| − r)² of each row, (N,)."""
        radius = rows.shared(self.radius).to(rows.norm.dtype)
        return self.weight / 2 * (rows.norm.squeeze(1) - radius).square()

    def extra_repr(self) -> str:
        """Return its settings on one line."""
        return f"weight={self.weight:g}"


class MagFaceTerm(nn.Module):
    """weight·(a/longest² + 1/a), a = clip(|x|, shortest, longest): draws lengths up, and is least at the longest.

    Meng et al. 2021 (arXiv:2103.06627). `margins.MagFace` brings it along.
    """

    def __init__(self, weight: float = 35.0, shortest: float = 10.0, longest: float = 110.0) -> None:
        super().__init__()
        for name, value in (("weight", weight), ("shortest", shortest), ("longest", longest)):
            checks.positive(f"MagFaceTerm({name}=…)", value)
        self.weight, self.shortest, self.longest = weight, shortest, longest

    def forward(self, rows: RowFacts) -> Tensor:
        """Return weight·(a/longest² + 1/a) of each row, (N,)."""
        a = rows.norm.squeeze(1).clamp(self.shortest, self.longest)
        return self.weight * (a / self.longest**2 + 1 / a)

    def extra_repr(self) -> str:
        """Return its settings on one line."""
        return f"weight={self.weight:g}, shortest={self.shortest:g}, longest={self.longest:g}"
