"""The smaller Triton kernels of the fused backend, which prepare the products of `kernels.py` and finish them.

They pass over rows of the weight, of the features, or of sums; none multiplies matrices.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hypermargin.backends.fused.kernels import SLAB

# What `finish_rows` does with the weight's gradient.
STORE = tl.constexpr(0)  # writes it to `out`
ADD = tl.constexpr(1)  # adds it to `out`
SGD = tl.constexpr(2)  # makes a step of SGD on the weight itself


@triton.jit
def operands(
    weight, out, inverse, total, rows, d, out_stride, UNIT: tl.constexpr, TOTAL: tl.constexpr,
    ROWS: tl.constexpr, D: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """Write w̃ as an operand of the products, 1/|W_j| (0 for zero rows), and each program's share of Σ_j w̃_j."""
    at = tl.arange(0, D)
    part = tl.zeros((D,), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        there = (row < rows)[:, None] & (at < d)[None, :]
        w = tl.load(weight + row[:, None] * d + at[None, :], there, 0.0).to(tl.float32)
        if UNIT:
            largest = tl.max(tl.abs(w), 1)  # divided by first, so that no square overflows or vanishes
            scaled = w / tl.where(largest > 0, largest, 1.0)[:, None]
            length = tl.sqrt(tl.sum(scaled * scaled, 1))
            length = tl.where(length > 0, length, float("inf"))
            w = scaled / length[:, None]
            one = 1.0 / (length * tl.where(largest > 0, largest, 1.0))
            tl.store(inverse + row, tl.minimum(one, 3.4028234e38), row < rows)
        else:
            w = tl.clamp(w, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL)
        if TOTAL:
            part += tl.sum(w, 0)
        tl.store(out + row[:, None] * out_stride + at[None, :], w.to(out.dtype.element_ty),
                 (row < rows)[:, None] & (at < out_stride)[None, :])  # fmt: skip
    if TOTAL:
        tl.store(total + tl.program_id(0) * d + at, part, at < d)


@triton.jit
def mark(sums, redo, N, blocks, LOW: tl.constexpr, HIGH: tl.constexpr, M: tl.constexpr, B: tl.constexpr):
    """Mark in `redo` the rows whose sum of exp(z − base) over these tiles is not between LOW and HIGH."""
    rows = tl.program_id(0) * M + tl.arange(0, M)
    total = tl.zeros((B, M), tl.float32)
    for first in range(0, blocks, B):
        block = first + tl.arange(0, B)
        at = block.to(tl.int64)[:, None] * N + rows[None, :]
        total += tl.load(sums + at, (block < blocks)[:, None] & (rows < N)[None, :], 0.0)
    all_of_it = tl.sum(total, 0)
    good = (all_of_it > LOW) & (all_of_it < HIGH)
    tl.store(redo + rows, 1 - good.to(tl.int32), rows < N)


@triton.jit
def combine(
    sums, tops, base, top_so_far, sum_so_far, rivals, rivals2, hardest, more, N, blocks,
    FIRST: tl.constexpr, GUESS: tl.constexpr, M: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Add up sum·2^top over the tiles so far; store it as a top and a sum, and its logarithm (natural and base 2).

    The logarithm of a bad row, whose base is NaN, is NaN. `hardest` is the largest top, in natural units. The
    backward subtracts the logarithm in base 2: a row with one rival far above the others then has P = 1 exactly.

    With GUESS the tiles are a sample, and all that is stored is a base: the logarithm and `more`, rounded down.
    """
    rows = tl.program_id(0) * M + tl.arange(0, M)
    here = rows < N
    top = tl.full((M,), -float("inf"), tl.float32)
    before = tl.zeros((M,), tl.float32)
    if not FIRST:
        top, before = tl.load(top_so_far + rows, here, -float("inf")), tl.load(sum_so_far + rows, here, 0.0)
    total = tl.zeros((B, M), tl.float32)
    for first in range(0, blocks, B):
        block = first + tl.arange(0, B)
        at = block.to(tl.int64)[:, None] * N + rows[None, :]
        there = (block < blocks)[:, None] & here[None, :]
        t = tl.load(tops + at, there, -float("inf"))
        new = tl.maximum(top, tl.max(t, 0))
        finite = tl.where(new == -float("inf"), 0.0, new)
        before *= tl.exp2(top - finite)
        total = total * tl.exp2(top - finite)[None, :]
        total += tl.load(sums + at, there, 0.0) * tl.exp2(t - finite[None, :])
        top = new
    all_of_it = before + tl.sum(total, 0)
    bad = tl.load(base + rows, here, 0.0)
    if not GUESS:
        tl.store(top_so_far + rows, top, here)
        tl.store(sum_so_far + rows, all_of_it, here)
    top = tl.where(bad != bad, bad, top)
    r = tl.where(top == -float("inf"), 0.0, top) + tl.log2(all_of_it)
    if GUESS:
        tl.store(base + rows, tl.where(r == -float("inf"), 0.0, tl.floor(r + more)), here)
        return
    tl.store(rivals + rows, r * 0.6931471805599453, here)
    tl.store(rivals2 + rows, r, here)
    tl.store(hardest + rows, top * 0.6931471805599453, here)


@triton.jit
def finish_rows(
    raw, weight, inverse, out, momentum, settings, C, d, UNIT: tl.constexpr, MODE: tl.constexpr,
    MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, RENORM: tl.constexpr, LIMIT: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Turn raw sums (C, d) into gradients, and store them, add them, or make a step of SGD on the weight.

    `settings` holds learning rate, momentum and weight decay on the device, so that a CUDA graph sees them change.
    """
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    columns = tl.arange(0, D)
    there = (row < C)[:, None] & (columns < d)[None, :]
    at = row[:, None] * d + columns[None, :]
    g = tl.load(raw + at, there, 0.0)
    w = tl.load(weight + at, there, 0.0).to(tl.float32)
    if UNIT:
        one = tl.load(inverse + row, row < C, 0.0)
        unit = w * one[:, None]
        g = (g - unit * tl.sum(g * unit, 1)[:, None]) * one[:, None]
    g = tl.clamp(g, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL)
    if MODE == STORE:
        tl.store(out + at, g.to(out.dtype.element_ty), there)
    if MODE == ADD:
        tl.store(out + at, tl.load(out + at, there, 0.0) + g, there)
    if MODE == SGD:
        rate, keep, decay = tl.load(settings), tl.load(settings + 1), tl.load(settings + 2)
        g += decay * w
        if MOMENTUM:
            v = keep * tl.load(momentum + at, there, 0.0) + g
            tl.store(momentum + at, v, there)
            g = g + keep * v if NESTEROV else v
        w -= rate * g
        if RENORM:
            largest = tl.max(tl.abs(w), 1)
            w = w / tl.where(largest > 0, largest, 1.0)[:, None]
            length = tl.sqrt(tl.sum(w * w, 1))
            w = w / tl.where(length > 0, length, 1.0)[:, None]
        tl.store(weight + at, w.to(weight.dtype.element_ty), there)


@triton.jit
def column_sums(e, factor, half, out, N, padded, C, R: tl.constexpr):
    """Compute the bias's gradient Σ_i φ_i·E_ij of a slab of classes. `half` is the root of the largest |φ_i|."""
    column = tl.arange(0, SLAB)
    part = tl.zeros((R, SLAB), tl.float32)
    slab = tl.program_id(0).to(tl.int64)
    for first in range(0, N, R):
        row = first + tl.arange(0, R)
        at = (slab * padded + row)[:, None] * SLAB + column[None, :]
        x = tl.load(e + at, (row < N)[:, None], 0.0).to(tl.float32)
        part += x * tl.load(factor + row, row < N, 0.0)[:, None]
    h = tl.load(half)
    tl.store(out + slab * SLAB + column, tl.sum(part, 0) * h * h, slab * SLAB + column < C)


@triton.jit
def factors(
    rivals2, base, by_rivals, grad, shift, redo, relative, roots, largest, N, lift,
    GRADS: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, ROWS: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Compute the factors φ of every row for the backward. The gradient of z is φ_i·E_ij, or φ'_i·P_ij.

    φ = g·exp(base − R) where E was stored and R − base is inside its window. In blocks of M rows of which one is
    outside, E is replaced by P and φ = φ'. φ of a bad row is 0. P is stored as exp2(z − shift), that is P·2^lift,
    so φ' = g·2^−lift. Both can exceed
    float32's range, so they are stored in parts: `relative` is φ divided by the largest |φ| of all rows, `largest`
    is the square root of that largest, and `roots` is the square root of |φ_i| with the sign of φ_i. Each of the
    three has two rows, one for φ and one for φ'.
    """
    top = tl.full((1, 1), -float("inf"), tl.float32)
    top_share = tl.full((1, 1), -float("inf"), tl.float32)
    for first in range(0, N, ROWS * M):
        row = first + tl.arange(0, ROWS)[:, None] * M + tl.arange(0, M)[None, :]
        there = row < N
        R2 = tl.load(rivals2 + row, there, 0.0)  # not R·log2 e: that would differ from z by its rounding
        R = (R2 - tl.load(base + row, there, 0.0)) * 0.6931471805599453
        nothing = (-float("inf") == R2) | (R2 != R2)  # no rivals, or a bad row
        g = tl.where(nothing, 0.0, tl.load(by_rivals + row, there, 0.0))
        if GRADS:  # see feature_kernels.py
            g *= tl.load(grad + row * (GRADS - 1), there, 0.0)
        outside = (there & ((R < LOW) | (R > HIGH))).to(tl.int32)
        replaced = tl.max(outside, 1)[:, None] != 0
        log_g = tl.log(tl.abs(g))
        log_share = log_g - lift * 0.6931471805599453
        log = tl.where(replaced, log_share, log_g - tl.where(nothing, 0.0, R))
        tl.store(shift + row, tl.where(nothing, float("inf"), R2 - lift), there)
        tl.store(redo + row, outside, there)
        sign = tl.where(g < 0, -1.0, 1.0)
        tl.store(roots + row, log, there)
        tl.store(roots + N + row, log_share, there)
        tl.store(relative + row, sign, there)
        top = tl.maximum(top, tl.max(tl.max(tl.where(there, log, -float("inf")), 1), 0))
        top_share = tl.maximum(top_share, tl.max(tl.max(tl.where(there, log_share, -float("inf")), 1), 0))
    top = tl.where(top == -float("inf"), 0.0, top)
    top_share = tl.where(top_share == -float("inf"), 0.0, top_share)
    tl.debug_barrier()  # what follows reads what was just written
    for first in range(0, N, ROWS * M):
        row = first + tl.arange(0, ROWS)[:, None] * M + tl.arange(0, M)[None, :]
        there = row < N
        log, log_share = tl.load(roots + row, there, 0.0), tl.load(roots + N + row, there, 0.0)
        sign = tl.load(relative + row, there, 0.0)
        tl.store(relative + row, sign * tl.exp(log - top), there)
        tl.store(relative + N + row, sign * tl.exp(log_share - top_share), there)
        tl.store(roots + row, sign * tl.exp(log / 2), there)
        tl.store(roots + N + row, sign * tl.exp(log_share / 2), there)
    one = tl.zeros((1, 1), tl.int32)
    tl.store(largest + one, tl.exp(top / 2))
    tl.store(largest + 1 + one, tl.exp(top_share / 2))
