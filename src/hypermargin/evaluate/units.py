"""One nearness of unit vectors, four units: cosine c, angle θ = acos c, |x−y|² = 2 − 2c, and |x−y|.

Angles are radians. Everything here takes a number or an array and gives an array of its shape. A cosine may stick
out of [−1, 1] by rounding; it is cut off there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hypermargin.common.arrays import Floats


def cosine_to_angle(cosine: ArrayLike) -> Floats:
    """Return the angle θ = acos c."""
    return np.arccos(_within("cosine", cosine, -1.0, 1.0))


def angle_to_cosine(angle: ArrayLike) -> Floats:
    """Return the cosine c = cos θ."""
    return np.cos(_within("angle", angle, 0.0, np.pi))


def cosine_to_squared_distance(cosine: ArrayLike) -> Floats:
    """Return the squared distance |x−y|² = 2 − 2c."""
    return 2 - 2 * _within("cosine", cosine, -1.0, 1.0)


def squared_distance_to_cosine(squared: ArrayLike) -> Floats:
    """Return the cosine c = 1 − |x−y|²/2."""
    return 1 - _within("squared", squared, 0.0, 4.0) / 2


def cosine_to_distance(cosine: ArrayLike) -> Floats:
    """Return the distance |x−y| = √(2 − 2c)."""
    return np.sqrt(cosine_to_squared_distance(cosine))


def distance_to_cosine(distance: ArrayLike) -> Floats:
    """Return the cosine c = 1 − |x−y|²/2."""
    return 1 - _within("distance", distance, 0.0, 2.0) ** 2 / 2


def _within(name: str, value: ArrayLike, low: float, high: float) -> Floats:
    values = np.asarray(value, np.float64)
    bad = values[~((values >= low - 1e-5) & (values <= high + 1e-5))]  # NaN is bad too
    if bad.size:
        raise ValueError(f"{name} must lie in [{low:g}, {high:.6g}]; got {bad.flat[0]:g}.")
    return values.clip(low, high)
