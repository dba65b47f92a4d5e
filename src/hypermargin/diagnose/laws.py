"""What is said of the measured curves: of ψ itself, of the margin that was recognised, of rivals and of lengths."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hypermargin.common.arrays import Floats
from hypermargin.diagnose.angles import Curves
from hypermargin.diagnose.findings import Finding
from hypermargin.diagnose.sides import FREE, MARGIN, MIXED, UNIT, Side
from hypermargin.margins import ArcFace, CosFace, LiArcFace, Margin, NoMargin

JUMP = 0.02  # of ψ between neighbouring angles, beyond what its slope explains
TEN, SMALL = 10, 4.0  # classes; the scale at which a sample of so many gets a probability of 0.9 at most
TURNS = "Bare cos mθ is not ψ"


class Rivals(NamedTuple):
    """What was found of the rivals, and the scale that follows from it."""

    scale: float
    everywhere: bool  # every class is treated as the target is
    findings: tuple[Finding, ...]


def of_rivals(curves: Curves, scale: float) -> Rivals:
    """Tell what rivals count as: their cosines, what the target counts as, or something else."""
    known = np.isfinite(curves.rival) & (np.abs(curves.rival_cosine) < 0.96)  # beyond, some clamp
    c, rival = curves.rival_cosine[known], curves.rival[known]
    size = np.abs(rival).max()
    slope = float((c * rival).sum() / (c**2).sum())
    linear = np.abs(rival - slope * c).max() <= 2e-3 * size + 10 * curves.noise
    if linear:
        return Rivals(slope, False, ())
    as_target = np.interp(np.arccos(c)[::-1], curves.theta, curves.target)[::-1]
    alike = np.abs(as_target - rival).max() <= 0.02 * size
    angle = np.arccos(c)
    if alike:
        # s·(cos(θ + m) + sin m), whose numbers are linear in cos θ and sin θ before the fold.
        inner = angle < math.radians(100)
        basis = np.stack((np.cos(angle), np.sin(angle), np.ones_like(angle)), 1)[inner]
        (a, b, _), *_ = np.linalg.lstsq(basis, rival[inner], rcond=None)
        s, m = math.hypot(a, b), math.atan2(-b, a)
        return Rivals(
            s, True,
            (
                Finding(
                    "rivals-margined", "wrong",
                    f"The margin is on every class: rivals count as the target does, about cos(θ + {m:.3g}) at s = "
                    f"{s:.4g}. The target has none of its own.",
                    "Put the margin on the label's entry alone: logits[rows, labels] = …",
                    "A margin on every class is no margin",
                ),
            ),
        )  # fmt: skip
    of_angle = 1 - 2 * angle / math.pi
    li = float((of_angle * rival).sum() / (of_angle**2).sum())
    if np.abs(rival - li * of_angle).max() <= 2e-3 * size + 10 * curves.noise:
        said = "Rivals count as 1 − 2θ/π instead of their cosine, as in Li-ArcFace."
        return Rivals(li, False, (Finding("rivals-linear", "note", said),))
    worst = int(np.abs(rival - scale * c).argmax())
    return Rivals(
        scale, False,
        (
            Finding(
                "rivals-changed", "note",
                f"Rivals do not count as their cosines: one at {c[worst]:.2f} counts as "
                f"{rival[worst] / scale:.3g}. A rule for hard rivals, such as MV-Softmax's or CurricularFace's, "
                "does that.",
            ),
        ),
    )  # fmt: skip


def of_psi(theta: Floats, psi: Floats, noise: float, margin: Margin | None) -> Iterator[Finding]:
    """Yield what the measured ψ itself does: jumps, rises, exceeds the cosine."""
    known = np.isfinite(psi)
    if not known.all():
        yield Finding(
            "nan-inside", "wrong",
            f"The loss is not finite at {(~known).sum()} of {len(psi)} angles, from "
            f"{math.degrees(theta[~known][0]):.3g}° to {math.degrees(theta[~known][-1]):.3g}°.",
        )  # fmt: skip
    theta, psi = theta[known], psi[known]
    if isinstance(margin, NoMargin | LiArcFace) or len(theta) < 3:
        return
    steps = np.diff(psi)
    beside = np.median(np.abs(steps))
    large = np.flatnonzero(np.abs(steps) > np.maximum(JUMP, 3 * beside) + 10 * noise).tolist()
    jumps: list[int] = [k for k in large if abs(steps[k]) > 3 * _around(np.abs(steps), k)]
    for k in jumps[:3]:
        up = steps[k] > 0
        at_right_angle = abs((theta[k] + theta[k + 1]) / 2 - math.pi / 2) < math.radians(1.6)
        easy = up and at_right_angle
        yield Finding(
            "jumps", "doubtful" if up else "note",
            f"ψ jumps {'up' if up else 'down'} by {abs(steps[k] - _around(steps, k)):.2g} at "
            f"{math.degrees(theta[k]):.0f}°"
            + (", where easy_margin begins: turning away is rewarded there." if easy else "."),
            "" if easy else "Past π − m, cos θ − (1 − cos m) does not jump; g(θ + m) does not even bend.",
            "easy_margin jumps" if easy else "cos θ − m sin m is not continuous",
        )  # fmt: skip
    rises = steps.copy()
    rises[jumps] = 0
    if rises.max() > max(1e-6, 5 * noise) and theta[int(np.argmax(rises > max(1e-6, 5 * noise)))] < math.radians(
        179
    ):
        begin = int(np.flatnonzero(rises > max(1e-6, 5 * noise))[0])
        late = theta[begin] > math.radians(135)
        yield Finding(
            "turns-back", "doubtful" if late else "wrong",
            f"ψ rises again from {math.degrees(theta[begin]):.0f}° on: the hardest samples are pushed further "
            f"away.",
            'Continue ψ past π − m with g(θ + m), beyond="smooth".',
            TURNS,
        )  # fmt: skip
    above = psi - np.cos(theta)
    if above.max() > max(1e-3, 10 * noise):
        worst = int(above.argmax())
        yield Finding(
            "rewards", "doubtful" if theta[worst] > math.radians(135) else "wrong",
            f"ψ is above cos θ by up to {above[worst]:.3g}, at {math.degrees(theta[worst]):.0f}°: a reward "
            "there, no margin.",
            errata=TURNS,
        )  # fmt: skip


def _around(values: Floats, k: int) -> float:
    """Return the median of the neighbours of an entry."""
    return float(np.median(np.delete(values[max(0, k - 4) : k + 5], min(k, 4))))


def of_unknown(begins: tuple[Margin, float] | None) -> Finding:
    """Return that ψ was not recognised; `begins`: the margin that it is at first, and up to which angle."""
    like = "" if begins is None else f" Up to {math.degrees(begins[1]):.0f}° it is {begins[0]}."
    return Finding(
        "unknown-psi", "note",
        f"No margin of the family gives this ψ.{like} The picture has what was measured.",
        "If it is meant to be one of them, compare its values at the angles where the curves part.",
    )  # fmt: skip


def of_match(margin: Margin | None, gradient: str | None) -> Iterator[Finding]:
    """Yield what is to be said of a margin by its numbers, and of the gradient that goes with it."""
    if isinstance(margin, NoMargin):
        yield Finding(
            "no-margin", "note", "The target counts as its cosine, like every rival: there is no margin.",
            "CosFace's m on every class gives exactly this: if a margin was meant, see that it is on the label "
            "alone.",
            "A margin on every class is no margin",
        )  # fmt: skip
    if isinstance(margin, ArcFace) and 0 < margin.m < 0.05:
        degrees = math.degrees(margin.m)
        yield Finding(
            "degrees", "wrong",
            f"m = {margin.m:.4g} rad is {degrees:.3g}°: hardly a margin. Was {degrees:.3g} meant in radians?",
            "pytorch-metric-learning takes ArcFace's margin in degrees: 28.6 is 0.5 rad.",
        )  # fmt: skip
    if isinstance(margin, ArcFace) and margin.beyond == "flat":
        yield Finding(
            "flat", "doubtful",
            f"ψ is −1 from {math.degrees(math.pi - margin.m):.0f}° on: the hardest samples teach nothing.",
            'Continue ψ past π − m with g(θ + m), beyond="smooth".',
            TURNS,
        )  # fmt: skip
    if gradient == "straight" and not isinstance(margin, CosFace | NoMargin):
        yield Finding(
            "straight-through", "note",
            "autograd reports the slope of cos θ, not that of ψ: a straight-through gradient.",
            'It may be wanted, as it is bounded; gradient="straight" says so.',
            "Straight-through gradients are not the gradient of ψ",
        )  # fmt: skip
    if gradient == "none":
        yield Finding(
            "no-gradient", "wrong", "The target gets no gradient through its angle: it is detached.",
            "Compute the margin outside of no_grad, without .detach() or .data.",
        )  # fmt: skip
    if gradient == "other":
        yield Finding(
            "wrong-gradient", "doubtful",
            "autograd reports a slope that is neither that of the measured ψ nor that of cos θ.",
            "Look for .detach(), .data, in-place changes or a custom backward between the cosine and the loss.",
        )  # fmt: skip


def of_scale(scale: float, learned: bool) -> Iterator[Finding]:
    """Yield that cosines without a scale are too close together to learn from."""
    if scale >= SMALL:
        return
    most = 1 / (1 + (TEN - 1) * math.exp(-scale * TEN / (TEN - 1)))
    yield Finding(
        "scale-too-small", "note" if learned else "wrong" if scale < SMALL / 2 - 0.01 else "doubtful",
        f"Features and class rows are normalised and s = {scale:.4g}: of {TEN} classes a sample exactly on its "
        f"center, as far from all others as can be, gets a probability of {most:.2g} at most"
        + ("; s is learned, and has to grow." if learned else ". Was the scale forgotten?"),
        "Multiply all cosines by s: 10 for some classes, 30 for thousands, 64 for a million.",
        "CosFace's bound on s leaves the margin out",
    )  # fmt: skip


def of_sides(features: Side, rows: Side) -> Iterator[Finding]:
    """Yield what lengths do that they should not."""
    if features.kind == MARGIN:
        said = ", ".join(f"{psi:.3f} at |x| = {length:g}" for length, psi in features.by_length)
        yield Finding(
            "margin-by-length", "note",
            f"The margin depends on the length of the feature, as in MagFace or AdaFace: ψ(70°) is {said}.",
            "Watch whether long features are the good ones in your data.",
        )  # fmt: skip
    if features.kind == MIXED:
        yield Finding(
            "features-not-normalised", "wrong",
            "|x| changes the loss, but the logits are not proportional to it: the angle is taken from a product "
            "that is no cosine.",
            "Divide by the length before acos: F.normalize(x).",
            "Normalised weights that are not",
        )  # fmt: skip
    if rows.kind == MIXED:
        yield Finding(
            "rows-not-normalised", "wrong",
            "|W_j| changes the loss, but the logits are not proportional to it: the angle is taken from a product "
            "that is no cosine.",
            "Normalise the tensor that is multiplied with: F.linear(x, F.normalize(self.weight)).",
            "Normalised weights that are not",
        )  # fmt: skip
    if rows.crossed and rows.kind == UNIT:
        yield Finding(
            "rows-together", "wrong",
            "The class rows are divided by one length of all of them, not each by its own: a longer row changes "
            "the logits of all other classes.",
            "F.normalize(W, dim=1), not W / W.norm().",
            "Normalised weights that are not",
        )  # fmt: skip
    if rows.crossed and rows.kind in (FREE, MIXED):
        yield Finding(
            "crossed-norms", "wrong", "The length of the target's own row scales the rivals' logits too.",
            "Every rival has its own length: Σ exp(|W_j||x| cos θ_j).",
            "Every rival has its own ‖W_j‖",
        )  # fmt: skip
