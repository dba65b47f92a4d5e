"""The loss of a plain head, by a backend that does all of its N×d and N×C work at once.

A head is plain with two unit sides, one label and one center per row, softmax's rule, all classes in this process,
and neither bias, smoothing nor row terms. ArcFace, CosFace and their like are, which is most of what is trained.
The numbers are those of `margin_softmax`'s own way through; what differs is how many operations they take.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.ahead import LookAhead
from hypermargin.backends import Backend, Call, find_backend
from hypermargin.backends.base import Seen
from hypermargin.batch import Batch, ScaledRows, check_batch, scale_rows
from hypermargin.centers import ONE
from hypermargin.layout import WHOLE, ClassTable, look_up
from hypermargin.margins import Margin, RowFacts, RowMargin
from hypermargin.numerics import full_precision, reduced, softplus, wide_dtype, widen
from hypermargin.rules import SOFTMAX
from hypermargin.scales import needed_scale


def plain_loss(
    backend: str | Backend, features: Tensor, weight: Tensor, labels: Tensor, margin: Margin, *,
    scale: float | Tensor | str | None, m: Tensor | None, lam: float | Tensor, gradient: str,
    row_margin: RowMargin, ignore_index: int, reduction: str, check: bool | Literal["auto"],
) -> Tensor | None:  # fmt: skip
    """Return the loss by a backend that has a short way for it; None for all others."""
    checks.features_and_weight(features, weight)
    WHOLE.check_weight(weight, ONE)
    (N, d), C = features.shape, weight.shape[0]
    # ONE is named: what stands as a default, torch 2.11's compiler cannot trace back to anything.
    call = Call(N, C, weight.device, wide_dtype(features, weight), d, SOFTMAX, ONE)
    fitted: Any = find_backend(backend).fitted(call)
    numbers = margin.of_g() if m is None and gradient == "exact" and type(row_margin) is RowMargin else None
    if numbers is not None and not isinstance(lam, Tensor) and hasattr(fitted, "whole_loss"):
        if not isinstance(scale, (Tensor, float)):
            scale = needed_scale(scale, True, C, d, margin)
        checks.row_scale(scale, N)
        checks.labels_like("labels", labels, N, features.device)
        reads, part = checks.wanted(check, features, labels), 1 / (1 + lam)
        loss: Tensor | None = fitted.whole_loss(
            features, weight, labels, ignore_index, scale, numbers, part, reduction, reads
        )
        if loss is not None:
            return loss
    if not hasattr(fitted, "look"):
        return None
    batch = check_batch(
        features, weight, labels, WHOLE, scale=scale, margin=margin, m=m, ignore_index=ignore_index, check=check
    )
    with full_precision(features):
        return _loss_by_look(
            fitted, batch, weight, labels, margin, lam=lam, gradient=gradient, row_margin=row_margin,
            ignore_index=ignore_index, reduction=reduction,
        )  # fmt: skip


def _loss_by_look(
    backend: Any, batch: Batch, weight: Tensor, labels: Tensor, margin: Margin, *, lam: float | Tensor,
    gradient: str, row_margin: RowMargin, ignore_index: int, reduction: str,
) -> Tensor:  # fmt: skip
    """Return the loss with ψ by torch's operations, and all that is N×d or N×C by the backend."""
    seen: Seen = backend.look(batch.features, weight, labels, ignore_index, batch.scale)
    m = batch.m if batch.class_m is None else look_up(batch.class_m, batch.classes())
    m = None if m is None else widen(m, torch.float32)
    if batch.bad is not None and m is not None and m.requires_grad:  # no bad row may spoil the gradient of m
        seen = Seen._make(each.masked_fill(batch.bad, 0.0) for each in seen)
    if type(row_margin) is not RowMargin:
        wide = wide_dtype(batch.features)
        facts = RowFacts(batch.clean(wide), seen.norm.unsqueeze(1), batch.y, _LookLater(batch, weight))
        m = row_margin(m, facts)
    lift = margin.at(m, lam, gradient).lift(seen.angle.unsqueeze(1)).squeeze(1)
    each = softplus(seen.rivals - (seen.product + seen.length * lift))
    each = batch.of_rows(each)
    return each if reduction == "none" else reduced(each, batch.used, reduction)


class _LookLater(LookAhead):
    """The same answers, for whose questions nothing is computed before one is asked."""

    def __init__(self, batch: Batch, weight: Tensor) -> None:
        self._batch, self._weight, self._layout = batch, weight, WHOLE

    @functools.cached_property
    def _table(self) -> ClassTable:  # type: ignore[override]
        return WHOLE.table(self._weight, self._batch, unit=True, bias=None, centers=ONE)

    @functools.cached_property
    def _rows(self) -> ScaledRows:  # type: ignore[override]
        return scale_rows(self._batch, self._table, WHOLE, unit_features=True)
