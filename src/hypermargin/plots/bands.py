"""The band between two classes for every θ12: in the plane of the two angles, and its width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np

from hypermargin.advise import band_width
from hypermargin.common.arrays import Floats
from hypermargin.margins import Margin
from hypermargin.plots.boundary import in_radians
from hypermargin.plots.catalogue import MARGINS, label, picture, read_margins
from hypermargin.plots.keyed import Keyed
from hypermargin.plots.stretches import psi, stretches
from hypermargin.plots.style import DASHES, Display, degrees, degrees_axis, dress, legend, look
from hypermargin.scales import psi_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EVERY: list[str] = ["none", "sphereface:m=4", "sphereface:m=4,lam=5", "cosface", "arcface", "combined"]
NEITHER = 0.7 * math.pi  # where the band is named, on the diagonal
FEW: list[str] = ["none", "sphereface:m=4", "cosface", "arcface", "combined"]


@dataclass(eq=False)
class ThetaPlaneDisplay(Display):
    """The plane of θ1 and θ2, the sample's angles to both classes.

    theta    radians, the θ1 at which class 1's boundary is known
    needed   the least θ2 with ψ(θ1) ≥ cos θ2; NaN where no θ2 will do (ψ < −1)
    width    that of the band on the line θ1 + θ2 = θ12, the arc between the classes
    """

    theta: Floats
    needed: Floats
    theta12: float
    width: float
    title: str = ""

    @classmethod
    def of(cls, margin: Margin, theta12: float = math.pi / 2, points: int = 181) -> ThetaPlaneDisplay:
        """Make it from a margin, and θ12 in radians for the arc."""
        # The angles where ψ leaves [−1, 1] belong to the grid, so that the curve ends where it should.
        ends = [end for pair in stretches(lambda x: psi(margin, x) + 1, 0, math.pi) for end in pair]
        theta = np.union1d(np.linspace(0, math.pi, points), ends)
        values = psi(margin, theta)
        needed = np.where(values >= -1 - 1e-9, np.arccos(np.clip(values, -1, 1)), np.nan)
        return cls(theta, needed, theta12, band_width(margin, theta12), label(margin))

    @property
    def room(self) -> float:
        """The room from the diagonal to class 1's boundary, where the band is to be named."""
        return float(np.nan_to_num(np.interp(NEITHER, self.theta, self.needed), nan=math.pi)) - NEITHER

    def draw(self, ax: Axes) -> None:
        """Draw class 1 above its boundary, class 2 right of the mirrored one, the band between."""
        colours = look(ax)
        seen = ~np.isnan(self.needed)
        theta, needed = self.theta[seen], self.needed[seen]
        top = np.full_like(theta, math.pi)
        ax.fill_between(theta, needed, top, color=colours.blue, alpha=0.25, linewidth=0)
        ax.fill_betweenx(theta, needed, top, color=colours.red, alpha=0.25, linewidth=0)
        ax.plot(theta, needed, color=colours.blue, linewidth=1.9, label="ψ(θ₁) = cos θ₂: class 1 above it")
        ax.plot(
            needed, theta, color=colours.red, linewidth=1.9, linestyle="--",
            label="cos θ₁ = ψ(θ₂): class 2 to its right",
        )  # fmt: skip
        arc, center = degrees(self.theta12), self.theta12 / 2
        ax.plot(
            [0, self.theta12], [self.theta12, 0], color=colours.faint, linewidth=1.1, linestyle=":",
            label=f"arc between classes {arc} apart",
        )  # fmt: skip
        if self.width > 0:
            piece = center + np.array([-0.5, 0.5]) * self.width
            ax.plot(
                piece, piece[::-1], color=colours.ink, linewidth=2.6, solid_capstyle="butt",
                label="its part in the band",
            )  # fmt: skip
        for name, place in (("class 1", (0.04, 0.96)), ("class 2", (0.96, 0.04))):
            ha, va = ("left", "top") if name == "class 1" else ("right", "bottom")
            ax.text(*place, name, transform=ax.transAxes, ha=ha, va=va, fontsize=9, color=colours.ink)
        if self.room > math.radians(15):
            ax.text(
                NEITHER, NEITHER, "neither", rotation=45, ha="center", va="center", fontsize=9, color=colours.ink
            )
        degrees_axis(ax)
        degrees_axis(ax, "y")
        ax.set_aspect("equal")
        dress(ax, xlabel="θ₁, angle to class 1", ylabel="θ₂, angle to class 2")
        ax.set_title(f"{self.title}\nband {degrees(self.width)}", loc="left", fontsize=10, color=colours.ink)


@dataclass(eq=False)
class WidthDisplay(Display):
    """Width of the band over θ12.

    theta12    radians
    widths     one row for each margin; where the margin cannot be met, the width is θ12 itself
    feasible   by margin: the least θ12 at which a sample on its center meets it, acos ψ(0)
    """

    theta12: Floats
    widths: Floats
    feasible: Sequence[float]
    names: Sequence[str]

    @classmethod
    def of(cls, margins: Sequence[Margin], points: int = 180) -> WidthDisplay:
        """Make it from margins."""
        least = [math.acos(min(1.0, max(-1.0, psi_at(margin, 0.0)))) for margin in margins]
        grid = np.union1d(np.linspace(math.pi / points, math.pi, points), [k for k in least if k > 0])
        widths = np.array([[band_width(margin, float(angle)) for angle in grid] for margin in margins])
        return cls(grid, widths, least, [label(margin) for margin in margins])

    def draw(self, ax: Axes) -> None:
        """Draw a line for each margin; a cross where it becomes feasible; nothing is ever above the diagonal."""
        colours = look(ax)
        ax.plot(
            [0, math.pi], [0, math.pi], color=colours.faint, linewidth=1.0, linestyle=(0, (1, 3)),
            label="the whole arc; from × on, centers meet the margin",
        )  # fmt: skip
        for k, (name, widths, least) in enumerate(zip(self.names, self.widths, self.feasible, strict=True)):
            colour = colours.cycle[k % len(colours.cycle)]
            can = self.theta12 >= least - 1e-12
            shown = f"{name}  (× {degrees(least)})" if least > 0 else name
            ax.plot(
                self.theta12[can], widths[can], color=colour, linestyle=DASHES[k % len(DASHES)], linewidth=1.9,
                label=shown, clip_on=False,
            )  # fmt: skip
            if least > 0:
                ax.plot(least, least, "X", color=colour, markersize=7, markeredgecolor=colours.ground, zorder=3)
        degrees_axis(ax)
        ticks = range(0, 181, 45)
        ax.set_yticks([math.radians(t) for t in ticks], [f"{t}°" for t in ticks])
        ax.set_ylim(min(0.0, 1.05 * float(self.widths.min())), math.pi)
        dress(ax, xlabel="angle θ₁₂ between the two classes", ylabel="width of the band between them")
        legend(ax, loc="upper left")


@picture("theta-plane", "the plane of the two angles: who wins where, and the band between")
def theta_plane(
    margins: Annotated[list[str], MARGINS] = EVERY,
    theta12: Annotated[float, "angle between the two classes for the arc, in degrees"] = 90.0,
) -> Keyed:
    """A panel for each margin."""
    angle = in_radians(theta12)
    panels = [ThetaPlaneDisplay.of(m, angle) for m in read_margins(margins)]
    return Keyed(panels, columns=3, panel_size=(3.7, 3.9), keys=4)


@picture("width", "width of the band by the angle between two classes")
def width(margins: Annotated[list[str], MARGINS] = FEW) -> WidthDisplay:
    """SphereFace's vanishes for close classes, ArcFace's stays, CosFace's grows as they come closer."""
    return WidthDisplay.of(read_margins(margins))
