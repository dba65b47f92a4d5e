"""What the losses after ArcFace cost beside ArcFace: eager steps, a GPU's share of them, memory, errors.

One step is loss, gradient by features and gradient by weight, d = 512, weight in float32, bfloat16 by autocast, the
backend that "auto" chooses. Features lie some 50° from their class, as in training. Steps are timed in turns with
ArcFace's, so that both see the same clock. The GPU's share is a replay of the step as a CUDA graph. Errors are
those of dX and dW in a first step against the chunked backend in float32. On a CPU it only shows that it runs.
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
THREE = "arcface, three centers (sum)"
# Every head whose rivals count by a rule, but P2SGrad, which does no N×C work, and a second name of SphereFace-R.
RULED = [n for n, r in FAMILY.items() if not r.rule.is_softmax and n not in ("p2sgrad", "sphereface-r-v2")]
# One of each kind first, for a run whose time ends before all are measured.
EARLY = ["curricularface", "sphereface2", THREE, "uniface", "li-arcface", "circle", "inter-topk"]
HEADS: dict[str, dict[str, Any]] = {n: {} for n in (FIRST, *EARLY, *RULED, "sphereface2, A", "adaface")} | {
    THREE: {"centers": 3},
    "sphereface2, A": {"variant": "A"},
}
# What a step may cost, in ArcFace's.
BOUNDS = {"rules": 1.1, "one question per class": 1.25, "three centers": 3.2}


class Bench:
    """A head with its batch, whose steps are timed."""

    def __init__(self, name: str, rows: int, classes: int, precision: str, device: str) -> None:
        self.device, self.dtype = device, getattr(torch, precision)
        self.words: dict[str, Any] = HEADS[name] | {"device": device, "check": False}
        self.name, self.classes = name.partition(",")[0], classes
        self.head = self.make()
        rng = torch.Generator(device).manual_seed(0)
        self.y = torch.randint(0, classes, (rows,), device=device, generator=rng)
        with torch.no_grad():
            own = F.normalize(self.head.weight[self.y * self.head.settings.centers.count])
            noise = F.normalize(torch.randn(rows, DIM, device=device, generator=rng))
            self.x = 20 * (own + 1.2 * noise)  # nearer, SFace would leave them alone

    def make(self, **more: Any) -> MarginHead:
        """A head like this one."""
        return create_head(self.name, DIM, self.classes, **(self.words | more))

    def step(self, head: MarginHead | None = None) -> tuple[Tensor, Tensor]:
        """Loss and gradients; dX and dW."""
        head = self.head if head is None else head
        leaf, head.weight.grad = self.x.detach().requires_grad_(), None
        with torch.autocast(self.device, self.dtype):
            loss = head(leaf, self.y)
        loss.backward()
        assert leaf.grad is not None
        assert head.weight.grad is not None
        return leaf.grad, head.weight.grad

    def backend(self) -> str:
        """The backend that "auto" chooses."""
        settings = self.head.settings
        with torch.autocast(self.device, self.dtype):
            rows, weight = len(self.y), self.head.weight
            call = Call(rows, len(weight), weight.device, dim=DIM, rule=settings.rule, centers=settings.centers)
            return type(fitted("auto", call)).__name__.lower()

    def errors(self) -> list[float]:
        """Relative errors of dX and dW in a first step."""
        exact = self.make(backend=Chunked(operands="float32"))
        exact.weight = self.head.weight
        right = self.step(exact)
        return [float((a - b).norm() / b.norm()) for a, b in zip(self.step(), right, strict=True)]

    def bytes(self) -> int:
        """Peak memory of a step beyond the weight and its gradient."""
        self.head.weight.grad = None
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.step()
        return int(torch.cuda.max_memory_allocated() - before - self.head.weight.numel() * 4)

    def captured(self) -> Callable[[], object]:
        """The step as a CUDA graph."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay


def of_head(bench: Bench, first: Bench, repeats: int, errors: bool) -> dict[str, Any]:
    """Seconds of a step and of ArcFace's beside it, eager and as a graph, bytes, and errors."""
    found: dict[str, Any] = {"backend": bench.backend()}
    if errors:
        found["errors"] = bench.errors()
    found["eager"], found["arcface eager"] = in_turns(bench.step, first.step, repeats, bench.device)
    if bench.device == "cuda":
        found["bytes"] = bench.bytes()
        graph = bench.captured()
        found["graph"], found["arcface graph"] = in_turns(graph, first.captured(), repeats, bench.device)
    return found


def in_turns(
    one: Callable[[], object], other: Callable[[], object], repeats: int, device: str
) -> tuple[float, float]:
    """Median seconds of both, timed in turns."""
    times: list[list[float]] = [[], []]
    for _ in range(repeats + 2):
        for step, seconds in zip((one, other), times, strict=True):
            start = _now(device)
            step()
            seconds.append(_now(device) - start)
    return statistics.median(times[0][2:]), statistics.median(times[1][2:])


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def as_markdown(result: dict[str, Any]) -> str:
    """The worst of each kind beside its bound, and one row per head."""
    table, memory = result["table"], result["table"].get(FIRST, {}).get("bytes")
    lines = [
        f"# What the losses after ArcFace cost on {result['environment']['device']}",
        "",
        f"{result['rows']:,} rows × {result['classes']:,} classes, d = {DIM}, {result['precision']} by autocast: "
        "milliseconds per step, median, and in brackets times ArcFace's, in turns with it. Memory is beyond weight "
        "and gradient. Errors of dX and dW are relative, against float32.",
        "",
        *summary(table),
        "",
        "| head | backend | eager | as a CUDA graph | GiB | dX | dW |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name, seen in table.items():
        if "failed" in seen:
            lines.append(f"| {name} | {seen['failed']} | | | | | |")
            continue
        times = [
            f"{1e3 * seen[k]:.2f} ({seen[k] / seen[f'arcface {k}']:.2f})" if k in seen else ""
            for k in ("eager", "graph")
        ]
        size = f"{seen['bytes'] / 2**30:.2f}" if "bytes" in seen else ""
        size += f" ({seen['bytes'] / memory:.2f})" if size and memory else ""
        errors = [f"{e:.1e}" for e in seen["errors"]] if "errors" in seen else ["", ""]
        lines.append(f"| {' | '.join([name, seen['backend'], *times, size, *errors])} |")
    if left := result.get("left out"):
        lines += ["", f"Not measured, because the time was up: {', '.join(left)}."]
    return "\n".join([*lines, "", in_words(result["environment"]), ""])


def kind(name: str) -> str:
    """What bounds the cost of a head: a key of BOUNDS, or nothing."""
    recipe = FAMILY[name.partition(",")[0]]
    if name == THREE:
        return "three centers"
    if recipe.rule.is_softmax:
        return ""
    return "rules" if recipe.rule.aggregate.needs_shift else "one question per class"


def summary(table: dict[str, Any]) -> list[str]:
    """The costliest head of each kind, in ArcFace's steps."""
    lines = ["| kind | may cost | eager | as a CUDA graph |", "|---|---:|---|---|"]
    for name, bound in BOUNDS.items():
        cells = []
        for way in ("eager", "graph"):
            ratios = {n: s[way] / s[f"arcface {way}"] for n, s in table.items() if kind(n) == name and way in s}
            worst = max(ratios, key=lambda n: ratios[n], default=None)
            cells.append("" if worst is None else f"{ratios[worst]:.2f} ({worst})")
        lines.append(f"| {name} | {bound:g} | {' | '.join(cells)} |")
    return lines


def run(
    rows: int = 1024, classes: int = 10**6, *, names: Sequence[str] = (), precision: str = "bfloat16",
    repeats: int = 10, errors: bool = True, seconds: float = 200.0, device: str = "cuda", out: Path | None = None,
    say: Say = print,
) -> dict[str, Any]:  # fmt: skip
    """The whole table; writes rules-DEVICE.json and .md into `out`, anew after each head.

    No head is begun after `seconds`; those left out are named.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("this benchmark needs a CUDA device, and there is none. --device cpu shows that it runs.")
    unknown = [name for name in names if name not in HEADS]
    if unknown:
        raise ValueError(f"--heads must be among {', '.join(HEADS)}; got {', '.join(unknown)}.")
    sizes = {"rows": rows, "classes": classes, "precision": precision}
    result: dict[str, Any] = {"environment": environment(device), **sizes, "table": {}}
    begun, first = time.perf_counter(), Bench(FIRST, rows, classes, precision, device)
    for name in names or HEADS:
        if time.perf_counter() - begun > seconds:
            result.setdefault("left out", []).append(name)
            continue
        try:
            bench = first if name == FIRST else Bench(name, rows, classes, precision, device)
            result["table"][name] = of_head(bench, first, repeats, errors)
        except (torch.OutOfMemoryError, RuntimeError) as error:  # a step that cannot be captured, among others
            reason = "out of memory" if isinstance(error, torch.OutOfMemoryError) else str(error).splitlines()[0]
            result["table"][name] = {"failed": reason}
        say(f"{time.perf_counter() - begun:.0f} s, {name}: {result['table'][name]}")
        bench = first
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
        store(result, as_markdown(result), f"rules-{device}", out, lambda _: None)
    store(result, as_markdown(result), f"rules-{device}", out, lambda _: None)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command.flags(
        "rules",
        "What the losses after ArcFace cost on a GPU.",
        "",
        "--classes 100000",
        "--device cpu --rows 16 --classes 300 --repeats 1",
    )
    parser.add_argument("--rows", type=command.at_least(1), default=1024, help="features per step")
    parser.add_argument("--classes", type=command.at_least(2), default=10**6, help="classes")
    parser.add_argument("--heads", dest="names", nargs="+", default=(), help="these alone; ArcFace is the measure")
    parser.add_argument("--precision", choices=("bfloat16", "float16"), default="bfloat16", help="autocast's dtype")
    parser.add_argument("--repeats", type=command.at_least(1), default=10, help="steps to time")
    parser.add_argument("--seconds", type=float, default=200.0, help="begin no head after so many")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu only shows that it runs")
    parser.add_argument(
        "--no-errors", dest="errors", action="store_false", help="leave out the comparison with float32"
    )
    given = vars(parser.parse_args(arguments))
    with command.plain_errors(parser):
        result = run(**given, say=command.say)
    print(as_markdown(result))


if __name__ == "__main__":
    main()
