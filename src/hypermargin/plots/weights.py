"""Lengths of class weights: where a head leaves them free, a long one wins more than its share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hypermargin.common.arrays import Floats, Values, to_numpy
from hypermargin.plots.style import Display, dress, legend, stroke
from hypermargin.recipes import FAMILY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "o", "s", "^", "D", "v"


@dataclass(eq=False)
class WeightsDisplay(Display):
    """Effective lengths |W_j|, with which class j's logit is |x||W_j|cos θ_j.

    lengths  by head: (C,) in the order of the classes; all 1 where the head makes its weights unit
    unit     by head: does it?
    counts   (C,) training samples of each class, or None
    """

    lengths: Mapping[str, Floats]
    unit: Mapping[str, bool]
    counts: Floats | None = None
    title: str = "Lengths of the class weights"
    places: Mapping[str, int] = field(default_factory=dict)  # of heads whose lines look alike in several pictures

    size = 6.4, 4.6

    @classmethod
    def of(
        cls,
        weights: Mapping[str, Values],
        counts: Values | None = None,
        *,
        unit: Mapping[str, bool] | None = None,
        title: str = "Lengths of the class weights",
    ) -> WeightsDisplay:
        """Make it from weights (C, d) by head; `counts` (C,) puts the classes over their number of samples.

        `unit` says of heads that are not of the family whether they make their weights unit.
        """
        if not weights:
            raise ValueError("weights must hold at least one head's weight; got none.")
        known = {name: recipe.unit_weight for name, recipe in FAMILY.items()} | dict(unit or {})
        lengths = {}
        for name, weight in weights.items():
            W = to_numpy(weight).astype(np.float64)
            if W.ndim != 2 or len(W) == 0:
                raise ValueError(f"weights[{name!r}] must have shape (classes, dim); got {W.shape}.")
            lengths[name] = np.ones(len(W)) if known.get(name) else np.linalg.norm(W, axis=1)
        number = None if counts is None else to_numpy(counts).astype(np.float64)
        for name, length in lengths.items():
            if number is not None and number.shape != length.shape:
                raise ValueError(
                    f"counts must have shape {length.shape}, one per class of {name}; got {number.shape}."
                )
        return cls(lengths, {name: bool(known.get(name)) for name in lengths}, number, title)

    def words(self, name: str) -> str:
        """Say, for each head, l-softmax: mean 1.83, spread 0.21; the spread is the standard deviation."""
        if self.unit[name]:
            return f"{name}: all 1, since it makes its weights unit"
        length = self.lengths[name]
        return f"{name}: mean {length.mean():.3g}, spread {length.std():.2g}"

    def draw(self, ax: Axes) -> None:
        """Draw the lengths, longest first, or over the number of samples."""
        from matplotlib.ticker import MaxNLocator

        for k, (name, length) in enumerate(self.lengths.items()):
            few = len(length) <= 100
            x = np.arange(1, len(length) + 1) if self.counts is None else self.counts
            y = np.sort(length)[::-1] if self.counts is None else length
            line = stroke(self.places.get(name, k), ax)
            if name not in self.places and (few or self.counts is not None):
                line |= {"marker": MARKERS[k % len(MARKERS)], "markevery": 1, "markersize": 5}
            if self.counts is not None:
                line |= {"linestyle": "", "markevery": 1}
            ax.plot(x, y, linewidth=1.5, label=self.words(name), **line)
        ax.set_ylim(0, 1.08 * max(float(length.max()) for length in self.lengths.values()))
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        xlabel = "classes, longest weight first" if self.counts is None else "training samples of the class"
        dress(ax, xlabel=xlabel, ylabel="effective length |W|", title=self.title)
        legend(ax, loc="upper center", bbox_to_anchor=(0.5, -0.16))
