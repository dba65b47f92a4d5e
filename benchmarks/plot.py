"""Time and memory against the number of classes, all contenders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Okabe and Ito's colours: told apart by everyone, on white and on black.
COLOURS = (
    "#0072B2",
    "#56B4E9",
    "#009E73",
    "#E69F00",
    "#D55E00",
    "#CC79A7",
    "#999999",
    "#8C6D31",
    "#5D3A9B",
    "#1B7837",
)
MARKERS = "osD^vPX*<>"


def plot_sweep(result: dict[str, Any], path: Path) -> None:
    """Two log-log panels, ours drawn thickest."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("the picture needs matplotlib: pip install 'hypermargin[plot]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    p = result["problem"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.4), layout="constrained")
    names = list(dict.fromkeys(row["name"] for row in result["sweep"]))
    names.sort(key=lambda n: (not n.startswith("hypermargin chunked"), n))
    for i, name in enumerate(names):
        rows = [r for r in result["sweep"] if r["name"] == name]
        style = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "markersize": 5}
        style["linewidth"] = 2.6 if name == "hypermargin chunked" else 1.2
        left.plot([r["classes"] for r in rows], [1e3 * r["min"] for r in rows], label=name, **style)
        known = [r for r in rows if r["memory"] is not None]
        right.plot([r["classes"] for r in known], [max(r["memory"], 1) / 2**20 for r in known], label=name, **style)
    weight = sorted({r["classes"] for r in result["sweep"]})
    right.plot(weight, [c * p["dim"] * 4 / 2**20 for c in weight], "k:", linewidth=1, label="dW alone")
    left.set(title="time of a training step, ms", xlabel="classes", xscale="log", yscale="log")
    right.set(title="peak memory beyond inputs and weight, MB", xlabel="classes", xscale="log", yscale="log")
    for ax in (left, right):
        ax.grid(True, which="major", alpha=0.3)
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.suptitle(f"N = {p['rows']}, d = {p['dim']}, {p['precision']}, {result['environment']['device']}")
    figure.savefig(path, dpi=150)
    plt.close(figure)
