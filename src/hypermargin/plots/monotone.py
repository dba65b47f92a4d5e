"""Why ψ must fall all the way: the bare cos mθ turns back up, and lets samples far away pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np

from hypermargin import checks
from hypermargin.common.arrays import Floats
from hypermargin.margins import SphereFace
from hypermargin.plots.catalogue import picture
from hypermargin.plots.keyed import Keyed
from hypermargin.plots.stretches import psi, stretches
from hypermargin.plots.style import Display, degrees_axis, dress, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FACTORS: list[float] = [2.0, 3.0, 4.0, 6.0]
LOWEST = -2.6  # g goes on down to 1 − 2m; what matters is above


@dataclass(eq=False)
class MonotoneDisplay(Display):
    """The bare cos mθ and the monotone g(mθ) against a level that the target must reach.

    bare, smooth    values at `theta`
    passes          intervals of θ with cos mθ ≥ level: several for m > 2
    smooth_passes   intervals with g(mθ) ≥ level: the first of them, no more
    """

    m: float
    level: float
    theta: Floats
    bare: Floats
    smooth: Floats
    passes: Sequence[tuple[float, float]]
    smooth_passes: Sequence[tuple[float, float]]

    @classmethod
    def of(cls, m: float, level: float = 0.0, points: int = 721) -> MonotoneDisplay:
        """Make it from the factor m and the level, the cosine of a rival: 0 is a rival at 90°."""
        checks.in_range("level", level, -1.0, 1.0, "It is a rival's cosine.")
        theta = np.linspace(0, math.pi, points)
        bare, smooth = SphereFace(m, beyond="none"), SphereFace(m)
        return cls(
            m,
            level,
            theta,
            psi(bare, theta),
            psi(smooth, theta),
            stretches(lambda x: psi(bare, x) - level, 0, math.pi),
            stretches(lambda x: psi(smooth, x) - level, 0, math.pi),
        )

    @property
    def words(self) -> str:
        """Say the intervals, in degrees, one line per curve."""
        times = f"{self.m:g}θ"
        return (
            f"cos {times} ≥ {self.level:g} at {in_degrees(self.passes)}\n"
            f"g({times}) ≥ {self.level:g} at {in_degrees(self.smooth_passes)}"
        )

    def draw(self, ax: Axes) -> None:
        """Shade the angles that pass, blue those that should, red those that should not."""
        colours = look(ax)
        ax.plot(self.theta, np.cos(self.theta), color=colours.faint, linewidth=1.4, linestyle=":", label="cos θ")
        ax.plot(self.theta, self.bare, color=colours.red, linewidth=1.8, linestyle="--", label="bare cos mθ")
        ax.plot(self.theta, self.smooth, color=colours.blue, linewidth=2.0, label="monotone g(mθ)")
        ax.axhline(
            self.level, color=colours.ink, linewidth=1.0, linestyle=(0, (1, 3)), label="level: a rival's cosine"
        )
        kept = {"color": colours.blue, "alpha": 0.18, "label": "passes with both"}
        wrong = {"color": colours.red, "alpha": 0.22, "label": "passes with cos mθ only"}
        for start, end in self.passes:
            ours = any(start < b and a < end for a, b in self.smooth_passes)
            ax.axvspan(start, end, linewidth=0, **(kept if ours else wrong))  # type: ignore[arg-type]
        degrees_axis(ax)
        ax.set_ylim(LOWEST, 1.25)
        dress(ax, xlabel="angle θ to the own class", ylabel="target cosine", title=f"m = {self.m:g}")
        ax.set_title(self.words, loc="right", fontsize=9, color=colours.ink)


def in_degrees(intervals: Sequence[tuple[float, float]]) -> str:
    """Write intervals as 0–15°, 45–75°; "no angle" without any."""
    shown = [f"{round(math.degrees(a), 1):g}–{round(math.degrees(b), 1):g}°" for a, b in intervals]
    return ", ".join(shown) or "no angle"


@picture("monotone", "why the bare cos mθ will not do: it passes samples that are far away")
def monotone(
    m: Annotated[list[float], "factor of the angle, 1 or more; a panel each; repeatable"] = FACTORS,
    level: Annotated[float, "the cosine that the target must reach, so that of the rival; 0: a rival at 90°"] = 0.0,
) -> Keyed:
    """A panel for each m: the bare cosine meets the level in several intervals, g in one."""
    if not m:
        raise ValueError("m must hold one factor or more; got none.")
    return Keyed([MonotoneDisplay.of(k, level) for k in m], columns=2, panel_size=(4.9, 3.3), keys=3)
