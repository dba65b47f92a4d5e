"""Rivals without the N×C matrix: blocks of classes, one after the other, on any device.

Forward: for each block, z = f·w̃ᵀ + b is computed, the labels are masked out, and Σ exp z is added up. Backward: z
is computed again, P = exp(z − R), and two products follow, P·w̃ into df and Pᵀ·f into the block's slice of dW. That
is 8·N·C·d operations where dense needs 6. Beyond the inputs and the gradients it holds an N×chunk block and up to
two chunk×d blocks (on the CPU per thread), a few N- and C-vectors, and as many blocks of exp z as the memory
budget allows, which then need not be computed again.

Three things keep the number of passes over each block small:
- factors of whole rows (the gradient g of R; exp(−R)) commute with both products, so they are put on f and on df;
- 1/|W_j| is a factor of a whole column of z and of P, so no normalised copy of the weight is made;
- where a bound on |z| shows that exp z cannot overflow, no maximum is subtracted first.

On the CPU each thread computes whole blocks (`crew.py`). What they find is added up in the order of the blocks, so
that results do not depend on the number of threads.

The loops are opaque custom operations: torch.compile neither unrolls nor reorders them. One autograd node contains
them. A second derivative (or torch.func) uses the dense formula, and its memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.backends import blocks
from hypermargin.backends.base import PLAIN, Call, Rivals
from hypermargin.backends.dense import (
    REDUCED_OPERANDS_WORK,
    autocast_operands,
    differentiable_gradients,
    sum_of_rivals,
)
from hypermargin.centers import ONE, from_text
from hypermargin.layout import ClassTable
from hypermargin.numerics import apply
from hypermargin.rules import RuleAtRows
from hypermargin.rules._base import to_text

OPERANDS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Chunked:
    """Settings of the chunked backend, for `backend=Chunked(…)`.

    - chunk: classes per block; by default chosen from the number of rows and the device
    - keep: megabytes of exp z to keep from the forward to the backward on the CPU, saving their recomputation
    - operands: dtype of the matrix products' operands on CUDA, "bfloat16" or "float16", with float32 sums;
      by default autocast's dtype, and float32 without autocast. With "float16" the operands of the backward are
        bfloat16, since they need its range. On the CPU operands are always float32 or wider.
    """

    chunk: int | None = None
    keep: int = 64
    operands: str | None = None
    knows_pools: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.chunk is not None:
            checks.count("Chunked(chunk=…)", self.chunk)
        checks.count("Chunked(keep=…)", self.keep, 0)
        if self.operands is not None:
            checks.one_of("Chunked(operands=…)", self.operands, OPERANDS)
            if self.operands != "float32" and not REDUCED_OPERANDS_WORK:
                raise ValueError(
                    f"Chunked(operands={self.operands!r}) needs torch 2.8 or newer; got {torch.__version__}."
                )

    def fitted(self, call: Call) -> Chunked:
        """Return a copy with a block size for such a call, and with autocast's dtype for the operands on CUDA."""
        chunk, operands = self.chunk, self.operands
        if chunk is None:
            chunk = chunk_for(call.rows, call.classes, call.device)
        if operands is None and REDUCED_OPERANDS_WORK:
            operands = autocast_operands(call.device)
        return Chunked(chunk=chunk, keep=self.keep, operands=operands)

    def explain(self, call: Call) -> str:
        """Return a sentence that says how large the blocks are."""
        chunk = self.chunk or chunk_for(call.rows, call.classes, call.device)
        held = f"{call.rows * min(chunk, call.classes) * 4 / 2**20:,.0f} MB"
        operands = f", {self.operands} operands" if self.operands else ""
        each = " per thread" if call.device.type == "cpu" else ""
        return f"chunked: Blocks of {chunk:,} classes, {held} of float32 logits at a time{each}{operands}."

    def __call__(
        self,
        f: Tensor,
        table: ClassTable,
        rule: RuleAtRows | None = None,
        *,
        rival_sum: bool = False,
        hardest: bool = False,
    ) -> Rivals:
        """Return the rivals of `f` (N, d), block by block."""
        rule = PLAIN if rule is None else rule
        weight, chunk = table.weight, self.chunk or chunk_for(f.shape[0], table.weight.shape[0], f.device)
        pooled = table.centers.pooled
        if pooled:  # the classes of a block are whole
            chunk = -(-chunk // table.centers.count) * table.centers.count
        local = table.local if table.inside is None else table.local.masked_fill(~table.inside, -1)  # in no block
        kept = 0
        if f.device.type == "cpu" and learns(f, weight) and rule.rule.is_softmax and not pooled:
            held = self.keep * 2**20 // (max(f.shape[0], 1) * f.element_size())
            kept = min(held // chunk * chunk, weight.shape[0])
        inputs = (
            f, weight, table.column_bias(), local, table.unit, rival_sum, hardest, chunk, kept, self.operands or "",
            "" if rule.rule.is_softmax else to_text(rule.rule), table.centers.text if pooled else "",
            rule.length, rule.threshold,
        )  # fmt: skip
        # Without a gradient torch.compile cannot follow the node, nor is it needed.
        direct = torch.compiler.is_compiling() and not learns(f, weight, table.bias)
        rows, rivals, total, largest, *_ = blocks.forward(*inputs) if direct else apply(_Node, *inputs)
        sums = sum_of_rivals(f, total, rows, local, table.bias) if rival_sum else None
        return Rivals(rows, rivals, sums, largest if hardest else None)


def learns(*tensors: Tensor | None) -> bool:
    """Tell whether autograd will want a gradient by any of these."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def chunk_for(rows: int, classes: int, device: torch.device) -> int:
    """Return the number of classes per block: enough for fast products, few enough for cache and memory.

    On the CPU there are to be several blocks, since each is computed by one thread.
    """
    if device.type == "cuda":
        size = min(max(2**27 // max(rows, 1), 1024), 262144)  # 512 MB of numbers in z
    else:
        size = min(max(2**20 // max(rows, 1), 1024), 8192, max(classes // 8, 512))  # 4 MB
    return min(size // 128 * 128, classes)


class _Node(torch.autograd.Function):
    """The one autograd node; it computes all of dW, including the part that comes through the label rows."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = blocks.forward(*inputs)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        f, weight, bias, local, *ctx.settings, length, threshold = inputs
        _, rivals, _, largest, norms, plain, exps = output
        ctx.save_for_backward(f, weight, bias, local, length, threshold, rivals, norms, plain, exps)
        ctx.mark_non_differentiable(largest, norms, plain, exps)
        ctx.set_materialize_grads(False)  # else autograd would allocate zeros of the size of what was kept

    @staticmethod
    def backward(
        ctx: Any, by_rows: Tensor | None, by_rivals: Tensor | None, by_total: Tensor | None, *_: None
    ) -> tuple[Any, ...]:
        f, weight, bias, local, length, threshold, rivals, norms, plain, exps = ctx.saved_tensors
        unit_weight, want_total, _, chunk, kept, operands, rule, pool = ctx.settings
        by_rows = f.new_zeros(*local.shape, f.shape[1]) if by_rows is None else by_rows
        by_rivals = torch.zeros_like(rivals) if by_rivals is None else by_rivals
        by_total = by_total if want_total else None  # torch.compile may pass an empty tensor
        needed = ctx.needs_input_grad
        grads: tuple[Tensor | None, ...]
        if torch.is_grad_enabled():
            rivals = _Node.apply(f, weight, bias, local, *ctx.settings, length, threshold)[1]
            table = ClassTable(weight, unit_weight, bias, local, centers=from_text(pool) if pool else ONE)
            at_rows = blocks.rule_at_rows(rule, length, threshold)
            grads = differentiable_gradients(f, table, at_rows, rivals, by_rows, by_rivals, by_total)
        else:
            grads = blocks.backward(
                f, weight, bias, local, rivals, norms, plain, exps, by_rows, by_rivals, by_total, unit_weight,
                chunk, kept, operands, rule, pool, length, threshold, *needed[:3],
            )  # fmt: skip
        df, dW, db = (grad if need else None for grad, need in zip(grads[:3], needed[:3], strict=True))
        return df, dW, db, *[None] * 9, grads[3] if needed[-2] else None, None
