"""A ψ that no margin of the family has, but a slip has: a sign, degrees for radians, a scale on one side alone."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hypermargin.common.arrays import Floats
from hypermargin.diagnose.findings import Finding

BEFORE = math.radians(100)  # the angles that are looked at: the fold of a margin lies beyond
FEWEST, MOST = 3.0, 90.0  # degrees of a margin


class Slip(NamedTuple):
    """What ψ is, as a formula, and what is wrong with it."""

    psi: str
    finding: Finding


def slip(theta: Floats, psi: Floats, tolerance: float) -> Slip | None:
    """Return which slip explains ψ = a·cos(θ + m) − b; None if none does."""
    inner = (theta > math.radians(5)) & (theta < BEFORE) & np.isfinite(psi)
    t, p = theta[inner], psi[inner]
    if len(t) < 20:
        return None
    basis = np.stack((np.cos(t), np.sin(t), np.ones_like(t)), 1)
    (cosine, sine, shift), *_ = np.linalg.lstsq(basis, p, rcond=None)
    a, m = math.hypot(cosine, sine), math.atan2(-sine, cosine)
    close = max(100 * tolerance, 1e-5)
    if np.abs(basis @ (cosine, sine, shift) - p).max() > tolerance or a < close:
        return None
    if abs(a - 1) > close:
        return _scaled(a, m if abs(m) > close else 0.0)
    if abs(shift) > close:
        return _added(shift) if shift > 0 and abs(m) < close else None
    return _degrees(m, close) or (_turned(m) if m < -close else None)


def _scaled(a: float, m: float) -> Slip:
    cosine = f"cos(θ + {m:.4g})" if m else "cos θ"
    said = f"The target's logit has {a:.4g} times the scale of the rivals'."
    remedy = "Put the margined cosine in first, then multiply all of them: s·torch.where(one_hot, ψ, cosines)."
    return Slip(f"{a:.4g}·{cosine}", Finding("scales-differ", "wrong", said, remedy))


def _added(shift: float) -> Slip:
    psi = f"cos θ + {shift:.4g}"
    said = f"The margin is added to the target's cosine, ψ = {psi}: it makes the task easier."
    return Slip(psi, Finding("margin-sign", "wrong", said, f"Subtract it: cos θ − {shift:.4g}."))


def _turned(m: float) -> Slip:
    psi = f"cos(θ − {-m:.4g})"
    said = f"The margin is subtracted from the target's angle, ψ = {psi}: it makes the task easier."
    return Slip(psi, Finding("margin-sign", "wrong", said, f"Add it: cos(θ + {-m:.4g})."))


def _degrees(m: float, close: float) -> Slip | None:
    """A round number of degrees, taken in radians, is m and some whole turns."""
    for turns in range(15):
        number = m + 2 * math.pi * turns
        if FEWEST <= number <= MOST and abs(number - round(number, 1)) < close:
            number = round(number, 1)
            said = (
                f"ψ = cos(θ + {number:g}): the margin is {number:g} radians, and must have been meant in degrees."
            )
            remedy = f"math.radians({number:g}) = {math.radians(number):.4g}."
            return Slip(f"cos(θ + {number:g})", Finding("degrees", "wrong", said, remedy))
    return None
