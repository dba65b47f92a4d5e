"""Lengths of features against how well a sample fits its class: does a short one mean a poor image?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from hypermargin.common.arrays import Floats, Values
from hypermargin.evaluate.geometry import QUANTILES, spearman
from hypermargin.evaluate.pairs import GRID, samples
from hypermargin.numerics import unit
from hypermargin.plots.style import Display, dress, legend, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_DOTS = 4000


@dataclass(eq=False)
class NormsDisplay(Display):
    """Lengths and cosines of samples in classes of two and more.

    norms        lengths of the features
    cosines      to the own center, the mean direction of the class
    correlation  of their ranks; NaN if one is constant
    """

    norms: Floats
    cosines: Floats
    correlation: float

    @classmethod
    def of(cls, features: Values, labels: Values) -> NormsDisplay:
        """Make it from features (N, d) as the network gives them, not yet unit, and labels (N,)."""
        s = samples(features, labels, "features")
        y = torch.from_numpy(s.ids).to(s.x.device)
        centers = unit(s.x.new_zeros(len(s.sizes), s.x.shape[1]).index_add_(0, y, s.x))
        social = s.sizes[s.ids] > 1
        if not social.any():
            raise ValueError("labels must hold an identity with two samples or more: one alone is its own center.")
        cosines = (s.x * centers[y]).sum(1).double().cpu().numpy()[social]
        norms = s.norms.double().cpu().numpy()[social]
        return cls(norms, cosines, spearman(norms, np.round(cosines * GRID)))

    @property
    def parts(self) -> tuple[tuple[float, float], ...]:
        """Return (mean length, mean cosine) in five equal parts of the samples, shortest first."""
        order = np.argsort(self.norms, kind="stable")
        return tuple(
            (float(self.norms[part].mean()), float(self.cosines[part].mean()))
            for part in np.array_split(order, QUANTILES)
            if len(part)
        )

    def draw(self, ax: Axes) -> None:
        """Draw a dot for each of 4,000 samples at most; the line joins the means of the five parts."""
        shown = np.random.default_rng(0).permutation(len(self.norms))[:MOST_DOTS]
        size = 14 if len(shown) < 500 else 6
        ax.scatter(self.norms[shown], self.cosines[shown], s=size, alpha=0.35, linewidths=0, label="samples")
        words = "" if np.isnan(self.correlation) else f", rank correlation {self.correlation:.2f}"
        x, y = np.array(self.parts).T
        ax.plot(x, y, "o-", color=look(ax).red, linewidth=1.8, markersize=5, label=f"means of fifths{words}")
        ax.ticklabel_format(useOffset=False)
        dress(ax, xlabel="length of the feature", ylabel="cosine to own center", title="Length and fit")
        legend(ax, loc="upper center", bbox_to_anchor=(0.5, -0.16))
