"""Where the samples stand to the rows of a head's weight: was the margin that it was trained with reached?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hypermargin import checks
from hypermargin.common.arrays import Counts, Floats, Values
from hypermargin.evaluate.pairs import Samples, exact
from hypermargin.margins import CosFace, Margin
from hypermargin.numerics import angle_between, unit

CLOSEST = 10


@dataclass(frozen=True)
class Spread:
    """The spread of many numbers: the mean, the median, and what 5 % lie below and above."""

    mean: float
    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Floats) -> Spread:
        """Return the spread of an array that is not empty."""
        low, median, high = np.quantile(values, (0.05, 0.5, 0.95))
        return cls(float(values.mean()), float(low), float(median), float(high))


@dataclass(frozen=True)
class Prototypes:
    """Angles to the prototypes W_j, in radians; a head without unit weights also counts lengths, not seen here.

    own       θ_y of the samples, to their own prototype
    rival     min over j ≠ y of θ_j, to the nearest other
    accuracy  share of samples nearer to their own
    met       share of samples with ψ(θ_y) ≥ cos θ_j for all j ≠ y; None without a margin
    classes   those with samples
    margin    of each of them the mean of rival − own over its samples
    worst     and the least
    closest   (class, class, angle): the nearest prototypes, of pairs that one of these classes is in
    """

    own: Spread
    rival: Spread
    accuracy: float
    met: float | None
    closest: tuple[tuple[int, int, float], ...]
    classes: Counts = field(compare=False, repr=False)
    margin: Floats = field(compare=False, repr=False)
    worst: Floats = field(compare=False, repr=False)


def prototypes_of(s: Samples, weight: Values | None, margin: Margin | None) -> Prototypes | None:
    """Compare samples with the rows of `weight` that are their labels; both are of unit length here."""
    if margin is not None:
        checks.instance("margin", margin, Margin, repr(CosFace()))
    if weight is None:
        if margin is not None:
            raise ValueError("margin needs prototypes, which samples meet it against. Give the head's weight too.")
        return None
    W = torch.as_tensor(weight).detach().to(s.x)
    if W.dim() != 2 or W.shape[1] != s.x.shape[1] or len(W) < 2:
        raise ValueError(
            f"prototypes must have shape (classes, {s.x.shape[1]}), two classes or more; got {tuple(W.shape)}."
        )
    if s.names.dtype.kind not in "iu":
        raise TypeError(f"labels must be whole numbers, rows of prototypes; got {s.names.dtype}.")
    if s.names[0] < 0 or s.names[-1] >= len(W):
        wrong = s.names[0] if s.names[0] < 0 else s.names[-1]
        raise ValueError(f"labels must lie in [0, {len(W)}), rows of prototypes; got {wrong}.")
    checks.finite_rows("prototypes", W, torch.ones(len(W), dtype=torch.bool, device=W.device))
    W, classes = unit(W), s.names.astype(np.int64)
    y = torch.from_numpy(classes[s.ids]).to(W.device)
    own = angle_between(s.x, W[y])
    rival = nearest_other(s.x, y, W)[0]
    met = None if margin is None else float((margin.psi(own) >= rival).double().mean())
    own_angle, rival_angle = (_numpy(values) for values in (own, torch.acos(rival.clamp(-1, 1))))
    gap = rival_angle - own_angle
    starts = np.cumsum(s.sizes) - s.sizes
    return Prototypes(
        Spread.of(own_angle),
        Spread.of(rival_angle),
        float((gap > 0).mean()),
        met,
        _closest(W, classes),
        classes,
        np.add.reduceat(gap, starts) / s.sizes,
        np.minimum.reduceat(gap, starts),
    )


def nearest_other(x: Tensor, y: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
    """Return, by row, the highest cosine to a row of W other than its own, y, and which; never the whole matrix."""
    best, which = x.new_full((len(x),), -torch.inf), torch.zeros_like(y)
    many = 2**26 if x.is_cuda else 2**21
    across = min(len(W), 8192)
    step = max(1, many // across)
    for i in range(0, len(x), step):
        rows = slice(i, i + step)
        for j in range(0, len(W), across):
            with exact(x):
                cosine = torch.mm(x[rows], W[j : j + across].T)
            inside = ((y[rows] >= j) & (y[rows] < j + across)).nonzero().squeeze(1)
            cosine[inside, y[rows][inside] - j] = -torch.inf
            value, place = cosine.max(1)
            better = value > best[rows]
            best[rows] = torch.where(better, value, best[rows])
            which[rows] = torch.where(better, place + j, which[rows])
    return best, which


def _closest(W: Tensor, classes: Counts) -> tuple[tuple[int, int, float], ...]:
    mine = torch.from_numpy(classes).to(W.device)
    cosine, other = nearest_other(W[mine], mine, W)
    order = torch.argsort(cosine, descending=True)[: 2 * CLOSEST]
    pairs: dict[tuple[int, int], float] = {}
    for k in order.tolist():
        a, b = sorted((int(mine[k]), int(other[k])))
        pairs.setdefault((a, b), float(angle_between(W[a], W[b])))
    return tuple((a, b, angle) for (a, b), angle in list(pairs.items())[:CLOSEST])


def _numpy(values: Tensor) -> NDArray[Any]:
    return values.double().cpu().numpy()
