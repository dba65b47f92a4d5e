"""The fused backend for heads whose rivals count by a rule: the order of the kernels, and the autograd node.

It is the way of `ops.py` with other scores (`rule_kernels.py`): what is kept of a class is exp(ρ)·ρ′ in place of
exp z, so both products of the backward stay as they are. Sums of softplus and plain sums need no base, and nothing
is ever done again: what is kept of them is at most ρ′. A gradient by |f|, and by a bias that all classes share,
needs one more sum per row, which the forward takes along; that of a bias per class needs the scores once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hypermargin.backends.blocks import empty_gradients, rule_at_rows
from hypermargin.backends.dense import differentiable_gradients
from hypermargin.backends.fused import OUTSIDE, feature_kernels, kernels, rule_kernels
from hypermargin.backends.fused.compiled import launch, tiled
from hypermargin.backends.fused.launch import (
    PROGRAMS,
    STORE,
    Factors,
    Step,
    Update,
    cdiv,
    operand,
    room,
    slabs,
    step_of,
)
from hypermargin.backends.fused.ops import (
    LOG2_E,
    Kept,
    Operands,
    gradients,
    in_parts,
    of_no_rows,
    on_its_device,
    sum_rivals,
    tiles_of,
)
from hypermargin.backends.fused.rules import InTiles, in_tiles
from hypermargin.backends.fused.sinks import updating
from hypermargin.backends.fused.tiles import power
from hypermargin.layout import ClassTable
from hypermargin.numerics import apply
from hypermargin.rules import LOG_SUM_EXP, SUM, SUM_OF_SOFTPLUS
from hypermargin.rules._base import from_text

AGGREGATES = {
    LOG_SUM_EXP.name: rule_kernels.LOG_SUM_EXP.value,
    SUM_OF_SOFTPLUS.name: rule_kernels.SUM_OF_SOFTPLUS.value,
    SUM.name: rule_kernels.PLAIN_SUM.value,
}


@dataclass(frozen=True)
class Ruled(Operands):
    """What a call multiplies, with the rule, the aggregate, and the numbers of its rows."""

    tile: InTiles
    aggregate: int
    facts: Tensor  # (1 + n, N)  |f|·log2 e, and the rule's numbers of each row
    more: Tensor | None  # (2, tiles, N)  room for the second sums of a part's tiles, if they are wanted
    mean: Tensor  # (2, N)  what they come to: the mean of ρ − c·ρ′ as R weighs it, or its sum, and Σ dR/dρ
    before: Tensor  # (2, N)  the sums so far, and what they are scaled by

    @property
    def is_additive(self) -> bool:
        """Whether rivals add up as they are, without a shift."""
        return bool(self.aggregate != rule_kernels.LOG_SUM_EXP.value)

    def scores(
        self, mode: int, first: int, last: int, w: Tensor, *, out: Tensor | None = None,
        shift: Tensor | None = None, redo: Tensor | None = None, sums: Tensor | None = None,
        tops: Tensor | None = None, factor: Tensor | None = None, columns: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Do with the logits of a range of the classes, counted by the rule, what `mode` says."""
        step, tile, C, labels = self.step, self.step.tiles.scores, w.shape[0], self.labels
        blocks, bias = cdiv(C, tile.columns), self.biases(first, last)
        more = self.more if mode in (kernels.SUM.value, kernels.TOP.value) else None
        pointers = (bias, shift, redo, sums, tops, more, factor, columns)
        launch(
            rule_kernels.ruled_scores, (cdiv(step.N, tile.rows), blocks if redo is None else min(blocks, PROGRAMS)),
            tiled(self.x, tile.rows, tile.step),
            tiled(w, tile.columns, tile.step),
            tiled(self.x, tile.rows, tile.step) if out is None else tiled(out, tile.rows, tile.columns // 4),
            labels,
            *(labels if t is None else t for t in pointers),  # a kernel does not read what it is not given
            self.facts, self.facts[1:] if len(self.facts) > 1 else labels, *self.tile.numbers, 2.0**step.lift,
            step.N, step.padded, C, first, step.d, 1 if more is None else more.shape[1], labels.shape[1], mode,
            out is not None, bias is not None, redo is not None, self.tile.function, len(self.facts) - 1,
            self.tile.straight, self.aggregate, more is not None, torch.finfo(step.kind).max, step.precision,
            tile.rows, tile.columns, tile.step, warps=tile.warps, stages=tile.stages,
        )  # fmt: skip

    def by_bias(
        self, e: Tensor, w: Tensor, factors: Factors, which: int, first: int, last: int, out: Tensor
    ) -> None:
        """Write the bias's gradient of a range of the classes: what is kept has the slope in it, so anew."""
        step = self.step
        parts = out.new_empty(cdiv(step.N, step.tiles.scores.rows), last - first, dtype=torch.float32)
        self.scores(
            rule_kernels.COLUMNS.value, first, last, w, shift=factors.shift, factor=factors.relative[1],
            columns=parts,
        )  # fmt: skip
        root = factors.largest[1]
        out.copy_(parts.sum(0) * root * root)

    def combined(self, tops: Tensor, top_so_far: Tensor, sum_so_far: Tensor, tiles: int, first: bool) -> None:
        """Add up the second sums of these tiles, scaled as the first."""
        if self.more is not None:
            launch(
                rule_kernels.mean_of_more, (cdiv(self.step.N, 8),), self.more, tops, top_so_far, sum_so_far,
                self.before[0], self.before[1], self.mean, self.step.N, tiles, first, 8, 512,
            )  # fmt: skip


def add_rivals(given: Ruled, chunk: int, total: Tensor | None, rivals: Tensor, left: Kept) -> None:
    """Fill `rivals` and what is kept, where rivals add up as they are; add Σ w̃ to `total`."""
    step, more = given.step, given.more
    sums = rivals.new_empty(tiles_of(step, chunk, left.units.shape[0]), step.N)
    for first, last, w, exps in in_parts(given, chunk, left, rivals, total):
        given.scores(kernels.SUM.value, first, last, w, sums=sums, out=exps)
        launch(
            rule_kernels.add_up, (cdiv(step.N, 8),), sums, sums if more is None else more, given.base, rivals,
            left.rivals2, given.mean, step.N, cdiv(last - first, step.tiles.scores.columns),
            1 if more is None else more.shape[1], first == 0, more is not None, 8, 512,
        )  # fmt: skip


def prepared(
    step: Step, x: Tensor, base: Tensor, labels: Tensor, weight: Tensor, bias: Tensor | None, rule: str,
    length: Tensor, threshold: Tensor | None, more: Tensor | None, mean: Tensor,
) -> Ruled:  # fmt: skip
    """Return what a call multiplies; where rivals add up as they are, `base` is set to what undoes the lift."""
    found = from_text(rule)
    aggregate, numbers = AGGREGATES[found.aggregate.name], found.row_numbers
    facts = length.new_empty(1 + numbers, step.N, dtype=torch.float32)
    additive = aggregate != rule_kernels.LOG_SUM_EXP.value
    if step.N:
        launch(
            rule_kernels.row_facts, (cdiv(step.N, 256),), length.contiguous(),
            length if threshold is None else threshold.contiguous(), base, facts, step.N, float(-step.lift),
            numbers, not additive, 256,
        )  # fmt: skip
    bias2 = None if bias is None else bias * LOG2_E
    before = facts.new_empty(2, step.N if more is not None else 0)
    return Ruled(
        step, x, base, labels, weight, bias2, True, in_tiles(found), aggregate, facts, more, mean, before
    )  # fmt: skip


@on_its_device
def forward(
    f: Tensor, weight: Tensor, bias: Tensor | None, local: Tensor, length: Tensor, threshold: Tensor | None,
    want_total: bool, want_more: bool, chunk: int, kept: int, operands: str, rule: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return rows (N, K, d), rivals (N,), Σ w̃ (d,) or (0,).

    Six more are for the backward: the base of every row, the second sums of every row, what is subtracted from the
    rivals in base 2, and E·ρ′, w̃ and 1/|W| of the kept classes.
    """
    step = step_of(*f.shape[:1], *weight.shape, operands, f.device, True)
    N, C, d = step.N, step.C, step.d
    rows = f.new_empty(*local.shape, d)
    rivals, top, base = (f.new_empty(N) for _ in range(3))
    left = Kept(f.new_empty(N), f.new_empty(slabs(N, kept), dtype=step.kind), *room(step, f, kept))
    total = torch.zeros(d, dtype=torch.float64, device=f.device) if want_total else None
    labels = local.to(torch.int32).contiguous()
    x, mean = f, f.new_empty(2, N if want_more else 0)
    more = f.new_empty(2, tiles_of(step, chunk, kept), N) if want_more else None
    if N:
        x = operand(f, step, LOG2_E, labels=labels, base=base, unit_weight=True)
        launch(
            feature_kernels.label_rows, (labels.numel(),), weight, labels, rows, C, d, True, OUTSIDE, power(d)
        )  # fmt: skip
    given = prepared(step, x, base, labels, weight, bias, rule, length, threshold, more, mean)
    if given.is_additive:
        add_rivals(given, chunk, total, rivals, left)
    else:
        sum_rivals(given, chunk, total, rivals, top, left)
    return rows, rivals, f.new_empty(0) if total is None else total.to(f.dtype), base, mean, *left


@on_its_device
def backward_into(
    f: Tensor, weight: Tensor, bias: Tensor | None, local: Tensor, length: Tensor, threshold: Tensor | None,
    base: Tensor, mean: Tensor, rivals2: Tensor, exps: Tensor, units: Tensor, inverse: Tensor, by_rows: Tensor,
    by_rivals: Tensor, by_total: Tensor | None, chunk: int, operands: str, rule: str, need_f: bool, need_bias: bool,
    update: Update | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return df, db and the gradient by |f|, empty if not needed; dW is used as `update` says."""
    step = step_of(*f.shape[:1], *weight.shape, operands, f.device, True)
    N, d = step.N, step.d
    db = torch.zeros_like(bias) if bias is not None and need_bias else f.new_empty(0)
    if N == 0:
        of_no_rows(step, weight, chunk, update)
        return torch.zeros_like(f) if need_f else f.new_empty(0), db, torch.zeros_like(length)
    labels = local.to(torch.int32).contiguous()
    x = operand(f, step, LOG2_E)
    given = prepared(step, x, base, labels, weight, bias, rule, length, threshold, None, mean)
    by_rivals = by_rivals.contiguous()
    factors = Factors.of(step, rivals2, base, by_rivals)
    df = f.new_empty(N if need_f else 0, d)

    def finish_features(parts: Tensor, roots: Tensor, added: bool, last: bool) -> None:
        size = N * d
        launch(feature_kernels.sum_parts, (cdiv(size, 1024),), parts, roots, df, size, d, len(parts), added, 1024)

    weighted = [] if update is None else [operand(f, step, factor=each) for each in factors.relative]
    good = ~(rivals2.isnan() | rivals2.isneginf())
    by_rows = by_rows.masked_fill(base.isnan()[:, None, None], 0.0).reshape(-1, d).contiguous()
    shared = bias is not None and need_bias and bias.stride(0) == 0 and mean.numel() > 0
    gradients(
        given, Kept(rivals2, exps, units, inverse), factors, chunk, finish_features if need_f else None,
        db if bias is not None and need_bias and not shared else None, update, weighted, by_rows, by_total,
    )  # fmt: skip
    by_each = torch.where(good, by_rivals * mean, 0.0) if mean.numel() else mean
    if shared:  # one number stands for all classes, and only the sum of their gradients counts
        db.fill_(1.0 / len(db)).mul_((by_each[1] if given.is_additive else torch.where(good, by_rivals, 0.0)).sum())
    return df, db, by_each[0].view_as(length) if mean.numel() else torch.zeros_like(length)


def backward(
    f: Tensor, weight: Tensor, bias: Tensor | None, local: Tensor, length: Tensor, threshold: Tensor | None,
    base: Tensor, mean: Tensor, rivals2: Tensor, exps: Tensor, units: Tensor, inverse: Tensor, by_rows: Tensor,
    by_rivals: Tensor, by_total: Tensor | None, chunk: int, operands: str, rule: str, need_f: bool,
    need_weight: bool, need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return df, dW, db and the gradient by |f|; those not needed are empty."""
    dW = torch.empty_like(weight) if need_weight else weight.new_empty(0)
    df, db, by_length = backward_into(
        f, weight, bias, local, length, threshold, base, mean, rivals2, exps, units, inverse, by_rows, by_rivals,
        by_total, chunk, operands, rule, need_f, need_bias, Update(STORE, dW) if need_weight else None,
    )  # fmt: skip
    return df, dW, db, by_length


def differentiable(inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Run `forward` on its inputs and where the weight's gradient goes, as a node of autograd."""
    found: tuple[Tensor, ...] = apply(_Node, *inputs)
    return found


forward_op = torch.library.custom_op("hypermargin::fused_ruled_forward", forward, mutates_args=())
backward_op = torch.library.custom_op("hypermargin::fused_ruled_backward", backward, mutates_args=())


@forward_op.register_fake
def _(f, weight, bias, local, length, threshold, want_total, want_more, chunk, kept, operands, rule):  # type: ignore[no-untyped-def]
    N, d = f.shape
    kind = getattr(torch, operands)
    return (
        f.new_empty(*local.shape, d),
        f.new_empty(N),
        f.new_empty(d if want_total else 0),
        f.new_empty(N),
        f.new_empty(2, N if want_more else 0),
        f.new_empty(N),
        f.new_empty(slabs(N, kept), dtype=kind),
        f.new_empty(kept, -(-d // 16) * 16, dtype=kind),
        f.new_empty(kept),
    )


@backward_op.register_fake
def _(f, weight, bias, local, length, *rest):  # type: ignore[no-untyped-def]
    return *empty_gradients(f, weight, bias, *rest[-3:]), torch.empty_like(length)


class _Node(torch.autograd.Function):
    """The one autograd node; it computes all of dW, including the part that comes through the label rows."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        run = forward_op if torch.compiler.is_compiling() else forward
        found: tuple[Tensor, ...] = run(*inputs[:-1])
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        tensors, ctx.settings = inputs[:6], inputs[6:]
        ctx.save_for_backward(*tensors, *output[3:])
        ctx.mark_non_differentiable(*output[3:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, by_rows: Tensor | None, by_rivals: Tensor | None, by_total: Tensor | None, *_: None
    ) -> tuple[Any, ...]:
        f, weight, bias, local, length, threshold, *left = ctx.saved_tensors
        want_total, _, chunk, _, operands, rule, sink = ctx.settings
        by_rows = f.new_zeros(*local.shape, f.shape[1]) if by_rows is None else by_rows
        by_rivals = torch.zeros_like(left[2]) if by_rivals is None else by_rivals
        by_total = by_total if want_total else None  # torch.compile may pass an empty tensor
        by_f, by_weight, by_bias, _, by_length, *_ = ctx.needs_input_grad
        grads: tuple[Tensor | None, ...]
        if torch.is_grad_enabled():
            if sink is not None:
                raise RuntimeError("a head with FusedSGD or weight.main_grad has no second derivative.")
            rivals = _Node.apply(f, weight, bias, local, length, threshold, *ctx.settings)[1]
            table = ClassTable(weight, True, bias, local.clamp(min=-1))
            at_rows = rule_at_rows(rule, length, threshold)
            grads = differentiable_gradients(f, table, at_rows, rivals, by_rows, by_rivals, by_total)
        else:
            sides = (f, weight, bias, local, length, threshold)
            given = (*sides, *left, by_rows, by_rivals, by_total, chunk, operands, rule, by_f)
            run: Any
            if sink is not None and by_weight:
                run = backward_into
                with updating(sink, weight) as update:
                    df, db, dl = run(*given, by_bias, update)
                grads = (df, None, db, dl)
            else:
                run = backward_op if torch.compiler.is_compiling() else backward
                grads = run(*given, by_weight, by_bias)
        needed = (by_f, by_weight, by_bias, by_length)
        by_each = [grad if need else None for grad, need in zip(grads, needed, strict=True)]
        return *by_each[:3], None, by_each[3], *[None] * 8
