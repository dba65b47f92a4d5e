"""`python -m benchmarks.heads.picture`: what the width of the margin did, by kind, as heads-difficulty.png."""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.heads import plan
from benchmarks.heads.tables import failed
from hypermargin.plots.style import LIGHT

KINDS = {"cosine": "cos θ − m", "angular": "cos(θ + m)", "multiplicative": "cos mθ"}
MEASURES = {
    "first_loss": "loss, first 50 steps",
    "steps_to_90": "steps to 90 % training accuracy",
    "eer": "EER on unseen characters, %",
    "gap": "train accuracy − test rank-1",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=Path("benchmarks/results/heads.jsonl"))
    given = parser.parse_args()
    results = [json.loads(line) for line in given.results.read_text(encoding="utf-8").splitlines()]
    figure = draw(results)
    figure.savefig(given.results.with_name("heads-difficulty.png"), dpi=110)


def draw(results: list[dict[str, Any]]) -> Figure:
    studies = {"difficulty s=16 all": "s = 16", "difficulty s=30 all": "s = 30"}
    figure = Figure(figsize=(13, 6.2), layout="constrained")
    axes = figure.subplots(len(studies), len(MEASURES), sharex=True)
    for row, (study, title) in zip(axes, studies.items(), strict=True):
        runs = [r for r in results if r["spec"]["study"] == study]
        for ax, (measure, words) in zip(row, MEASURES.items(), strict=True):
            for color, (kind, name) in zip(LIGHT.cycle, KINDS.items(), strict=False):
                _line(ax, runs, kind, measure, color, name)
            ax.set_title(f"{words}, {title}", fontsize=9)
            ax.grid(alpha=0.3)
    for ax in axes[-1]:
        ax.set_xlabel("width of the band at 90°, radians")
    axes[0][0].legend(title="○ failed: beyond the knot", fontsize=8, title_fontsize=8)
    return figure


def _line(ax: Any, results: list[dict[str, Any]], kind: str, measure: str, color: str, name: str) -> None:
    widths, means, lost = [], [], []
    for width in plan.WIDTHS:
        head, m = plan.margins_of_width(width)["angular" if width == 0 else kind]
        wanted = round(next(iter(m.values())), 6)
        runs = [r for r in results if r["spec"]["head"] == head and round(r["spec"]["set"]["m"], 6) == wanted]
        values = [_value(r, measure) for r in runs]
        found = [v for v in values if v is not None]
        if found:
            widths.append(width)
            means.append(statistics.fmean(found))
            lost.append(any(failed(r) for r in runs))
    ax.plot(widths, means, color=color, label=name)
    for width, mean, bad in zip(widths, means, lost, strict=True):
        ax.plot(width, mean, "o", color=color, markerfacecolor="white" if bad else color)


def _value(result: dict[str, Any], measure: str) -> float | None:
    if measure == "eer":
        return 100 * result["test"]["eer"]
    if measure == "gap":
        return 100 * (result["train"]["accuracy"] - result["test"]["rank1"])
    found: float | None = result[measure]
    return found


if __name__ == "__main__":
    main()
