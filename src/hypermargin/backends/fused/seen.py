"""The fused backend for heads with two unit sides: rivals and the geometry of the targets in one autograd node.

What a margin does to the numbers of each row is left to torch's operations. `whole.py` has that in it too, for the
margins that are most common.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hypermargin.backends.base import Seen
from hypermargin.backends.fused import look_ops
from hypermargin.backends.fused.sinks import updating
from hypermargin.numerics import angle_between, polar, widen

if TYPE_CHECKING:
    from hypermargin.optim import FusedSGD


def look(
    x: Tensor, weight: Tensor, labels: Tensor, ignored: int, scale: Tensor | float, chunk: int, kept: int,
    operands: str, sink: FusedSGD | Tensor | None,
) -> Seen:  # fmt: skip
    """Return what a loss needs to know of every row of x against all classes."""
    s, of_rows = (1.0, scale) if isinstance(scale, Tensor) else (float(scale), None)
    given = (
        x.contiguous(),
        weight.contiguous(),
        labels.long().contiguous(),
        ignored,
        of_rows,
        s,
        chunk,
        kept,
        operands,
    )
    if torch.compiler.is_compiling() and not torch.is_grad_enabled():
        return Seen(*look_ops.look_op(*given)[:5])
    return Seen(*_Look.apply(*given, sink))  # type: ignore[no-untyped-call]


class _Look(torch.autograd.Function):
    """The one autograd node; it computes all of dW, including the part that comes through the label rows."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        run = look_ops.look_op if torch.compiler.is_compiling() else look_ops.look
        found: tuple[Tensor, ...] = run(*inputs[:-1])
        x, weight, _, _, scale, *ctx.settings = inputs
        ctx.save_for_backward(x, weight, scale, *found[5:])
        ctx.set_materialize_grads(False)
        return found[:5]

    @staticmethod
    def backward(ctx: Any, *by_each: Tensor | None) -> tuple[Any, ...]:
        x, weight, scale, *left = ctx.saved_tensors
        s, chunk, _, operands, sink = ctx.settings
        by_x, by_weight, _, _, by_scale = needed = ctx.needs_input_grad[:5]
        if torch.is_grad_enabled():
            if sink is not None:
                raise RuntimeError("a head with FusedSGD or weight.main_grad has no second derivative.")
            return *_again(x, weight, left[2], scale, s, by_each, needed), *[None] * 5
        by_rivals, *rest = (None if g is None else g.contiguous() for g in by_each)
        by_rivals = torch.zeros_like(left[3]) if by_rivals is None else by_rivals
        given: Any = (x, weight, scale, s, *left, by_rivals, *rest, chunk, operands, by_x, by_scale)
        dW: Tensor | None = None
        if sink is not None and by_weight:
            back_into: Any = look_ops.look_back_into
            with updating(sink, weight) as update:
                dx, ds = back_into(*given, update)
        else:
            run: Any = look_ops.look_back_op if torch.compiler.is_compiling() else look_ops.look_back
            dx, ds, dW = run(*given, by_weight)
        if by_scale:
            ds = (ds if scale.numel() > 1 else ds.sum()).view_as(scale).to(scale.dtype)
        return dx if by_x else None, dW if by_weight else None, None, None, ds if by_scale else None, *[None] * 5


def _again(
    x: Tensor, weight: Tensor, clean: Tensor, scale: Tensor | None, s: float, by_each: Any, needed: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients by operations that can be differentiated again, in dense memory."""
    y = clean.long()
    u, norm = polar(widen(x, torch.float32).masked_fill(y < 0, 0.0))
    w, _ = polar(widen(weight, torch.float32))
    s_of = s if scale is None else scale.reshape(-1, 1)
    f, own = s_of * u, w.index_select(0, y.clamp(min=0).flatten())
    rivals = (f @ w.T).scatter(1, y.clamp(min=0), -torch.inf).logsumexp(1)
    length = (s_of * norm.detach().sign()).flatten()
    seen = (rivals, (f * own).sum(1), angle_between(u, own), length, norm.flatten())
    pairs = [(t, g) for t, g in zip(seen, by_each, strict=True) if g is not None and t.requires_grad]
    leaves = [t for t, need in zip((x, weight, None, None, scale), needed, strict=True) if need and t is not None]
    found = iter(
        torch.autograd.grad(
            [t for t, _ in pairs], leaves, [g for _, g in pairs], create_graph=True, allow_unused=True
        )
    )
    return tuple(next(found) if need else None for need in needed)
