"""The loss of a plain head, by a backend that does all of its N×d and N×C work at once (`backends.base.Seen`).

A head is plain with two unit sides, one label and one centre per row, softmax's rule, all classes in this process,
and neither bias, smoothing nor row terms. ArcFace, CosFace and their like are, which is most of what is trained. The
numbers are those of `margin_softmax`'s own way through; what differs is how many operations they take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hypermargin.layout import look_up
from hypermargin.margins import Margin, RowFacts, RowMargin
from hypermargin.numerics import reduced, softplus, wide_dtype, widen

if TYPE_CHECKING:
    from hypermargin.batch import Batch


def plain_loss(
    backend: Any,
    batch: Batch,
    weight: Tensor,
    margin: Margin,
    *,
    lam: float | Tensor,
    gradient: str,
    row_margin: RowMargin,
    reduction: str,
) -> Tensor:
    """Return the loss of a batch; `backend` has `look` and `margin_loss`."""
    seen = backend.look(batch.features, weight, batch.y, batch.scale)
    keeps = type(row_margin) is RowMargin
    of_all = batch.m is None and batch.class_m is None and keeps and gradient == "exact" and not isinstance(lam, Tensor)
    if of_all and (numbers := margin.of_g()) is not None and not torch.compiler.is_compiling():
        loss: Tensor = backend.margin_loss(seen, batch.y, numbers, 1 / (1 + lam), reduction)
        return loss
    m = batch.m if batch.class_m is None else look_up(batch.class_m, batch.classes())
    m = None if m is None else widen(m, torch.float32)
    if not keeps:
        wide = wide_dtype(batch.features)
        m = row_margin(m, RowFacts(batch.clean(wide), seen.norm.unsqueeze(1), batch.y))
    lift = margin.at(m, lam, gradient).lift(seen.angle.unsqueeze(1)).squeeze(1)
    each = softplus(seen.rivals - (seen.product + seen.length * lift))
    each = each if batch.used is None else each.masked_fill(~batch.used, 0.0)
    return each if reduction == "none" else reduced(each, batch.used, reduction)
