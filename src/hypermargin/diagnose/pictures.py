"""The pictures of a diagnosis: what was measured, as dots, over the curves of this library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from hypermargin.common.arrays import Floats
from hypermargin.diagnose.angles import Curves
from hypermargin.diagnose.diagnosis import Diagnosis
from hypermargin.margins import Margin
from hypermargin.plots.catalogue import label
from hypermargin.plots.keyed import Keyed
from hypermargin.plots.style import DASHES, Display, degrees_axis, dress, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(eq=False)
class MeasuredDisplay(Display):
    """ψ as measured, over that of the margin that was named, ours, and cos θ; beside it the slopes."""

    size: ClassVar[tuple[float, float]] = (9.2, 4.4)
    theta: Floats
    psi: Floats
    reported: Floats  # dψ/dθ, as autograd has it
    named: Margin | None = None
    ours: Margin | None = None  # the margin we would take, where that is another

    @classmethod
    def of(cls, found: Diagnosis) -> MeasuredDisplay:
        """Make it from a diagnosis with curves and a scale."""
        if found.curves is None or not found.scale:
            raise ValueError("found must have measured curves; this criterion could not be measured.")
        named = found.margin
        ours = None
        if named is not None and getattr(named, "beyond", "smooth") != "smooth":
            ours = type(named)(**{**vars(named), "beyond": "smooth"})
        return cls(
            found.curves.theta, found.curves.target / found.scale, found.curves.reported / found.scale, named, ours
        )

    def draw(self, ax: Axes) -> None:
        """Draw values left, slopes right, one legend below."""
        Keyed([_Panel(self, slopes=False), _Panel(self, slopes=True)], columns=2, keys=5).draw(ax)


@dataclass(eq=False)
class _Panel(Display):
    whole: MeasuredDisplay
    slopes: bool

    def draw(self, ax: Axes) -> None:
        whole, colours = self.whole, look(ax)
        fine = np.linspace(0.001, math.pi - 0.001, 721)
        plain = -np.sin(fine) if self.slopes else np.cos(fine)
        ax.plot(fine, plain, color=colours.faint, linestyle=DASHES[3], linewidth=1.4, label="no margin")
        for margin, colour, dash, what in (
            (whole.ours, colours.green, DASHES[1], "ours"), (whole.named, colours.blue, DASHES[0], "named")
        ):  # fmt: skip
            if margin is not None:
                text = f"{what}: {label(margin)}"
                ax.plot(
                    fine, _curve(margin, fine, self.slopes), color=colour, linestyle=dash, linewidth=1.9, label=text
                )
        every = slice(None, None, 3)
        measured = whole.reported if self.slopes else whole.psi
        ax.plot(
            whole.theta[every], measured[every], "o", color=colours.red, markersize=3.2, label="measured", zorder=4
        )
        degrees_axis(ax)
        what = "slope as autograd reports it, per radian" if self.slopes else "target cosine ψ(θ)"
        dress(ax, xlabel="angle θ to the own class", ylabel=what)


def _curve(margin: Margin, theta: Floats, slopes: bool) -> Floats:
    angle = torch.from_numpy(theta.copy()).requires_grad_()
    psi = margin.psi(angle)
    if not slopes:
        return np.asarray(psi.detach().numpy())
    return np.asarray(torch.autograd.grad(psi.sum(), angle)[0].numpy())


@dataclass(eq=False)
class RivalsDisplay(Display):
    """What a rival counts as, by its cosine."""

    cosine: Floats
    counts: Floats

    @classmethod
    def of(cls, curves: Curves, scale: float) -> RivalsDisplay:
        """Make it from measured curves."""
        return cls(curves.rival_cosine, curves.rival / scale)

    def draw(self, ax: Axes) -> None:
        """Draw dots over the diagonal."""
        colours = look(ax)
        ax.plot([-1, 1], [-1, 1], color=colours.faint, linestyle=DASHES[3], linewidth=1.4, label="its cosine")
        ax.plot(self.cosine, self.counts, "o", color=colours.red, markersize=3.2, label="measured")
        dress(ax, xlabel="cosine of a rival", ylabel="counts as")
        ax.legend(frameon=False, fontsize=9, labelcolor=colours.ink)
