"""Rivals without the N×C matrix on NVIDIA GPUs, by Triton kernels that fuse exp, sums and masks into the products.

Three products are needed, rows × classes in the forward and two in the backward. If E = exp z is kept from the
forward (2·N·C bytes in bfloat16) these are all: 6·N·C·d operations. Otherwise z is computed again in chunks of
classes, 8·N·C·d operations. `memory` says how much may be kept: E of as many classes as fit is kept.

`ops.py` has the order of the launches, `launch.py` each launch, `compiled.py` how they are made cheap, `kernels.py`
the products, `row_kernels.py`, `feature_kernels.py` and `loss_kernels.py` the smaller kernels around them,
`tiles.py` the tile sizes. `seen.py`, `look_ops.py`, `whole.py` and `sites.py` are for heads with two unit sides;
`ruled.py`, `rule_kernels.py`, `rule_tiles.py` and `rules.py` for rivals that count by a rule.
All need Triton; importing this file does not.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.backends.base import PLAIN, Call, Rivals, Seen
from hypermargin.backends.chunked import learns
from hypermargin.backends.dense import autocast_operands, differentiable_gradients, sum_of_rivals
from hypermargin.backends.fused.rules import knows
from hypermargin.layout import ClassTable
from hypermargin.numerics import apply
from hypermargin.rules import LOG_SUM_EXP, RuleAtRows
from hypermargin.rules._base import to_text

if TYPE_CHECKING:
    from hypermargin.optim import FusedSGD

OPERANDS = ("float32", "bfloat16", "float16")
OUTSIDE = -(2**30)  # the label of a row whose class is in another slice
TILE = 256  # chunks and what is kept are multiples of this many classes


@dataclass(frozen=True)
class Triton:
    """Settings of the fused backend, for `backend=Triton(…)`.

    - memory: megabytes for exp z and for the weight's operands, beyond weight and gradients. What the chunks do not
      need is used to keep exp z from the forward to the backward, which saves computing it again. 0 keeps nothing.
    - operands: dtype of the matrix products' operands, which are summed in float32. "float16" is more exact than
      "bfloat16", but scaled features beyond 45,000 saturate. "float32" is as exact as float32, by three TF32
      products in place of one. By default autocast's dtype, and float32 without autocast.
    - chunk: classes per chunk, a multiple of 256; by default chosen from the number of rows
    - tune: measure once (some seconds) which tiles are fastest on this GPU for such calls, and keep the result in
      ~/.cache/hypermargin. Otherwise tiles tuned on an H200 are used.
    - update: an optimiser that takes the weight's gradient in the backward and changes the weight there
      (`FusedSGD`). Without one the gradient is added to the float32 tensor `weight.main_grad` if there is one, as
      in Megatron, and else returned to autograd.
    """

    memory: float = 4096
    operands: str | None = None
    chunk: int | None = None
    tune: bool = False
    update: FusedSGD | None = None

    def __post_init__(self) -> None:
        checks.in_range("Triton(memory=…)", self.memory, 0.0, math.inf)
        if self.operands is not None:
            checks.one_of("Triton(operands=…)", self.operands, OPERANDS)
        if self.chunk is not None:
            checks.count("Triton(chunk=…)", self.chunk)
            if self.chunk % TILE:
                raise ValueError(f"Triton(chunk=…) must be a multiple of {TILE}; got {self.chunk}.")

    def fitted(self, call: Call) -> Triton:
        """Return the backend with autocast's dtype for the operands; raise ValueError where it cannot run."""
        reason = why_not(call.device)
        if not knows(call.rule):
            reason = reason or f"its kernels do not know {call.rule}"
        if call.centers.pooled:
            reason = reason or f"its kernels count every center of a class as a rival, and centers={call.centers}"
        if reason:
            raise ValueError(f'backend="triton" cannot run here: {reason}. Use "auto" or "chunked".')
        if call.dtype != torch.float32:
            raise ValueError(
                f'backend="triton" computes in float32; got features or weight in {call.dtype}. Use "chunked" or '
                '"dense".'
            )
        return self if self.operands is not None else replace(self, operands=autocast_operands(call.device))

    def explain(self, call: Call) -> str:
        """Return a sentence that says how much is kept from the forward to the backward."""
        cut = plan(call.rows, call.classes, call.dim, self)
        share = "all" if cut.kept == call.classes else "none" if not cut.kept else f"{cut.kept:,}"
        operands = f", {self.operands} operands" if self.operands else ""
        return f"triton: exp z of {share} of the classes is kept for the backward{operands}."

    def __call__(
        self,
        f: Tensor,
        table: ClassTable,
        rule: RuleAtRows | None = None,
        *,
        rival_sum: bool = False,
        hardest: bool = False,
    ) -> Rivals:
        """Return the rivals of `f` (N, d) without the N×C matrix."""
        from hypermargin.backends.fused.sinks import sink_of

        weight, sink = table.weight, sink_of(table.weight, self.update)
        local = (
            table.local if table.inside is None else table.local.masked_fill(~table.inside, OUTSIDE)
        )  # in no tile
        cut = self._cut(f, weight)
        if rule is not None and not rule.rule.is_softmax:
            found = self._ruled(f, table, local, rule, rival_sum, cut, sink)
            return found._replace(hardest=self._hardest(f, table) if hardest else None)
        inputs = (
            f.contiguous(), weight.contiguous(), table.bias, local, table.unit, rival_sum, hardest, cut.chunk,
            cut.kept if learns(f, weight) and not hardest else 0, cut.operands,
        )  # fmt: skip
        if torch.compiler.is_compiling() and not learns(f, weight, table.bias):
            # Without a gradient torch.compile cannot follow the node, nor is it needed.
            from hypermargin.backends.fused import ops

            rows, rivals, total, largest, *_ = ops.forward_op(*inputs)
        else:
            rows, rivals, total, largest, *_ = apply(_Node, *inputs, sink)
        sums = _sum_of_rivals(f, total, rows, rivals, local, table) if rival_sum else None
        return Rivals(rows, rivals, sums, largest if hardest else None)

    def _ruled(
        self, f: Tensor, table: ClassTable, local: Tensor, rule: RuleAtRows, rival_sum: bool, cut: Plan,
        sink: FusedSGD | Tensor | None,
    ) -> Rivals:  # fmt: skip
        """Return the rivals counted by a rule."""
        from hypermargin.backends.fused import ruled

        weight, bias, length = table.weight, table.bias, rule.length
        if length is None:  # a rule that leaves cosines as they are needs none
            length = f.new_ones(f.shape[0], 1)
        more = learns(length, None if bias is None or rule.rule.aggregate is LOG_SUM_EXP else bias)
        inputs = (
            f.contiguous(), weight.contiguous(), bias, local, length, rule.threshold, rival_sum, more, cut.chunk,
            cut.kept if learns(f, weight) else 0, cut.operands, to_text(rule.rule),
        )  # fmt: skip
        if torch.compiler.is_compiling() and not learns(f, weight, bias, length):
            rows, rivals, total, *_ = ruled.forward_op(*inputs)
        else:
            rows, rivals, total, *_ = ruled.differentiable((*inputs, sink))
        sums = _sum_of_rivals(f, total, rows, rivals, local, table) if rival_sum else None
        return Rivals(rows, rivals, sums, None)

    @torch.no_grad()
    def _hardest(self, f: Tensor, table: ClassTable) -> Tensor | None:
        """Return the largest logit of every row, whatever the rule, by a pass of its own."""
        return self(f, table, hardest=True).hardest

    def look(self, x: Tensor, weight: Tensor, labels: Tensor, ignored: int, scale: Tensor | float) -> Seen:
        """Return rivals and the geometry of the targets for f = s·x̂ and unit class weights, in one node."""
        from hypermargin.backends.fused import seen
        from hypermargin.backends.fused.sinks import sink_of

        cut = self._cut(x, weight)
        kept = cut.kept if learns(x, weight, scale if isinstance(scale, Tensor) else None) else 0
        sink = sink_of(weight, self.update)
        return seen.look(x, weight, labels, ignored, scale, cut.chunk, kept, cut.operands, sink)

    def whole_loss(
        self, x: Tensor, weight: Tensor, labels: Tensor, ignored: int, scale: Tensor | float,
        numbers: tuple[float, float, float], part: float, reduction: str, check: bool,
    ) -> Tensor | None:  # fmt: skip
        """Return the loss for ψ = cos θ + part·(g(m1·θ + m2) − m3 − cos θ) in one node; None if it cannot."""
        from hypermargin.backends.fused import whole
        from hypermargin.backends.fused.sinks import sink_of

        if check:  # nothing is read here
            return None
        cut = self._cut(x, weight)
        if cut.kept < weight.shape[0] or not learns(x, weight) or sink_of(weight, self.update) is not None:
            return None
        if not whole.fits(x, weight):
            return None
        return whole.loss(x, weight, labels, ignored, scale, numbers, part, reduction, cut.operands)

    def _cut(self, f: Tensor, weight: Tensor) -> Plan:
        """Return how the call is cut up, with tiles measured first if that was asked for."""
        cut = plan(f.shape[0], weight.shape[0], f.shape[1], self)
        if self.tune and f.is_cuda and not torch.compiler.is_compiling():
            from hypermargin.backends.fused.tune import ensure_tuned

            ensure_tuned(f.shape[0], f.shape[1], cut.operands, f.device)
        return cut


def _sum_of_rivals(
    f: Tensor, total: Tensor, rows: Tensor, rivals: Tensor, local: Tensor, table: ClassTable
) -> Tensor:
    """Return Σ z over the rivals; a bad row must not spoil the gradient by Σ w̃."""
    bad = rivals.detach().isnan()
    good_f, good_rows = f.masked_fill(bad[:, None], 0.0), rows.masked_fill(bad[:, None, None], 0.0)
    return sum_of_rivals(good_f, total, good_rows, local, table.bias).masked_fill(bad, math.nan)


def why_not(device: torch.device) -> str:
    """Return the reason why the fused backend cannot run on a device; empty if it can."""
    if reason := _no_triton():
        return reason
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return ""
    if device.type != "cuda" or not torch.cuda.is_available():
        found = "there is none" if device.type == "cuda" else f"the tensors are on {device.type}"
        return f"it runs on NVIDIA GPUs, and {found}"
    if torch.version.hip or _capability(device) < 8:
        return "it needs an NVIDIA GPU of compute capability 8.0 or newer (A100)"
    return ""


@functools.cache
def _no_triton() -> str:
    """Return why Triton cannot be used; empty if it can. Looking for it takes longer than a call of a head."""
    try:
        if importlib.util.find_spec("triton.tools.tensor_descriptor") is None:
            return "it needs Triton 3.4 or newer, which comes with torch 2.8"
    except ImportError:
        return "Triton is not installed (it comes with torch's CUDA builds; else pip install triton)"
    return ""


@functools.cache
def _capability(device: torch.device) -> int:
    return torch.cuda.get_device_capability(device)[0]


def is_tested_on(device: torch.device) -> bool:
    """Return whether "auto" may choose it: only on Hopper GPUs, which it was tested on. On others, ask by name."""
    return device.type == "cuda" and not why_not(device) and _capability(device) == 9


# This is what torch.compiler.assume_constant_result does; calling that would import the compiler, which takes 2 s.
why_not._dynamo_marked_constant = True  # type: ignore[attr-defined]
is_tested_on._dynamo_marked_constant = True  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Plan:
    """How a call is cut up: the classes per chunk, and the number of first classes whose exp z is kept."""

    chunk: int
    kept: int
    operands: str


def plan(rows: int, classes: int, dim: int, settings: Triton) -> Plan:
    """Return how many classes' exp z is kept, and how large the chunks of the others are."""
    operands = settings.operands or "float32"
    # Large enough that a chunk's kernels outlast their launches, small beside any weight that needs chunks; a grid
    # has at most 65,535 blocks in its second dimension.
    chunk = settings.chunk or min(max(2**27 // max(rows, 1) // TILE * TILE, TILE * 16), TILE * 512)
    chunk = min(chunk, -(-classes // TILE) * TILE, 2**22)
    size = 4 if operands == "float32" else 2
    a_class = size * (-(-rows // 128) * 128 + -(-dim // 16) * 16)  # bytes per class of E and w̃, with padding
    room = int(min(settings.memory, 2**30) * 2**20)
    if room >= classes * a_class:
        return Plan(chunk, classes, operands)
    return Plan(chunk, max(room // a_class - chunk, 0) // TILE * TILE, operands)


class _Node(torch.autograd.Function):
    """The one autograd node; it computes all of dW, including the part that comes through the label rows."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        from hypermargin.backends.fused import ops

        run = ops.forward_op if torch.compiler.is_compiling() else ops.forward
        found: tuple[Tensor, ...] = run(*inputs[:-1])
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        f, weight, bias, local, *ctx.settings = inputs
        _, _, _, largest, *kept = output
        ctx.save_for_backward(f, weight, bias, local, *kept)
        ctx.mark_non_differentiable(largest, *kept)
        ctx.set_materialize_grads(False)  # else autograd would allocate zeros of the size of what was kept

    @staticmethod
    def backward(
        ctx: Any, by_rows: Tensor | None, by_rivals: Tensor | None, by_total: Tensor | None, *_: None
    ) -> tuple[Any, ...]:
        from hypermargin.backends.fused import ops
        from hypermargin.backends.fused.sinks import updating

        unit_weight, want_total, _, chunk, _, operands, sink = ctx.settings
        f, weight, bias, local, base, rivals2, exps, units, inverse = ctx.saved_tensors
        by_rows = f.new_zeros(*local.shape, f.shape[1]) if by_rows is None else by_rows
        by_rivals = torch.zeros_like(rivals2) if by_rivals is None else by_rivals
        by_total = by_total if want_total else None  # torch.compile may pass an empty tensor
        needed = ctx.needs_input_grad[:3]
        given = (
            f, weight, bias, local, base, rivals2, exps, units, inverse, by_rows, by_rivals, by_total, unit_weight
        )  # fmt: skip
        grads: tuple[Tensor | None, ...]
        if torch.is_grad_enabled():
            if sink is not None:
                raise RuntimeError("a head with FusedSGD or weight.main_grad has no second derivative.")
            rivals = _Node.apply(f, weight, bias, local, *ctx.settings)[1]
            table = ClassTable(weight, unit_weight, bias, local.clamp(min=-1))
            grads = differentiable_gradients(f, table, PLAIN, rivals, by_rows, by_rivals, by_total)[:3]
        elif sink is not None and needed[1]:
            with updating(sink, weight) as update:
                df, db = ops.backward_into(*given, chunk, operands, needed[0], needed[2], update)
            grads = (df, None, db)
        else:
            run = ops.backward_op if torch.compiler.is_compiling() else ops.backward
            grads = run(*given, chunk, operands, *needed)
        return (*(grad if need else None for grad, need in zip(grads, needed, strict=True)), *[None] * 8)
