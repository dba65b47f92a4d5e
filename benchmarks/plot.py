"""Pictures of stored results: the sweep of `head`, and what a plain call costs at every size of `plain`."""

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
    plt = _pyplot()
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


def plot_plain(result: dict[str, Any], floor: str, names: list[str], path: Path) -> None:
    """A group of dots for each size, in times the floor of the same run, ours large; what did not run is absent."""
    plt = _pyplot()
    sizes = sorted(result["sizes"], key=lambda size: (size["rows"] * size["classes"], size["rows"]))
    figure, ax = plt.subplots(figsize=(13, 6.4), layout="constrained")
    known = [name for name in names if any(name in size["times"] for size in sizes)]
    for i, name in enumerate(known):
        ours = name.startswith("hypermargin")
        found = [
            (k + (i - (len(known) - 1) / 2) * 0.085, size["times"][name]["median"] / size["times"][floor]["median"])
            for k, size in enumerate(sizes)
            if name in size["times"]
        ]
        style: dict[str, Any] = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
        style |= {"s": 120 if ours else 60, "edgecolors": "k" if ours else "none", "linewidths": 0.9, "zorder": 3}
        ax.scatter(*zip(*found, strict=True), label=name, **style)
    ax.axhline(1, color="k", linestyle=":", linewidth=1)
    for edge in range(1, len(sizes)):
        ax.axvline(edge - 0.5, color="k", alpha=0.15, linewidth=0.8)
    bare = [1e3 * size["times"][floor]["median"] for size in sizes]
    labels = [f"{s['rows']:,} × {s['classes']:,}\n{ms:.3g} ms" for s, ms in zip(sizes, bare, strict=True)]
    ax.set(yscale="log", ylabel=f"times {floor}", xlim=(-0.5, len(sizes) - 0.5))
    ax.set_xticks(range(len(sizes)), labels)
    ax.set_xlabel(f"rows × classes, and what {floor} take, launched one by one")
    ticks = [t for t in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if ax.get_ylim()[0] <= t <= ax.get_ylim()[1]]
    ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()
    ax.grid(True, axis="y", which="major", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    device = result["environment"]["device"]
    figure.suptitle(f"What a plain call costs: one step of ArcFace, d = 512, bfloat16 by autocast, {device}")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("the picture needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
