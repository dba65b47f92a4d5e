"""Logits without any margin, and target and rivals of a batch for monitoring training."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hypermargin.backends import Backend, Call, fitted
from hypermargin.batch import check_batch, scale_rows, target_of
from hypermargin.centers import ONE, Centers
from hypermargin.layout import WHOLE, Layout, Share
from hypermargin.numerics import full_precision, unit, widen
from hypermargin.rules import LOG_SUM_EXP, SOFTMAX


class Scores(NamedTuple):
    """The targets and rivals of a batch, for z_ij = ⟨f_i, w̃_j⟩ + b_j and L labels per row."""

    target: Tensor  # (N, L)  z of the label: of its nearest center, or what `Centers` make of all
    angle: Tensor  # (N, L)  between f_i and it, in [0, π]; π/2 for zero rows
    norm: Tensor  # (N, L)  |w̃_y|; 1 if the weight is normalised
    rivals: Tensor  # (N,)  log-sum-exp of z over the rows (or pooled classes) that are no label; −inf without any
    hardest: Tensor  # (N,)  maximum of the same z


@torch.no_grad()
def scores(
    features: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    scale: float | Tensor,
    bias: Tensor | None = None,
    unit_features: bool = True,
    unit_weight: bool = True,
    centers: int | Centers = ONE,
    ignore_index: int = -100,
    check: bool | Literal["auto"] = "auto",
    backend: str | Backend = "auto",
    layout: Layout = WHOLE,
    of_all: bool = False,
) -> Scores:
    """Return target and rivals of every row, NaN where the label is `ignore_index`, or the row is bad.

    The arguments are those of `margin_softmax`. With several processes each gets its own rows, or with `of_all` the
    rows of all.
    """
    centers = Centers.of(centers)
    batch = layout.gather(
        lambda: check_batch(features, weight, labels, layout, scale=scale, bias=bias, centers=centers,
                            ignore_index=ignore_index, check=check),
        "scores", weight,
    )  # fmt: skip
    backend = fitted(backend, Call.of(batch, weight, layout, centers=centers))
    with full_precision(features):
        table = layout.table(weight, batch, unit=unit_weight, bias=bias, centers=centers)
        rows = scale_rows(batch, table, layout, unit_features=unit_features)
        found = table.rivals(backend, rows.f, SOFTMAX.at(rows.length, None, centers), hardest=True)
        own = target_of(rows, found.rows, table)
        # The target has its bias, like the rivals, so target > hardest exactly where the decision is right.
        z = own.product if table.bias is None else own.product + table.of_labels(table.bias)
        norm = torch.ones_like(z) if own.norm is None else own.norm
        of_targets = torch.cat([table.own(t) for t in (z, own.angle, norm)], 1)
        whole = layout.combine(table, LOG_SUM_EXP, Share(found.rivals, of_targets))
        assert found.hardest is not None
        target, angle, norm = whole.target.chunk(3, 1)
        result = Scores(target, angle, norm, whole.rivals, layout.largest(found.hardest))
    if batch.used is not None:
        skipped = batch.y[:, 0] < 0
        result = Scores(*[t.masked_fill(skipped.view(-1, *[1] * (t.dim() - 1)), math.nan) for t in result])
    return result if of_all else Scores(*[layout.own(t, batch) for t in result])


def logits(
    features: Tensor,
    weight: Tensor,
    *,
    scale: float | Tensor,
    bias: Tensor | None = None,
    unit_features: bool = True,
    unit_weight: bool = True,
    centers: int | Centers = ONE,
    layout: Layout = WHOLE,
) -> Tensor:
    """Return logits (N, C) without any margin, for this rank's own rows; of several centers the nearest's."""
    centers = Centers.of(centers)
    batch = layout.gather(
        lambda: check_batch(features, weight, None, layout, scale=scale, bias=bias, centers=centers, check=False),
        "logits", weight,
    )  # fmt: skip
    with full_precision(features):
        table = layout.table(weight, batch, unit=unit_weight, bias=bias, centers=centers)
        rows = scale_rows(batch, table, layout, unit_features=unit_features)
        w = widen(table.weight, rows.f.dtype)
        z = F.linear(rows.f, unit(w) if unit_weight else w, None if centers.count > 1 else table.bias)
        if centers.count > 1:
            z = centers.score(centers.by_class(z), rows.length)
            z = z if table.bias is None else z + table.bias[:: centers.count]
        if table.is_empty:
            z = z[:, :0]
        return layout.columns(z, batch)


def adacos_step(found: Scores, before: Tensor, floor: float) -> Tensor:
    """Return the next dynamic scale of AdaCos (Zhang et al. 2019, arXiv:1905.00292), from scores at s_{t−1}:

        s_t = ln B / cos min(π/4, median θ_y),     B = mean_i Σ_{j≠y} exp(s_{t−1} cos θ_ij)

    ln B is computed as a log-sum-exp. There is a floor, since C = 2 would give s = 0, and a batch without rivals or
    labels leaves s as it was.
    """
    counted = ~found.rivals.isnan()
    log_B = found.rivals.masked_fill(~counted, -math.inf).logsumexp(0) - counted.sum().clamp(min=1).log()
    middle = found.angle.nanmedian().clamp(max=math.pi / 4)
    scale = (log_B / middle.cos()).clamp(min=floor).to(before.dtype)
    return torch.where(scale.isfinite() & counted.any(), scale, before)
