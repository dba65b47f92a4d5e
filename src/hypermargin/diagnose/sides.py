"""What the lengths of features and class rows do: nothing, the scale, the margin, or what they should not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hypermargin.diagnose.angles import Lab
from hypermargin.diagnose.numbers import tidy

LENGTHS = (2.0, 10.0, 20.0, 60.0, 110.0)
SAME = 1e-3  # a relative difference that is no difference, in float32 too
AT = math.radians(70), math.radians(100)

UNIT, FREE, MARGIN, MIXED = "unit", "free", "margin", "mixed"


@dataclass(frozen=True)
class Side:
    """What the length of one side does.

    kind    unit: nothing; free: the logits are proportional to it; margin: it changes ψ and not the scale; mixed:
            it changes the logits, but not in proportion
    by_length   for "margin": the target's cosine at 70° by length
    crossed     the length of the target's own row reaches the rivals
    """

    kind: str
    by_length: tuple[tuple[float, float], ...] = ()
    crossed: bool = False


def features_side(lab: Lab) -> Side:
    """Find out what |x| does."""
    if lab.criterion.form == "cosines":
        return Side(UNIT)
    base = _seen(lab, None)
    found = {length: _seen(lab.changed(length=length), base[0] / lab.length * length) for length in LENGTHS}
    scales = [seen[0] / base[0] for seen in found.values()]
    grows = [scale / length for scale, length in zip(scales, LENGTHS, strict=True)]
    if all(_near(scale, 1) for scale in scales):
        moved = any(
            not _near(a, b, base[0]) for seen in found.values() for a, b in zip(seen[1], base[1], strict=True)
        )
        if not moved:
            return Side(UNIT)
        return Side(MARGIN, tuple((r, seen[1][0] / base[0]) for r, seen in ((1.0, base), *found.items())))
    if all(_near(each, 1) for each in grows):
        proportional = all(
            _near(a / length, b, base[0])
            for length, seen in found.items()
            for a, b in zip(seen[1], base[1], strict=True)
        )
        return Side(FREE if proportional else MIXED)
    return Side(MIXED)


def rows_side(lab: Lab) -> Side:
    """Find out what |W_j| does."""
    if lab.criterion.form == "cosines":
        return Side(UNIT)
    base = _seen(lab, None)
    kinds = set()
    for length in (0.5, 2.0):
        s, targets = _seen(lab.changed(own_length=length, rival_length=length), base[0])
        if _near(s / base[0], 1) and all(_near(a, b, base[0]) for a, b in zip(targets, base[1], strict=True)):
            kinds.add(UNIT)
        elif _near(s / base[0], length) and all(
            _near(a, length * b, base[0]) for a, b in zip(targets, base[1], strict=True)
        ):
            kinds.add(FREE)
        else:
            kinds.add(MIXED)
    crossed = not _near(lab.changed(own_length=2.0).scale() / base[0], 1)
    return Side(kinds.pop() if len(kinds) == 1 else MIXED, crossed=crossed)


def _seen(lab: Lab, scale: float | None) -> tuple[float, tuple[float, ...]]:
    """Return the scale of the rivals and the target's logit at two angles."""
    found = lab.scale()
    return found, tuple(_target(lab, angle, found) for angle in AT)


def _target(lab: Lab, theta: float, scale: float) -> float:
    """Return T, rivals counting as `scale` times their cosine, with rivals that are not far from the target."""
    c = max(-0.95, min(0.95, math.cos(theta)))
    return math.log(lab.criterion.classes - 1) + scale * c - lab.gap(theta, c)


def _near(a: float, b: float, size: float = 1.0) -> bool:
    return abs(a - b) <= SAME * max(abs(size), abs(b))


class ByLength(NamedTuple):
    """The loss whose margin follows the length like what was measured, and the line of ours."""

    said: str
    line: str


def by_length(lab: Lab, scale: float, beyond: str) -> ByLength | None:
    """Name a margin that follows the length: AdaFace's or MagFace's.

    AdaFace's is an angle and a cosine that add up to m at every length; MagFace's angle is linear between two.
    beyond: of the margin at length 1, for MagFace's
    """
    known = [_parts(lab.changed(length=length), scale) for length in (1.0, 20.0, 60.0, 1000.0)]
    angles, cosines = [each[0] for each in known], [each[1] for each in known]
    sums = np.add(angles, cosines)
    if not np.isfinite(sums).all():
        return None
    end = f"scale={scale:g})"
    if np.ptp(sums) < 1e-4 and np.ptp(cosines) > 1e-3:
        m = tidy(float(sums[0]), 1e-4)
        return ByLength(f"AdaFace, m = {m:g}", f'hypermargin.create_head("adaface", dim, classes, m={m:g}, {end}')
    low, near, far, high = angles
    if np.abs(cosines).max() > 1e-4 or not low < near < far < high:
        return None
    grows = (far - near) / 40
    numbers = {"l_m": low, "u_m": high, "l_a": 20 - (near - low) / grows, "u_a": 20 + (high - near) / grows}
    short = {name: tidy(value, 1e-4 * value) for name, value in numbers.items()}
    said = f"MagFace, m = {short['l_m']:g} at |x| ≤ {short['l_a']:g} to {short['u_m']:g} at |x| ≥ {short['u_a']:g}"
    given = ", ".join(f"{name}={value:g}" for name, value in short.items())
    return ByLength(
        f"{said}, beyond = {beyond}", f'hypermargin.create_head("magface", dim, classes, {given}, {end}'
    )


def _parts(lab: Lab, scale: float) -> tuple[float, float]:
    """Return the angle that is added and the cosine that is subtracted; nan if ψ is not made so."""
    theta = np.radians(np.arange(12.0, 80.0, 4.0))
    psi = np.array([_target(lab, float(angle), scale) for angle in theta]) / scale
    basis = np.stack((np.cos(theta), np.sin(theta), np.ones_like(theta)), 1)
    (cosine, sine, shift), *_ = np.linalg.lstsq(basis, psi, rcond=None)
    fits = np.abs(basis @ (cosine, sine, shift) - psi).max() < 1e-4 and abs(math.hypot(cosine, sine) - 1) < 1e-3
    return (math.atan2(-sine, cosine), -float(shift)) if fits else (math.nan, math.nan)
