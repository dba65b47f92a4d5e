"""The whole loss of a plain head in one autograd node: the dense backend's way for usual batches on the CPU.

With small batches a step costs what its operations cost to launch, so there are few of them here, and the backward
is written by hand. With u = x̂, f = s·u, z_j = ⟨f, ŵ_j⟩ and a margin g(m1·θ + m2) − m3, blended in by `part`:

    S = Σ_{j≠y} exp z_j,     T = z_y + s·part·(ψ(θ_y) − cos θ_y),     L = softplus(ln S − T)

No logit exceeds s, so exp z needs no maximum taken off. The gradient by z is φ·E with φ = sigmoid(ln S − T)/S, a
factor of rows that commutes with both products. E is exp z but at the label, where it is −S·dψ/dcos. That is all
that comes through the target: a gradient by the angle is along the tangents, which are what the projections of dx
and dW leave of ŵ_y and of u.

A batch is usual if every label is a class, and no length is 0, not finite or near the limits of its type. For any
other, and where exp z may overflow, `loss` returns None, and the operations of `margin_softmax` compute it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hypermargin.backends import again
from hypermargin.numerics import apply, far_from_limits, full_precision, readable, softplus

# By dtype: ln of the largest number, less that of the largest (dψ/dcos)/m1, at the edge of the cone, θ = 8 eps.
# With that neither exp(−s) nor its products are denormal numbers, which are slow.
_MOST = {
    kind: math.log(torch.finfo(kind).max) + math.log(8 * torch.finfo(kind).eps)
    for kind in (torch.float32, torch.float64)
}
_CONE = {kind: 16 * torch.finfo(kind).eps for kind in _MOST}  # of |u−v|·|u+v|, 2·sin θ, as in `numerics.meeting`


def loss(
    x: Tensor, weight: Tensor, labels: Tensor, ignored: int, scale: Tensor | float,
    numbers: tuple[float, float, float], part: float, reduction: str,
) -> Tensor | None:  # fmt: skip
    """Return the loss of a usual batch; None for any other."""
    N, C = x.shape[0], weight.shape[0]
    if not readable(x, weight, labels) or x.dtype != weight.dtype or x.dtype not in _MOST:
        return None
    if C < 2 or not N or 0 <= ignored < C:
        return None
    first, last = torch.aminmax(labels)
    if first.item() < 0 or last.item() >= C:
        return None
    s, by_row = (scale, None) if not isinstance(scale, Tensor) else _read(scale)
    most = s if by_row is None else s * by_row.detach().amax().item()
    if not s > 0 or not most * 1.00001 + math.log(C * max(numbers[0], 1.0)) < _MOST[x.dtype]:
        return None
    with full_precision(x):
        norm = torch.linalg.vector_norm(x.detach(), dim=1, keepdim=True)
        lengths = torch.linalg.vector_norm(weight.detach(), dim=1, keepdim=True)
        if not far_from_limits(torch.cat((norm, lengths))):
            return None
        y = labels if labels.dtype == torch.int64 else labels.long()
        found: Tensor = apply(_Node, x, weight, y, by_row, s, norm, lengths, *numbers, part, reduction)
    return found


def _read(scale: Tensor) -> tuple[float, Tensor | None]:
    """Return the scale as a number, or 1 and the tensor if it is learned or goes by row; −1 if not positive."""
    if not readable(scale):
        return -1.0, None
    if scale.numel() == 1 and not scale.requires_grad:
        return scale.item(), None
    return (1.0, scale) if scale.detach().amin().item() > 0 else (-1.0, None)


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x, weight, y, scale, s, norm, lengths, m1, m2, m3, part, reduction = inputs
        of_rows = s if scale is None else scale.reshape(-1, 1).to(x.dtype)
        u, w, at = x / norm, weight / lengths, y.unsqueeze(1)
        z = F.linear(u * of_rows, w)
        own = z.gather(1, at)
        if m1 == 1 and m2 == 0:  # ψ = cos θ − m3: no angle needed
            T, slope = own - of_rows * (part * m3), None
        else:
            v = w.index_select(0, y)
            near = torch.linalg.vector_norm(u - v, dim=1, keepdim=True)
            far = torch.linalg.vector_norm(u + v, dim=1, keepdim=True)
            a = torch.rsub(torch.atan2(near, far), m2, alpha=-2 * m1)  # m1·θ + m2
            k = torch.div(a, math.pi, rounding_mode="floor")
            a.sub_(k, alpha=math.pi)
            T = torch.cos(a).sub_(k, alpha=2)
            T = (T.sub_(m3) if m3 else T).mul_(of_rows)
            sines = near.mul_(far)  # 2·sin θ
            slope = a.sin_().div_(sines).mul_(-2 * m1 * part)  # −dψ/dcos
            if part != 1:
                T, slope = torch.lerp(own, T, part), slope.sub_(1 - part)
            # Where u and v are (anti)parallel a margin has no direction: |u∓v| ≤ 8 eps.
            slope.masked_fill_(sines <= _CONE[x.dtype], -1.0)
        E = z.scatter_(1, at, -math.inf).exp_()
        S = E.sum(1, keepdim=True)
        of_label = S.neg() if slope is None else slope.mul_(S)
        E.scatter_(1, at, of_label)
        gap = S.log().sub_(T)
        by_scale = None
        if scale is not None and scale.requires_grad:  # ds is φ·⟨E, z⟩/s, but for the label: there it is −φ·S·T/s
            by_scale = torch.addcmul(of_label * own, S, T).div_(-of_rows)
        ctx.save_for_backward(x, weight, y, scale, norm, lengths, u, w, E, S, gap, by_scale)
        ctx.settings = s, (m1, m2, m3, part), reduction
        each = softplus(gap)
        return each.squeeze(1) if reduction == "none" else each.sum() if reduction == "sum" else each.mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y, scale, norm, lengths, u, w, E, S, gap, by_scale = ctx.saved_tensors
        s, margin, reduction = ctx.settings
        by_x, by_weight, _, by_s, *_ = ctx.needs_input_grad
        dx = dW = ds = None
        if torch.is_grad_enabled():
            needs = by_x, by_weight, by_s
            dx, dW, ds = again.gradients(x, weight, scale, s, y, margin, reduction, needs, grad)
            return dx, dW, None, ds, *[None] * 8
        with full_precision(x):
            phi = torch.sigmoid(gap).div_(S)
            phi *= grad.unsqueeze(1) if reduction == "none" else grad if reduction == "sum" else grad / len(x)
            factor = phi * (s if scale is None else scale.reshape(-1, 1).to(x.dtype))
            if by_weight:
                dW = torch.mm(E.t(), u * factor)
                dW.addcmul_(w, torch.linalg.vecdot(w, dW).unsqueeze(1), value=-1.0).div_(lengths)
            if by_x or by_s:
                dx = torch.mm(E, w)
                along = torch.linalg.vecdot(u, dx).unsqueeze(1)
                dx = dx.addcmul_(u, along, value=-1.0).mul_(factor.div_(norm)) if by_x else None
                if by_s:
                    of_each = along.add_(by_scale).mul_(phi)
                    ds = (of_each if scale.numel() > 1 else of_each.sum()).reshape(scale.shape).to(scale.dtype)
        return dx, dW, None, ds, *[None] * 8
