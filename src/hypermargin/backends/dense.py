"""The dense backend: one N×C matrix of products, plain autograd. In float64 it defines the right result."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from hypermargin.backends import at_once
from hypermargin.backends.base import PLAIN, Call, Rivals
from hypermargin.layout import ClassTable, look_up
from hypermargin.numerics import apply, unit, widen
from hypermargin.rules import RuleAtRows


@dataclass(frozen=True)
class Dense:
    """Settings of the dense backend, for `backend=Dense(…)`.

    - operands: dtype of the matrix products' operands on CUDA, "bfloat16" or "float16". Their sums, and so the
      logits, are float32 all the same. By default autocast's dtype, and the features' own without autocast.
    """

    operands: str | None = None
    knows_pools: ClassVar[bool] = True

    def fitted(self, call: Call) -> Dense:
        """Return the backend with autocast's dtype for the operands: it can do every call that fits into memory."""
        if self.operands is not None or call.dtype != torch.float32:
            return self
        operands = autocast_operands(call.device)
        return self if operands is None else replace(self, operands=operands)

    def explain(self, call: Call) -> str:
        """Return the name, and the operands if they are reduced."""
        return f"dense: {self.operands} operands." if self.operands else "dense"

    def __call__(
        self,
        f: Tensor,
        table: ClassTable,
        rule: RuleAtRows | None = None,
        *,
        rival_sum: bool = False,
        hardest: bool = False,
    ) -> Rivals:
        """Return the rivals of `f` (N, d), by way of all N×C products."""
        rule = PLAIN if rule is None else rule
        w = widen(table.weight, f.dtype)
        w = unit(w) if table.unit else w
        z, bias = self._products(f, w), table.column_bias()
        if table.centers.pooled:
            z = table.centers.score(table.centers.by_class(z), rule.length)
        if rule.rule.is_identity:
            z = raw = _without_labels(_plus(z, bias), table)
        else:
            raw, z = (_without_labels(_plus(each, bias), table) for each in (z, rule.rho(z)))
        return Rivals(
            table.label_rows(w),
            # The gradient of logsumexp is NaN in a row without rivals, but every entry of that row is masked.
            z.logsumexp(-1) if rule.rule.is_softmax else rule.rule.aggregate.total(z),
            z.masked_fill(z == -math.inf, 0.0).sum(-1) if rival_sum else None,
            raw.detach().amax(-1) if hardest else None,
        )

    def whole_loss(
        self, x: Tensor, weight: Tensor, labels: Tensor, ignored: int, scale: Tensor | float,
        numbers: tuple[float, float, float], part: float, reduction: str, check: bool,
    ) -> Tensor | None:  # fmt: skip
        """Return the loss for ψ = cos θ + part·(g(m1·θ + m2) − m3 − cos θ) in one node; None if it cannot."""
        if type(self) is not Dense:  # one of yours may do something else with every row
            return None
        # What is to be checked is looked at anyway: nothing invalid is usual.
        return at_once.loss(x, weight, labels, ignored, scale, numbers, part, reduction)

    def _products(self, f: Tensor, w: Tensor) -> Tensor:
        if self.operands in (None, "float32") or not f.is_cuda or not REDUCED_OPERANDS_WORK:
            return F.linear(f, w)
        z: Tensor = apply(_Product, f, w, getattr(torch, self.operands))[0]
        return z


# torch.mm(out_dtype=…), which gives float32 results from half operands; older versions round the results to half.
REDUCED_OPERANDS_WORK = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)


def autocast_operands(device: torch.device) -> str | None:
    """Return the dtype that autocast asks for on CUDA; None without autocast."""
    if device.type != "cuda" or not torch.is_autocast_enabled("cuda"):
        return None
    return str(torch.get_autocast_dtype("cuda")).removeprefix("torch.")


class _Product(torch.autograd.Function):
    """f·wᵀ from operands of reduced precision, summed in float32; so are its gradients."""

    generate_vmap_rule = True

    @staticmethod
    def forward(f: Tensor, w: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        low_f, low_w = f.to(kind), w.to(kind)
        return torch.mm(low_f, low_w.T, out_dtype=torch.float32), low_f, low_w

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:2], *output[1:])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, by_z: Tensor, *_: None) -> tuple[Tensor | None, Tensor | None, None]:
        f, w, low_f, low_w = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative
            return by_z @ w, by_z.T @ f, None
        by_x, by_w, _ = ctx.needs_input_grad
        size = top = by_z.new_ones(())
        if low_f.dtype == torch.float16:  # every row is brought into its range, and its size put on f
            size = by_z.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny * 2**24) / 1024
            top = size.amax()
            by_z = by_z / size
            low_f = (f * (size / top)).to(torch.float16)
        low = by_z.to(low_f.dtype)
        df = torch.mm(low, low_w, out_dtype=torch.float32) * size if by_x else None
        return df, torch.mm(low.T, low_f, out_dtype=torch.float32) * top if by_w else None, None


def _plus(z: Tensor, bias: Tensor | None) -> Tensor:
    return z if bias is None else z + bias


def _without_labels(z: Tensor, table: ClassTable) -> Tensor:
    columns, inside = table.label_columns()
    if inside is None:
        return z.scatter(1, columns, -math.inf)
    return z.masked_fill(label_mask(columns, inside, z.shape[1]), -math.inf)


def label_mask(local: Tensor, inside: Tensor, classes: int) -> Tensor:
    """Return (N, C), True where the class is a label of the row; a spare column takes labels not inside."""
    mask = torch.zeros(local.shape[0], classes + 1, dtype=torch.bool, device=local.device)
    return mask.scatter(1, local.masked_fill(~inside, classes), True)[:, :classes]


def sum_of_rivals(f: Tensor, total: Tensor, rows: Tensor, local: Tensor, bias: Tensor | None) -> Tensor:
    """Return Σ z over the rivals without computing each z: ⟨f, Σ_j w̃_j⟩ + Σ_j b_j minus the z of the row's labels.

    A label of −1 stands for none.
    """
    own = (f.unsqueeze(1) * rows).sum(-1)
    whole = f @ total
    if bias is not None:
        own = own + look_up(bias, local.clamp(min=0))
        whole = whole + bias.sum()
    for k in range(local.shape[1]):
        again = (local[:, :k] == local[:, k : k + 1]).any(1)  # subtract each class only once
        whole = whole - own[:, k].masked_fill(again | (local[:, k] < 0), 0.0)
    return whole


def differentiable_gradients(
    f: Tensor, table: ClassTable, rule: RuleAtRows, rivals: Tensor,
    by_rows: Tensor, by_rivals: Tensor, by_total: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Return df, dW, db and the gradient of |f| by operations that can be differentiated again, in dense memory.

    It is used for the second derivative of a backend's node; `table.local` is −1 where a label is not inside, and
    `table.bias` has an entry for each column that rivals are counted in.
    """
    weight, bias, local, centers = table.weight, table.bias, table.local, table.centers
    wide = weight.to(f.dtype)
    w = unit(wide) if table.unit else wide
    z = f @ w.T
    columns, by_center = table.label_columns()[0], centers.by_class(z) if centers.pooled else None
    if by_center is not None:
        z = centers.score(by_center, rule.length)
    off = label_mask(columns, columns >= 0, z.shape[1])
    P = rule.rule.aggregate.gradient(_plus(rule.rho(z), bias), rivals).masked_fill(off, 0.0) * by_rivals[:, None]
    db = None if bias is None else P.sum(0).to(bias.dtype)
    by_length = None
    if not rule.rule.is_identity:
        by_length = (P * rule.slope_by_length(z)).sum(1, keepdim=True)
        P = P * rule.slope(z)
    if by_center is not None:
        if rule.length is not None and centers.soft:
            more = (P * centers.slope_by_length(by_center, rule.length)).sum(1, keepdim=True)
            by_length = more if by_length is None else by_length + more
        P = centers.spread(P, by_center, rule.length).flatten(1)
    G = (P.T @ f).index_add(0, local.clamp(min=0).flatten(), by_rows.reshape(-1, f.shape[1]))
    if by_total is not None:
        G = G + by_total
    if table.unit:
        norms = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
        G = (G - w * (w * G).sum(1, keepdim=True)) / norms.masked_fill(norms == 0, math.inf)
    return P @ w, G.to(weight.dtype), db, by_length
