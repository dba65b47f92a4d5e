"""The order of the kernels for heads with two unit sides: rows of features and labels, rivals, and their gradients.

What has to do with classes is in `ops.py`.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from hypermargin.backends.fused import feature_kernels
from hypermargin.backends.fused.compiled import launch
from hypermargin.backends.fused.launch import SGD, STORE, Factors, Update, cdiv, slabs, step_of
from hypermargin.backends.fused.ops import Kept, Operands, gradients, of_no_rows, on_its_device, sum_rivals
from hypermargin.backends.fused.tiles import power


@on_its_device
def look(
    x: Tensor, weight: Tensor, labels: Tensor, ignored: int, scale: Tensor | None, s: float, chunk: int, kept: int,
    operands: str,
) -> tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor
]:  # fmt: skip
    """Return R, ⟨f, ŵ_y⟩, the angle between them, |f| and |x| of every row, each (N,), for f = s·x̂.

    `scale`, one number or one per row, is s if it is given. Seven more are for the backward: base, operand and
    label of every row, then as in `forward`.
    """
    step = step_of(*x.shape[:1], *weight.shape, operands, x.device)
    N = step.N
    new = functools.partial(torch.empty, device=x.device)
    rivals, product, angle, length, norm, base, top, rivals2 = (new(N) for _ in range(8))
    clean, operand = new(N, 1, dtype=torch.int32), new(N, step.width, dtype=step.kind)
    left = Kept(rivals2, new(slabs(N, kept), dtype=step.kind), new(kept, step.width, dtype=step.kind), new(kept))
    if N:
        launch(
            feature_kernels.look, (N,), x, weight, labels, x if scale is None else scale, operand, clean, base,
            product, angle, length, norm, s, step.C, step.d, step.width, ignored, scales(scale),
            torch.finfo(step.kind).max,
            power(step.width),
        )  # fmt: skip
    sum_rivals(Operands(step, operand, base, clean, weight, None, True), chunk, None, rivals, top, left)
    return rivals, product, angle, length, norm, base, operand, clean, *left


def scales(scale: Tensor | None) -> int:
    """Return 0 for a scale that is a number, 1 for a tensor that holds one, 2 for one per row."""
    return 0 if scale is None else 1 if scale.numel() == 1 else 2


@on_its_device
def look_back_into(
    x: Tensor, weight: Tensor, scale: Tensor | None, s: float, base: Tensor, operand: Tensor, clean: Tensor,
    rivals2: Tensor, exps: Tensor, units: Tensor, inverse: Tensor, by_rivals: Tensor, by_product: Tensor | None,
    by_angle: Tensor | None, by_length: Tensor | None, by_norm: Tensor | None, chunk: int, operands: str,
    need_x: bool, need_scale: bool, update: Update | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return dx and the gradient by s of every row, empty if not needed; dW is used as `update` says."""
    step = step_of(*x.shape[:1], *weight.shape, operands, x.device)
    N, C, d, kept = step.N, step.C, step.d, len(units)
    dx = torch.empty_like(x if need_x else x[:0])
    by_scale = rivals2.new_empty(N if need_scale else 0)
    if N == 0:
        of_no_rows(step, weight, chunk, update)
        return dx, by_scale
    table, at = weight, clean
    if update is not None and update.mode == SGD:  # the rows of the labels as they are before the step
        table = weight.detach().index_select(0, clean.clamp(min=0).flatten())
        at = torch.arange(N, dtype=torch.int32, device=x.device).view(N, 1).masked_fill(clean < 0, -1)
    D, unused, kind = power(step.width), rivals2, scales(scale)
    of_scale = x if scale is None else scale
    product, angle, length, norm = (unused if g is None else g for g in (by_product, by_angle, by_length, by_norm))
    which = sum(
        bit
        for bit, g in zip((1, 2, 4, 8), (by_product, by_angle, by_length, by_norm), strict=True)
        if g is not None
    )
    factors = Factors.of(step, rivals2, base, by_rivals)
    weighted, by_rows = [operand, operand], unused
    if update is not None:
        weighted = [torch.empty_like(operand) if there else operand for there in (kept > 0, kept < C)]
        by_rows = rivals2.new_empty(N, d)
        launch(
            feature_kernels.before, (N,), x, table, at, of_scale, product, angle, unused, factors.relative,
            *weighted, by_rows, s, N, d, step.width, kind, which, 0, kept > 0, kept < C,
            torch.finfo(step.kind).max, D,
        )  # fmt: skip
    earlier = [unused]

    def finish_features(parts: Tensor, roots: Tensor, added: bool, last: bool) -> None:
        if not last:  # the kept classes: the others' part is added to it
            earlier[0] = rivals2.new_empty(N, d)
            size = N * d
            launch(
                feature_kernels.sum_parts, (cdiv(size, 1024),), parts, roots, earlier[0], size, d, len(parts),
                added,
                1024,
            )  # fmt: skip
            return
        launch(
            feature_kernels.after, (N,), parts, roots, earlier[0], x, table, at, of_scale, base, product, angle,
            length, norm, unused, dx, by_scale if need_scale else unused, s, N, d, len(parts), kind, which, 0,
            added,
            need_scale,
            torch.finfo(x.dtype).max, min(power(len(parts), 1), max(4096 // D, 1)), D, need_x,
        )  # fmt: skip

    given = Operands(step, operand, base, clean, weight, None, True)
    gradients(
        given, Kept(rivals2, exps, units, inverse), factors, chunk, finish_features if need_x or need_scale else
        None, None, update, weighted, by_rows, None,
    )  # fmt: skip
    return dx, by_scale


def look_back(
    x: Tensor, weight: Tensor, scale: Tensor | None, s: float, base: Tensor, operand: Tensor, clean: Tensor,
    rivals2: Tensor, exps: Tensor, units: Tensor, inverse: Tensor, by_rivals: Tensor, by_product: Tensor | None,
    by_angle: Tensor | None, by_length: Tensor | None, by_norm: Tensor | None, chunk: int, operands: str,
    need_x: bool, need_scale: bool, need_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dx, the gradient by s of every row, and dW; those not needed are empty."""
    dW = torch.empty_like(weight if need_weight else weight[:0])
    dx, by_scale = look_back_into(
        x, weight, scale, s, base, operand, clean, rivals2, exps, units, inverse, by_rivals, by_product, by_angle,
        by_length, by_norm, chunk, operands, need_x, need_scale, Update(STORE, dW) if need_weight else None,
    )  # fmt: skip
    return dx, by_scale, dW


look_op = torch.library.custom_op("hypermargin::fused_look", look, mutates_args=())
look_back_op = torch.library.custom_op("hypermargin::fused_look_back", look_back, mutates_args=())


@look_op.register_fake
def _(x, weight, labels, ignored, scale, s, chunk, kept, operands):  # type: ignore[no-untyped-def]
    N, d, kind = x.shape[0], x.shape[1], getattr(torch, operands)
    width = -(-d // 16) * 16
    rows = [torch.empty(N, device=x.device) for _ in range(7)]
    return (
        *rows[:6],
        torch.empty(N, width, dtype=kind, device=x.device),
        torch.empty(N, 1, dtype=torch.int32, device=x.device),
        rows[6],
        torch.empty(slabs(N, kept), dtype=kind, device=x.device),
        torch.empty(kept, width, dtype=kind, device=x.device),
        torch.empty(kept, device=x.device),
    )


@look_back_op.register_fake
def _(x, weight, scale, s, base, *rest):  # type: ignore[no-untyped-def]
    need_x, need_scale, need_weight = rest[-3:]
    return (
        torch.empty_like(x if need_x else x[:0]),
        base.new_empty(x.shape[0] if need_scale else 0),
        torch.empty_like(weight if need_weight else weight[:0]),
    )
