"""The loss as two functions, to be read from top to bottom as the formula: T, R, L = link(R, T)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.ahead import LookAhead
from hypermargin.backends import Backend, Call, fitted
from hypermargin.batch import (
    check_batch,
    check_cosines,
    column,
    row_losses,
    scale_rows,
    share_of,
    target_of,
)
from hypermargin.centers import Centers
from hypermargin.checks import Gradient, Reduction
from hypermargin.layout import WHOLE, Layout, Share, look_up
from hypermargin.margins import Margin, RowFacts, RowMargin
from hypermargin.margins._base import KEEP
from hypermargin.numerics import full_precision, log_sum_exp, reduced, wide_dtype
from hypermargin.rules import SOFTMAX, STATELESS, Rule, RuleState
from hypermargin.terms import RowTerm


def margin_softmax(
    features: Tensor,
    weight: Tensor,
    labels: Tensor,
    margin: Margin,
    *,
    scale: float | Tensor | Literal["advised"] | None = None,
    bias: Tensor | None = None,
    unit_features: bool = True,
    unit_weight: bool = True,
    rule: Rule = SOFTMAX,
    centers: int | Centers = 1,
    gradient: Gradient = "exact",
    m: Tensor | None = None,
    lam: float | Tensor = 0.0,
    row_margin: RowMargin = KEEP,
    rule_state: RuleState = STATELESS,
    row_terms: Sequence[RowTerm] = (),
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    mix: checks.Mix | None = None,
    reduction: Reduction = "mean",
    check: bool | Literal["auto"] = "auto",
    backend: str | Backend = "auto",
    layout: Layout = WHOLE,
) -> Tensor:
    """Return the cross-entropy of softmax with a margin on the target: L = softplus(R − T).

    With z_j = s·|x||W_j|·cos θ_j + b_j (|x|, |W_j| replaced by 1 where a side is normalised):

        T = s·|x||W_y|·ψ(θ_y) + b_y,     R = log Σ_{j≠y} exp z_j

    - features (N, d), weight (C, d), labels (N,): integers in [0, C) or `ignore_index`
    - scale: s > 0, a number, a tensor holding one, one per row (N,), or "advised" for what suits this number of
      classes. With unit features it must be given: cosines alone are too close together to learn from. Otherwise
      it is 1 unless given.
    - bias: (C,), or () for one that all classes share
    - rule: what a rival counts as and how rivals add up (`hypermargin.rules`); R and softplus(R − T) are softmax's
    - centers: K rows of the weight, (C·K, d), belong to each class, one class after the other. With a number K the
      target is the nearest center of its class, and every center of another class is a rival; `Centers` has others.
    - gradient: "exact" is the derivative of ψ; "straight" lets dψ/dcos = 1, as insightface and OpenSphere do
    - m: a tensor standing in for the margin's own m: (), (C,) by class or (N, 1) by row
      (Combined: with a last dimension of 3); it may require a gradient
    - lam: λ ≥ 0 blends in the plain cosine, (λ cos θ + ψ)/(1 + λ)
    - row_margin: a source of an m for every row, such as `AdaFace().row_margin()`
    - rule_state: what a rule remembers from batch to batch, such as `rules.CurricularFace().state()`
    - row_terms: functions of the rows that are added to their losses
    - label_smoothing ε: cross-entropy of the margined logits against (1−ε)·onehot + ε/C
    - mix=(other_labels, weight): weight·L(labels) + (1−weight)·L(other_labels), each with its own margin, in one
      pass over the classes; a row is left out if either label is `ignore_index`
    - reduction: "mean" is over the rows that count, and 0 if there are none
    - check: read values (label range, NaN, scale) first; "auto" does so in eager mode on the CPU
    - backend: what computes the N×C products: a name, or an object of `hypermargin.backends` or your own
    - layout: which process holds which classes. With `Shard(…).layout(C)` weight, bias and an m by class are this
      rank's slice, features and labels are this rank's rows, and all ranks call this together. "mean" and "sum" are
      over the rows of all ranks, and the same on each; "none" gives this rank's rows. dW is this rank's slice of
      the full gradient; see `Shard` for dX. `views.Viewed(layout, state)` lets the class rows go through a view.

    The result is float32 or wider, also under autocast.
    """
    centers = Centers.of(centers)
    checks.loss_options(margin, rule, gradient, lam, label_smoothing, reduction)
    checks.combination(rule, unit_weight, centers, label_smoothing, mix is not None, layout.covers_all)
    plain = (
        unit_features and unit_weight and centers.count == 1 and bias is None and mix is None
        and type(layout) is Layout  # a copy of a head has a copy of WHOLE
        and type(rule) is type(SOFTMAX) and not label_smoothing and len(row_terms) == 0
        and isinstance(features, Tensor) and isinstance(labels, Tensor)
        and not torch._C._are_functorch_transforms_active()
    )  # fmt: skip
    if plain:
        from hypermargin.plain import plain_loss

        loss = plain_loss(
            backend, features, weight, labels, margin, scale=scale, m=m, lam=lam, gradient=gradient,
            row_margin=row_margin, ignore_index=ignore_index, reduction=reduction, check=check,
        )  # fmt: skip
        if loss is not None:
            return loss
    batch = layout.gather(
        lambda: check_batch(features, weight, labels, layout, scale=scale, unit_features=unit_features, bias=bias,
                            centers=centers, margin=margin, m=m, mix=mix, ignore_index=ignore_index, check=check),
        f"loss ({reduction})", weight,
    )  # fmt: skip
    backend = fitted(backend, Call.of(batch, weight, layout, rule, centers))
    classes = layout.classes(len(weight) // centers.count)
    with full_precision(features):
        table = layout.table(weight, batch, unit=unit_weight, bias=bias, centers=centers)
        rows = scale_rows(batch, table, layout, unit_features=unit_features)  # f = s·x̂ or s·x
        facts = RowFacts(rows.x, rows.norm, batch.y, LookAhead(rows, table, layout), layout.shared)
        psi = margin.at(row_margin(table.margins(batch.m, rows.x.dtype), facts), lam, gradient)
        at_rows = rule.at(rows.length, rule_state(rule, facts, psi), centers)
        rivals = rule.rivals(backend, rows.f, table, at_rows, rival_sum=label_smoothing > 0)
        own = target_of(rows, rivals.rows, table)  # product, angle and norm from the rows of the labels
        T = torch.addcmul(own.product, own.length, psi.lift(own.angle))
        share = share_of(rivals, T, own, table, rows, rule, [term(facts) for term in row_terms])
        bounded = unit_features and table.unit and bias is None and rule.is_softmax
        whole = layout.combine(table, rule.aggregate, share, bound=rows.s if bounded else None)
        loss = row_losses(rule, whole, batch, rows.s, label_smoothing, classes)
        return layout.own(loss, batch) if reduction == "none" else reduced(loss, batch.used, reduction)


def margin_cross_entropy(
    cosines: Tensor,
    labels: Tensor,
    margin: Margin,
    scale: float | Tensor | Literal["advised"],
    *,
    gradient: Gradient = "exact",
    m: Tensor | None = None,
    lam: float | Tensor = 0.0,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    check: bool | Literal["auto"] = "auto",
) -> Tensor:
    """Return the same loss from N×C cosines that you already have: any margin, integer labels, no one-hot.

    The value is that of the sparse AM-Softmax in a stable form: the target is masked out of the sum, whereas the
    usual log(Z − e^T) = log Z + log(1 − exp(T − log Z)) gives negative losses and −inf.
    It saves no memory: autograd keeps several N×C tensors, as it does with a one-hot matrix. Where memory counts,
    or small angles, which a cosine resolves only down to √eps, give `margin_softmax` the features and the weight.
    """
    checks.loss_options(margin, SOFTMAX, gradient, lam, label_smoothing, reduction)
    batch = check_cosines(cosines, labels, scale, margin=margin, m=m, ignore_index=ignore_index, check=check)
    with full_precision(cosines):
        y, c = batch.classes(), batch.clean(wide_dtype(cosines))
        s, c_y = column(batch.scale, c.dtype), c.gather(1, y)
        psi = margin.at(batch.m if batch.class_m is None else look_up(batch.class_m, y), lam, gradient)
        T, z = s * (c_y + psi.lift(c_y, is_cosine=True)), s * c
        rival_sum = z.scatter(1, y, 0.0).sum(1) if label_smoothing else None
        whole = Share(log_sum_exp(z.scatter(1, y, -math.inf)), T, rival_sum=rival_sum)
        loss = row_losses(SOFTMAX, whole, batch, s, label_smoothing, c.shape[1])
        return loss if reduction == "none" else reduced(loss, batch.used, reduction)
