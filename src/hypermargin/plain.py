"""The loss of a plain head, by a backend that does all of its N×d and N×C work at once.

A head is plain with two unit sides, one label and one center per row, softmax's rule, all classes in this process,
and neither bias, smoothing nor row terms. ArcFace, CosFace and their like are, which is most of what is trained.
The numbers are those of `margin_softmax`'s own way through; what differs is how many operations they take.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.ahead import LookAhead
from hypermargin.backends import Backend, Call, find_backend
from hypermargin.backends.base import Seen
from hypermargin.batch import ScaledRows, scale_rows
from hypermargin.centers import ONE
from hypermargin.layout import WHOLE, ClassTable, look_up
from hypermargin.margins import Margin, RowFacts, RowMargin
from hypermargin.numerics import reduced, softplus, wide_dtype, widen
from hypermargin.scales import needed_scale

if TYPE_CHECKING:
    from hypermargin.batch import Batch
    from hypermargin.rules import Rule


def whole_loss(
    backend: str | Backend, features: Tensor, weight: Tensor, labels: Tensor, margin: Margin, *,
    rule: Rule, scale: float | Tensor | str | None, lam: float | Tensor, gradient: str, row_margin: RowMargin,
    ignore_index: int, reduction: str, check: bool,
) -> tuple[str | Backend, Tensor | None]:  # fmt: skip
    """Return the backend fitted, and the loss by one node of it where it has one for this ψ."""
    if gradient != "exact" or isinstance(lam, Tensor) or type(row_margin) is not RowMargin:
        return backend, None
    numbers = margin.of_g()
    if numbers is None:
        return backend, None
    checks.features_and_weight(features, weight)
    WHOLE.check_weight(weight, ONE)
    (N, d), C = features.shape, weight.shape[0]
    if not isinstance(scale, (Tensor, float)):
        scale = needed_scale(scale, True, C, d, margin)
    checks.row_scale(scale, N)
    checks.labels_like("labels", labels, N, features.device)
    # ONE is named: what stands as a default, torch 2.11's compiler cannot trace back to anything.
    call = Call(N, C, weight.device, wide_dtype(features, weight), d, rule, ONE)
    fitted: Any = find_backend(backend).fitted(call)
    if not hasattr(fitted, "whole_loss"):
        return fitted, None
    part = 1 / (1 + lam)
    return fitted, fitted.whole_loss(features, weight, labels, ignore_index, scale, numbers, part, reduction, check)


def plain_loss(
    backend: Any, batch: Batch, weight: Tensor, labels: Tensor, margin: Margin, *, lam: float | Tensor,
    gradient: str, row_margin: RowMargin, ignore_index: int, reduction: str,
) -> Tensor:  # fmt: skip
    """Return the loss of a checked batch, with ψ by torch's operations; `backend` has `look`."""
    seen = backend.look(batch.features, weight, labels, ignore_index, batch.scale)
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
