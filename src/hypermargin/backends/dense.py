"""The definition: one N×C matrix of products, plain autograd. In float64 it is what "right" means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hypermargin.numerics import unit, widen


@dataclass(frozen=True)
class Dense:
    """The dense backend has no settings."""


class Rivals(NamedTuple):
    """What a backend returns."""

    rows: Tensor  # (N, K, d)  w̃ of the labels; any row where the label is outside the slice
    rivals: Tensor  # (N,)  log-sum-exp of z over the classes that are not labels of the row
    rival_sum: Tensor | None  # (N,)  their sum, if asked for
    hardest: Tensor | None  # (N,)  their maximum, detached, if asked for


def label_mask(local: Tensor, inside: Tensor, classes: int) -> Tensor:
    """(N, C): is this class a label of this row? One spare column takes the labels that are not inside."""
    mask = torch.zeros(local.shape[0], classes + 1, dtype=torch.bool, device=local.device)
    return mask.scatter(1, local.masked_fill(~inside, classes), True)[:, :classes]


def dense_rivals(
    f: Tensor,
    weight: Tensor,
    local: Tensor,
    inside: Tensor | None,
    *,
    unit_weight: bool,
    bias: Tensor | None,
    rival_sum: bool,
    hardest: bool,
) -> Rivals:
    """Rivals of `f` (N, d) among `weight` (C, d); `local` (N, K) are row numbers, valid where `inside`."""
    w = widen(weight, f.dtype)
    w = unit(w) if unit_weight else w
    # embedding and not w[local]: the backward of indexing is not repeatable on the CPU.
    rows = F.embedding(local if inside is None else local.masked_fill(~inside, 0), w)
    z = F.linear(f, w, bias)
    if inside is None:
        z_rivals = z.scatter(1, local, -math.inf)
    else:
        z_rivals = z.masked_fill(label_mask(local, inside, weight.shape[0]), -math.inf)
    return Rivals(
        rows,
        z_rivals.logsumexp(
            -1
        ),  # its gradient is NaN in a row without rivals, but every entry of that row is masked
        z_rivals.masked_fill(z_rivals == -math.inf, 0.0).sum(-1) if rival_sum else None,
        z_rivals.detach().amax(-1) if hardest else None,
    )


def sum_of_rivals(f: Tensor, total: Tensor, rows: Tensor, local: Tensor, bias: Tensor | None) -> Tensor:
    """Σ z over the rivals without their z: ⟨f, Σ_j w̃_j⟩ + Σ_j b_j, less the row's own labels (−1: none)."""
    own = (f.unsqueeze(1) * rows).sum(-1)
    whole = f @ total
    if bias is not None:
        own = own + F.embedding(local.clamp(min=0), bias.unsqueeze(1)).squeeze(-1)
        whole = whole + bias.sum()
    for k in range(local.shape[1]):
        again = (local[:, :k] == local[:, k : k + 1]).any(1)  # a class is taken off once
        whole = whole - own[:, k].masked_fill(again | (local[:, k] < 0), 0.0)
    return whole


def differentiable_gradients(
    f: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    local: Tensor,
    rivals: Tensor,
    by_rows: Tensor,
    by_rivals: Tensor,
    by_total: Tensor | None,
    unit_weight: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """df, dW, db as a formula that can be differentiated again, in dense memory: for a node's second derivative."""
    wide = weight.to(f.dtype)
    w = unit(wide) if unit_weight else wide
    z = f @ w.T if bias is None else f @ w.T + bias
    empty = (rivals == -math.inf)[:, None]
    off = label_mask(local, local >= 0, weight.shape[0]) | empty
    P = (z - rivals[:, None].masked_fill(empty, 0.0)).exp().masked_fill(off, 0.0) * by_rivals[:, None]
    G = (P.T @ f).index_add(0, local.clamp(min=0).flatten(), by_rows.reshape(-1, f.shape[1]))
    if by_total is not None:
        G = G + by_total
    if unit_weight:
        norms = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
        G = (G - w * (w * G).sum(1, keepdim=True)) / norms.masked_fill(norms == 0, math.inf)
    return P @ w, G.to(weight.dtype), None if bias is None else P.sum(0).to(bias.dtype)
