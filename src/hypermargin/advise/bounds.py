"""What the number of classes C and the dimension d allow: scales, margins, and how low the loss can get.

A margin may be given as a number, the m of CosFace (ψ(θ) = cos θ − m), or as any `Margin`.
"""

from __future__ import annotations

import math

from hypermargin import checks
from hypermargin.margins import Margin
from hypermargin.scales import largest_angle, psi_at


def loss_floor(classes: int, s: float, m: float | Margin = 0.0) -> float:
    """Return the least mean loss that C balanced classes can reach, all vectors unit:

        log(1 + (C−1)·exp(−s·(ψ(0) + 1/(C−1)))),     with CosFace: exponent −s·(C/(C−1) − m).

    Reached when the centers form a simplex with the samples on them, which needs C ≤ d + 1.
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


def largest_margin(classes: int, dim: int) -> float:
    """Return the largest m of CosFace that samples on their centers can meet: 1 − cos φ, φ = `largest_angle`.

    C/(C−1) for C ≤ d + 1, 1 − cos(2π/C) for d = 2 (CosFace's equation 7), 1 for d + 1 < C ≤ 2d, and an upper
    bound beyond. One class has no rivals: 2, all that cosines allow.
    """
    return 1 - math.cos(largest_angle(classes, dim))
