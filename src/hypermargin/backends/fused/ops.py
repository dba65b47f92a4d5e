"""The order of the fused backend's kernels, forward and backward, each an opaque custom operation.

For the first `kept` classes the forward stores E = exp z; for the others the backward computes P = exp(z − R), a
chunk of classes at a time. Factors of whole rows commute with both products of the backward, so no maximum has to
be subtracted from z as long as exp z neither overflows nor underflows. Whether it did is known afterwards: rows
whose sum is outside `WINDOW` are summed again with the maximum of each tile subtracted, and in the backward their E
is replaced by P. The kernels for that are always launched, and end at once where no row is marked. So nothing waits
for the GPU, no bound on the logits is needed, and the result is right for every finite input.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import ParamSpec, TypeVar

import torch
import triton
from torch import Tensor

from hypermargin.backends.blocks import empty_gradients
from hypermargin.backends.fused import OUTSIDE, kernels, row_kernels
from hypermargin.backends.fused.launch import (
    SGD,
    SLAB,
    STORE,
    Labels,
    Update,
    feature_sums,
    finish,
    operand,
    ranges,
    room,
    scores,
    slabs,
    step_of,
    unit_rows,
    weight_rows,
)
from hypermargin.backends.fused.tiles import power

# The range of R in which exp z, its sum, and the ratio of exp(−R) of any two rows are far from overflow and
# underflow in bfloat16 and float32.
WINDOW = (-16.0, 58.0)
LOG2_E = math.log2(math.e)

Returned = TypeVar("Returned")
Given = ParamSpec("Given")


def _on_its_device(run: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """Return `run` with the tensors' device as the current one, since Triton launches on the current device."""

    @functools.wraps(run)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        f = args[0]
        with torch.cuda.device(f.device) if isinstance(f, Tensor) and f.is_cuda else nullcontext():
            return run(*args, **kwargs)

    return call


@_on_its_device
def forward(
    f: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    local: Tensor,
    unit_weight: bool,
    want_total: bool,
    hardest: bool,
    chunk: int,
    kept: int,
    operands: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return rows (N, K, d), rivals (N,), Σ w̃ (d,) or (0,), hardest (N,) or (0,).

    Four more are for the backward: rivals in base 2, and E, w̃ and 1/|W| of the kept classes.
    """
    step = step_of(f, weight, operands)
    N, C, d = step.N, step.C, step.d
    rows = f.new_empty(*local.shape, d)
    exps = f.new_empty(slabs(N, kept), dtype=step.kind)
    units, inverse = room(step, f, kept)
    rivals, rivals2, top, top_so_far, sum_so_far = (f.new_empty(N) for _ in range(5))
    total = torch.zeros(d, dtype=torch.float64, device=f.device) if want_total else None
    labels = local.to(torch.int32).contiguous()
    # The forward holds no P, so its chunks of the weight may be longer than those of the backward.
    chunk = max(min(chunk * (N + d) // d // SLAB * SLAB, 2**22), chunk)
    spare, spare_inverse = room(step, f, min(chunk, C - kept))
    parts = [*ranges(0, kept, 2**20), *ranges(kept, C, chunk)]
    tiles = max(triton.cdiv(last - first, step.tiles.scores.columns) for first, last in parts)
    sums, tops = f.new_empty(tiles, N), f.new_zeros(tiles, N)
    if N:
        x, b = operand(f, step, LOG2_E), None if bias is None else bias * LOG2_E
        row_kernels.label_rows[(labels.numel(),)](weight, labels, rows, C, d, unit_weight, OUTSIDE, power(d))
    for first, last in parts:
        size, held = last - first, first < kept
        w, inv = (units[first:last], inverse[first:last]) if held else (spare[:size], spare_inverse[:size])
        unit_rows(step, weight[first:last], unit_weight, w, inv, total)
        if N == 0:
            continue
        count = triton.cdiv(size, step.tiles.scores.columns)
        given = (x, w, labels, None if b is None else b[first:last], first)
        redo = None
        if held:
            scores(step, kernels.SUM.value, *given, sums=sums, out=exps[first // SLAB * step.padded :])
            redo = torch.empty_like(labels[:, 0])
            low, high = (math.exp(end) for end in WINDOW)
            row_kernels.mark[(triton.cdiv(N, 8),)](sums, redo, N, count, low, high, 8, 512)
            if first:
                tops.zero_()  # the part before wrote maxima for the rows it summed again
        scores(step, kernels.TOP.value, *given, sums=sums, tops=tops, redo=redo)
        row_kernels.combine[(triton.cdiv(N, 8),)](
            sums, tops, top_so_far, sum_so_far, rivals, rivals2, top, N, count, first == 0, 8, 512
        )
    found = f.new_empty(0) if total is None else total.to(f.dtype)
    return rows, rivals, found, top if hardest else f.new_empty(0), rivals2, exps, units, inverse


@_on_its_device
def backward_into(
    f: Tensor, weight: Tensor, bias: Tensor | None, local: Tensor, rivals: Tensor, rivals2: Tensor, exps: Tensor,
    units: Tensor, inverse: Tensor, by_rows: Tensor, by_rivals: Tensor, by_total: Tensor | None, unit_weight: bool,
    chunk: int, operands: str, need_f: bool, need_bias: bool, update: Update | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return df and db, empty if not needed; the weight's gradient is used as `update` says."""
    step = step_of(f, weight, operands)
    N, C, d, kept = step.N, step.C, step.d, units.shape[0]
    db = torch.zeros_like(bias) if bias is not None and need_bias else f.new_empty(0)
    if N == 0:
        if update is not None and update.mode == STORE:
            update.out.zero_()
        elif update is not None and update.mode == SGD:  # weight decay and momentum act without any rows too
            nothing = f.new_zeros(min(chunk, C), d)
            for first, last in ranges(0, C, chunk):
                finish(step, nothing, weight, nothing, False, update, first, last)
        return torch.zeros_like(f) if need_f else f.new_empty(0), db
    labels = local.to(torch.int32).contiguous()
    x, b = operand(f, step, LOG2_E), None if bias is None else bias * LOG2_E
    shift, redo = torch.empty_like(rivals), torch.empty_like(labels[:, 0])
    relative, roots, largest = (f.new_empty(2, size) for size in (N, N, 1))
    M = step.tiles.scores.rows
    row_kernels.factors[(1,)](
        rivals, rivals2, by_rivals.contiguous(), shift, redo, relative, roots, largest, N, step.lift, *WINDOW,
        1024 // M, M, num_warps=8,
    )  # fmt: skip
    parts = f.new_empty(step.splits if need_f else 0, N, d)
    df = f.new_empty(N if need_f else 0, d)
    weighted = [operand(f, step, factor=each) if update is not None else x for each in relative]
    if update is not None:
        sorted_labels = Labels.of(labels, by_rows, C, step.tiles.weight.rows)
        # With several tiles per row, unprojected sums are kept in the gradient itself if that is float32.
        one_tile = d <= step.tiles.weight.columns or not unit_weight
        whole = update.mode == STORE and (one_tile or weight.dtype == torch.float32)
        raw = f.new_empty(0 if whole else min(chunk, C), d)

    def gradients(e: Tensor, which: int, w: Tensor, inv: Tensor, first: int, last: int) -> None:
        """Add what classes first … last−1 contribute to df, and compute their db and dW, from their E or P."""
        size = last - first
        if need_f:
            feature_sums(step, e, w, parts, added=first > kept)
            if last in (kept, C):
                row_kernels.sum_parts[(triton.cdiv(N * d, 1024),)](
                    parts, roots[which], df, N * d, d, len(parts), first >= kept > 0, 1024
                )
        if need_bias and bias is not None:
            row_kernels.column_sums[(triton.cdiv(size, SLAB),)](
                e, relative[which], largest[which], db[first:last], N, step.padded, size, 16
            )
        if update is not None:
            for begin, end in ranges(0, size, size if whole else chunk):
                weight_rows(
                    step, e[begin // SLAB * step.padded :], weighted[which], largest[which], weight, inv[begin:end],
                    unit_weight, sorted_labels, by_total, update, raw, first + begin, first + end,
                )  # fmt: skip

    if kept:
        # Replacing rows of E by P is the only change to an input; doing it again in a second backward is harmless.
        given = (x, units, labels, None if b is None else b[:kept], 0)
        scores(step, kernels.SHARE.value, *given, shift=shift, out=exps, redo=redo)
        gradients(exps, 0, units, inverse, 0, kept)
    some = min(chunk, C - kept)
    spare, spare_inverse = room(step, f, some)
    shares = f.new_empty(slabs(N, some), dtype=step.kind)
    for first, last in ranges(kept, C, chunk):
        w, inv = spare[: last - first], spare_inverse[: last - first]
        unit_rows(step, weight[first:last], unit_weight, w, inv)
        given = (x, w, labels, None if b is None else b[first:last], first)
        scores(step, kernels.SHARE.value, *given, shift=shift, out=shares)
        gradients(shares, 1, w, inv, first, last)
    return df, db


def backward(
    f: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    local: Tensor,
    rivals: Tensor,
    rivals2: Tensor,
    exps: Tensor,
    units: Tensor,
    inverse: Tensor,
    by_rows: Tensor,
    by_rivals: Tensor,
    by_total: Tensor | None,
    unit_weight: bool,
    chunk: int,
    operands: str,
    need_f: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return df, dW and db; those not needed are empty."""
    dW = torch.empty_like(weight) if need_weight else weight.new_empty(0)
    df, db = backward_into(
        f, weight, bias, local, rivals, rivals2, exps, units, inverse, by_rows, by_rivals, by_total, unit_weight,
        chunk, operands, need_f, need_bias, Update(STORE, dW) if need_weight else None,
    )  # fmt: skip
    return df, dW, db


# Under torch.compile each is one opaque call; eager mode calls the functions directly, which saves 2 ms.
forward_op = torch.library.custom_op("hypermargin::fused_forward", forward, mutates_args=())
backward_op = torch.library.custom_op("hypermargin::fused_backward", backward, mutates_args=())


@backward_op.register_fake
def _(f, weight, bias, *rest):  # type: ignore[no-untyped-def]
    return empty_gradients(f, weight, bias, *rest[-3:])


@forward_op.register_fake
def _(f, weight, bias, local, unit_weight, want_total, hardest, chunk, kept, operands):  # type: ignore[no-untyped-def]
    N, d = f.shape
    kind = getattr(torch, operands)
    return (
        f.new_empty(*local.shape, d),
        f.new_empty(N),
        f.new_empty(d if want_total else 0),
        f.new_empty(N if hardest else 0),
        f.new_empty(N),
        f.new_empty(slabs(N, kept), dtype=kind),
        f.new_empty(kept, -(-d // 16) * 16, dtype=kind),
        f.new_empty(kept),
    )
