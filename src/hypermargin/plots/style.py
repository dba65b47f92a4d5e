"""How pictures look, decided once: colours that everyone can tell apart, white ground, thin grid, room for labels.

A picture is a `Display`: a dataclass of what is to be seen, computed once, that draws itself on any axes.
Nothing here touches pyplot, so no window opens and no figure of yours changes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hypermargin.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

# Okabe and Ito's colours, in the order in which they are used.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442",
)  # fmt: skip
CYCLE = BLUE, RED, GREEN, PURPLE, ORANGE, SKY
INK, FAINT, GROUND = "#222222", "#888888", "white"
DASHES = "-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (9, 3))
SIZE, DPI = (6.4, 4.4), 150


class Display:
    """`plot(ax)` draws and returns itself, with `ax_` and `figure_`; `save(path)` writes a file."""

    ax_: Axes
    figure_: FigureBase

    def plot(self, ax: Axes | None = None) -> Self:
        """On these axes, or on new ones."""
        self.ax_ = new_axes() if ax is None else ax
        self.figure_ = self.ax_.figure
        self.draw(self.ax_)
        return self

    def draw(self, ax: Axes) -> None:
        """What a picture adds to the axes."""
        raise NotImplementedError(f"{type(self).__name__} must define draw(ax)")

    def save(self, path: str | os.PathLike[str]) -> None:
        """The picture by itself, in the format that the ending names; whole or not at all."""
        ax = new_axes()
        self.plot(ax)
        with replacing(Path(path)) as temporary:
            ax.get_figure().savefig(temporary, dpi=DPI)  # type: ignore[union-attr]  # new axes have one


def new_axes(size: tuple[float, float] = SIZE) -> Axes:
    """One pair of axes on a figure of its own."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "pictures need matplotlib, which is not installed. Run: pip install 'hypermargin[plot]'",
            name="matplotlib",
        ) from None
    figure = Figure(figsize=size, layout="constrained", facecolor=GROUND)
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    ax.set_prop_cycle(color=CYCLE)
    return ax


def dress(ax: Axes, *, xlabel: str, ylabel: str, title: str = "") -> None:
    """Labels, thin grid, and no box where nothing ends."""
    ax.set_facecolor(GROUND)
    ax.set_xlabel(xlabel, color=INK)
    ax.set_ylabel(ylabel, color=INK)
    if title:
        ax.set_title(title, loc="left", fontsize=11, color=INK)
    ax.grid(True, which="major", color=FAINT, alpha=0.3, linewidth=0.6)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def legend(ax: Axes, **options: Any) -> None:
    """What has a label, each once, if anything has."""
    handles, labels = ax.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    if named:
        look: dict[str, Any] = {"fontsize": 9, "facecolor": GROUND, "edgecolor": "none", "framealpha": 0.9}
        ax.legend(list(named.values()), list(named), **(look | options))


def percent(share: float) -> str:
    """A tick: 1 %, 0.1 %, 99.9 %."""
    return f"{100 * share:.6g} %"
