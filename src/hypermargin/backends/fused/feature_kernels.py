"""The fused backend's work on rows of features and of labels, N×d, as Triton kernels.

A row that holds NaN or inf, or whose label is no class, is bad: its features become zeros, and its base becomes
NaN, which makes its R NaN and its share of every gradient but its own 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

PI = tl.constexpr(3.141592653589793)
LOG2_E = tl.constexpr(1.4426950408889634)
LARGEST = tl.constexpr(3.4028234e38)
CONE = tl.constexpr(9.5367431640625e-07)  # 8 eps, inside which the tangent's direction is rounding noise

# GIVEN says which gradients `before` and `after` are given: 1 by product, 2 by angle, 4 by length, 8 by norm,
# added up. GRADS says what they are multiplied by: 0 nothing, 1 the number in `grad`, 2 one number per row.


@triton.jit
def _is_finite(x):
    """Return whether no entry is NaN or infinite."""
    return tl.sum(tl.where(tl.abs(x) <= LARGEST, 0, 1), 0) == 0


@triton.jit
def _unit(x):
    """Return x/|x| and |x|; zeros for a row of zeros. It is divided by its largest entry before it is squared."""
    largest = tl.max(tl.abs(x), 0)
    x = x / tl.where(largest > 0, largest, 1.0)
    length = tl.sqrt(tl.sum(x * x, 0))
    return x / tl.where(length > 0, length, 1.0), tl.minimum(length * largest, LARGEST)


@triton.jit
def _base(length, classes):
    """Return the constant, in units of ln 2, that is taken off the logits of a row before exp is stored.

    No logit exceeds `length`, so no R exceeds length + ln C, and nearly all are above ln C − 8. The constant brings
    both under WINDOW's upper end and over its lower one, as far as the two are not further apart than it is wide.
    """
    most = tl.log2(classes)
    return tl.floor(tl.minimum(tl.maximum(length * LOG2_E + most - 82.0, 0.0), most + 11.0))


@triton.jit
def _arctangent(y, x):
    """Return atan2(y, x) of two numbers that are not negative, to 2 ulp."""
    q = tl.minimum(y, x) / tl.maximum(tl.maximum(y, x), 1e-38)
    large = q > 0.41421356237
    q = tl.where(large, (q - 1.0) / (q + 1.0), q)
    z = q * q
    p = 8.05374449538e-2 * z - 1.38776856032e-1
    p = (p * z + 1.99777106478e-1) * z - 3.33329491539e-1
    p = p * z * q + q
    p = tl.where(large, PI / 4 + p, p)
    return tl.where(y > x, PI / 2 - p, p)


@triton.jit
def _geometry(x, weight, label, there, row, d, D: tl.constexpr):
    """Return x̂, |x| and the unit row of the label; zeros in a row that does not count."""
    at = tl.arange(0, D)
    values = tl.load(x + row * d + at, (at < d) & there, 0.0).to(tl.float32)
    u, norm = _unit(values)
    own = tl.load(weight + label.to(tl.int64) * d + at, (at < d) & there, 0.0).to(tl.float32)
    v, _ = _unit(own)
    return u, norm, v


@triton.jit
def look(
    x, weight, labels, scale, out, clean, base, product, angle, length, norm, s, C, d, width,
    IGNORED: tl.constexpr, SCALES: tl.constexpr, LIMIT: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Write f = s·x̂ as an operand, and of each row: label, base, ⟨f, ŵ_y⟩, the angle between them, |f| and |x|.

    A row whose label is IGNORED does not count: all is zero, and its clean label −1, as a bad row's is. SCALES: 0
    `s` is the scale, 1 `scale` holds it, 2 `scale` holds one per row.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, D)
    label = tl.load(labels + row)
    counts = label != IGNORED
    values = tl.load(x + row * d + at, at < d, 0.0).to(tl.float32)
    bad = counts & (((label < 0) | (label >= C)) | (_is_finite(values) == 0))
    label = tl.where(counts & (bad == 0), label, -1).to(tl.int32)
    tl.store(clean + row, label)
    u, size, v = _geometry(x, weight, tl.maximum(label, 0), label >= 0, row, d, D)
    s = tl.load(scale + row * (SCALES - 1)).to(tl.float32) if SCALES else s
    f = u * s
    near, far = tl.sqrt(tl.sum((u - v) * (u - v), 0)), tl.sqrt(tl.sum((u + v) * (u + v), 0))
    theta = tl.where(near + far == 0, PI / 2, 2 * _arctangent(near, far))
    long = tl.where(size > 0, s, 0.0)
    nan = tl.where(bad, float("nan"), 0.0)
    tl.store(base + row, _base(long, C * 1.0) + nan)
    tl.store(product + row, tl.sum(f * v, 0) + nan)
    tl.store(angle + row, theta + nan)
    tl.store(length + row, long + nan)
    tl.store(norm + row, size + nan)
    f = tl.clamp(f * LOG2_E, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + row * width + at, f.to(out.dtype.element_ty), at < width)


@triton.jit
def _turned(u, v, by_angle):
    """Return the gradients of the angle by u and v: the unit tangents, without gradient where there is none."""
    near, far = tl.sqrt(tl.sum((u - v) * (u - v), 0)), tl.sqrt(tl.sum((u + v) * (u + v), 0))
    cone = tl.minimum(near, far) <= CONE
    ratio = tl.where(cone, 1.0, near) / tl.where(cone, 1.0, far)  # tan θ/2
    half = tl.where(cone, 0.0, by_angle / 2)
    along, across = half / ratio * (u - v), half * ratio * (u + v)
    return along - across, -along - across


@triton.jit
def before(
    x, weight, labels, scale, by_product, by_angle, grad, relative, first, second, by_rows, s, N, d, width,
    SCALES: tl.constexpr, GIVEN: tl.constexpr, GRADS: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr,
    LIMIT: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Write what dW needs of a row: f times its factor φ (`first`) and φ' (`second`), and the gradient of ŵ_y."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, D)
    label = tl.load(labels + row)
    there = label >= 0
    u, _, v = _geometry(x, weight, tl.maximum(label, 0), there, row, d, D)
    f = u * (tl.load(scale + row * (SCALES - 1)).to(tl.float32) if SCALES else s)
    if FIRST:
        part = tl.clamp(f * tl.load(relative + row), -LIMIT, LIMIT)
        tl.store(first + row * width + at, part.to(first.dtype.element_ty), at < width)
    if SECOND:
        part = tl.clamp(f * tl.load(relative + N + row), -LIMIT, LIMIT)
        tl.store(second + row * width + at, part.to(second.dtype.element_ty), at < width)
    g = tl.zeros((D,), tl.float32)
    if GIVEN & 1:
        g += tl.load(by_product + row) * f
    if GIVEN & 2:
        _, by_v = _turned(u, v, tl.load(by_angle + row))
        g += by_v
    if GRADS:
        g *= tl.load(grad + row * (GRADS - 1))
    tl.store(by_rows + row * d + at, tl.where(there, g, 0.0), at < d)


@triton.jit
def after(
    parts, roots, earlier, x, weight, labels, scale, base, by_product, by_angle, by_length, by_norm, grad, out,
    by_scale, s, N, d, splits, SCALES: tl.constexpr, GIVEN: tl.constexpr, GRADS: tl.constexpr, ADDED: tl.constexpr,
    BY_SCALE: tl.constexpr, LIMIT: tl.constexpr, S: tl.constexpr, D: tl.constexpr, BY_X: tl.constexpr,
):  # fmt: skip
    """Write the gradient of a row of x if BY_X, and of its s if BY_SCALE.

    It is the sum of `parts` of E·w̃, times φ, and what is given by the target. φ is given by its root, since φ
    itself may exceed float32's range. ADDED adds what is in `earlier`.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, D)
    label = tl.load(labels + row)
    there = label >= 0
    u, norm, v = _geometry(x, weight, tl.maximum(label, 0), there, row, d, D)
    s = tl.load(scale + row * (SCALES - 1)).to(tl.float32) if SCALES else s
    total = tl.zeros((S, D), tl.float32)
    for split in range(0, splits, S):
        some = (split + tl.arange(0, S)).to(tl.int64)[:, None]
        mask = (some < splits) & (at < d)[None, :] & there
        total += tl.load(parts + (some * N + row) * d + at[None, :], mask, 0.0)
    root = tl.load(roots + row)
    by_f = tl.sum(total, 0) * tl.abs(root) * root
    if ADDED:
        by_f += tl.load(earlier + row * d + at, at < d, 0.0)
    share = tl.load(grad + row * (GRADS - 1)) if GRADS else 1.0
    if GIVEN & 1:
        by_f += tl.load(by_product + row) * share * v
    if BY_X:
        g = s * by_f
        if GIVEN & 2:
            by_u, _ = _turned(u, v, tl.load(by_angle + row) * share)
            g += by_u
        g = tl.where(norm > 0, (g - u * tl.sum(u * g, 0)) / tl.where(norm > 0, norm, 1.0), 0.0)
        if GIVEN & 8:
            g += tl.load(by_norm + row) * share * u
        bad = tl.load(base + row)
        g = tl.where(there, g, tl.where(bad != bad, float("nan"), 0.0))
        g = tl.clamp(g, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL)
        tl.store(out + row * d + at, g.to(out.dtype.element_ty), at < d)
    if BY_SCALE:
        by_s = tl.sum(by_f * u, 0)
        if GIVEN & 4:
            by_s += tl.where(norm > 0, tl.load(by_length + row) * share, 0.0)
        tl.store(by_scale + row, tl.where(there, by_s, 0.0))


@triton.jit
def label_rows(weight, labels, out, C, d, UNIT: tl.constexpr, OUTSIDE: tl.constexpr, D: tl.constexpr):
    """Write w̃ of one label; class 0's where the label is OUTSIDE the slice, NaN where there is no such class."""
    at = tl.arange(0, D)
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    label = tl.where(label == OUTSIDE, 0, label).to(tl.int64)
    wrong = (label < 0) | (label >= C)
    w = tl.load(weight + tl.where(wrong, 0, label) * d + at, at < d, 0.0).to(tl.float32)
    w = tl.where(wrong, float("nan"), w)
    if UNIT:
        w, _ = _unit(w)
    tl.store(out + row * d + at, w, at < d)


@triton.jit
def pack(
    f, factor, labels, base, out, C, d, width, scale, FACTOR: tl.constexpr, BASE: tl.constexpr,
    UNIT: tl.constexpr, K: tl.constexpr, OUTSIDE: tl.constexpr, LIMIT: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Write a row of features as an operand: times `scale`, times its factor, saturated, padded with zeros.

    With BASE also the row's base, which is 0 without UNIT, since nothing is known of the logits.
    """
    at = tl.arange(0, D)
    row = tl.program_id(0).to(tl.int64)
    x = tl.load(f + row * d + at, at < d, 0.0)
    good = _is_finite(x)
    x = tl.where(good, x, 0.0)
    if BASE:
        off = tl.zeros((1,), tl.float32)
        if UNIT:
            _, length = _unit(x)
            off += _base(length, C * 1.0)
        for k in tl.static_range(K):
            y = tl.load(labels + row * K + k)
            good = good & ((y == OUTSIDE) | ((y >= 0) & (y < C)))
        tl.store(base + row + tl.arange(0, 1), tl.where(good, off, float("nan")))
    x *= scale
    if FACTOR:
        x *= tl.load(factor + row)
    x = tl.clamp(x, -LIMIT, LIMIT)
    tl.store(out + row * width + at, x.to(out.dtype.element_ty), at < width)


@triton.jit
def sum_parts(parts, roots, out, size, d, splits, ADDED: tl.constexpr, B: tl.constexpr):
    """Compute df = φ_i·Σ of the parts, by the root of φ_i twice, since φ_i itself may exceed float32's range."""
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
