"""The dense backend: one N×C matrix of products, plain autograd. In float64 it defines the right result."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hypermargin.backends.base import PLAIN, Call, Rivals
from hypermargin.layout import ClassTable, look_up
from hypermargin.numerics import unit, widen
from hypermargin.rules import RuleAtRows


@dataclass(frozen=True)
class Dense:
    """The dense backend, which has no settings."""

    def fitted(self, call: Call) -> Dense:
        """Return the backend itself: it can do every call that fits into memory."""
        return self

    def explain(self, call: Call) -> str:
        """Return the name alone: there is nothing to choose."""
        return "dense"

    def __call__(
        self,
        f: Tensor,
        table: ClassTable,
        rule: RuleAtRows = PLAIN,
        *,
        rival_sum: bool = False,
        hardest: bool = False,
    ) -> Rivals:
        """Return the rivals of `f` (N, d), by way of all N×C products."""
        w = widen(table.weight, f.dtype)
        w = unit(w) if table.unit else w
        if rule.length is None:  # ρ is the identity
            z = raw = _without_labels(F.linear(f, w, table.bias), table)
        else:
            z = F.linear(f, w)
            raw, z = (_without_labels(_plus(each, table.bias), table) for each in (z, rule.rho(z)))
        return Rivals(
            table.label_rows(w),
            # The gradient of logsumexp is NaN in a row without rivals, but every entry of that row is masked.
            z.logsumexp(-1) if rule.rule.is_softmax else rule.rule.aggregate.total(z),
            z.masked_fill(z == -math.inf, 0.0).sum(-1) if rival_sum else None,
            raw.detach().amax(-1) if hardest else None,
        )


def _plus(z: Tensor, bias: Tensor | None) -> Tensor:
    return z if bias is None else z + bias


def _without_labels(z: Tensor, table: ClassTable) -> Tensor:
    if table.inside is None:
        return z.scatter(1, table.local, -math.inf)
    return z.masked_fill(label_mask(table.local, table.inside, z.shape[1]), -math.inf)


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

    It is used for the second derivative of a backend's node; `table.local` is −1 where a label is not inside.
    """
    weight, bias, local = table.weight, table.bias, table.local
    wide = weight.to(f.dtype)
    w = unit(wide) if table.unit else wide
    z = f @ w.T
    off = label_mask(local, local >= 0, weight.shape[0])
    P = rule.rule.aggregate.gradient(_plus(rule.rho(z), bias), rivals).masked_fill(off, 0.0) * by_rivals[:, None]
    db = None if bias is None else P.sum(0).to(bias.dtype)
    by_length = None
    if not rule.is_identity:
        by_length = (P * rule.slope_by_length(z)).sum(1, keepdim=True)
        P = P * rule.slope(z)
    G = (P.T @ f).index_add(0, local.clamp(min=0).flatten(), by_rows.reshape(-1, f.shape[1]))
    if by_total is not None:
        G = G + by_total
    if table.unit:
        norms = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
        G = (G - w * (w * G).sum(1, keepdim=True)) / norms.masked_fill(norms == 0, math.inf)
    return P @ w, G.to(weight.dtype), db, by_length
