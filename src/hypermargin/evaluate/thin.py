"""Fewer points of a curve, for files and pictures: millions of thresholds say no more to the eye than thousands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hypermargin import checks
from hypermargin.common.arrays import Counts
from hypermargin.evaluate.curve import Curve


def thin(curve: Curve, far: Sequence[float] = (), most: int = 2000) -> Counts:
    """Choose points of `curve.far` and `curve.tar` to keep, rising: both ends, the EER's, and those of each FAR.

    The others lie evenly in log FAR and log FRR, so that both tails keep their shape.
    """
    checks.count("most", most, 3 + len(far))
    last = len(curve.scores)
    if last < most:
        return np.arange(last + 1)
    chosen = [curve.equal_error()[1], *(curve.threshold_at(f) for f in far)]
    # The point of a threshold is the number of distinct scores that it accepts.
    points = last - np.searchsorted(curve.scores[::-1], chosen)
    room = (most - 2 - len(points)) // 2
    by_far = 1 + np.searchsorted(curve.impostor, np.geomspace(1, curve.impostors, room))
    by_frr = 1 + np.searchsorted(curve.genuine, curve.genuines - np.geomspace(curve.genuines, 1, room))
    return np.unique(np.concatenate(([0, last], points, by_far, by_frr)).clip(0, last))
