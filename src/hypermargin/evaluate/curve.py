"""The curve behind every number of verification: what each threshold accepts.

A pair is genuine (same identity) or an impostor. Accepting every pair with score ≥ t gives one operating point:

    FAR(t) = accepted impostors / impostors     TAR(t) = accepted genuine / genuine     FRR = 1 − TAR

Every distinct score is a threshold, and so is one above them all, which accepts nothing; pairs with equal scores
go together. The smallest FAR but 0 is one impostor pair, so A of them say nothing on a FAR below 1/A: `tar_at` then
gives the TAR at no false accept, which is about the one highest impostor. `supports` tells such FARs from others.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from hypermargin import checks
from hypermargin.common.arrays import Counts, Floats, Truth, Values, to_numpy


@dataclass(frozen=True, eq=False)
class Curve:
    """How many pairs of each kind have at least each score.

    scores    distinct, highest first
    genuine   accepted genuine pairs at each; the last is all of them
    impostor  accepted impostor pairs at each
    """

    scores: Floats
    genuine: Counts
    impostor: Counts

    @classmethod
    def of(cls, scores: Floats, genuine: Counts, impostor: Counts) -> Curve:
        """Make a curve of the distinct scores, highest first, and how many pairs have each."""
        for count, kind, need in (
            (genuine.sum(), "genuine", "Give at least one identity with two samples."),
            (impostor.sum(), "impostor", "Give samples of at least two identities."),
        ):
            if count == 0:
                raise ValueError(f"there are no {kind} pairs, so there is no error rate. {need}")
        return cls(np.asarray(scores, np.float64), np.cumsum(genuine), np.cumsum(impostor))

    @property
    def genuines(self) -> int:
        """The number of genuine pairs, G."""
        return int(self.genuine[-1])

    @property
    def impostors(self) -> int:
        """The number of impostor pairs, A."""
        return int(self.impostor[-1])

    @property
    def far(self) -> Floats:
        """FAR at a threshold above all scores, where it is 0, then at each score."""
        return np.concatenate(([0.0], self.impostor / self.impostors))

    @property
    def tar(self) -> Floats:
        """TAR at the same thresholds."""
        return np.concatenate(([0.0], self.genuine / self.genuines))

    @property
    def auc(self) -> float:
        """The area under TAR over FAR, P(genuine > impostor) + ½·P(genuine = impostor)."""
        g, a = _from_zero(self.genuine), _from_zero(self.impostor)
        twice = (np.diff(a) * (g[1:] + g[:-1]).astype(np.float64)).sum()
        return float(twice) / (2.0 * self.genuines * self.impostors)

    def equal_error(self) -> tuple[float, float]:
        """Return (EER, threshold): FAR = FRR on straight lines between points; the highest score with FAR ≥ FRR."""
        g, a, G, A = _from_zero(self.genuine), _from_zero(self.impostor), self.genuines, self.impostors

        def excess(k: int) -> int:
            """Return (FAR − FRR)·G·A, in Python's integers: no rounding, no overflow. It rises with each point."""
            return int(a[k]) * G + int(g[k]) * A - G * A

        k = bisect_left(range(len(a)), 0, key=excess)
        part = -excess(k - 1) / (excess(k) - excess(k - 1))
        return (float(a[k - 1]) + part * float(a[k] - a[k - 1])) / A, float(self.scores[k - 1])

    def supports(self, far: float) -> bool:
        """Tell whether there are impostor pairs enough to show this FAR: f·A ≥ 1."""
        return far * self.impostors >= 1 - 1e-9

    def tar_at(self, far: float) -> float:
        """Return the largest TAR of a threshold with FAR ≤ f; where f·A < 1, of one without false accepts."""
        k = self._point(far)
        return float(self.genuine[k - 1]) / self.genuines if k else 0.0

    def threshold_at(self, far: float) -> float:
        """Return the lowest score with FAR ≤ f; just above the highest one if that is an impostor's and f·A < 1."""
        return self.threshold(self._point(far))

    def at(self, threshold: float) -> tuple[float, float]:
        """Return (FAR, TAR) of accepting scores ≥ threshold."""
        k = len(self.scores) - int(np.searchsorted(self.scores[::-1], threshold))
        if k == 0:
            return 0.0, 0.0
        return int(self.impostor[k - 1]) / self.impostors, int(self.genuine[k - 1]) / self.genuines

    def min_dcf(self, p_target: float = 0.01, c_miss: float = 1.0, c_fa: float = 1.0) -> tuple[float, float]:
        """Return (value, threshold) of NIST's least detection cost, as a share of that without looking at scores.

        DCF(t) = c_miss·p·FRR(t) + c_fa·(1−p)·FAR(t), divided by min(c_miss·p, c_fa·(1−p)), the cost of accepting
        none or all; p = `p_target` is how often a trial is genuine. Of equal costs the highest threshold counts.
        """
        miss, alarm = dcf_weights(p_target, c_miss, c_fa)
        cost = miss * (1 - self.tar) + alarm * self.far
        k = int(cost.argmin())
        return float(cost[k]), self.threshold(k)

    def histogram(self, bins: int = 200) -> tuple[Floats, Counts, Counts]:
        """Return (edges, genuine, impostor): pairs in equal bins from the lowest score to the highest."""
        checks.count("bins", bins)
        edges = np.histogram_bin_edges(self.scores, bins)
        counts = [
            np.histogram(self.scores, edges, weights=np.diff(_from_zero(kind)).astype(np.float64))[0]
            for kind in (self.genuine, self.impostor)
        ]
        return edges, counts[0].astype(np.int64), counts[1].astype(np.int64)

    def threshold(self, point: int) -> float:
        """Return the score to accept from at a point of `far` and `tar`; 0: just above the highest score."""
        return float(self.scores[point - 1]) if point else math.nextafter(float(self.scores[0]), math.inf)

    def _point(self, far: float) -> int:
        """Find the last point with FAR ≤ f, without dividing millions of counts."""
        checks.in_range("far", far, 0.0, 1.0)
        allowed = round(far * self.impostors)
        if allowed / self.impostors > far:
            allowed -= 1
        return int(np.searchsorted(self.impostor, allowed, side="right"))


def count_scores(scores: Values, same: Values) -> tuple[Floats, Counts, Counts]:
    """Count the distinct scores of given pairs, highest first, and genuine and impostor pairs that have each."""
    s, truth = given_pairs(scores, same)
    levels, level = np.unique(s, return_inverse=True)
    genuine = np.bincount(level[truth], minlength=len(levels))
    impostor = np.bincount(level[~truth], minlength=len(levels))
    return levels[::-1].astype(np.float64), genuine[::-1], impostor[::-1]


def given_pairs(scores: Values, same: Values) -> tuple[Floats, Truth]:
    """Check (P,) finite scores and (P,) truth values; an error says which pair is neither."""
    s, truth = to_numpy(scores), to_numpy(same)
    if s.ndim != 1 or truth.shape != s.shape:
        raise ValueError(f"scores and same must have one shape (pairs,); got {s.shape} and {truth.shape}.")
    if not np.isin(truth, (0, 1)).all():
        raise ValueError("same must be true or false (1 or 0) for each pair; got other values.")
    bad = np.flatnonzero(~np.isfinite(s))
    if len(bad):
        raise ValueError(f"scores must be finite; got {s[bad[0]]} for pair {bad[0]} ({len(bad)} such pairs).")
    return s.astype(np.float64), truth.astype(bool)


def dcf_weights(p_target: float, c_miss: float, c_fa: float) -> tuple[float, float]:
    """Return what FRR and FAR count in the normalised detection cost."""
    if not 0 < p_target < 1:
        raise ValueError(f"p_target must lie in (0, 1), how often a trial is genuine; got {p_target:g}.")
    checks.positive("c_miss", c_miss)
    checks.positive("c_fa", c_fa)
    miss, alarm = c_miss * p_target, c_fa * (1 - p_target)
    return miss / min(miss, alarm), alarm / min(miss, alarm)


def _from_zero(accepted: Counts) -> Counts:
    return np.concatenate((np.zeros(1, np.int64), accepted))
