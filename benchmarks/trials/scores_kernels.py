"""Trial: scores whose programs make the unit rows of their own classes, so that no pass has to make them before.

Per step of N rows, C classes, d dimensions, as `kernels.scores` does: 2·N·C·d operations. Bytes through memory: W
read 4·C·d, ŵ written 2·C·d, E written 2·N·C. Today `row_kernels.operands` moves 6·C·d in a pass of its own, in
which the matrix units rest, and `scores` reads ŵ again, 2·C·d. At N = 1024, C = 10⁶, d = 512 that is 5.1 GB
against 6.1 and one pass against two: 1.4 ms, where both together take 2.8.

Bytes from the cache to the multiprocessors are what limits `scores` (16 GB there, tiles of 128 × 128). A program
here takes B classes with all rows, so f passes by once for each B classes, 2·N·d·C/B: 8 GB with B = 128.

- `own_scores` writes ŵ first and then reads it slice by slice beside f, from the cache, for each block of rows. It
  gains the pass and not the traffic. Two programs fit on a multiprocessor, so that one's exp and one's first pass
  hide behind the other's products.
- `still_scores` keeps all of ŵ in shared memory and reads f alone. A program's f must lie there too, a whole block
  of rows of it twice: with d = 512 that leaves room for 64 classes. `pingpong.py` has no such limit.

`tl.range(warp_specialize=True)` and `flatten=True` are not here: Triton 3.6 compiles these loops to the same code
with them. The tile lies as in `kernels.scores`, one label per row, no bias: enough to tell which is faster.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hypermargin.backends.fused.kernels import shift_of


@triton.jit
def unit_rows(
    weight, units, inverse, first, C, d, width, B: tl.constexpr, G: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """Write ŵ and 1/|W| of B classes, G at a time, as `row_kernels.operands` does; each W is read once."""
    at = tl.arange(0, WIDE)
    for g in range(0, B, G):
        row = first + g + tl.arange(0, G).to(tl.int64)
        there = row < C
        w = tl.load(weight + row[:, None] * d + at[None, :], there[:, None] & (at < d)[None, :], 0.0).to(tl.float32)
        # Divided by the largest first, so that no square overflows or vanishes; one division per row.
        less = 1.0 / tl.maximum(tl.max(tl.abs(w), 1), 1e-37)
        w *= less[:, None]
        length = tl.sqrt(tl.sum(w * w, 1))
        one = tl.where(length > 0, 1.0 / length, 0.0)
        tl.store(inverse + row, tl.minimum(one * less, 3.4028234e38), there)
        tl.store(units + row[:, None] * width + at[None, :], (w * one[:, None]).to(units.dtype.element_ty),
                 there[:, None] & (at < width)[None, :])  # fmt: skip
    # What follows reads what other threads have just written. If a check finds E wrong where ŵ is right, this
    # barrier is not enough for loads that pass by the multiprocessor's own cache: a fence for the GPU is missing.
    tl.debug_barrier()


@triton.jit
def slice_of(units, first, C, width, k, B: tl.constexpr, D: tl.constexpr):
    """Return D columns of the unit rows of B classes, by ordinary loads, which see what the program just wrote."""
    row, at = first + tl.arange(0, B).to(tl.int64), k + tl.arange(0, D)
    return tl.load(units + row[:, None] * width + at[None, :], (row < C)[:, None] & (at < width)[None, :], 0.0)


@triton.jit
def finish_tile(
    z, out, labels, shift, sums, block, i, N, padded, C, S: tl.constexpr, M: tl.constexpr, B: tl.constexpr
):  # fmt: skip
    """Write E and its row sums of a tile of logits; a label, and what is past an edge, counts as −inf."""
    rows, column = i * M + tl.arange(0, M), block * B + tl.arange(0, B)
    here = rows < N
    y = tl.load(labels + rows, here, -1)
    masked = tl.sum(((y >= block * B) & (y < block * B + B)).to(tl.int32), 0)
    if (masked > 0) | (block * B + B > C) | (i * M + M > N):
        z = tl.where(here[:, None] & (column < C)[None, :] & (column[None, :] != y[:, None]), z, -float("inf"))
    e = tl.exp2(z - shift_of(shift, rows, here)[:, None])
    tl.store(sums + (tl.zeros((M,), tl.int64) + block) * N + rows, tl.sum(e, 1), here)
    out.store([block * B // S * padded + i * M, block * B % S], e.to(out.dtype))


@triton.jit
def own_scores(
    f, weight, units, inverse, out, labels, shift, sums, N, padded, C, d, width,
    PRECISION: tl.constexpr,
    S: tl.constexpr, B: tl.constexpr, M: tl.constexpr, D: tl.constexpr, G: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Write ŵ, 1/|W|, E and its row sums; every program takes each so-manieth block of B classes."""
    for block in range(tl.program_id(0), tl.cdiv(C, B), tl.num_programs(0)):
        unit_rows(weight, units, inverse, block * B, C, d, width, B, G, WIDE)
        for i in range(tl.cdiv(N, M)):
            z = tl.zeros((M, B), tl.float32)
            for k in range(0, d, D):
                w = slice_of(units, block * B, C, width, k, B, D)
                z = tl.dot(f.load([i * M, k]), w.T, z, input_precision=PRECISION)
            finish_tile(z, out, labels, shift, sums, block, i, N, padded, C, S, M, B)


@triton.jit
def still_scores(
    f, weight, units, inverse, out, labels, shift, sums, N, padded, C, d, width,
    PRECISION: tl.constexpr, SLICES: tl.constexpr,
    S: tl.constexpr, B: tl.constexpr, M: tl.constexpr, D: tl.constexpr, G: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The same with ŵ of the block in shared memory, where the compiler puts right operands made before a loop."""
    for block in range(tl.program_id(0), tl.cdiv(C, B), tl.num_programs(0)):
        unit_rows(weight, units, inverse, block * B, C, d, width, B, G, WIDE)
        w = ()
        for k in tl.static_range(SLICES):
            w = w + (slice_of(units, block * B, C, width, k * D, B, D),)  # noqa: RUF005 (Triton knows no other way)
        for i in range(tl.cdiv(N, M)):
            z = tl.zeros((M, B), tl.float32)
            for k in tl.static_range(SLICES):
                z = tl.dot(f.load([i * M, k * D]), w[k].T, z, input_precision=PRECISION)
            finish_tile(z, out, labels, shift, sums, block, i, N, padded, C, S, M, B)
