"""What a rival counts as, in a tile of cosines: ρ(c) and its slope, one Triton function per rule.

Each is given a tile of cosines, two numbers of every row (M, 1), such as a threshold, and four numbers of the rule.
The formulas are those of `hypermargin.rules`, and `rules.py` says which rule takes which function. What
`rules/_angles.py` does near ±1 is done here: where sin² θ is at most 4 eps, sin θ is 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

PI = tl.constexpr(3.141592653589793)
LOG2_E = tl.constexpr(1.4426950408889634)
FLAT = tl.constexpr(4.76837158203125e-07)  # 4 eps


@triton.jit
def _squared_sine(c):
    """Return sin² θ where it is known, else 1, and whether it is."""
    squared = (1.0 - c) * (1.0 + c)
    inside = squared > FLAT
    return tl.where(inside, squared, 1.0), inside


@triton.jit
def _angle(c):
    """Return θ to 2e-8, by Abramowitz and Stegun 4.4.46."""
    _, inside = _squared_sine(c)
    x = tl.minimum(tl.abs(c), 1.0)
    p = -0.0012624911 * x + 0.0066700901
    p = p * x - 0.0170881256
    p = p * x + 0.0308918810
    p = p * x - 0.0501743046
    p = p * x + 0.0889789874
    p = p * x - 0.2145988016
    p = p * x + 1.5707963050
    p = tl.where(inside, tl.sqrt(1.0 - x) * p, 0.0)
    return tl.where(c > 0, p, -p + PI)


@triton.jit
def _circular(theta):
    """Return cos θ and sin θ for θ in [0, π], by their series around π/2."""
    u = -theta + PI / 2
    v = u * u
    sine = -7.6471637e-13 * v + 1.6059044e-10
    sine = sine * v - 2.5052108e-08
    sine = sine * v + 2.7557319e-06
    sine = sine * v - 1.9841270e-04
    sine = sine * v + 8.3333333e-03
    sine = sine * v - 1.6666667e-01
    cosine = -1.1470746e-11 * v + 2.0876757e-09
    cosine = cosine * v - 2.7557319e-07
    cosine = cosine * v + 2.4801587e-05
    cosine = cosine * v - 1.3888889e-03
    cosine = cosine * v + 4.1666667e-02
    cosine = cosine * v - 0.5
    return u + u * v * sine, 1.0 + v * cosine


@triton.jit
def _nearer(c, cos_m, sin_m):
    """Return cos(θ − m) and its slope sin(θ − m)/sin θ."""
    squared, inside = _squared_sine(c)
    root = tl.sqrt(squared)
    sine = tl.where(inside, root, 0.0)
    cotangent = tl.where(inside, c / root, 0.0)
    return cos_m * c + sin_m * sine, cos_m - sin_m * cotangent


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp2(x * -LOG2_E))


@triton.jit
def identity(c, row, more, p0, p1, p2, p3):
    """Return c."""
    return c, tl.zeros_like(c) + 1.0


@triton.jit
def raised(c, tau, unused, factor, plus, p2, p3):
    """Return factor·c + plus for c > τ, else c: MV-Softmax and NPCFace."""
    hard = c > tau
    return tl.where(hard, factor * c + plus, c), tl.where(hard, factor, 1.0)


@triton.jit
def curricular(c, tau, t, p0, p1, p2, p3):
    """Return c·(t + c) for c > τ, else c."""
    hard = c > tau
    return tl.where(hard, c * (t + c), c), tl.where(hard, t + 2.0 * c, 1.0)


@triton.jit
def filtered(c, row, more, above, p1, p2, p3):
    """Return c, 0 for c > above."""
    left_out = c > above
    return tl.where(left_out, 0.0, c), tl.where(left_out, 0.0, 1.0)


@triton.jit
def nearest_nearer(c, tau, unused, cos_m, sin_m, p2, p3):
    """Return cos(θ − m) for c > τ, else c: inter-top-k."""
    near, slope = _nearer(c, cos_m, sin_m)
    return tl.where(c > tau, near, c), tl.where(c > tau, slope, 1.0)


@triton.jit
def nearer(c, row, more, cos_m, sin_m, p2, p3):
    """Return cos(θ − m): double margins by the angle."""
    return _nearer(c, cos_m, sin_m)


@triton.jit
def plus(c, row, more, m, p1, p2, p3):
    """Return c + m: double margins by the cosine."""
    return c + m, tl.zeros_like(c) + 1.0


@triton.jit
def near_target(c, psi, unused, alpha, sigma, p2, p3):
    """Return w·c + w − 1, w = alpha·exp(−(c − ψ)²/sigma): ArcNegFace."""
    w = alpha * tl.exp2((c - psi) * (c - psi) / sigma * -LOG2_E)
    return w * c + w - 1.0, w


@triton.jit
def circle(c, row, more, m, p1, p2, p3):
    """Return max(c + m, 0)·(c − m)."""
    w = tl.maximum(c + m, 0.0)
    return w * (c - m), w


@triton.jit
def linear_in_angle(c, row, more, p0, p1, p2, p3):
    """Return 1 − 2θ/π: Li-ArcFace."""
    squared, inside = _squared_sine(c)
    return 1.0 - _angle(c) * (2.0 / PI), tl.where(inside, 2.0 / (tl.sqrt(squared) * PI), 0.0)


@triton.jit
def slower(c, row, more, m, p1, p2, p3):
    """Return cos(θ/m): SphereFace-R."""
    squared, inside = _squared_sine(c)
    cosine, sine = _circular(_angle(c) / m)
    return cosine, tl.where(inside, sine / (m * tl.sqrt(squared)), 0.0)


@triton.jit
def _power(c, t):
    """Return 2((c + 1)/2)^t − 1 and its slope."""
    x = tl.maximum((c + 1.0) * 0.5, 0.0)
    some = tl.where(x > 0, x, 1.0)
    lower = tl.where(x > 0, tl.exp2((t - 1.0) * tl.log2(some)), tl.where(t == 1.0, 1.0, 0.0))
    return 2.0 * x * lower - 1.0, t * lower


@triton.jit
def power(c, row, more, t, m, p2, p3):
    """Return g(c) + m, g(c) = 2((c + 1)/2)^t − 1: SphereFace2, variant C."""
    value, slope = _power(c, t)
    return value + m, slope


@triton.jit
def cube(c, row, more, t, m, p2, p3):
    """Return the same for t = 3, which needs no power."""
    x = tl.maximum((c + 1.0) * 0.5, 0.0)
    return 2.0 * x * x * x - 1.0 + m, 3.0 * x * x


@triton.jit
def power_nearer(c, row, more, t, cos_m, sin_m, p3):
    """Return g(cos(θ − m)): SphereFace2, variant A."""
    at, inner = _nearer(c, cos_m, sin_m)
    value, slope = _power(at, t)
    return value, slope * inner


@triton.jit
def within_reach(c, row, more, k, b, p2, p3):
    """Return σ(k(b − θ))·c: SFace."""
    v = _sigmoid(k * (b - _angle(c)))
    return v * c, v


@triton.jit
def half_square(c, row, more, p0, p1, p2, p3):
    """Return c²/2: P2SGrad, where a bias or a pool keeps it from its d×d matrix."""
    return 0.5 * c * c, c
