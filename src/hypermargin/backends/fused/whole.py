"""The whole loss of a plain head in one autograd node of few, cheap launches.

It is for two unit sides, a margin g(m1·θ + m2) − m3, exp z of all classes kept, and no optimiser in the backward;
`seen.py` and `ops.py` do the rest. The launches are in `sites.py`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from hypermargin.backends import again
from hypermargin.backends.fused.launch import slabs
from hypermargin.backends.fused.ops import on_device_of
from hypermargin.backends.fused.sites import Whole, plan_of_kind

MOST_CLASSES = 2**20


def loss(
    x: Tensor, weight: Tensor, labels: Tensor, ignored: int, scale: Tensor | float,
    numbers: tuple[float, float, float], part: float, reduction: str, operands: str,
) -> Tensor:  # fmt: skip
    """Return softplus(R − T), T = product + length·part·(g(m1·θ + m2) − m3 − cos θ)."""
    s, of_rows = (1.0, scale) if isinstance(scale, Tensor) else (float(scale), None)
    labels = labels if labels.dtype == torch.int64 else labels.long()
    result: Tensor = _Whole.apply(  # type: ignore[no-untyped-call]
        x, weight, labels, of_rows, s, *numbers, part, ignored, reduction, operands
    )
    return result


def fits(x: Tensor, weight: Tensor) -> bool:
    """Return whether a step of that size is for here."""
    # With several tiles per row, unprojected sums are kept in the gradient itself, which must be float32 then.
    of_one_tile = weight.dtype == torch.float32 or weight.shape[1] <= 128
    return x.shape[0] > 0 and weight.shape[0] <= MOST_CLASSES and of_one_tile


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x, weight, _, scale, s, m1, m2, m3, part, ignored, reduction, operands = inputs
        needs = ctx.needs_input_grad
        ctx.needs = needs[0], needs[1], needs[3]
        run = torch.ops.hypermargin.fused_whole if torch.compiler.is_compiling() else forward
        found, *left = run(*inputs, *ctx.needs)
        ctx.save_for_backward(x, weight, scale, *left)
        ctx.settings = s, ignored, reduction, operands
        ctx.margin = (m1, m2, m3, part)
        result: Tensor = found
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved: Any = ctx.saved_tensors
        x, weight, scale, *left = saved
        if torch.is_grad_enabled():
            s, _, reduction, _ = ctx.settings
            y = left[1][0, : len(x)]
            dx, dW, ds = again.gradients(x, weight, scale, s, y, ctx.margin, reduction, ctx.needs, grad)
        else:
            run: Any = torch.ops.hypermargin.fused_whole_back if torch.compiler.is_compiling() else backward
            grads = run(x, weight, scale, *left, grad, *ctx.settings, *ctx.needs)
            dx, dW, ds = (g if need else None for g, need in zip(grads, ctx.needs, strict=True))
        return dx, dW, None, ds, *[None] * 8


def forward(
    x: Tensor, weight: Tensor, labels: Tensor, scale: Tensor | None, s: float, m1: float, m2: float, m3: float,
    part: float, ignored: int, reduction: str, operands: str, by_x: bool, by_weight: bool, by_scale: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the loss, and what the backward needs: buffers, operand, E, w̃ and 1/|W|."""
    plan = _plan_of(x, weight, scale, ignored, reduction, operands, by_x, by_weight, by_scale, labels.dtype)
    of_rows = None if scale is None else _dense(scale)
    with on_device_of(x):
        return plan.forward(_dense(x), _dense(weight), _dense(labels), of_rows, s, (m1, m2, m3), part)


def backward(
    x: Tensor, weight: Tensor, scale: Tensor | None, state: Tensor, ints: Tensor, operand: Tensor, exps: Tensor,
    units: Tensor, inverse: Tensor, grad: Tensor, s: float, ignored: int, reduction: str, operands: str, by_x: bool,
    by_weight: bool, by_scale: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients by x, weight and scale; those not needed are empty."""
    plan = _plan_of(x, weight, scale, ignored, reduction, operands, by_x, by_weight, by_scale, None)
    of_rows = None if scale is None else _dense(scale)
    with on_device_of(x):
        return plan.backward(
            _dense(x), _dense(weight), of_rows, s, state, ints, operand, exps, units, inverse, _dense(grad)
        )


def _dense(x: Tensor) -> Tensor:
    """Return a tensor as kernels that were compiled for aligned, dense ones may read it."""
    x = x if x.is_contiguous() else x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


def _plan_of(
    x: Tensor, weight: Tensor, scale: Tensor | None, ignored: int, reduction: str, operands: str, by_x: bool,
    by_weight: bool, by_scale: bool, labels: torch.dtype | None,
) -> Whole:  # fmt: skip
    kind = 0 if scale is None else 1 if scale.numel() == 1 else 2
    return plan_of_kind(
        *x.shape, weight.shape[0], x.dtype, weight.dtype, labels, x.device, operands, ignored, kind,
        None if scale is None else scale.dtype, reduction, by_x, by_weight, by_scale,
    )  # fmt: skip


# Under torch.compile each is one opaque call. They are defined without torch.library.custom_op, whose checks take
# longer.
_LIBRARY: Any = torch.library.Library("hypermargin", "FRAGMENT")  # type: ignore[no-untyped-call]
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
_OPTIONS = "int ignored, str reduction, str operands, bool by_x, bool by_weight, bool by_scale"
_LIBRARY.define(
    "fused_whole(Tensor x, Tensor weight, Tensor labels, Tensor? scale, float s, float m1, float m2, float m3, "
    f"float part, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=_TAGS,
)
_LIBRARY.define(
    "fused_whole_back(Tensor x, Tensor weight, Tensor? scale, Tensor state, Tensor ints, Tensor operand, "
    f"Tensor exps, Tensor units, Tensor inverse, Tensor grad, float s, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    tags=_TAGS,
)
for _device in ("CUDA", "CPU"):
    _LIBRARY.impl("fused_whole", forward, _device)
    _LIBRARY.impl("fused_whole_back", backward, _device)


@torch.library.register_fake("hypermargin::fused_whole", lib=_LIBRARY)
def _(x, weight, labels, scale, s, m1, m2, m3, part, ignored, reduction, operands, *_needs):  # type: ignore[no-untyped-def]
    (N, d), C, kind = x.shape, weight.shape[0], getattr(torch, operands)
    width, pitch = -(-d // 16) * 16, -(-N // 4) * 4
    new = functools.partial(torch.empty, device=x.device)
    return (
        new(N if reduction == "none" else ()), new(14, pitch), new(2, pitch, dtype=torch.int32),
        new(N, width, dtype=kind), new(slabs(N, C), dtype=kind), new(C, width, dtype=kind), new(C),
    )  # fmt: skip


@torch.library.register_fake("hypermargin::fused_whole_back", lib=_LIBRARY)
def _(x, weight, scale, *rest):  # type: ignore[no-untyped-def]
    by_x, by_weight, by_scale = rest[-3:]
    return (
        torch.empty_like(x if by_x else x[:0]),
        torch.empty_like(weight if by_weight else weight[:0]),
        torch.empty_like(scale) if by_scale else x.new_empty(0, dtype=torch.float32),
    )
