"""The fused backend's work on numbers per row, N, as Triton kernels: the loss of a margin, and labels in order."""

from __future__ import annotations

import triton
import triton.language as tl

PI = tl.constexpr(3.141592653589793)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _exp_of_negative(x):
    """Return exp x to 3e-7; x times log2 e alone would carry x's own rounding into the exponent."""
    n = x * LOG2_E
    rest = tl.fma(x, tl.full(x.shape, LOG2_E, tl.float32), -n) + x * 1.9259629911e-8
    return tl.exp2(n) * (1.0 + rest * 0.6931471805599453)


@triton.jit
def _log1p(x):
    """Return log(1 + x) for x from 0 to 1, to 2 ulp, as 2·artanh(x/(2 + x))."""
    t = x / (2.0 + x)
    q = t * t
    p = 0.0666666667 * q + 0.0769230769
    p = p * q + 0.0909090909
    p = p * q + 0.1111111111
    p = p * q + 0.1428571429
    p = p * q + 0.2
    p = p * q + 0.3333333333
    return 2.0 * (t + t * q * p)


@triton.jit
def margin_loss(
    rivals, product, angle, length, labels, loss, gradients, m1, m2, m3, part, N, stride,
    REDUCED: tl.constexpr, MEAN: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Compute softplus(R − T), T = product + length·part·(g(m1·θ + m2) − m3 − cos θ), of all rows by one program.

    `gradients`, in rows of `stride`, are those by rivals, product, angle and length. `labels` are −1 in rows that
    do not count or are bad; a bad row's length is NaN. With REDUCED `loss` is the sum over the rows
    that count, with MEAN their mean.
    """
    at = tl.arange(0, B)
    share = 1.0
    if MEAN:
        counted = tl.zeros((B,), tl.float32)
        for first in range(0, N, B):
            bad = tl.load(length + first + at, first + at < N, 0.0)
            y = tl.load(labels + first + at, first + at < N, -1)
            counted += tl.where((y >= 0) | (bad != bad), 1.0, 0.0)
        share = 1.0 / tl.maximum(tl.sum(counted, 0), 1.0)
    total = tl.zeros((B,), tl.float32)
    for first in range(0, N, B):
        row = first + at
        here = row < N
        R, z = tl.load(rivals + row, here, 0.0), tl.load(product + row, here, 0.0)
        theta, size = tl.load(angle + row, here, 0.0), tl.load(length + row, here, 0.0)
        counts = here & ((tl.load(labels + row, here, -1) >= 0) | (size != size))
        u = m1 * theta + m2
        k = tl.floor(u / PI)
        v = u - k * PI
        lift = part * (tl.cos(v) - 2.0 * k - m3 - tl.cos(theta))
        slope = part * (tl.sin(theta) - m1 * tl.sin(v))
        x = R - (z + size * lift)
        e = _exp_of_negative(-tl.abs(x))
        e = tl.where(x == -float("inf"), 0.0, e)  # no rivals
        value = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL) + _log1p(e)
        g = tl.where(x >= 0, 1.0, e) / (1.0 + e)
        g = tl.where(x != x, x, g) * share
        tl.store(gradients + row, tl.where(counts, g, 0.0), here)
        tl.store(gradients + stride + row, tl.where(counts, -g, 0.0), here)
        tl.store(gradients + 2 * stride + row, tl.where(counts, -g * size * slope, 0.0), here)
        tl.store(gradients + 3 * stride + row, tl.where(counts, -g * lift, 0.0), here)
        value = tl.where(counts, value, 0.0)
        if REDUCED:
            total += value
        else:
            tl.store(loss + row, value, here)
    if REDUCED:
        tl.store(loss, tl.sum(total, 0) * share)


@triton.jit
def sort_labels(labels, found, order, starts, n, programs, tiles, R, P: tl.constexpr, B: tl.constexpr):
    """Sort labels, `order` being where each came from, and find where each tile of R classes begins among them.

    Every place is the number of labels that come before, counted; a sort of so few needs several launches.
    """
    program = tl.program_id(0)
    if program < programs:
        i = program * P + tl.arange(0, P)
        own = tl.load(labels + i, i < n, 0)
        place = tl.zeros((P,), tl.int32)
        for first in range(0, n, B):
            j = first + tl.arange(0, B)
            y = tl.load(labels + j, j < n, 2147483647)
            earlier = (y[None, :] < own[:, None]) | ((y[None, :] == own[:, None]) & (j[None, :] < i[:, None]))
            place += tl.sum(earlier.to(tl.int32), 1)
        tl.store(found + place, own, i < n)
        tl.store(order + place, i, i < n)
    else:
        tile = (program - programs) * P + tl.arange(0, P)
        edge = tile.to(tl.int64) * R
        below = tl.zeros((P,), tl.int32)
        for first in range(0, n, B):
            j = first + tl.arange(0, B)
            y = tl.load(labels + j, j < n, 2147483647)
            below += tl.sum((y.to(tl.int64)[None, :] < edge[:, None]).to(tl.int32), 1)
        tl.store(starts + tile, tl.minimum(below, n), tile <= tiles)
