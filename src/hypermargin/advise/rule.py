"""`recommend`: a scale and a margin for so many classes in so many dimensions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hypermargin import checks, margins
from hypermargin.advise import reasons
from hypermargin.advise.bands import band_width, equivalent_margin
from hypermargin.advise.bounds import loss_floor
from hypermargin.margins import ArcFace, CosFace, Margin, NoMargin, SphereFace
from hypermargin.scales import check_angle, check_probability, largest_angle, lower_bounds, psi_at, typical_angle

# What people use where nothing speaks against it. ArcFace's and CosFace's are the same band at π/2. SphereFace's
# goes with a fixed scale (OpenSphere); the paper's 4 needs its λ.
USUAL: dict[str, Margin] = {
    "none": NoMargin(),
    "arcface": ArcFace(0.5),
    "cosface": CosFace(0.35),
    "sphereface": SphereFace(1.7),
}


@dataclass(frozen=True)
class Recommendation:
    """What `recommend` says, and why."""

    classes: int
    dim: int
    margin: Margin
    s: float
    probability: float  # P of the rule
    angle: float  # θ of the rule: how far a typical sample is from its centre
    centre_angle: float  # φ: the nearest centres at the best packing
    width: float  # of the band between two centres at φ
    floor: float  # the least mean loss at this s and m
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
) -> Recommendation:
    """Recommend a scale and a margin to start from, with the reasons.

    `margin` is a registered name (m is then chosen) or a Margin (taken as it is). The scale is the smallest with

        p_y ≥ P     predicted for a sample on its centre, the centres forming a simplex     (P = `probability`)
        p_y ≥ P     for the same sample against its nearest rival alone, at φ = largest_angle(classes, dim):
                    s ≥ ln(P/(1−P)) / (1 − cos φ)
        p_y ≥ 1/2   in training, so with the margin, for a typical sample: at θ = `angle` from its centre, or
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
        raise ValueError(f"dim = 1 has room for 2 centres; got classes = {classes}. Take dim ≥ 2.")
    chosen = margin if isinstance(margin, Margin) else _usual(margin, phi)
    if psi_at(chosen, 0.0) <= math.cos(phi):
        raise ValueError(
            f"margin {chosen} cannot be met: {classes} centres in {dim} dimensions are at most {phi:.3g} rad "
            f"apart, so even a sample on its centre misses it. ArcFace's m must stay below {phi:.3g}, CosFace's "
            f"below {1 - math.cos(phi):.3g}."
        )
    theta = min(typical_angle(classes), phi / 2) if angle is None else angle
    scales = lower_bounds(classes, phi, chosen, probability, theta)
    advice = Recommendation(
        classes=classes,
        dim=dim,
        margin=chosen,
        s=scales.s,
        probability=probability,
        angle=theta,
        centre_angle=phi,
        width=band_width(chosen, phi),
        floor=loss_floor(classes, scales.s, chosen),
    )
    said = [
        *reasons.scale(advice, scales),
        *reasons.room(advice, scales),
        *reasons.experience(advice, scales, guessed=angle is None),
        *reasons.margin(
            advice,
            usual=None if isinstance(margin, Margin) else USUAL.get(margin),
            plain_s=lower_bounds(classes, phi, NoMargin(), probability, theta).s,
        ),
    ]
    return replace(advice, reasons=tuple(said))


def _usual(name: str, phi: float) -> Margin:
    """Return the usual margin of that name, made smaller where its band would be more than half of φ."""
    usual = USUAL[name] if name in USUAL else margins.get(name)()
    if band_width(usual, phi) > phi / 2:
        most = equivalent_margin(phi, arcface=phi / 2)
        if isinstance(usual, ArcFace):
            return ArcFace(most.arcface)
        if isinstance(usual, CosFace):
            return CosFace(most.cosface)
    return usual
