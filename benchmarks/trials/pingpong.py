"""Trial: scores in Gluon, Triton's lower language: two groups of warps take turns with the matrix units.

The same work and bytes as `scores_kernels.py`, and its 8 GB from the cache with B = 128 classes at d = 512 (N =
1024, C = 10⁶). One program on a multiprocessor: ŵ of its B classes lies in shared memory in slices of 64 columns
(128 KB at d = 512), f passes by in blocks of M rows, one slice after the other, through a ring of STAGES slices.
One warp fills the ring; one group of four warps takes the even blocks of rows, one the odd. They take turns at the
ring: while one group multiplies, the other computes exp and sums and writes E.

Before that each group makes the unit rows of half of the classes; W is read twice, the second time from the cache.
It takes d up to 512 with B = 128, up to 1,024 with B = 64. Needs a Hopper GPU.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

meet = getattr(gl, "thread_barrier", None) or gl.barrier  # its name until Triton 3.6, and since


@gluon.jit
def _piece(weight, row, C, first, d, columns: gl.constexpr, D: gl.constexpr):
    """Return D columns of some rows of the weight, in float32."""
    at = first + gl.arange(0, D, layout=columns)
    return gl.load(weight + row[:, None] * d + at[None, :], (row < C)[:, None] & (at < d)[None, :], 0.0)


@gluon.jit
def _prepare(me: gl.constexpr, weight, units, inverse, w, first, C, d, width):
    """Write this group's half of the unit rows to shared memory and to `units`, and their 1/|W|."""
    SLICES: gl.constexpr = w.type.shape[0]
    B: gl.constexpr = w.type.shape[1]
    D: gl.constexpr = w.type.shape[2]
    H: gl.constexpr = B // 2
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])  # 16 bytes a thread, 2 rows a warp
    along: gl.constexpr = gl.SliceLayout(0, layout)
    row = (first + me * H + gl.arange(0, H, layout=gl.SliceLayout(1, layout))).to(gl.int64)
    total = gl.zeros([H, D], gl.float32, layout=layout)
    largest = gl.zeros([H, D], gl.float32, layout=layout)
    for k in gl.static_range(SLICES):
        piece = _piece(weight, row, C, k * D, d, along, D)
        total += piece * piece
        largest = gl.maximum(largest, gl.abs(piece))
    squares, most = gl.sum(total, 1), gl.max(largest, 1)
    less = gl.where(most >= 0, 1.0, most)
    odd = ((most > 1e15) | ((most < 1e-15) & (most > 0))).to(gl.int32)
    if gl.sum(odd, 0) > 0:  # squares that overflow or vanish: again, divided by the largest
        less = 1.0 / gl.maximum(most, 1e-37)
        total = gl.zeros([H, D], gl.float32, layout=layout)
        for again in range(SLICES):
            part = _piece(weight, row, C, again * D, d, along, D) * less[:, None]
            total += part * part
        squares = gl.sum(total, 1)
    length = gl.sqrt(squares)
    one = gl.where(length > 0, 1.0 / length, 0.0)
    gl.store(inverse + row, gl.minimum(one * less, 3.4028234e38), row < C)
    for k in gl.static_range(SLICES):
        piece = _piece(weight, row, C, k * D, d, along, D) * less[:, None] * one[:, None]
        piece = piece.to(units.dtype.element_ty)
        at = k * D + gl.arange(0, D, layout=along)
        gl.store(units + row[:, None] * width + at[None, :], piece, (row < C)[:, None] & (at < width)[None, :])
        w.index(k).slice(me * H, H).store(piece)
    fence_async_shared()


@gluon.jit
def _score(me: gl.constexpr, tiles, rows_of, memory, N, padded, C, d, width):
    """Take every other block of rows, beginning with number `me`."""
    _, out = tiles
    weight, units, inverse, labels, shift, sums = rows_of
    w, ring, stage, full, empty, ready, turn = memory
    SLICES: gl.constexpr = w.type.shape[0]
    B: gl.constexpr = w.type.shape[1]
    STAGES: gl.constexpr = ring.type.shape[0]
    M: gl.constexpr = ring.type.shape[1]
    block = gl.program_id(0)
    first = block * B
    _prepare(me, weight, units, inverse, w, first, C, d, width)
    meet()
    mbarrier.arrive(ready, count=1)
    mbarrier.wait(ready, 0)  # both halves are there
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, B, 16])
    for i in range(me, gl.cdiv(N, M), 2):
        z = gl.zeros([M, B], gl.float32, layout=mma)
        # A barrier knows its last phase from its next by one bit: who came early would take the wrong slice.
        mbarrier.wait(turn.index(me), (i // 2 & 1) ^ (1 - me))
        for k in gl.static_range(SLICES):
            step = i * SLICES + k
            mbarrier.wait(full.index(step % STAGES), step // STAGES & 1)
            z = warpgroup_mma(ring.index(step % STAGES), w.index(k).permute((1, 0)), z, is_async=True)
            if k:  # the product before this one is over, in all four warps: its slice may be overwritten
                z = warpgroup_mma_wait(1, deps=[z])
                meet()
                mbarrier.arrive(empty.index((step - 1) % STAGES), count=1)
        mbarrier.arrive(turn.index(1 - me), count=1)  # the last product is under way
        z = warpgroup_mma_wait(0, deps=[z])
        meet()
        mbarrier.arrive(empty.index((i * SLICES + SLICES - 1) % STAGES), count=1)
        rows = i * M + gl.arange(0, M, layout=gl.SliceLayout(1, mma))
        column = first + gl.arange(0, B, layout=gl.SliceLayout(0, mma))
        here = rows < N
        y = gl.load(labels + rows, here, -1)
        masked = gl.sum(((y >= first) & (y < first + B)).to(gl.int32), 0)
        if (masked > 0) | (first + B > C) | (i * M + M > N):
            z = gl.where(here[:, None] & (column < C)[None, :] & (column[None, :] != y[:, None]), z, -float("inf"))
        off = gl.load(shift + rows, here, 0.0)
        e = gl.exp2(z - gl.where(off == off, off, 0.0)[:, None])
        gl.store(sums + block.to(gl.int64) * N + rows, gl.sum(e, 1), here)
        tma.store_wait(0)  # what was staged last has been read
        stage.index(me).store(e.to(out.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(out, [first // 256 * padded + i * M, first % 256], stage.index(me))
    tma.store_wait(0)


@gluon.jit
def _even(tiles, rows_of, memory, N, padded, C, d, width):
    _score(0, tiles, rows_of, memory, N, padded, C, d, width)


@gluon.jit
def _odd(tiles, rows_of, memory, N, padded, C, d, width):
    _score(1, tiles, rows_of, memory, N, padded, C, d, width)


@gluon.jit
def _fill(tiles, rows_of, memory, N, padded, C, d, width):
    """Fill the ring with f, block of rows by block of rows, slice by slice."""
    f, _ = tiles
    w, ring, _, full, empty, _, _ = memory
    SLICES: gl.constexpr = w.type.shape[0]
    STAGES: gl.constexpr = ring.type.shape[0]
    M: gl.constexpr = ring.type.shape[1]
    D: gl.constexpr = ring.type.shape[2]
    for step in range(gl.cdiv(N, M) * SLICES):
        slot = step % STAGES
        mbarrier.wait(empty.index(slot), (step // STAGES & 1) ^ 1)  # passes at once the first time round
        mbarrier.expect(full.index(slot), f.block_type.nbytes)
        at = [step // SLICES * M, step % SLICES * D]
        tma.async_copy_global_to_shared(f, at, full.index(slot), ring.index(slot))


@gluon.jit
def pingpong_scores(
    f, weight, units, inverse, out, labels, shift, sums, N, padded, C, d, width,
    SLICES: gl.constexpr, STAGES: gl.constexpr, B: gl.constexpr, M: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    """Write ŵ, 1/|W|, E and its row sums of one block of B classes."""
    flat: gl.constexpr = gl.NVMMASharedLayout.get_default_for([B, D], f.dtype)
    w = gl.allocate_shared_memory(f.dtype, [SLICES, B, D], flat)
    ring = gl.allocate_shared_memory(f.dtype, [STAGES, M, D], f.layout)
    stage = gl.allocate_shared_memory(out.dtype, [2, M, B], out.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for me in gl.static_range(2):
        mbarrier.init(turn.index(me), count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=1)
    mbarrier.init(ready, count=2)
    fence_async_shared()
    tiles = (f, out)
    rows_of = (weight, units, inverse, labels, shift, sums)
    memory = (w, ring, stage, full, empty, ready, turn)
    given = (tiles, rows_of, memory, N, padded, C, d, width)
    gl.warp_specialize([(_even, given), (_odd, given), (_fill, given)], [4, 1], [232, 24])
