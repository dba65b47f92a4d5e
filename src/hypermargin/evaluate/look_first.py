"""What to look at first: identities that may be one, samples that may be another's, classes that may be two.

These are hints from the embeddings alone. A twin, a bad photo or a network that is not trained looks the same, so
the list is for eyes, not for deleting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.common.arrays import Truth, Values
from hypermargin.evaluate.pairs import Samples, exact, samples
from hypermargin.evaluate.prototypes import nearest_other
from hypermargin.numerics import unit

LARGEST = 400  # samples of a class that are compared with each other
SHARE = 0.1  # of a class that a second group needs to count


@dataclass(frozen=True)
class Duplicate:
    """Two identities whose pairs score as high as those within them, on average."""

    first: str
    second: str
    between: float  # mean score of their pairs
    within: float  # the lower of both mean scores within; NaN where both have one sample
    rows: tuple[int, int]  # a sample of each, nearest to its center


@dataclass(frozen=True)
class Mislabelled:
    """A sample nearer to another identity than to its own, with the threshold between."""

    row: int
    label: str
    other: str
    own: float  # cosine to the center of its identity, without itself
    theirs: float
    example: int  # a sample of the other identity


@dataclass(frozen=True)
class Split:
    """A class in two groups, no pair across which reaches the threshold."""

    label: str
    sizes: tuple[int, int]
    across: float  # the highest score between them
    rows: tuple[int, int]  # a sample of each


@dataclass(frozen=True)
class LookFirst:
    """The worst of each kind, and how many there are: (duplicates, mislabelled, split)."""

    duplicates: tuple[Duplicate, ...]
    mislabelled: tuple[Mislabelled, ...]
    split: tuple[Split, ...]
    found: tuple[int, int, int]


def look_first(embeddings: Values, labels: Values, threshold: float, *, most: int = 20) -> LookFirst:
    """List what deserves a look, `most` of each kind, worst first.

    - embeddings (N, d), labels (N,): as in `verification`
    - threshold: from which cosine on two samples count as one identity
    """
    checks.count("most", most)
    return of_samples(samples(embeddings, labels), threshold, most)


def of_samples(s: Samples, threshold: float, most: int) -> LookFirst:
    """Do the same with sorted samples."""
    y = torch.from_numpy(s.ids).to(s.x.device)
    sums = s.x.new_zeros(len(s.sizes), s.x.shape[1]).index_add_(0, y, s.x)
    duplicates = _duplicates(s, sums, threshold) if len(s.sizes) > 1 else []
    mislabelled = _mislabelled(s, sums, y, threshold) if len(s.sizes) > 1 else []
    split = _split(s, threshold)
    return LookFirst(
        tuple(duplicates[:most]), tuple(mislabelled[:most]), tuple(split[:most]),
        (len(duplicates), len(mislabelled), len(split)),
    )  # fmt: skip


def _example(s: Samples, sums: Tensor, k: int) -> int:
    """Return the given row of the sample that is nearest to the center of class k."""
    start = int(s.sizes[:k].sum())
    near = s.x[start : start + int(s.sizes[k])] @ sums[k]
    return int(s.order[start + int(near.argmax())])


def _duplicates(s: Samples, sums: Tensor, threshold: float) -> list[Duplicate]:
    sizes = torch.from_numpy(s.sizes).to(sums)
    pairs = (sizes * (sizes - 1)).clamp(min=1)
    within = torch.where(sizes > 1, (sums.square().sum(1) - sizes) / pairs, torch.nan).double().cpu().numpy()
    centers = unit(sums)
    own = torch.arange(len(centers), device=centers.device)
    other = nearest_other(centers, own, centers)[1].cpu().numpy()
    both = np.unique(np.sort(np.stack((np.arange(len(other)), other)), axis=0), axis=1)
    a, b = (torch.from_numpy(side).to(sums.device) for side in both)
    between = ((sums[a] * sums[b]).sum(1) / (sizes[a] * sizes[b])).double().cpu().numpy()
    least = np.fmin(within[both[0]], within[both[1]])
    # As alike between as within; of single samples, alike by the threshold.
    excess = np.where(np.isnan(least), between - threshold, between - np.fmax(least, threshold))
    alike = np.flatnonzero((between >= threshold) & (excess > -0.05))
    return [
        Duplicate(
            str(s.names[both[0][k]]), str(s.names[both[1][k]]), float(between[k]), float(least[k]),
            (_example(s, sums, int(both[0][k])), _example(s, sums, int(both[1][k]))),
        )
        for k in alike[np.argsort(-excess[alike], kind="stable")].tolist()
    ]  # fmt: skip


def _mislabelled(s: Samples, sums: Tensor, y: Tensor, threshold: float) -> list[Mislabelled]:
    rest = sums[y] - s.x  # the class without the sample itself
    own = (unit(rest) * s.x).sum(1).double().cpu().numpy()
    found = nearest_other(s.x, y, unit(sums))
    theirs, whose = found[0].double().cpu().numpy(), found[1].cpu().numpy()
    gap = theirs - own
    wrong = np.flatnonzero((s.sizes[s.ids] > 1) & (own < threshold) & (theirs >= threshold))
    return [
        Mislabelled(
            int(s.order[k]), str(s.names[s.ids[k]]), str(s.names[whose[k]]), float(own[k]), float(theirs[k]),
            _example(s, sums, int(whose[k])),
        )
        for k in wrong[np.argsort(-gap[wrong], kind="stable")].tolist()
    ]  # fmt: skip


def _split(s: Samples, threshold: float) -> list[Split]:
    starts = np.cumsum(s.sizes) - s.sizes
    found = []
    for k in np.flatnonzero(s.sizes >= 4).tolist():
        start, size = int(starts[k]), min(int(s.sizes[k]), LARGEST)
        x = s.x[start : start + size]
        with exact(x):
            scores = (x @ x.T).cpu().numpy()
        groups = sorted(_groups(scores >= threshold), key=len, reverse=True)
        if len(groups) < 2 or len(groups[1]) < max(2, SHARE * size):
            continue
        one, two = groups[:2]
        across = float(scores[np.ix_(one, two)].max())
        rows = int(s.order[start + one[0]]), int(s.order[start + two[0]])
        found.append(Split(str(s.names[k]), (len(one), len(two)), across, rows))
    return sorted(found, key=lambda each: (-each.sizes[1] / sum(each.sizes), each.across))


def _groups(joined: Truth) -> list[list[int]]:
    """Return what is connected, by chains of pairs: each takes the smallest number that it can reach."""
    reached = np.arange(len(joined))
    while True:
        lower = np.where(joined, reached, len(joined)).min(1)
        if (lower == reached).all():
            return [np.flatnonzero(reached == k).tolist() for k in np.unique(reached)]
        reached = lower
