"""The gain of each head over softmax and over itself without a margin, against the number of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from benchmarks.many import plan
from benchmarks.many.numbers import METRICS, WITHOUT, counts, gain
from benchmarks.study.agenda import Result
from hypermargin.plots.style import LIGHT

SHOWN = "eer", "tar0.001", "tar1e-05"


def draw(results: Sequence[Result]) -> Figure:
    """A column per metric; above over the best softmax, below over the same head without margin. Up is better."""
    classes = counts(results, "gain")
    figure = Figure(figsize=(13, 7), layout="constrained")
    axes = figure.subplots(2, len(SHOWN), sharex=True, squeeze=False)
    names = [head for head in plan.HEADS if head != "softmax"]
    colors = {head: LIGHT.cycle[k % len(LIGHT.cycle)] for k, head in enumerate(names)}
    margins = "over the same head without margin"
    for row, words in zip(axes, ("over softmax", margins), strict=True):
        for ax, metric in zip(row, SHOWN, strict=True):
            for head in names:
                base = WITHOUT.get(head) if words == margins else "softmax"
                if base and not (words == margins and base == "softmax"):
                    _line(ax, results, head, base, classes, metric, colors[head], names.index(head))
            ax.axhline(0, color="#444444", lw=0.8)
            ax.set_xscale("log", base=2)
            ax.set_xticks(classes, [f"{c:,}" for c in classes], fontsize=8)
            ax.minorticks_off()
            ax.set_title(f"{METRICS[metric][0]}: points gained {words}", fontsize=9)
            ax.grid(alpha=0.3)
    for ax in axes[-1]:
        ax.set_xlabel("training identities")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(names), fontsize=8)
    return figure


def _line(
    ax: Any,
    results: Sequence[Result],
    head: str,
    base: str,
    classes: Sequence[int],
    metric: str,
    color: str,
    at: int,
) -> None:
    found = [(c * 1.02 ** (at - 4), g) for c in classes if (g := gain(results, head, base, c, metric)) is not None]
    x, mean = [c for c, _ in found], [g[0] for _, g in found]
    ax.plot(x, mean, "o-", color=color, markersize=4, lw=1.3, label=head)
    for c, (value, half) in found:
        if half == half:
            ax.plot([c, c], [value - half, value + half], color=color, lw=1, alpha=0.6)
