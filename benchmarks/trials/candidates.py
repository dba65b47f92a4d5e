"""What is tried, most valuable first: each candidate as the launches that do the work of one part of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from benchmarks.trials import scores_kernels, step_kernel, weight_kernels
from benchmarks.trials.case import Case
from hypermargin.backends.fused.launch import LONGEST_SUM, SLAB, cdiv, ranges
from hypermargin.backends.fused.tiles import power

# What each part of a step does per step: operations and bytes, from N, C, d (see the kernels).
COST: dict[str, Callable[[int, int, int], tuple[int, int]]] = {
    "scores": lambda N, C, d: (2 * N * C * d, 6 * C * d + 2 * N * C),
    "dX": lambda N, C, d: (2 * N * C * d, 2 * C * d + 2 * N * C),
    "dW": lambda N, C, d: (2 * N * C * d, 8 * C * d + 2 * N * C),
    "dX and dW": lambda N, C, d: (4 * N * C * d, 10 * C * d + 4 * N * C),
    "step": lambda N, C, d: (0, 22 * C * d),
}


@dataclass
class Launch:
    """A kernel with all that it is launched with; `made` is what was compiled, after the first call."""

    kernel: Any
    programs: tuple[int, ...]
    args: tuple[Any, ...]
    options: dict[str, int]
    made: Any = None

    def __call__(self) -> None:
        self.made = self.kernel[self.programs](*self.args, **self.options)


def why(error: BaseException) -> str:
    """The reason in an error of Triton's, which wraps it in one for each function that calls another."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    return f"{type(error).__name__}: {lines[-1][:200] if lines else ''}"


@dataclass(frozen=True)
class Candidate:
    """`make` gives the launches, and what else has to be called, in order."""

    part: str
    name: str
    make: Callable[[Case], list[Callable[[], None]]]
    most: int = 1024  # the largest d it takes
    blocks: int = 128  # classes per row of its sums
    keeps: tuple[str, ...] = ()  # what it reads, though its part writes it


def tiled(x: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A matrix to read or write in tiles of that size."""
    return TensorDescriptor.from_tensor(x, [rows, columns])


def _scored(
    case: Case, kind: str, B: int, M: int, D: int, warps: int, stages: int, programs: int = 0
) -> list[Any]:  # fmt: skip
    """A tile is M rows × B classes × D; `programs` on a multiprocessor, or 0: one for each block of classes."""
    kernel: Any = {"own": scores_kernels.own_scores, "still": scores_kernels.still_scores}[kind]
    N, C, d, step = case.N, case.C, case.d, case.step
    wide = power(step.width)
    more = (cdiv(d, D),) if kind == "still" else ()
    grid = (min(cdiv(C, B), programs * step.processors or cdiv(C, B)),)
    args = (
        tiled(case.x, M, D), case.weight, case.units, case.inverse, tiled(case.exps, M, B), case.labels, case.base,
        case.sums, N, step.padded, C, d, step.width, step.precision, *more, SLAB, B, M, D,
        min(B, max(64 * 32 * warps // wide, 1)), wide,
    )  # fmt: skip
    return [Launch(kernel, grid, args, {"num_warps": warps, "num_stages": stages})]


def _pingpong(case: Case, B: int, M: int, stages: int) -> list[Any]:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as Descriptor

    from benchmarks.trials.pingpong import pingpong_scores

    def described(x: torch.Tensor, rows: int, columns: int) -> Any:
        layout = gl.NVMMASharedLayout.get_default_for([rows, columns], gl.bfloat16)
        return Descriptor.from_tensor(x, [rows, columns], layout)

    step = case.step
    args = (
        described(case.x, M, 64), case.weight, case.units, case.inverse, described(case.exps, M, B), case.labels,
        case.base, case.sums, case.N, step.padded, case.C, case.d, step.width, cdiv(case.d, 64), stages, B, M, 64,
    )  # fmt: skip
    return [Launch(pingpong_scores, (cdiv(case.C, B),), args, {"num_warps": 4, "maxnreg": 168})]


def _beside(case: Case, pieces: int) -> list[Any]:
    """Today's kernels, with ŵ of a piece of the classes made beside the scores of the last."""
    from hypermargin.backends.fused import launch

    each = cdiv(case.C, pieces * SLAB) * SLAB

    def run() -> None:
        main, side = torch.cuda.current_stream(), _stream()
        side.wait_stream(main)
        for first, last in ranges(0, case.C, each):
            with torch.cuda.stream(side):
                launch.unit_rows(
                    case.step, case.weight[first:last], True, case.units[first:last], case.inverse[first:last]
                )
                done = side.record_event()
            main.wait_event(done)
            case.scores(first, last)

    return [run]


def _given_units(case: Case) -> list[Any]:
    return [case.scores]


_SIDE: list[Any] = []


def _stream() -> Any:
    """The other stream; its programs go first where both wait for a multiprocessor."""
    if not _SIDE:
        _SIDE.append(torch.cuda.Stream(priority=-1))  # type: ignore[no-untyped-call]
    return _SIDE[0]


def _lone(case: Case, R: int, D: int, B: int, warps: int, stages: int, parts: int = 0) -> list[Any]:
    """`parts`: the rows per partial sum of `along`, which another kernel has made; 0: computed here."""
    step, labels = case.step, case.labels_in(R)
    along = Launch(
        weight_kernels.label_along, (case.N,),
        (case.weight, case.inverse, case.labels, case.by_rows, case.by_labels, case.d, power(case.d)),
        {"num_warps": 4},
    )  # fmt: skip
    args = (
        tiled(case.exps, B, R), tiled(case.weighted, B, D), case.weight, case.inverse, case.dW, case.root,
        case.relative, case.base, case.along, case.by_labels, labels.starts, labels.order, labels.sorted,
        labels.by_rows, case.N, step.padded, case.C, case.d, cdiv(case.N, parts or 1),
        parts == 0, case.fast, torch.finfo(torch.float32).max, step.precision, SLAB, R, D, B,
    )  # fmt: skip
    grid = (cdiv(case.C, R) * cdiv(case.d, D),)
    return [along, Launch(weight_kernels.lone_gradient, grid, args, {"num_warps": warps, "num_stages": stages})]


def _along(case: Case, M: int, D: int, B: int, warps: int, stages: int) -> list[Any]:
    """df and `along`, as `launch.feature_sums` goes through the classes."""
    step, made = case.step, []
    tiles, splits = cdiv(case.N, M) * cdiv(case.d, D), case.parts.shape[0]
    for first, last in ranges(0, case.C, splits * LONGEST_SUM):
        each = cdiv(cdiv(last - first, splits), B) * B
        args = (
            tiled(case.exps[first // SLAB * step.padded :], M, B), tiled(case.units[first:last], B, D), case.parts,
            case.along, case.relative, case.base, case.N, step.padded, last - first, first, case.d, each, case.C,
            first > 0, case.fast, step.precision, SLAB, M, D, B,
        )  # fmt: skip
        options = {"num_warps": warps, "num_stages": stages}
        made.append(Launch(weight_kernels.along_features, (tiles, splits), args, options))
    return made


def _both(case: Case, R: int, D: int, B: int, warps: int, stages: int) -> list[Any]:
    return _along(case, 128, min(256, power(case.d)), 64, 8, 4) + _lone(case, R, D, B, warps, stages, 128)


def _step(case: Case, units: bool) -> list[Any]:
    if case.momentum is None:
        case.momentum = torch.zeros_like(case.weight)
        case.settings = torch.tensor([0.0, 0.9, 0.0], device=case.device)  # a rate of 0 leaves W alone
    D, each = power(case.step.width), max(2048 // power(case.step.width), 1)
    args = (
        case.dW, case.weight, case.inverse, case.momentum, case.settings, case.units, case.C, case.d,
        case.step.width, units, torch.finfo(torch.float32).max, each, D,
    )  # fmt: skip
    return [Launch(step_kernel.step_rows, (cdiv(case.C, each),), args, {"num_warps": 4})]


def _of(part: str, name: str, make: Callable[..., Any], *given: Any, **more: Any) -> Candidate:
    return Candidate(part, name, lambda case: make(case, *given), **more)


CANDIDATES = [
    _of("scores", "ping-pong in Gluon, 64×128, ring of 8", _pingpong, 128, 64, 8, most=512),
    _of("dW", "alone, logarithms inside, 128×256×64, 8 warps, 3 stages", _lone, 128, 256, 64, 8, 3),
    _of("scores", "own operand, 128×128×64, 4 warps, 2 stages", _scored, "own", 128, 128, 64, 4, 2),
    _of("dX and dW", "along with dX; dW alone, 128×256×64, 8 warps, 3 stages", _both, 128, 256, 64, 8, 3),
    _of("scores", "operand beside scores, 8 pieces", _beside, 8),
    _of("dW", "alone, logarithms inside, 128×128×64, 8 warps, 3 stages", _lone, 128, 128, 64, 8, 3),
    _of("dX and dW", "along with dX; dW alone, 128×128×64, 4 warps, 3 stages", _both, 128, 128, 64, 4, 3),
    _of("dX", "with along, 128×256×64, 8 warps, 4 stages", _along, 128, 256, 64, 8, 4),
    _of("scores", "ŵ there already, from the optimiser", _given_units, keeps=("units", "inverse")),
    _of("step", "SGD with momentum, writes ŵ and 1/|W|", _step, True),
    _of("scores", "ping-pong in Gluon, 64×128, ring of 4", _pingpong, 128, 64, 4, most=512),
    _of("scores", "ping-pong in Gluon, 64×64, ring of 8", _pingpong, 64, 64, 8, blocks=64),
    _of("scores", "own operand, 128×128×32, 4 warps, 4 stages", _scored, "own", 128, 128, 32, 4, 4),
    _of("scores", "own operand, 128×64×64, 4 warps, 3 stages", _scored, "own", 64, 128, 64, 4, 3, blocks=64),
    _of("dX and dW", "along with dX; dW alone, 256×128×64, 8 warps, 3 stages", _both, 256, 128, 64, 8, 3),
    _of("dW", "alone, logarithms inside, 256×128×32, 8 warps, 4 stages", _lone, 256, 128, 32, 8, 4),
    _of("dW", "alone, logarithms inside, 128×256×32, 8 warps, 5 stages", _lone, 128, 256, 32, 8, 5),
    _of("dW", "alone, logarithms inside, 128×128×32, 4 warps, 5 stages", _lone, 128, 128, 32, 4, 5),
    _of("scores", "operand beside scores, 32 pieces", _beside, 32),
    _of(
        "scores", "own operand, 128×128×64, two programs per multiprocessor", _scored, "own", 128, 128, 64, 4, 2, 2
    ),
    _of(
        "scores", "still operand, 64×64, 4 warps, 2 stages", _scored, "still", 64, 64, 64, 4, 2, most=512, blocks=64
    ),
]


def present(case: Case, part: str) -> list[Callable[[], None]]:
    """What the package does today for that part."""

    if part == "step":
        return _step(case, False)
    return {
        "scores": [case.operands, case.scores],
        "dX": [case.features],
        "dW": [case.gradient],
        "dX and dW": [case.features, case.gradient],
    }[part]
