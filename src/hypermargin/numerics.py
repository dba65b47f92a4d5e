"""Guarded arithmetic: the few operations whose textbook forms give NaN, inf or lost digits.

Everything here is made of ordinary differentiable torch operations (so it compiles, differentiates twice
and works under torch.func), plus three tiny autograd nodes that only shape a gradient on its way back and one opaque operation.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("hypermargin::snapshot", mutates_args=())
def snapshot(x: Tensor) -> Tensor:
    """The value of a state buffer before this forward changes it.

    torch.compile may read a buffer again in the backward, after the forward has moved it on: silently wrong
    gradients (pytorch/pytorch#197039). An opaque operation is never recomputed, so its result is kept.
    """
    return x.clone()


@snapshot.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def wide_dtype(*tensors: Tensor | None) -> torch.dtype:
    """The dtype to compute in: float32 or wider, whatever the inputs are."""
    dtype = torch.float32
    for tensor in tensors:
        if tensor is not None:
            dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


class _Widen(torch.autograd.Function):
    """Cast up; on the way back cast down, saturating instead of overflowing to inf."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype) if x.dtype != dtype else x.view_as(x)  # autograd wants a new tensor, not a copy

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        limit = torch.finfo(ctx.dtype).max
        return grad.clamp(-limit, limit).to(ctx.dtype), None


class _Shrink(torch.autograd.Function):
    """x·factor, with the gradient of x: a value that saturates while its gradient stays true."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: Tensor) -> Tensor:
        return x * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Bounded(torch.autograd.Function):
    """clamp(x, low, high) that stops only the gradients which would push x further out."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(x, low), high)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        x, low, high = ctx.saved_tensors
        outward = ((x <= low) & (grad > 0)) | ((x >= high) & (grad < 0))  # descent moves against the gradient
        return grad.masked_fill(outward, 0.0), None, None


def widen(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` in `dtype`; the gradient that comes back saturates at the largest number of x's own dtype."""
    result: Tensor = _Widen.apply(x, dtype)
    return result


def bounded(x: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """Projection onto [low, high] that a learned number can always leave again, inwards.

    torch.clamp has gradient 0 outside, so a parameter that overshoots stays outside for ever.
    """
    low = torch.as_tensor(low, dtype=x.dtype, device=x.device)
    high = torch.as_tensor(high, dtype=x.dtype, device=x.device)
    result: Tensor = _Bounded.apply(x, low, high)
    return result


def fit(x: Tensor, limit: Tensor | float) -> Tensor:
    """Shrink the rows whose largest entry exceeds `limit`, so that products with them stay finite."""
    largest = x.detach().abs().amax(-1, keepdim=True)
    result: Tensor = _Shrink.apply(x, (limit / largest).clamp(max=1.0))
    return result


def _scaled(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x / max|x_i| (so that squares neither overflow nor vanish), the maximum, and which rows are zero."""
    largest = x.detach().abs().amax(-1, keepdim=True)
    zero = largest == 0
    largest = largest.masked_fill(zero, 1.0)
    return x / largest, largest, zero


def _norm(y: Tensor, zero: Tensor) -> Tensor:
    """|y| with 1 in the rows marked `zero`, where the square root has no derivative."""
    return y.square().sum(-1, keepdim=True).masked_fill(zero, 1.0).sqrt()


def unit(x: Tensor) -> Tensor:
    """x/|x| row by row, for |x| from the smallest to the largest float; zero rows give zero, with gradient zero."""
    y, _, zero = _scaled(widen(x, x.dtype))
    return (y / _norm(y, zero)).masked_fill(zero, 0.0)


def length(x: Tensor) -> Tensor:
    """|x| row by row (the last dimension is dropped); the gradient is x/|x|, and 0 at zero rows."""
    y, largest, zero = _scaled(x)
    norm = (_norm(y, zero) * largest).masked_fill(zero, 0.0)
    return norm.squeeze(-1).clamp(max=torch.finfo(x.dtype).max)


def angle_between(u: Tensor, v: Tensor) -> Tensor:
    """θ = 2·atan2(|u−v|, |u+v|) of unit rows: exact near 0 and π, where acos⟨u,v⟩ loses half the digits.

    Zero rows have angle π/2. Where |u∓v| ≤ 8 eps the direction of the tangent is rounding noise: gradient 0.
    """
    near, far = u - v, u + v
    tiny = (8 * torch.finfo(u.dtype).eps) ** 2
    near2, far2 = near.square().sum(-1), far.square().sum(-1)
    cone = (near2 <= tiny) | (far2 <= tiny)
    theta = 2 * torch.atan2(near2.masked_fill(cone, 1.0).sqrt(), far2.masked_fill(cone, 1.0).sqrt())
    both_zero = (near2 + far2) == 0
    at_cone = 2 * torch.atan2(near2.detach().sqrt(), far2.detach().sqrt())
    return torch.where(cone, at_cone.masked_fill(both_zero, math.pi / 2), theta)


def guarded_acos(cosine: Tensor) -> Tensor:
    """acos for people who hold only the cosine: 0 or π at and beyond ±1, gradient 0 there instead of inf."""
    inside = cosine.abs() < 1
    theta = torch.acos(cosine.masked_fill(~inside, 0.0))
    ends = torch.where(cosine > 0, 0.0, math.pi).to(cosine.dtype)
    return torch.where(inside, theta, ends)


def log_sum_exp(z: Tensor) -> Tensor:
    """log Σ exp z over the last dimension; −inf, with gradient 0, for rows that are empty or all −inf."""
    if z.shape[-1] == 0:
        return z.new_full(z.shape[:-1], -math.inf)
    largest = z.detach().amax(-1, keepdim=True)
    empty = largest == -math.inf
    largest = largest.masked_fill(empty, 0.0)
    total = (z - largest).exp().sum(-1, keepdim=True)
    result = largest + total.masked_fill(empty, 1.0).log()
    return result.masked_fill(empty, -math.inf).squeeze(-1)


def log_add_exp(a: Tensor, b: Tensor) -> Tensor:
    """log(exp a + exp b) that stays differentiable when both are −inf."""
    return log_sum_exp(torch.stack((a, b), -1))


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp x) to full relative precision; torch's own goes linear above 20, which costs 2e-9."""
    return torch.logaddexp(torch.zeros_like(x), x)
