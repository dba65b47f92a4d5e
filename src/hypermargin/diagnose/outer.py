"""What a loss does with its cross-entropy: weighs it, makes it a focal loss, smooths its labels.

Where all rivals are alike the cross-entropy is softplus(g) with g = R − T, and such a loss is h(g), a function of
one number. A rival that counts as its cosine makes g linear in that cosine. So the right h is the one whose inverse
turns the measured losses into a straight line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hypermargin.common.arrays import Floats
from hypermargin.diagnose.numbers import tidy

STRAIGHT = 1e-6  # of the size of g: how far from a line it may lie
LEAST = 1e-7  # of a loss in float64
FARTHEST = 700.0  # of g, within which exp does not overflow
KINDS = {"weighted": (1e-4, 1e4), "focal": (0.05, 10.0), "smoothed": (1e-3, 0.9)}  # and what value each may have


@dataclass(frozen=True)
class Outer:
    """h of a loss h(R − T): of a plain cross-entropy, softplus.

    kind    "plain", or one of KINDS; value its weight, γ or ε
    """

    kind: str = "plain"
    value: float = 1.0
    classes: int = 2

    def __call__(self, g: Floats) -> Floats:
        """Return h(g), for rivals that are all alike."""
        plain: Floats = np.logaddexp(0.0, g)
        if self.kind == "weighted":
            return self.value * plain
        if self.kind == "focal":
            return plain * np.exp(-self.value * np.logaddexp(0.0, -g))
        if self.kind == "smoothed":
            return plain - self._share * (g - math.log(self.classes - 1))
        return plain

    @property
    def _share(self) -> float:
        return self.value * (self.classes - 1) / self.classes

    def inverse(self, loss: Floats) -> Floats:
        """Return g; nan where h does not get to the loss. Smoothed labels have two, of which it is the larger."""
        least = -FARTHEST
        if self.kind == "smoothed":
            least = math.log(self._share / (1 - self._share))
        low, high = np.full_like(loss, least), np.full_like(loss, FARTHEST)
        for _ in range(70):
            middle = (low + high) / 2
            above = self(middle) > loss
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        found = (low + high) / 2
        reached = (self(np.full_like(loss, least)) <= loss) & (loss <= self(np.full_like(loss, FARTHEST)))
        return np.where(reached, found, np.nan)

    def gap(self, loss: Tensor) -> Tensor:
        """Return R − T of a loss."""
        if self.kind == "plain":
            return loss + torch.log(-torch.expm1(-loss))  # log(e^L − 1), without overflow
        return torch.from_numpy(self.inverse(np.atleast_1d(loss.numpy()))).reshape(loss.shape)

    def slope(self, g: float) -> float:
        """Return h'(g)."""
        right = 1 / (1 + math.exp(-g)) if g > -FARTHEST else 0.0
        if self.kind == "weighted":
            return self.value * right
        if self.kind == "smoothed":
            return right - self._share
        if self.kind == "focal":
            return float(right**self.value * (right + self.value * (1 - right) * np.logaddexp(0.0, g)))
        return right

    def of_rows(self, losses: Tensor) -> Tensor:
        """Return what becomes of cross-entropies by row; smoothed ones are asked of whoever computes them."""
        if self.kind == "weighted":
            return self.value * losses
        if self.kind == "focal":
            return losses * (-torch.expm1(-losses)) ** self.value
        return losses

    def said(self) -> str:
        """Name it."""
        if self.kind == "weighted":
            over = round(1 / self.value)
            whole = over > 1 and self.value == 1 / over
            return f"a cross-entropy divided by {over}" if whole else f"a cross-entropy times {self.value:g}"
        return {"focal": "a focal loss, γ = {:g}", "smoothed": "a cross-entropy with labels smoothed by {:g}"}[
            self.kind
        ].format(self.value)


PLAIN = Outer()


def find_outer(cosines: Floats, losses: Floats, classes: int) -> Outer:
    """Return the h that makes g a line over the rivals' cosine; the plain one if none does, or several do."""
    # Below, what is left of the loss after subtracting is rounding; near ±1 some clamp their cosines.
    known = np.isfinite(losses) & (losses > LEAST) & (np.abs(cosines) < 0.97)
    c, L = cosines[known], losses[known]
    if len(c) < 12 or L.min() > 0.5 or L.max() < 2:
        return PLAIN  # without both ends of it a weight is not told from a margin
    found = [_best(kind, c, L, classes) for kind in KINDS]
    off, best = min(found, key=lambda pair: pair[0])
    value, over = tidy(best.value, 1e-4 * best.value), round(1 / best.value)
    if best.kind == "weighted" and over > 1 and abs(over * best.value - 1) < 1e-4:
        value = 1 / over  # a mean over classes, say
    if off > STRAIGHT or (best.kind == "weighted" and value == 1):
        return PLAIN
    return Outer(best.kind, value, classes)


def _best(kind: str, c: Floats, L: Floats, classes: int) -> tuple[float, Outer]:
    """Return how far from a line the best of a kind is, and it."""
    low, high = KINDS[kind]

    def off(value: float) -> float:
        return _off_a_line(Outer(kind, math.exp(value), classes), c, L)

    grid = np.linspace(math.log(low), math.log(high), 60)
    best = int(np.argmin([off(float(v)) for v in grid]))
    left, right = float(grid[max(0, best - 1)]), float(grid[min(len(grid) - 1, best + 1)])
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(50):
        a, b = right - golden * (right - left), left + golden * (right - left)
        left, right = (left, b) if off(a) < off(b) else (a, right)
    value = (left + right) / 2
    return off(value), Outer(kind, math.exp(value), classes)


def _off_a_line(outer: Outer, c: Floats, L: Floats) -> float:
    """Return how far the losses are from h of the line that its inverse comes nearest to."""
    g = outer.inverse(L)
    known = np.isfinite(g) & (np.abs(g) < FARTHEST / 2)
    if outer.kind == "smoothed":  # left of its minimum h has the other of its two
        known &= c > c[int(L.argmin())]
    if known.sum() < 8:
        return math.inf
    slope, offset = np.polyfit(c[known], g[known], 1)
    off = np.abs(g[known] - slope * c[known] - offset).max() / np.abs(g[known]).max()
    # The other side too, which an inverse on one side has not seen.
    back = np.abs(outer(slope * c + offset) - L).max() / L.max()
    return float(max(off, back)) if slope > 0 else math.inf
