"""What a margin makes of the target's cosine: ψ(θ), its slope, and the logit and probability that follow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.common.arrays import Floats
from hypermargin.margins import ArcFace, Combined, Margin, Piecewise, SphereFace
from hypermargin.plots.catalogue import MARGINS, USUAL, label, picture, read_margins
from hypermargin.plots.keyed import Keyed
from hypermargin.plots.style import DASHES, Display, degrees_axis, dress, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NO_BLEND: list[float] = [0.0]
SHOWN = {
    "psi": ("target cosine ψ(θ)", "slope dψ/dθ, per radian"),
    "logit": ("target logit s·ψ(θ)", "slope of the logit, per radian"),
    "probability": ("probability of the target", "slope of the probability, per radian"),
}
RIVALS = "orthogonal", "simplex"


def knots(margin: Margin) -> list[float]:
    """Return the angles inside (0, π) at which two pieces of ψ meet: m1·θ + m2 = kπ for those made of g."""
    match margin:
        case SphereFace(m=m1, beyond="smooth"):
            m2 = 0.0
        case Combined(m1=m1, m2=m2, beyond="smooth"):
            pass
        case ArcFace(beyond="easy"):
            return [math.pi / 2]
        case ArcFace(m=m2, beyond=beyond) if beyond != "none":
            m1 = 1.0
        case Piecewise(m=m) if m > 1:
            return [math.pi / m]
        case _:
            return []
    found = [(k * math.pi - m2) / m1 for k in range(1, math.ceil(m1 + m2 / math.pi) + 1)]
    return [theta for theta in found if 1e-9 < theta < math.pi - 1e-9]


@dataclass(frozen=True, eq=False)
class Curve:
    """One line of the picture: values and slopes at the picture's angles, and the knots with theirs."""

    name: str
    values: Floats
    slopes: Floats
    knots: Floats


@dataclass(eq=False)
class PsiDisplay(Display):
    """ψ, the logit or the probability over θ from 0 to π, and its slope beside it.

    theta   radians; every knot is among them
    curves  one for each margin and λ
    show    "psi", "logit" or "probability"
    given   what was assumed, in words
    """

    size: ClassVar[tuple[float, float]] = (9.2, 4.4)
    theta: Floats
    curves: Sequence[Curve]
    show: str = "psi"
    given: str = ""

    @classmethod
    def of(
        cls,
        margins: Sequence[Margin],
        *,
        lam: Sequence[float] = (0.0,),
        show: str = "psi",
        scale: float = 30.0,
        classes: int = 10,
        rivals: str = "orthogonal",
        points: int = 361,
    ) -> PsiDisplay:
        """Make it from margins. `lam` blends in the plain cosine, (λ cos θ + ψ)/(1 + λ): one curve for each λ.

        The probability is p_y = 1/(1 + (C−1)·exp(s·(c − ψ))), with all C − 1 rivals at the cosine c = 0
        (`rivals="orthogonal"`) or at c = −cos θ/(C−1), as when the centers form a simplex.
        """
        checks.one_of("show", show, list(SHOWN))
        checks.one_of("rivals", rivals, RIVALS)
        checks.positive("scale", scale)
        checks.count("classes", classes, 2)
        if not margins or not lam:
            raise ValueError(f"margins and lam must each hold one or more; got {len(margins)} and {len(lam)}.")
        for weight in lam:
            checks.in_range("lam", weight, 0.0, math.inf)
        # A probability has long left its knots behind, at 0.
        meeting = {margin: knots(margin) if show != "probability" else [] for margin in margins}
        theta = np.union1d(np.linspace(0, math.pi, points), [k for found in meeting.values() for k in found])

        def shown(margin: Margin, weight: float, angle: Tensor) -> Tensor:
            blended = (weight * angle.cos() + margin.psi(angle)) / (1 + weight)
            if show == "psi":
                return blended
            if show == "logit":
                return scale * blended
            rival = torch.zeros_like(angle) if rivals == "orthogonal" else -angle.cos() / (classes - 1)
            return torch.sigmoid(scale * (blended - rival) - math.log(classes - 1))

        curves = []
        for margin in margins:
            for weight in lam:
                angle = torch.from_numpy(theta).requires_grad_()
                values = shown(margin, weight, angle)
                (slopes,) = torch.autograd.grad(values.sum(), angle)
                name = _name(margin, weight, many=len(lam) > 1, alone=len(margins) == 1)
                curves.append(Curve(name, values.detach().numpy(), slopes.numpy(), np.array(meeting[margin])))
        return cls(theta, curves, show, _given(show, scale, classes, rivals, margins[0], len(margins), len(lam)))

    def draw(self, ax: Axes) -> None:
        """Draw values left, slopes right, one legend below."""
        panels = [_Half(self, slopes=False), _Half(self, slopes=True)]
        Keyed(panels, columns=2, title=self.given, keys=5).draw(ax)


@dataclass(eq=False)
class _Half(Display):
    whole: PsiDisplay
    slopes: bool

    def draw(self, ax: Axes) -> None:
        theta, colours = self.whole.theta, look(ax)
        for k, curve in enumerate(self.whole.curves):
            y = curve.slopes if self.slopes else curve.values
            colour, dash = colours.cycle[k % len(colours.cycle)], DASHES[k % len(DASHES)]
            ax.plot(theta, y, color=colour, linestyle=dash, linewidth=1.9, label=curve.name)
            if len(curve.knots):
                at = y[np.searchsorted(theta, curve.knots)]
                ax.plot(
                    curve.knots, at, "o", color=colour, markersize=5.5, markeredgecolor=colours.ground, zorder=3
                )
        if any(len(curve.knots) for curve in self.whole.curves):
            dot = {"color": colours.ink, "markersize": 5.5, "markeredgecolor": colours.ground}
            ax.plot([], [], "o", label="knot: two pieces meet", **dot)  # type: ignore[arg-type]  # options of a line
        degrees_axis(ax)
        dress(ax, xlabel="angle θ to the own class", ylabel=SHOWN[self.whole.show][self.slopes])


def _name(margin: Margin, weight: float, *, many: bool, alone: bool) -> str:
    blend = f"λ = {weight:g}"
    if many and alone:
        return blend
    return f"{label(margin)}, {blend}" if many or weight else label(margin)


def _given(show: str, scale: float, classes: int, rivals: str, first: Margin, margins: int, lams: int) -> str:
    said = [f"s = {scale:g}"] if show != "psi" else []
    if show == "probability":
        where = "at 90°" if rivals == "orthogonal" else "on a simplex"
        said.append(f"{classes:,} classes, the rivals {where}")
    if lams > 1 and margins == 1:
        said = [f"{label(first)}, blended with cos θ by λ", *said]
    return "; ".join(said)


@picture("psi", "ψ(θ), the cosine the loss pretends the target has, and its slope")
def psi(
    margins: Annotated[list[str], MARGINS] = USUAL,
    lam: Annotated[list[float], "λ of the blend with cos θ; several give a curve each; repeatable"] = NO_BLEND,
    show: Annotated[str, "psi, logit or probability"] = "psi",
    scale: Annotated[float, "s, for logit and probability"] = 30.0,
    classes: Annotated[int, "number of classes, for probability"] = 10,
    rivals: Annotated[str, "where the other classes are: orthogonal (cosine 0) or simplex"] = "orthogonal",
) -> PsiDisplay:
    """ψ and its slope over [0°, 180°]; the dots are the knots."""
    return PsiDisplay.of(read_margins(margins), lam=lam, show=show, scale=scale, classes=classes, rivals=rivals)


@picture("logit", "s·ψ(θ), the target's logit, and its slope")
def logit(
    margins: Annotated[list[str], MARGINS] = USUAL,
    lam: Annotated[list[float], "λ of the blend with cos θ; several give a curve each; repeatable"] = NO_BLEND,
    scale: Annotated[float, "s"] = 30.0,
) -> PsiDisplay:
    """Draw the same curves, s times as tall: what the softmax sees."""
    return PsiDisplay.of(read_margins(margins), lam=lam, show="logit", scale=scale)


@picture("probability", "the target's probability by its angle, and its slope")
def probability(
    margins: Annotated[list[str], MARGINS] = USUAL,
    lam: Annotated[list[float], "λ of the blend with cos θ; several give a curve each; repeatable"] = NO_BLEND,
    scale: Annotated[float, "s"] = 30.0,
    classes: Annotated[int, "number of classes"] = 10,
    rivals: Annotated[str, "where the other classes are: orthogonal (cosine 0) or simplex"] = "orthogonal",
) -> PsiDisplay:
    """p_y over [0°, 180°]: where training stops pulling."""
    return PsiDisplay.of(
        read_margins(margins), lam=lam, show="probability", scale=scale, classes=classes, rivals=rivals
    )
