"""Are two samples of one identity? All pairs of a set, or given pairs, as EER, AUC and TAR at fixed FAR.

A pair is genuine (same identity) or an impostor. Accepting every pair with score ≥ t gives one operating point:

    FAR(t) = accepted impostors / impostors     TAR(t) = accepted genuine / genuine     FRR = 1 − TAR

Every distinct score is a threshold, and so is +∞, which accepts nothing; pairs with equal scores go together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hypermargin import checks
from hypermargin.functional import full_precision
from hypermargin.numerics import unit

Values = Tensor | NDArray[Any]
Counts = NDArray[np.int64]

FAR = (1e-1, 1e-2, 1e-3)
GRID = 2**20  # cells a unit of cosine


@dataclass(frozen=True)
class Verification:
    """What the pairs say. See `verification` for how they are scored.

    eer        FAR = FRR, on the straight lines between neighbouring operating points
    threshold  the score to accept from at that error: the highest one with FAR ≥ FRR
    auc        P(genuine > impostor) + ½·P(genuine = impostor)
    tar        by FAR f: the largest TAR of a threshold with FAR ≤ f
    genuine    number of such pairs
    impostor   number of such pairs
    """

    eer: float
    threshold: float
    auc: float
    tar: dict[float, float]
    genuine: int
    impostor: int


def verification(
    embeddings: Values, labels: Values, *, far: Sequence[float] = FAR, block: int = 512
) -> Verification:
    """All pairs i < j of the rows, scored by their cosine.

    The score is the cosine rounded to a multiple of 2⁻²⁰ ≈ 1e-6, which is what float32 can vouch for: equal
    embeddings tie whatever order their products were summed in, and collapsed ones get an EER of ½. For these
    scores the numbers are exact. Time grows with the pairs, memory (some 150 MB beside the embeddings) does not.

    - embeddings: (N, d), of any length but 0; computed in float32, or float64 if given so, on their device
    - labels: (N,) identities: whole numbers, or names in a numpy array
    - block: rows and columns of one product
    """
    x, ids = directions(embeddings, labels)
    _check_far(far)
    checks.count("block", block)
    sizes = np.bincount(ids)
    genuine = int((sizes * (sizes - 1)).sum()) // 2
    _need_both(genuine, len(ids) * (len(ids) - 1) // 2 - genuine)
    # With one identity's rows side by side, most products hold impostors only and need no mask.
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    x, y = x[torch.from_numpy(order).to(x.device)], torch.from_numpy(ids).to(x.device)
    counts = torch.zeros(2, 2 * GRID + 1, dtype=torch.int64, device=x.device)  # impostors, genuine
    for i in range(0, len(x), block):
        for j in range(i, len(x), block):
            found = cells(x[i : i + block], x[j : j + block])
            if ids[i : i + block][-1] < ids[j]:
                _add(counts[0], found.flatten())
                continue
            same = y[i : i + block, None] == y[j : j + block]
            pair = torch.ones_like(same).triu(1) if i == j else torch.ones_like(same)
            _add(counts[0], found[pair & ~same])
            _add(counts[1], found[pair & same])
    impostors, mates = counts.cpu().numpy()
    used = np.flatnonzero(impostors + mates)[::-1]
    return _measure(used / GRID - 1, mates[used], impostors[used], far)


def from_scores(scores: Values, same: Values, *, far: Sequence[float] = FAR) -> Verification:
    """Given pairs: (P,) scores, higher for more alike, taken as they are, and (P,) whether each pair is genuine."""
    s, truth = _numpy(scores), _numpy(same)
    if s.ndim != 1 or truth.shape != s.shape:
        raise ValueError(f"scores and same must have one shape (pairs,); got {s.shape} and {truth.shape}.")
    if not np.isin(truth, (0, 1)).all():
        raise ValueError("same must be true or false (1 or 0) for each pair; got other values.")
    bad = np.flatnonzero(~np.isfinite(s))
    if len(bad):
        raise ValueError(f"scores must be finite; got {s[bad[0]]} for pair {bad[0]} ({len(bad)} such pairs).")
    _check_far(far)
    truth = truth.astype(bool)
    _need_both(int(truth.sum()), int((~truth).sum()))
    levels, level = np.unique(s, return_inverse=True)
    genuine = np.bincount(level[truth], minlength=len(levels))
    impostor = np.bincount(level[~truth], minlength=len(levels))
    return _measure(levels[::-1], genuine[::-1], impostor[::-1], far)


def directions(embeddings: Values, labels: Values) -> tuple[Tensor, Counts]:
    """Unit rows in float32 or float64, and identities as 0, 1, …; refuses what has no direction or no label."""
    x = torch.as_tensor(embeddings).detach()
    if x.dim() != 2:
        raise ValueError(f"embeddings must have shape (rows, dim); got {tuple(x.shape)}.")
    if len(x) < 2:
        raise ValueError(f"embeddings must have at least 2 rows, to make a pair; got {len(x)}.")
    names = _numpy(labels)
    if names.shape != (len(x),):
        raise ValueError(f"labels must have shape ({len(x)},), one a row of embeddings; got {names.shape}.")
    if names.dtype.kind in "fc":
        raise TypeError(f"labels must be whole numbers or names; got {names.dtype}.")
    x = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    checks.finite_rows("embeddings", x, torch.ones(len(x), dtype=torch.bool, device=x.device))
    zero = (x == 0).all(1).nonzero()
    if len(zero):
        raise ValueError(
            f"embeddings must not be zero, which has no direction; got zeros at row {int(zero[0])} "
            f"({len(zero)} such rows). Look at those samples, or leave them out."
        )
    return unit(x), np.unique(names, return_inverse=True)[1].astype(np.int64)


def cells(a: Tensor, b: Tensor) -> Tensor:
    """Cosines of unit rows in whole cells of 2⁻²⁰, counted from 0 at −1, int32."""
    with full_precision(a):
        return torch.mm(a, b.T).mul_(GRID).round_().add_(GRID).clamp_(0, 2 * GRID).to(torch.int32)


def _add(counts: Tensor, found: Tensor) -> None:
    counts.index_add_(0, found, counts.new_ones(()).expand(len(found)))


def _measure(scores: NDArray[Any], genuine: Counts, impostor: Counts, far: Sequence[float]) -> Verification:
    """From the distinct scores, highest first, and how many pairs of each kind have each."""
    g = np.concatenate(([0], np.cumsum(genuine)))  # accepted at +∞, then at each score
    a = np.concatenate(([0], np.cumsum(impostor)))
    G, A = int(g[-1]), int(a[-1])

    def excess(k: int) -> int:
        """(FAR − FRR)·G·A, in Python's integers: no rounding, no overflow. It rises with every threshold."""
        return int(a[k]) * G + int(g[k]) * A - G * A

    k = bisect_left(range(len(a)), 0, key=excess)
    part = -excess(k - 1) / (excess(k) - excess(k - 1))
    eer = (float(a[k - 1]) + part * float(a[k] - a[k - 1])) / A
    auc = float((np.diff(a) * (g[1:] + g[:-1]).astype(np.float64)).sum()) / (2.0 * G * A)
    at = np.searchsorted(a / A, far, side="right") - 1
    tar = {float(f): float(g[i]) / G for f, i in zip(far, at, strict=True)}
    return Verification(eer, float(scores[k - 1]), auc, tar, G, A)


def _need_both(genuine: int, impostor: int) -> None:
    for count, kind, need in (
        (genuine, "genuine", "Give at least one identity with two samples."),
        (impostor, "impostor", "Give samples of at least two identities."),
    ):
        if count == 0:
            raise ValueError(f"there are no {kind} pairs, so there is no error rate. {need}")


def _check_far(far: Sequence[float]) -> None:
    for f in far:
        checks.in_range("far", f, 0.0, 1.0)


def _numpy(values: Values) -> NDArray[Any]:
    if not isinstance(values, Tensor):
        return np.asarray(values)
    known = values.float() if values.dtype == torch.bfloat16 else values  # numpy has no bfloat16
    return known.detach().cpu().numpy()
