"""The loss of the classic family, written once for the arrays of several frameworks. It imports none of them.

`xp` has the array functions: `OPS` of keras/_ops.py, or `ARRAYS` of jax.py. Shapes: N rows, C classes, d numbers.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hypermargin.classic import CLASSIC, NUMBERS

# What ψ is past π, for each margin; margins/ in the library explains them.
BEYOND = {
    "none": ("smooth",),
    "sphereface": ("smooth", "flat", "none"),
    "cosface": ("smooth",),
    "arcface": ("smooth", "linear", "continuous", "flat", "none", "easy"),
    "combined": ("smooth", "none"),
}
LIMITS = {"m1": (1.0, math.inf), "m2": (0.0, math.pi), "m3": (0.0, 2.0)}
ZERO = {"m1": 1.0, "m2": 0.0, "m3": 0.0}  # the margin that is none
HIDDEN = -1e30  # a logit that does not count


@dataclass(frozen=True)
class Margin:
    """ψ(θ) = g(m1·θ + m2) − m3, which `beyond` continues past π in another way than g. `margin` makes one by name.

    The numbers may be arrays, one per row (N,), and may be differentiated by.
    """

    name: str = "none"
    m1: Any = 1.0
    m2: Any = 0.0
    m3: Any = 0.0
    beyond: str = "smooth"

    def at_strength(self, share: Any) -> Margin:
        """Return the margin with each number moved towards none: m₀ + share·(m − m₀)."""
        return replace(self, m1=1 + share * (self.m1 - 1), m2=share * self.m2, m3=share * self.m3)

    def psi(self, xp: Any, theta: Any) -> Any:
        """Return ψ at angles in [0, π]."""
        u = self.m1 * theta + self.m2
        if self.beyond == "smooth":
            return g(xp, u) - self.m3
        if self.beyond == "none":
            return xp.cos(u) - self.m3
        if self.beyond == "flat":
            return xp.where(u <= math.pi, xp.cos(u), -xp.ones_like(u)) - self.m3
        if self.beyond == "easy":
            return xp.where(theta < math.pi / 2, xp.cos(u), xp.cos(theta))
        m2 = self.m2 + xp.zeros_like(theta)  # an array, in the dtype of the angles
        drop = m2 * xp.sin(m2) if self.beyond == "linear" else 1 - xp.cos(m2)  # else "continuous"
        return xp.where(u <= math.pi, xp.cos(u), xp.cos(theta) - drop)

    def lift(self, xp: Any, theta: Any) -> Any:
        """Return what the margin adds to the cosine of the target: ψ(θ) − cos θ."""
        if self.name == "none":
            return xp.zeros_like(theta)
        return -self.m3 + xp.zeros_like(theta) if self.name == "cosface" else self.psi(xp, theta) - xp.cos(theta)

    def lift_of_cosine(self, xp: Any, cosine: Any) -> Any:
        """Return the same from cosines, which near ±1 have lost half the digits of the angle."""
        if self.name in ("none", "cosface"):
            return self.lift(xp, cosine)  # which looks at no angle
        return self.psi(xp, guarded_acos(xp, cosine)) - cosine


def g(xp: Any, u: Any) -> Any:
    """Return g(u) = (−1)^k cos u − 2k, k = ⌊u/π⌋: the cosine, which goes on falling past π. g′(u) = −|sin u|."""
    k = xp.floor(u / math.pi)
    return xp.cos(u - math.pi * k) - 2 * k


def margin(name: str, numbers: Mapping[str, Any] | None = None) -> Margin:
    """Return the ψ of a classic head by name, with its paper's numbers where `numbers` has none.

    `numbers` may hold m (combined: m1, m2, m3) and beyond.
    """
    given = dict(numbers or {})
    one_of("the head", name, CLASSIC)
    kind = CLASSIC[name].margin
    beyond = given.pop("beyond", "smooth")
    one_of("beyond", beyond, BEYOND[kind])
    if unknown := given.keys() - NUMBERS[kind].keys():
        known = ", ".join(NUMBERS[kind]) or "no numbers"
        raise TypeError(f"{name} has no {', '.join(sorted(unknown))}; its margin has {known}.")
    named = {}
    for key, value in {**CLASSIC[name].numbers, **given}.items():
        part = NUMBERS[kind][key]
        _check_number(f"{name}: {key}", part, value, open_low=kind == "combined")
        named[part] = value
    return Margin(kind, **named, beyond=beyond)


def _check_number(what: str, part: str, value: Any, *, open_low: bool) -> None:
    """Require a plain number to be in its domain; an array is taken as it is."""
    if value is None or isinstance(value, bool | str):
        raise TypeError(f"{what} must be a number or an array; got {value!r}.")
    if not isinstance(value, int | float):
        return
    low, high = LIMITS[part]
    open_low = open_low and part == "m1"
    if open_low:
        low = 0.0
    if not (low < value if open_low else low <= value) or value >= high:
        hint = f" {value:g} degrees are {math.radians(value):.4g}." if part == "m2" and value > math.pi else ""
        bracket = "(" if open_low else "["
        raise ValueError(f"{what} must lie in {bracket}{low:g}, {high:.6g}); got {value:g}.{hint}")


def one_of(what: str, value: object, allowed: Iterable[str]) -> None:
    """Require one of the allowed words."""
    known = list(allowed)
    if value not in known:
        near = difflib.get_close_matches(str(value), known, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{what} must be one of {', '.join(map(repr, known))}; got {value!r}.{hint}")


def whole(what: str, value: object, hint: str = "") -> None:
    """Require a whole number, at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{what} must be a whole number, at least 1{hint}; got {value!r}.")


def number(what: str, value: object, *, positive: bool, instead: str = "") -> None:
    """Require a number above 0, or one that is at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be a number{instead}; got {value!r}.")
    if not (value > 0 if positive else value >= 0) or value == math.inf:
        raise ValueError(f"{what} must be finite and {'above' if positive else 'at least'} 0; got {value:g}.")


class Rows(NamedTuple):
    """Scaled features and what they are made of."""

    f: Any  # (N, d)  s·x̂, or s·x
    direction: Any  # (N, d)  x̂, zero for zero rows
    length: Any  # (N,)  |f|


class Rivals(NamedTuple):
    """What a row is compared with: all classes but its own."""

    own: Any  # (N, d)  w̃ of the labels
    rivals: Any  # (N,)  R = log Σ_{j≠y} exp z_j
    hardest: Any  # (N,)  max_{j≠y} z_j, without gradient


def polar(xp: Any, x: Any) -> tuple[Any, Any]:
    """Return x/|x| and |x| (..., 1). Zero rows give 0 with gradient 0; no square overflows or vanishes."""
    largest = xp.max(xp.abs(x), axis=-1, keepdims=True)
    largest = xp.stop_gradient(xp.where(largest > 0, largest, xp.ones_like(largest)))
    y = x / largest
    square = xp.sum(y * y, axis=-1, keepdims=True)  # 0 for zero rows, at least 1 for others
    norm = xp.sqrt(xp.where(square > 0, square, xp.ones_like(square)))
    there = xp.cast(square > 0, x.dtype)
    return y * (there / norm), norm * largest * there


def scaled_rows(xp: Any, x: Any, scale: Any, unit: bool) -> Rows:
    """Return f = s·x̂ or s·x and its parts."""
    direction, norm = polar(xp, x)
    if unit:
        return Rows(scale * direction, direction, scale * xp.cast(norm[:, 0] > 0, x.dtype))
    return Rows(scale * x, direction, scale * norm[:, 0])


def class_rows(xp: Any, weight: Any, unit: bool) -> Any:
    """Return w̃: the directions of the rows of the weight, or the rows themselves."""
    return polar(xp, weight)[0] if unit else weight


def angle(xp: Any, u: Any, v: Any) -> Any:
    """Return θ = 2·atan2(|u−v|, |u+v|) between unit rows, exact near 0 and π, where acos loses half the digits.

    Where |u∓v| is rounding noise, at most 8 eps, θ is 0 or π and has no gradient.
    """
    near, far = xp.sum((u - v) ** 2, axis=-1), xp.sum((u + v) ** 2, axis=-1)
    least = (8 * (2.0**-52 if "64" in str(u.dtype) else 2.0**-23)) ** 2
    usual, one = (near > least) & (far > least), xp.ones_like(near)
    theta = 2 * xp.arctan2(xp.sqrt(xp.where(usual, near, one)), xp.sqrt(xp.where(usual, far, one)))
    return xp.where(usual, theta, xp.where(near < far, xp.zeros_like(near), math.pi * one))


def target(xp: Any, rows: Rows, own: Any, unit_weight: bool, psi: Margin, lam: Any) -> Any:
    """Return T = ⟨f, w̃_y⟩ + |f||w̃_y|·(ψ(θ_y) − cos θ_y)/(1 + λ), from the rows w̃_y of the labels, (N, d).

    The product keeps its own gradient, so that a weight of zeros, which has no angle, still learns.
    """
    product = xp.sum(rows.f * own, axis=-1)
    if psi.name == "none":
        return product
    direction, length = own, rows.length
    if not unit_weight:
        direction, norm = polar(xp, own)
        length = length * norm[:, 0]
    return product + length * psi.lift(xp, angle(xp, rows.direction, direction)) / (1 + lam)


def rivals_of(xp: Any, z: Any, labels: Any, usable: Any = None) -> Any:
    """Return z with the label of every row hidden, and all of the rows that are not usable, (N, C)."""
    hidden = xp.arange(z.shape[-1], dtype="int32")[None, :] == labels[:, None]
    if usable is not None:
        hidden = hidden | ~usable[:, None]
    return xp.where(hidden, xp.full_like(z[:1, :1], HIDDEN), z)


def usable_rows(xp: Any, x: Any, labels: Any, classes: int, most: float = math.inf) -> tuple[Any, Any]:
    """Return which rows can be computed with, and labels with 0 in those that cannot.

    A row with NaN, inf or a number beyond `most`, or with a label that is no class, has a loss of NaN and takes
    part in nothing.
    """
    usable = (labels >= 0) & (labels < classes) & (xp.max(xp.abs(xp.stop_gradient(x)), axis=-1) < most)
    return usable, xp.where(usable, labels, xp.zeros_like(labels))


def only(xp: Any, usable: Any, x: Any) -> Any:
    """Return x with 0 in the rows that are not usable."""
    return xp.where(usable[:, None], x, xp.zeros_like(x[:1, :1]))


def row_losses(xp: Any, rivals: Any, own: Any, usable: Any) -> Any:
    """Return L = softplus(R − T) of every row, NaN in rows that cannot be computed."""
    loss = xp.logaddexp(xp.zeros_like(own), rivals - own)
    return xp.where(usable, loss, math.nan * xp.ones_like(loss))


def guarded_acos(xp: Any, cosine: Any) -> Any:
    """Return acos of a cosine; 0 or π, with gradient 0, at and beyond ±1."""
    inside = xp.abs(cosine) < 1
    theta = xp.arccos(xp.where(inside, cosine, xp.zeros_like(cosine)))
    return xp.where(inside, theta, xp.where(cosine > 0, xp.zeros_like(theta), math.pi * xp.ones_like(theta)))
