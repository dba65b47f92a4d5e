"""The definition: one N×C matrix of products, plain autograd. In float64 it is what "right" means."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hypermargin.numerics import log_sum_exp, unit


class Rivals(NamedTuple):
    """What a backend returns."""

    rows: Tensor  # (N, K, d)  the weight's rows of the labels; any row where the label is outside the slice
    rivals: Tensor  # (N,)  log-sum-exp of z over the classes that are not labels of the row
    rival_sum: Tensor | None  # (N,)  their sum, if asked for
    hardest: Tensor  # (N,)  their maximum, detached


def dense(
    f: Tensor,
    weight: Tensor,
    local: Tensor,
    inside: Tensor,
    *,
    unit_weight: bool,
    bias: Tensor | None,
    rival_sum: bool,
) -> Rivals:
    """Rivals of `f` (N, d) among `weight` (C, d); `local` (N, K) are row numbers, valid where `inside`."""
    classes = weight.shape[0]
    # embedding and not weight[local]: the backward of indexing is not repeatable on the CPU.
    rows = F.embedding(local.masked_fill(~inside, 0), weight)
    z = F.linear(f, unit(weight) if unit_weight else weight, bias)
    # One spare column takes the labels that are not here.
    is_label = torch.zeros(f.shape[0], classes + 1, dtype=torch.bool, device=f.device)
    is_label = is_label.scatter(1, local.masked_fill(~inside, classes), True)[:, :classes]
    z_rivals = z.masked_fill(is_label, -math.inf)
    return Rivals(
        rows,
        log_sum_exp(z_rivals),
        z.masked_fill(is_label, 0.0).sum(-1) if rival_sum else None,
        z_rivals.detach().amax(-1),
    )
