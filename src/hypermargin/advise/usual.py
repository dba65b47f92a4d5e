"""The margins that people use, by the name of a margin or head, fitted to so many classes in so many dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypermargin import checks, margins
from hypermargin.advise.bands import band_width, equivalent_margin, rule_beside
from hypermargin.margins import (
    AdaFace,
    ArcFace,
    Combined,
    CosFace,
    DynArcFace,
    ElasticArcFace,
    ElasticCosFace,
    ExpFace,
    LiArcFace,
    MagFace,
    Margin,
    NoMargin,
    SphereFace,
    SphereFace2,
    X2Softmax,
)
from hypermargin.recipes import FAMILY
from hypermargin.rules import SOFTMAX, DoubleMargin, Rule

# What people use where nothing speaks against it. ArcFace's and CosFace's are the same band at π/2. SphereFace's
# goes with a fixed scale (OpenSphere); the paper's 4 needs its λ.
USUAL: dict[str, Margin] = {
    "none": NoMargin(),
    "arcface": ArcFace(0.5),
    "cosface": CosFace(0.35),
    "sphereface": SphereFace(1.7),
}
PAPERS_DIM = 512  # of MagFace, whose lengths are those of batch-normalised features: about √d


def choose(name: str, phi: float, dim: int, numbers: Mapping[str, float]) -> Margin:
    """Return the usual margin of that name, made smaller where its band would be more than half of φ.

    `numbers` are fields of it that somebody has chosen already.
    """
    usual = named(name)
    known = [field.name for field in margins.number_fields(type(usual))]
    for key in numbers:
        if key not in known:
            takes = ", ".join(known) or "none"
            raise ValueError(
                f"the margin of {name} has no number {key!r}; it has {takes}.{checks.near(key, known)}"
            )
    fitted: Any = usual if numbers.keys() & {*usual.m_names, "k"} else _narrowed(usual, phi, rule_of(name))
    if isinstance(fitted, MagFace) and not numbers.keys() & {"l_a", "u_a"}:
        longer = math.sqrt(dim / PAPERS_DIM)
        fitted = replace(fitted, l_a=_rounded(fitted.l_a * longer), u_a=_rounded(fitted.u_a * longer))
    if isinstance(fitted, DynArcFace):
        fitted = _within_reach(fitted, phi, numbers)
    found: Margin = replace(fitted, **numbers)
    return found


def _within_reach(usual: DynArcFace, phi: float, numbers: Mapping[str, float]) -> DynArcFace:
    """Return a margin that begins to grow before classes are as far apart as they get, and ends at half of φ."""
    k1 = numbers.get("k1", min(usual.k1, _rounded(3 * phi / 4)))
    m = numbers.get("m", usual.m)
    beyond = max(phi - k1, 0.0)
    room = max(phi / 2 - m, 0.0)
    k2 = min(usual.k2, math.floor(100 * room / beyond) / 100) if beyond else usual.k2
    return replace(usual, k1=k1, k2=k2)


def named(name: str) -> Margin:
    """Return the usual margin of a margin or head of that name."""
    if name in USUAL:
        return USUAL[name]
    if name not in margins.names() and name in FAMILY:
        if not FAMILY[name].unit_features:
            raise ValueError(
                f"{name} keeps the lengths of the features, which are its scale: there is no s to recommend."
            )
        return FAMILY[name].margin
    if name not in margins.names():
        of_heads = (head for head, recipe in FAMILY.items() if recipe.unit_features)
        known = list(dict.fromkeys((*margins.names(), *of_heads)))
        raise ValueError(
            f"unknown margin or head {name!r}.{checks.near(name, known)} There are {', '.join(known)}."
        )
    return margins.get(name)()


def draw(margin: MagFace, s: float) -> float:
    """Return the λ_g at which MagFace's term just outweighs its margin at the shortest length."""
    slope = (margin.u_m - margin.l_m) / (margin.u_a - margin.l_a)
    return s * slope * margin.u_a**2 * margin.l_a**2 / (margin.u_a**2 - margin.l_a**2)


def settled(margin: Margin, s: float, numbers: Mapping[str, float]) -> Margin:
    """Return the margin with what depends on s: MagFace's λ_g, as far above its bound as the paper's."""
    if not isinstance(margin, MagFace) or "lambda_g" in numbers:
        return margin
    papers = MagFace()
    return replace(
        margin, lambda_g=_rounded(papers.lambda_g / draw(papers, FAMILY["magface"].scale) * draw(margin, s))
    )


def rule_of(name: str) -> Rule:
    """Return the rule of the head of that name; softmax's for a margin."""
    return FAMILY[name].rule if name in FAMILY else SOFTMAX


def _narrowed(usual: Margin, phi: float, rule: Rule) -> Margin:
    """Return the margin, or a smaller one whose band is half of φ, with rivals that count by the rule."""
    if band_width(usual, phi, rule_beside(usual, rule)) <= phi / 2:
        return usual
    most = equivalent_margin(phi, arcface=phi / 2)
    match usual:
        case ElasticArcFace(m=m, sigma=sigma):
            return replace(usual, m=most.arcface, sigma=sigma * most.arcface / m)
        case ElasticCosFace(m=m, sigma=sigma):
            return replace(usual, m=most.cosface, sigma=sigma * most.cosface / m)
        case ArcFace():  # a double margin is half on the rivals
            return replace(usual, m=most.arcface / 2 if isinstance(rule, DoubleMargin) else most.arcface)
        case CosFace():
            return replace(usual, m=most.cosface)
        case AdaFace(m=m) | ExpFace(m=m) | LiArcFace(m=m) | SphereFace2(m=m):
            return _largest(lambda share: replace(usual, m=usual.zero + share * (m - usual.zero)), phi)
        case MagFace(l_m=short, u_m=long):
            return _largest(lambda share: replace(usual, l_m=share * short, u_m=share * long), phi)
        case Combined(m1=m1, m2=m2, m3=m3):
            return _largest(lambda share: Combined(1 + share * (m1 - 1), share * m2, share * m3), phi)
        case X2Softmax(k=k):
            return _largest(lambda share: replace(usual, k=1 + share * (k - 1)), phi)
    return usual


def _largest(at: Any, phi: float) -> Margin:
    """Find the largest share of a margin whose band is at most half of φ, by bisection; `at(0)` is the least."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if band_width(at(middle), phi) <= phi / 2 else (low, middle)
    found: Margin = at(low)
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
