"""The sentences of `recommend`: why this scale and this margin, and what is known and what is guessed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hypermargin.margins import Margin, NoMargin
from hypermargin.scales import largest_angle, psi_at

if TYPE_CHECKING:
    from hypermargin.advise.rule import Recommendation
    from hypermargin.scales import Scales


def _degrees(theta: float) -> str:
    return f"{math.degrees(theta):.3g}°"


def scale(advice: Recommendation, scales: Scales) -> list[str]:
    """Explain the rule with its numbers."""
    said = [
        f"Scale: the smallest s that predicts p_y ≥ {advice.probability:g} on the center "
        f"(s ≥ {scales.on_centre:.1f}), the same against the nearest rival alone (s ≥ {scales.nearest:.1f}), and "
        f"gives a typical sample at {_degrees(advice.angle)} p_y ≥ 1/2 in training, margin included "
        f"(s ≥ {scales.typical:.1f})."
    ]
    if scales.typical > scales.s:
        said.append(
            f"At {_degrees(advice.angle)} the margin leaves only ψ = {psi_at(advice.margin, advice.angle):.2f}, "
            "and no scale in common use gives 1/2 there. Take a smaller m, or warm it up."
        )
    return said


def room(advice: Recommendation, scales: Scales) -> list[str]:
    """Say whether so many centers have room in so few dimensions."""
    fact = f"{advice.classes} centers in {advice.dim} dimensions"
    if advice.classes <= advice.dim + 1:
        return [f"Room: {fact} can form a simplex, {_degrees(advice.centre_angle)} apart."]
    if not scales.crowded and advice.centre_angle > math.pi / 3:
        return [f"Room: {fact} are at most {_degrees(advice.centre_angle)} apart, which is enough."]
    wide = 4
    while largest_angle(advice.classes, wide) < math.pi / 3:
        wide *= 2
    asks = ", and that is what asks for so large a scale" if scales.crowded else ""
    return [
        f"dim = {advice.dim} is small: {fact} are at most {_degrees(advice.centre_angle)} apart{asks}. "
        f"Take dim ≥ {wide}, unless you want a picture."
    ]


def experience(advice: Recommendation, scales: Scales, *, guessed: bool) -> list[str]:
    """Say what was measured near this number of classes, and what was not."""
    said = []
    if advice.classes >= 10_000:
        said.append(
            "The papers' s = 30-64 are for 10k to 1M classes, with a margin. Nothing of this size was measured "
            "here: search s/2 and 2s too."
        )
    elif not scales.crowded:
        said.append(
            "The papers' s = 30-64 are for 10k to 1M classes and too large here. Measured on Omniglot, 767 "
            "classes: NormFace EER 3.6 / 3.3 / 3.5 / 3.7 / 4.1 % at s = 4 / 8 / 12 / 16 / 30."
        )
    if guessed and advice.classes > 1000:
        said.append(
            f"The typical angle {_degrees(advice.angle)} is a guess between 30° (fits what was measured at 964 "
            "classes) and 45° (faces). Give the median target angle of your own training samples instead."
        )
    return said


def margin(advice: Recommendation, *, usual: Margin | None, plain_s: float) -> list[str]:
    """Say what the margin does, whether it is too much, and that the scale comes first."""
    if isinstance(advice.margin, NoMargin):
        return []
    phi, width = advice.centre_angle, advice.width
    band = f"Margin: between centers {_degrees(phi)} apart its band is {_degrees(width)} wide"
    if width > phi / 2 * (1 + 1e-9):
        band += ", more than half: wider than the classes it leaves. Take a smaller m."
    elif usual is not None and usual.m != advice.margin.m:
        band += f". m was lowered from {usual.m} so that the band is not wider than the classes."
    else:
        band += "."
    return [
        band,
        "The scale matters more than the margin, which mostly repairs too large a scale (Omniglot, 964 classes: "
        "ArcFace m 0 / 0.2 / 0.5 gives EER 3.9 / 3.4 / 3.2 % at s = 30; on a wider network with s searched, "
        f"NormFace has 3.06 and ArcFace 3.09 %). Try no margin at s = {plain_s:.1f} beside it, and tune the weight "
        "decay.",
    ]
