"""`recommend`: a scale and a margin for so many classes in so many dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hypermargin import checks
from hypermargin.advise import own, reasons
from hypermargin.advise.bands import band_width, rival_at, rule_beside
from hypermargin.advise.bounds import loss_floor
from hypermargin.advise.usual import choose, named, rule_of, settled
from hypermargin.margins import Margin, NoMargin
from hypermargin.rules import SOFTMAX
from hypermargin.scales import (
    NoScaleError,
    check_angle,
    check_probability,
    largest_angle,
    lower_bounds,
    psi_at,
    typical_angle,
)


@dataclass(frozen=True)
class Recommendation:
    """What `recommend` says, and why."""

    classes: int
    dim: int
    margin: Margin
    s: float
    probability: float  # P of the rule
    angle: float  # θ of the rule: how far a typical sample is from its center
    centre_angle: float  # φ: the nearest centers at the best packing
    width: float  # of the band between two centers at φ
    floor: float  # the least mean loss at this s and m; nan where it is not softmax's
    reasons: tuple[str, ...] = ()

    @property
    def m(self) -> float | tuple[float, ...] | None:
        """The margin's own number or numbers; None without a margin."""
        return self.margin.m


def recommend(
    classes: int,
    dim: int,
    *,
    margin: str | Margin = "arcface",
    probability: float = 0.99,
    angle: float | None = None,
    numbers: Mapping[str, float] | None = None,
) -> Recommendation:
    """Recommend a scale and a margin to start from, with the reasons.

    `margin` is the name of a margin or head (m is then chosen, but for `numbers` given, such as {"m": 0.3}) or a
    Margin (taken as it is). The scale is the smallest with

        p_y ≥ P     predicted for a sample on its center, the centers forming a simplex     (P = `probability`)
        p_y ≥ P     for the same sample against its nearest rival alone, at φ = largest_angle(classes, dim):
                    s ≥ ln(P/(1−P)) / (1 − cos φ)
        p_y ≥ 1/2   in training, so with the margin, for a typical sample: at θ = `angle` from its center, or
                    min(typical_angle(classes), φ/2). At most s = 64 for this one's sake

    More scale than that saturates: typical samples get p_y ≈ 1 and teach nothing. A chosen m is the usual one, or
    less where its band would exceed φ/2, that is, be wider than the classes it leaves. Better than the default θ is
    the median target angle of your own training samples.
    """
    checks.count("classes", classes, 2, checks.MOST_CLASSES)
    checks.count("dim", dim, 1, checks.MOST_DIM)
    check_probability(probability)
    if angle is not None:
        check_angle("angle", angle, zero=True)
    phi = largest_angle(classes, dim)
    if phi == 0:
        raise ValueError(f"dim = 1 has room for 2 centers; got classes = {classes}. Take dim ≥ 2.")
    if isinstance(margin, Margin) and numbers:
        raise ValueError("numbers are for a margin given by name; got a Margin, which has its own.")
    numbers = numbers or {}
    chosen = margin if isinstance(margin, Margin) else choose(margin, phi, dim, numbers)
    if not chosen.is_cosine:
        raise NoScaleError(chosen)
    rule = rule_beside(chosen, rule_of(margin) if isinstance(margin, str) else SOFTMAX)
    if psi_at(chosen, 0.0) <= rival_at(rule, phi):
        raise ValueError(
            f"margin {chosen} cannot be met: {classes} centers in {dim} dimensions are at most {phi:.3g} rad "
            f"apart, so even a sample on its center misses it. ArcFace's m must stay below {phi:.3g}, CosFace's "
            f"below {1 - math.cos(phi):.3g}."
        )
    theta = min(typical_angle(classes), phi / 2) if angle is None else angle
    scales = lower_bounds(classes, phi, chosen, probability, theta)
    if isinstance(margin, str):
        chosen = settled(chosen, scales.s, numbers)
    advice = Recommendation(
        classes=classes,
        dim=dim,
        margin=chosen,
        s=scales.s,
        probability=probability,
        angle=theta,
        centre_angle=phi,
        width=band_width(chosen, phi, rule),
        floor=loss_floor(classes, scales.s, chosen) if rule.is_softmax else math.nan,
    )
    said = [
        *reasons.scale(advice, scales),
        *reasons.room(advice, scales),
        *reasons.experience(advice, scales, guessed=angle is None),
        *reasons.margin(
            advice,
            usual=None if isinstance(margin, Margin) or numbers else named(margin),
            plain_s=lower_bounds(classes, phi, NoMargin(), probability, theta).s,
        ),
        *own.reasons(margin if isinstance(margin, str) else "", advice),
    ]
    return replace(advice, reasons=tuple(said))
