"""The order of the fused backend's kernels, forward and backward, each an opaque custom operation.

For the first `kept` classes the forward stores E = exp(z − base); for the others the backward computes
P = exp(z − R), a chunk of classes at a time. Factors of whole rows commute with both products of the backward, so
no maximum has to be subtracted from z as long as E neither overflows nor underflows. `base`, a guess per row, makes
that rare for unit sides. Whether it happened is known afterwards: rows whose sum is outside a window are summed
again with the maximum of each tile subtracted, and in the backward their E is replaced by P. The kernels for that
are always launched, and end at once where no row is marked. So nothing waits for the GPU, no bound on the logits is
needed, and the result is right for every finite input. A row that is not finite spoils itself alone.

`forward` and `backward` are the contract of a backend, for any head; `look_ops.py` has the work on rows of features
and labels in it too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from hypermargin.backends.blocks import empty_gradients
from hypermargin.backends.fused import OUTSIDE, feature_kernels, kernels, row_kernels
from hypermargin.backends.fused.compiled import launch
from hypermargin.backends.fused.launch import (
    SGD,
    SLAB,
    STORE,
    Factors,
    Labels,
    Step,
    Update,
    cdiv,
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

LOG2_E = math.log2(math.e)

Returned = TypeVar("Returned")
Given = ParamSpec("Given")


def on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """Return a context with the tensor's device as the current one, since Triton launches on the current device."""
    elsewhere = x.is_cuda and x.get_device() != torch.cuda.current_device()
    return torch.cuda.device(x.device) if elsewhere else nullcontext()


def on_its_device(run: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """Return `run` on the device of its first argument."""

    @functools.wraps(run)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        with on_device_of(cast("Tensor", args[0])):
            return run(*args, **kwargs)

    return call


@dataclass(frozen=True)
class Operands:
    """What a call multiplies: the features and class weights as operands, and what belongs to their rows."""

    step: Step
    x: Tensor  # (N, width)  f·log2 e
    base: Tensor  # (N,)  what is taken off the logits of a row, in units of ln 2
    labels: Tensor  # (N, K)  int32
    weight: Tensor
    bias: Tensor | None  # in units of ln 2
    unit_weight: bool

    def scores(
        self, mode: int, first: int, last: int, w: Tensor, *, out: Tensor | None = None,
        shift: Tensor | None = None, redo: Tensor | None = None, sums: Tensor | None = None,
        tops: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Do with the logits of a range of the classes, whose operand is w, what `mode` says."""
        scores(
            self.step, mode, self.x, w, self.labels, self.biases(first, last), first, out=out, shift=shift,
            redo=redo, sums=sums, tops=tops,
        )  # fmt: skip

    def biases(self, first: int, last: int) -> Tensor | None:
        """Return the bias of a range of the classes."""
        return None if self.bias is None else self.bias[first:last]

    def by_bias(
        self, e: Tensor, w: Tensor, factors: Factors, which: int, first: int, last: int, out: Tensor
    ) -> None:
        """Write the bias's gradient of a range of the classes, from their E or P."""
        launch(
            row_kernels.column_sums, (cdiv(last - first, SLAB),), e, factors.relative[which],
            factors.largest[which], out, self.step.N, self.step.padded, last - first, 16,
        )  # fmt: skip

    def combined(self, tops: Tensor, top_so_far: Tensor, sum_so_far: Tensor, tiles: int, first: bool) -> None:
        """Do what else the sums of these tiles are for."""


class Kept(NamedTuple):
    """What the forward leaves for the backward: R in units of ln 2, and E, w̃ and 1/|W| of the kept classes."""

    rivals2: Tensor
    exps: Tensor
    units: Tensor
    inverse: Tensor


def in_parts(
    given: Operands, chunk: int, left: Kept, like: Tensor, total: Tensor | None
) -> Iterator[tuple[int, int, Tensor, Tensor | None]]:
    """Yield (first, last, w̃, where to keep E, if it is kept) of parts of the classes; add Σ w̃ to `total`."""
    step, kept = given.step, left.units.shape[0]
    for first, last in parts_of(step, chunk, kept):
        size, held = last - first, first < kept
        if first == kept:
            spare, spare_inverse = room(step, like, min(longest(step, chunk), step.C - kept))
        w, inv = (
            (left.units[first:last], left.inverse[first:last]) if held else (spare[:size], spare_inverse[:size])
        )
        unit_rows(step, given.weight[first:last], given.unit_weight, w, inv, total)
        if step.N:
            yield first, last, w, left.exps[first // SLAB * step.padded :] if held else None


def longest(step: Step, chunk: int) -> int:
    """Return the classes per part of a forward, which holds no P: more of the weight fits in its place."""
    most: int = max(min(chunk * (step.N + step.d) // step.d // SLAB * SLAB, 2**22), chunk)
    return most


def parts_of(step: Step, chunk: int, kept: int) -> list[tuple[int, int]]:
    """Return (first, last) of the parts of the classes that a forward goes through."""
    return [*ranges(0, kept, 2**20), *ranges(kept, step.C, longest(step, chunk))]


def tiles_of(step: Step, chunk: int, kept: int) -> int:
    """Return the most tiles of classes that any part has."""
    return max(cdiv(last - first, step.tiles.scores.columns) for first, last in parts_of(step, chunk, kept))


def sum_rivals(given: Operands, chunk: int, total: Tensor | None, rivals: Tensor, top: Tensor, left: Kept) -> None:
    """Fill `rivals`, `top` and what is kept from the logits of all classes; add Σ w̃ to `total`."""
    step = given.step
    N = step.N
    sums, tops = rivals.new_empty(2, tiles_of(step, chunk, left.units.shape[0]), N)
    top_so_far, sum_so_far = rivals.new_empty(2, N)
    for first, last, w, exps in in_parts(given, chunk, left, rivals, total):
        count, redo = cdiv(last - first, step.tiles.scores.columns), None
        if first == 0 and step.sample and exps is not None:
            guess_base(given, w, sums, tops, left.rivals2)
        if exps is not None:
            given.scores(kernels.SUM.value, first, last, w, shift=given.base, sums=sums, tops=tops, out=exps)
            redo = torch.empty_like(given.labels[:, 0])
            low, high = (math.exp(end) for end in step.window)
            launch(row_kernels.mark, (cdiv(N, 8),), sums, redo, N, count, low, high, 8, 512)
        given.scores(kernels.TOP.value, first, last, w, sums=sums, tops=tops, redo=redo)
        launch(
            row_kernels.combine, (cdiv(N, 8),), sums, tops, given.base, top_so_far, sum_so_far, rivals,
            left.rivals2,
            top, 0.0, N, count, first == 0, False, 8, 512,
        )  # fmt: skip
        given.combined(tops, top_so_far, sum_so_far, count, first == 0)


def guess_base(given: Operands, w: Tensor, sums: Tensor, tops: Tensor, unused: Tensor) -> None:
    """Set the base of every row by a sample of the classes, for float16, whose range is too small for less."""
    step = given.step
    some = min(step.sample, len(w))
    given.scores(kernels.TOP.value, 0, some, w[:some], sums=sums, tops=tops)
    launch(
        row_kernels.combine, (cdiv(step.N, 8),), sums, tops, given.base, unused, unused, unused, unused, unused,
        step.more, step.N, cdiv(some, step.tiles.scores.columns), True, True, 8, 512,
    )  # fmt: skip


Finish = Callable[[Tensor, Tensor, bool, bool], None]  # of df: parts, roots, added to what is there, the last


def gradients(
    given: Operands, left: Kept, factors: Factors, chunk: int, finish_features: Finish | None, db: Tensor | None,
    update: Update | None, weighted: list[Tensor], by_rows: Tensor, by_total: Tensor | None,
) -> None:  # fmt: skip
    """Compute df, db and the weight's gradient, and use them as `finish_features` and `update` say."""
    step, weight, unit_weight = given.step, given.weight, given.unit_weight
    N, C, d, kept = step.N, step.C, step.d, left.units.shape[0]
    parts = weight.new_empty(step.splits if finish_features else 0, N, d, dtype=torch.float32)
    if update is not None:
        labels = Labels.of(given.labels, by_rows, C, step.tiles.weight.rows)
        # With several tiles per row, unprojected sums are kept in the gradient itself if that is float32.
        one_tile = d <= step.tiles.weight.columns or not unit_weight
        whole = update.mode == STORE and (one_tile or weight.dtype == torch.float32)
        raw = parts.new_empty(0 if whole else min(chunk, C), d)

    def of_range(e: Tensor, which: int, w: Tensor, inv: Tensor, first: int, last: int) -> None:
        """Add what classes first … last−1 contribute to df, and compute their db and dW, from their E or P."""
        size = last - first
        if finish_features is not None:
            feature_sums(step, e, w, parts, added=first > kept)
            if last in (kept, C):
                finish_features(parts, factors.roots[which], first >= kept > 0, last == C)
        if db is not None:
            given.by_bias(e, w, factors, which, first, last, db[first:last])
        if update is not None:
            for begin, end in ranges(0, size, size if whole else chunk):
                weight_rows(
                    step, e[begin // SLAB * step.padded :], weighted[which], factors.largest[which], weight,
                    inv[begin:end], unit_weight, labels, by_total, update, raw, first + begin, first + end,
                )  # fmt: skip

    if kept:
        # Replacing rows of E by P is the only change to an input; doing it again in a second backward is harmless.
        given.scores(
            kernels.SHARE.value, 0, kept, left.units, shift=factors.shift, out=left.exps, redo=factors.redo
        )
        of_range(left.exps, 0, left.units, left.inverse, 0, kept)
    if kept == C:
        return
    some = min(chunk, C - kept)
    spare, spare_inverse = room(step, parts, some)
    shares = parts.new_empty(slabs(N, some), dtype=step.kind)
    for first, last in ranges(kept, C, chunk):
        w, inv = spare[: last - first], spare_inverse[: last - first]
        unit_rows(step, weight[first:last], unit_weight, w, inv)
        given.scores(kernels.SHARE.value, first, last, w, shift=factors.shift, out=shares)
        of_range(shares, 1, w, inv, first, last)


def of_no_rows(step: Step, weight: Tensor, chunk: int, update: Update | None) -> None:
    """Use a gradient of zeros as `update` says."""
    if update is not None and update.mode == STORE:
        update.out.zero_()
    elif update is not None and update.mode == SGD:  # weight decay and momentum act without any rows too
        nothing = weight.new_zeros(min(chunk, step.C), step.d, dtype=torch.float32)
        for first, last in ranges(0, step.C, chunk):
            finish(step, nothing, weight, nothing, False, update, first, last)


@on_its_device
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return rows (N, K, d), rivals (N,), Σ w̃ (d,) or (0,), hardest (N,) or (0,).

    Five more are for the backward: the base of every row, rivals in base 2, and E, w̃ and 1/|W| of the kept classes.
    """
    step = step_of(*f.shape[:1], *weight.shape, operands, f.device)
    N, C, d = step.N, step.C, step.d
    rows = f.new_empty(*local.shape, d)
    rivals, top, base = (f.new_empty(N) for _ in range(3))
    left = Kept(f.new_empty(N), f.new_empty(slabs(N, kept), dtype=step.kind), *room(step, f, kept))
    total = torch.zeros(d, dtype=torch.float64, device=f.device) if want_total else None
    labels = local.to(torch.int32).contiguous()
    x = f
    if N:
        x = operand(f, step, LOG2_E, labels=labels, base=base, unit_weight=unit_weight)
        launch(
            feature_kernels.label_rows,
            (labels.numel(),),
            weight,
            labels,
            rows,
            C,
            d,
            unit_weight,
            OUTSIDE,
            power(d),
        )
    given = Operands(step, x, base, labels, weight, None if bias is None else bias * LOG2_E, unit_weight)
    sum_rivals(given, chunk, total, rivals, top, left)
    found = f.new_empty(0) if total is None else total.to(f.dtype)
    return rows, rivals, found, top if hardest else f.new_empty(0), base, *left


@on_its_device
def backward_into(
    f: Tensor, weight: Tensor, bias: Tensor | None, local: Tensor, base: Tensor, rivals2: Tensor, exps: Tensor,
    units: Tensor, inverse: Tensor, by_rows: Tensor, by_rivals: Tensor, by_total: Tensor | None, unit_weight: bool,
    chunk: int, operands: str, need_f: bool, need_bias: bool, update: Update | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return df and db, empty if not needed; the weight's gradient is used as `update` says."""
    step = step_of(*f.shape[:1], *weight.shape, operands, f.device)
    N, d = step.N, step.d
    db = torch.zeros_like(bias) if bias is not None and need_bias else f.new_empty(0)
    if N == 0:
        of_no_rows(step, weight, chunk, update)
        return torch.zeros_like(f) if need_f else f.new_empty(0), db
    labels = local.to(torch.int32).contiguous()
    given = Operands(
        step, operand(f, step, LOG2_E), base, labels, weight, None if bias is None else bias * LOG2_E, unit_weight
    )
    factors = Factors.of(step, rivals2, base, by_rivals.contiguous())
    df = f.new_empty(N if need_f else 0, d)

    def finish_features(parts: Tensor, roots: Tensor, added: bool, last: bool) -> None:
        size = N * d
        launch(feature_kernels.sum_parts, (cdiv(size, 1024),), parts, roots, df, size, d, len(parts), added, 1024)

    weighted = [] if update is None else [operand(f, step, factor=each) for each in factors.relative]
    by_rows = by_rows.masked_fill(base.isnan()[:, None, None], 0.0).reshape(-1, d).contiguous()
    gradients(
        given, Kept(rivals2, exps, units, inverse), factors, chunk, finish_features if need_f else None,
        db if bias is not None and need_bias else None, update, weighted, by_rows, by_total,
    )  # fmt: skip
    return df, db


def backward(
    f: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    local: Tensor,
    base: Tensor,
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
        f, weight, bias, local, base, rivals2, exps, units, inverse, by_rows, by_rivals, by_total, unit_weight,
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
        f.new_empty(N),
        f.new_empty(slabs(N, kept), dtype=kind),
        f.new_empty(kept, -(-d // 16) * 16, dtype=kind),
        f.new_empty(kept),
    )
