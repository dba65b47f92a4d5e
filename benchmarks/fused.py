"""The fused backend on a GPU beside what the GPU can do: routes, kernels, growth, 29 million classes, precision.

ArcFace s = 64, m = 0.5, weight in float32, bfloat16 by autocast. Two routes: "one pass" keeps exp z of all classes
from the forward to the backward, "recompute" computes it again and stays within 480 MB.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks import command
from benchmarks.contenders import SCALE, Contender, M, Problem, floor, fused, textbook
from benchmarks.fused_tables import DIM, PROFILED, as_markdown
from benchmarks.measure import interleaved, peak_extra_bytes, stepper
from benchmarks.record import Say, environment, store
from hypermargin import FusedSGD, MarginHead, margin_softmax
from hypermargin.backends.fused import Triton, plan, why_not
from hypermargin.margins import ArcFace

ROUTES = {"one pass": Triton(memory=16384), "recompute": Triton(memory=480)}
SIZES = ((1024, 100_000), (1024, 1_000_000), (4096, 1_000_000))
GROWTH = (1_000_000, 2_000_000, 5_000_000, 10_000_000)
FLOOR = "floor: the three matrix products"
PIECE = 250_000  # classes at a time in float64
RATE, MOMENTUM, DECAY = 0.1, 0.9, 5e-4
TINY_LOSS = (3e-9, 3e-8)


def ceilings(copied: int = 8_000_000_000, side: int = 8192) -> dict[str, Any]:
    """At best on this GPU: bytes per second, read and written, of a copy; operations of a bfloat16 product."""
    source = torch.zeros(copied, dtype=torch.uint8, device="cuda")
    moved = 2 * copied / _median(partial(torch.empty_like(source).copy_, source))
    a, b, c = (torch.randn(side, side, device="cuda").bfloat16() for _ in range(3))
    done = 2 * side**3 / _median(lambda: torch.mm(a, b, out=c))
    return {"copied": copied, "side": side, "bytes_per_s": moved, "flops_per_s": done}


def _median(run: Callable[[], object], rounds: int = 10) -> float:
    """Seconds by the GPU's clock."""
    for _ in range(3):
        run()
    found: list[float] = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        run()
        end.record()
        end.synchronize()
        found.append(1e-3 * begin.elapsed_time(end))
    return statistics.median(found)


def routes(rows: int, classes: int, rounds: int) -> dict[str, Any]:
    """Both routes, eager and as a CUDA graph, beside the floor: time, and memory beyond W and dW."""
    p = _problem(rows, classes)
    steps: dict[str, Callable[[], None]] = {FLOOR: floor(p)}
    for name, settings in ROUTES.items():
        steps[name] = stepper(Contender(name, fused(settings)), p)
        own = _problem(rows, classes)  # its gradients belong to the graph
        steps[f"{name}, as a CUDA graph"] = stepper(Contender(name, fused(settings), graph=True), own)
    times = interleaved(steps, rounds, "cuda")
    bare = min(times[FLOOR])
    table = []
    for name, seconds in times.items():
        row: dict[str, Any] = {"name": name, "min": min(seconds), "median": statistics.median(seconds)}
        row["to_floor"] = row["min"] / bare
        row["beyond"] = None if name == FLOOR else peak_extra_bytes(steps[name], p) - 4 * classes * DIM
        table.append(row)
    return {"rows": rows, "classes": classes, "table": table}


def _problem(rows: int, classes: int) -> Problem:
    return Problem(rows, classes, DIM, "cuda", "bfloat16")


def model(N: int, C: int, d: int, kept: int) -> dict[str, tuple[int, int]]:
    """Operations, and bytes through device memory, of each kernel in a step; E or P is N×C in bfloat16.

    What is not kept is normalised and multiplied twice. Rows of features, sums over tiles and labels are left out:
    they are small, or stay in the cache.
    """
    twice = C + (C - kept)
    return {
        "operands": (0, 4 * twice * d + 2 * twice * d),  # W read, w̃ written
        "scores": (2 * N * twice * d, 2 * twice * d + 2 * N * C),  # w̃ read, E or P written
        "feature_gradient": (2 * N * C * d, 2 * N * C + 2 * C * d),  # E and w̃ read
        "weight_gradient": (2 * N * C * d, 2 * N * C + 4 * C * d + 4 * C * d),  # E and W read, dW written
    }


def kernels(rows: int, classes: int, name: str) -> dict[str, Any]:
    """Where a route's time goes."""
    settings = replace(ROUTES[name], operands="bfloat16")
    kept = plan(rows, classes, DIM, settings).kept
    step = stepper(Contender(name, fused(settings)), _problem(rows, classes))
    found = kernel_times(step)
    table = []
    for kernel, (flops, moved) in model(rows, classes, DIM, kept).items():
        launches, seconds = found.pop(kernel, (0.0, 0.0))
        table.append({"name": kernel, "launches": launches, "seconds": seconds, "flops": flops, "bytes": moved})
    rest = {"launches": sum(n for n, _ in found.values()), "seconds": sum(s for _, s in found.values())}
    table.append({"name": f"the rest, {len(found)} kernels", **rest, "flops": 0, "bytes": 0})
    return {"name": name, "rows": rows, "classes": classes, "kept": kept, "table": table}


def kernel_times(step: Callable[[], None]) -> dict[str, tuple[float, float]]:
    """Launches and seconds per step of every kernel, by name."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(PROFILED):
            step()
        torch.cuda.synchronize()
    found: dict[str, tuple[float, float]] = {}
    for event in seen.key_averages():
        # Calls of the driver are events too, on the CPU's side.
        if str(event.device_type).endswith("CUDA") and not event.is_user_annotation:
            seconds = 1e-6 * event.self_device_time_total / PROFILED
            found[event.key] = (event.count / PROFILED, seconds)
    return found


def growth(rows: int, classes: int, rounds: int) -> dict[str, Any]:
    """Time and memory of the route that recomputes, at one number of classes."""
    p = _problem(rows, classes)
    torch.cuda.empty_cache()  # the weight was made from a copy as large
    step = stepper(Contender("recompute", fused(ROUTES["recompute"])), p)
    seconds = min(interleaved({"ours": step}, rounds, "cuda")["ours"])
    beyond = peak_extra_bytes(step, p) - 4 * classes * DIM
    return {"rows": rows, "classes": classes, "min": seconds, "per_class": seconds / classes, "beyond": beyond}


def large(rows: int = 512, classes: int = 29_000_000) -> dict[str, Any]:
    """Steps of a head whose gradient would not fit, and the third one's change of 64 classes against float64."""
    rng = torch.Generator(device="cuda").manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    head = MarginHead(DIM, classes, ArcFace(M), scale=SCALE, check=False, device="cuda")
    optimizer = FusedSGD(head, lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    x = torch.randn(rows, DIM, device="cuda", generator=rng).requires_grad_()
    y = torch.randint(0, classes, (rows,), device="cuda", generator=rng)
    weight = head.weight.detach()
    picked, labelled = _pick(y, classes, rng)
    losses: list[float] = []

    def step() -> float:
        x.grad = None
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = head(x, y)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        losses.append(float(loss.detach()))
        return seconds

    seconds = [step(), step()]
    peak = torch.cuda.max_memory_allocated()
    velocity = optimizer.state[head.weight]["momentum_buffer"]
    old_w, old_v = weight[picked].double(), velocity[picked].double()
    right_loss, gradient = exact_rows(x.detach(), weight, y, picked)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    seconds.append(step())
    peak = max(peak, torch.cuda.max_memory_allocated())

    right_v = MOMENTUM * old_v + gradient + DECAY * old_w
    change = weight[picked].double() - old_w
    # The weight is rounded to float32 around itself, a small change much; the momentum shows the gradient better.
    seen = velocity[picked].double() - MOMENTUM * old_v - DECAY * old_w
    by_gradient = _by_row(seen, gradient)
    return {
        "rows": rows,
        "classes": classes,
        "seconds": seconds,
        "losses": losses,
        "finite": all(abs(loss) < float("inf") for loss in losses),
        "changed": bool((change != 0).any(1).all()),
        "peak": peak,
        "total": torch.cuda.get_device_properties(0).total_memory,
        "sampled": len(picked),
        "labels_sampled": labelled,
        "loss_error": abs(losses[-1] - right_loss) / right_loss,
        "change_error": float(_by_row(change, -RATE * right_v).max()),
        "gradient_error_labels": float(by_gradient[:labelled].max()),
        "gradient_error_others": float(by_gradient[labelled:].max()),
    }


def _pick(y: Tensor, classes: int, rng: torch.Generator, each: int = 32) -> tuple[Tensor, int]:
    """Some labels, then as many classes that are none; and how many labels."""

    def some(found: Tensor) -> Tensor:
        return found[torch.randperm(len(found), device=y.device, generator=rng)[:each]]

    others = torch.randint(0, classes, (8 * each,), device=y.device, generator=rng)
    labels = some(torch.unique(y))
    return torch.cat([labels, some(torch.unique(others[~torch.isin(others, y)]))]), len(labels)


def _by_row(found: Tensor, right: Tensor) -> Tensor:
    wrong: Tensor = torch.linalg.vector_norm(found - right, dim=1)
    size: Tensor = torch.linalg.vector_norm(right, dim=1)
    return wrong / size


def exact_rows(x: Tensor, weight: Tensor, y: Tensor, picked: Tensor) -> tuple[float, Tensor]:
    """The loss, and its gradient by the picked classes' weights, in float64; all others are constants."""
    f, own = F.normalize(x.double()), F.normalize(weight[y].double())
    rest = torch.full((len(f),), -torch.inf, dtype=torch.float64, device=x.device)
    for first in range(0, len(weight), PIECE):
        last = min(first + PIECE, len(weight))
        z = SCALE * f @ F.normalize(weight[first:last].double()).T
        mine = (y >= first) & (y < last)
        z[mine.nonzero().squeeze(1), y[mine] - first] = -torch.inf
        z[:, picked[(picked >= first) & (picked < last)] - first] = -torch.inf
        rest = torch.logaddexp(rest, z.logsumexp(1))
        del z
    rows = weight[picked].double().requires_grad_()
    cosines = f @ F.normalize(rows).T
    is_own = y[:, None] == picked[None, :]
    rivals = torch.logaddexp(rest, (SCALE * cosines).masked_fill(is_own, -torch.inf).logsumexp(1))
    target = torch.where(is_own.any(1), (cosines * is_own).sum(1), (f * own).sum(1))
    loss = F.softplus(rivals - SCALE * _with_margin(target)).mean()
    (gradient,) = torch.autograd.grad(loss, rows)
    return float(loss.detach()), gradient


def _with_margin(cosine: Tensor) -> Tensor:
    """By the definition, for float64 and angles below π − m."""
    return (cosine.acos() + M).cos()


def exact(x: Tensor, W: Tensor, y: Tensor) -> Tensor:
    """The loss, for float64: rivals and target apart, since their difference in a log-sum-exp loses tiny losses."""
    cosines = F.normalize(x) @ F.normalize(W).T
    target = _with_margin(cosines.gather(1, y[:, None])).squeeze(1)
    rivals = (SCALE * cosines).scatter(1, y[:, None], -torch.inf).logsumexp(1)
    return F.softplus(rivals - SCALE * target).mean()


def _ours(settings: Triton) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda x, W, y: margin_softmax(x, W, y, ArcFace(M), scale=SCALE, backend=settings, check=False)


COMPUTED = {
    "textbook, bfloat16 autocast": textbook,
    "triton bfloat16, exp z kept": _ours(Triton(memory=16384)),
    "triton bfloat16, memory = 0": _ours(Triton(memory=0)),
    "triton float16": _ours(Triton(memory=0, operands="float16")),
    "triton float32": _ours(Triton(memory=16384, operands="float32")),
}


def precision(rows: int = 512, classes: int = 20_000, device: str = "cuda") -> dict[str, Any]:
    """Relative errors of loss, dX and dW against float64, at the start, later, and at a loss of about 1e-8."""
    seed = time.time_ns() // 1_000_000 % 2**31
    rng = torch.Generator(device=device).manual_seed(seed)
    W = torch.randn(classes, DIM, device=device, generator=rng) * DIM**-0.5
    y = torch.randint(0, classes, (rows,), device=device, generator=rng)
    start = torch.randn(rows, DIM, device=device, generator=rng)
    own = F.normalize(W[y].double())
    aside = start.double() - (start.double() * own).sum(1, keepdim=True) * own
    aside = F.normalize(aside)

    def at(cosine: Tensor) -> Tensor:
        """Features with these cosines to their class."""
        return (cosine * own + (1 - cosine**2).sqrt() * aside).float()

    spread = 0.7 + 0.25 * torch.rand(rows, 1, device=device, dtype=torch.float64, generator=rng)
    tiny = _cosine_of_a_tiny_loss(lambda c: float(exact(at(spread.new_full((1, 1), c)).double(), W.double(), y)))
    cases = {
        "untrained": start,
        "trained, cos θ_y from 0.7 to 0.95": at(spread),
        f"converged, cos θ_y = {tiny:.4f}": at(spread.new_full((1, 1), tiny)),
    }
    found = [{"name": name, **_errors(x, W, y, device)} for name, x in cases.items()]
    return {"seed": seed, "rows": rows, "classes": classes, "cases": found}


def _cosine_of_a_tiny_loss(loss: Callable[[float], float]) -> float:
    """By bisection: the loss falls as the cosine rises."""
    low, high = 0.5, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        value = loss(middle)
        if TINY_LOSS[0] < value < TINY_LOSS[1]:
            break
        low, high = (middle, high) if value > TINY_LOSS[1] else (low, middle)
    return middle


def _errors(x: Tensor, W: Tensor, y: Tensor, device: str) -> dict[str, Any]:
    wide = [t.double().requires_grad_() for t in (x, W)]
    loss = exact(wide[0], wide[1], y)
    right = [loss.detach(), *torch.autograd.grad(loss, wide)]
    table = []
    for name, compute in COMPUTED.items():
        narrow = [t.detach().clone().requires_grad_() for t in (x, W)]
        with torch.autocast(device, torch.bfloat16):
            value = compute(narrow[0], narrow[1], y)
        ours = [value.detach(), *torch.autograd.grad(value, narrow)]
        parts = [float((a.double() - b).norm() / b.norm()) for a, b in zip(ours, right, strict=True)]
        table.append({"name": name, **dict(zip(("loss", "dX", "dW"), parts, strict=True))})
    return {"loss": float(right[0]), "table": table}


def run(out: Path | None = None, say: Say = print, *, rounds: int = 20) -> dict[str, Any]:
    """The whole benchmark, some minutes on a GPU; writes fused-cuda.json and .md into `out`."""
    reason = why_not(torch.device("cuda")) if torch.cuda.is_available() else "there is no CUDA device"
    if reason:
        raise ValueError(f"the benchmark of the fused backend cannot run here: {reason}.")
    result: dict[str, Any] = {"environment": environment("cuda"), "rounds": rounds}
    rows, classes = SIZES[1]

    def measure(what: str, section: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
        say(what)
        found = section(*given)
        gc.collect()
        torch.cuda.empty_cache()
        return found

    result["ceilings"] = measure("ceilings: a copy, a matrix product", ceilings)
    result["routes"] = [measure(f"routes: {N:,} × {C:,}", routes, N, C, rounds) for N, C in SIZES]
    result["kernels"] = [measure(f"kernels: {name}", kernels, rows, classes, name) for name in ROUTES]
    few = min(rounds, 5)
    result["growth"] = [measure(f"growth: {C:,} classes", growth, rows, C, few) for C in GROWTH]
    result["large"] = measure("29 million classes with FusedSGD", large)
    result["precision"] = measure("precision against float64", precision)
    store(result, as_markdown(result), "fused-cuda", out, say)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command.flags(
        "fused",
        "The fused backend on this GPU beside what the GPU can do: routes, kernels, growth, memory, precision.",
        "",
        "--rounds 50 --out results",
    )
    parser.add_argument("--rounds", type=command.at_least(1), default=20, help="interleaved rounds to time")
    given = parser.parse_args(arguments)
    with command.plain_errors(parser):
        result = run(given.out, command.say, rounds=given.rounds)
    print(as_markdown(result))


if __name__ == "__main__":
    main()
