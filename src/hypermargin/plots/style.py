"""How pictures look, decided once: colours that everyone can tell apart, on white and on dark, and room for labels.

A picture is a `Display`: a dataclass of what is to be seen, computed once, that draws itself on any axes.
Nothing here touches pyplot, so no window opens and no figure of yours changes.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from hypermargin.common.needs import not_installed
from hypermargin.files import replacing, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase


@dataclass(frozen=True)
class Look:
    """Ink for text and axes, the ground below, and Okabe and Ito's colours."""

    ink: str
    faint: str
    ground: str
    blue: str
    red: str
    green: str
    purple: str
    orange: str
    sky: str
    yellow: str

    @property
    def cycle(self) -> tuple[str, ...]:
        """The colours of lines and classes, in the order in which they are used."""
        return self.blue, self.red, self.green, self.purple, self.orange, self.sky, self.faint


LIGHT = Look(
    "#222222", "#858585", "#ffffff",
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442",
)  # fmt: skip
DARK = Look(
    "#e8e8e8", "#8b9199", "#14171c",
    "#4c9fe0", "#ff8a4c", "#2fc796", "#eaa4cb", "#ffb834", "#9bd6fb", "#f7ee83",
)  # fmt: skip
DASHES = "-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (9, 3))
MARKS = "", "s", "^", "D"
SIZE, DPI = (6.4, 4.4), 150
ENDINGS = "png", "svg", "pdf"
NOTEBOOK_DPI = 80  # small: notebooks hold their pictures as text


def look(ax: Axes) -> Look:
    """Return the colours that suit the ground of the axes' figure, whoever made it."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(ax.get_figure(root=True).get_facecolor())  # type: ignore[union-attr]  # on a figure
    return LIGHT if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 else DARK


def stroke(k: int, ax: Axes) -> dict[str, Any]:
    """Return how line number k looks: 28 looks, any two of which differ without their colours too."""
    return stroke_of(k, look(ax))


def stroke_of(k: int, look: Look) -> dict[str, Any]:
    """Return the same in the colours of a ground."""
    colours = look.cycle
    again = k // len(colours)
    dashes = DASHES[(k + again) % len(DASHES)]
    marks = {"marker": MARKS[again % len(MARKS)], "markevery": 0.15, "markersize": 5, "markeredgewidth": 0}
    return {"color": colours[k % len(colours)], "linestyle": dashes, **(marks if again else {})}


class Display:
    """A picture: `plot(ax)` draws and returns itself, with `ax_` and `figure_`; `save(path)` writes a file."""

    size: ClassVar[tuple[float, float]] = SIZE  # inches, of a figure of its own
    ax_: Axes
    figure_: FigureBase

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw on these axes, or on new ones."""
        self.ax_ = new_axes(self.size) if ax is None else ax
        self.figure_ = self.ax_.figure
        self.draw(self.ax_)
        return self

    def draw(self, ax: Axes) -> None:
        """Draw what a picture adds to the axes."""
        raise NotImplementedError(f"{type(self).__name__} must define draw(ax)")

    def save(self, path: str | os.PathLike[str], *, dark: bool = False) -> None:
        """Write the picture by itself, in the format that the ending names; whole or not at all.

        An SVG file on white turns dark by itself where the reader's browser prefers that.
        """
        path = Path(path)
        if path.suffix.lower() == ".svg":
            write_text(path, self.svg(dark=dark))
            return
        figure = self._figure(dark)
        with replacing(path) as temporary:
            figure.savefig(temporary, dpi=DPI, facecolor=figure.get_facecolor())

    def svg(self, *, dark: bool = False, size: tuple[float, float] | None = None) -> str:
        """Return the picture as the text of an SVG file, the same every time; `size` is in inches."""
        need_matplotlib()
        import matplotlib

        file = io.StringIO()
        with matplotlib.rc_context({"svg.hashsalt": "hypermargin"}):
            figure = self._figure(dark, size)
            figure.savefig(file, format="svg", facecolor=figure.get_facecolor(), metadata={"Date": None})
        text = file.getvalue()
        if dark:
            return text
        rules = f"<style>@media (prefers-color-scheme: dark) {{ {recoloured('')} }}</style>"
        return text.replace("<defs>", f"{rules}\n <defs>", 1)

    def inline(self, title: str, *, size: tuple[float, float] | None = None) -> str:
        """Return the picture as an element of an HTML page, whose own rules then choose between light and dark."""
        text = re.sub(r"<\?xml.*?<svg", "<svg", self.svg(size=size), count=1, flags=re.DOTALL)
        for left_out in (r"<style>@media.*?</style>", r"<metadata>.*?</metadata>"):
            text = re.sub(left_out, "", text, count=1, flags=re.DOTALL)
        return text.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)

    def _repr_png_(self) -> bytes:
        """Return the picture as a notebook shows it where it is the last line of a cell."""
        file = io.BytesIO()
        figure = self._figure(dark=False)
        figure.savefig(file, format="png", dpi=NOTEBOOK_DPI, facecolor=figure.get_facecolor())
        return file.getvalue()

    def _figure(self, dark: bool, size: tuple[float, float] | None = None) -> Figure:
        ax = new_axes(size or self.size, dark=dark)
        self.plot(ax)
        figure: Figure = ax.get_figure(root=True)  # type: ignore[assignment]  # new axes have one
        # The layout is solved to the last bit or so, differently each time; rounded, a picture is the same file.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for each in figure.axes:
            each.set_position(tuple(round(v, 6) for v in each.get_position(original=True).bounds))
        return figure


@dataclass(eq=False)
class Panels(Display):
    """Several pictures side by side, in rows of `columns`; given axes are divided among them, kept in `axes_`."""

    panels: Sequence[Display]
    columns: int = 2
    panel_size: tuple[float, float] = (4.6, 3.8)

    @property
    def size(self) -> tuple[float, float]:  # type: ignore[override]  # of all the panels
        """The size of the whole figure."""
        columns = min(self.columns, len(self.panels))
        rows = math.ceil(len(self.panels) / columns)
        return columns * self.panel_size[0], rows * self.panel_size[1]

    def draw(self, ax: Axes) -> None:
        """Draw each panel on axes of its own, where `ax` was."""
        place = ax.get_subplotspec()
        if place is None:
            raise ValueError(
                f"ax must be a subplot, since its place is divided among {len(self.panels)} panels; "
                "got free axes. Make them with figure.add_subplot()."
            )
        columns = min(self.columns, len(self.panels))
        grid = place.subgridspec(math.ceil(len(self.panels) / columns), columns)
        ax.set_axis_off()
        self.axes_ = []
        for k, panel in enumerate(self.panels):
            figure = ax.get_figure()
            assert figure is not None  # axes with a place have a figure
            own = figure.add_subplot(grid[divmod(k, columns)])
            own.set_prop_cycle(color=look(ax).cycle)
            self.axes_.append(panel.plot(own).ax_)


@dataclass(eq=False)
class Framed(Display):
    """A picture that a page names: without a title of its own, and with the axes of those beside it."""

    inner: Display
    xlim: tuple[float, float] | None = None
    ylim: tuple[float, float] | None = None

    @property
    def size(self) -> tuple[float, float]:  # type: ignore[override]  # the picture's
        """The size of the picture."""
        return self.inner.size

    def draw(self, ax: Axes) -> None:
        """Draw the picture, then set its axes."""
        self.inner.plot(ax)
        ax.set_title("", loc="left")
        if self.xlim is not None:
            ax.set_xlim(self.xlim)
        if self.ylim is not None:
            ax.set_ylim(self.ylim)


def framed(displays: Mapping[str, Display]) -> dict[str, Framed]:
    """Give pictures that stand side by side the same axes: the least that show all of each."""
    axes = [display.plot().ax_ for display in displays.values()]
    x, y = ([limit for ax in axes for limit in limits(ax)] for limits in (_xlim, _ylim))
    return {name: Framed(each, (min(x), max(x)), (min(y), max(y))) for name, each in displays.items()}


def _xlim(ax: Axes) -> tuple[float, float]:
    return ax.get_xlim()


def _ylim(ax: Axes) -> tuple[float, float]:
    return ax.get_ylim()


def need_matplotlib() -> None:
    """Raise an error that says what to install, if it is not there."""
    try:
        import matplotlib.figure  # noqa: F401
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":  # something that it needs
            raise
        raise ModuleNotFoundError(not_installed("pictures need", "matplotlib"), name="matplotlib") from None


def new_axes(size: tuple[float, float] = SIZE, *, dark: bool = False) -> Axes:
    """Make one pair of axes on a figure of its own."""
    need_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colours = DARK if dark else LIGHT
    figure = Figure(figsize=size, layout="constrained", facecolor=colours.ground)
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    ax.set_prop_cycle(color=colours.cycle)
    return ax


def dress(ax: Axes, *, xlabel: str = "", ylabel: str = "", title: str = "") -> None:
    """Give axes labels, a thin grid, and no box where nothing ends."""
    colours = look(ax)
    ax.set_facecolor(colours.ground)
    ax.set_xlabel(xlabel, color=colours.ink)
    ax.set_ylabel(ylabel, color=colours.ink)
    if title:
        ax.set_title(title, loc="left", fontsize=11, color=colours.ink)
    ax.grid(True, which="major", color=colours.faint, alpha=0.3, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(which="both", color=colours.ink, labelcolor=colours.ink)
    for spine in ax.spines.values():
        spine.set_color(colours.ink)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def bare(ax: Axes, *, title: str = "", half: float = 1.25) -> None:
    """Make axes fit for geometry: equal units, no frame, the square [−half, half]²."""
    colours = look(ax)
    ax.set_axis_off()
    ax.set_aspect("equal")
    ax.set_xlim(-half, half)
    ax.set_ylim(-half, half)
    if title:
        ax.set_title(title, loc="left", fontsize=11, color=colours.ink)


def degrees_axis(ax: Axes, which: str = "x", step: int = 45) -> None:
    """Put ticks every `step` degrees from 0 to 180 on an axis in radians."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    ticks = range(0, 181, step)
    axis.set_ticks([math.radians(tick) for tick in ticks], [f"{tick}°" for tick in ticks])
    (ax.set_xlim if which == "x" else ax.set_ylim)(0, math.pi)


def legend(ax: Axes, **options: Any) -> None:
    """Draw a legend of what has a label, each once, if anything has."""
    handles, labels = ax.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    if named:
        colours = look(ax)
        plain: dict[str, Any] = {
            "fontsize": 9, "facecolor": colours.ground, "edgecolor": "none", "framealpha": 0.9,
            "labelcolor": colours.ink,
        }  # fmt: skip
        ax.legend(list(named.values()), list(named), **(plain | options))


def percent(share: float) -> str:
    """Write a tick as 1 %, 0.1 %, 99.9 %."""
    return f"{100 * share:.6g} %"


def degrees(angle: float) -> str:
    """Write 0.5 rad as 28.6°."""
    return f"{math.degrees(angle):.1f}°"


def recoloured(scope: str) -> str:
    """Return CSS that shows in the dark colours what was drawn in the light ones, within what `scope` selects."""
    rules = []
    for light, dark in zip(astuple(LIGHT), astuple(DARK), strict=True):
        for what in ("fill", "stroke"):
            rules.append(f'{scope} [style*="{what}: {light}"] {{ {what}: {dark} !important }}'.strip())
    return "\n".join(rules)
