"""Heads side by side: a number of each, their ROC and DET curves, their ψ, and how their angles moved.

Every picture of several heads takes `places`, the number of each head in the comparison, which decides how its line
looks: the same in every picture, whoever else is in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hypermargin.common.arrays import Floats
from hypermargin.plots.style import Display, degrees_axis, dress, legend, look, percent, stroke
from hypermargin.plots.verification import DetDisplay

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE, HIGH, LINE = 4.4, 3.7, 0.19  # inches: of a picture that can be read on a phone, and of a line of its legend
SHORT = 13  # letters, up to which names of the legend stand in two columns
Places = Mapping[str, int]


def _room(names: Iterable[str]) -> tuple[int, tuple[float, float]]:
    """Return the columns of a legend, and the size of a picture with it below."""
    names = list(names)
    columns = 2 if max(map(len, names), default=0) <= SHORT else 1
    return columns, (WIDE, HIGH + LINE * math.ceil(len(names) / columns))


def _key(ax: Axes) -> None:
    """Draw the legend below the picture, where it covers no line."""
    columns, _ = _room(ax.get_legend_handles_labels()[1])
    legend(ax, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns, handlelength=3.4)


@dataclass(eq=False)
class HeadsNumberDisplay(Display):
    """One number of every head: its mean over seeds with the standard deviation, and each seed.

    values  by head, as shares
    what    the number, for the axis
    better  +1: more is better; −1: less
    """

    values: Mapping[str, Sequence[float]]
    what: str
    better: int = 1
    places: Places = field(default_factory=dict)

    @property
    def size(self) -> tuple[float, float]:  # type: ignore[override]  # a line for each head
        """As high as the heads need."""
        return 4.8, 0.9 + 0.3 * len(self.values)

    def draw(self, ax: Axes) -> None:
        """Draw the best on top."""
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        order = sorted(self.values, key=lambda head: self.better * float(np.mean(self.values[head])))
        for row, head in enumerate(order):
            values = np.asarray(self.values[head], float)
            line = stroke(self.places.get(head, row), ax)
            colour, mark = line["color"], line.get("marker", "o")
            if len(values) > 1:
                for value in values:  # lines, no markers: a page can show those in its own colours
                    ax.plot((value, value), (row - 0.2, row + 0.2), color=look(ax).ink, linewidth=1.1)
                reach = float(values.std(ddof=1))
                ends = values.mean() - reach, values.mean() + reach
                ax.plot(ends, (row, row), color=colour, linewidth=3.5, alpha=0.5, solid_capstyle="butt")
            ax.plot(values.mean(), row, mark, color=colour, markersize=8, markeredgewidth=0)
        ax.set_yticks(range(len(order)), order)
        ax.set_ylim(-0.6, len(order) - 0.4)
        ax.xaxis.set_major_locator(MaxNLocator(5))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(round(share, 6))))
        dress(ax, xlabel=self.what)
        ax.tick_params(axis="y", length=0, labelsize=10)


@dataclass(eq=False)
class HeadsRocDisplay(Display):
    """The mean TAR over seeds at each FAR, and its range.

    far   from one false accept up, on a log axis
    tars  by head: (seeds, FARs)
    """

    far: Floats
    tars: Mapping[str, Floats]
    places: Places = field(default_factory=dict)

    @property
    def size(self) -> tuple[float, float]:  # type: ignore[override]  # with its legend
        """As high as the legend needs."""
        return _room(self.tars)[1]

    @classmethod
    def of(
        cls,
        curves: Mapping[str, Sequence[tuple[Floats, Floats, int]]],
        places: Places | None = None,
        points: int = 200,
    ) -> HeadsRocDisplay:
        """Make it from (FAR, TAR, impostor pairs) of every seed of every head; a TAR holds until the next point."""
        least = max(1 / impostors for seeds in curves.values() for _, _, impostors in seeds)
        grid = np.geomspace(least, 1, points)
        tars = {
            head: np.stack([tar[np.searchsorted(far, grid, side="right") - 1] for far, tar, _ in seeds])
            for head, seeds in curves.items()
            if seeds
        }
        return cls(grid, tars, places or {})

    def draw(self, ax: Axes) -> None:
        """Draw one line per head, its range as a band."""
        from matplotlib.ticker import FuncFormatter

        for k, (head, tars) in enumerate(self.tars.items()):
            line = stroke(self.places.get(head, k), ax)
            ax.plot(self.far, tars.mean(0), linewidth=1.7, label=head, **line)
            if len(tars) > 1:
                ax.fill_between(self.far, tars.min(0), tars.max(0), color=line["color"], alpha=0.12, linewidth=0)
        ax.set_xscale("log")
        ax.set_xlim(self.far[0], 1)
        ax.xaxis.set_minor_formatter("")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(share)))
        dress(ax, xlabel="false accepts (FAR)", ylabel="true accepts (TAR)", title="ROC: mean and range over seeds")
        _key(ax)


@dataclass(eq=False)
class HeadsDetDisplay(Display):
    """The mean FRR over seeds at each FAR, with a dot at each head's mean EER.

    roc   the same curves
    eers  by head: the mean, and how it is written
    """

    roc: HeadsRocDisplay
    eers: Mapping[str, tuple[float, str]]

    @property
    def size(self) -> tuple[float, float]:  # type: ignore[override]  # with its legend
        """As high as the legend needs."""
        return _room(f"{head}: {words}" for head, (_, words) in self.eers.items())[1]

    def draw(self, ax: Axes) -> None:
        """Draw one after the other."""
        for k, (head, tars) in enumerate(self.roc.tars.items()):
            before, (eer, words) = len(ax.lines), self.eers[head]
            DetDisplay(self.roc.far, 1 - tars.mean(0), eer, head).draw(ax)
            line = stroke(self.roc.places.get(head, k), ax)
            ax.lines[before].set(label=f"{head}: {words}", **line)
            ax.lines[-1].set(color=line["color"], markersize=7, zorder=4)  # the dot
        _key(ax)


@dataclass(eq=False)
class HeadsPsiDisplay(Display):
    """ψ(θ) of every head, or its slope; heads with the same one share a line.

    theta   radians
    curves  by the names of the heads that have it: its first head's place, and the values
    """

    theta: Floats
    curves: Mapping[str, tuple[int, Floats]]
    what: str

    @property
    def size(self) -> tuple[float, float]:  # type: ignore[override]  # with its legend
        """As high as the legend needs."""
        return _room(self.curves)[1]

    def draw(self, ax: Axes) -> None:
        """Draw one line for each."""
        for names, (place, values) in self.curves.items():
            ax.plot(self.theta, values, linewidth=1.7, label=names, **stroke(place, ax))
        degrees_axis(ax)
        dress(ax, xlabel="angle θ to the own class", ylabel=self.what)
        _key(ax)


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
