"""The way through `margin_softmax` as a diagram: what comes in, what each step makes of it, and in which shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypermargin.plots.catalogue import picture
from hypermargin.plots.style import Display, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Place = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A step: its middle and size in inches, what it is, what it computes, and the colour's name, if it has one."""

    x: float
    y: float
    width: float
    height: float
    name: str
    lines: str
    colour: str = ""


BOXES = (
    Box(0.95, 3.6, 1.6, 0.9, "features x", "N × d"),
    Box(0.95, 2.3, 1.6, 0.9, "class weights W", "C × d"),
    Box(0.95, 1.0, 1.6, 0.9, "labels y", "N"),
    Box(3.15, 3.6, 1.8, 0.9, "normalise, scale", "$f = s\\,x/|x|$\nN × d"),
    Box(3.15, 2.3, 1.8, 0.9, "normalise", "$w = W/|W|$\nC × d"),
    Box(
        5.55, 2.95, 1.9, 2.2, "scores",
        "$z_j = ⟨f, w_j⟩$\nN × C\n\nbackend: dense,\nor chunked, which\nnever holds them all", "blue",
    ),
    Box(8.2, 2.3, 1.5, 0.9, "margin", "$T = s\\,\\psi(\\theta)$\nN", "red"),
    Box(
        10.65, 2.95, 1.6, 2.2, "loss",
        "softplus$(R − T)$\nN\n\nthe same as\ncross-entropy with T\nas the target's logit", "green",
    ),
    Box(10.65, 1.0, 1.6, 0.9, "mean", "1 number"),
)  # fmt: skip
ARROWS: tuple[tuple[tuple[Place, ...], str, Place], ...] = (
    (((1.75, 3.6), (2.25, 3.6)), "", (0, 0)),
    (((1.75, 2.3), (2.25, 2.3)), "", (0, 0)),
    (((4.05, 3.6), (4.6, 3.6)), "", (0, 0)),
    (((4.05, 2.3), (4.6, 2.3)), "", (0, 0)),
    (((1.75, 1.0), (5.55, 1.0), (5.55, 1.85)), "which class is the target", (3.65, 1.1)),
    (((6.5, 3.6), (9.85, 3.6)), r"rivals  $R = \log\,\sum_{j \neq y} \exp\,z_j$     N", (8.17, 3.7)),
    (((6.5, 2.3), (7.45, 2.3)), "angle $\\theta$\nN", (6.97, 2.4)),
    (((8.95, 2.3), (9.85, 2.3)), "target $T$\nN", (9.4, 2.4)),
    (((10.65, 1.85), (10.65, 1.45)), "", (0, 0)),
)
CAPTION = (
    "N samples, C classes, d dimensions; features and weights made unit, as in CosFace and ArcFace.\n"
    "All the N × C work knows nothing of margins; a margin touches N numbers."
)


@dataclass(eq=False)
class PipelineDisplay(Display):
    """Boxes and arrows; laid out for axes of its own size."""

    size = 11.6, 4.3

    def draw(self, ax: Axes) -> None:
        """Draw in inches, so that words fit their boxes."""
        ax.set_axis_off()
        ax.set_xlim(0, self.size[0])
        ax.set_ylim(-0.1, self.size[1] - 0.1)
        for box in BOXES:
            _draw_box(ax, box)
        for path, words, place in ARROWS:
            _draw_arrow(ax, path)
            if words:
                ax.text(*place, words, ha="center", va="bottom", fontsize=9, color=look(ax).ink)
        ax.text(self.size[0] / 2, -0.05, CAPTION, ha="center", va="bottom", fontsize=10, color=look(ax).ink)


def _draw_box(ax: Axes, box: Box) -> None:
    from matplotlib.patches import FancyBboxPatch

    colours = look(ax)
    edge = getattr(colours, box.colour) if box.colour else colours.faint
    corner = box.x - box.width / 2, box.y - box.height / 2
    for fill, alpha in ((edge, 0.16 if box.colour else 0.0), ("none", 1.0)):
        ax.add_patch(
            FancyBboxPatch(
                corner, box.width, box.height, boxstyle="round,pad=0,rounding_size=0.1", facecolor=fill,
                edgecolor="none" if fill != "none" else edge, alpha=alpha, linewidth=1.6 if box.colour else 1.1,
            )
        )  # fmt: skip
    top = box.y + 0.15 + 0.09 * (1 + box.lines.count("\n"))  # so that all of it is in the middle
    ax.text(box.x, top, box.name, ha="center", va="top", fontsize=10.5, weight="bold", color=colours.ink)
    ax.text(box.x, top - 0.26, box.lines, ha="center", va="top", fontsize=9, color=colours.ink, linespacing=1.35)


def _draw_arrow(ax: Axes, path: tuple[Place, ...]) -> None:
    """Draw straight pieces, the last with a head."""
    ink = look(ax).ink
    x, y = zip(*path[:-1], strict=True)
    ax.plot(x, y, color=ink, linewidth=1.2, solid_capstyle="projecting")
    arrow = {"arrowstyle": "-|>", "color": ink, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 13}
    ax.annotate("", path[-1], path[-2], arrowprops=arrow)


@picture("pipeline", "the way from features and labels to the loss, with the shape of everything")
def pipeline() -> Display:
    """Draw the way through `margin_softmax`."""
    return PipelineDisplay()
