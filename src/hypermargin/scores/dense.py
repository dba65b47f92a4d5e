"""The definition: one N×C matrix of products, plain autograd. In float64 it is what "right" means."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hypermargin.numerics import unit, widen


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
