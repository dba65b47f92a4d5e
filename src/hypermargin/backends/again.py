"""The loss of a plain head by operations that can be differentiated again, for its nodes' second derivatives."""

from __future__ import annotations

import torch
from torch import Tensor

from hypermargin.margins import g
from hypermargin.numerics import angle_between, polar, reduced, softplus, wide_dtype, widen


def gradients(
    x: Tensor, weight: Tensor, scale: Tensor | None, s: float, y: Tensor,
    margin: tuple[float, float, float, float], reduction: str, needs: tuple[bool, bool, bool], grad: Tensor,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Return the gradients by x, weight and scale, where needed, in dense memory.

    y: (N,), −1 in rows that do not count; scale: one or one per row, instead of s; margin: m1, m2, m3 and the part
    of ψ − cos θ that is added, for ψ = g(m1·θ + m2) − m3.
    """
    m1, m2, m3, part = margin
    wide, y = wide_dtype(x, weight), y.long().unsqueeze(1)
    u, norm = polar(widen(x, wide).masked_fill(y < 0, 0.0))
    w, _ = polar(widen(weight, wide))
    s_of = s if scale is None else widen(scale, wide).reshape(-1, 1)
    f, own = s_of * u, w.index_select(0, y.clamp(min=0).flatten())
    rivals = (f @ w.T).scatter(1, y.clamp(min=0), -torch.inf).logsumexp(1)
    angle = angle_between(u, own)
    lift = part * (g(m1 * angle + m2) - m3 - angle.cos())
    T = (f * own).sum(1) + (s_of * norm.detach().sign()).flatten() * lift
    used = y[:, 0] >= 0
    each = softplus(rivals - T).masked_fill(~used, 0.0)
    value = each if reduction == "none" else reduced(each, used, reduction)
    leaves = [t for t, need in zip((x, weight, scale), needs, strict=True) if need and t is not None]
    found = iter(torch.autograd.grad(value, leaves, grad, create_graph=True))
    return tuple(next(found) if need else None for need in needs)
