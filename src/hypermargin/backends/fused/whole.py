"""The fused backend for heads with two unit sides: rivals and the geometry of the targets in one autograd node.

So a step is some fifteen launches. What a margin does to the numbers of each row stands apart: `margin_loss` for
margins of the form g(m1·θ + m2) − m3, torch's operations for all others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hypermargin.backends.base import Seen
from hypermargin.backends.fused import loss_kernels, ops
from hypermargin.backends.fused.compiled import launch
from hypermargin.backends.fused.sinks import Sink, updating
from hypermargin.numerics import angle_between, polar, widen


def look(
    x: Tensor, weight: Tensor, y: Tensor, scale: Tensor | float, chunk: int, kept: int, operands: str, sink: Sink
) -> Seen:
    """Return what a loss needs to know of every row of x against all classes."""
    s, of_rows = (1.0, scale) if isinstance(scale, Tensor) else (float(scale), None)
    given = x.contiguous(), weight.contiguous(), y.contiguous(), of_rows, s, chunk, kept, operands
    if torch.compiler.is_compiling() and not torch.is_grad_enabled():
        return Seen(*ops.look_op(*given)[:5])
    return Seen(*_Look.apply(*given, sink))


class _Look(torch.autograd.Function):
    """The one autograd node; it computes all of dW, including the part that comes through the label rows."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        run = ops.look_op if torch.compiler.is_compiling() else ops.look
        found: tuple[Tensor, ...] = run(*inputs[:-1])
        x, weight, y, scale, *ctx.settings = inputs
        ctx.save_for_backward(x, weight, y, scale, *found[5:])
        ctx.set_materialize_grads(False)
        return found[:5]

    @staticmethod
    def backward(ctx: Any, *by_each: Tensor | None) -> tuple[Any, ...]:
        x, weight, y, scale, *left = ctx.saved_tensors
        s, chunk, _, operands, sink = ctx.settings
        by_x, by_weight, _, by_scale = ctx.needs_input_grad[:4]
        if torch.is_grad_enabled():
            if sink is not None:
                raise RuntimeError("a head with FusedSGD or weight.main_grad has no second derivative.")
            return _again(x, weight, y, scale, s, by_each, ctx.needs_input_grad)
        by_rivals, *rest = (None if g is None else g.contiguous() for g in by_each)
        by_rivals = torch.zeros_like(left[3]) if by_rivals is None else by_rivals
        given = (x, weight, scale, s, *left, by_rivals, *rest, chunk, operands, by_x, by_scale)
        dW: Tensor | None = None
        if sink is not None and by_weight:
            with updating(sink, weight) as update:
                dx, ds = ops.look_back_into(*given, update)
        else:
            run = ops.look_back_op if torch.compiler.is_compiling() else ops.look_back
            dx, ds, dW = run(*given, by_weight)
        if by_scale:
            ds = (ds if scale.numel() > 1 else ds.sum()).view_as(scale).to(scale.dtype)
        return dx if by_x else None, dW if by_weight else None, None, ds if by_scale else None, *[None] * 5


def _again(
    x: Tensor, weight: Tensor, y: Tensor, scale: Tensor | None, s: float, by_each: Any, needed: Any
) -> tuple[Any, ...]:
    """Return the gradients by operations that can be differentiated again, in dense memory."""
    leaves = [t for t, need in zip((x, weight, y, scale), needed, strict=False) if need]
    u, norm = polar(widen(x, torch.float32).masked_fill(y < 0, 0.0))
    w, _ = polar(widen(weight, torch.float32))
    s_of = s if scale is None else scale.reshape(-1, 1)
    f, own = s_of * u, w.index_select(0, y.clamp(min=0).flatten())
    rivals = (f @ w.T).scatter(1, y.clamp(min=0), -torch.inf).logsumexp(1)
    length = (s_of * norm.detach().sign()).flatten()
    seen = (rivals, (f * own).sum(1), angle_between(u, own), length, norm.flatten())
    pairs = [(t, g) for t, g in zip(seen, by_each, strict=True) if g is not None and t.requires_grad]
    found = torch.autograd.grad([t for t, _ in pairs], leaves, [g for _, g in pairs], create_graph=True, allow_unused=True)
    grads = iter(found)
    return (*(next(grads) if need else None for need in needed[:4]), *[None] * 5)


def margin_loss(seen: Seen, y: Tensor, numbers: tuple[float, float, float], part: float, reduction: str) -> Tensor:
    """Return softplus(R − T), T = product + length·part·(g(m1·θ + m2) − m3 − cos θ), reduced over rows that count."""
    loss: Tensor = _MarginLoss.apply(seen.rivals, seen.product, seen.angle, seen.length, y, numbers, part, reduction)
    return loss


class _MarginLoss(torch.autograd.Function):
    """The numbers of all rows in one launch, gradients included."""

    @staticmethod
    def forward(
        ctx: Any, rivals: Tensor, product: Tensor, angle: Tensor, length: Tensor, y: Tensor,
        numbers: tuple[float, float, float], part: float, reduction: str,
    ) -> Tensor:  # fmt: skip
        N = len(rivals)
        loss = rivals.new_empty(N if reduction == "none" else ())
        gradients = rivals.new_empty(4, N)
        launch(
            loss_kernels.margin_loss, (1,), rivals, product, angle, length, y, loss, gradients, N, *numbers, part,
            reduction != "none", reduction == "mean", 1024, warps=8,
        )  # fmt: skip
        ctx.save_for_backward(gradients)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return *(ctx.saved_tensors[0] * grad).unbind(), None, None, None, None
