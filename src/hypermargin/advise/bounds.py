"""What the number of classes C and the dimension d allow: scales, margins, and how low the loss can get.

A margin may be given as a number, the m of CosFace (ψ(θ) = cos θ − m), or as any `Margin`.
"""

from __future__ import annotations

import math

import torch

from hypermargin import checks
from hypermargin.margins import CosFace, Margin


def psi_at(margin: float | Margin, theta: float) -> float:
    """Return ψ(θ) of one angle, in float64; a plain number is the m of CosFace."""
    margin = CosFace(float(margin)) if isinstance(margin, int | float) else margin
    return float(margin.psi(torch.tensor(theta, dtype=torch.float64)))


def check_probability(probability: float) -> None:
    """Check that a finite scale can reach a probability."""
    if not 0 < probability < 1:
        raise ValueError(
            f"probability must lie in (0, 1); got {probability:g}. No finite scale reaches 0 or 1; try 0.99."
        )


def check_angle(name: str, theta: float, *, zero: bool) -> None:
    """Check an angle between two directions, in radians."""
    if not 0 <= theta <= math.pi + 1e-12 or (theta == 0 and not zero):
        raise ValueError(f"{name} must lie in {'[' if zero else '('}0, π]; got {theta:g}. Angles are in radians.")


def smallest_scale(
    classes: int,
    probability: float = 0.99,
    m: float | Margin = 0.0,
    *,
    angle: float = 0.0,
) -> float:
    """Return the smallest s at which a sample can get the target probability P = `probability`.

    The centres form a simplex, the best there is: c_j = −cos θ/(C−1) for the rivals of a sample at θ = `angle`
    from its own centre (0: right on it). Then p_y ≥ P is

        s ≥ ln((C−1)·P/(1−P)) / (ψ(θ) + cos θ/(C−1)),     and at θ = 0:  ψ(0) = 1 − m for CosFace, so
        s ≥ ln((C−1)·P/(1−P)) / (C/(C−1) − m),            CosFace's equation 6 for m = 0.

    0 if any scale will do (P ≤ 1/C; one class). p_y is the probability the loss sees, so with the margin.
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

    A sample at π/4 from its centre and at right angles to all rivals then has p_y = 1/2. The formula gives 0
    for C = 2 and less than 1 up to C = 3; a scale of 0 would stop learning, hence the floor.
    """
    checks.count("classes", classes)
    return max(1.0, math.sqrt(2) * math.log(classes - 1)) if classes > 1 else 1.0


def loss_floor(classes: int, s: float, m: float | Margin = 0.0) -> float:
    """Return the least mean loss that C balanced classes can reach, all vectors unit:

        log(1 + (C−1)·exp(−s·(ψ(0) + 1/(C−1)))),     with CosFace: exponent −s·(C/(C−1) − m).

    Reached when the centres form a simplex with the samples on them, which needs C ≤ d + 1.
    Why: let A be the mean of cos θ_y. LSE_j z_j ≥ ln(C−1) + mean_j z_j, and softplus is convex, so the mean loss
    is ≥ softplus(ln(C−1) + s·E) with E the mean over y of (rivals' mean cosine − ψ(θ_y)). Σ_y Σ_j ⟨x_y, w_j⟩
    = ⟨Σx, Σw⟩ ≥ −|Σ(x − w)|²/4 ≥ −C²(1−A)/2 bounds the rivals, and E ≥ −ψ(0) − 1/(C−1) follows when
    ψ(0) − ψ(θ) ≥ (1 − cos θ)/2. That holds for every g(m1·θ + m2) − m3 with m1 ≥ 1. One sample alone can get lower.
    """
    checks.count("classes", classes)
    checks.positive("s", s)
    if classes == 1:
        return 0.0
    x = math.log(classes - 1) - s * (psi_at(m, 0.0) + 1 / (classes - 1))
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))  # softplus(x) without overflow


def largest_angle(classes: int, dim: int) -> float:
    """Return how far apart C centres can be in d dimensions: the largest smallest angle φ between two of them.

    It is also the largest m of ArcFace that a sample on its centre can meet (θ = 0: m ≤ φ). Exact are

        C = 1: π (no rival)      d = 1, C ≥ 3: 0     d = 2: 2π/C, the regular polygon
        C ≤ d + 1: acos(−1/(C−1)), the simplex       d + 1 < C ≤ 2d: π/2 (Rankin 1955)

    For C > 2d ≥ 6 the answer is known in few cases. What is returned then is an upper bound, the smaller of
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


def largest_margin(classes: int, dim: int) -> float:
    """Return the largest m of CosFace that samples on their centres can meet: 1 − cos φ, φ = `largest_angle`.

    C/(C−1) for C ≤ d + 1, 1 − cos(2π/C) for d = 2 (CosFace's equation 7), 1 for d + 1 < C ≤ 2d, and an upper
    bound beyond. One class has no rivals: 2, all that cosines allow.
    """
    return 1 - math.cos(largest_angle(classes, dim))
