"""The measurements: what the target's logit is at every angle, and what the rivals count as.

A feature x lies along the first axis. The row of its class is θ away from it, in the plane of the first two axes.
All rivals are one and the same row, at the cosine c, in the plane of the first and the third. So

    L = softplus(R − T),  hence  R − T = log(e^L − 1) = log(C − 1) + B(c) − T(θ)

is two functions of one variable each. B is measured at a fixed θ, T from B. What is seen of both is B(c) − T(θ);
with the logit of a rival at 90° taken to be 0, both are known. The derivative along the second axis, as autograd
reports it, is σ(R − T)·dT/dθ at a fixed B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hypermargin.common.arrays import Floats
from hypermargin.diagnose.criterion import Criterion, Outcome, rivals_and_target, row_loss
from hypermargin.diagnose.outer import PLAIN, Outer, find_outer

ALIKE = 2  # rows: some divide by the deviation of a batch, which one row does not have
FAR = math.radians(150)  # where the target's logit is low, so that the rivals' can be seen
LOWEST = {torch.float64: -20.0, torch.float32: -6.0}  # of R − T, below which rounding hides it
RIVALS = np.linspace(-1.0, 1.0, 41)


@dataclass(frozen=True)
class Placed:
    """A batch with known angles: alike rows."""

    x: Tensor
    W: Tensor
    y: Tensor


@dataclass(frozen=True)
class Lab:
    """A criterion, and the lengths that features and class rows are given in measuring it."""

    criterion: Criterion
    length: float = 1.0
    own_length: float = 1.0  # of the row of the target's class
    rival_length: float = 1.0
    target: int = 0
    alike: int = ALIKE
    floor: float = 0.0  # of the loss: what a term of its own adds, whatever the angles are
    outer: Outer = PLAIN  # what it does with the cross-entropy

    def level(self) -> Lab:
        """Return a laboratory that knows the floor: a loss that stays where it is as the lead grows."""
        bare = replace(self, floor=0.0)
        high, low = (bare.loss(math.radians(6), c) for c in (-0.9, -0.99))
        flat = math.isfinite(low) and low > 1e-6 and abs(high - low) < 1e-9 * low
        return replace(bare, floor=low if flat else 0.0)

    def loss(self, theta: float, rival: float) -> float:
        """Return the loss."""
        found, y = self.call(theta, rival)
        return float(row_loss(found, y).detach())

    def call(self, theta: float, rival: float) -> tuple[Outcome, Tensor]:
        """Return what the criterion gives, and the labels."""
        if self.criterion.form == "cosines":
            return self.lowered(self.criterion.on_cosines(self.cosines(theta, rival), self.labels)), self.labels
        at = self.place(theta, rival)
        return self.lowered(self.criterion(at.x, at.W, at.y)), at.y

    def lowered(self, found: Outcome) -> Outcome:
        """Return what was found without the floor."""
        return found if found.loss is None or not self.floor else found._replace(loss=found.loss - self.floor)

    def place(self, theta: float, rival: float) -> Placed:
        """Return a batch with its target at `theta` and its rivals at the cosine `rival`."""
        of, dtype = self.criterion, self.criterion.dtype
        axes = torch.eye(max(3, of.dim), dtype=dtype)[:3, : of.dim]
        sine = math.sqrt(max(0.0, 1 - rival * rival))
        W = (self.rival_length * (rival * axes[0] + sine * axes[2])).repeat(of.classes, 1)
        W[self.target] = self.own_length * (math.cos(theta) * axes[0] + math.sin(theta) * axes[1])
        x = (self.length * axes[0]).repeat(self.alike, 1)
        return Placed(x, W, torch.full((self.alike,), self.target))

    def gap(self, theta: float, rival: float) -> float:
        """Return R − T."""
        return self.gap_of(*self.call(theta, rival))

    def gap_of(self, found: Outcome, y: Tensor) -> float:
        """Return R − T of a batch of alike rows."""
        if found.loss is not None:
            return float(self.outer.gap(found.loss.detach().double().mean()))
        assert found.logits is not None
        R, T = rivals_and_target(found.logits.detach().double(), y)
        return float((R - T).mean())

    def with_outer(self) -> Lab:
        """Return a laboratory that knows of a weight, a focal loss or smoothed labels."""
        if self.call(1.0, 0.0)[0].loss is None:
            return self
        losses = np.array([self.loss(math.radians(60), float(c)) for c in RIVALS])
        return replace(self, outer=find_outer(RIVALS, losses, self.criterion.classes))

    @property
    def labels(self) -> Tensor:
        """The labels of a batch."""
        return torch.full((self.alike,), self.target)

    def cosines(self, theta: float, rival: float) -> Tensor:
        """Return the same batch as cosines."""
        of = self.criterion
        cosines = torch.full((self.alike, of.classes), rival, dtype=of.dtype)
        cosines[:, self.target] = math.cos(theta)
        return cosines

    def gap_and_slope(self, theta: float, rival: float) -> tuple[float, float]:
        """Return R − T, and dT/dθ as autograd reports it; nan where there is none."""
        of = self.criterion
        if of.form == "cosines":
            leaf = self.cosines(theta, rival).requires_grad_()
            y = self.labels
            found = self.lowered(of.on_cosines(leaf, y))
        else:
            at = self.place(theta, rival)
            leaf, y = at.x.requires_grad_(), at.y
            found = self.lowered(of(leaf, at.W, y))
        value = self.gap_of(found, y)
        (by,) = torch.autograd.grad(row_loss(found, y), leaf, allow_unused=True)
        pull = self.outer.slope(value) if found.loss is not None else 1 / (1 + math.exp(-max(value, -700.0)))
        if by is None or not pull:
            return value, math.nan
        if of.form == "cosines":
            return value, float(by[:, self.target].sum()) / pull * math.sin(theta)
        return value, float(by[:, 1].sum()) / pull * self.length

    def scale(self) -> float:
        """Return by how much a rival's logit grows from 90° to 60°, per cosine."""
        return (self.gap(FAR, 0.5) - self.gap(FAR, 0.0)) / 0.5

    def logit(self, theta: float, scale: float) -> float:
        """Return T at one angle, if rivals count as `scale` times their cosine."""
        c = max(-0.95, min(0.95, math.cos(theta)))
        return math.log(self.criterion.classes - 1) + scale * c - self.gap(theta, c)

    def changed(self, **what: Any) -> Lab:
        """Return a laboratory with other lengths, another target, or another state of the criterion."""
        other = replace(self, **what)
        return other.level() if self.floor else other


@dataclass(frozen=True, eq=False)
class Curves:
    """T over θ and B over c, both in logits, and the derivative of T as autograd reports it and by differences."""

    theta: Floats
    target: Floats
    reported: Floats
    rival_cosine: Floats
    rival: Floats
    noise: float  # of a logit

    @property
    def differences(self) -> Floats:
        """Return dT/dθ by central differences."""
        return np.asarray(np.gradient(self.target, self.theta))


def grid() -> Floats:
    """Return the angles: every degree, and more of them near 0 and π."""
    near = np.radians([0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75])
    return np.unique(np.concatenate((np.radians(np.arange(1, 180)), near, math.pi - near)))


def measure(lab: Lab) -> Curves:
    """Measure both curves."""
    of = lab.criterion
    rival = np.array([lab.gap(FAR, c) for c in RIVALS])
    zero = rival[len(RIVALS) // 2]
    rival[rival < LOWEST[of.dtype]] = np.nan
    if lab.outer.kind == "smoothed":
        rival[math.cos(FAR) > RIVALS] = np.nan  # where the target leads
    rival = rival - zero
    known = np.flatnonzero(np.isfinite(rival) & (np.abs(RIVALS) < 0.97))
    if not len(known) or not np.isfinite(zero):
        raise ArithmeticError("the loss is not a finite number even where every angle is well inside (0°, 180°)")
    theta = grid()
    target, reported = np.empty_like(theta), np.empty_like(theta)
    for k, angle in enumerate(theta):
        j = known[np.argmin(np.abs(RIVALS[known] - math.cos(angle)))]
        value, reported[k] = lab.gap_and_slope(angle, float(RIVALS[j]))
        target[k] = math.log(of.classes - 1) + rival[j] - value
    size = float(np.nanmax(np.abs(target))) + float(np.nanmax(np.abs(rival)))
    eps = torch.finfo(of.dtype).eps
    return Curves(theta, target, reported, RIVALS, rival, noise=max(1e3 * eps * size, 1e-9))


def adds_up(lab: Lab) -> float:
    """Return how far the loss is from softplus(log Σ exp): R of rivals at two cosines, against each alone."""
    of = lab.criterion
    if of.classes < 4 or lab.outer.kind == "smoothed":
        return 0.0  # smoothed labels are not undone for rivals that differ
    theta, low, high = FAR, 0.5, 0.8
    others = [j for j in range(of.classes) if j != lab.target]
    first = others[: len(others) // 2]
    if of.form == "cosines":
        cosines = lab.cosines(theta, high)
        cosines[:, first] = low
        mixed = lab.gap_of(lab.lowered(of.on_cosines(cosines, lab.labels)), lab.labels)
    else:
        at, other = lab.place(theta, high), lab.place(theta, low)
        at.W[first] = other.W[first]
        mixed = lab.gap_of(lab.lowered(of(at.x, at.W, at.y)), at.y)
    each = torch.tensor([lab.gap(theta, low), lab.gap(theta, high)], dtype=torch.float64)
    share = torch.tensor([len(first), len(others) - len(first)], dtype=torch.float64) / len(others)
    return abs(mixed - float(torch.logsumexp(each + share.log(), 0)))


def goes_together(lab: Lab) -> float:
    """Return by how much what rivals count as depends on the target, in logits.

    R − T is a difference of two functions, so over two angles and two cosines it is a plane.
    """
    if lab.outer.kind == "smoothed":
        return 0.0  # of two leads that cost the same the smaller is taken, so leads cannot be compared
    near, far, high = math.radians(30), math.radians(120), 0.95
    for low in np.arange(-0.9, 0.9, 0.1):
        if min(lab.gap(theta, float(low)) for theta in (near, far)) >= LOWEST[lab.criterion.dtype] / 2:
            corners = [lab.gap(theta, c) for theta, c in ((near, low), (far, high), (near, high), (far, low))]
            return abs(corners[0] + corners[1] - corners[2] - corners[3])
    return 0.0
