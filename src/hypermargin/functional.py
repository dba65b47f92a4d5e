"""The loss as two functions, to be read from top to bottom as the formula: T, R, L = link(R, T)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.backends import Backend, Call, Rivals, find_backend
from hypermargin.batch import Batch, ScaledRows, Target, check_batch, check_cosines, column, scale_rows, target_of
from hypermargin.checks import Gradient, Reduction
from hypermargin.layout import WHOLE, ClassTable, Layout, Share, look_up
from hypermargin.margins import Margin, RowFacts, RowMargin
from hypermargin.margins._base import KEEP
from hypermargin.numerics import full_precision, log_sum_exp, reduced, unit, wide_dtype, widen
from hypermargin.rules import SOFTMAX, Rule


class RowTerm(Protocol):
    """A function that returns a number per row, (N,), from |x| or x, to add to the loss: a feature regulariser."""

    def __call__(self, rows: RowFacts) -> Tensor:
        """Return the terms of these rows, (N,)."""
        ...


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
    centres: int = 1,
    gradient: Gradient = "exact",
    m: Tensor | None = None,
    lam: float | Tensor = 0.0,
    row_margin: RowMargin = KEEP,
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
    - centres: K rows of the weight, (C·K, d), belong to each class, one class after the other. The target is
      the nearest centre of its class; every centre of another class is a rival.
    - gradient: "exact" is the derivative of ψ; "straight" lets dψ/dcos = 1, as insightface and OpenSphere do
    - m: a tensor standing in for the margin's own m: (), (C,) by class or (N, 1) by row
      (Combined: with a last dimension of 3); it may require a gradient
    - lam: λ ≥ 0 blends in the plain cosine, (λ cos θ + ψ)/(1 + λ)
    - row_margin: a source of an m for every row, such as `AdaFace().row_margin()`
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
      the full gradient; see `Shard` for dX.

    The result is float32 or wider, also under autocast.
    """
    checks.loss_options(margin, rule, gradient, lam, label_smoothing, reduction)
    checks.combination(rule, unit_weight, centres, label_smoothing, mix is not None, layout.covers_all)
    batch = layout.gather(
        lambda: check_batch(features, weight, labels, layout, scale=scale, unit_features=unit_features, bias=bias,
                            centres=centres, margin=margin, m=m, mix=mix, ignore_index=ignore_index, check=check),
        f"loss ({reduction})", weight,
    )  # fmt: skip
    backend = find_backend(backend).fitted(Call.of(batch, weight, layout, rule))
    classes = layout.classes(len(weight) // centres)
    with full_precision(features):
        table = layout.table(weight, batch, unit=unit_weight, bias=bias, centres=centres)
        rows = scale_rows(batch, table, layout, unit_features=unit_features)  # f = s·x̂ or s·x
        facts = RowFacts(rows.x, rows.norm, batch.y, layout.shared)
        psi = _Psi(margin, row_margin(table.margins(batch.m, rows.x.dtype), facts), lam, gradient)
        threshold = layout.sum(table.own(psi.ahead(rows, table))) if rule.needs_threshold else None
        rivals = table.rivals(backend, rows.f, rule.at(rows.length, threshold), rival_sum=label_smoothing > 0)
        own = target_of(rows, rivals.rows, table)  # product, angle and norm from the rows of the labels
        T = own.product + own.length * psi.lift(own.angle)
        share = _share(rivals, T, own, table, rows, rule, [term(facts) for term in row_terms])
        bounded = unit_features and unit_weight and bias is None and rule.is_softmax
        whole = layout.combine(table, rule.aggregate, share, bound=rows.s if bounded else None)
        loss = _linked(rule, whole, batch, rows.s, label_smoothing, classes)
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

    This is the sparse AM-Softmax in a stable form: the target is masked out of the sum, whereas the usual
    log(Z − e^T) = log Z + log(1 − exp(T − log Z)) gives negative losses and −inf.
    A cosine resolves angles only down to √eps, so prefer `margin_softmax` where you have the features.
    """
    checks.loss_options(margin, SOFTMAX, gradient, lam, label_smoothing, reduction)
    batch = check_cosines(cosines, labels, scale, margin=margin, m=m, ignore_index=ignore_index, check=check)
    with full_precision(cosines):
        y, c = batch.classes(), batch.clean(wide_dtype(cosines))
        s, c_y = column(batch.scale, c.dtype), c.gather(1, y)
        psi = _Psi(margin, batch.m if batch.class_m is None else look_up(batch.class_m, y), lam, gradient)
        T, z = s * (c_y + psi.lift(c_y, is_cosine=True)), s * c
        rival_sum = z.scatter(1, y, 0.0).sum(1) if label_smoothing else None
        whole = Share(log_sum_exp(z.scatter(1, y, -math.inf)), T, rival_sum=rival_sum)
        loss = _linked(SOFTMAX, whole, batch, s, label_smoothing, c.shape[1])
        return loss if reduction == "none" else reduced(loss, batch.used, reduction)


class _Psi(NamedTuple):
    """A margin with the m, λ and gradient that it is evaluated with."""

    margin: Margin
    m: Tensor | None  # broadcasts against angles (N, L); None: the margin's own
    lam: float | Tensor
    gradient: str

    def lift(self, at: Tensor, *, is_cosine: bool = False) -> Tensor:
        """Return what the margin adds to the target's cosine: (ψ − cos θ)/(1 + λ), at angles or at cosines.

        Adding it to the plain product, rather than replacing that by |f||w|ψ, keeps the product's own gradient
        exact where a zero row leaves the angle without one: a zero-initialised classifier still learns.
        """
        lift = self.margin.psi_of_cosine(at, self.m) - at if is_cosine else self.margin.psi(at, self.m) - at.cos()
        if isinstance(self.lam, Tensor) or self.lam:
            lift = lift / (1 + self.lam)
        return lift.detach() if self.gradient == "straight" else lift

    def ahead(self, rows: ScaledRows, table: ClassTable) -> Tensor:
        """Return the margined cosine of the first label, (N, 1), before the pass over the classes."""
        with torch.no_grad():  # as a decorator, torch.compile could not follow it
            w = widen(table.label_rows(table.weight), rows.f.dtype)
            angle = target_of(rows, unit(w) if table.unit else w, table).angle
            return (angle.cos() + self.lift(angle))[:, :1]


def _share(
    rivals: Rivals,
    T: Tensor,
    own: Target,
    table: ClassTable,
    rows: ScaledRows,
    rule: Rule,
    row_terms: list[Tensor],
) -> Share:
    """Return what the classes held here contribute to every row; 0 for labels that another process holds."""
    b = None if table.bias is None else table.of_labels(table.bias)
    as_rival = terms = None
    if T.shape[1] > 1:  # each label is a rival of the other
        z = rule.at(rows.length.unsqueeze(-1)).rho(own.products)
        as_rival = table.own(rule.aggregate.total(z if b is None else z + b.unsqueeze(-1)))
    if row_terms:
        every = torch.stack(row_terms).sum(0)
        terms = table.own(every.unsqueeze(1).expand_as(T))[:, 0]  # only the process with the first label adds them
    return Share(rivals.rivals, table.own(T if b is None else T + b), as_rival, rivals.rival_sum, terms)


def _linked(rule: Rule, whole: Share, batch: Batch, s: float | Tensor, smoothing: float, classes: int) -> Tensor:
    """Return link(R, T) + (ε/C)·((C − 1)·T − Σ_{j≠y} z_j) + terms of each row, 0 where it does not count."""
    # s is a factor of the loss here, and no way to make it smaller.
    s = s.detach().reshape(-1) if isinstance(s, Tensor) else s

    def of_label(k: int) -> Tensor:
        R, T, rival_sum = whole.rivals, whole.target[:, k], whole.rival_sum
        if whole.as_rival is not None:  # mixup: the other label is a rival, unless both are the same class
            same, other = batch.y[:, 0] == batch.y[:, 1], whole.as_rival[:, 1 - k]
            R = rule.aggregate.join(R, other.masked_fill(same, rule.aggregate.nothing))
            rival_sum = None if rival_sum is None else rival_sum + other.masked_fill(same, 0.0)
        loss = rule.link(R, T, s)
        return loss if rival_sum is None else loss + smoothing / classes * ((classes - 1) * T - rival_sum)

    loss = of_label(0)
    if whole.as_rival is not None:
        share = batch.share.to(loss.dtype) if isinstance(batch.share, Tensor) else batch.share
        loss = share * loss + (1 - share) * of_label(1)
    loss = loss if whole.terms is None else loss + whole.terms
    return loss if batch.used is None else loss.masked_fill(~batch.used, 0.0)
