"""How large s has to be: lower bounds, AdaCos, and the advised scale.

The bounds follow from the number of classes and the dimension.

A margin may be given as a number, the m of CosFace (ψ(θ) = cos θ − m), or as any `Margin`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.margins import CosFace, Margin

LARGEST_USUAL_SCALE = 64.0


def psi_at(margin: float | Margin, theta: float) -> float:
    """Return ψ(θ) of one angle, in float64; a plain number is the m of CosFace."""
    if isinstance(margin, (int, float)):
        CosFace(float(margin))  # which checks it
        return math.cos(theta) - margin
    return float(margin.psi(torch.tensor(theta, dtype=torch.float64)))


class NoScaleError(ValueError):
    """There is no rule for the s of this margin."""

    def __init__(self, margin: Margin) -> None:
        super().__init__(
            f"no s can be advised for {margin.name}: its target and rivals do not count as cosines, which the rule "
            "for s supposes. Give a number; `create_head` has its paper's."
        )


def check_probability(probability: float) -> None:
    """Require a probability that a finite scale can reach."""
    if not 0 < probability < 1:
        raise ValueError(
            f"probability must lie in (0, 1); got {probability:g}. No finite scale reaches 0 or 1; try 0.99."
        )


def check_angle(name: str, theta: float, *, zero: bool) -> None:
    """Require an angle between two directions, in radians."""
    if not 0 <= theta <= math.pi + 1e-12 or (theta == 0 and not zero):
        raise ValueError(f"{name} must lie in {'[' if zero else '('}0, π]; got {theta:g}. Angles are in radians.")


def smallest_scale(
    classes: int,
    probability: float = 0.99,
    m: float | Margin = 0.0,
    *,
    angle: float = 0.0,
) -> float:
    """Return the smallest s at which a sample can reach the target probability P = `probability`.

    The centers are taken to form a simplex, the best case: c_j = −cos θ/(C−1) for the rivals of a sample at
    θ = `angle` from its own center (0: exactly on it). Then p_y ≥ P is

        s ≥ ln((C−1)·P/(1−P)) / (ψ(θ) + cos θ/(C−1)),     and at θ = 0:  ψ(0) = 1 − m for CosFace, so
        s ≥ ln((C−1)·P/(1−P)) / (C/(C−1) − m),            CosFace's equation 6 for m = 0.

    The result is 0 if any scale will do (P ≤ 1/C; one class). p_y is the probability in the loss, with the margin.
    """
    checks.count("classes", classes)
    check_probability(probability)
    check_angle("angle", angle, zero=True)
    if classes == 1:
        return 0.0
    gap = psi_at(m, angle) + math.cos(angle) / (classes - 1)
    if gap <= 0:
        raise ValueError(
            f"m = {m} cannot be met at angle {angle:g}: the margined target cosine {psi_at(m, angle):.4g} is not "
            f"above the rivals' {-math.cos(angle) / (classes - 1):.4g}, so no scale gives probability "
            f"{probability:g}. Take a smaller m."
        )
    return max(0.0, math.log((classes - 1) * probability / (1 - probability)) / gap)


def adacos_scale(classes: int) -> float:
    """Return s = √2·ln(C−1), the fixed scale of AdaCos (Zhang et al. 2019, arXiv:1905.00292), at least 1.

    A sample at π/4 from its center and at right angles to all rivals then has p_y = 1/2. The formula gives 0
    for C = 2 and less than 1 up to C = 3; a scale of 0 would stop learning, hence the floor.
    """
    checks.count("classes", classes)
    return max(1.0, math.sqrt(2) * math.log(classes - 1)) if classes > 1 else 1.0


def largest_angle(classes: int, dim: int) -> float:
    """Return the largest φ such that C centers in d dimensions can all be at least φ apart.

    It is also the largest m of ArcFace that a sample on its center can satisfy (θ = 0: m ≤ φ). It is exact for

        C = 1: π (no rival)      d = 1, C ≥ 3: 0     d = 2: 2π/C, the regular polygon
        C ≤ d + 1: acos(−1/(C−1)), the simplex       d + 1 < C ≤ 2d: π/2 (Rankin 1955)

    For C > 2d ≥ 6 the exact value is known in few cases. Then an upper bound is returned, the smaller of
    - Levenshtein's of degree 3, C ≤ d(1−t)(2 + (d+1)t)/(1 − d·t²) with t = cos φ: Delsarte's method with
      f(x) = (x−t)(x+a)², a = (1+t)/(1+dt); solved for t it is the root of a quadratic. Strong up to C ≈ d²/2;
    - disjoint caps of radius φ/2: each has a share ≥ sin^(d−1)(φ/2) / ((d−1)·B) of the sphere, with
      B = √π·Γ((d−1)/2)/Γ(d/2), so sin(φ/2) ≤ ((d−1)·B/C)^(1/(d−1)). Strong for small d and very large C.
    """
    checks.count("classes", classes)
    checks.count("dim", dim)
    if classes == 1:
        return math.pi
    if classes <= dim + 1:
        return math.acos(-1 / (classes - 1))
    if dim <= 2:
        return 2 * math.pi / classes if dim == 2 else 0.0
    if classes <= 2 * dim:
        return math.pi / 2
    C, d = classes, dim
    # Root of d(C−d−1)t² + d(d−1)t − (C−2d) = 0 in the form that does not cancel.
    b = d * (d - 1)
    t = 2 * (C - 2 * d) / (b + math.sqrt(b * b + 4 * d * (C - d - 1) * (C - 2 * d)))
    log_B = 0.5 * math.log(math.pi) + math.lgamma((d - 1) / 2) - math.lgamma(d / 2)
    sine = math.exp((math.log(d - 1) + log_B - math.log(C)) / (d - 1))
    caps = 2 * math.asin(sine) if sine < 1 else math.pi
    return min(math.acos(t), caps)


@dataclass(frozen=True)
class Scales:
    """The three lower bounds on s that the rule for the advised scale combines."""

    on_centre: float
    nearest: float
    typical: float

    @property
    def s(self) -> float:
        """The largest bound, rounded up to one decimal; `typical` counts as LARGEST_USUAL_SCALE at most."""
        return max(0.1, math.ceil(10 * max(self._roomy, self.nearest) - 1e-9) / 10)

    @property
    def crowded(self) -> bool:
        """Whether the nearest rival, and so the packing of the centers, decides the scale."""
        return self.nearest > self._roomy

    @property
    def _roomy(self) -> float:
        return max(self.on_centre, min(self.typical, LARGEST_USUAL_SCALE))


def typical_angle(classes: int) -> float:
    """Return the θ of a typical sample: π/6 up to 1000 classes, rising with log C to π/4 at 100,000 and beyond.

    The best settings measured at 767 classes correspond to 34° to 40° (NormFace s = 8; ArcFace 10, m 0.2; CosFace
    10, m 0.1); the scale that the rule gives with π/6 tested as well as they did (benchmarks/results/heads.md). π/4
    is AdaCos' choice for faces and, with a margin, gives the papers' s = 30-64. In between, a straight line is
    assumed.
    """
    checks.count("classes", classes)
    return math.pi / 6 + math.pi / 12 * min(1.0, max(0.0, math.log10(classes / 1000) / 2))


def lower_bounds(classes: int, phi: float, margin: Margin, probability: float, theta: float) -> Scales:
    """Return the three bounds, for centers at most φ apart and typical samples at angle θ from their centers."""
    reachable = psi_at(margin, theta) + math.cos(theta) / (classes - 1) > 0
    # 2·sin²(φ/2) = 1 − cos φ without the cancellation.
    nearest = math.log(probability / (1 - probability)) / (2 * math.sin(phi / 2) ** 2)
    return Scales(
        on_centre=smallest_scale(classes, probability),
        nearest=max(0.0, nearest),
        typical=smallest_scale(classes, 0.5, margin, angle=theta) if reachable else math.inf,
    )


@functools.lru_cache
def advised_scale(classes: int, dim: int, margin: Margin) -> float:
    """Return the s of `advise.recommend` for this margin; 1 for a single class, which has no rivals."""
    if not margin.is_cosine:
        raise NoScaleError(margin)
    if classes < 2:
        return 1.0
    phi = largest_angle(classes, dim)
    if phi == 0:
        raise ValueError(f"dim = 1 has room for 2 centers; got classes = {classes}. Take dim ≥ 2.")
    theta = min(typical_angle(classes), phi / 2)
    return lower_bounds(classes, phi, margin, 0.99, theta).s


def needed_scale(
    scale: float | Tensor | str | None, unit_features: bool, classes: int, dim: int, margin: Margin | None
) -> float | Tensor:
    """Return the scale as given, the advised one for "advised", or 1 for None if features keep their length."""
    if isinstance(scale, (Tensor, int, float)):
        return scale
    if scale is None and not unit_features:
        return 1.0
    assert margin is not None  # callers without a margin always give a scale
    if scale is None:
        way = "a number (64 in most papers)."
        if margin.is_cosine:
            s = advised_scale(classes, dim, margin)
            way = f'scale="advised" ({s:g} for {classes:,} classes in {dim} dimensions), or {way}'
        raise ValueError(
            "scale must be given with unit features: cosines lie within 2 of each other, and with a scale of 1 the "
            f"loss hardly falls. Use {way}"
        )
    if scale != "advised":
        raise TypeError(f'scale must be a number; got {scale!r}. "advised" finds one for so many classes.')
    return advised_scale(classes, dim, margin)
