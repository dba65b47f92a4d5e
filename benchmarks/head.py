"""The head benchmark: one table of all contenders, the growth of ours with C, ψ itself, and a picture."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks import command
from benchmarks.contenders import CONTENDERS, Contender, M, Problem, floor, textbook
from benchmarks.measure import busy, interleaved, memory_in_a_fresh_process, peak_extra_bytes, stepper
from benchmarks.plot import plot_sweep
from benchmarks.record import Say, environment, in_words, store
from hypermargin.margins import ArcFace, SphereFace

ERROR_CLASSES = 20_000  # the float64 reference is dense, so its size has a limit


def table(p: Problem, rounds: int, say: Say, *, only: str = "", others: int = 0) -> list[dict[str, Any]]:
    """Every contender at one size: time, ratio to the floor, memory beyond inputs and weight, gradient error.

    Times are taken while so many other processes are busy.
    """
    chosen = [c for c in CONTENDERS if _is_asked_for(c.name, only)]
    rows: list[dict[str, Any]] = [{"name": c.name, "absent": c.absent(p.device)} for c in chosen]
    problems: dict[str, Problem] = {}
    steps: dict[str, Callable[[], None]] = {"floor: the three matrix products": floor(p)}
    for contender in chosen:
        if contender.absent(p.device):
            continue
        say(f"preparing {contender.name}")
        try:
            # One weight for all, as a million classes take 2 GB; a graph's gradients are its own.
            own = Problem(p.rows, p.classes, p.dim, p.device, p.precision) if contender.graph else copy.copy(p)
            steps[contender.name] = stepper(contender, own)
            problems[contender.name] = own
        except ImportError as error:
            rows[chosen.index(contender)]["absent"] = f"cannot be imported: {error}"
        except torch.OutOfMemoryError:
            rows[chosen.index(contender)]["absent"] = "out of memory"
    say(f"timing {len(steps)} contenders, {rounds} interleaved rounds")

    def drop_gradients() -> None:
        for problem in problems.values():
            problem.x.grad = problem.W.grad = None

    with busy(others):
        times = interleaved(steps, rounds, p.device, drop_gradients)
    drop_gradients()
    bare = min(times["floor: the three matrix products"])
    rows.insert(0, {"name": "floor: the three matrix products", "absent": ""})
    for row in rows:
        seconds = times.get(str(row["name"]))
        if seconds == []:
            row["absent"] = "out of memory"
        elif seconds:
            row |= {"median": statistics.median(seconds), "min": min(seconds), "to_floor": min(seconds) / bare}
    for contender, row in zip(chosen, rows[1:], strict=True):
        if row["absent"]:
            continue
        say(f"memory and exactness of {contender.name}")
        try:
            if p.device == "cuda":
                row["memory"] = peak_extra_bytes(steps[contender.name], problems[contender.name])
            else:
                row["memory"] = memory_in_a_fresh_process(contender.name, p)
        except RuntimeError as error:
            say(str(error))
            row["memory"] = None
        del steps[contender.name], problems[contender.name]  # a graph keeps gigabytes
        row["error"] = gradient_error(contender, p) if "Partial" not in contender.name else None
    return rows


def _is_asked_for(name: str, only: str) -> bool:
    """Whether the name contains one of the parts between commas; without any, every name is."""
    parts = [part.strip() for part in only.split(",") if part.strip()]
    return not parts or any(part in name for part in parts)


def gradient_error(contender: Contender, p: Problem) -> float | None:
    """The larger of the relative errors of dX and dW against float64; None where the loss is another by design."""
    if "free norms" in contender.name:
        return None
    small = Problem(p.rows, min(p.classes, ERROR_CLASSES), p.dim, p.device, p.precision)
    x, W = (t.detach().double().requires_grad_() for t in (small.x, small.W))
    if contender.margin:
        loss = textbook(x, W, small.y)
    else:
        loss = F.cross_entropy(64.0 * F.linear(F.normalize(x), F.normalize(W)), small.y)
    right = torch.autograd.grad(loss, (x, W))
    step = stepper(contender, small)
    step()
    by_x, by_W = small.x.grad, small.W.grad
    if by_x is None or by_W is None:
        return None
    by_W = by_W.T if by_W.shape != right[1].shape else by_W  # pytorch-metric-learning's is transposed
    return max(float((a - b).norm() / b.norm()) for a, b in zip((by_x, by_W), right, strict=True))


def growth(p: Problem, sizes: list[int], rounds: int, say: Say) -> list[dict[str, Any]]:
    """Seconds per class of ours as C grows: flat, if nothing hides in it."""
    rows = []
    ours = next(c for c in CONTENDERS if c.name.startswith("hypermargin") and not c.absent(p.device))
    for classes in sizes:
        say(f"growth: {classes:,} classes")
        at = Problem(p.rows, classes, p.dim, p.device, p.precision)
        times = interleaved({"ours": stepper(ours, at), "floor": floor(at)}, rounds, p.device)
        best, bare = min(times["ours"]), min(times["floor"])
        rows.append({"classes": classes, "min": best, "per_class": best / classes, "to_floor": best / bare})
    return rows


def psi_forms(rows: int, step_seconds: float, device: str) -> list[dict[str, Any]]:
    """ψ itself, forward and backward on N numbers, as a share of the step: is an arc cosine too expensive?"""
    theta = torch.linspace(0.3, 2.5, rows, device=device)
    cosine = theta.cos()
    forms: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "angle given: g(θ + m)": lambda t: ArcFace(M).psi(t),
        "acos: cos(acos c + m)": lambda c: (c.acos() + M).cos(),
        "square root: c·cos m − √(1−c²)·sin m": lambda c: c * math.cos(M) - (1 - c * c).sqrt() * math.sin(M),
        "polynomial: SphereFace m = 4": lambda c: SphereFace(4.0).psi_of_cosine(c),
    }

    def step_of(name: str) -> Callable[[], None]:
        leaf = (theta if name.startswith("angle") else cosine).clone().requires_grad_()

        def step() -> None:
            leaf.grad = None
            forms[name](leaf).sum().backward()  # type: ignore[no-untyped-call]

        return step

    steps = {name: step_of(name) for name in forms}
    times = interleaved(steps, 50, device)
    return [
        {"form": n, "median": statistics.median(t), "share": statistics.median(t) / step_seconds}
        for n, t in times.items()
    ]


def as_markdown(result: dict[str, Any]) -> str:
    """The tables, for people."""
    p, env = result["problem"], result["environment"]
    lines = [
        f"# Head: N = {p['rows']}, C = {p['classes']:,}, d = {p['dim']}, {p['precision']}, {env['device']}",
        "",
        in_words(env),
        (f"{p['others']} other processes are busy without a pause. " if p.get("others") else "")
        + "Forward and both gradients. Times are of interleaved rounds, ratios of their minima. Memory is the peak "
        "beyond inputs and weight, dW included"
        + (" (a fresh process a row)" if p["device"] == "cpu" else "")
        + f". Error: relative, against float64, at {min(p['classes'], ERROR_CLASSES):,} classes.",
        "",
        "| | median ms | min ms | × floor | peak MB | beyond dW MB | gradient error |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    weight = p["classes"] * p["dim"] * 4
    for row in result["table"]:
        if row["absent"]:
            lines.append(f"| {row['name']} | {row['absent']} | | | | | |")
            continue
        memory = row.get("memory")
        cells = [f"{1e3 * row['median']:.4g}", f"{1e3 * row['min']:.4g}", f"{row['to_floor']:.2f}"]
        cells += ["", ""] if memory is None else [f"{memory / 2**20:,.0f}", f"{(memory - weight) / 2**20:,.0f}"]
        cells.append("" if row.get("error") is None else f"{row['error']:.1e}")
        lines.append(f"| {row['name']} | " + " | ".join(cells) + " |")
    if result.get("growth"):
        lines += ["", "Growth of ours:", "", "| classes | min ms | ns a class | × floor |", "|---:|---:|---:|---:|"]
        lines += [
            f"| {r['classes']:,} | {1e3 * r['min']:.4g} | {1e9 * r['per_class']:.4g} | {r['to_floor']:.2f} |"
            for r in result["growth"]
        ]
    if result.get("psi"):
        lines += [
            "",
            "ψ on N numbers, forward and backward:",
            "",
            "| form | median µs | share of the step |",
            "|---|---:|---:|",
        ]
        lines += [f"| {r['form']} | {1e6 * r['median']:.0f} | {r['share']:.2%} |" for r in result["psi"]]
    return "\n".join(lines) + "\n"


def run(
    rows: int,
    classes: int,
    dim: int,
    *,
    device: str = "cpu",
    precision: str = "float32",
    rounds: int = 5,
    only: str = "",
    growth_to: int = 0,
    sweep_to: int = 0,
    others: int = 0,
    out: Path | None = None,
    say: Say = print,
) -> dict[str, Any]:
    """The whole benchmark; writes head-….json, .md and, with a sweep, .png into `out`."""
    p = Problem(rows, classes, dim, device, precision)
    result: dict[str, Any] = {
        "problem": {
            "rows": rows,
            "classes": classes,
            "dim": dim,
            "device": device,
            "precision": precision,
            "others": others,
        },
        "environment": environment(device),
        "table": table(p, rounds, say, only=only, others=others),
    }
    ours = [r["median"] for r in result["table"] if r["name"].startswith("hypermargin") and "median" in r]
    if ours:
        result["psi"] = psi_forms(rows, ours[0], device)
    if growth_to:
        sizes = [c for c in (10_000, 20_000, 50_000, 100_000, 200_000, 400_000, 1_000_000) if c <= growth_to]
        result["growth"] = growth(p, sizes, rounds, say)
    if sweep_to:
        result["sweep"] = sweep(p, sweep_to, say)
    stem = f"head-{device}-{precision}-n{rows}-c{classes}-d{dim}" + (f"-busy{others}" if others else "")
    store(result, as_markdown(result), stem, out, say)
    if sweep_to and out is not None:
        plot_sweep(result, out / f"{stem}.png")
    return result


def sweep(p: Problem, most: int, say: Say) -> list[dict[str, Any]]:
    """Time and memory of all against C; a contender that fails (out of memory) leaves the race."""
    sizes = [c for c in (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000) if c <= most]
    out = []
    alive = {c.name for c in CONTENDERS if not c.absent(p.device)}
    for classes in sizes:
        torch.compiler.reset()  # or the compiler gives up on a function after some sizes
        at = Problem(p.rows, classes, p.dim, p.device, p.precision)
        for name in sorted(alive):
            say(f"sweep: {classes:,} classes, {name}")
            try:
                step = stepper(next(c for c in CONTENDERS if c.name == name), at)
                seconds = min(interleaved({name: step}, 2, p.device)[name])
                memory = peak_extra_bytes(step, at) if p.device == "cuda" else memory_in_a_fresh_process(name, at)
            except RuntimeError as error:  # torch.OutOfMemoryError is one
                say(f"{name} stops at {classes:,} classes: {str(error).splitlines()[0]}")
                alive.discard(name)
                continue
            out.append({"name": name, "classes": classes, "min": seconds, "memory": memory})
            at = Problem(p.rows, classes, p.dim, p.device, p.precision)
    return out


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command.flags(
        "head",
        "One training step of the head, ours beside the peers and the floor of the three matrix products.",
        "--rows 256 --classes 20000",
        "--classes 100000 --growth-to 400000 --sweep-to 100000 --out results",
        "--device cuda --precision bfloat16 --rows 1024 --classes 1000000",
        '--only "chunked,textbook"',
        "--busy 1 --only chunked,pytorch-metric-learning",
    )
    several = command.at_least(1)
    parser.add_argument("--rows", type=several, default=256, help="rows of the batch, N")
    parser.add_argument("--classes", type=command.at_least(2), default=100_000, help="classes, C")
    parser.add_argument("--dim", type=several, default=512, help="dimension of the features, d")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="the others by autocast",
    )
    parser.add_argument("--rounds", type=several, default=5, help="interleaved rounds to time")
    parser.add_argument("--only", default="", help="only contenders whose name contains this; several: a,b,c")
    parser.add_argument(
        "--busy",
        dest="others",
        type=command.at_least(0),
        default=0,
        help="other processes that use a core meanwhile",
    )
    parser.add_argument("--growth-to", type=int, default=0, help="also our cost per class up to so many classes")
    parser.add_argument("--sweep-to", type=int, default=0, help="also all against C up to so many, with a picture")
    given = vars(parser.parse_args(arguments))
    with command.plain_errors(parser):
        result = run(**given, say=command.say)
    print(as_markdown(result))


if __name__ == "__main__":
    main()
