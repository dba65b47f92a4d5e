"""The Triton kernels of the fused backend. Every matrix they read as a tile is one that `ops.py` laid out.

Logits are in units of ln 2 (the features come multiplied by log2 e), so that exp is exp2. Tiles are read and
written through tensor descriptors: past the edge they read zeros and write nothing. Offsets into tensors as large
as the weight are 64 bits wide. Nothing is added with atomics, so the same input gives the same bits.

E, rows × classes, is kept in slabs of SLAB classes, all (padded) rows of a slab together: a column of tiles is then
one stretch of memory, where rows a million classes long would put every line of a tile on another page.
"""

from __future__ import annotations

import triton
import triton.language as tl

SLAB = tl.constexpr(256)

# What `scores` does with a tile of logits z.
SUM = tl.constexpr(0)  # adds up exp z, and stores it if asked to
TOP = tl.constexpr(1)  # takes the tile's maximum off first, and returns both: right for any z
SHARE = tl.constexpr(2)  # stores exp(z − shift)

# What becomes of a row of the weight's gradient.
STORE = tl.constexpr(0)  # written
ADD = tl.constexpr(1)  # added to what is there
SGD = tl.constexpr(2)  # a step of SGD on the weight itself


@triton.jit
def operands(
    weight, out, inverse, total, rows, d, out_stride, UNIT: tl.constexpr, TOTAL: tl.constexpr,
    ROWS: tl.constexpr, D: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """w̃ as an operand of the products, 1/|W_j| (0 for zero rows), and each program's share of Σ_j w̃_j."""
    at = tl.arange(0, D)
    part = tl.zeros((D,), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        there = (row < rows)[:, None] & (at < d)[None, :]
        w = tl.load(weight + row[:, None] * d + at[None, :], there, 0.0).to(tl.float32)
        if UNIT:
            largest = tl.max(tl.abs(w), 1)  # taken off first, so that no square overflows or vanishes
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
def _score_tile(
    f, w, out, labels, bias, shift, sums, tops, block, N, padded, C, start, d,
    K: tl.constexpr, MODE: tl.constexpr, KEEP: tl.constexpr, BIAS: tl.constexpr,
    PRECISION: tl.constexpr, M: tl.constexpr, B: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * M + tl.arange(0, M)
    here = rows < N
    first = block * B
    z = tl.zeros((M, B), tl.float32)
    for k in range(0, d, D):
        z = tl.dot(f.load([tl.program_id(0) * M, k]), w.load([first, k]).T, z, input_precision=PRECISION)
    column = first + tl.arange(0, B)
    if BIAS:
        z += tl.load(bias + column, column < C, 0.0)[None, :]
    masked = tl.where((first + B > C) | (tl.program_id(0) * M + M > N), 1, 0)
    for k in tl.static_range(K):
        y = tl.load(labels + rows * K + k, here, -1) - start
        masked += tl.sum(((y >= first) & (y < first + B)).to(tl.int32), 0)
    if masked > 0:  # few tiles hold a label or reach over an edge
        z = tl.where(here[:, None] & (column < C)[None, :], z, -float("inf"))
        for k in tl.static_range(K):
            y = tl.load(labels + rows * K + k, here, -1) - start
            z = tl.where(column[None, :] == y[:, None], -float("inf"), z)
    at = (tl.zeros((M,), tl.int64) + block) * N + rows
    if MODE == TOP:
        top = tl.max(z, 1)
        tl.store(tops + at, top, here)
        z -= tl.where(top == -float("inf"), 0.0, top)[:, None]
    if MODE == SHARE:
        z -= tl.load(shift + rows, here, 0.0)[:, None]
    e = tl.exp2(z)
    if MODE != SHARE:
        tl.store(sums + at, tl.sum(e, 1), here)
    if KEEP:
        out.store([first // SLAB * padded + tl.program_id(0) * M, first % SLAB], e.to(out.dtype))


@triton.jit
def scores(
    f, w, out, labels, bias, shift, redo, sums, tops, N, padded, C, start, d,
    K: tl.constexpr, MODE: tl.constexpr, KEEP: tl.constexpr, BIAS: tl.constexpr, REDO: tl.constexpr,
    PRECISION: tl.constexpr, M: tl.constexpr, B: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Logits of M rows against B classes, reduced or stored as MODE says; a row's labels count as −inf.

    Programs with the same classes are neighbours, so that a tile of the weight is read from memory once. With REDO
    only the blocks with a row marked there are done. `start` is the number of the first of the C classes.
    """
    if REDO:
        rows = tl.program_id(0) * M + tl.arange(0, M)
        blocks = tl.where(tl.max(tl.load(redo + rows, rows < N, 0), 0) != 0, tl.cdiv(C, B), 0)
        for block in range(tl.program_id(1), blocks, tl.num_programs(1)):
            _score_tile(
                f, w, out, labels, bias, shift, sums, tops, block, N, padded, C, start, d,
                K, MODE, KEEP, BIAS, PRECISION, M, B, D,
            )  # fmt: skip
    else:  # without a loop around it the tile needs less shared memory, and two fit on a multiprocessor
        _score_tile(
            f, w, out, labels, bias, shift, sums, tops, tl.program_id(1), N, padded, C, start, d,
            K, MODE, KEEP, BIAS, PRECISION, M, B, D,
        )  # fmt: skip


@triton.jit
def mark(sums, redo, N, blocks, LOW: tl.constexpr, HIGH: tl.constexpr, M: tl.constexpr, B: tl.constexpr):
    """Which rows' sums of exp z, over these tiles, are too near the ends of the range, or beyond."""
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
    sums, tops, top_so_far, sum_so_far, rivals, rivals2, hardest, N, blocks,
    FIRST: tl.constexpr, M: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Σ of sum·2^top over the tiles so far, as top and sum; its logarithm, natural and in base 2; the largest top.

    The backward subtracts the one in base 2: a row with one rival far above the others then has P = 1 exactly.
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
    tl.store(top_so_far + rows, top, here)
    tl.store(sum_so_far + rows, all_of_it, here)
    r = tl.where(top == -float("inf"), 0.0, top) + tl.log2(all_of_it)
    tl.store(rivals + rows, r * 0.6931471805599453, here)
    tl.store(rivals2 + rows, r, here)
    tl.store(hardest + rows, top * 0.6931471805599453, here)


@triton.jit
def feature_gradient(
    e, w, out, N, padded, C, d, each, ADDED: tl.constexpr, PRECISION: tl.constexpr, ROUNDS: tl.constexpr,
    S: tl.constexpr, M: tl.constexpr, D: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """E·w̃ over `each` classes a program; out (splits, N, d) has one sum for each share of the classes."""
    across = tl.cdiv(d, D)
    row = (tl.program_id(0) // across) * M
    column = (tl.program_id(0) % across) * D
    rows = row + tl.arange(0, M)
    columns = column + tl.arange(0, D)
    split = tl.program_id(1).to(tl.int64)
    at = out + split * N * d + rows[:, None] * d + columns[None, :]
    there = (rows < N)[:, None] & (columns < d)[None, :]
    total = tl.zeros((M, D), tl.float32)
    begin = tl.program_id(1) * each
    end = tl.minimum(begin + each, C)
    if ROUNDS == 0:
        for k in range(begin, end, B):
            tile = e.load([k // S * padded + row, k % S])
            total = tl.dot(tile, w.load([k, column]), total, input_precision=PRECISION)
    else:  # the matrix units cut off low bits at every addition: in float32 their sums are kept short
        for outer in range(begin, end, B * ROUNDS):
            part = tl.zeros((M, D), tl.float32)
            for k in range(outer, tl.minimum(outer + B * ROUNDS, end), B):
                tile = e.load([k // S * padded + row, k % S])
                part = tl.dot(tile, w.load([k, column]), part, input_precision=PRECISION)
            total += part
    if ADDED:
        total += tl.load(at, there, 0.0)
    tl.store(at, total, there)


@triton.jit
def _halves(x, R: tl.constexpr, D: tl.constexpr):
    """Left and right half of a tile's columns."""
    return tl.split(tl.permute(tl.reshape(x, (R, 2, D // 2)), (0, 2, 1)))


@triton.jit
def _unit(weight, inverse, row, there, column, d, D: tl.constexpr):
    """Columns of the unit weight, in float32."""
    at = column + tl.arange(0, D)
    w = tl.load(weight + row[:, None] * d + at[None, :], there[:, None] & (at < d)[None, :], 0.0)
    return w.to(tl.float32) * inverse[:, None]


@triton.jit
def _finish(
    g, along, weight, inverse, out, row, there, column, d, UNIT: tl.constexpr, LIMIT: tl.constexpr, D: tl.constexpr
):
    """(G − ŵ⟨ŵ, G⟩)/|W| of some columns, written; what does not fit the dtype saturates."""
    at = column + tl.arange(0, D)
    if UNIT:
        g = (g - _unit(weight, inverse, row, there, column, d, D) * along[:, None]) * inverse[:, None]
    g = tl.clamp(g, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + row[:, None] * d + at[None, :], g.to(out.dtype.element_ty), there[:, None] & (at < d)[None, :])


@triton.jit
def _quarters(g, R: tl.constexpr, D: tl.constexpr):
    """A tile in four: all of it and as much of the weight would not fit into the registers."""
    left, right = _halves(g, R, D)
    g0, g1 = _halves(left, R, D // 2)
    g2, g3 = _halves(right, R, D // 2)
    return g0, g1, g2, g3


@triton.jit
def _gradient_tile(
    e, f, by_total, unscale, starts, order, labels, by_rows, block, column, N, padded, start, d,
    TOTAL: tl.constexpr, PRECISION: tl.constexpr, R: tl.constexpr, D: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Eᵀ·f for R classes and D columns, times unscale², plus what the label rows and Σ_j w̃_j receive."""
    g = tl.zeros((R, D), tl.float32)
    slab = block * R // SLAB * padded
    for k in range(0, N, B):
        tile = e.load([slab + k, block * R % SLAB])
        g = tl.dot(tile.T, f.load([k, column]), g, input_precision=PRECISION)
    u = tl.load(unscale)
    g = g * u * u  # u² alone could leave float32
    columns = column + tl.arange(0, D)
    if TOTAL:
        g += tl.load(by_total + columns, columns < d, 0.0)[None, :]
    for at in range(tl.load(starts + block), tl.load(starts + block + 1)):
        lane = tl.load(labels + at) - start - block * R
        mine = tl.load(by_rows + tl.load(order + at) * d + columns, columns < d, 0.0)
        g += tl.where((tl.arange(0, R) == lane)[:, None], mine[None, :], 0.0)
    return g


@triton.jit
def weight_gradient(
    e, f, weight, inverse, out, by_total, unscale, starts, order, labels, by_rows, N, padded, C, start, d,
    PROJECT: tl.constexpr, TOTAL: tl.constexpr, LIMIT: tl.constexpr, PRECISION: tl.constexpr,
    TILES: tl.constexpr, R: tl.constexpr, D: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The gradients of R classes, in TILES tiles of D columns; without PROJECT their plain sums.

    What lies along ŵ is known when the last tile is: the others wait in `out`, which is in the cache by then.
    `labels` is sorted, `order` are the rows of by_rows it came from, `starts` where each block of R begins in it.
    """
    block = tl.program_id(0)
    row = block.to(tl.int64) * R + tl.arange(0, R)
    there = row < C
    Q: tl.constexpr = D // 4
    one = tl.zeros((R,), tl.float32)
    if PROJECT:
        one = tl.load(inverse + row, there, 0.0)
    along = tl.zeros((R,), tl.float32)
    for t in tl.static_range(TILES):
        g = _gradient_tile(
            e, f, by_total, unscale, starts, order, labels, by_rows, block, t * D, N, padded, start, d,
            TOTAL, PRECISION, R, D, B,
        )  # fmt: skip
        g0, g1, g2, g3 = _quarters(g, R, D)
        if PROJECT:
            along += tl.sum(g0 * _unit(weight, one, row, there, t * D, d, Q), 1)
            along += tl.sum(g1 * _unit(weight, one, row, there, t * D + Q, d, Q), 1)
            along += tl.sum(g2 * _unit(weight, one, row, there, t * D + 2 * Q, d, Q), 1)
            along += tl.sum(g3 * _unit(weight, one, row, there, t * D + 3 * Q, d, Q), 1)
        _finish(g0, along, weight, one, out, row, there, t * D, d, PROJECT and t == TILES - 1, LIMIT, Q)
        _finish(g1, along, weight, one, out, row, there, t * D + Q, d, PROJECT and t == TILES - 1, LIMIT, Q)
        _finish(g2, along, weight, one, out, row, there, t * D + 2 * Q, d, PROJECT and t == TILES - 1, LIMIT, Q)
        _finish(g3, along, weight, one, out, row, there, t * D + 3 * Q, d, PROJECT and t == TILES - 1, LIMIT, Q)
    if PROJECT and TILES > 1:
        tl.debug_barrier()  # what follows reads what was just written
        for q in range(4 * (TILES - 1)):
            at = q * Q + tl.arange(0, Q)
            waiting = tl.load(out + row[:, None] * d + at[None, :], there[:, None] & (at < d)[None, :], 0.0)
            _finish(waiting, along, weight, one, out, row, there, q * Q, d, True, LIMIT, Q)


@triton.jit
def finish_rows(
    raw, weight, inverse, out, momentum, settings, C, d, UNIT: tl.constexpr, MODE: tl.constexpr,
    MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, RENORM: tl.constexpr, LIMIT: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Raw sums (C, d) to gradients: stored, added, or used for a step of SGD on the weight.

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
    """Σ_i φ_i·E_ij of a slab of classes: the bias's gradient. `half` is the square root of φ's largest."""
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
def label_rows(weight, labels, out, C, d, UNIT: tl.constexpr, OUTSIDE: tl.constexpr, D: tl.constexpr):
    """w̃ of one label; of class 0 where the label is OUTSIDE the slice; NaN where there is no such class."""
    at = tl.arange(0, D)
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    label = tl.where(label == OUTSIDE, 0, label).to(tl.int64)
    wrong = (label < 0) | (label >= C)
    w = tl.load(weight + tl.where(wrong, 0, label) * d + at, at < d, 0.0).to(tl.float32)
    w = tl.where(wrong, float("nan"), w)
    if UNIT:
        largest = tl.max(tl.abs(w), 0)
        w = w / tl.where(largest > 0, largest, 1.0)
        length = tl.sqrt(tl.sum(w * w, 0))
        w = w / tl.where(length > 0, length, 1.0)
    tl.store(out + row * d + at, w, at < d)


@triton.jit
def pack(f, factor, out, d, width, scale, FACTOR: tl.constexpr, LIMIT: tl.constexpr, D: tl.constexpr):
    """A row of features as an operand: times a number, times its factor; saturated, padded with zeros."""
    at = tl.arange(0, D)
    row = tl.program_id(0).to(tl.int64)
    x = tl.load(f + row * d + at, at < d, 0.0) * scale
    if FACTOR:
        x *= tl.load(factor + row)
    x = tl.clamp(x, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + row * width + at, x.to(out.dtype.element_ty), at < width)


@triton.jit
def factors(
    rivals, rivals2, by_rivals, shift, redo, relative, roots, largest, N, lift,
    LOW: tl.constexpr, HIGH: tl.constexpr, ROWS: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """What the backward needs of every row. The gradient by z is φ_i·E_ij, or φ'_i·P_ij.

    φ = g·exp(−R) where E was stored and R is inside its window; in blocks of M rows with one outside, E is replaced
    by P and φ = φ'. P is stored as exp2(z − shift), P·2^lift, so φ' = g·2^−lift. Both span more of the exponent's
    range than float32 has: `relative` is φ over the largest of all rows, `largest` the square root of that one, and
    `roots` that of |φ_i|, with φ_i's sign. The three have two rows, φ's and φ'’s.
    """
    top = tl.full((1, 1), -float("inf"), tl.float32)
    top_share = tl.full((1, 1), -float("inf"), tl.float32)
    for first in range(0, N, ROWS * M):
        row = first + tl.arange(0, ROWS)[:, None] * M + tl.arange(0, M)[None, :]
        there = row < N
        R = tl.load(rivals + row, there, 0.0)
        g = tl.where(-float("inf") == R, 0.0, tl.load(by_rivals + row, there, 0.0))
        outside = ((R < LOW) | (R > HIGH)).to(tl.int32)
        replaced = tl.max(outside, 1)[:, None] != 0
        log_share = tl.log(tl.abs(g)) - lift * 0.6931471805599453
        log = tl.where(replaced, log_share, log_share - R)
        tl.store(shift + row, tl.where(-float("inf") == R, float("inf"), R * 1.4426950408889634 - lift), there)
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


@triton.jit
def sum_parts(parts, roots, out, size, d, splits, ADDED: tl.constexpr, B: tl.constexpr):
    """df: φ_i·Σ of the parts, φ_i as its root twice."""
    at = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    there = at < size
    total = tl.zeros((B,), tl.float32)
    for split in range(splits):
        total += tl.load(parts + (tl.zeros((B,), tl.int64) + split) * size + at, there, 0.0)
    root = tl.load(roots + at // d, there, 0.0)
    total = total * tl.abs(root) * root
    if ADDED:
        total += tl.load(out + at, there, 0.0)
    tl.store(out + at, total, there)
