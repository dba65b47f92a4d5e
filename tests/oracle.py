"""Loss and gradients of every head, written out a second time: numpy, 80-bit floats, derivatives by hand.

Nothing is shared with the library: the angle comes from the projection and not from sums and differences, ψ from
its branches and not from g, and each derivative is the formula, not autograd. Each gradient comes with a scale, the
sum of the sizes of what was added up and projected, against which rounding is to be judged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hypermargin import margins as hm

L = np.longdouble
PI = L("3.14159265358979323846264338327950288")
CONE = 8 * np.finfo(np.float64).eps


def psi_and_slopes(margin, theta, m):
    """ψ, dψ/dθ and dψ/dm (a list, one for each number of the margin) at one angle."""
    cos, sin = np.cos(theta), np.sin(theta)
    if isinstance(margin, hm.NoMargin):
        return cos, -sin, []
    if isinstance(margin, hm.CosFace):
        return cos - m[0], -sin, [L(-1)]
    if isinstance(margin, hm.SphereFace):
        u = m[0] * theta
        if margin.beyond == "none":
            value, slope, by_m = np.cos(u), -m[0] * np.sin(u), -theta * np.sin(u)
        elif margin.beyond == "flat":
            value, slope, by_m = L(-1), L(0), L(0)
            if u <= PI:
                value, slope, by_m = np.cos(u), -m[0] * np.sin(u), -theta * np.sin(u)
        else:
            k = int(np.floor(u / PI))
            sign = -1 if k % 2 else 1
            value = sign * np.cos(u) - 2 * k
            slope, by_m = -m[0] * abs(np.sin(u)), -theta * abs(np.sin(u))
        lam = L(margin.lam)
        return (lam * cos + value) / (1 + lam), (-lam * sin + slope) / (1 + lam), [by_m / (1 + lam)]
    if isinstance(margin, hm.Piecewise):
        u = m[0] * theta
        if u <= PI:
            return np.cos(u), -m[0] * np.sin(u), [-theta * np.sin(u)]
        return 1 - 2 * u / PI, -2 * m[0] / PI, [-2 * theta / PI]
    if isinstance(margin, hm.ArcFace):
        a, u = m[0], theta + m[0]
        within = theta < PI / 2 if margin.beyond == "easy" else u <= PI
        if within or margin.beyond == "none":
            return np.cos(u), -np.sin(u), [-np.sin(u)]
        return {
            "smooth": lambda: (-np.cos(u) - 2, np.sin(u), [np.sin(u)]),
            "linear": lambda: (cos - a * np.sin(a), -sin, [-np.sin(a) - a * np.cos(a)]),
            "continuous": lambda: (cos - 1 + np.cos(a), -sin, [-np.sin(a)]),
            "flat": lambda: (L(-1), L(0), [L(0)]),
            "easy": lambda: (cos, -sin, [L(0)]),
        }[margin.beyond]()
    if isinstance(margin, hm.Combined):
        u = m[0] * theta + m[1]
        k = 0 if margin.beyond == "none" else int(np.floor(u / PI))
        sign = -1 if k % 2 else 1
        fall = -np.sin(u) if margin.beyond == "none" else -abs(np.sin(u))
        return sign * np.cos(u) - 2 * k - m[2], m[0] * fall, [theta * fall, fall, L(-1)]
    if isinstance(margin, hm.SphereFace2):
        half = (1 + cos) / 2
        return 2 * half ** L(margin.t) - 1 - m[0], -L(margin.t) * half ** (L(margin.t) - 1) * sin, [L(-1)]
    if isinstance(margin, hm.MagFace):  # without a head, so of the shortest feature
        value, slope, by_m = psi_and_slopes(hm.ArcFace(0.0, margin.beyond), theta, m[:1])
        return value, slope, [*by_m, L(0)]
    if isinstance(margin, hm.X2Softmax):
        off = theta - L(margin.h)
        return L(margin.a) * off**2 + L(margin.k), 2 * L(margin.a) * off, []
    if isinstance(margin, hm.ExpFace):
        share = max(theta / PI, L(1e-12))
        u = PI * share ** m[0]
        by_theta = m[0] * share ** (m[0] - 1) if theta / PI > L(1e-12) else L(0)
        return np.cos(u), -np.sin(u) * by_theta, [-np.sin(u) * u * np.log(share)]
    if isinstance(margin, hm.LiArcFace):
        return 1 - 2 * (theta + m[0]) / PI, -2 / PI, [-2 / PI]
    if isinstance(margin, hm.P2SGrad):
        return -((1 - cos) ** 2) / 2, -(1 - cos) * sin, []
    if isinstance(margin, hm.Circle):  # the weight counts as constant
        weight = max(1 + m[0] - cos, L(0))
        return weight * (cos - 1 + m[0]), -weight * sin, [weight]
    if isinstance(margin, hm.SFace):  # the weight counts as constant
        weight = 1 / (1 + np.exp(-L(margin.k) * (theta - L(margin.a))))
        return weight * cos, -weight * sin, []
    if isinstance(margin, hm.AdaFace):  # without a head, so of ordinary length: CosFace but for the ends
        edge = L(1e-3)
        inside = edge < theta < PI - edge
        return np.cos(min(max(theta, edge), PI - edge)) - m[0], -sin if inside else L(0), [L(-1)]
    raise NotImplementedError(margin)


@dataclass
class Result:
    losses: np.ndarray  # (N,)
    x: np.ndarray
    W: np.ndarray
    b: np.ndarray
    s: np.ndarray
    m: np.ndarray
    scale: dict[str, np.ndarray]  # per row of x, per row of W, per entry of b, for s, for m


def _direction(v):
    largest = abs(v).max()
    if largest == 0:
        return v, L(0)
    n = largest * np.sqrt(((v / largest) ** 2).sum())
    return v / n, n


def oracle(x, W, y, margin, *, s=1.0, b=None, unit_x, unit_w, m=None, lam=0.0, straight=False) -> Result:
    """Sum of the losses over the rows, and its gradients."""
    x, W, s, lam = np.asarray(x, L), np.asarray(W, L), L(s), L(lam)
    N, C = len(x), len(W)
    b = np.zeros(C, L) if b is None else np.asarray(b, L)
    own = [] if margin.m is None else list(margin.m) if isinstance(margin.m, tuple) else [margin.m]
    m = np.asarray(own if m is None else m, L).reshape(-1)
    losses, dx, dW, db = np.zeros(N, L), np.zeros_like(x), np.zeros_like(W), np.zeros(C, L)
    ds, dm = L(0), np.zeros(len(m), L)
    size = {"x": np.zeros(N, L), "W": np.zeros(C, L), "b": np.zeros(C, L), "s": L(0), "m": np.zeros(len(m), L)}
    directions = [_direction(w) for w in W]
    for i in range(N):
        xh, nx = _direction(x[i])
        fx = (L(1) if nx else L(0)) if unit_x else nx
        plain = np.zeros(C, L)
        for j, (wh, nw) in enumerate(directions):
            plain[j] = fx * (L(1) if unit_w else nw) * (xh @ wh)
        z = s * plain + b
        wh, nw = directions[y[i]]
        fw = L(1) if unit_w else nw
        c = xh @ wh
        t = wh - c * xh
        sin = _direction(t)[1]
        theta = np.arctan2(sin, c) if nx and nw else PI / 2
        psi, slope, by_m = psi_and_slopes(margin, theta, m)
        lift = (psi - np.cos(theta)) / (1 + lam)
        lift_slope = L(0) if straight else (slope + np.sin(theta)) / (1 + lam)
        T = z[y[i]] + s * fx * fw * lift
        rivals = np.array([j for j in range(C) if j != y[i]], int)
        if not len(rivals):
            continue
        top = z[rivals].max()
        R = top + np.log(np.exp(z[rivals] - top).sum())
        gap = R - T
        losses[i] = np.log1p(np.exp(gap)) if gap < 0 else gap + np.log1p(np.exp(-gap))
        q = 1 / (1 + np.exp(-gap)) if gap > -40 else np.exp(gap)
        grad = np.zeros(C, L)
        grad[rivals] = q * np.exp(z[rivals] - R)
        grad[y[i]] = -q

        def add_x(factor, vector, i=i):
            dx[i] += factor * vector
            size["x"][i] += abs(factor) * max(
                _direction(vector)[1], L(1)
            )  # a projection rounds as what it projects

        def add_W(j, factor, vector):
            dW[j] += factor * vector
            size["W"][j] += abs(factor) * max(_direction(vector)[1], L(1))

        # the plain products, target included
        for j, (wj, nj) in enumerate(directions):
            cj = xh @ wj
            if unit_x:
                add_x(grad[j] * s * (L(1) if unit_w else nj) / nx if nx else L(0), wj - cj * xh)
            else:
                add_x(grad[j] * s * (L(1) if unit_w else nj), wj)
            if unit_w:
                add_W(j, grad[j] * s * fx / nj if nj else L(0), xh - cj * wj)
            else:
                add_W(j, grad[j] * s * fx, xh)
            db[j] += grad[j]
            size["b"][j] += abs(grad[j])
            ds += grad[j] * plain[j]
            size["s"] += abs(grad[j] * plain[j])
        # what the margin adds to the target
        g = -q
        if nx and nw:
            at_cone = sin <= CONE
            tangent_x = 0 * t if at_cone else t / sin
            back = xh - c * wh
            tangent_w = 0 * t if at_cone else back / _direction(back)[1]
            add_x(-g * s * fx * fw * lift_slope / nx, tangent_x)
            add_W(y[i], -g * s * fx * fw * lift_slope / nw, tangent_w)
        if not unit_x:
            add_x(g * s * fw * lift, xh)
        if not unit_w:
            add_W(y[i], g * s * fx * lift, wh)
        ds += g * fx * fw * lift
        size["s"] += abs(g * fx * fw * lift)
        if not straight:
            for n, slope_m in enumerate(by_m):
                dm[n] += g * s * fx * fw * slope_m / (1 + lam)
                size["m"][n] += abs(g * s * fx * fw) * max(abs(slope_m), L(1))  # sin(mθ) rounds as 1 does
    return Result(losses, dx, dW, db, ds, dm, size)
