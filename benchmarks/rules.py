"""What the losses after ArcFace cost on a GPU beside ArcFace: eager steps, the GPU's share of them, memory, errors.

One step is loss, gradient by features and gradient by weight, d = 512, weight in float32, bfloat16 by autocast, the
backend that "auto" chooses. Features lie near their class, as in training. The GPU's share is a replay of the step
as a CUDA graph. Errors are those of dX and dW in a first step against the chunked backend in float32.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import command
from benchmarks.record import Say, environment, in_words, store
from hypermargin import MarginHead, create_head
from hypermargin.backends import Call, Chunked
from hypermargin.backends.base import fitted
from hypermargin.recipes import FAMILY

DIM = 512
FIRST = "arcface"
HEADS: dict[str, dict[str, Any]] = {
    FIRST: {},
    "adaface": {},
    # P2SGrad does no N×C work, and of SphereFace-R's versions only the last has a rule.
    **{name: {} for name, recipe in FAMILY.items() if not recipe.rule.is_softmax and name != "p2sgrad"},
    "sphereface2, A": {"variant": "A"},
    "arcface, three centers (sum)": {"centers": 3},
}
HEADS.pop("sphereface-r-v2", None)


def of_head(name: str, rows: int, classes: int, repeats: int, precision: str, errors: bool) -> dict[str, Any]:
    """Seconds of a step, eager and as a graph, bytes beyond weight and gradients, and errors."""

    def make(**more: Any) -> MarginHead:
        words: dict[str, Any] = HEADS[name] | {"device": "cuda", "check": False} | more
        return create_head(name.partition(",")[0], DIM, classes, **words)

    head = make()
    rng = torch.Generator("cuda").manual_seed(0)
    y = torch.randint(0, classes, (rows,), device="cuda", generator=rng)
    with torch.no_grad():
        own = F.normalize(head.weight[y * head.settings.centers.count])
        noise = F.normalize(torch.randn(rows, DIM, device="cuda", generator=rng))
        x = 20 * (2 * own + noise)

    def step(head: MarginHead = head) -> tuple[Tensor, Tensor]:
        leaf, head.weight.grad = x.detach().requires_grad_(), None
        with torch.autocast("cuda", getattr(torch, precision)):
            loss = head(leaf, y)
        loss.backward()
        assert leaf.grad is not None
        assert head.weight.grad is not None
        return leaf.grad, head.weight.grad

    with torch.autocast("cuda", getattr(torch, precision)):
        call = Call(rows, len(head.weight), head.weight.device, dim=DIM, rule=head.settings.rule)
        found: dict[str, Any] = {"backend": type(fitted("auto", call)).__name__.lower()}
    if errors:
        exact = make(backend=Chunked(operands="float32"))
        exact.weight = head.weight
        right = step(exact)
        ours = step(head)
        found["errors"] = [float((a - b).norm() / b.norm()) for a, b in zip(ours, right, strict=True)]
        del exact, right, ours
    found["eager"] = _median(step, repeats)
    head.weight.grad = None
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    found["bytes"] = torch.cuda.max_memory_allocated() - before - head.weight.numel() * 4
    found["graph"] = _median(_captured(step), repeats)
    return found


def _captured(step: Callable[[], object]) -> Callable[[], object]:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _median(step: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def as_markdown(result: dict[str, Any]) -> str:
    """One row per head; times beside ArcFace's of the same run."""
    table, first = result["table"], result["table"].get(FIRST)
    lines = [
        f"# What the losses after ArcFace cost on {result['environment']['device']}",
        "",
        f"{result['rows']:,} rows × {result['classes']:,} classes, d = {DIM}, {result['precision']} by autocast: "
        "milliseconds per step, median, and in brackets times ArcFace's. Memory is beyond weight and gradient. "
        "Errors of dX and dW are relative, against float32.",
        "",
        "| head | backend | eager | as a CUDA graph | GiB | dX | dW |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name, seen in table.items():
        if "failed" in seen:
            lines.append(f"| {name} | {seen['failed']} | | | | | |")
            continue
        times = [
            f"{1e3 * seen[k]:.2f}" + (f" ({seen[k] / first[k]:.2f})" if first else "") for k in ("eager", "graph")
        ]
        errors = [f"{e:.1e}" for e in seen["errors"]] if "errors" in seen else ["", ""]
        cells = [name, seen["backend"], *times, f"{seen['bytes'] / 2**30:.2f}", *errors]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", in_words(result["environment"]), ""])


def run(
    rows: int = 1024, classes: int = 10**6, *, names: Sequence[str] = (), precision: str = "bfloat16",
    repeats: int = 10, errors: bool = True, out: Path | None = None, say: Say = print,
) -> dict[str, Any]:  # fmt: skip
    """The whole table; writes rules-cuda.json and .md into `out`, anew after each head."""
    if not torch.cuda.is_available():
        raise ValueError("this benchmark needs a CUDA device, and there is none.")
    unknown = [name for name in names if name not in HEADS]
    if unknown:
        raise ValueError(f"--heads must be among {', '.join(HEADS)}; got {', '.join(unknown)}.")
    sizes = {"rows": rows, "classes": classes, "precision": precision}
    result: dict[str, Any] = {"environment": environment("cuda"), **sizes, "table": {}}
    for name in names or HEADS:
        try:
            result["table"][name] = of_head(name, rows, classes, repeats, precision, errors)
        except (torch.OutOfMemoryError, RuntimeError) as error:  # a step that cannot be captured, among others
            reason = "out of memory" if isinstance(error, torch.OutOfMemoryError) else str(error).splitlines()[0]
            result["table"][name] = {"failed": reason}
        say(f"{name}: {result['table'][name]}")
        gc.collect()
        torch.cuda.empty_cache()
        store(result, as_markdown(result), "rules-cuda", out, lambda _: None)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command.flags("rules", "What the losses after ArcFace cost on a GPU.", "", "--classes 100000")
    parser.add_argument("--rows", type=command.at_least(1), default=1024, help="features per step")
    parser.add_argument("--classes", type=command.at_least(2), default=10**6, help="classes")
    parser.add_argument("--heads", dest="names", nargs="+", default=(), help="these alone; ArcFace is the measure")
    parser.add_argument("--precision", choices=("bfloat16", "float16"), default="bfloat16", help="autocast's dtype")
    parser.add_argument("--repeats", type=command.at_least(1), default=10, help="steps to time")
    parser.add_argument(
        "--no-errors", dest="errors", action="store_false", help="leave out the comparison with float32"
    )
    given = vars(parser.parse_args(arguments))
    with command.plain_errors(parser):
        result = run(**given, say=command.say)
    print(as_markdown(result))


if __name__ == "__main__":
    main()
