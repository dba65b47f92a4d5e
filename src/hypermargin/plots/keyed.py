"""Panels with a title above and one legend below, each in a strip of its own, where it covers nothing."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypermargin.plots.style import Panels, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STRIP = 0.34  # inches: a title, or a line of the legend
NARROWEST = 5.6  # inches: what a title or a legend needs, however few the panels
HANDLE, LETTER = 0.65, 0.075  # inches: an entry of the legend, without its name and by letter


@dataclass(eq=False)
class Keyed(Panels):
    """Panels with one legend: each label is named once, in rows of at most `keys`; 0: no legend."""

    title: str = ""
    keys: int = 4

    @property
    def size(self) -> tuple[float, float]:  # type: ignore[override]  # of all the panels
        """The size of the whole figure."""
        rows = math.ceil(len(self.panels) / min(self.columns, len(self.panels)))
        strips = STRIP * (len(self._lines) + bool(self.keys))
        return self._width, rows * self.panel_size[1] + strips

    @property
    def _width(self) -> float:
        return max(NARROWEST, min(self.columns, len(self.panels)) * self.panel_size[0])

    @property
    def _lines(self) -> list[str]:
        """Return the title in as many lines as it needs."""
        return textwrap.wrap(self.title, int(self._width / (1.15 * LETTER)))

    def draw(self, ax: Axes) -> None:
        """Draw the panels on what the strips leave."""
        place, figure, colours = ax.get_subplotspec(), ax.get_figure(), look(ax)
        if place is None or figure is None:
            raise ValueError(
                f"ax must be a subplot, since its place is divided among {len(self.panels)} panels; "
                "got free axes. Make them with figure.add_subplot()."
            )
        ax.set_axis_off()
        lines = self._lines
        above, below = STRIP * len(lines), STRIP * bool(self.keys)
        # A strip that holds nothing gets no height worth mentioning: a grid has no rows of height 0.
        grid = place.subgridspec(3, 1, height_ratios=[above or 1e-3, self.size[1] - above - below, below or 1e-3])
        panels = Panels(self.panels, self.columns, self.panel_size)
        panels.draw(figure.add_subplot(grid[1]))
        self.axes_ = panels.axes_
        if lines:
            top = figure.add_subplot(grid[0])
            top.set_axis_off()
            top.text(0, 0.5, "\n".join(lines), transform=top.transAxes, va="center", fontsize=11, color=colours.ink)
        named: dict[str, Any] = {}
        for panel in self.axes_:
            handles, labels = panel.get_legend_handles_labels()
            named |= {label: handle for label, handle in zip(labels, handles, strict=True) if label not in named}
        if self.keys and named:
            fit = int(self._width / (HANDLE + LETTER * max(map(len, named))))
            rows = math.ceil(len(named) / max(1, min(self.keys, fit)))
            bottom = figure.add_subplot(grid[2])
            bottom.set_axis_off()
            bottom.legend(
                list(named.values()), list(named), loc="center", ncols=math.ceil(len(named) / rows), fontsize=9,
                facecolor=colours.ground, edgecolor="none", labelcolor=colours.ink, handlelength=2.6,
            )  # fmt: skip
