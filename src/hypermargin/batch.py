"""From what the caller gives to what is known of it before any margin: checks, all ranks' rows, scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.numerics import constant, fit, full_precision, polar, wide_dtype, widen
from hypermargin.optim import FusedSGD
from hypermargin.scores import Backend, Scores, choose, scores
from hypermargin.scores.collective import Rows, gather_rows
from hypermargin.scores.held import Held, held_by, whole
from hypermargin.scores.sampling import Sampling
from hypermargin.scores.sharded import Part


class Given(NamedTuple):
    """A checked batch; of a sharded head, the rows of all ranks."""

    features: Tensor  # (N, d)
    y: Tensor  # (N, K)  labels
    all_used: bool  # no row is ignored, and this is known
    scale: float | Tensor
    share: float | Tensor  # of the first label, with mixup
    m: Tensor | None
    rows: Rows | None = None  # whose they are, with a shard


class Batch(NamedTuple):
    """What was found of a batch; of a sharded head, what this rank's classes say of it."""

    found: Scores
    length: Tensor  # (N, 1)  of the scaled features
    y: Tensor  # (N, K)  labels; in rows that do not count, whatever can be looked up
    counts: Tensor | None  # (N,)    which rows are not ignored; None: all
    held: Held  # the classes it was scored against
    bound: float | None  # no logit is larger, if that is known


def given(
    features: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    scale: float | Tensor,
    bias: Tensor | None,
    ignore_index: int,
    mix: checks.Mix | None = None,
    m: Tensor | None = None,
    numbers: int | None = None,
    check: bool | Literal["auto"] = "auto",
    part: Part | None = None,
) -> Given:
    """Check a batch, and with a shard bring together those of all ranks. `numbers` is how many an m consists of."""

    def checked() -> Given:
        checks.features_and_weight(features, weight, bias, 1 if part is None else 0)
        rows, classes = features.shape[0], weight.shape[0] if part is None else part.classes
        checks.labels_like("labels", labels, rows, features.device)
        checks.mixture(mix, rows, features.device)
        checks.row_scale(scale, rows)
        checks.margin_tensor(m, numbers, rows, weight.shape[0])
        both = [labels] if mix is None else [labels, mix[0]]
        y = torch.stack([each.long() for each in both], 1)
        all_used = False
        if checks.wanted(check, features, labels):
            for name, each in zip(("labels", "mix[0] (other_labels)"), both, strict=False):
                checks.label_values(name, each, classes, ignore_index)
            is_used = (y != ignore_index).all(1)
            checks.finite_rows("features", features, is_used)
            checks.positive_values("scale", scale)
            all_used = bool(is_used.all())
        return Given(features, y, all_used, scale, 1.0 if mix is None else mix[1], m)

    if part is None:
        return checked()
    return _of_all_ranks(checked, part, weight, axes_of(m, numbers))


def axes_of(m: Tensor | None, numbers: int | None) -> int:
    """0: one m for all; 1: one a class, (C,); 2: one a row, (N, 1)."""
    return 0 if m is None else m.dim() - (numbers is not None and numbers > 1)


def _of_all_ranks(checked: Callable[[], Given], part: Part, weight: Tensor, axes: int) -> Given:
    """The batch of all ranks, or an error on all ranks."""
    if part.world == 1:
        one = checked()
        return one._replace(rows=Rows([one.features.shape[0]], 0, part.group))
    try:
        one = checked()
    except (TypeError, ValueError) as error:
        part.refuse(error, weight.device)
    x, tables = one.features, {"scale": one.scale, "mix weight": one.share, "m": one.m if axes == 2 else None}
    by_row = {name: t for name, t in tables.items() if isinstance(t, Tensor) and t.dim()}
    learns = torch.is_grad_enabled()
    words = [f"{x.dtype} features", f"{one.y.shape[1]} labels a row", f"gradients {'on' if learns else 'off'}"]
    words += [f"{name} by row, {t.dtype}, gradient {t.requires_grad}" for name, t in by_row.items()]
    rows, by_rank = part.agree(x.shape[0], ", ".join(words), (learns and x.requires_grad, one.all_used), x.device)
    if any(flags[0] for flags in by_rank) and not x.requires_grad:
        x = x.detach().requires_grad_()  # nobody wants its gradient, but the others wait for my share of theirs
    of_all = {name: gather_rows(t, rows) for name, t in by_row.items()}
    wide = wide_dtype(x, weight)
    scale, m = one.scale, one.m
    if isinstance(scale, Tensor) and "scale" not in by_row:
        scale = part.spread(widen(scale, wide))
    if m is not None and axes == 0:
        m = part.spread(widen(m, wide))
    return Given(
        gather_rows(x, rows, wide),
        rows.collected(one.y),
        all(flags[1] for flags in by_rank),
        of_all.get("scale", scale),
        of_all.get("mix weight", one.share),
        of_all.get("m", m),
        rows,
    )


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
