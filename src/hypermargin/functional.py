"""The way through the house, on one screen: features → scores → ψ on N numbers → softplus(rivals − target)."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

from hypermargin import checks
from hypermargin.backends import Backend
from hypermargin.backends.held import look_up
from hypermargin.batch import axes_of, given
from hypermargin.margins import Margin
from hypermargin.numerics import full_precision, log_add_exp, log_sum_exp, softplus, wide_dtype, widen
from hypermargin.optim import FusedSGD
from hypermargin.parallel.messages import own_rows
from hypermargin.parallel.partial_fc import Sampling
from hypermargin.parallel.shard import Part
from hypermargin.scoring import column, scores_of

Reduction = Literal["mean", "sum", "none"]
Gradient = Literal["exact", "straight"]


def margin_softmax(
    features: Tensor,
    weight: Tensor,
    labels: Tensor,
    margin: Margin,
    *,
    scale: float | Tensor = 1.0,
    bias: Tensor | None = None,
    unit_features: bool = True,
    unit_weight: bool = True,
    gradient: Gradient = "exact",
    m: Tensor | None = None,
    lam: float | Tensor = 0.0,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    mix: checks.Mix | None = None,
    reduction: Reduction = "mean",
    check: bool | Literal["auto"] = "auto",
    backend: Backend = "auto",
    update: FusedSGD | None = None,
    part: Part | None = None,
    sampling: Sampling | None = None,
) -> Tensor:
    """Softmax cross-entropy with a margin on the target: L = softplus(R − T).

    With z_j = s·|x||W_j|·cos θ_j + b_j (|x|, |W_j| replaced by 1 where a side is normalised):

        T = s·|x||W_y|·ψ(θ_y) + b_y,     R = log Σ_{j≠y} exp z_j

    - features (N, d), weight (C, d), labels (N,): integers in [0, C) or `ignore_index`
    - scale: s > 0, a number, a tensor holding one, or one a row (N,)
    - gradient: "exact" is the derivative of ψ; "straight" lets dψ/dcos = 1, as insightface and OpenSphere do
    - m: a tensor standing in for the margin's own m: (), (C,) by class or (N, 1) by row
      (Combined: with a last dimension of 3); it may require a gradient
    - lam: λ ≥ 0 blends in the plain cosine, (λ cos θ + ψ)/(1 + λ)
    - label_smoothing ε: cross-entropy of the margined logits against (1−ε)·onehot + ε/C
    - mix=(other_labels, weight): weight·L(labels) + (1−weight)·L(other_labels), each with its own margin, in one
      pass over the classes; a row is left out if either label is `ignore_index`
    - reduction: "mean" is over the rows that count, and 0 if there are none
    - check: read values (label range, NaN, scale) first; "auto" does so in eager mode on the CPU
    - update: an optimiser that changes the weight in the backward (`FusedSGD`), with backend "triton"
    - part: weight, bias and an m by class are the slice `Shard(…).part(C)` of all classes, features and labels are
      this rank's rows, and all ranks call this together. "mean" and "sum" are over the rows of all ranks, and the
      same on each; "none" gives this rank's rows. dW is the slice of the whole gradient; see `Shard` for dX.
    - sampling: the classes of this step (`PartialFC`)

    The result is float32 or wider, also under autocast.
    """
    _check_options(margin, gradient, lam, label_smoothing, reduction)
    numbers = _numbers(margin)
    if part is not None and part.world == 1 and sampling is None:
        part = None
    if sampling is not None and (part is None or label_smoothing or update is not None):
        raise ValueError(
            "sampling needs part=…, and goes neither with label_smoothing, which is about every class, nor with "
            "FusedSGD. Leave out one; SampledSGD is the optimiser for it."
        )
    batch = given(
        features,
        weight,
        labels,
        scale=scale,
        bias=bias,
        ignore_index=ignore_index,
        mix=mix,
        m=m,
        numbers=numbers,
        check=check,
        part=part,
        call=f"loss ({reduction}{'' if sampling is None else ', sampled'})",
    )
    axes = axes_of(batch.m, numbers)
    scored = scores_of(
        batch,
        weight,
        bias=bias,
        unit_features=unit_features,
        unit_weight=unit_weight,
        ignore_index=ignore_index,
        class_m=batch.m if axes == 1 else None,
        rival_sum=label_smoothing > 0,
        backend=backend,
        update=update,
        part=part,
        sampling=sampling,
    )
    found, held, y = scored.found, scored.held, scored.y
    classes = weight.shape[0] if part is None else part.classes
    with full_precision(features):
        plain = found.target if held.bias is None else found.target + held.of_labels(held.bias, elsewhere=0.0)
        lift = _lift(margin, found.angle, batch.m if held.m is None else held.of_labels(held.m), lam, gradient)
        target = plain + scored.length * found.norm * lift
        rivals, rival_sum = found.rivals, found.rival_sum
        if part is not None:  # what each rank says of its classes; from here on all ranks hold the same
            mixed = None if mix is None else plain
            rivals, target, mixed, rival_sum = part.combine(rivals, target, mixed, rival_sum, bound=scored.bound)
            plain = plain if mixed is None else mixed

        def loss_of(k: int) -> Tensor:
            R, sum_R = rivals, rival_sum
            if mix is not None:  # the other label is a rival, unless it is the same class
                same, other = y[:, 0] == y[:, 1], plain[:, 1 - k]
                R = log_add_exp(R, other.masked_fill(same, -math.inf))
                sum_R = None if sum_R is None else sum_R + other.masked_fill(same, 0.0)
            return _cross_entropy(target[:, k], R, sum_R, label_smoothing, classes)

        loss = loss_of(0)
        if mix is not None:
            share = batch.share.to(loss.dtype) if isinstance(batch.share, Tensor) else batch.share
            loss = share * loss + (1 - share) * loss_of(1)
        loss = _reduce(loss, scored.counts, reduction)
        if reduction == "none" and part is not None and batch.rows is not None:
            loss = own_rows(loss, batch.rows)
        return loss


def margin_cross_entropy(
    cosines: Tensor,
    labels: Tensor,
    margin: Margin,
    scale: float | Tensor = 1.0,
    *,
    gradient: Gradient = "exact",
    m: Tensor | None = None,
    lam: float | Tensor = 0.0,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    check: bool | Literal["auto"] = "auto",
) -> Tensor:
    """The same loss for people who already hold the N×C cosines: any margin, integer labels, no one-hot.

    The sparse AM-Softmax, made stable: the target is masked out of the sum, where the usual trick
    log(Z − e^T) = log Z + log(1 − exp(T − log Z)) gives negative losses and −inf.
    A cosine resolves angles only down to √eps, so prefer `margin_softmax` where you have the features.
    """
    checks.cosines_matrix(cosines)
    rows, classes = cosines.shape
    checks.labels_like("labels", labels, rows, cosines.device)
    checks.row_scale(scale, rows)
    _check_options(margin, gradient, lam, label_smoothing, reduction)
    checks.margin_tensor(m, _numbers(margin), rows, classes)
    y = labels.long().unsqueeze(1)
    counts = labels != ignore_index
    if checks.wanted(check, cosines, labels):
        checks.label_values("labels", labels, classes, ignore_index)
        checks.finite_rows("cosines", cosines, counts)
        checks.cosine_values(cosines[counts])
        checks.positive_values("scale", scale)

    with full_precision(cosines):
        y = y.masked_fill(~counts.unsqueeze(1), 0)
        c = widen(cosines, wide_dtype(cosines)).masked_fill(~counts.unsqueeze(1), 0.0)
        s = column(scale, c)
        c_y = c.gather(1, y)
        m = look_up(m, y) if m is not None and axes_of(m, _numbers(margin)) == 1 else m
        lift = _lift(margin, c_y, m, lam, gradient, angles=False)
        z = s * c
        smoothed = z.scatter(1, y, 0.0).sum(1) if label_smoothing else None
        target = (s * (c_y + lift)).squeeze(1)
        rivals = log_sum_exp(z.scatter(1, y, -math.inf))
        return _reduce(_cross_entropy(target, rivals, smoothed, label_smoothing, classes), counts, reduction)


def _numbers(margin: Margin) -> int | None:
    """How many an m consists of."""
    return None if margin.m is None else len(margin.m) if isinstance(margin.m, tuple) else 1


def _lift(
    margin: Margin, at: Tensor, m: Tensor | None, lam: float | Tensor, gradient: str, *, angles: bool = True
) -> Tensor:
    """What the margin adds to the target's cosine: (ψ − cos θ)/(1 + λ), at angles or at cosines.

    Adding it to the plain product, rather than replacing that by |f||w|ψ, keeps the product's own gradient
    exact where a zero row leaves the angle without one: a zero-initialised classifier still learns.
    """
    m = None if m is None else widen(m, at.dtype)
    lift = margin.psi(at, m) - at.cos() if angles else margin.psi_of_cosine(at, m) - at
    if isinstance(lam, Tensor) or lam:
        lift = lift / (1 + lam)
    return lift.detach() if gradient == "straight" else lift


def _cross_entropy(
    target: Tensor, rivals: Tensor, rival_sum: Tensor | None, smoothing: float, classes: int
) -> Tensor:
    """softplus(R − T) + (ε/C)·((C − 1)·T − Σ_{j≠y} z_j)."""
    loss = softplus(rivals - target)
    if rival_sum is not None:
        loss = loss + smoothing / classes * ((classes - 1) * target - rival_sum)
    return loss


def _reduce(loss: Tensor, counts: Tensor | None, reduction: str) -> Tensor:
    """A mean over the rows that count; 0 if there are none."""
    if counts is not None:
        loss = loss.masked_fill(~counts, 0.0)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    return loss.sum() / (max(loss.shape[0], 1) if counts is None else counts.sum().clamp(min=1))


def _check_options(
    margin: Margin, gradient: str, lam: float | Tensor, label_smoothing: float, reduction: str
) -> None:
    checks.instance("margin", margin, Margin, "ArcFace(m=0.5)")
    checks.one_of("gradient", gradient, ("exact", "straight"))
    checks.one_of("reduction", reduction, ("mean", "sum", "none"))
    checks.in_range("label_smoothing", label_smoothing, 0.0, 1.0)
    if not isinstance(lam, Tensor):
        checks.in_range("lam", lam, 0.0, math.inf)
