"""Heads side by side: their ROC curves and how their angles moved, with the range over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hypermargin.common.arrays import Floats
from hypermargin.plots.style import DASHES, Display, dress, legend, look, percent
from hypermargin.plots.verification import DetDisplay

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(eq=False)
class HeadsRocDisplay(Display):
    """The mean TAR over seeds at each FAR, and its range.

    far   from one false accept up, on a log axis
    tars  by head: (seeds, FARs)
    """

    size = (7.4, 4.8)
    far: Floats
    tars: Mapping[str, Floats]

    @classmethod
    def of(cls, curves: Mapping[str, Sequence[tuple[Floats, Floats, int]]], points: int = 200) -> HeadsRocDisplay:
        """Make it from (FAR, TAR, impostor pairs) of every seed of every head; a TAR holds until the next point."""
        least = max(1 / impostors for seeds in curves.values() for _, _, impostors in seeds)
        grid = np.geomspace(least, 1, points)
        tars = {
            head: np.stack([tar[np.searchsorted(far, grid, side="right") - 1] for far, tar, _ in seeds])
            for head, seeds in curves.items()
            if seeds
        }
        return cls(grid, tars)

    def draw(self, ax: Axes) -> None:
        """Draw one line per head, its range as a band; the dashes tell heads apart without colour."""
        from matplotlib.ticker import FuncFormatter

        for k, (head, tars) in enumerate(self.tars.items()):
            colours = look(ax).cycle
            colour, dashes = colours[k % len(colours)], DASHES[k % len(DASHES)]
            ax.plot(self.far, tars.mean(0), color=colour, linestyle=dashes, linewidth=1.7, label=head)
            if len(tars) > 1:
                ax.fill_between(self.far, tars.min(0), tars.max(0), color=colour, alpha=0.15, linewidth=0)
        ax.set_xscale("log")
        ax.set_xlim(self.far[0], 1)
        ax.xaxis.set_minor_formatter("")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(share)))
        dress(ax, xlabel="false accepts (FAR)", ylabel="true accepts (TAR)", title="ROC: mean and range over seeds")
        legend(ax, loc="upper left", bbox_to_anchor=(1.0, 1.0))


@dataclass(eq=False)
class HeadsDetDisplay(Display):
    """The DET curves of several heads on one pair of axes, named by `name` of each."""

    size = (6.4, 4.8)
    curves: Sequence[DetDisplay]

    def draw(self, ax: Axes) -> None:
        """Draw one after the other; the dashes tell heads apart without colour."""
        for k, curve in enumerate(self.curves):
            before = len(ax.lines)
            curve.draw(ax)
            ax.lines[before].set(linestyle=DASHES[k % len(DASHES)])
        legend(ax, loc="upper right")


@dataclass(eq=False)
class TrainingAnglesDisplay(Display):
    """Mean angles of training samples, in degrees, to the own class and to the nearest other one, as training goes.

    epochs      where the log has a line
    own, rival  (seeds, lines)
    """

    epochs: Floats
    own: Floats
    rival: Floats

    def draw(self, ax: Axes) -> None:
        """Draw two lines, each with its range over seeds."""
        colours = look(ax)
        for values, name, colour, dashes in (
            (self.rival, "nearest other class", colours.red, "--"), (self.own, "own class", colours.blue, "-"),
        ):  # fmt: skip
            ax.plot(self.epochs, values.mean(0), color=colour, linestyle=dashes, linewidth=1.7, label=name)
            if len(values) > 1:
                ax.fill_between(self.epochs, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)
        ax.set_ylim(0, max(95.0, float(self.own.max()) + 3, float(self.rival.max()) + 3))
        ax.yaxis.set_major_formatter("{x:.0f}°")
        dress(ax, xlabel="epoch", ylabel="mean angle", title="")
        legend(ax, loc="lower left")
