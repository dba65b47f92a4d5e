"""The whole loss of a plain head in one autograd node of few, cheap launches.

It is for two unit sides, a margin g(m1·θ + m2) − m3, exp z of all classes kept, and no optimiser in the backward;
`seen.py` and `ops.py` do the rest. The kernels and their order are those of `ops.py`. But sizes, tiles and compiled
kernels are looked up once for all steps of a kind (`Whole`), and what goes from kernel to kernel lies in the rows
of a few buffers, whose addresses are all that is given to a launch.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from hypermargin.backends.fused import feature_kernels, kernels, loss_kernels, row_kernels
from hypermargin.backends.fused.compiled import Site, stream_of, tiled
from hypermargin.backends.fused.launch import LONGEST_SUM, SLAB, cdiv, ranges, slabs, step_of
from hypermargin.backends.fused.ops import on_device_of
from hypermargin.backends.fused.tiles import power
from hypermargin.margins import g
from hypermargin.numerics import angle_between, polar, reduced, softplus, widen

MOST_CLASSES = 2**20
# Rows of the buffers: numbers per row of the batch, of the forward and of the backward, and labels.
RIVALS, RIVALS2, PRODUCT, ANGLE, LENGTH, NORM, BASE, GRADIENTS = range(8)  # four of them
TOP, TOP_SO_FAR, SUM_SO_FAR = 11, 12, 13
SHIFT, RELATIVE, ROOTS, LARGEST = 0, 1, 3, 5


def loss(
    x: Tensor, weight: Tensor, labels: Tensor, ignored: int, scale: Tensor | float,
    numbers: tuple[float, float, float], part: float, reduction: str, operands: str,
) -> Tensor:  # fmt: skip
    """Return softplus(R − T), T = product + length·part·(g(m1·θ + m2) − m3 − cos θ)."""
    s, of_rows = (1.0, scale) if isinstance(scale, Tensor) else (float(scale), None)
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
            dx, dW, ds = _again(x, weight, scale, s, left[1], ctx.margin, reduction, ctx.needs, grad)
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


class Whole:
    """The launches of the steps of one kind, with all that does not change from step to step."""

    def __init__(
        self, N: int, d: int, C: int, x: torch.dtype, weight: torch.dtype, labels: torch.dtype | None,
        device: torch.device, operands: str, ignored: int, scales: int, scale: torch.dtype | None, reduction: str,
        by_x: bool, by_weight: bool, by_scale: bool,
    ) -> None:  # fmt: skip
        self.step = step = step_of(N, C, d, operands, device)
        self.reduction, self.needs = reduction, (by_x, by_weight, by_scale)
        self.device, self.index = device, device.index or 0
        self.on_gpu = device.type == "cuda"
        self.pitch = cdiv(N, 4) * 4  # so that each row of a buffer is aligned
        self.quick_forward = self.quick_backward = False
        tiles = step.tiles
        D, width, padded = power(step.width), step.width, step.padded
        largest, M = torch.finfo(step.kind).max, tiles.scores.rows
        self.slabs = slabs(N, C)
        self.count = count = cdiv(C, tiles.scores.columns)
        grads = 2 if reduction == "none" else 1
        each = max(4096 // D, 1)
        self.look = Site(feature_kernels.look, (N,), C, d, width, ignored, scales, largest, D)
        self.operands = Site(
            row_kernels.operands, (min(cdiv(C, each), 8192),), C, d, width, True, False, each, D, largest
        )

        def scores(blocks: int, mode: int, keep: bool, redo: bool) -> Site:
            tile = tiles.scores
            return Site(
                kernels.scores, (cdiv(N, tile.rows), blocks), N, padded, C, 0, d, 1, mode, keep, False, redo,
                step.precision, tile.rows, tile.columns, tile.step, warps=tile.warps, stages=tile.stages,
            )  # fmt: skip

        few = min(count, 1024)
        self.sum = scores(count, kernels.SUM.value, True, False)
        self.top, self.share = (
            scores(few, kernels.TOP.value, False, True),
            scores(few, kernels.SHARE.value, True, True),
        )
        low, high = (math.exp(end) for end in step.window)
        self.mark = Site(row_kernels.mark, (cdiv(N, 8),), N, count, low, high, 8, 512)
        self.combine = Site(row_kernels.combine, (cdiv(N, 8),), N, count, True, False, 8, 512)
        if step.sample:
            tile, some = tiles.scores, cdiv(step.sample, tiles.scores.columns)
            self.try_some = Site(
                kernels.scores, (cdiv(N, tile.rows), some), N, padded, step.sample, 0, d, 1, kernels.TOP.value,
                False, False, False, step.precision, tile.rows, tile.columns, tile.step,
                warps=tile.warps, stages=tile.stages,
            )  # fmt: skip
            self.guess = Site(row_kernels.combine, (cdiv(N, 8),), N, some, True, True, 8, 512)
        self.margin = Site(
            loss_kernels.margin_loss, (1,), N, self.pitch, reduction != "none", reduction == "mean", 1024, warps=8
        )
        self.factors = Site(row_kernels.factors, (1,), N, step.lift, grads, *step.window, 1024 // M, M, warps=8)
        self.before = Site(feature_kernels.before, (N,), N, d, width, scales, 3, grads, True, False, largest, D)
        self.blocks = cdiv(C, tiles.weight.rows)
        self.sort = Site(
            loss_kernels.sort_labels, (cdiv(N, 16) + cdiv(self.blocks + 1, 16),), N, cdiv(N, 16), self.blocks,
            tiles.weight.rows, 16, 128,
        )  # fmt: skip
        tile, self.splits = tiles.features, step.splits
        self.ranges = list(ranges(0, C, self.splits * LONGEST_SUM))
        self.features = [
            Site(
                kernels.feature_gradient, (step.feature_tiles, self.splits), N, padded, last - first, d,
                cdiv(cdiv(last - first, self.splits), tile.step) * tile.step, first > 0, step.precision,
                8 if step.kind == torch.float32 else 0, SLAB, tile.rows, tile.columns, tile.step,
                warps=tile.warps, stages=tile.stages,
            )
            for first, last in self.ranges
        ]  # fmt: skip
        self.after = Site(
            feature_kernels.after, (N,), N, d, self.splits, scales, 7 if by_scale else 3, grads, False, by_scale,
            torch.finfo(x).max, min(power(self.splits, 1), max(4096 // D, 1)), D, by_x,
        )  # fmt: skip
        tile = tiles.weight
        self.weight = Site(
            kernels.weight_gradient, (self.blocks,), N, padded, C, 0, d, True, False, torch.finfo(weight).max,
            step.precision, cdiv(d, tile.columns), tile.rows, tile.columns, tile.step,
            warps=tile.warps, stages=tile.stages,
        )  # fmt: skip

    def forward(
        self, x: Tensor, weight: Tensor, labels: Tensor, scale: Tensor | None, s: float,
        numbers: tuple[float, float, float], part: float,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Return the loss, and what the backward needs: buffers, operand, E, w̃ and 1/|W|."""
        step, tiles, quick = self.step, self.step.tiles, self.quick_forward
        new = functools.partial(torch.empty, device=self.device)
        state, ints = new(14, self.pitch), new(2, self.pitch, dtype=torch.int32)
        operand, units = new(step.N, step.width, dtype=step.kind), new(step.C, step.width, dtype=step.kind)
        inverse, exps, sums = new(step.C), new(self.slabs, dtype=step.kind), new(2, self.count, step.N)
        found = new(step.N if self.reduction == "none" else ())
        row, (clean, redo), (total, tops) = _rows(state, quick), _rows(ints, quick), _rows(sums, quick)
        stream = stream_of(self.index) if self.on_gpu else 0
        at: Any = Tensor.data_ptr if quick else _itself
        of_x, of_weight, of_labels, x_at, inverse_at, loss_at, units_at = map(
            at, (x, weight, labels, operand, inverse, found, units)
        )
        of_scale = of_x if scale is None else at(scale)
        self.look(
            stream, of_x, of_weight, of_labels, of_scale, x_at, clean, row[BASE], row[PRODUCT], row[ANGLE],
            row[LENGTH], row[NORM], s,
        )  # fmt: skip
        self.operands(stream, of_weight, units_at, inverse_at, inverse_at)
        tile = tiles.scores
        left, right = tiled(operand, tile.rows, tile.step), tiled(units, tile.columns, tile.step)
        out = tiled(exps, tile.rows, tile.columns)
        if step.sample:
            self.try_some(stream, left, right, left, clean, clean, clean, clean, total, tops)
            spare = row[TOP]
            self.guess(stream, total, tops, row[BASE], spare, spare, spare, spare, spare, step.more)
        self.sum(stream, left, right, out, clean, clean, row[BASE], clean, total, tops)
        self.mark(stream, total, redo)
        self.top(stream, left, right, left, clean, clean, clean, redo, total, tops)
        self.combine(
            stream,
            total,
            tops,
            row[BASE],
            row[TOP_SO_FAR],
            row[SUM_SO_FAR],
            row[RIVALS],
            row[RIVALS2],
            row[TOP],
            0.0,
        )
        self.margin(
            stream,
            row[RIVALS],
            row[PRODUCT],
            row[ANGLE],
            row[LENGTH],
            clean,
            loss_at,
            row[GRADIENTS],
            *numbers,
            part,
        )
        self.quick_forward = self.margin.code is not None
        return found, state, ints, operand, exps, units, inverse

    def backward(
        self, x: Tensor, weight: Tensor, scale: Tensor | None, s: float, state: Tensor, ints: Tensor,
        operand: Tensor, exps: Tensor, units: Tensor, inverse: Tensor, grad: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Return the gradients by x, weight and scale; those not needed are empty."""
        step, tiles, quick = self.step, self.step.tiles, self.quick_backward
        by_x, by_weight, by_scale = self.needs
        N, C, d = step.N, step.C, step.d
        new = functools.partial(torch.empty, device=self.device)
        more, more_ints = new(6, self.pitch), new(3, self.pitch, dtype=torch.int32)
        row, extra = _rows(state, quick), _rows(more, quick)
        clean, (redo, order, ordered) = _rows(ints, quick)[0], _rows(more_ints, quick)
        stream = stream_of(self.index) if self.on_gpu else 0
        at: Any = Tensor.data_ptr if quick else _itself
        of_x, of_weight, of_grad = at(x), at(weight), at(grad)
        of_scale = of_x if scale is None else at(scale)
        by_product, by_angle, by_length = (row[GRADIENTS + k] for k in (1, 2, 3))
        shift, relative, roots, largest = (extra[k] for k in (SHIFT, RELATIVE, ROOTS, LARGEST))
        self.factors(
            stream, row[RIVALS2], row[BASE], row[GRADIENTS], of_grad, shift, redo, relative, roots, largest
        )
        tile = tiles.scores
        self.share(
            stream, tiled(operand, tile.rows, tile.step), tiled(units, tile.columns, tile.step),
            tiled(exps, tile.rows, tile.columns), clean, clean, shift, redo, clean, clean,
        )  # fmt: skip
        dx, dW = torch.empty_like(x if by_x else x[:0]), torch.empty_like(weight if by_weight else weight[:0])
        ds = new(N if by_scale else 0)
        if by_x or by_scale:
            parts = new(self.splits, N, d)
            tile = tiles.features
            for (first, last), site in zip(self.ranges, self.features, strict=True):
                e, w = exps, units
                if first or last < C:
                    e, w = exps[first // SLAB * step.padded :], units[first:last]
                site(stream, tiled(e, tile.rows, tile.step), tiled(w, tile.step, tile.columns), at(parts))
            self.after(
                stream, at(parts), roots, shift, of_x, of_weight, clean, of_scale, row[BASE], by_product, by_angle,
                by_length, shift, of_grad, at(dx), at(ds), s,
            )  # fmt: skip
        if by_weight:
            weighted, by_rows = torch.empty_like(operand), new(N, d)
            starts = new(self.blocks + 1, dtype=torch.int32)
            self.before(
                stream, of_x, of_weight, clean, of_scale, by_product, by_angle, of_grad, relative, at(weighted),
                at(weighted), at(by_rows), s,
            )  # fmt: skip
            self.sort(stream, clean, ordered, order, at(starts))
            tile = tiles.weight
            self.weight(
                stream, tiled(exps, tile.step, tile.rows), tiled(weighted, tile.step, tile.columns), of_weight,
                at(inverse), at(dW), largest, largest, at(starts), order, ordered, at(by_rows),
            )  # fmt: skip
        self.quick_backward = self.factors.code is not None
        if by_scale and scale is not None:
            ds = (ds if scale.numel() > 1 else ds.sum()).view_as(scale).to(scale.dtype)
        return dx, dW, ds


plan_of_kind = functools.lru_cache(256)(Whole)


def _rows(buffer: Tensor, quick: bool) -> Any:
    """Return the rows of a buffer, as addresses or, where kernels are still to be compiled, as tensors."""
    if not quick:
        return buffer.unbind()
    start, count = buffer.data_ptr(), len(buffer)
    pitch = buffer.nbytes // count
    return range(start, start + count * pitch, pitch)


def _itself(x: Tensor) -> Any:
    return x


def _again(
    x: Tensor, weight: Tensor, scale: Tensor | None, s: float, ints: Tensor,
    margin: tuple[float, float, float, float], reduction: str, needs: tuple[bool, bool, bool], grad: Tensor,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Return the gradients by operations that can be differentiated again, in dense memory."""
    m1, m2, m3, part = margin
    y = ints[0, : len(x)].long()[:, None]
    u, norm = polar(widen(x, torch.float32).masked_fill(y < 0, 0.0))
    w, _ = polar(widen(weight, torch.float32))
    s_of = s if scale is None else scale.reshape(-1, 1)
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
