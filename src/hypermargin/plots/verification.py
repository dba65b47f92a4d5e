"""Verification seen: the ROC, the DET curve, and the scores of both kinds of pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from hypermargin.common.arrays import Counts, Floats
from hypermargin.evaluate import Curve, Verification, thin
from hypermargin.plots.style import DASHES, Display, dress, legend, look, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORST = 0.62  # errors above are not shown in a DET curve
DET_TICKS = 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.2, 0.5


@dataclass(eq=False)
class RocDisplay(Display):
    """TAR over FAR, FAR on a log axis: what is accepted of the right pairs, at the price of which wrong ones.

    far, tar   operating points, 2,000 at most
    intervals  by FAR f: (TAR, low, high), where the pairs can show f
    impostors  pairs, A: the curve begins at 1/A
    """

    far: Floats
    tar: Floats
    auc: float
    impostors: int
    intervals: Mapping[float, tuple[float, float, float]] = field(default_factory=dict)
    name: str = ""

    @classmethod
    def of(cls, found: Verification, name: str = "") -> RocDisplay:
        """Make it from what `verification` or `from_scores` found; with their intervals, if they were asked for."""
        points = thin(found.curve, list(found.tar))
        known = found.intervals or {}
        whiskers = {f: (found.tar[f], *known[f]) for f in found.supported if f in known}
        return cls(found.curve.far[points], found.curve.tar[points], found.auc, found.impostor, whiskers, name)

    def draw(self, ax: Axes) -> None:
        """Draw steps: between two operating points the TAR is that of the stricter one."""
        from matplotlib.ticker import FuncFormatter

        least = 10.0 ** math.floor(math.log10(1 / self.impostors) + 1e-9)
        left = min(least, ax.get_xlim()[0]) if ax.lines else least  # a second curve must not cut the first
        ax.set_xscale("log")
        from_here = int((self.far <= 0).sum()) - 1  # the highest TAR at no false accept starts at the left edge
        shown, tar = self.far[from_here:].clip(min=least), self.tar[from_here:]
        (line,) = ax.plot(
            shown, tar, drawstyle="steps-post", linewidth=1.8, label=_labelled(self.name, "AUC", self.auc)
        )
        if self.intervals:
            f, tar, low, high = _by_far(self.intervals)
            ax.fill_between(f, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
            at = np.isclose(np.log10(f), np.round(np.log10(f)))  # more bars than powers of ten would crowd
            at = at if at.any() else np.ones(len(f), bool)
            ax.errorbar(
                f[at], tar[at], [(tar - low)[at], (high - tar)[at]], fmt="o", markersize=4, capsize=4,
                linewidth=1.3, color=line.get_color(), label="at fixed FAR, with interval",
            )  # fmt: skip
        chance = np.geomspace(least, 1, 200)
        ax.plot(chance, chance, color=look(ax).faint, linewidth=0.9, linestyle=":", label="chance")
        ax.set_xlim(left, 1)
        ax.set_ylim(-0.02, 1.02)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(share)))
        ax.xaxis.set_minor_formatter("")
        dress(ax, xlabel="false accepts (FAR)", ylabel="true accepts (TAR)", title="ROC")
        legend(ax, loc="lower right")


@dataclass(eq=False)
class DetDisplay(Display):
    """FRR over FAR on axes of the normal distribution, where scores of two normal distributions give a line.

    far, frr   operating points, 2,000 at most
    eer        where they are equal
    intervals  by FAR f: (FRR, low, high), where the pairs can show f
    """

    far: Floats
    frr: Floats
    eer: float
    name: str = ""
    intervals: Mapping[float, tuple[float, float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Verification, name: str = "") -> DetDisplay:
        """Make it from what `verification` or `from_scores` found; with their intervals, if they were asked for."""
        points = thin(found.curve, list(found.tar))
        known = found.intervals or {}
        band = {f: (1 - found.tar[f], 1 - known[f][1], 1 - known[f][0]) for f in found.supported if f in known}
        return cls(found.curve.far[points], 1 - found.curve.tar[points], found.eer, name, band)

    def draw(self, ax: Axes) -> None:
        """Draw the curve with a mark at equal errors; where one error is 0 the line leaves the picture."""
        seen = (self.far < WORST) & (self.frr < WORST)
        errors = np.concatenate((self.far[seen], self.frr[seen], [self.eer, 0.01]))
        least = 0.7 * float(errors[errors > 0].min())
        low, high = _probit(np.array([least, WORST]))
        low = min(low, ax.get_xlim()[0]) if ax.lines else low
        far, frr = (_probit(error.clip(least / 10, 0.9)) for error in (self.far, self.frr))
        (line,) = ax.plot(far, frr, linewidth=1.8, label=_labelled(self.name, "EER", self.eer))
        if self.intervals:
            f, _, least_frr, most_frr = (_probit(v.clip(least / 10, 0.9)) for v in _by_far(self.intervals))
            ax.fill_between(
                f, least_frr, most_frr, color=line.get_color(), alpha=0.15, linewidth=0,
                label="interval of the FRR at a fixed FAR",
            )  # fmt: skip
        ax.plot([low, high], [low, high], color=look(ax).faint, linewidth=0.9, linestyle=":")
        if self.eer > 0:
            at = _probit(np.array([self.eer]))
            ax.plot(at, at, "o", color=line.get_color(), markersize=5, markeredgecolor=look(ax).ground)
        else:
            ax.text(
                0.5, 0.5, "one threshold makes no error", transform=ax.transAxes, ha="center", color=look(ax).ink,
                bbox={"facecolor": look(ax).ground, "edgecolor": "none"},
            )  # fmt: skip
        places = dict(zip(_probit(np.array(DET_TICKS)).tolist(), map(percent, DET_TICKS), strict=True))
        ticks = {place: name for place, name in places.items() if place >= low}
        for axis, limit in ((ax.xaxis, ax.set_xlim), (ax.yaxis, ax.set_ylim)):
            axis.set_ticks(list(ticks), list(ticks.values()))
            limit(low, high)
        if len(ticks) > 6:
            ax.tick_params(axis="x", rotation=30)
        dress(ax, xlabel="false accepts (FAR)", ylabel="false rejects (FRR)", title="DET")
        legend(ax, loc="upper right")


@dataclass(eq=False)
class ScoresDisplay(Display):
    """How the scores of genuine and of impostor pairs lie, each kind as shares of its own pairs.

    edges              those of the bins
    genuine, impostor  pairs in each bin
    thresholds         scores to draw, by what they were chosen for
    """

    edges: Floats
    genuine: Counts
    impostor: Counts
    thresholds: Mapping[str, float] = field(default_factory=dict)
    unit: str = "cosine"
    per: float | None = None  # shares within so much of the axis, whatever the bins: those of others compare

    @classmethod
    def of(
        cls,
        curve: Curve,
        thresholds: Mapping[str, float] | None = None,
        *,
        bins: int | None = None,
        unit: str = "cosine",
    ) -> ScoresDisplay:
        """Make it from a curve; as many bins as the rarer kind of pair can fill, if not given."""
        rare = min(curve.genuines, curve.impostors)
        wanted = bins or min(100, max(15, round(2 * rare ** (1 / 3))))
        return cls(*curve.histogram(wanted), thresholds or {}, unit)

    def draw(self, ax: Axes) -> None:
        """Draw filled steps; thresholds as lines, explained below the picture so that they never cover it."""
        from matplotlib.ticker import FuncFormatter

        for counts, name, colour in (
            (self.impostor, "impostor", look(ax).red),
            (self.genuine, "genuine", look(ax).blue),
        ):
            share = counts / max(1, counts.sum())
            if self.per is not None:
                share = share * self.per / np.diff(self.edges)
            ax.stairs(share, self.edges, fill=True, alpha=0.35, color=colour)
            ax.stairs(share, self.edges, linewidth=1.4, color=colour, label=f"{name}, {counts.sum():,} pairs")
        for k, (what, score) in enumerate(self.thresholds.items()):
            ax.axvline(
                score,
                color=look(ax).ink,
                linewidth=1.1,
                linestyle=DASHES[k % len(DASHES)],
                label=f"{what}: {score:.3f}",
            )
        ax.yaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(share)))
        ax.set_ylim(bottom=0)
        within = "" if self.per is None else f" in {self.per:g}"
        dress(ax, xlabel=self.unit, ylabel=f"share of its pairs{within}", title="Scores")
        columns = 2 if len(self.thresholds) > 1 else 1
        legend(ax, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns)


def _labelled(name: str, what: str, share: float) -> str:
    return f"{name + ': ' if name else ''}{what} {percent(round(share, 5))}"


def _by_far(intervals: Mapping[float, tuple[float, float, float]]) -> tuple[Floats, Floats, Floats, Floats]:
    """Return (FAR, value, low, high), FAR rising."""
    f = np.array(sorted(intervals))
    value, low, high = np.array([intervals[far] for far in f.tolist()]).T
    return f, value, low, high


def _probit(share: Floats) -> Floats:
    normal = NormalDist()
    return np.array([normal.inv_cdf(float(s)) for s in share])
