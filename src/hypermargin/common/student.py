"""Student's distribution, without scipy."""

from __future__ import annotations

import math


def two_sided(t: float, freedom: int) -> float:
    """Return P(|T| > |t|) of Student's T with whole degrees of freedom ν: a finite sum in φ = atan(|t|/√ν)."""
    phi = math.atan(abs(t) / math.sqrt(freedom))
    odd = freedom % 2
    term, total = (math.cos(phi), 0.0) if odd else (1.0, 0.0)
    for k in range(2 if odd else 1, freedom, 2):
        total += term
        term *= k / (k + 1) * math.cos(phi) ** 2
    inside = 2 / math.pi * (phi + math.sin(phi) * total) if odd else math.sin(phi) * total
    return max(0.0, 1.0 - inside)
