"""Trial: dW in tiles that finish alone, of any shape, because the projection is known without whole rows.

dW_j = (G_j − ŵ_j·⟨ŵ_j, G_j⟩)/|W_j| with G_j = Σ_i φ_i·E_ij·f_i + (rows whose label is j).
`kernels.weight_gradient` computes ⟨ŵ_j, G_j⟩ from whole rows of G, so its tiles are 64 × d, or go through memory
twice. But ⟨ŵ_j, f_i⟩ = z_ij, and E_ij = 2^(z_ij·log₂e − shift_i), so

    ⟨ŵ_j, G_j⟩ = ln 2 · Σ_i φ_i·E_ij·(log₂ E_ij + shift_i) + ⟨ŵ_j, rows whose label is j⟩

and the last term is one product per row. E is rounded to bfloat16 in both forms.

Per step 2·N·C·d operations. Bytes through memory: E read 2·N·C once if the programs that share a tile of it run
together, W read and dW written, 4·C·d each. From the cache: E d/D times, f 2·N·d·C/R: 4 + 8 GB with tiles of 128 ×
256 at N = 1024, C = 10⁶, d = 512, where 64 × 512 take 2 + 16. `weight_gradient` takes 2.66 ms there; 2.0 to 2.2
expected. The logarithms, one per entry and tile, N·C·d/D: 2·10⁹ there, .5 ms of the units for them, beside the
products. Or once per entry, N·C, where E is read for df anyway (`along_features`): then a tile of dW reads N/M
partial sums per class.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hypermargin.backends.fused.kernels import _finish, _quarters

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def label_along(weight, inverse, labels, by_rows, out, d, D: tl.constexpr):
    """Write ⟨ŵ_y, the gradient of the label's row⟩ of every row of the batch; 0 where there is no label."""
    i = tl.program_id(0).to(tl.int64)
    y, at = tl.load(labels + i), tl.arange(0, D)
    own = tl.load(weight + tl.maximum(y, 0).to(tl.int64) * d + at, (at < d) & (y >= 0), 0.0).to(tl.float32)
    one = tl.load(inverse + tl.maximum(y, 0))
    tl.store(out + i, tl.sum(own * one * tl.load(by_rows + i * d + at, at < d, 0.0), 0))


@triton.jit
def along_of(tile, phi, shift, FAST: tl.constexpr):
    """Return E_ij·(φ_i·log₂ E_ij + φ_i·shift_i) of a tile of E; 0 where E is 0.

    FAST is one instruction in place of Triton's twenty, good to 2⁻²² where E itself is rounded to 2⁻⁹.
    """
    x = tile.to(tl.float32)
    some = tl.maximum(x, 1.1754944e-38)
    if FAST:
        z = tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [some], tl.float32, True, 1)
    else:
        z = tl.log2(some)
    return x * (phi[:, None] * z + (phi * shift)[:, None])


@triton.jit
def lone_gradient(
    e, f, weight, inverse, out, unscale, relative, shift, parts, by_labels, starts, order, labels, by_rows,
    N, padded, C, d, rows_of_parts,
    LOGS: tl.constexpr, FAST: tl.constexpr, LIMIT: tl.constexpr, PRECISION: tl.constexpr,
    S: tl.constexpr, R: tl.constexpr, D: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Write the gradients of R classes and D columns per tile.

    With LOGS ⟨ŵ, Σ φ E f⟩ is computed here, without it is the sum of the rows of `parts`. `relative` is φ over the
    largest |φ|, which the rows of f have been multiplied by, and the square of `unscale` is that largest.
    """
    across = tl.cdiv(d, D)
    for t in range(tl.program_id(0), tl.cdiv(C, R) * across, tl.num_programs(0)):
        block, column = t // across, (t % across) * D  # tiles with the same classes are neighbours in time
        slab = block * R // S * padded
        g = tl.zeros((R, D), tl.float32)
        sums = tl.zeros((B, R), tl.float32)
        for k in range(0, N, B):
            tile = e.load([slab + k, block * R % S])
            if LOGS:
                i = k + tl.arange(0, B)
                here = i < N
                sums += along_of(tile, tl.load(relative + i, here, 0.0), tl.load(shift + i, here, 0.0), FAST)
            g = tl.dot(tile.T, f.load([k, column]), g, input_precision=PRECISION)
        row = block.to(tl.int64) * R + tl.arange(0, R)
        there = row < C
        if LOGS:
            along = tl.sum(sums, 0)
        else:
            along = tl.zeros((R,), tl.float32)
            for p in range(rows_of_parts):
                along += tl.load(parts + p * C.to(tl.int64) + row, there, 0.0)
        u = tl.load(unscale)
        g = g * u * u
        along = along * LN_2 * u * u
        columns = column + tl.arange(0, D)
        for at in range(tl.load(starts + block), tl.load(starts + block + 1)):
            mine = tl.arange(0, R) == tl.load(labels + at) - block * R
            i = tl.load(order + at)
            g += tl.where(mine[:, None], tl.load(by_rows + i * d + columns, columns < d, 0.0)[None, :], 0.0)
            along += tl.where(mine, tl.load(by_labels + i), 0.0)
        one = tl.load(inverse + row, there, 0.0)
        Q: tl.constexpr = D // 4
        g0, g1, g2, g3 = _quarters(g, R, D)
        _finish(g0, along, weight, one, out, row, there, column, d, True, LIMIT, Q)
        _finish(g1, along, weight, one, out, row, there, column + Q, d, True, LIMIT, Q)
        _finish(g2, along, weight, one, out, row, there, column + 2 * Q, d, True, LIMIT, Q)
        _finish(g3, along, weight, one, out, row, there, column + 3 * Q, d, True, LIMIT, Q)


@triton.jit
def along_features(
    e, w, out, parts, relative, shift, N, padded, C, first, d, each, classes,
    ADDED: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr, S: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """`kernels.feature_gradient`, which also writes each class's Σ φ E (log₂ E + shift) over its rows into `parts`.

    `parts` is (blocks of M rows, all `classes`); `first` is the number of the first of the C classes. Programs that
    share a tile of E, one for each D columns, take turns with the sums: nothing is computed twice, or added with
    atomics.
    """
    across = tl.cdiv(d, D)
    rows_at, turn = tl.program_id(0) // across, tl.program_id(0) % across
    row, column = rows_at * M, turn * D
    rows, columns = row + tl.arange(0, M), column + tl.arange(0, D)
    here = rows < N
    phi, off = tl.load(relative + rows, here, 0.0), tl.load(shift + rows, here, 0.0)
    mine = parts + rows_at * classes.to(tl.int64) + first
    total = tl.zeros((M, D), tl.float32)
    begin = tl.program_id(1) * each
    end = tl.minimum(begin + each, C)
    for k in range(begin, end, B):
        tile = e.load([k // S * padded + row, k % S])
        if (k // B) % across == turn:
            at = k + tl.arange(0, B)
            found = tl.where(here[:, None], along_of(tile, phi, off, FAST), 0.0)  # E past N may be anything
            tl.store(mine + at, tl.sum(found, 0), at < end)
        total = tl.dot(tile, w.load([k, column]), total, input_precision=PRECISION)
    at = out + tl.program_id(1).to(tl.int64) * N * d + rows[:, None] * d + columns[None, :]
    there = here[:, None] & (columns < d)[None, :]
    if ADDED:
        total += tl.load(at, there, 0.0)
    tl.store(at, total, there)
