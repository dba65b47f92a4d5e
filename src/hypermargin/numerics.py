"""Guarded arithmetic: the few operations whose textbook forms give NaN, inf or lost digits.

Everything here is made of ordinary differentiable torch operations (so it compiles, differentiates twice
and works under torch.func), plus a few small autograd nodes and one opaque operation. They are written with few
operations on purpose: with little data, a step costs what its operations cost to launch.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.library.custom_op("hypermargin::snapshot", mutates_args=())
def snapshot(x: Tensor) -> Tensor:
    """Return the value of a state buffer before this forward changes it.

    torch.compile may read a buffer again in the backward, after the forward has moved it on: silently wrong
    gradients (pytorch/pytorch#197039). An opaque operation is never recomputed, so its result is kept.
    """
    return x.clone()


@snapshot.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def wide_dtype(*tensors: Tensor | None) -> torch.dtype:
    """Return the dtype to compute in: float32 or wider, whatever the inputs are."""
    dtype = torch.float32
    for tensor in tensors:
        if tensor is not None and tensor.dtype != dtype:
            dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def full_precision(x: Tensor) -> AbstractContextManager[None]:
    """Return a context in which autocast is off, so that everything is computed in float32 or wider."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def apply(node: type[torch.autograd.Function], *inputs: Any) -> Any:
    """Return node.apply(*inputs), in eager mode without torch's look at the signature of `forward`.

    For a node with `setup_context` torch inspects that signature at every call, 50 µs each, to fill in defaults.
    Ours have none. Transforms of torch.func and torch.compile take the usual way.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return node.apply(*inputs)
    return super(torch.autograd.Function, node).apply(*inputs)  # type: ignore[misc]  # it is there, in C


class _Widen(torch.autograd.Function):
    """Cast up; on the way back cast down, saturating instead of overflowing to inf."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        limit = torch.finfo(ctx.dtype).max
        return grad.clamp(-limit, limit).to(ctx.dtype), None


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
    """Return `x` in the wider `dtype`; its gradient saturates at the largest number that x's own dtype holds."""
    if x.dtype == dtype:
        return x
    result: Tensor = apply(_Widen, x, dtype)
    return result


def constant(value: float | tuple[float, ...] | None, like: Tensor) -> Tensor:
    """Return one or a few numbers as a tensor on the device of `like`.

    torch.tensor would copy them from the CPU and wait for the copy.
    """
    if value is None:
        raise ValueError("there is no number here: NoMargin has no m.")
    if isinstance(value, tuple):
        return torch.stack([like.new_full((), v) for v in value], -1)
    return like.new_full((), value)


def bounded(x: Tensor, low: float | tuple[float, ...] | None, high: float | tuple[float, ...] | None) -> Tensor:
    """Return `x` clamped to [low, high], with a gradient that can always move it back inside.

    torch.clamp has gradient 0 outside, so a parameter that overshoots would stay outside for ever.
    """
    result: Tensor = apply(_Bounded, x, constant(low, x), constant(high, x))
    return result


def fit(x: Tensor, limit: Tensor | float) -> Tensor:
    """Return x with the rows shrunk whose largest entry exceeds `limit`, so that products with them stay finite."""
    largest = torch.linalg.vector_norm(x.detach(), math.inf, dim=-1, keepdim=True)
    factor: Tensor = (limit / largest).clamp(max=1.0)
    return x * factor


def readable(*tensors: Tensor) -> bool:
    """Return whether values can be read at no cost: in eager mode on the CPU, outside torch.func."""
    if torch.compiler.is_compiling():
        return False
    for t in tensors:  # noqa: SIM110  # called at every loss, where a generator costs more than a loop
        if t.device.type != "cpu" or torch._C._functorch.is_functorch_wrapped_tensor(t):
            return False
    return True


def far_from_limits(norms: Tensor) -> bool:
    """Return whether these lengths, their squares and their inverses are far from overflow and underflow."""
    low, high = torch.aminmax(norms)
    return float(low) > 1e-15 and float(high) < 1e15


class _Polar(torch.autograd.Function):
    """x/|x| and |x|, with the projection written out; `norm` is |x|, if it is known to be far from all limits."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, norm: Tensor | None) -> tuple[Tensor, Tensor]:
        if norm is not None:
            return x / norm, norm.view_as(norm)  # an output must not be an input
        # Rows are divided by their largest entry first, so that no square overflows or vanishes.
        largest = torch.linalg.vector_norm(x, math.inf, dim=-1, keepdim=True)
        y = x / largest.masked_fill(largest == 0, 1.0)
        norm = torch.linalg.vector_norm(y, dim=-1, keepdim=True)  # 0 for zero rows, at least 1 for others
        return y / norm.clamp(min=1.0), (norm * largest).clamp(max=torch.finfo(x.dtype).max)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, norm = inputs
        ctx.save_for_backward(x, *output)
        ctx.may_be_zero = norm is None
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, by_unit: Tensor | None, by_length: Tensor | None) -> tuple[Tensor | None, None]:
        x, u, length = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative needs u and |x| as functions of x
            u, length = polar(x)
        by_x = None
        if by_unit is not None:
            along = (u * by_unit).sum(-1, keepdim=True)
            by_x = torch.addcmul(by_unit, u, along, value=-1.0)
            by_x = by_x / (length.masked_fill(length == 0, math.inf) if ctx.may_be_zero else length)
        if by_length is not None:
            by_x = u * by_length if by_x is None else torch.addcmul(by_x, u, by_length)
        limit = torch.finfo(x.dtype).max
        return None if by_x is None else by_x.clamp(-limit, limit), None


def polar(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x/|x| and |x| (the latter with a last dimension of 1), for |x| from the smallest to the largest float.

    Zero rows give 0 with gradient 0. A gradient too large for its type saturates.
    """
    norm = None
    if readable(x) and x.numel():  # two passes instead of four for usual rows
        norm = torch.linalg.vector_norm(x.detach(), dim=-1, keepdim=True)
        norm = norm if far_from_limits(norm) else None
    u, length = apply(_Polar, x, norm)
    return u, length


def unit(x: Tensor) -> Tensor:
    """Return x/|x| for every row; zero rows stay zero."""
    return polar(x)[0]


class _Meeting(torch.autograd.Function):
    """⟨f, w⟩ and the angle between the unit rows u and v: f and u (N, d), w and v (N, K, d); v None if it is w."""

    generate_vmap_rule = True

    @staticmethod
    def forward(f: Tensor, u: Tensor, w: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        product = torch.linalg.vecdot(f.unsqueeze(-2), w)
        half = tan_half(u.unsqueeze(-2), w if v is None else v)
        return product, 2 * torch.atan(half).squeeze(-1), half

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs, output[2])
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, by_product: Tensor, by_angle: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        f, u, w, v, half = ctx.saved_tensors
        u, other, by_product = u.unsqueeze(-2), w if v is None else v, by_product.unsqueeze(-1)
        if torch.is_grad_enabled():  # a second derivative needs it as a function of both
            half = tan_half(u, other)
        least = 4 * torch.finfo(half.dtype).eps  # |u−v| = 8 eps
        inside = half.clamp(least, 1 / least)
        by_half = (by_angle.unsqueeze(-1) * 0.5).masked_fill(inside != half, 0.0)
        along, across = by_half / inside * (u - other), by_half * inside * (u + other)
        by_f, by_u, by_w, by_v = w * by_product, along - across, f.unsqueeze(-2) * by_product, along + across
        one = w.shape[-2] == 1
        by_f, by_u = (x.squeeze(-2) if one else x.sum(-2) for x in (by_f, by_u))
        return by_f, by_u, *((by_w - by_v, None) if v is None else (by_w, -by_v))


def tan_half(u: Tensor, v: Tensor) -> Tensor:
    """Return tan θ/2 = |u−v|/|u+v| of unit rows (the last dimension stays, with 1 entry); 1 if both are zero."""
    near = torch.linalg.vector_norm(u - v, dim=-1, keepdim=True)
    far = torch.linalg.vector_norm(u + v, dim=-1, keepdim=True)
    tiny = torch.finfo(u.dtype).tiny
    half: Tensor = near.clamp_min(tiny) / far.clamp_min(tiny)
    return half


def meeting(f: Tensor, u: Tensor, w: Tensor, v: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the product ⟨f, w⟩ of rows with the rows of their own classes, and the angle between: (N, K) each.

    f and w are as they enter the product, u and v their directions; v is None where w has length 1. f and u are
    (N, d), w and v (N, K, d).

    The angle θ = 2·atan(|u−v|/|u+v|) is exact near 0 and π, where acos⟨u,v⟩ loses half the digits. Zero rows have
    angle π/2. With t = tan θ/2, ∂θ/∂u = (u−v)/2t − (u+v)·t/2, the unit tangent up to its sign. Where |u∓v| ≤ 8 eps
    its direction is rounding noise: gradient 0.
    """
    product, angle, _ = apply(_Meeting, f, u, w, v)
    return product, angle


def angle_between(u: Tensor, v: Tensor) -> Tensor:
    """Return the angle of `meeting` between unit rows of the same shape."""
    return 2 * torch.atan(tan_half(u, v)).squeeze(-1)


def guarded_acos(cosine: Tensor) -> Tensor:
    """Return acos of a cosine, for callers without the vectors: 0 or π at and beyond ±1, with gradient 0 there."""
    inside = cosine.abs() < 1
    theta = torch.acos(cosine.masked_fill(~inside, 0.0))
    ends = torch.where(cosine > 0, 0.0, math.pi).to(cosine.dtype)
    return torch.where(inside, theta, ends)


def log_sum_exp(z: Tensor) -> Tensor:
    """Return log Σ exp z over the last dimension; −inf, with gradient 0, for rows that are empty or all −inf."""
    if z.shape[-1] == 0:
        return z.new_full(z.shape[:-1], -math.inf)
    largest = z.detach().amax(-1, keepdim=True)
    empty = largest == -math.inf
    largest = largest.masked_fill(empty, 0.0)
    total = (z - largest).exp().sum(-1, keepdim=True)
    result = largest + total.masked_fill(empty, 1.0).log()
    return result.masked_fill(empty, -math.inf).squeeze(-1)


def log_add_exp(a: Tensor, b: Tensor) -> Tensor:
    """Return log(exp a + exp b), differentiable even where both are −inf."""
    return log_sum_exp(torch.stack((a, b), -1))


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp x) to full relative precision.

    It is torch's softplus, which becomes x itself from 40 on, where exp(−x) is below the last digit of x. torch's
    default threshold of 20 has an error of 2e-9.
    """
    return F.softplus(x, threshold=40.0)


def reduced(loss: Tensor, used: Tensor | None, reduction: str) -> Tensor:
    """Return the sum of the losses, or their mean over the rows that are used; 0 if there are none."""
    if reduction == "sum" or len(loss) == 0:
        return loss.sum()
    return loss.mean() if used is None else loss.sum() / used.sum().clamp(min=1)


class Reading:
    """A reader of the number in a tensor, which waits for the GPU only after the tensor has changed."""

    def __init__(self) -> None:
        self._last: tuple[Tensor, int, float] | None = None

    def __call__(self, x: Tensor) -> float:
        """Return the number in `x`. On a GPU, changes that autograd does not count (by x.data) go unnoticed."""
        if x.device.type == "cpu" or x.is_inference():
            return float(x)
        if self._last is None or self._last[0] is not x or self._last[1] != x._version:
            self._last = (x, x._version, float(x))
        return self._last[2]


def hashed(x: Tensor) -> Tensor:
    """Return a hash of 32 bits of every whole number, in int64: each bit of x affects all bits of the result.

    It is murmur3's finalizer of the low 32 bits. Random numbers from it are the same on every device and rank.
    """
    low = 0xFFFFFFFF
    x = x & low
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & low
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & low
    return x ^ (x >> 16)
