"""Fitted classifiers of two classes in the plane: samples, boundary, the lines of the margin, support points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hypermargin import checks
from hypermargin.common.arrays import Floats
from hypermargin.common.needs import not_installed
from hypermargin.plots.catalogue import label, picture, read_margin
from hypermargin.plots.keyed import Keyed
from hypermargin.plots.plane_models import (
    angles_of,
    band_of,
    checked_samples,
    has_margin,
    parts_of,
    support_of,
    surplus,
)
from hypermargin.plots.style import Display, degrees, dress, look, need_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 401  # of the grid, each way; a curve between two of them is straight to 1e-3 of the picture
LINES = 48.0  # points: three lines of words, between the title and the axes
ROOM, BEYOND = 0.08, 0.6  # of the samples' extent: around them in the picture; and to which lines are followed
Lines = list[Floats]  # each (n, 2)


@dataclass(eq=False)
class PlaneDisplay(Display):
    """One classifier, and the samples it was fitted on.

    X, y            (N, 2), and (N,) with 0 and 1 for the two classes
    grid            (2, n): the coordinates of the grid's columns and of its rows
    score           (n, n) the decision function there; the boundary is where it is 0
    first, second   (n, n) not negative where a sample of class 0, class 1 meets its margin
    support         rows of X that are marked; None: the classifier has none, every sample counts
    lines           what the lines of the margin are, in words
    band            the width between two classes, in radians, for a margin in angles; else nan
    distances       (N,) from the boundary, in the units of X; negative on the wrong side
    angles          (N,) from the boundary, seen from the origin; nan for what is not linear
    names           of the two classes
    axes            names of the two features
    """

    X: Floats
    y: NDArray[np.intp]
    grid: Floats
    score: Floats
    first: Floats
    second: Floats
    support: NDArray[np.intp] | None
    lines: str
    band: float
    distances: Floats
    angles: Floats
    names: tuple[str, str] = ("class 0", "class 1")
    axes: tuple[str, str] = ("x₁", "x₂")
    title: str = ""

    @classmethod
    def of(
        cls,
        model: Any,
        X: ArrayLike,
        y: ArrayLike,
        *,
        title: str | None = None,
        names: Sequence[str] | None = None,
        axes: Sequence[str] = ("x₁", "x₂"),
    ) -> PlaneDisplay:
        """Make it from a fitted classifier or pipeline and the samples (N, 2) it was fitted on.

        The lines are f = ±1 for a model with a decision function f, as SVC or LogisticRegression. For a
        MarginSoftmaxClassifier with a margin each is where a class meets it: |W_y|·ψ(θ_y) = |W_other|·cos θ_other.
        """
        need_matplotlib()
        X, labels = checked_samples(model, X, y)
        low, high = X.min(0), X.max(0)
        reach = BEYOND * (high - low).max()
        grid = np.stack([np.linspace(a - reach, b + reach, POINTS) for a, b in zip(low, high, strict=True)])
        points = np.stack(np.meshgrid(*grid), -1).reshape(-1, 2)
        score = np.asarray(model.decision_function(points), dtype=np.float64)
        before, final = parts_of(model)
        band, support = math.nan, None
        if has_margin(final):
            first, second = surplus(final, before(points))
            own = surplus(final, before(X))[labels, np.arange(len(X))]
            support, lines, band = np.flatnonzero(own < 0), "ψ(θ₁) = cos θ₂", band_of(final)
        else:
            first, second = -1 - score, score - 1
            support = support_of(final, np.asarray(model.decision_function(X)) * (2 * labels - 1))
            lines = "logit ±1 (p = 0.73)" if support is None and hasattr(final, "predict_proba") else "f = ±1"
        shape = POINTS, POINTS
        side = np.where(np.asarray(model.decision_function(X)) > 0, 1, -1) * (2 * labels - 1)
        return cls(
            X=X,
            y=labels,
            grid=grid,
            score=score.reshape(shape),
            first=first.reshape(shape),
            second=second.reshape(shape),
            support=support,
            lines=lines,
            band=band,
            distances=side * _distances(X, level_lines(grid[0], grid[1], score.reshape(shape))),
            angles=angles_of(final, before(X), labels),
            names=_two("names", [str(each) for each in model.classes_] if names is None else names),
            axes=_two("axes", axes),
            title=type(final).__name__ if title is None else title,
        )

    @property
    def boundary(self) -> Lines:
        """The lines where neither class is preferred."""
        return level_lines(self.grid[0], self.grid[1], self.score)

    @property
    def edges(self) -> tuple[Lines, Lines]:
        """The lines where class 0, and class 1, just meets its margin."""
        x, y = self.grid
        return level_lines(x, y, self.first), level_lines(x, y, self.second)

    @property
    def margin(self) -> float:
        """The least distance between the boundary and a line of the margin; nan if they are not on the grid."""
        boundary = self.boundary
        found = [_distances(line, boundary).min() for edge in self.edges for line in edge if boundary]
        return float(min(found, default=math.nan))

    @property
    def words(self) -> str:
        """Say what the lines are and how far off, the nearest sample that is on its side, and who decides."""
        curved = not math.isnan(self.band)
        off = "out of view" if math.isnan(self.margin) else f"{self.margin:.2f} off{' or more' * curved}"
        right = self.distances > 0
        near = f"nearest sample: {self.distances[right].min():.2f}" if right.any() else "no sample is right"
        if right.any() and not np.isnan(self.angles).any():
            near += f", {degrees(float(self.angles[right].min()))}"
        if self.support is None:
            count = "no support points, all samples count"
        elif curved:
            count = f"band {degrees(self.band)}; support: {len(self.support)} miss the margin"
        else:
            count = f"support: {len(self.support)} on the lines or between"
        return f"lines {self.lines}: {off}\n{near}\n{count}"

    def draw(self, ax: Axes) -> None:
        """Draw samples and lines; where the margin is met is shaded."""
        colours = look(ax)
        low, high = self.X.min(0), self.X.max(0)
        room = ROOM * (high - low).max()
        # Only what is seen: the grid goes on beyond, which would make files large.
        columns, rows = (
            slice(np.searchsorted(at, a - room) - 1, np.searchsorted(at, b + room) + 1)
            for at, a, b in zip(self.grid, low, high, strict=True)
        )
        x, y = self.grid[0, columns], self.grid[1, rows]
        kinds = (self.first, colours.blue, "o", "--"), (self.second, colours.red, "^", "-.")
        for k, (values, colour, mark, dash) in enumerate(kinds):
            met, name = values[rows, columns], self.names[k]
            if met.max() > 0:
                ax.contourf(x, y, met, levels=[0, met.max()], colors=[colour], alpha=0.13)
            for line in level_lines(x, y, met):
                ax.plot(*line.T, color=colour, linestyle=dash, linewidth=1.4, label=f"{name}: margin met")
            ax.plot(
                *self.X[self.y == k].T, mark, color=colour, markersize=4.6, label=name,
                markeredgecolor=colours.ground, markeredgewidth=0.5, zorder=3,
            )  # fmt: skip
        for line in level_lines(x, y, self.score[rows, columns]):
            ax.plot(*line.T, color=colours.ink, linewidth=1.8, label="boundary")
        if self.support is not None and len(self.support):
            ax.plot(
                *self.X[self.support].T, "o", markersize=9.5, markerfacecolor="none", markeredgecolor=colours.ink,
                markeredgewidth=1.2, label="support point", zorder=4,
            )  # fmt: skip
        dress(ax, xlabel=self.axes[0], ylabel=self.axes[1])
        ax.set_title(self.title, loc="left", fontsize=11, color=colours.ink, pad=LINES)
        ax.annotate(
            self.words, (0, 1), (0, 5), xycoords="axes fraction", textcoords="offset points",
            va="bottom", fontsize=9, linespacing=1.35, color=colours.ink,
        )  # fmt: skip
        ax.set_xlim(low[0] - room, high[0] + room)
        ax.set_ylim(low[1] - room, high[1] + room)
        ax.set_aspect("equal")  # else a distance is none


def level_lines(x: Floats, y: Floats, values: Floats) -> Lines:
    """Find where the values (len y, len x) on a grid are 0."""
    from contourpy import contour_generator

    return [np.asarray(line) for line in contour_generator(x=x, y=y, z=values).lines(0.0)]


def _two(name: str, given: Sequence[str]) -> tuple[str, str]:
    if isinstance(given, str) or len(given) != 2:
        raise ValueError(f"{name} must be 2 words; got {given!r}.")
    return given[0], given[1]


def _distances(points: Floats, lines: Lines) -> Floats:
    """Return the distance of each point (N, 2) to the nearest of the lines; inf where there is none."""
    found = np.full(len(points), math.inf)
    for line in lines:
        start, way = line[:-1], np.diff(line, axis=0)
        square = np.maximum((way**2).sum(1), 1e-300)
        for i, point in enumerate(points):
            along = np.clip(((point - start) * way).sum(1) / square, 0.0, 1.0)
            nearest = start + along[:, None] * way
            found[i] = min(found[i], float(np.linalg.norm(point - nearest, axis=1).min()))
    return found


@picture("plane", "a linear SVM, logistic regression and margin softmax on the same samples of two classes")
def plane(
    margin: Annotated[str, "the margin of margin softmax, like cosface:m=0.5"] = "arcface:m=0.6",
    scale: Annotated[float, "its s"] = 30.0,
    svm_c: Annotated[float, "C of the SVM: 100 allows hardly a sample between the lines"] = 100.0,
    logistic_c: Annotated[float, "C of logistic regression"] = 1.0,
) -> Keyed:
    """Two species and two measurements of iris, standardised. Degrees are seen from the origin at height 1."""
    for name, value in (("scale", scale), ("svm_c", svm_c), ("logistic_c", logistic_c)):
        checks.positive(name, value)
    kind = read_margin(margin)
    try:
        from sklearn.datasets import load_iris
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler
        from sklearn.svm import SVC

        from hypermargin.estimator import MarginSoftmaxClassifier
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            not_installed("the picture 'plane' needs", "scikit-learn"), name="sklearn"
        ) from None
    iris = load_iris()
    two = iris.target < 2
    X, y = StandardScaler().fit_transform(iris.data[two][:, [2, 1]]), iris.target[two]
    models = {
        f"Linear SVM, C = {svm_c:g}": SVC(kernel="linear", C=svm_c),
        f"Logistic regression, C = {logistic_c:g}": LogisticRegression(C=logistic_c),
        f"{label(kind)}, s = {scale:g}": MarginSoftmaxClassifier(kind, scale=scale),
    }
    names, axes = iris.target_names[:2].tolist(), ("petal length", "sepal width")
    panels = [
        PlaneDisplay.of(model.fit(X, y), X, y, title=title, names=names, axes=axes)
        for title, model in models.items()
    ]
    title = "Shaded: margin met. Degrees: from boundary to sample, seen from the origin, with a constant feature 1"
    return Keyed(panels, columns=3, panel_size=(3.3, 5.2), title=title, keys=6)
