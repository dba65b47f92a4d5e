"""Rules for hard rivals: which rivals count for more, and as what, where that depends on the target.

A rival is hard if its cosine exceeds the margined target's. So ψ is measured with rivals that are easy, as low as
they can still be seen; then what a hard one counts as, at an angle where ψ is known. Circle loss has a rule for
every rival that depends on no target, and is read off the curves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hypermargin.common.arrays import Floats
from hypermargin.diagnose.angles import LOWEST, RIVALS, Curves, Lab, grid
from hypermargin.diagnose.numbers import tidy
from hypermargin.diagnose.recognise import Match, recognise
from hypermargin.margins import ArcFace, Circle, Margin
from hypermargin.margins.arcface import BEYOND
from hypermargin.rules import Circle as CircleRule
from hypermargin.rules import CurricularFace, MVSoftmax, Rule

NEAR, HARD = math.radians(30), math.radians(80)
CLOSE = 1e-4  # of a cosine


@dataclass(frozen=True)
class Ruled:
    """A loss with a rule for rivals: its margin, scale and rule, and the curves where ψ was seen."""

    match: Match
    scale: float
    rule: Rule
    curves: Curves

    def all_of_them(self) -> Iterator[tuple[Margin, Rule]]:
        """Yield the margin and the rule in all ways to go on where ψ was not seen."""
        margin, rule = self.match.margin, self.rule
        for beyond in BEYOND if isinstance(margin, ArcFace) else ("",):
            on = replace(margin, beyond=beyond) if isinstance(margin, ArcFace) else margin
            yield on, rule
            if isinstance(rule, MVSoftmax | CurricularFace):
                yield on, replace(rule, compared="bare" if rule.compared == "margined" else "margined")

    def name(self) -> str:
        """Name the rule."""
        if isinstance(self.rule, CurricularFace):
            return "CurricularFace"
        return f"MV-Softmax, t = {self.rule.t:g}" if isinstance(self.rule, MVSoftmax) else "Circle loss"


def circle(curves: Curves) -> Ruled | None:
    """Return the circle loss that explains both curves; None if none does."""
    known = np.isfinite(curves.rival) & (np.abs(curves.rival_cosine) < 0.96)
    c, rival = curves.rival_cosine[known], curves.rival[known]
    high, low = c > 0.3, c.argmin()
    scale = float(np.median(rival[high] / c[high] ** 2))
    if scale <= 0 or rival[low] <= 0:
        return None
    m = tidy(math.sqrt(rival[low] / scale), CLOSE)
    if not 0 < m <= 1:
        return None
    scale = tidy(scale, 1e-3 * scale)
    theta, own = curves.theta, np.cos(curves.theta)
    counts, margined = np.maximum(c + m, 0) * (c - m) + m * m, (1 + m - own) * (own - 1 + m)
    psi = curves.target / scale - m * m
    inner = (theta > math.radians(5)) & (theta < math.radians(175))
    off = np.abs(psi - margined)[inner]
    if np.abs(counts - rival / scale).max() > 1e-3 or np.nanmax(off) > 1e-3:
        return None
    match = Match(Circle(m), float((off < 1e-3).mean()), float(np.nanmax(off)))
    return Ruled(match, scale, CircleRule(m), replace(curves, target=scale * psi))


def hard(lab: Lab) -> Ruled | None:
    """Return the margin and the rule for hard rivals; None if they are not found."""
    lowest, many = LOWEST[lab.criterion.dtype] * 0.9, math.log(lab.criterion.classes - 1)
    rivals = RIVALS[1:-1]
    near = np.array([lab.gap(NEAR, float(c)) for c in rivals])
    seen = np.flatnonzero(near > lowest)[:3]  # the easiest
    if len(seen) < 3:
        return None
    first, second = np.diff(near[seen]) / np.diff(rivals[seen])
    if first <= 0 or abs(first - second) > CLOSE * first:
        return None
    scale = tidy(float(first), 1e-5 * float(first))
    theta, psi, slopes = _of_easy_rivals(lab, scale, many, lowest)
    early = theta < math.radians(88)  # later a target that is easy again may have rivals that are still hard
    match = recognise(theta, psi, 1e-7) or recognise(theta[early], psi[early], 1e-7)
    if match is None:
        return None
    own = float(np.interp(HARD, theta, psi))
    c = rivals[rivals > own + 0.1]
    counts = (np.array([lab.gap(HARD, float(each)) for each in c]) + scale * own - many) / scale
    rule = _rule(c, counts)
    if rule is None:
        return None
    shown = np.concatenate((np.full(len(rivals) - len(c), np.nan), counts))
    curves = Curves(theta, scale * psi, slopes, rivals, scale * np.where(rivals > own, shown, rivals), 1e-7)
    return Ruled(match, scale, rule, curves)


def _of_easy_rivals(lab: Lab, scale: float, many: float, lowest: float) -> tuple[Floats, Floats, Floats]:
    """Return ψ and its slope by autograd, at the angles where rivals as low as they are seen are easy."""
    theta, psi, slopes = [], [], []
    k = len(RIVALS) - 2
    for angle in grid():
        while k > 1 and lab.gap(float(angle), float(RIVALS[k - 1])) > lowest:
            k -= 1
        gap, slope = lab.gap_and_slope(float(angle), float(RIVALS[k]))
        target = (many + scale * RIVALS[k] - gap) / scale
        if RIVALS[k] > target:
            break  # all rivals that can be seen are hard from here on
        theta.append(float(angle))
        psi.append(float(target))
        slopes.append(slope)
    return np.array(theta), np.array(psi), np.array(slopes)


def _rule(c: Floats, counts: Floats) -> Rule | None:
    """Return the rule by which hard rivals count as q2·c² + q1·c + q0."""
    if len(c) < 6:
        return None
    basis = np.stack((c * c, c, np.ones_like(c)), 1)
    (q2, q1, q0), *_ = np.linalg.lstsq(basis, counts, rcond=None)
    if np.abs(basis @ (q2, q1, q0) - counts).max() > CLOSE:
        return None
    if abs(q2) < CLOSE and abs(q1 - 1 - q0) < CLOSE and q0 > CLOSE:
        return MVSoftmax(tidy(float(q0), CLOSE))
    if abs(q2) < CLOSE and abs(q1 - 1) < CLOSE and q0 > CLOSE:
        return MVSoftmax(tidy(float(q0), CLOSE), "fixed")
    if abs(q2 - 1) < CLOSE and abs(q0) < CLOSE:
        momentum = tidy(float(q1) / math.cos(HARD), CLOSE)  # of a first step
        return CurricularFace(momentum if 0 < momentum <= 1 else 0.01)
    return None
