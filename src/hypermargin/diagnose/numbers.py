"""Numbers as somebody would have written them."""

from __future__ import annotations


def tidy(value: float, tolerance: float) -> float:
    """Return the shortest number within the tolerance: 0.5 for 0.50000003."""
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        if abs(short - value) <= max(tolerance, 1e-9):
            return short
    return value
