"""Several classes in the plane, features of any length: where a class gets probability ½, and where none does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch

from hypermargin import checks
from hypermargin.common.arrays import Floats
from hypermargin.functional import margin_softmax
from hypermargin.margins import Margin
from hypermargin.plots.catalogue import label, picture, read_margin
from hypermargin.plots.keyed import Keyed
from hypermargin.plots.stretches import stretches
from hypermargin.plots.style import Display, bare, look, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCALES: list[float] = [1.0, 5.0, 30.0]
STRENGTHS: list[float] = [0.0, 0.2, 0.5]
NUMBERS: list[float] = [3.0, 5.0]
RADIUS = 2.0  # the longest feature that is shown
RADII, DIRECTIONS = 41, 241  # of the grid; F is nearly straight between its points


def centers(classes: int) -> Floats:
    """Return directions of classes evenly around the circle, the first one up: angles (C,)."""
    return math.pi / 2 + 2 * math.pi * np.arange(classes) / classes


def surplus(points: Floats, margin: Margin, classes: int, scale: float) -> Floats:
    """Return F_j(x) = T_j − R_j (C, N) of points (N, 2), each class in turn the label, from L = softplus(R − T).

    T_j = s·|x|·ψ(θ_j) and R_j = log Σ_{i≠j} exp(s·|x|·cos θ_i): p_j ≥ ½ with the margin where F_j ≥ 0. It depends
    on s·|x| alone, so a larger s shows the same picture smaller.
    """
    phi = centers(classes)
    x, w = torch.from_numpy(points), torch.from_numpy(np.stack((np.cos(phi), np.sin(phi)), 1))
    labels = torch.arange(classes).repeat_interleave(len(x))
    every = x.repeat(classes, 1)
    loss = margin_softmax(every, w, labels, margin, scale=scale, unit_features=False, reduction="none")
    found: Floats = -(loss + torch.log(-torch.expm1(-loss))).clamp(-1e3, 1e3).view(classes, -1).numpy()
    return found


@dataclass(eq=False)
class RegionsDisplay(Display):
    """One disc of features, |x| ≤ 2.

    x, y      (directions, radii) the points of the grid
    surplus   (C, directions, radii) F_j there; class j's region is F_j ≥ 0
    least     the shortest |x| in a class's own direction that gets ½; inf if none does
    share     that of the directions of features with |x| = 1, in which no class gets ½
    half      shade where no class gets ½, instead of the classes
    """

    x: Floats
    y: Floats
    surplus: Floats
    least: float
    share: float
    half: bool = False
    title: str = ""

    @classmethod
    def of(
        cls, margin: Margin, classes: int = 3, scale: float = 5.0, *, half: bool = False, title: str = ""
    ) -> RegionsDisplay:
        """Make it from a margin, so many classes evenly around the circle, and s: logits s·|x|·cos θ_j."""
        checks.count("classes", classes, 2)
        checks.positive("scale", scale)
        # The grid is cut open between two classes, where the cut shows least.
        seam = math.pi / 2 + math.pi / classes
        phi, r = np.linspace(seam, seam + 2 * math.pi, DIRECTIONS), RADIUS * np.linspace(0, 1, RADII) ** 2
        x, y = np.outer(np.cos(phi), r), np.outer(np.sin(phi), r)
        found = surplus(np.stack((x.ravel(), y.ravel()), 1), margin, classes, scale)

        def any_wins(angle: Floats) -> Floats:
            on_circle = np.stack((np.cos(angle), np.sin(angle)), 1)
            best: Floats = surplus(on_circle, margin, classes, scale).max(0)
            return best

        def first_wins(length: Floats) -> Floats:
            """Along the first class's own direction, which is up."""
            own: Floats = surplus(np.outer(length, [0.0, 1.0]), margin, classes, scale)[0]
            return own

        won = sum(b - a for a, b in stretches(any_wins, seam, seam + 2 * math.pi))
        far = stretches(first_wins, 0.0, 100.0 / scale)
        least = far[0][0] if far else math.inf
        return cls(x, y, found.reshape(classes, *x.shape), least, 1 - won / (2 * math.pi), half, title)

    @property
    def words(self) -> str:
        """Say how long a feature must be, and what share of unit features no class gets."""
        need = f"½ is reached from |x| = {self.least:.2g}" if math.isfinite(self.least) else "½ is never reached"
        share = "under 0.1 %" if self.share < 0.0005 else percent(round(self.share, 3))
        return f"{need};\nat |x| = 1: none in {share} of angles"

    def draw(self, ax: Axes) -> None:
        """Draw the classes, numbered outside the disc; the dotted circle is |x| = 1."""
        from matplotlib.patches import Circle

        colours = look(ax)
        if self.half:
            best = self.surplus.max(0)
            ax.contourf(
                self.x, self.y, best, levels=[-1e4, 0], colors=[colours.purple], alpha=0.7, antialiased=True
            )
        for j, (phi, own) in enumerate(zip(centers(len(self.surplus)), self.surplus, strict=True)):
            colour = colours.cycle[j % len(colours.cycle)]
            if not self.half and own.max() > 0:
                ax.contourf(self.x, self.y, own, levels=[0, 1e4], colors=[colour], alpha=0.3, antialiased=True)
                ax.contour(self.x, self.y, own, levels=[0], colors=[colour], linewidths=1.3)
            at = np.array([math.cos(phi), math.sin(phi)])
            ax.plot(*at, "o", color=colours.ink, markersize=4)
            x, y = at * (RADIUS + 0.22)
            ax.text(x, y, f"{j + 1}", ha="center", va="center", fontsize=9, color=colours.ink)
        ax.add_patch(Circle((0, 0), RADIUS, fill=False, edgecolor=colours.faint, linewidth=0.8))
        ax.add_patch(Circle((0, 0), 1, fill=False, edgecolor=colours.ink, linewidth=0.9, linestyle=":"))
        bare(ax, title=self.title, half=RADIUS + 0.45)
        if self.half:
            ax.text(0, -RADIUS - 0.72, self.words, ha="center", va="center", fontsize=9, color=colours.ink)
            ax.set_ylim(-RADIUS - 1.15, RADIUS + 0.45)


@picture(
    "regions", "three classes, features of any length: where each gets probability ½ with its margin, by s and m"
)
def regions(
    classes: Annotated[int, "number of classes, evenly around the circle"] = 3,
    scales: Annotated[list[float], "s; a row each; repeatable"] = SCALES,
    ms: Annotated[list[float], "m of the margin; a column each; repeatable"] = STRENGTHS,
    margin: Annotated[str, "kind of margin that takes one m: arcface, cosface or sphereface"] = "arcface",
) -> Keyed:
    """Rows by s, columns by m. Round near 0, where no class gets ½; straight far out, sooner for a large s."""
    if not scales or not ms:
        raise ValueError(f"scales and ms must each hold one or more; got {len(scales)} and {len(ms)}.")
    kinds = [read_margin(f"{margin}:m={m!r}") for m in ms]
    panels = [
        RegionsDisplay.of(kind, classes, s, title=f"s = {s:g}, {label(kind)}") for s in scales for kind in kinds
    ]
    title = "Shaded: the label's class has p ≥ ½. Logits s·|x|·cos θ, the label's with ψ. Dots: centers, |x| = 1"
    return Keyed(panels, columns=len(ms), panel_size=(2.9, 2.9), title=title, keys=0)


@picture("half", "the features to which no class gives probability ½, by s")
def half(
    classes: Annotated[list[float], "number of classes; a row each; repeatable"] = NUMBERS,
    scales: Annotated[list[float], "s; a column each; repeatable"] = SCALES,
    margin: Annotated[str, "a margin, like cosface:m=0.2"] = "none",
) -> Keyed:
    """Shaded: nobody has half. It shrinks like 1/s, and reaches outwards between two classes."""
    if not classes or not scales:
        raise ValueError(f"classes and scales must each hold one or more; got {len(classes)} and {len(scales)}.")
    kind = read_margin(margin)
    panels = []
    for number in classes:
        if number != int(number):
            raise ValueError(f"classes must be whole numbers; got {number:g}.")
        panels += [
            RegionsDisplay.of(kind, int(number), s, half=True, title=f"{number:g} classes, s = {s:g}")
            for s in scales
        ]
    title = f"Shaded: no class reaches p = ½. Logits s·|x|·cos θ, {label(kind)}. Dots: centers, |x| = 1"
    return Keyed(panels, columns=len(scales), panel_size=(3.0, 3.7), title=title, keys=0)
