"""Features seen: where the samples of each class lie, and where its prototype points."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from hypermargin import checks
from hypermargin.common.arrays import Counts, Floats, Values, to_numpy
from hypermargin.evaluate.pairs import samples
from hypermargin.plots.labels import plain, write_names
from hypermargin.plots.sphere import View
from hypermargin.plots.style import Display, bare, dress, legend, look, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_DOTS = 2000
MOST_CLASSES = 20
MOST_PROJECTED = 10  # classes: directions of more do not fit into two components
MARKERS = "o", "^", "s", "D", "v"  # the next one whenever the colours begin again
BINS = 120  # of the circle, 3° each
RING, PETAL = 1.1, 0.7  # the densities stand on a ring; the height of a class that lies within one bin
NEEDS = {"plane": 2, "circle": 2, "sphere": 3, "components": "two or more"}
LONG = 4  # letters
ROOM = 1.2  # for the names outside
Basis = tuple[Floats, Floats]
GROUNDS = "plane", "circle", "sphere", "components"
PLACES = "on the plane", "on the unit circle", "on the unit sphere", "along two principal components"


@dataclass(eq=False)
class FeaturesDisplay(Display):
    """One dot per sample, one colour and marker per class, one arrow per prototype.

    points      (N, 2), on the sphere (N, 3): the features, or their directions; 2,000 at most
    classes     (N,) which of `names` each belongs to
    names       of the classes, 20 at most; `others` are not shown
    centers     (C, 2 or 3) means of the classes
    prototypes  (C, 2 or 3) in the same space; None: not known, names stand at the centers
    on          "plane" (as they are), "circle", "sphere", or "components" of the directions
    shares      of the directions' variance that the two components have
    basis       (mean (d,), axes (2, d)) of the components; arrows start at the origin of the features
    stretch     the factor of the arrows on the plane, where features may be far longer than prototypes
    half        everything lies in [−half, half]²
    explained   say below the picture what is drawn
    """

    points: Floats
    classes: Counts
    names: tuple[str, ...]
    centers: Floats
    prototypes: Floats | None
    on: str
    half: float
    stretch: float = 1.0
    shares: tuple[float, float] | None = None
    basis: Basis | None = None
    others: int = 0
    title: str = ""
    view: View = field(default_factory=View)
    explained: bool = True

    size = 5.6, 5.6

    @classmethod
    def of(
        cls,
        features: Values,
        labels: Values,
        prototypes: Values | None = None,
        *,
        names: Sequence[str] | None = None,
        on: str | None = None,
        basis: Basis | None = None,
        title: str = "",
        view: View | None = None,
    ) -> FeaturesDisplay:
        """Make it from features (N, d) as the network gives them, labels (N,) and prototypes (C, d), rows by label.

        - names: of the labels 0, 1, …; without them the labels themselves
        - on: without it the plane for d = 2, the sphere for d = 3, else the components
        - basis: that of another display, to see both in the same components
        """
        s = samples(features, labels, "features", least=1)
        x = to_numpy(torch.as_tensor(features)).astype(np.float64)
        W = None if prototypes is None else _rows_by_label(prototypes, x.shape[1], s.names)
        on = on or {2: "plane", 3: "sphere"}.get(x.shape[1], "components")
        checks.one_of("on", on, GROUNDS)
        if (x.shape[1] < 2) if on == "components" else (x.shape[1] != NEEDS[on]):
            raise ValueError(f'on="{on}" needs features of {NEEDS[on]} dimensions; got {x.shape[1]}.')
        shown = s.names[: MOST_PROJECTED if on == "components" else MOST_CLASSES]
        y = np.searchsorted(s.names, to_numpy(labels))
        x, y = x[y < len(shown)], y[y < len(shown)]
        W = None if W is None else W[shown.astype(np.int64)]
        if on != "plane":
            x, W = _directions(x), None if W is None else _directions(W)
        shares = None
        if on == "components":
            mean, axes = basis = basis or principal(x)
            whole = float(x.var(0).sum()) or 1.0
            x, W = (x - mean) @ axes.T, None if W is None else (W - mean) @ axes.T
            first, second = (float(part) / whole for part in x.var(0))
            shares = first, second
        kept = np.sort(np.random.default_rng(0).permutation(len(x))[:MOST_DOTS])
        called = tuple(str(names[int(k)] if names is not None else k) for k in shown)
        centers = np.stack([x[y == k].mean(0) for k in range(len(shown))])
        found = cls(
            x[kept], y[kept], called, centers, W, on, 1.0, shares=shares, basis=basis,
            others=len(s.names) - len(shown), view=view or View(),
            title=title or f"Features {PLACES[GROUNDS.index(on)]}",
        )  # fmt: skip
        return together([found])[0]

    @property
    def origin(self) -> Floats:
        """The place (2,) where the arrows start."""
        return np.zeros(2) if self.basis is None else -self.basis[0] @ self.basis[1].T

    @property
    def density(self) -> Floats:
        """Return (C, 120): the share of each class's dots in every 3° of the circle, from 0° on."""
        angles = np.arctan2(self.points[:, 1], self.points[:, 0]) % (2 * np.pi)
        counts = [np.histogram(angles[self.classes == k], BINS, (0, 2 * np.pi))[0] for k in range(len(self.names))]
        return np.array([c / max(1, c.sum()) for c in counts])

    @property
    def crowded(self) -> bool:
        """Whether the names are too long, or too many long ones, to stand beside what they name."""
        long = max(map(len, self.names)) > LONG
        return long and (self.on in ("plane", "components") or len(self.names) > MOST_PROJECTED)

    @property
    def longest(self) -> float:
        """The length of the longest prototype; 0 without any."""
        return 0.0 if self.prototypes is None else float(np.linalg.norm(self.prototypes, axis=1).max(initial=0))

    @property
    def needed(self) -> float:
        """The smallest `half`."""
        if self.on == "sphere":
            return 1.0
        if self.on == "circle":
            return RING + PETAL * float(self.density.max())
        drawn = [self.points, self.origin[None]]
        if self.on == "components" and self.prototypes is not None:
            drawn.append(self.prototypes)
        return float(np.linalg.norm(np.concatenate(drawn), axis=1).max()) or 1.0

    def draw(self, ax: Axes) -> None:
        """Draw dots, then arrows, then names: pushed apart where they would cover each other."""
        if self.on == "sphere":
            self.view.draw_globe(ax)
        for k in range(len(self.names)):
            self._dots(ax, k, self.points[self.classes == k])
        if self.on == "circle":
            self._petals(ax)
        ends, near = self._ends()
        if self.prototypes is not None:
            for end, front in zip(ends, near, strict=True):
                _arrow(ax, end, self.origin, bool(front))
        bare(ax, title=self.title, half=ROOM * self.half)
        self._frame(ax)
        if self.crowded:
            legend(ax, loc="upper left", bbox_to_anchor=(1.0, 1.0), markerscale=1.5)
        else:
            write_names(ax, self.names, self._places(ends), near, 2 * ROOM * self.half)

    def _dots(self, ax: Axes, k: int, points: Floats) -> None:
        colours = look(ax).cycle
        style: dict[str, Any] = {
            "s": 16 if len(self.points) < 600 else 7, "linewidths": 0, "color": colours[k % len(colours)],
            "marker": MARKERS[k // len(colours) % len(MARKERS)], "zorder": 2, "label": plain(self.names[k]),
        }  # fmt: skip
        if self.on == "sphere":
            xy, front = self.view.project(points)
            ax.scatter(*xy[~front].T, alpha=0.15, **(style | {"label": None}))
            ax.scatter(*xy[front].T, alpha=0.7, **style)
        elif self.on == "circle":  # many lie in one place: moved along their ray, which keeps the angle
            jitter = np.random.default_rng(k).uniform(0.93, 1.05, (len(points), 1))
            ax.scatter(*(points * jitter).T, alpha=0.4, **style)
        else:
            ax.scatter(*points.T, alpha=0.6, **style)

    def _petals(self, ax: Axes) -> None:
        from matplotlib.collections import PolyCollection

        t = np.linspace(0, 2 * np.pi, 181)
        ax.plot(np.cos(t), np.sin(t), color=look(ax).faint, linewidth=0.8, zorder=1)
        edges = np.linspace(0, 2 * np.pi, BINS + 1)
        colours = look(ax).cycle
        for k, shares in enumerate(self.density):
            bars = []
            for b in np.flatnonzero(shares):
                inner = np.array([[math.cos(a), math.sin(a)] for a in edges[[b, b + 1]]])
                bars.append(np.concatenate([RING * inner, (RING + PETAL * shares[b]) * inner[::-1]]))
            colour = colours[k % len(colours)]
            ax.add_collection(PolyCollection(bars, facecolor=colour, edgecolor=colour, linewidth=0.3, alpha=0.65))

    def _ends(self) -> tuple[Floats, NDArray[np.bool_]]:
        """Return where each class's arrow ends, else its mean, on paper; and whether that is on the near side."""
        ends = self.centers if self.prototypes is None else self.prototypes * self.stretch
        if self.on == "sphere":
            return self.view.project(_directions(ends))
        return ends, np.ones(len(ends), bool)

    def _places(self, ends: Floats) -> Floats:
        """Find places for the names: outside the dots at the same angle, or just beyond the ends."""
        if self.on in ("plane", "circle"):
            return 1.08 * self.half * _directions(ends)
        away = ends - self.origin
        return ends + 0.11 * self.half * _directions(away)

    @property
    def caption(self) -> str:
        """What is drawn, in a few words."""
        words = [] if self.prototypes is None else ["arrows: class prototypes"]
        if self.on == "plane" and words:
            words[0] += f" × {self.stretch:g}"
        if self.on == "circle":
            words.append("petals: share of a class in each 3°")
        if self.others:
            words.append(f"{len(self.names)} of {len(self.names) + self.others:,} classes")
        return "; ".join(words)

    def _frame(self, ax: Axes) -> None:
        caption = self.caption if self.explained else ""
        if self.on in ("circle", "sphere"):
            ax.text(
                0.5, -0.01, caption, transform=ax.transAxes, ha="center", va="top", fontsize=9, color=look(ax).ink
            )
            return
        ax.set_axis_on()
        first, second = "first feature", "second feature"
        if self.shares is not None:
            first, second = (
                f"{which} component, {percent(round(float(share), 3))} of the variance"
                for which, share in zip(("first", "second"), self.shares, strict=True)
            )
        dress(ax, xlabel=f"{first}\n{caption}" if caption else first, ylabel=second, title=self.title)


def together(displays: Sequence[FeaturesDisplay]) -> list[FeaturesDisplay]:
    """Return the displays with room and arrows to one measure, so that they can be compared, or shown in turn."""
    half = max(d.needed for d in displays)
    longest = max(d.longest for d in displays)
    stretch = float(f"{0.85 * half / longest:.2g}") if longest > 0 else 1.0
    return [dataclasses.replace(d, half=half, stretch=stretch if d.on == "plane" else 1.0) for d in displays]


def principal(directions: Floats) -> tuple[Floats, Floats]:
    """Return (mean, axes (2, d)): the two orthonormal axes along which the rows (N, d) vary most."""
    mean = directions.mean(0)
    axes = np.linalg.eigh(np.cov(directions.T, bias=True))[1][:, :-3:-1].T
    signs = np.sign(axes[np.arange(2), np.abs(axes).argmax(1)])  # else a sign is chance
    return mean, axes * signs[:, None]


def _rows_by_label(prototypes: Values, dim: int, labels: NDArray[Any]) -> Floats:
    W = to_numpy(prototypes).astype(np.float64)
    if W.ndim != 2 or W.shape[1] != dim:
        raise ValueError(f"prototypes must have shape (classes, {dim}), like features; got {W.shape}.")
    if labels.dtype.kind not in "iu" or labels[0] < 0 or labels[-1] >= len(W):
        raise ValueError(f"labels must lie in [0, {len(W)}), rows of prototypes; got {labels[0]} to {labels[-1]}.")
    return W


def _directions(x: Floats) -> Floats:
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x / np.where(length > 0, length, 1))


def _arrow(ax: Axes, end: Floats, start: Floats, near: bool) -> None:
    ax.annotate(
        "", (end[0], end[1]), (start[0], start[1]), zorder=4 if near else 1.5, annotation_clip=False,
        arrowprops={
            "arrowstyle": "-|>", "color": look(ax).ink if near else look(ax).faint, "shrinkA": 0, "shrinkB": 0,
            "linewidth": 1.1, "linestyle": "-" if near else "--",
        },
    )  # fmt: skip
