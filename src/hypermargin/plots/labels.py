"""Names beside what they name, pushed apart where they would cover each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hypermargin.common.arrays import Floats
from hypermargin.plots.style import look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST = 14  # letters
LETTER, LINE = 0.08, 0.18  # inches, of text of 9 points


def write_names(ax: Axes, names: Sequence[str], places: Floats, near: NDArray[np.bool_], width: float) -> None:
    """Write names at places (N, 2) on axes that are `width` wide and high; those that are not near are faint."""
    from matplotlib.patheffects import withStroke

    short = [name if len(name) <= LONGEST else name[: LONGEST - 6] + "…" + name[-5:] for name in names]
    box, figure = ax.get_window_extent(), ax.get_figure(root=True)
    assert figure is not None  # axes are on one
    inch = width / max(1.0, 0.85 * min(box.width, box.height) / figure.dpi)  # the layout takes some for the title
    sizes = inch * np.array([[LETTER * len(name) + 0.06, LINE] for name in short])
    for name, (x, y), start, front in zip(short, apart(places, sizes), places, near, strict=True):
        if abs(x - start[0]) + abs(y - start[1]) > 0.3 * inch:
            ax.plot([start[0], x], [start[1], y], color=look(ax).faint, linewidth=0.6, zorder=3)
        colour = look(ax).ink if front else look(ax).faint
        text = ax.text(x, y, name, ha="center", va="center", fontsize=9, color=colour, zorder=5, parse_math=False)
        text.set_path_effects([withStroke(linewidth=2.5, foreground=look(ax).ground)])  # readable on dots


def plain(name: str) -> str:
    """Return a name for a legend: $ would begin a formula there, and a leading _ would hide it."""
    name = name.replace("$", r"\$")
    return f"\u200b{name}" if name.startswith("_") else name


def apart(places: Floats, sizes: Floats) -> Floats:
    """Move boxes (N, 2) wide and high around places (N, 2) a little, until none covers another."""
    places = places.copy()
    for _ in range(500):
        moved = False
        for i in range(len(places)):
            for j in range(i):
                gap = places[i] - places[j]
                over = (sizes[i] + sizes[j]) / 2 - np.abs(gap)
                if (over > 1e-9).all():
                    along = int(over.argmin())
                    step = (over[along] / 2 + 1e-6) * (1 if gap[along] >= 0 else -1)
                    places[i, along] += step
                    places[j, along] -= step
                    moved = True
        if not moved:
            break
    return places
