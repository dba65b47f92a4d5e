"""The order of the fused backend's kernels, forward and backward, each an opaque custom operation.

Of the first `kept` classes the forward stores E = exp z; for the others the backward computes P = exp(z − R) again, a
chunk of classes at a time. Factors of whole rows commute with both products of the backward, so E needs no maximum
taken off as long as it fits the exponent's range. Whether it did is known afterwards: rows whose sum is outside
`WINDOW` are summed again with the maximum of each tile taken off, and in the backward their E is replaced by P. The
kernels for that are always launched and end at once where no row is marked: nothing waits for the GPU, no bound on
the logits is needed, and every finite input is right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from hypermargin.scores.fused import kernels
from hypermargin.scores.fused.tiles import Tiles, power, processors, tiles_for

# R for which exp z, its sum and exp(−R) are all far from the ends of bfloat16's and float32's range.
WINDOW = (-40.0, 64.0)
LOG2_E = math.log2(math.e)
SLAB, STORE, ADD, SGD = kernels.SLAB.value, kernels.STORE.value, kernels.ADD.value, kernels.SGD.value
PROGRAMS = 1024  # enough to fill any GPU, for kernels that loop
# float16 holds P down to 2⁻²⁴ of this; P itself may be as small as 1/C.
FLOAT16_SHIFT = 15
# The matrix units cut off low bits at every addition, so a sum over a million classes is made of shorter ones.
LONGEST_SUM = 32768


@dataclass(frozen=True)
class Step:
    """What is the same for every launch of a step."""

    N: int
    C: int
    d: int
    kind: torch.dtype  # of the operands
    tiles: Tiles
    precision: str
    processors: int

    @property
    def width(self) -> int:
        """Columns of an operand's buffer: its rows begin at multiples of 16 bytes."""
        return -(-self.d // 16) * 16

    @property
    def padded(self) -> int:
        """Rows of a slab of E: whole tiles."""
        return -(-self.N // 128) * 128

    @property
    def feature_tiles(self) -> int:
        """Of df."""
        tile = self.tiles.features
        return int(triton.cdiv(self.N, tile.rows) * triton.cdiv(self.d, tile.columns))

    @property
    def splits(self) -> int:
        """Shares of the classes for df, to fill the GPU."""
        return max(self.processors // self.feature_tiles, 1)

    @property
    def lift(self) -> int:
        """P is stored times two to this power."""
        return FLOAT16_SHIFT if self.kind == torch.float16 else 0


def step_of(f: Tensor, weight: Tensor, operands: str) -> Step:
    """Sizes, operands and tiles of a call."""
    kind: torch.dtype = getattr(torch, operands)
    (N, d), C = f.shape, weight.shape[0]
    # float32 means float32: on the matrix units three products stand in for one, never TF32's ten bits.
    precision = "tf32x3" if f.is_cuda else "ieee"
    return Step(N, C, d, kind, tiles_for(N, d, kind.itemsize, f.device), precision, processors(f.device))


def slabs(step_rows: int, classes: int) -> tuple[int, int]:
    """The shape of E for so many classes; see kernels.py for the layout."""
    return -(-classes // SLAB) * -(-step_rows // 128) * 128, SLAB


def _ranges(first: int, last: int, chunk: int) -> Iterator[tuple[int, int]]:
    for start in range(first, last, chunk):
        yield start, min(start + chunk, last)


def _room(step: Step, like: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """For the operands w̃ of some classes and their 1/|W|."""
    return like.new_empty(classes, step.width, dtype=step.kind), like.new_empty(classes)


def _tiled(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns])


def _operand(x: Tensor, step: Step, scale: float = 1.0, factor: Tensor | None = None) -> Tensor:
    """x (N, d) times a number and a factor a row, as an operand: its rows padded, what does not fit saturated."""
    out = x.new_empty(step.N, step.width, dtype=step.kind)
    kernels.pack[(step.N,)](
        x, x if factor is None else factor, out, step.d, step.width, scale, factor is not None,
        torch.finfo(step.kind).max, power(step.width),
    )  # fmt: skip
    return out


def _unit_rows(
    step: Step, weight: Tensor, unit_weight: bool, w: Tensor, inverse: Tensor, total: Tensor | None = None
) -> None:
    """Fill w with w̃ of the rows of `weight` and `inverse` with their 1/|W|; add Σ w̃ to `total`."""
    count, D = weight.shape[0], power(step.width)
    each = max(4096 // D, 1)
    programs = min(triton.cdiv(count, each), 8 * PROGRAMS)
    parts = w if total is None else weight.new_empty(programs, step.d, dtype=torch.float32)
    kernels.operands[(programs,)](
        weight, w, inverse, parts, count, step.d, step.width, unit_weight, total is not None,
        each, D, torch.finfo(step.kind).max,
    )  # fmt: skip
    if total is not None:
        total += parts.sum(0, dtype=torch.float64)


def _scores(
    step: Step,
    mode: int,
    x: Tensor,
    w: Tensor,
    labels: Tensor,
    bias: Tensor | None,
    first: int,
    *,
    out: Tensor | None = None,
    shift: Tensor | None = None,
    redo: Tensor | None = None,
    sums: Tensor | None = None,
    tops: Tensor | None = None,
) -> None:
    """`kernels.scores` for the classes of `w`, the first of which is number `first`."""
    tile, C = step.tiles.scores, w.shape[0]
    blocks = triton.cdiv(C, tile.columns)
    unused = labels  # stands where a pointer is not followed
    kernels.scores[(triton.cdiv(step.N, tile.rows), blocks if redo is None else min(blocks, PROGRAMS))](
        _tiled(x, tile.rows, tile.step),
        _tiled(w, tile.columns, tile.step),
        _tiled(x, tile.rows, tile.step) if out is None else _tiled(out, tile.rows, tile.columns),
        labels,
        *(unused if t is None else t for t in (bias, shift, redo, sums, tops)),
        step.N, step.padded, C, first, step.d, labels.shape[1], mode, out is not None, bias is not None, redo is not None,
        step.precision, tile.rows, tile.columns, tile.step, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """rows (N, K, d), rivals (N,), Σ w̃ (d,) or (0,), hardest (N,) or (0,); E, w̃ and 1/|W| of the kept classes."""
    step = step_of(f, weight, operands)
    N, C, d = step.N, step.C, step.d
    rows = f.new_empty(*local.shape, d)
    exps = f.new_empty(slabs(N, kept), dtype=step.kind)
    units, inverse = _room(step, f, kept)
    rivals, top = f.new_empty(N), f.new_empty(N)
    total = torch.zeros(d, dtype=torch.float64, device=f.device) if want_total else None
    labels = local.to(torch.int32)
    # Without P beside it, a chunk of the weight may be longer here than in the backward.
    chunk = max(chunk * (N + d) // d // SLAB * SLAB, chunk)
    spare, spare_inverse = _room(step, f, min(chunk, C - kept))
    ranges = [*_ranges(0, kept, max(kept, 1)), *_ranges(kept, C, chunk)]
    per = step.tiles.scores.columns
    tiles = sum(triton.cdiv(last - first, per) for first, last in ranges)
    sums, tops = f.new_empty(tiles, N), f.new_zeros(tiles, N)
    if N:
        x, b = _operand(f, step, LOG2_E), None if bias is None else bias * LOG2_E
        kernels.label_rows[(labels.numel(),)](weight, labels, rows, d, unit_weight, power(d))
    done = 0
    for first, last in ranges:
        size, held = last - first, first < kept
        w, inv = (units, inverse) if held else (spare[:size], spare_inverse[:size])
        _unit_rows(step, weight[first:last], unit_weight, w, inv, total)
        if N == 0:
            continue
        count = triton.cdiv(size, per)
        into = {"sums": sums[done : done + count], "tops": tops[done : done + count]}
        given = (x, w, labels, None if b is None else b[first:last], first)
        done += count
        if held:
            _scores(step, kernels.SUM.value, *given, **into, out=exps)
            redo = torch.empty_like(labels[:, 0])
            low, high = (math.exp(end) for end in WINDOW)
            kernels.mark[(triton.cdiv(N, 8),)](into["sums"], redo, N, count, low, high, 8, 512)
            _scores(step, kernels.TOP.value, *given, **into, redo=redo)
        else:
            _scores(step, kernels.TOP.value, *given, **into)
    if N:
        kernels.combine[(triton.cdiv(N, 8),)](sums, tops, rivals, top, N, tiles, 8, 512)
    found = f.new_empty(0) if total is None else total.to(f.dtype)
    return rows, rivals, found, top if hardest else f.new_empty(0), exps, units, inverse


class Update(NamedTuple):
    """What becomes of the weight's gradient: a mode of the kernels, where it goes, and SGD's state."""

    mode: int
    out: Tensor
    momentum: Tensor | None = None
    settings: Tensor | None = None
    nesterov: bool = False
    renormalize: bool = False


def _feature_sums(step: Step, e: Tensor, w: Tensor, parts: Tensor, added: bool) -> None:
    """E·w̃, in shares of the classes, to `parts` (splits, N, d)."""
    tile, splits = step.tiles.features, parts.shape[0]
    for first, last in _ranges(0, w.shape[0], splits * LONGEST_SUM):
        some = w[first:last]
        each = triton.cdiv(triton.cdiv(last - first, splits), tile.step) * tile.step
        kernels.feature_gradient[(step.feature_tiles, splits)](
            _tiled(e[first // SLAB * step.padded :], tile.rows, tile.step), _tiled(some, tile.step, tile.columns),
            parts, step.N, step.padded, last - first, step.d, each, added or first > 0, step.precision,
            8 if step.kind == torch.float32 else 0, SLAB,
            tile.rows, tile.columns, tile.step, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip


class _Labels(NamedTuple):
    """What the rows of the labels receive, sorted by class, and where each tile of classes begins in it."""

    sorted: Tensor
    order: Tensor
    starts: Tensor
    by_rows: Tensor

    @staticmethod
    def of(local: Tensor, by_rows: Tensor, classes: int, tile: int) -> _Labels:
        found, order = torch.sort(local.flatten(), stable=True)
        edges = torch.arange(0, (triton.cdiv(classes, tile) + 1) * tile, tile, device=local.device)
        starts = torch.searchsorted(found, edges.to(found.dtype), out_int32=True)
        return _Labels(found, order, starts, by_rows.reshape(-1, by_rows.shape[-1]).contiguous())


def _weight_rows(
    step: Step, e: Tensor, f: Tensor, half: Tensor, weight: Tensor, inverse: Tensor, unit_weight: bool,
    labels: _Labels, by_total: Tensor | None, update: Update, raw: Tensor, first: int, last: int,
) -> None:  # fmt: skip
    """The gradients of W_first … W_last, to where they go. `raw`, if not empty, is used in between."""
    tile, C, whole = step.tiles.weight, last - first, raw.numel() == 0
    some, out = weight[first:last], update.out[first:last]
    limit = torch.finfo(out.dtype).max
    kernels.weight_gradient[(triton.cdiv(C, tile.rows),)](
        _tiled(e, tile.step, tile.rows), _tiled(f, tile.step, tile.columns), some, inverse, out if whole else raw,
        half if by_total is None else by_total, half, labels.starts[first // tile.rows :], labels.order,
        labels.sorted, labels.by_rows, step.N, step.padded, C, first, step.d, unit_weight and whole,
        by_total is not None, limit if whole else torch.finfo(torch.float32).max, step.precision,
        triton.cdiv(step.d, tile.columns),
        tile.rows, tile.columns, tile.step, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if not whole:
        D = power(step.d)
        each = max(2048 // D, 1)
        kernels.finish_rows[(triton.cdiv(C, each),)](
            raw, some, inverse, out, out if update.momentum is None else update.momentum[first:last],
            half if update.settings is None else update.settings, C, step.d, unit_weight, update.mode,
            update.momentum is not None, update.nesterov, update.renormalize, limit, each, D,
        )  # fmt: skip


def backward_into(
    f: Tensor, weight: Tensor, bias: Tensor | None, local: Tensor, rivals: Tensor, exps: Tensor, units: Tensor,
    inverse: Tensor, by_rows: Tensor, by_rivals: Tensor, by_total: Tensor | None, unit_weight: bool, chunk: int,
    operands: str, need_f: bool, need_bias: bool, update: Update | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """df and db, empty if not needed; the weight's gradient goes where `update` says."""
    step = step_of(f, weight, operands)
    N, C, d, kept = step.N, step.C, step.d, units.shape[0]
    db = torch.zeros_like(bias) if bias is not None and need_bias else f.new_empty(0)
    if N == 0:
        if update is not None and update.mode == STORE:
            update.out.zero_()
        return torch.zeros_like(f) if need_f else f.new_empty(0), db
    x, b, labels = _operand(f, step, LOG2_E), None if bias is None else bias * LOG2_E, local.to(torch.int32)
    shift, redo = torch.empty_like(rivals), torch.empty_like(labels[:, 0])
    relative, roots, largest = (f.new_empty(2, size) for size in (N, N, 1))
    M = step.tiles.scores.rows
    kernels.factors[(1,)](
        rivals, by_rivals.contiguous(), shift, redo, relative, roots, largest, N, step.lift, *WINDOW,
        1024 // M, M, num_warps=8,
    )  # fmt: skip
    parts = f.new_empty(step.splits if need_f else 0, N, d)
    df = f.new_empty(N if need_f else 0, d)
    operand = [_operand(f, step, factor=each) if update is not None else x for each in relative]
    if update is not None:
        sorted_labels = _Labels.of(labels, by_rows, C, step.tiles.weight.rows)
        # Sums that have to wait for the end of their row wait in the gradient, if it is a float32 one.
        one_tile = d <= step.tiles.weight.columns or not unit_weight
        whole = update.mode == STORE and (one_tile or weight.dtype == torch.float32)
        raw = f.new_empty(0 if whole else min(chunk, C), d)

    def gradients(e: Tensor, which: int, w: Tensor, inv: Tensor, first: int, last: int) -> None:
        """From E or P of some classes to df, db and dW."""
        size = last - first
        if need_f:
            _feature_sums(step, e, w, parts, added=first > kept)
            if last in (kept, C):
                kernels.sum_parts[(triton.cdiv(N * d, 1024),)](
                    parts, roots[which], df, N * d, d, len(parts), first >= kept > 0, 1024
                )
        if need_bias and bias is not None:
            kernels.column_sums[(triton.cdiv(size, SLAB),)](
                e, relative[which], largest[which], db[first:last], N, step.padded, size, 16
            )
        if update is not None:
            for begin, end in _ranges(0, size, size if whole else chunk):
                _weight_rows(
                    step, e[begin // SLAB * step.padded :], operand[which], largest[which], weight, inv[begin:end],
                    unit_weight, sorted_labels, by_total, update, raw, first + begin, first + end,
                )  # fmt: skip

    if kept:
        # Replacing rows of E by P is the only change to an input, and doing it twice is doing it once.
        given = (x, units, labels, None if b is None else b[:kept], 0)
        _scores(step, kernels.SHARE.value, *given, shift=shift, out=exps, redo=redo)
        gradients(exps, 0, units, inverse, 0, kept)
    some = min(chunk, C - kept)
    spare, spare_inverse = _room(step, f, some)
    shares = f.new_empty(slabs(N, some), dtype=step.kind)
    for first, last in _ranges(kept, C, chunk):
        w, inv = spare[: last - first], spare_inverse[: last - first]
        _unit_rows(step, weight[first:last], unit_weight, w, inv)
        given = (x, w, labels, None if b is None else b[first:last], first)
        _scores(step, kernels.SHARE.value, *given, shift=shift, out=shares)
        gradients(shares, 1, w, inv, first, last)
    return df, db


def backward(
    f: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    local: Tensor,
    rivals: Tensor,
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
    """df, dW, db; those not needed are empty."""
    dW = torch.empty_like(weight) if need_weight else weight.new_empty(0)
    df, db = backward_into(
        f, weight, bias, local, rivals, exps, units, inverse, by_rows, by_rivals, by_total, unit_weight, chunk,
        operands, need_f, need_bias, Update(STORE, dW) if need_weight else None,
    )  # fmt: skip
    return df, dW, db


# Under torch.compile each is one opaque call; in eager mode it is not worth the two milliseconds they cost.
forward_op = torch.library.custom_op("hypermargin::fused_forward", forward, mutates_args=())
backward_op = torch.library.custom_op("hypermargin::fused_backward", backward, mutates_args=())


@forward_op.register_fake
def _(f, weight, bias, local, unit_weight, want_total, hardest, chunk, kept, operands):  # type: ignore[no-untyped-def]
    N, d = f.shape
    kind = getattr(torch, operands)
    return (
        f.new_empty(*local.shape, d),
        f.new_empty(N),
        f.new_empty(d if want_total else 0),
        f.new_empty(N if hardest else 0),
        f.new_empty(slabs(N, kept), dtype=kind),
        f.new_empty(kept, -(-d // 16) * 16, dtype=kind),
        f.new_empty(kept),
    )


@backward_op.register_fake
def _(f, weight, bias, *_rest):  # type: ignore[no-untyped-def]
    need_f, need_weight, need_bias = _rest[-3:]
    return (
        torch.empty_like(f) if need_f else f.new_empty(0),
        torch.empty_like(weight) if need_weight else weight.new_empty(0),
        torch.empty_like(bias) if need_bias and bias is not None else f.new_empty(0),
    )
