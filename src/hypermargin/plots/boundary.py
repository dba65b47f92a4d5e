"""Two classes in the plane: which directions belong to whom, margin included, and how wide the band between is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np

from hypermargin import checks
from hypermargin.advise import band_width
from hypermargin.common.arrays import Floats
from hypermargin.margins import Margin, SphereFace
from hypermargin.plots.catalogue import MARGINS, USUAL, label, picture, read_margins
from hypermargin.plots.keyed import Keyed
from hypermargin.plots.stretches import psi, stretches
from hypermargin.plots.style import Display, bare, degrees, look
from hypermargin.scales import check_angle

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATIOS: list[float] = [0.5, 1.0, 2.0]
ARROW, INNER, OUTER, HALF = 0.8, 0.92, 1.12, 1.4  # lengths in the picture, the unit circle being 1
Arcs = Sequence[tuple[float, float]]
Surplus = Callable[[Floats], Floats]


@dataclass(eq=False)
class BoundaryDisplay(Display):
    """Arcs of directions, as angles from the middle between W₁ (at θ12/2) and W₂ (at −θ12/2).

    first, second   where class 1, class 2 wins with its margin: |W1|·ψ(θ1) ≥ |W2|·cos θ2, and mirrored
    neither         the rest; one of them is the band between W₁ and W₂
    band            the two boundaries between W₁ and W₂, class 2's and class 1's; its width is theirs
    circle          arcs on the unit circle instead of sectors of the plane
    """

    theta12: float
    first: Arcs
    second: Arcs
    neither: Arcs
    band: tuple[float, float]
    lengths: tuple[float, float] = (1.0, 1.0)
    circle: bool = False
    title: str = ""

    @classmethod
    def of(
        cls,
        margin: Margin,
        theta12: float,
        *,
        lengths: tuple[float, float] = (1.0, 1.0),
        circle: bool = False,
        title: str | None = None,
    ) -> BoundaryDisplay:
        """Make it from a margin and θ12 in radians. Other `lengths` than 1 are those of L-Softmax's weights."""
        check_angle("theta12", theta12, zero=False)
        for length in lengths:
            checks.positive("lengths", length)
        half = theta12 / 2

        def surplus(own: int) -> Surplus:
            """Return the own margined score minus the rival's plain one."""
            sign = 1 - 2 * own
            return lambda phi: (
                lengths[own] * psi(margin, _between(phi, sign * half))
                - lengths[1 - own] * np.cos(_between(phi, -sign * half))
            )

        # An interval must not be cut in two, so each search starts where it is least likely to find anything.
        one, two = surplus(0), surplus(1)
        first = stretches(one, -half, 2 * math.pi - half)
        second = stretches(two, half - 2 * math.pi, half)
        neither = stretches(lambda phi: -np.maximum(one(phi), two(phi)), half, 2 * math.pi + half)
        if lengths[0] == lengths[1]:
            reach = (band_width(margin, theta12) / 2,) * 2
        else:
            reach = half - _reach(one, half, theta12), half - _reach(lambda phi: two(-phi), half, theta12)
        named = label(margin) if title is None else title
        return cls(theta12, first, second, neither, (-reach[1], reach[0]), lengths, circle, named)

    @property
    def width(self) -> float:
        """The width of the band, in radians; negative where the classes overlap."""
        return self.band[1] - self.band[0]

    @property
    def words(self) -> str:
        """Say the width, in degrees, and what it means."""
        if self.width < -1e-9:
            return f"overlap {degrees(-self.width)}"
        if self.width < 1e-9 and abs(self.band[0]) > 1e-9:  # only a much longer weight does that
            return f"no band: class {1 if self.band[0] < 0 else 2} has the whole arc"
        filled = self.width > self.theta12 - 1e-9
        return f"band {degrees(abs(self.width))}" + (", the whole arc" if filled else "")

    def draw(self, ax: Axes) -> None:
        """Draw class 1 left, class 2 right, the band between them above."""
        from matplotlib.patches import Circle, Wedge

        colours = look(ax)
        outer, ring = (OUTER, OUTER - INNER) if self.circle else (OUTER, None)
        kinds = (
            (self.first, colours.blue, "-", "class 1, margin met"),
            (self.second, colours.red, "--", "class 2, margin met"),
            (self.neither, colours.faint, "", "neither"),
        )
        for arcs, colour, dash, name in kinds:
            for start, end in arcs:
                from_, to = 90 + math.degrees(start), 90 + math.degrees(end)
                ax.add_patch(Wedge((0, 0), outer, from_, to, width=ring, color=colour, alpha=0.3, linewidth=0))
                for edge in (start, end) if dash else ():
                    ray = np.outer([INNER if self.circle else 0, outer + 0.05], _point(edge))
                    ax.plot(
                        *ray.T,
                        color=colour,
                        linestyle="-" if self.circle else dash,
                        linewidth=1.8,
                        solid_capstyle="butt",
                    )
            ax.fill([], [], color=colour, alpha=0.3, label=name)
        if self.circle:
            ax.add_patch(Circle((0, 0), 1, fill=False, edgecolor=colours.ink, linewidth=1.1))
            for edge in self.band:
                spoke = np.outer([0, INNER], _point(edge))
                ax.plot(*spoke.T, color=colours.faint, linewidth=0.9, linestyle=":")
        longest = max(self.lengths)
        for k, colour in enumerate((colours.blue, colours.red)):
            at = (0.5 - k) * self.theta12
            x, y = tip = _point(at) * (ARROW * self.lengths[k] / longest)
            arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 2.0, "shrinkA": 0, "shrinkB": 0}
            ax.annotate("", (x, y), (0, 0), arrowprops=arrow)
            x, y = tip + 0.17 * _point(at + (0.5 - k) * math.pi)
            ax.text(x, y, ("W₁", "W₂")[k], color=colours.ink, ha="center", va="center", fontsize=10)
        x, y = _point(sum(self.band) / 2) * (OUTER + 0.16)
        ax.text(x, y, self.words, color=colours.ink, ha="center", va="center", fontsize=9)
        bare(ax, half=HALF)
        ax.set_title(self.title, loc="left", fontsize=10, color=colours.ink)
        ax.set_ylim(-OUTER - 0.08, HALF)


def _between(phi: Floats, center: float) -> Floats:
    """Return the angle between two directions of the plane, in [0, π]."""
    found: Floats = np.abs((phi - center + math.pi) % (2 * math.pi) - math.pi)
    return found


def _point(phi: float) -> Floats:
    return np.array([-math.sin(phi), math.cos(phi)])


def _reach(surplus: Surplus, half: float, theta12: float) -> float:
    """Return how far class 1 goes from W₁ towards W₂; 0 if not even W₁ is its own."""
    towards = stretches(lambda angle: surplus(half - angle), 0, theta12)
    return towards[0][1] if towards and towards[0][0] == 0 else 0.0


def in_radians(theta12: float) -> float:
    """Return in radians the angle between two classes, which people give in degrees."""
    if not 0 < theta12 <= 180:
        raise ValueError(f"theta12 must lie in (0, 180], in degrees; got {theta12:g}.")
    return math.radians(theta12)


def _of_margins(margins: Sequence[str], theta12: float, *, circle: bool) -> Keyed:
    angle = in_radians(theta12)
    panels = [BoundaryDisplay.of(m, angle, circle=circle) for m in read_margins(margins)]
    columns = len(panels) if len(panels) < 5 else 3
    return Keyed(panels, columns=columns, panel_size=(3.0, 3.1))


@picture("boundary-plane", "two classes in the plane: their boundaries and the band between")
def boundary_plane(
    margins: Annotated[list[str], MARGINS] = USUAL,
    theta12: Annotated[float, "angle between the two classes, in degrees"] = 90.0,
) -> Keyed:
    """Sectors of the plane; a ray is where ψ(θ1) = cos θ2, or mirrored."""
    return _of_margins(margins, theta12, circle=False)


@picture("boundary-circle", "two classes on the unit circle: their arcs and the band between")
def boundary_circle(
    margins: Annotated[list[str], MARGINS] = USUAL,
    theta12: Annotated[float, "angle between the two classes, in degrees"] = 90.0,
) -> Keyed:
    """Draw the same for unit features, which lie on the circle."""
    return _of_margins(margins, theta12, circle=True)


@picture("l-softmax-bands", "L-Softmax: the band moves with the lengths of the weights")
def l_softmax_bands(
    ratios: Annotated[list[float], "|W₁|/|W₂|; a panel each; repeatable"] = RATIOS,
    m: Annotated[float, "factor of the angle, 1 or more"] = 2.0,
    theta12: Annotated[float, "angle between the two classes, in degrees"] = 90.0,
) -> Keyed:
    """|W₁|·g(m·θ1) = |W₂|·cos θ2, and mirrored: a long weight wins room from a short one."""
    angle = in_radians(theta12)
    if not ratios:
        raise ValueError("ratios must hold one or more; got none.")
    panels = []
    for ratio in ratios:
        checks.positive("ratios", ratio)
        title = f"L-Softmax m = {m:g}, |W₁|/|W₂| = {ratio:g}"
        panels.append(BoundaryDisplay.of(SphereFace(m), angle, lengths=(ratio, 1.0), title=title))
    return Keyed(panels, columns=min(3, len(panels)), panel_size=(3.3, 3.4))
