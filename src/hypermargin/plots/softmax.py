"""Softmax seen: how the scale turns it from an even split into a maximum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch

from hypermargin import checks
from hypermargin.common.arrays import Floats
from hypermargin.numerics import log_sum_exp
from hypermargin.plots.catalogue import picture
from hypermargin.plots.style import DASHES, Display, Panels, dress, legend, look, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCORES, SCALES = (1.0, 2.0, 3.0, 4.0), (0.1, 1.0, 10.0)
HATCHES = "", "///", "...", "xxx", "\\\\\\", "ooo"


@dataclass(eq=False)
class SharesDisplay(Display):
    """How several rules divide a whole among scores: a group of bars for each score.

    scores  (C,)
    shares  by the rule's name, (C,) that sum to 1
    """

    scores: Floats
    shares: Mapping[str, Floats]
    title: str = ""

    @classmethod
    def of(cls, scores: Sequence[float], scales: Sequence[float], title: str = "") -> SharesDisplay:
        """Show the share of the total, x/Σx, which no scale changes, beside softmax(s·x) for each scale s."""
        x = _scores(scores)
        if not (x > 0).all():
            raise ValueError(f"scores must be positive to have a share of their total; got {x.min():g}.")
        named = {"share of the total": x / x.sum()}
        for s in scales:
            checks.positive("scales", s)
            named["softmax of the scores" + _times(s)] = torch.softmax(torch.from_numpy(s * x), 0).numpy()
        return cls(x, named, title)

    def draw(self, ax: Axes) -> None:
        """Draw each bar with its number."""
        from matplotlib.ticker import FuncFormatter

        width = 0.84 / len(self.shares)
        places = np.arange(len(self.scores))
        for k, (name, share) in enumerate(self.shares.items()):
            at = places + (k - (len(self.shares) - 1) / 2) * width
            colour = (look(ax).faint, *look(ax).cycle)[k % 7]
            ax.bar(
                at, share, 0.9 * width, label=name, facecolor=colour, alpha=0.85, edgecolor=look(ax).ground,
                hatch=HATCHES[k % len(HATCHES)], linewidth=0,
            )  # fmt: skip
            for x, height in zip(at, share, strict=True):
                ax.text(
                    x, height + 0.015, f"{100 * height:.1f} %", rotation=90 if len(self.shares) > 2 else 0,
                    ha="center", va="bottom", fontsize=7.5 if len(self.shares) > 2 else 9, color=look(ax).ink,
                )  # fmt: skip
        ax.set_xticks(places, [f"{score:g}" for score in self.scores])
        ax.set_yticks([0, 0.25, 0.5, 0.75, 1])
        ax.set_ylim(0, 1.22)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(share)))
        dress(ax, xlabel="score", ylabel="part of the whole", title=self.title)
        ax.grid(False, axis="x")
        legend(ax, loc="upper left" if self.scores[0] < self.scores[-1] else "upper right")


@dataclass(eq=False)
class ScaleDisplay(Display):
    """What softmax becomes as the scale grows: curves over s, on a log axis.

    scales  (S,)
    curves  by name, (S,)
    levels  by name, what the curves tend to
    """

    scales: Floats
    curves: Mapping[str, Floats]
    levels: Mapping[str, float]
    ylabel: str
    title: str
    bound: Floats | None = None
    limits: tuple[float, float] | None = None

    @classmethod
    def probabilities(cls, scores: Sequence[float]) -> ScaleDisplay:
        """Show softmax(s·x), one curve for each score."""
        x, s = _scores(scores), _scale_axis()
        p = torch.softmax(torch.from_numpy(s[:, None] * x), 1).numpy()
        curves = {f"score {score:g}": p[:, j] for j, score in enumerate(x)}
        even = {f"even split, 1/{len(x)}": 1 / len(x)}
        return cls(s, curves, even, "softmax of s·scores", "From an even split to the winner", limits=(0, 1.03))

    @classmethod
    def maxima(cls, scores: Sequence[float]) -> ScaleDisplay:
        """Show LSE(s·x)/s, which is above max x by at most ln(C)/s, and the softmax-weighted mean, below it."""
        x, s = _scores(scores), _scale_axis()
        z = torch.from_numpy(s[:, None] * x)
        curves = {
            "LSE(s·x)/s": (log_sum_exp(z) / torch.from_numpy(s)).numpy(),
            "mean weighted by softmax(s·x)": (torch.softmax(z, 1).numpy() * x).sum(1),
        }
        low, top = float(x.mean()), float(x.max())
        room = max(top - low, 1e-3)
        return cls(
            s, curves, {f"maximum, {top:g}": top, f"mean, {low:g}": low}, "score",
            "Two smooth maxima", top + math.log(len(x)) / s, (low - 0.4 * room, top + 3 * room),
        )  # fmt: skip

    def draw(self, ax: Axes) -> None:
        """Draw levels thin, curves thick; the bound, if there is one, as a shade."""
        from matplotlib.ticker import FuncFormatter

        colours = look(ax)
        ax.set_xscale("log")
        if self.bound is not None:
            top = max(self.levels.values())
            ax.fill_between(
                self.scales, top, self.bound, color=colours.blue, alpha=0.13, linewidth=0,
                label="maximum … maximum + ln(C)/s",
            )  # fmt: skip
        for k, (name, level) in enumerate(self.levels.items()):
            ax.axhline(level, color=colours.faint, linewidth=1.2, linestyle=("-", ":")[k % 2], label=name)
        for k, (name, curve) in enumerate(self.curves.items()):
            ax.plot(
                self.scales, curve, color=colours.cycle[k % 7], linestyle=DASHES[k % 7], linewidth=1.9, label=name
            )
        ax.set_xlim(self.scales[0], self.scales[-1])
        if self.limits is not None:
            ax.set_ylim(*self.limits)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda s, _: f"{s:g}"))
        ax.xaxis.set_minor_formatter("")
        dress(ax, xlabel="scale s", ylabel=self.ylabel, title=self.title)
        legend(ax, loc="best")


def _scores(scores: Sequence[float]) -> Floats:
    x = np.asarray(scores, float)
    if x.ndim != 1 or len(x) < 2 or not np.isfinite(x).all():
        raise ValueError(f"scores must be two or more finite numbers; got {list(scores)}.")
    return x


def _scale_axis() -> Floats:
    return np.geomspace(0.1, 10, 201)


def _times(s: float) -> str:
    return "" if s == 1 else f" × {s:g}" if s > 1 else f" ÷ {1 / s:g}"


@picture("smoothness", "softmax and the smooth maximum as the scale grows, beside the plain share of the total")
def smoothness(
    scores: Annotated[list[float], "positive scores to divide a whole among; repeatable"] = SCORES,  # type: ignore[assignment]
    scales: Annotated[list[float], "what the scores are multiplied by; repeatable"] = SCALES,  # type: ignore[assignment]
) -> Display:
    """Bars for some scales, the same over all scales, and what one clear winner gets."""
    return Panels([
        SharesDisplay.of(scores, scales, "Softmax depends on the scale, a share does not"),
        ScaleDisplay.probabilities(scores),
        ScaleDisplay.maxima(scores),
        SharesDisplay.of((10.0, 5.0, 5.0), (1.0,), "One clear winner"),
    ], panel_size=(5.2, 3.9))  # fmt: skip
