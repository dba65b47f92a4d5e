"""Where a function is not negative: the intervals that pictures of margins are made of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from hypermargin.common.arrays import Floats
from hypermargin.margins import Margin

POINT = 1e-9  # what is shorter is a point where two boundaries touch


def psi(margin: Margin, theta: Floats) -> Floats:
    """Return ψ of many angles, in float64."""
    values: Floats = margin.psi(torch.from_numpy(theta)).numpy()
    return values


def stretches(
    f: Callable[[Floats], Floats], low: float, high: float, points: int = 1441
) -> list[tuple[float, float]]:
    """Find the intervals of [low, high] with f ≥ 0: changes of sign between `points`, each found by bisection."""
    x = np.linspace(low, high, points)
    good = f(x) >= 0
    (change,) = np.nonzero(good[1:] != good[:-1])
    left, right = x[change], x[change + 1]
    for _ in range(40):
        middle = (left + right) / 2
        before = (f(middle) >= 0) == good[change]
        left, right = np.where(before, middle, left), np.where(before, right, middle)
    ends = [low] * bool(good[0]) + list(map(float, (left + right) / 2)) + [high] * bool(good[-1])
    return [(a, b) for a, b in zip(ends[::2], ends[1::2], strict=True) if b - a > POINT]
