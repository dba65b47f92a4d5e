"""What a user gets without thinking: a head as it comes, beside what else he might have written, at eight sizes.

One training step (loss, gradient by features, gradient by weight) of ArcFace s = 64, m = 0.5, d = 512, weight in
float32, bfloat16 by autocast; features and weight are given, so nothing of a network is in it. Every step is timed
from before its first operation to the end of the GPU's work, one contender after the other in each round. Beside it
the CPU's time alone: what a process needs to launch a step, which is not there for anything else.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import command
from benchmarks.contenders import CONTENDERS, SCALE, Contender, Loss, M, Problem, floor
from benchmarks.measure import interleaved, stepper
from benchmarks.plot import plot_plain
from benchmarks.record import Say, environment, in_words, store
from hypermargin import MarginHead, explain_backend
from hypermargin.margins import ArcFace

DIM = 512
SIZES = (
    (128, 1_000), (128, 10_000), (256, 100_000), (1024, 10_000),
    (1024, 100_000), (4096, 100_000), (1024, 1_000_000), (4096, 1_000_000),
)  # fmt: skip
FLOOR = "the three matrix products"
NOT_MEASURED = "not measured"
PEERS = (
    "textbook, eager",
    "torch.compile of the textbook",
    "pytorch-metric-learning",
    "Partial FC formula, all classes",
    "cut-cross-entropy (no margin)",
    "liger (no margin)",
    "liger, CuTe (no margin)",
)
CUTE = PEERS[-1]
WITHOUT_CUTE = (
    "Liger's kernels in CuTe DSL for Hopper, which are in the released liger-kernel 0.8.5, were not measured here: "
    "they need nvidia-cutlass-dsl, whose compiler is a wheel of 88 MB."
)


def _head(p: Problem) -> MarginHead:
    head = MarginHead(p.dim, p.classes, ArcFace(M), scale=SCALE, device=p.device)
    head.weight = torch.nn.Parameter(p.W.detach())
    p.W = head.weight
    return head


def _eager(p: Problem) -> Loss:
    head = _head(p)
    return lambda: head(p.x, p.y)


def _compiled(p: Problem) -> Loss:
    head = torch.compile(_head(p), dynamic=False)

    def loss() -> torch.Tensor:
        found: torch.Tensor = head(p.x, p.y)
        return found

    return loss


OURS = (
    Contender("hypermargin, eager", _eager),
    Contender("hypermargin, torch.compile", _compiled),
    Contender("hypermargin, as a CUDA graph", _eager, graph=True),
)


def at_size(rows: int, classes: int, rounds: int, say: Say) -> dict[str, Any]:
    """Seconds of every contender at one size; a word in their place where there are none."""
    by_name = {c.name: c for c in CONTENDERS}
    first = Problem(rows, classes, DIM, "cuda", "bfloat16")
    steps: dict[str, Callable[[], None]] = {FLOOR: floor(first)}
    problems, absent = [first], {}
    for contender in (*OURS, *(by_name[name] for name in PEERS)):
        absent[contender.name] = contender.absent("cuda")
        if absent[contender.name]:
            continue
        say(f"{rows:,} × {classes:,}: {contender.name}")
        p = Problem(rows, classes, DIM, "cuda", "bfloat16")
        try:
            steps[contender.name] = stepper(contender, p)
            steps[contender.name]()
            problems.append(p)
        except (torch.OutOfMemoryError, RuntimeError, ImportError) as error:
            steps.pop(contender.name, None)
            absent[contender.name] = str(error).splitlines()[0][:80]
        p.x.grad = p.W.grad = None
        torch.cuda.empty_cache()

    def drop_gradients() -> None:
        for p in problems:
            p.x.grad = p.W.grad = None

    times = interleaved(steps, rounds, "cuda", drop_gradients)
    found = {
        name: {"median": statistics.median(t), "min": min(t), "cpu": cpu_seconds(steps[name], drop_gradients)}
        for name, t in times.items()
        if t
    }
    with torch.autocast("cuda", torch.bfloat16):
        chosen = explain_backend(rows, classes, device="cuda")
    return {"rows": rows, "classes": classes, "rounds": rounds, "chosen": chosen, "times": found, "absent": absent}


def cpu_seconds(step: Callable[[], None], between: Callable[[], None], steps: int = 10) -> float:
    """What the threads of this process need to launch a step; waiting for the GPU, which spins, is left out."""
    spent = []
    for _ in range(steps):
        between()
        torch.cuda.synchronize()
        start = time.process_time()
        step()
        spent.append(time.process_time() - start)
    return statistics.median(spent)


def as_markdown(result: dict[str, Any]) -> str:
    """The table, in milliseconds and in times the fastest that is not ours."""
    sizes = result["sizes"]
    names = [FLOOR, *(c.name for c in OURS), *PEERS]
    header = [
        "| | " + " | ".join(f"{s['rows']:,} × {s['classes']:,}" for s in sizes) + " |",
        "|---|" + "---:|" * len(sizes),
    ]
    lines = [
        f"# What a plain call costs on {result['environment']['device']}",
        "",
        "Milliseconds per step, median; in brackets times the three bare bfloat16 products of the same run.",
        "",
        *header,
    ]
    for name in names:
        cells = []
        for size in sizes:
            seconds = size["times"].get(name)
            bare = size["times"][FLOOR]["median"]
            if seconds is None:
                cells.append(size["absent"].get(name, NOT_MEASURED) or "out of memory")
            else:
                ratio = "" if name == FLOOR else f" ({seconds['median'] / bare:.1f})"
                cells.append(f"{1e3 * seconds['median']:.3g}{ratio}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Milliseconds of the CPU for the same step: what it takes to launch it. With less work than that for "
        "the GPU a step is as slow as this.",
        "",
        *header,
    ]
    for name in names:
        spent = [size["times"].get(name, {}).get("cpu") for size in sizes]
        lines.append(f"| {name} | " + " | ".join("–" if s is None else f"{1e3 * s:.3g}" for s in spent) + " |")
    lines += [
        "",
        "Those marked so cannot do a margin and compute the plain normalised loss.",
        *([] if any(CUTE in size["times"] for size in sizes) else [WITHOUT_CUTE]),
        "What `auto` chose:",
        "",
    ]
    lines += [f"- {size['chosen']}" for size in sizes]
    return "\n".join([*lines, "", in_words(result["environment"]), ""])


def run(
    out: Path | None = None, say: Say = print, *, rounds: int = 20, sizes: Sequence[tuple[int, int]] = SIZES
) -> dict[str, Any]:
    """The whole table; written anew after every size, since it takes minutes."""
    if not torch.cuda.is_available():
        raise ValueError("this benchmark needs a CUDA device, and there is none.")
    result: dict[str, Any] = {"environment": environment("cuda"), "sizes": []}
    for rows, classes in sizes:
        few = rounds if classes < 1_000_000 else max(rounds // 4, 3)
        result["sizes"].append(at_size(rows, classes, few, say))
        store(result, as_markdown(result), "plain-cuda", out, say)
        gc.collect()
        torch.compiler.reset()
        torch.cuda.empty_cache()
    return result


def _size(text: str) -> tuple[int, int]:
    rows, _, classes = text.partition("x")
    if not (rows.isdigit() and classes.isdigit()):
        raise argparse.ArgumentTypeError(f"must be ROWSxCLASSES, such as 1024x100000; got {text!r}.")
    return int(rows), int(classes)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command.flags("plain", "What a user gets without thinking, on this GPU.", "", "--sizes 1024x100000")
    parser.add_argument("--rounds", type=command.at_least(1), default=20, help="interleaved rounds to time")
    parser.add_argument("--sizes", type=_size, nargs="+", default=SIZES, metavar="ROWSxCLASSES")
    parser.add_argument(
        "--draw",
        type=Path,
        metavar="JSON",
        help="measure nothing: draw a stored result beside it; needs matplotlib",
    )
    given = parser.parse_args(arguments)
    if given.draw:
        names = [*(c.name for c in OURS), *PEERS]
        plot_plain(json.loads(given.draw.read_text()), FLOOR, names, given.draw.with_suffix(".png"))
        return
    with command.plain_errors(parser):
        result = run(given.out, command.say, rounds=given.rounds, sizes=given.sizes)
    print(as_markdown(result))


if __name__ == "__main__":
    main()
