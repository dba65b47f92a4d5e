"""`recommend`: a scale and a margin for so many classes in so many dimensions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hypermargin import checks, margins
from hypermargin.advise import reasons
from hypermargin.advise.bands import band_width, equivalent_margin
from hypermargin.advise.bounds import (
    check_angle,
    check_probability,
    largest_angle,
    loss_floor,
    psi_at,
    smallest_scale,
)
from hypermargin.margins import ArcFace, CosFace, Margin, NoMargin, SphereFace

# What people use where nothing speaks against it. ArcFace's and CosFace's are the same band at π/2. SphereFace's
# goes with a fixed scale (OpenSphere); the paper's 4 needs its λ.
USUAL: dict[str, Margin] = {
    "none": NoMargin(),
    "arcface": ArcFace(0.5),
    "cosface": CosFace(0.35),
    "sphereface": SphereFace(1.7),
}
LARGEST_USUAL_SCALE = 64.0


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


@dataclass(frozen=True)
class Scales:
    """The three lower bounds on s that the rule is made of."""

    on_centre: float
    nearest: float
    typical: float

    @property
    def s(self) -> float:
        """The largest of them, to one decimal, upwards."""
        return max(0.1, math.ceil(10 * max(self._roomy, self.nearest) - 1e-9) / 10)

    @property
    def crowded(self) -> bool:
        """Whether it is the nearest rival, so the packing of the centres, that asks for the scale."""
        return self.nearest > self._roomy

    @property
    def _roomy(self) -> float:
        return max(self.on_centre, min(self.typical, LARGEST_USUAL_SCALE))


def typical_angle(classes: int) -> float:
    """Return θ of the rule: π/6 up to 1000 classes, rising with log C to π/4 at 100,000 and beyond.

    The best settings measured at 767 classes amount to 34° to 40° (NormFace s = 8; ArcFace 10, m 0.2; CosFace 10,
    m 0.1); what the rule says with π/6 was level with them in the test (benchmarks/results/heads.md). π/4 is
    AdaCos' choice for faces and, with a margin, gives the papers' s = 30-64. Between is a straight line, no more.
    """
    checks.count("classes", classes)
    return math.pi / 6 + math.pi / 12 * min(1.0, max(0.0, math.log10(classes / 1000) / 2))


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
    checks.count("classes", classes, 2)
    checks.count("dim", dim)
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
    scales = _scales(classes, phi, chosen, probability, theta)
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
            plain_s=_scales(classes, phi, NoMargin(), probability, theta).s,
        ),
    ]
    return replace(advice, reasons=tuple(said))


def _scales(classes: int, phi: float, margin: Margin, probability: float, theta: float) -> Scales:
    reachable = psi_at(margin, theta) + math.cos(theta) / (classes - 1) > 0
    nearest = math.log(probability / (1 - probability)) / (2 * math.sin(phi / 2) ** 2)  # 1 − cos φ, all digits
    return Scales(
        on_centre=smallest_scale(classes, probability),
        nearest=max(0.0, nearest),
        typical=smallest_scale(classes, 0.5, margin, angle=theta) if reachable else math.inf,
    )


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
