"""What is known of a checked batch before any margin: its scores, its logits."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hypermargin.backends import Backend, Scores, choose, scores
from hypermargin.backends.held import Held, held_by, whole
from hypermargin.batch import Given
from hypermargin.numerics import constant, fit, full_precision, polar, unit, wide_dtype, widen
from hypermargin.optim import FusedSGD
from hypermargin.parallel.messages import Rows, join, own_rows
from hypermargin.parallel.partial_fc import Sampling
from hypermargin.parallel.shard import Part


class Batch(NamedTuple):
    """What was found of a batch; of a sharded head, what this rank's classes say of it."""

    found: Scores
    length: Tensor  # (N, 1)  of the scaled features
    y: Tensor  # (N, K)  labels; in rows that do not count, whatever can be looked up
    counts: Tensor | None  # (N,)    which rows are not ignored; None: all
    held: Held  # the classes it was scored against
    bound: float | None  # no logit is larger, if that is known


def scores_of(
    batch: Given,
    weight: Tensor,
    *,
    bias: Tensor | None,
    unit_features: bool,
    unit_weight: bool,
    ignore_index: int,
    class_m: Tensor | None = None,
    rival_sum: bool = False,
    hardest: bool = False,
    backend: Backend = "auto",
    update: FusedSGD | None = None,
    part: Part | None = None,
    sampling: Sampling | None = None,
) -> Batch:
    """Scale the features of a checked batch and score it against every class: all that comes before the margin."""
    x, y, scale = batch.features, batch.y, batch.scale
    wide = wide_dtype(x, weight)
    counts = None if batch.all_used else (y != ignore_index).all(1)
    if counts is not None:
        y = y.masked_fill(~counts.unsqueeze(1), 0 if part is None else -1)
    most = weight.shape[0] if part is None else part.most if sampling is None else sampling.most(part)
    settings, _ = choose(backend, x.shape[0], most, x.device, wide)  # here, where autocast can be seen

    with full_precision(x):
        x = widen(x, wide)
        if counts is not None:
            x = x.masked_fill(~counts.unsqueeze(1), 0.0)  # keeps NaN of ignored rows out
        held = (
            whole(weight, bias, class_m, y) if part is None else held_by(part, sampling, weight, bias, class_m, y)
        )
        held = held._replace(bias=None if held.bias is None else widen(held.bias, wide))
        sides = {"unit_features": unit_features, "unit_weight": unit_weight}
        f, direction, length = scaled(x, held.weight, scale, **sides, part=part)
        found = scores(
            f,
            held.weight,
            held.local,
            unit_weight=unit_weight,
            bias=held.bias,
            total=None if part is None else part.classes,
            direction=direction,
            rival_sum=rival_sum,
            hardest=hardest,
            backend=settings,
            update=update,
        )
        if held.is_empty:
            found = found._replace(
                rivals=torch.full_like(found.rivals, -math.inf),
                hardest=None if found.hardest is None else torch.full_like(found.hardest, -math.inf),
            )
    bounded = unit_features and unit_weight and bias is None and not isinstance(scale, Tensor)
    return Batch(found, length, y, counts, held, float(scale) + held.more if bounded else None)


def scaled(
    x: Tensor,
    W: Tensor,
    scale: float | Tensor,
    *,
    unit_features: bool,
    unit_weight: bool,
    part: Part | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """f = s·x̂ or s·x, its direction x̂ and its length (N, 1).

    Rows whose products against a free weight would overflow are shrunk until they do not.
    """
    s = column(scale, x)
    if not (unit_features and unit_weight):
        largest: float | Tensor = 1.0
        if not unit_weight:
            longest = torch.linalg.vector_norm(W.detach(), math.inf).clamp(min=1.0) if len(W) else x.new_ones(())
            largest = longest if part is None else part.largest(longest.to(x.dtype))
        entries = W.numel() if part is None else part.classes * W.shape[1]
        limit = torch.finfo(x.dtype).max / (4.0 * entries) / largest
        x = fit(x, limit / s.detach().clamp(min=1.0))
    direction, length = polar(x)
    if unit_features:
        return s * direction, direction, s * (length > 0).to(x.dtype)  # zero rows stay zero
    return s * x, direction, s * length


def column(scale: float | Tensor, like: Tensor) -> Tensor:
    """The scale as a tensor that multiplies rows."""
    if isinstance(scale, Tensor):
        s = widen(scale, like.dtype)
        return s.reshape(-1, 1) if s.dim() else s
    return constant(scale, like)


def watched(scored: Batch, part: Part | None) -> Scores:
    """The scores of all rows against all classes, for watching; NaN in rows that do not count.

    The target has its bias here, like the rivals: it is the larger where the decision is right.
    """
    found, held = scored.found, scored.held
    if held.bias is not None:
        found = found._replace(target=found.target + held.of_labels(held.bias, elsewhere=0.0))
    if part is not None:
        rivals, *sums = part.combine(found.rivals, found.target, found.angle, found.norm, bound=None)
        hardest = None if found.hardest is None else part.largest(found.hardest)
        found = Scores(sums[0], sums[1], sums[2], rivals, None, hardest)
    if scored.counts is None:
        return found
    ignored = ~scored.counts
    return Scores._make(
        None if t is None else t.masked_fill(ignored.reshape(-1, *[1] * (t.dim() - 1)), math.nan) for t in found
    )


def logits_of(
    batch: Given,
    weight: Tensor,
    *,
    bias: Tensor | None,
    unit_features: bool,
    unit_weight: bool,
    part: Part | None = None,
) -> Tensor:
    """(N, C) logits without any margin; with a shard, of this rank's rows, and those of all ranks on the way."""
    with full_precision(batch.features):
        x = widen(batch.features, wide_dtype(batch.features, weight))
        W = widen(weight, x.dtype)
        f, _, _ = scaled(x, W, batch.scale, unit_features=unit_features, unit_weight=unit_weight, part=part)
        z = F.linear(f, unit(W) if unit_weight else W, None if bias is None else widen(bias, x.dtype))
        if part is None or batch.rows is None:
            return z
        return own_rows(join(z.T, Rows(part.counts, part.rank, part.group)).T, batch.rows)


def adacos_step(found: Scores, before: Tensor, floor: float) -> Tensor:
    """s_t = ln B / cos min(π/4, median θ_y), B = mean_i Σ_{j≠y} exp(s_{t−1} cos θ_ij), from `watched` at s_{t−1}.

    Zhang et al. 2019 (arXiv:1905.00292), with B as a log-sum-exp, a floor (C = 2 would give s = 0), and no update
    from a batch without rivals or labels.
    """
    counted = ~found.rivals.isnan()
    log_B = found.rivals.masked_fill(~counted, -math.inf).logsumexp(0) - counted.sum().clamp(min=1).log()
    middle = found.angle.nanmedian().clamp(max=math.pi / 4)
    scale = (log_B / middle.cos()).clamp(min=floor).to(before.dtype)
    return torch.where(scale.isfinite() & counted.any(), scale, before)
