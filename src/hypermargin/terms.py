"""Row terms: what is added to the loss of each row besides the margin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypermargin import checks
from hypermargin.layout import look_up
from hypermargin.numerics import snapshot

if TYPE_CHECKING:
    from hypermargin.margins import RowFacts


class RowTerm(Protocol):
    """A function that returns a number per row, (N,), to add to the loss, such as a feature regulariser.

    A term with a state computes the next in `forward` and stores it in `advance()`, which a head calls after each
    training step. Attributes `dim` and `classes`, where it has them, must be the head's.
    """

    def __call__(self, rows: RowFacts) -> Tensor:
        """Return the terms of these rows, (N,)."""
        ...


def checked_terms(terms: object, dim: int, classes: int) -> list[nn.Module]:
    """Return the row terms given to a head; require modules, since their parameters are the head's."""
    if not isinstance(terms, Sequence) or not all(isinstance(term, nn.Module) for term in terms):
        raise TypeError(f"row_terms must be a list of modules such as [terms.RingLoss()]; got {terms!r}.")
    for term in terms:
        for name, own in (("dim", dim), ("classes", classes)):
            if (given := getattr(term, name, own)) != own:
                raise ValueError(f"{type(term).__name__}({name}=…) must be the head's {name}, {own}; got {given}.")
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


class CenterLoss(nn.Module):
    """(weight/2)·|x − c_y|²: draws features, with their lengths, to a center of their class.

    Wen et al. 2016 (ECCV). The centers are in state_dict, begin at 0, and are moved after each training step by the
    paper's rule, with n_j the rows of class j in the batch:

        c_j ← c_j + rate·Σ_{i: y_i = j} (x_i − c_j)/(1 + n_j)

    They have no gradient and no optimiser. Every rank holds all of them, and all move alike.
    """

    centers: Tensor

    def __init__(self, dim: int, classes: int, weight: float = 0.003, rate: float = 0.5) -> None:
        super().__init__()
        checks.count("CenterLoss(dim=…)", dim)
        checks.count("CenterLoss(classes=…)", classes)
        checks.positive("CenterLoss(weight=…)", weight)
        checks.in_range("CenterLoss(rate=…)", rate, 0.0, 1.0)
        self.dim, self.classes, self.weight, self.rate = dim, classes, weight, rate
        self.register_buffer("centers", torch.zeros(classes, dim))
        self._next: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Begin anew at 0."""
        self.centers.zero_()

    def forward(self, rows: RowFacts) -> Tensor:
        """Return (weight/2)·|x − c_y|² of each row, (N,)."""
        x, y = rows.features, one_label("CenterLoss", rows)
        used = (y >= 0) & x.detach().isfinite().all(1)
        place = y.masked_fill(~used, 0)
        apart = (x - look_up(snapshot(self.centers).to(x.dtype), place)).masked_fill(~used.unsqueeze(1), 0.0)
        if self.training:
            with torch.no_grad():
                count = torch.zeros_like(self.centers[:, 0], dtype=torch.int64).index_add(0, place, used.long())
                self._next = place, self.rate * apart.detach() / (1 + look_up(count.unsqueeze(1), place))
        return self.weight / 2 * apart.square().sum(1)

    @torch.no_grad()
    def advance(self) -> None:
        """Move the centers by what the last training forward saw."""
        if self._next is not None:
            place, step = self._next[0], self._next[1].to(self.centers.dtype)
            if self.centers.is_cuda:  # where index_add_ adds in any order, so that ranks would drift apart
                self.centers.index_put_((place,), step, accumulate=True)
            else:
                self.centers.index_add_(0, place, step)
            self._next = None

    def extra_repr(self) -> str:
        """Return its settings on one line."""
        return f"{self.dim}, {self.classes}, weight={self.weight:g}, rate={self.rate:g}"


class CRFIQA(nn.Module):
    """weight·smooth-L1(q(x) − r): a linear layer q that learns how well a row can be told. Boutros et al. 2023
    (CVPR, arXiv:2112.06592), beside ArcFace.

        r = cos θ_y / (1 + ε + max_{j≠y} cos θ_j),     ε = 1e-9, without gradient

    The network gets a gradient by q too. `quality(features)` is q, for use once it has learned. The pass over the
    classes that finds the nearest rival is this term's own. published="code" is what the paper's code divides by
    instead: max(−1e-12, max_{j≠y} cos θ_j), so that r is unbounded where all rivals are beyond 90°.
    """

    def __init__(self, dim: int, weight: float = 10.0, beta: float = 0.5, published: str = "paper") -> None:
        super().__init__()
        checks.count("CRFIQA(dim=…)", dim)
        checks.positive("CRFIQA(weight=…)", weight)
        checks.positive("CRFIQA(beta=…)", beta)
        checks.one_of("CRFIQA(published=…)", published, ("paper", "code"))
        self.dim, self.weight, self.beta, self.published = dim, weight, beta, published
        self.layer = nn.Linear(dim, 1)

    def quality(self, features: Tensor) -> Tensor:
        """Return q of each feature, (N,); the larger, the better it can be told."""
        return self._of(features, self.layer.weight, self.layer.bias)

    def forward(self, rows: RowFacts) -> Tensor:
        """Return weight·smooth-L1(q(x) − r) of each row, (N,)."""
        one_label("CRFIQA", rows)
        q = self._of(rows.features, rows.shared(self.layer.weight), rows.shared(self.layer.bias))
        own = rows.ahead.cosine().to(q.dtype)
        nearest = rows.ahead.largest_rivals(1).squeeze(1).to(q.dtype)
        if self.published == "code":
            below = nearest.clamp(min=-1e-12)
            below = below.masked_fill(below == 0, -1e-12)
        else:
            # Not 1 + 1e-9 first, which is 1 in float32.
            below = (1 + nearest.masked_fill(nearest == -math.inf, 0.0)).clamp(min=0) + 1e-9
        return self.weight * F.smooth_l1_loss(q, own / below, beta=self.beta, reduction="none")

    @staticmethod
    def _of(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(x, weight.to(x.dtype), bias.to(x.dtype)).squeeze(1)

    def extra_repr(self) -> str:
        """Return its settings on one line."""
        return f"weight={self.weight:g}, beta={self.beta:g}, published={self.published!r}"


def one_label(term: str, rows: RowFacts) -> Tensor:
    """Return the label of each row, (N,); raise with mixup, where there are two."""
    if rows.labels.shape[1] > 1:
        raise ValueError(f"{term} needs one label per row; mixup has two. Leave out mix= or the term.")
    return rows.labels[:, 0]
