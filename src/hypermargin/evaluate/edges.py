"""The pairs seen through some hundred edges of the score: what intervals are computed from, many curves at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hypermargin.common.arrays import Counts, Floats
from hypermargin.evaluate.curve import Curve, dcf_weights

Name = str | float  # "eer", "auc", "min_dcf", or the FAR that a TAR is at

BY_FAR, BY_FRR = 224, 160  # edges


@dataclass(frozen=True, eq=False)
class Problem:
    """A curve, the FARs to report TAR at, and the confidence."""

    curve: Curve
    far: tuple[float, ...]
    confidence: float

    @cached_property
    def edges(self) -> Floats:
        """Scores, highest first, that the pairs are sorted into: all, if they are few.

        Else evenly in log FAR from one impostor on, and in log FRR. They end where nothing below matters: beyond
        FAR 15 %, twice the EER, and the point with less than a tenth of the area above the curve to come.
        """
        c = self.curve
        if len(c.scores) <= BY_FAR + BY_FRR:
            return c.scores
        far, frr = c.impostor / c.impostors, 1 - c.genuine / c.genuines
        above = np.cumsum((np.diff(far, prepend=0.0) * frr)[::-1])[::-1]  # area to come
        last = max(
            int(np.searchsorted(far, max(0.15, 2 * c.equal_error()[0]))),
            int((above > 0.1 * (1 - c.auc)).sum()),
        )
        last = min(last, len(far) - 1)
        by_far = np.searchsorted(c.impostor, np.geomspace(1, c.impostor[last], BY_FAR))
        wanted = np.geomspace(1, 1 / c.genuines, BY_FRR - 1)  # 1 − FRR would round: count the accepted
        by_frr = np.searchsorted(c.genuine, np.ceil(c.genuines * (1 - wanted)))
        optimum = int(np.searchsorted(-c.scores, -c.min_dcf()[1]))
        chosen: Floats = c.scores[
            np.unique(np.concatenate((by_far, by_frr, np.array([optimum, last]))).clip(0, last))
        ]
        return chosen

    def bins(self, scores: Floats) -> NDArray[np.intp]:
        """Return, by score, the number of edges above it: 0 for the highest, K for what is below all edges."""
        rising = self.edges[::-1]
        return len(rising) - np.searchsorted(rising, scores, side="right")

    @cached_property
    def tail(self) -> float:
        """The area above the curve beyond the last edge, as a share of its rectangle: ½ were it a straight line."""
        c, g, a = self.curve, int(self.pooled[0][-1]), int(self.pooled[1][-1])
        beyond = self.curve.impostor > a
        missed = c.genuines - (c.genuine + np.concatenate(([0], c.genuine[:-1]))) / 2
        area = float((np.diff(c.impostor, prepend=0) * missed)[beyond].sum())
        return area / max(1.0, float(c.impostors - a) * (c.genuines - g))

    def statistics(self, far: Floats, tar: Floats) -> dict[Name, Floats]:
        """Compute the numbers of many curves at once, given at the edges as (curves, K), lines between."""
        first, last = np.zeros((len(far), 1)), np.ones((len(far), 1))
        far, tar = np.hstack((first, far, last)), np.hstack((first, tar, last))
        miss, alarm = dcf_weights(0.01, 1.0, 1.0)
        found: dict[Name, Floats] = {
            "eer": _crossing(far + tar - 1, far, 0.0),
            "auc": (np.diff(far) * (tar[:, 1:] + tar[:, :-1]))[:, :-1].sum(1) / 2
            + (1 - far[:, -2]) * (1 - self.tail * (1 - tar[:, -2])),
            "min_dcf": (miss * (1 - tar) + alarm * far).min(1),
        }
        return found | {float(f): _crossing(far, tar, f) for f in self.far}

    @cached_property
    def theta(self) -> dict[Name, float]:
        """The numbers themselves, without edges."""
        c = self.curve
        plain: dict[Name, float] = {"eer": c.equal_error()[0], "auc": c.auc, "min_dcf": c.min_dcf()[0]}
        return plain | {float(f): c.tar_at(f) for f in self.far}

    @cached_property
    def pooled(self) -> tuple[Counts, Counts]:
        """Accepted genuine and impostor pairs at each edge."""
        at = np.searchsorted(-self.curve.scores, -self.edges)
        return self.curve.genuine[at], self.curve.impostor[at]

    def lines(self) -> dict[Name, float]:
        """The numbers as the edges show them."""
        g, a = self.pooled
        found = self.statistics(a[None] / self.curve.impostors, g[None] / self.curve.genuines)
        return {name: float(value[0]) for name, value in found.items()}

    def unseen(self, identities: int) -> float:
        """The most that may go wrong where nothing did."""
        return float(1 - (1 - self.confidence) ** (1 / identities))


def _crossing(rising: Floats, other: Floats, level: float) -> Floats:
    """Return, by row, `other` where `rising` passes `level`, or leaves it if it stays; lines between columns."""
    k = (rising <= level).sum(1).clip(1, rising.shape[1] - 1)
    row = np.arange(len(rising))
    low, high = rising[row, k - 1], rising[row, k]
    part = np.where(high > low, (level - low) / np.where(high > low, high - low, 1.0), 1.0)
    part = part.clip(0.0, 1.0)
    result: Floats = other[row, k - 1] + part * (other[row, k] - other[row, k - 1])
    return result
