"""EER of every head under every condition: each seed a dot, their range a line."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from benchmarks.study.agenda import Result
from benchmarks.successors import plan
from benchmarks.successors.tables import errors, heads_of
from hypermargin.plots.style import LIGHT

SHORT = {"clean": "right labels", "noise20": "20 % wrong", "noise40": "40 % wrong", "tail": "long tail"}


def draw(results: Sequence[Result]) -> Figure:
    """A panel per condition; one order of the heads for all: that of their EER with right labels."""
    order = heads_of(results, "clean")
    order += [h for c in plan.CONDITIONS for h in heads_of(results, c) if h not in order]
    order = list(dict.fromkeys(order))
    colors = {  # by what is claimed of them
        **dict.fromkeys((*plan.ANCHORS, "l-softmax"), "#444444"),
        **dict.fromkeys(("subcenter-arcface", "uniface", "sface"), LIGHT.cycle[0]),
        **dict.fromkeys(("curricularface", "mv-arcface"), LIGHT.cycle[1]),
        **dict.fromkeys(plan.BY_COUNTS, LIGHT.cycle[2]),
    }
    figure = Figure(figsize=(13, 1.2 + 0.27 * len(order)), layout="constrained")
    axes = figure.subplots(1, len(plan.CONDITIONS), sharey=True)
    for ax, condition in zip(axes, plan.CONDITIONS, strict=True):
        for head in heads_of(results, condition):
            _head(ax, order.index(head), errors(results, condition, head), colors.get(head, "#999999"))
        if "softmax" in heads_of(results, condition):
            ax.axvline(statistics.fmean(errors(results, condition, "softmax")), color="#444444", lw=0.8, ls=":")
        ax.set_title(SHORT[condition], fontsize=10)
        ax.set_xlabel("EER on unseen characters, %")
        ax.grid(alpha=0.3)
    axes[0].set_yticks(range(len(order)), order, fontsize=8)
    axes[0].invert_yaxis()
    names = {
        "classic": "#444444",
        "said to bear wrong labels": LIGHT.cycle[0],
        "said to suffer": LIGHT.cycle[1],
        "by how frequent a class is": LIGHT.cycle[2],
        "others": "#999999",
    }
    handles = [axes[0].plot([], [], "o", color=color, label=name)[0] for name, color in names.items()]
    handles += axes[0].plot([], [], ":", color="#444444", label="softmax")
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    return figure


def _head(ax: Any, at: int, values: Sequence[float], color: str) -> None:
    ax.plot([min(values), max(values)], [at, at], color=color, lw=1.2, alpha=0.7)
    ax.plot(values, [at] * len(values), "o", color=color, markersize=3, alpha=0.6)
    ax.plot(statistics.fmean(values), at, "|", color=color, markersize=11, markeredgewidth=2)
