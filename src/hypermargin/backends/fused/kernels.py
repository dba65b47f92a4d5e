"""The matrix products of the fused backend, as Triton kernels. `ops.py` lays out every matrix they read in tiles.

Logits are in units of ln 2 (the features come multiplied by log2 e), so that exp is exp2. Tiles are read and
written through tensor descriptors: past the edge they read zeros and write nothing. Offsets into tensors as large
as the weight are 64 bits wide. Nothing is added with atomics, so the same input gives the same bits.

E (rows × classes) is stored in slabs of SLAB classes, with all (padded) rows of a slab together. A column of tiles
is then contiguous in memory; with rows of a million classes every line of a tile would be on another page.
"""

from __future__ import annotations

import triton
import triton.language as tl

SLAB = tl.constexpr(256)

# What `scores` does with a tile of logits z.
SUM = tl.constexpr(0)  # adds up exp(z − shift), stores sum and shift, and stores exp(z − shift) if KEEP
TOP = tl.constexpr(1)  # the same with each row's maximum in the tile in place of the shift: right for any z
SHARE = tl.constexpr(2)  # stores exp(z − shift)


@triton.jit
def products(f, w, block, d, PRECISION: tl.constexpr, M: tl.constexpr, B: tl.constexpr, D: tl.constexpr):
    """Return the products of this program's M rows with B classes."""
    z = tl.zeros((M, B), tl.float32)
    for k in range(0, d, D):
        z = tl.dot(f.load([tl.program_id(0) * M, k]), w.load([block * B, k]).T, z, input_precision=PRECISION)
    return z


@triton.jit
def with_bias(z, bias, first, C, BIAS: tl.constexpr, B: tl.constexpr):
    """Return z + b for B classes from `first` on."""
    if BIAS:
        column = first + tl.arange(0, B)
        z += tl.load(bias + column, column < C, 0.0)[None, :]
    return z


@triton.jit
def without_labels(z, labels, first, N, C, start, K: tl.constexpr, M: tl.constexpr, B: tl.constexpr):
    """Return z with −inf where a class is a label of its row, or where the tile reaches over an edge."""
    rows, column = tl.program_id(0) * M + tl.arange(0, M), first + tl.arange(0, B)
    here = rows < N
    masked = tl.where((first + B > C) | (tl.program_id(0) * M + M > N), 1, 0)
    for k in tl.static_range(K):
        y = tl.load(labels + rows * K + k, here, -1) - start
        masked += tl.sum(((y >= first) & (y < first + B)).to(tl.int32), 0)
    if masked > 0:  # few tiles hold a label or reach over an edge
        z = tl.where(here[:, None] & (column < C)[None, :], z, -float("inf"))
        for k in tl.static_range(K):
            y = tl.load(labels + rows * K + k, here, -1) - start
            z = tl.where(column[None, :] == y[:, None], -float("inf"), z)
    return z


@triton.jit
def shift_of(shift, rows, here):
    """Return the shift of every row; 0 for a bad one, whose shift is NaN."""
    off = tl.load(shift + rows, here, 0.0)
    return tl.where(off != off, 0.0, off)


@triton.jit
def _score_tile(
    f, w, out, labels, bias, shift, sums, tops, block, N, padded, C, start, d,
    K: tl.constexpr, MODE: tl.constexpr, KEEP: tl.constexpr, BIAS: tl.constexpr,
    PRECISION: tl.constexpr, M: tl.constexpr, B: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * M + tl.arange(0, M)
    here = rows < N
    first = block * B
    z = with_bias(products(f, w, block, d, PRECISION, M, B, D), bias, first, C, BIAS, B)
    z = without_labels(z, labels, first, N, C, start, K, M, B)
    at = (tl.zeros((M,), tl.int64) + block) * N + rows
    if MODE == TOP:
        top = tl.max(z, 1)
        tl.store(tops + at, top, here)
        z -= tl.where(top == -float("inf"), 0.0, top)[:, None]
    else:
        off = shift_of(shift, rows, here)
        z -= off[:, None]
        if MODE == SUM:
            tl.store(tops + at, off, here)
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
    """Compute the logits of M rows and B classes, reduced or stored as MODE says; each row's labels count as −inf.

    Programs with the same classes are neighbours, so that a tile of the weight is read from memory once. With REDO
    only the blocks of rows in which `redo` marks a row are computed. `start` is the number of the first of the C
    classes.
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
def feature_gradient(
    e, w, out, N, padded, C, d, each, ADDED: tl.constexpr, PRECISION: tl.constexpr, ROUNDS: tl.constexpr,
    S: tl.constexpr, M: tl.constexpr, D: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Compute E·w̃ over `each` classes per program; out (splits, N, d) has one sum per share of the classes."""
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
    else:  # the matrix units drop low bits at every addition, so in float32 their sums are kept short
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
def halves(x, R: tl.constexpr, D: tl.constexpr):
    """Return the left and the right half of a tile's columns."""
    return tl.split(tl.permute(tl.reshape(x, (R, 2, D // 2)), (0, 2, 1)))


@triton.jit
def _unit(weight, inverse, row, there, column, d, D: tl.constexpr):
    """Return D columns of the unit weight, in float32."""
    at = column + tl.arange(0, D)
    w = tl.load(weight + row[:, None] * d + at[None, :], there[:, None] & (at < d)[None, :], 0.0)
    return w.to(tl.float32) * inverse[:, None]


@triton.jit
def _finish(
    g, along, weight, inverse, out, row, there, column, d, UNIT: tl.constexpr, LIMIT: tl.constexpr, D: tl.constexpr
):
    """Write (G − ŵ⟨ŵ, G⟩)/|W| of D columns, or G without UNIT; what does not fit the dtype saturates."""
    at = column + tl.arange(0, D)
    if UNIT:
        g = (g - _unit(weight, inverse, row, there, column, d, D) * along[:, None]) * inverse[:, None]
    g = tl.clamp(g, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + row[:, None] * d + at[None, :], g.to(out.dtype.element_ty), there[:, None] & (at < d)[None, :])


@triton.jit
def _quarters(g, R: tl.constexpr, D: tl.constexpr):
    """Return the four quarters of a tile's columns: a whole tile and as much of the weight exceed the registers."""
    left, right = halves(g, R, D)
    g0, g1 = halves(left, R, D // 2)
    g2, g3 = halves(right, R, D // 2)
    return g0, g1, g2, g3


@triton.jit
def _gradient_tile(
    e, f, by_total, unscale, starts, order, labels, by_rows, block, column, N, padded, start, d,
    TOTAL: tl.constexpr, PRECISION: tl.constexpr, R: tl.constexpr, D: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Return Eᵀ·f for R classes and D columns, times unscale², plus the gradients of label rows and Σ_j w̃_j."""
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
    """Write the gradients of R classes, in TILES tiles of D columns; without PROJECT their plain sums.

    The part along ŵ is known only after the last tile. The earlier tiles are written to `out` unprojected and read
    again afterwards, when `out` is in the cache. `labels` is sorted, `order` has the rows of by_rows that they came
    from, and `starts` says where each block of R classes begins in `labels`.
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
        tl.debug_barrier()  # the loop below reads what other threads have just written
        for q in range(4 * (TILES - 1)):
            at = q * Q + tl.arange(0, Q)
            waiting = tl.load(out + row[:, None] * d + at[None, :], there[:, None] & (at < d)[None, :], 0.0)
            _finish(waiting, along, weight, one, out, row, there, q * Q, d, True, LIMIT, Q)
