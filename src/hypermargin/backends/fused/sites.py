"""The launches of a plain head's step: what does not change from step to step is looked up once (`Whole`).

The kernels and their order are those of `look_ops.py` and `ops.py`, for all classes kept. What goes from kernel to
kernel lies in the rows of a few buffers, whose addresses are all that is given to a launch.
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
from hypermargin.backends.fused.tiles import power

# Rows of the buffers: numbers per row of the batch, of the forward and of the backward, and labels.
RIVALS, RIVALS2, PRODUCT, ANGLE, LENGTH, NORM, BASE, GRADIENTS = range(8)  # four of them
TOP, TOP_SO_FAR, SUM_SO_FAR = 11, 12, 13
SHIFT, RELATIVE, ROOTS, LARGEST = 0, 1, 3, 5


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
