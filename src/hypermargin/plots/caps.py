"""The caps that classes with a margin keep on the sphere, and the band between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch

from hypermargin.advise import band_width
from hypermargin.common.arrays import Floats
from hypermargin.margins import Margin
from hypermargin.plots.catalogue import MARGINS, USUAL, label, picture, read_margins
from hypermargin.plots.sphere import View
from hypermargin.plots.style import Display, Panels, bare, degrees, look, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray

MOST_ARROWS = 6  # with more classes those on the far side would only cross the near ones
RAYS = 121  # from a class direction to the edge of its cap, every 3°; first and last are the same


@dataclass(eq=False)
class CapsDisplay(Display):
    """Where on the sphere a sample meets a margin: ψ(θ_j) ≥ cos θ_k for its own class j and every rival k.

    prototypes  (C, 3)  unit class directions
    reach       (C, R)  radians from each direction to the edge of its region, along R rays that go round once
    band        the angle left free between two nearest classes, on the arc that joins them
    """

    prototypes: Floats
    reach: Floats
    band: float
    name: str
    view: View

    size = 4.2, 4.6

    @classmethod
    def of(cls, margin: Margin, prototypes: ArrayLike, view: View | None = None) -> CapsDisplay:
        """Make it from class directions (C, 3) of any length."""
        W = np.asarray(prototypes, float)
        if W.ndim != 2 or W.shape[1] != 3 or len(W) < 2 or not (np.linalg.norm(W, axis=1) > 0).all():
            raise ValueError(f"prototypes must be two or more directions (C, 3), none of them zero; got {W.shape}.")
        W = W / np.linalg.norm(W, axis=1, keepdims=True)
        cosines = W @ W.T - 2 * np.eye(len(W))
        theta12 = math.acos(np.clip(cosines.max(), -1, 1))
        reach = np.stack([_reach(margin, W, j) for j in range(len(W))])
        return cls(W, reach, band_width(margin, theta12), label(margin), view or View())

    @property
    def covered(self) -> float:
        """The share of the sphere that belongs to some class: ∫(1 − cos r)dφ/4π of each."""
        return float((1 - np.cos(self.reach[:, :-1])).mean(1).sum() / 2)

    def draw(self, ax: Axes) -> None:
        """Draw near caps filled and outlined, far ones as faint outlines; an arrow for each class direction."""
        self.view.draw_globe(ax)
        colours = look(ax).cycle
        _, front = self.view.project(self.prototypes)
        for j in np.argsort(front, kind="stable"):  # far ones first
            colour = colours[j % len(colours)]
            edge, closing = self.near_part(int(j))
            ax.fill(*np.concatenate([edge, closing]).T, color=colour, alpha=0.4, linewidth=0, zorder=1)
            ax.plot(*edge.T, color=colour, linewidth=1.6, zorder=2)
            xy, near = self.view.project(_along(self.prototypes[j], self.reach[j]))
            ax.plot(*np.where(near, np.nan, xy.T), color=colour, alpha=0.25, linewidth=0.8, zorder=2)
            if front[j] or len(front) <= MOST_ARROWS:
                self._arrow(ax, int(j), bool(front[j]))
        least, most = float(self.reach.min()), float(self.reach.max())
        words = degrees(least) if most - least < 5e-4 else f"{degrees(least)} to {degrees(most)}"
        if most < 1e-9:
            words = "0°: not even its center meets it"
        bare(ax, title=self.name, half=1.4)
        ax.text(
            0, -1.48, f"radius of a class: {words}\nband between two: {degrees(self.band)}\n"
            f"classes cover {percent(round(self.covered, 3))} of the sphere",
            ha="center", va="top", fontsize=9, color=look(ax).ink, linespacing=1.4,
        )  # fmt: skip
        ax.set_ylim(-2.2, 1.4)

    def near_part(self, j: int) -> tuple[Floats, Floats]:
        """Return what is seen of region j on paper: its edge (K, 2), then the piece of outline that closes it.

        The edge comes to the near side once and leaves it once, as that of a convex region does. It goes round
        counter-clockwise; the outline, from where it left to where it came, does so too.
        """
        edge = _along(self.prototypes[j], self.reach[j])
        xy, near = self.view.project(edge)
        if near.all() or not near.any():
            return xy[near], xy[:0]
        edge, xy, near = edge[:-1], xy[:-1], near[:-1]  # the last ray is the first again
        start = np.flatnonzero(near & ~np.roll(near, 1))[0]
        edge, xy, last = np.roll(edge, -start, 0), np.roll(xy, -start, 0), int(near.sum()) - 1
        come, leave = self._crossing(edge[-1], edge[0]), self._crossing(edge[last], edge[last + 1])
        begin, end = math.atan2(leave[1], leave[0]), math.atan2(come[1], come[0])
        t = np.linspace(begin, end + 2 * math.pi * (end < begin), 31)
        return np.stack([come, *xy[: last + 1], leave]), np.stack([np.cos(t), np.sin(t)], 1)

    def _crossing(self, p: Floats, q: Floats) -> Floats:
        """Find where the line from p to q passes the globe's outline, on paper."""
        eye = self.view.axes[2]
        place = self.view.project((p * (q @ eye) - q * (p @ eye))[None])[0][0]
        return np.asarray(place * np.sign((q - p) @ eye) / np.linalg.norm(place))

    def _arrow(self, ax: Axes, j: int, near: bool) -> None:
        from matplotlib.patheffects import withStroke

        tip = self.view.project(1.12 * self.prototypes[[j]])[0][0]
        place = tip * (1 + 0.17 / max(float(np.linalg.norm(tip)), 0.17))
        colours = look(ax)
        ax.annotate(
            "", tip, (0, 0), zorder=3 if near else 0.7,
            arrowprops={
                "arrowstyle": "-|>", "color": colours.ink if near else colours.faint, "shrinkA": 0, "shrinkB": 0,
                "linewidth": 1.2, "alpha": 1.0 if near else 0.5, "linestyle": "-" if near else "--",
            },
        )  # fmt: skip
        ax.text(
            place[0], place[1], str(j + 1), ha="center", va="center", fontsize=9, zorder=4 if near else 0.7,
            color=colours.ink if near else colours.faint,
            path_effects=[withStroke(linewidth=2.5, foreground=colours.ground)] if near else [],
        )  # fmt: skip


def _rays(w: Floats) -> Floats:
    """Return unit tangents at w (R, 3), all the way round."""
    across = np.eye(3)[np.abs(w).argmin()]
    u = np.cross(w, across)
    u /= np.linalg.norm(u)
    t = np.linspace(0, 2 * np.pi, RAYS)[:, None]
    return np.asarray(np.cos(t) * u + np.sin(t) * np.cross(w, u))


def _along(w: Floats, r: Floats) -> Floats:
    """Return the points of the sphere r radians from w, along its rays."""
    return np.asarray(np.cos(r)[:, None] * w + np.sin(r)[:, None] * _rays(w))


def _reach(margin: Margin, W: Floats, j: int) -> Floats:
    """Find how far along each ray from W_j the margin is met: first by steps, then by bisection in the step."""
    rivals, rays = np.delete(W, j, 0), _rays(W[j])

    def met(r: Floats) -> NDArray[np.bool_]:  # (R,) or (steps, R)
        cos, sin = np.cos(r), np.sin(r)
        worst = np.max([cos * (w @ W[j]) + sin * (rays @ w) for w in rivals], axis=0)
        return np.asarray(margin.psi(torch.from_numpy(r)).numpy() >= worst)

    steps = np.linspace(0, np.pi, 181)
    missed = ~met(np.repeat(steps[:, None], RAYS, 1))
    first = np.where(missed.any(0), missed.argmax(0), len(steps) - 1)
    low, high = steps[np.maximum(first - 1, 0)], steps[first]
    for _ in range(40):
        middle = (low + high) / 2
        inside = met(middle)
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return np.asarray(low)


def spread(classes: int) -> Floats:
    """Return directions as far apart as can be: the corners of a tetrahedron, octahedron or icosahedron."""
    g = (1 + math.sqrt(5)) / 2
    corners = {
        4: [(1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1)],
        6: [(1, 0, 0), (0, 1, 0), (0, 0, 1), (-1, 0, 0), (0, -1, 0), (0, 0, -1)],
        12: [p for a in (1, -1) for b in (g, -g) for p in ((0, a, b), (a, b, 0), (b, 0, a))],
    }
    if classes not in corners:
        raise ValueError(f"classes must be 4, 6 or 12, the evenly spread ones; got {classes}.")
    points = np.array(corners[classes], float)
    return np.asarray(points / np.linalg.norm(points, axis=1, keepdims=True))


@picture("caps", "the part of the sphere that each class keeps, and the band between, for every margin")
def caps(
    margins: Annotated[list[str], MARGINS] = USUAL,
    classes: Annotated[int, "4, 6 or 12 class directions, evenly spread"] = 6,
    elevation: Annotated[float, "degrees from which the sphere is seen, above its equator"] = 25.0,
    azimuth: Annotated[float, "degrees from which it is seen, round its axis"] = 35.0,
) -> Display:
    """A panel for each margin."""
    view = View(elevation, azimuth)
    return Panels(
        [CapsDisplay.of(margin, spread(classes), view) for margin in read_margins(margins)],
        panel_size=(3.9, 4.4),
    )
