"""The scores of heads whose rivals count by a rule, as Triton kernels: `kernels.scores` with ρ and its slope in it.

The products of the backward need exp(ρ)·ρ′ in the place of exp z, so that is what is kept, and they stay as they
are. A sum of softplus needs σ(ρ)·ρ′, and a plain sum ρ′. Sums of rows go by exp ρ, before the slope.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hypermargin.backends.fused.kernels import (
    SLAB,
    SUM,
    TOP,
    halves,
    products,
    shift_of,
    with_bias,
    without_labels,
)

COLUMNS = tl.constexpr(3)  # what `ruled_scores` does beside kernels' modes: sums of columns, times a factor per row

# How the rivals of a row add up, as in rules/_aggregates.py.
LOG_SUM_EXP = tl.constexpr(0)
SUM_OF_SOFTPLUS = tl.constexpr(1)
PLAIN_SUM = tl.constexpr(2)

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _softplus(z):
    """Return ln(1 + 2^z) and its derivative by z·ln 2. Most rivals are far below 0, where 1 + t would lose t."""
    t = tl.exp2(-tl.abs(z))
    small = t * (1.0 - t * (0.5 - t * (0.333333333 - 0.25 * t)))
    value = tl.maximum(z, 0.0) * LN_2 + tl.where(t < 0.01, small, tl.log(1.0 + t))
    return value, tl.where(z >= 0, 1.0, t) / (1.0 + t)


@triton.jit
def _ruled_tile(
    f, w, out, labels, bias, shift, sums, tops, more, factor, columns, length, numbers, p0, p1, p2, p3, up,
    block, N, padded, C, start, d, tiles, K: tl.constexpr, MODE: tl.constexpr, KEEP: tl.constexpr,
    BIAS: tl.constexpr, RULE: tl.constexpr, NUMBERS: tl.constexpr, STRAIGHT: tl.constexpr, AGGREGATE: tl.constexpr,
    MORE: tl.constexpr, LIMIT: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, B: tl.constexpr,
    D: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * M + tl.arange(0, M)
    here = rows < N
    z = products(f, w, block, d, PRECISION, M, B, D)
    long = tl.load(length + rows, here, 0.0)[:, None]  # |f|·log2 e; 0 for a row without a direction
    one = tl.where(long > 0, 1.0 / tl.where(long > 0, long, 1.0), 0.0)
    tau = tl.zeros((M, 1), tl.float32)
    other = tl.zeros((M, 1), tl.float32)
    if NUMBERS > 0:
        tau = tl.load(numbers + rows, here, 0.0)[:, None]
    if NUMBERS > 1:
        other = tl.load(numbers + N + rows, here, 0.0)[:, None]
    top = tl.full((M,), -float("inf"), tl.float32)
    if AGGREGATE == LOG_SUM_EXP and MODE != TOP:
        top = shift_of(shift, rows, here)
    total = tl.zeros((M,), tl.float32)
    by_length = tl.zeros((M,), tl.float32)
    by_bias = tl.zeros((M,), tl.float32)
    # What a rule and an aggregate compute of an entry would not fit the registers for the whole tile at once.
    left, right = halves(z, M, B)
    z0, z1 = halves(left, M, B // 2)
    z2, z3 = halves(right, M, B // 2)
    Q: tl.constexpr = B // 4
    for q in tl.static_range(4):
        zq = z0 if q == 0 else z1 if q == 1 else z2 if q == 2 else z3
        first = block * B + q * Q
        c = zq * one
        rho, slope = RULE(c, tau, other, p0, p1, p2, p3)
        if STRAIGHT:
            slope = tl.zeros_like(c) + 1.0
        zq = without_labels(with_bias(long * rho, bias, first, C, BIAS, Q), labels, first, N, C, start, K, M, Q)
        if AGGREGATE == LOG_SUM_EXP:
            if MODE == TOP:
                new = tl.maximum(top, tl.max(zq, 1))
                finite = tl.where(new == -float("inf"), 0.0, new)
                total *= tl.exp2(top - finite)
                by_length *= tl.exp2(top - finite)
                top = new
                e = tl.exp2(zq - finite[:, None])
            else:
                e = tl.exp2(zq - top[:, None])
            total += tl.sum(e, 1)
        else:
            if AGGREGATE == SUM_OF_SOFTPLUS:
                value, e = _softplus(zq)
            else:
                e = tl.where(zq == -float("inf"), 0.0, 1.0)
                value = tl.where(zq == -float("inf"), 0.0, zq * LN_2)
            if MODE == SUM:
                total += tl.sum(value, 1)
        if MORE:
            by_length += tl.sum(e * (rho - c * slope), 1)
            if AGGREGATE != LOG_SUM_EXP:
                by_bias += tl.sum(e, 1)
        if AGGREGATE != LOG_SUM_EXP:
            e *= up
        if MODE == COLUMNS:
            e *= tl.load(factor + rows, here, 0.0)[:, None]
            column = first + tl.arange(0, Q)
            tl.store(columns + tl.program_id(0).to(tl.int64) * C + column, tl.sum(e, 0), column < C)
        if KEEP:
            e = tl.clamp(e * tl.where(long > 0, slope, 0.0), -LIMIT, LIMIT)
            out.store([first // SLAB * padded + tl.program_id(0) * M, first % SLAB], e.to(out.dtype))
    at = (tl.zeros((M,), tl.int64) + block) * N + rows
    if (MODE == SUM) | (MODE == TOP):
        tl.store(sums + at, total, here)
        if AGGREGATE == LOG_SUM_EXP:
            tl.store(tops + at, top, here)
    if MORE:
        tl.store(more + at, by_length, here)
        if AGGREGATE != LOG_SUM_EXP:
            tl.store(more + (tl.zeros((M,), tl.int64) + tiles) * N + at, by_bias, here)


@triton.jit
def ruled_scores(
    f, w, out, labels, bias, shift, redo, sums, tops, more, factor, columns, length, numbers, p0, p1, p2, p3, up,
    N, padded, C, start, d, tiles, K: tl.constexpr, MODE: tl.constexpr, KEEP: tl.constexpr, BIAS: tl.constexpr,
    REDO: tl.constexpr, RULE: tl.constexpr, NUMBERS: tl.constexpr, STRAIGHT: tl.constexpr, AGGREGATE: tl.constexpr,
    MORE: tl.constexpr, LIMIT: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, B: tl.constexpr,
    D: tl.constexpr,
):  # fmt: skip
    """Compute M rows and B classes as `kernels.scores` does, each rival counting as RULE says.

    With MORE also, per tile, Σ e·(ρ − c·ρ′), for the gradient by |f|, with the shift of `sums`, and where nothing
    is shifted Σ e beside it, after `tiles` tiles. `up` is the power of two that e is stored times, if unshifted.
    """
    if REDO:
        rows = tl.program_id(0) * M + tl.arange(0, M)
        blocks = tl.where(tl.max(tl.load(redo + rows, rows < N, 0), 0) != 0, tl.cdiv(C, B), 0)
        for block in range(tl.program_id(1), blocks, tl.num_programs(1)):
            _ruled_tile(
                f, w, out, labels, bias, shift, sums, tops, more, factor, columns, length, numbers, p0, p1, p2, p3,
                up, block, N, padded, C, start, d, tiles, K, MODE, KEEP, BIAS, RULE, NUMBERS, STRAIGHT, AGGREGATE,
                MORE, LIMIT, PRECISION, M, B, D,
            )  # fmt: skip
    else:
        _ruled_tile(
            f, w, out, labels, bias, shift, sums, tops, more, factor, columns, length, numbers, p0, p1, p2, p3, up,
            tl.program_id(1), N, padded, C, start, d, tiles, K, MODE, KEEP, BIAS, RULE, NUMBERS, STRAIGHT,
            AGGREGATE, MORE, LIMIT, PRECISION, M, B, D,
        )  # fmt: skip


@triton.jit
def row_facts(
    length, threshold, base, out, N, start, NUMBERS: tl.constexpr, SHIFTED: tl.constexpr, B: tl.constexpr
):
    """Write |f|·log2 e, 0 where f has no direction, and below it the numbers of every row, 0 for NaN.

    Where nothing is shifted the base of every row becomes `start`, unless it is NaN, as that of a bad row is.
    """
    rows = tl.program_id(0) * B + tl.arange(0, B)
    here = rows < N
    long = tl.load(length + rows, here, 0.0).to(tl.float32)
    there = (long >= 1.17549435e-38) & (long <= 3.4028234e38)
    tl.store(out + rows, tl.where(there, long * 1.4426950408889634, 0.0), here)
    for k in tl.static_range(NUMBERS):
        number = tl.load(threshold + rows * NUMBERS + k, here, 0.0).to(tl.float32)
        tl.store(out + (k + 1) * N + rows, tl.where(number != number, 0.0, number), here)
    if not SHIFTED:
        off = tl.load(base + rows, here, 0.0)
        tl.store(base + rows, tl.where(off != off, off, start), here)


@triton.jit
def _over_tiles(x, rows, N, tiles, M: tl.constexpr, B: tl.constexpr):
    """Return the sum of x (tiles, N) over all tiles."""
    total = tl.zeros((B, M), tl.float32)
    for first in range(0, tiles, B):
        tile = first + tl.arange(0, B)
        at = tile.to(tl.int64)[:, None] * N + rows[None, :]
        total += tl.load(x + at, (tile < tiles)[:, None] & (rows < N)[None, :], 0.0)
    return tl.sum(total, 0)


@triton.jit
def add_up(
    sums, more, base, rivals, rivals2, mean, N, tiles, room, FIRST: tl.constexpr, MORE: tl.constexpr,
    M: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Add the sums of these tiles to R, and to what MORE asks for; NaN for a bad row, whose base is NaN.

    `rivals2`, which the backward subtracts, is 0: nothing was shifted.
    """
    rows = tl.program_id(0) * M + tl.arange(0, M)
    here = rows < N
    total = _over_tiles(sums, rows, N, tiles, M, B)
    off = tl.load(base + rows, here, 0.0)
    nan = tl.where(off != off, off, 0.0)
    if not FIRST:
        total += tl.load(rivals + rows, here, 0.0)
    tl.store(rivals + rows, total + nan, here)
    tl.store(rivals2 + rows, nan, here)
    if MORE:
        for k in tl.static_range(2):
            some = _over_tiles(more + k * room.to(tl.int64) * N, rows, N, tiles, M, B)
            if not FIRST:
                some += tl.load(mean + k * N + rows, here, 0.0)
            tl.store(mean + k * N + rows, some, here)


@triton.jit
def mean_of_more(
    more, tops, top_so_far, sum_so_far, top_before, more_so_far, mean, N, tiles, FIRST: tl.constexpr,
    M: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Add up Σ e·(ρ − c·ρ′) of these tiles, and divide by Σ e; run after `combine`, whose tops scale them."""
    rows = tl.program_id(0) * M + tl.arange(0, M)
    here = rows < N
    top = tl.load(top_so_far + rows, here, 0.0)
    top = tl.where(top == -float("inf"), 0.0, top)
    total = tl.zeros((B, M), tl.float32)
    for first in range(0, tiles, B):
        tile = first + tl.arange(0, B)
        at = tile.to(tl.int64)[:, None] * N + rows[None, :]
        there = (tile < tiles)[:, None] & here[None, :]
        off = tl.load(tops + at, there, -float("inf"))
        total += tl.load(more + at, there, 0.0) * tl.exp2(off - top[None, :])
    all_of_it = tl.sum(total, 0)
    if not FIRST:
        before = tl.exp2(tl.load(top_before + rows, here, 0.0) - top)
        all_of_it += tl.load(more_so_far + rows, here, 0.0) * before
    tl.store(top_before + rows, top, here)
    tl.store(more_so_far + rows, all_of_it, here)
    sum_of_e = tl.load(sum_so_far + rows, here, 1.0)
    tl.store(mean + rows, tl.where(sum_of_e > 0, all_of_it / tl.where(sum_of_e > 0, sum_of_e, 1.0), 0.0), here)
