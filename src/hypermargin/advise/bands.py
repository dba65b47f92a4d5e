"""What a margin does between two classes whose centers are θ12 apart, and which margins do the same.

On the arc between the centers θ1 + θ2 = θ12. A sample is class 1's with the margin while ψ(θ1) ≥ cos θ2, or what a
rule makes of that, so up to a boundary θ1 = b; class 2 mirrors it. The band between is no class's: width θ12 − 2b.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, cast

import torch

from hypermargin import checks, rules
from hypermargin.margins import ArcFace, Combined, CosFace, Margin, NoMargin, SphereFace
from hypermargin.rules import SOFTMAX, Filter, Rule
from hypermargin.scales import check_angle, psi_at


def band_width(margin: Margin, theta12: float, rule: Rule | None = None) -> float:
    """Return the angular width of the band between two classes at θ12 that no class may enter.

        SphereFace   (m−1)/(m+1)·θ12                        m·θ1 = θ2
        ArcFace      m                                      θ1 + m = θ2
        CosFace      2·asin(m/(2 sin(θ12/2)))               cos θ1 − m = cos θ2
        Combined     θ12 − 2(θ12 − m2)/(m1 + 1), m3 = 0     m1·θ1 + m2 = θ2

    and by bisection for any other decreasing ψ. If not even a sample on its center meets the margin
    (ψ(0) < cos θ12: ArcFace m > θ12, CosFace m > 1 − cos θ12), the band is the whole arc: θ12.
    A negative width is an overlap, from margins that reward (Combined with m1 < 1).
    `rule` is what a rival counts as: that of the margin's own name unless given.
    """
    check_angle("theta12", theta12, zero=False)
    rule = rule_beside(margin) if rule is None else rule
    boundary = None if _moves_rivals(rule) else _closed_boundary(margin, theta12)
    return theta12 - 2 * (_numeric_boundary(margin, theta12, rule) if boundary is None else boundary)


def _closed_boundary(margin: Margin, theta12: float) -> float | None:
    """Return b where it has a formula; None elsewhere."""
    match margin:
        case NoMargin():
            return theta12 / 2
        case ArcFace(m=m):
            return max(0.0, theta12 - m) / 2
        case SphereFace(m=m, lam=0.0):
            return theta12 / (m + 1)
        case Combined(m1=m1, m2=m2, m3=0.0):
            return max(0.0, theta12 - m2) / (m1 + 1)
        case CosFace(m=m):
            half = math.asin(min(1.0, m / (2 * math.sin(theta12 / 2))))
            return max(0.0, theta12 / 2 - half)
    return None


def _numeric_boundary(margin: Margin, theta12: float, rule: Rule = SOFTMAX) -> float:
    """Find b by bisection: ψ(θ1) − cos(θ12 − θ1) falls all the way, from ψ(0) − cos θ12 to ψ(θ12) − 1 ≤ 0."""
    low, high = 0.0, theta12
    if psi_at(margin, 0.0) < rival_at(rule, theta12):
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        if psi_at(margin, middle) >= rival_at(rule, theta12 - middle):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def rule_beside(margin: Margin, usual: Rule = SOFTMAX) -> Rule:
    """Return the rule beside a margin, that of its name or `usual`; a field that both have is the margin's."""
    rule: Any = rules.get(margin.name)() if margin.name in rules.names() else usual
    own = {field.name for field in dataclasses.fields(cast("Any", margin))}
    both = {f.name: getattr(margin, f.name) for f in dataclasses.fields(rule) if f.name in own}
    found: Rule = dataclasses.replace(rule, **both)
    return found


def rival_at(rule: Rule, theta: float) -> float:
    """Return what a rival at this angle counts as: its cosine, where that does not depend on the row."""
    if not _moves_rivals(rule):
        return math.cos(theta)
    return float(rule.rho(torch.tensor(math.cos(theta), dtype=torch.float64), None))


def _moves_rivals(rule: Rule) -> bool:
    """Whether rivals count for more or less all along the arc; a filter only leaves out the nearest."""
    return not (rule.is_identity or rule.row_numbers or isinstance(rule, Filter))


@dataclass(frozen=True)
class EquivalentMargins:
    """The three kinds of m with one and the same band `width` at `theta12`."""

    theta12: float
    width: float
    sphereface: float
    arcface: float
    cosface: float


def equivalent_margin(
    theta12: float, *, sphereface: float | None = None, arcface: float | None = None, cosface: float | None = None
) -> EquivalentMargins:
    """Find multiplicative, additive and cosine m with the same band at θ12. Give exactly one of the three.

        w = band_width,   sphereface (θ12 + w)/(θ12 − w),   arcface w,   cosface 2·sin(θ12/2)·sin(w/2)

    The papers' ArcFace 0.5 and CosFace 0.35 are the same band at π/2. At other angles they part.
    """
    given = {"sphereface": sphereface, "arcface": arcface, "cosface": cosface}
    named = {name: m for name, m in given.items() if m is not None}
    if len(named) != 1:
        raise ValueError(f"give exactly one of {', '.join(given)}; got {', '.join(named) or 'none'}.")
    kinds: dict[str, type[SphereFace | ArcFace | CosFace]] = {
        "sphereface": SphereFace,
        "arcface": ArcFace,
        "cosface": CosFace,
    }
    ((name, m),) = named.items()
    w = band_width(kinds[name](m), theta12)
    if w >= theta12:
        raise ValueError(
            f"{name} = {m:g} fills the whole arc of theta12 = {theta12:g}, so it has no counterparts. "
            "Take a smaller m."
        )
    return EquivalentMargins(
        theta12=theta12,
        width=w,
        sphereface=(theta12 + w) / (theta12 - w),
        arcface=w,
        cosface=2 * math.sin(theta12 / 2) * math.sin(w / 2),
    )


def guaranteed_margin(kind: str, classes: int, theta12: float | None = None) -> float:
    """Return the least m with which classes, as the margin draws them on the circle, are compact:

    the largest angle within a class ≤ the smallest angle between classes. SphereFace's properties 2 and 3, and
    their counterparts. `kind` is "sphereface", "arcface" or "cosface".

    Two classes, centers θ12 apart. Class 1 reaches b1 towards class 2 and b2 the other way; the gap is θ12 − 2·b1.
        sphereface  m·θ1 ≤ θ2: b1 = θ12/(m+1); outwards θ2 = θ1 + θ12, b2 = θ12/(m−1), until the far side of the
                    circle, θ2 = 2π − θ12 − θ1, b2 = (2π − θ12)/(m+1). b1 + b2 ≤ θ12 − 2·b1 gives m² − 4m + 1 ≥ 0,
                    m = 2 + √3, and from the far side, once θ12 ≥ (√3 − 1)π, m = 1 + 2π/θ12 (3 at θ12 = π).
        arcface     θ1 + m ≤ θ2: b1 = (θ12 − m)/2; outwards always kept until the far side,
                    b2 = (2π − θ12 − m)/2. Class π − m, gap m: m = π/2.
        cosface     ⟨x, W1 − W2⟩ ≥ m is a cap of angular radius π/2 − a, sin a = m/(2 sin(θ12/2)).
                    Class π − 2a, gap 2a: a = π/4, m = √2·sin(θ12/2).
    The last two need θ12 ≥ π/2, else a center would not belong to its own class. Without θ12: the m that
    suffices for every such θ12 (2 + √3, π/2, √2).

    C ≥ 3 classes evenly on the circle, θ12 = 2π/C. Neighbours on both sides, so the class is 2·b1:
        it is compact when the band is half of θ12: m = 3, θ12/2, 2·sin(θ12/2)·sin(θ12/4).
    """
    checks.one_of("kind", kind, ("sphereface", "arcface", "cosface"))
    checks.count("classes", classes, 2)
    if classes > 2:
        if theta12 is not None:
            raise ValueError(f"theta12 is 2π/C for {classes} classes on the circle; got {theta12:g}. Leave it out.")
        theta12 = 2 * math.pi / classes
        return {
            "sphereface": 3.0,
            "arcface": theta12 / 2,
            "cosface": 2 * math.sin(theta12 / 2) * math.sin(theta12 / 4),
        }[kind]
    if theta12 is not None:
        check_angle("theta12", theta12, zero=False)
    if kind == "sphereface":
        far = theta12 is not None and theta12 >= (math.sqrt(3) - 1) * math.pi
        return 1 + 2 * math.pi / theta12 if far and theta12 is not None else 2 + math.sqrt(3)
    theta12 = math.pi if theta12 is None else theta12
    if theta12 < math.pi / 2:
        raise ValueError(
            f"theta12 must be at least π/2 for {kind}; got {theta12:g}. Closer centers leave their own class "
            "before the classes are compact."
        )
    return math.pi / 2 if kind == "arcface" else math.sqrt(2) * math.sin(theta12 / 2)
