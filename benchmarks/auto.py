"""Which of our backends is the fastest at which size on this GPU: where the thresholds of "auto" come from.

One eager step (loss, gradient by features, gradient by weight) of ArcFace s = 64, m = 0.5, d = 512, weight in
float32, timed from before its first operation to the end of the GPU's work; the median of a few.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import command
from benchmarks.contenders import SCALE, M, Problem
from benchmarks.record import Say, environment, in_words, store
from hypermargin import explain_backend, margin_softmax
from hypermargin.backends import Backend, Chunked, Dense, Triton
from hypermargin.margins import ArcFace

DIM = 512
ROWS = (1, 64, 256, 1024, 8192)
CLASSES = (16, 1024, 10_000, 100_000, 1_000_000, 10_000_000)
PRECISIONS = ("bfloat16", "float16", "float32")
MOST_HELD, MOST = 2 * 10**9, 8.2 * 10**9  # logits, of dense and of all


def at_size(precision: str, rows: int, classes: int, repeats: int) -> dict[str, Any]:
    """Seconds of each backend, None where memory is too small, and what auto takes."""
    found: dict[str, Any] = {"precision": precision, "rows": rows, "classes": classes}
    p = Problem(rows, classes, DIM, "cuda", precision)
    backends: dict[str, Backend] = {"dense": Dense(), "chunked": Chunked(), "triton": Triton()}
    for name, backend in backends.items():
        if name == "dense" and rows * classes > MOST_HELD:
            found[name] = None
            continue
        try:
            found[name] = _median(_step(p, backend), repeats)
        except torch.OutOfMemoryError:
            found[name] = None
            torch.cuda.empty_cache()
    with p.autocast():
        found["auto"] = explain_backend(rows, classes, device="cuda").partition(":")[0]
    return found


def _step(p: Problem, backend: Backend) -> Callable[[], None]:
    def step() -> None:
        p.x.grad = p.W.grad = None
        with p.autocast():
            loss = margin_softmax(p.x, p.W, p.y, ArcFace(M), scale=SCALE, backend=backend, check=False)
        loss.backward()  # type: ignore[no-untyped-call]

    return step


def _median(step: Callable[[], None], repeats: int) -> float:
    times = []
    for _ in range(repeats + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def as_markdown(result: dict[str, Any]) -> str:
    """One table per precision."""
    lines = [f"# Which backend is the fastest on {result['environment']['device']}", ""]
    lines += ["Milliseconds per eager step; – where it was not run or does not fit into memory."]
    for precision in dict.fromkeys(row["precision"] for row in result["table"]):
        lines += [
            "",
            f"## {precision}",
            "",
            "| rows | classes | dense | chunked | triton | auto takes | behind the best |",
        ]
        lines += ["|---:|---:|---:|---:|---:|---|---:|"]
        for row in sorted((r for r in result["table"] if r["precision"] == precision), key=_place):
            times = {name: row[name] for name in ("dense", "chunked", "triton") if row.get(name)}
            cells = [f"{1e3 * times[n]:.3g}" if n in times else "–" for n in ("dense", "chunked", "triton")]
            behind = f"{times[row['auto']] / min(times.values()) - 1:.0%}" if row["auto"] in times else "–"
            lines.append(
                f"| {row['rows']:,} | {row['classes']:,} | {' | '.join(cells)} | {row['auto']} | {behind} |"
            )
    lines += [
        "",
        "Without autocast `auto` holds no more than 2²⁷ logits, though dense would be faster: it takes some",
    ]
    lines += ["twenty bytes for each.", "", in_words(result["environment"]), ""]
    return "\n".join(lines)


def _place(row: dict[str, Any]) -> tuple[int, int]:
    return row["rows"], row["classes"]


def plot(result: dict[str, Any], path: Path) -> None:
    """A map of rows and classes for each precision: how far behind the best each backend is, and auto's choice."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from benchmarks.plot import COLOURS

    kinds = list(dict.fromkeys(row["precision"] for row in result["table"]))
    figure, axes = plt.subplots(1, len(kinds), figsize=(5.2 * len(kinds), 4.6), layout="constrained", squeeze=False)
    names = ("dense", "chunked", "triton")
    for ax, kind in zip(axes[0], kinds, strict=True):
        for row in (r for r in result["table"] if r["precision"] == kind):
            times = {name: row[name] for name in names if row.get(name)}
            best = min(times.values())
            for k, name in enumerate(names):
                if name in times:
                    at = (row["classes"] * 1.35 ** (k - 1), row["rows"])
                    ax.scatter(*at, s=110 * best / times[name], color=COLOURS[k], linewidths=0)
                    if name == row["auto"]:
                        ax.scatter(*at, s=190, facecolors="none", edgecolors="k", linewidths=1)
        ax.set(xscale="log", yscale="log", title=kind, xlabel="classes", ylabel="rows")
        ax.margins(0.12)
    for k, name in enumerate(names):
        axes[0][0].scatter([], [], s=110, color=COLOURS[k], label=name)
    axes[0][0].scatter([], [], s=190, facecolors="none", edgecolors="k", label="auto takes it")
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"The larger the disc, the nearer to the fastest: {result['environment']['device']}, d = {DIM}")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def run(out: Path | None = None, say: Say = print, *, repeats: int = 15) -> dict[str, Any]:
    """The whole table; written anew after every size."""
    if not torch.cuda.is_available():
        raise ValueError("this benchmark needs a CUDA device, and there is none.")
    result: dict[str, Any] = {"environment": environment("cuda"), "table": []}
    for precision in PRECISIONS:
        for classes in CLASSES:
            for rows in (n for n in ROWS if n * classes <= MOST):
                few = repeats if rows * classes < 2 * 10**8 else max(repeats // 4, 1)
                result["table"].append(at_size(precision, rows, classes, few))
                say(str(result["table"][-1]))
                gc.collect()
        store(result, as_markdown(result), "auto-cuda", out, say)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command.flags("auto", "Which backend is the fastest at which size on this GPU.", "", "--repeats 30")
    parser.add_argument("--repeats", type=command.at_least(1), default=15, help="steps to time at each size")
    parser.add_argument("--plot", type=Path, help="write a picture there too; needs matplotlib")
    given = parser.parse_args(arguments)
    with command.plain_errors(parser):
        result = run(given.out, command.say, repeats=given.repeats)
    if given.plot:
        plot(result, given.plot)
    print(as_markdown(result))


if __name__ == "__main__":
    main()
