"""The way through the house, on one screen: features → scores → ψ on N numbers → softplus(rivals − target)."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hypermargin import checks
from hypermargin.margins import Margin
from hypermargin.numerics import constant, fit, log_add_exp, log_sum_exp, polar, softplus, wide_dtype, widen
from hypermargin.optim import FusedSGD
from hypermargin.scores import Backend, Scores, choose, scores

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

    The result is float32 or wider, also under autocast.
    """
    rows, classes = _sizes(features, weight, bias)
    _check_options(margin, gradient, m, lam, label_smoothing, reduction, rows, classes)
    batch = scores_of(
        features,
        weight,
        labels,
        scale=scale,
        bias=bias,
        unit_features=unit_features,
        unit_weight=unit_weight,
        ignore_index=ignore_index,
        mix=mix,
        rival_sum=label_smoothing > 0,
        check=check,
        backend=backend,
        update=update,
    )
    found, y = batch.found, batch.y
    with full_precision(features):
        plain = found.target if batch.bias is None else found.target + _of_labels(batch.bias, y)
        lift = _lift(margin, found.angle, None if m is None else _margins_of(m, y, classes), lam, gradient)
        target = plain + batch.length * found.norm * lift

        def loss_of(k: int) -> Tensor:
            rivals, rival_sum = found.rivals, found.rival_sum
            if mix is not None:  # the other label is a rival, unless it is the same class
                same, other = y[:, 0] == y[:, 1], plain[:, 1 - k]
                rivals = log_add_exp(rivals, other.masked_fill(same, -math.inf))
                rival_sum = None if rival_sum is None else rival_sum + other.masked_fill(same, 0.0)
            return _cross_entropy(target[:, k], rivals, rival_sum, label_smoothing, classes)

        loss = loss_of(0)
        if mix is not None:
            share = mix[1].to(loss.dtype) if isinstance(mix[1], Tensor) else mix[1]
            loss = share * loss + (1 - share) * loss_of(1)
        return _reduce(loss, batch.counts, reduction)


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
    _check_options(margin, gradient, m, lam, label_smoothing, reduction, rows, classes)
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
        s = _column(scale, c)
        c_y = c.gather(1, y)
        lift = _lift(margin, c_y, None if m is None else _margins_of(m, y, classes), lam, gradient, angles=False)
        z = s * c
        smoothed = z.scatter(1, y, 0.0).sum(1) if label_smoothing else None
        target = (s * (c_y + lift)).squeeze(1)
        rivals = log_sum_exp(z.scatter(1, y, -math.inf))
        return _reduce(_cross_entropy(target, rivals, smoothed, label_smoothing, classes), counts, reduction)


class Batch(NamedTuple):
    """A checked batch and what was found of it."""

    y: Tensor  # (N, K)  labels, 0 in rows that do not count
    counts: Tensor | None  # (N,)    which rows are not ignored; None: all, and this is known
    bias: Tensor | None  # (C,)
    length: Tensor  # (N, 1)  of the scaled features
    found: Scores


def scores_of(
    features: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    scale: float | Tensor,
    bias: Tensor | None,
    unit_features: bool,
    unit_weight: bool,
    ignore_index: int,
    mix: checks.Mix | None = None,
    rival_sum: bool = False,
    hardest: bool = False,
    check: bool | Literal["auto"] = "auto",
    backend: Backend = "auto",
    update: FusedSGD | None = None,
) -> Batch:
    """Check a batch, scale its features and score it against every class: all that comes before the margin."""
    rows, classes = _sizes(features, weight, bias)
    checks.labels_like("labels", labels, rows, features.device)
    checks.mixture(mix, rows, features.device)
    checks.row_scale(scale, rows)
    both = [labels] if mix is None else [labels, mix[0]]
    y = torch.stack([each.long() for each in both], 1)
    wide = wide_dtype(features, weight)
    settings, _ = choose(backend, rows, classes, features.device, wide)  # here, where autocast can be seen
    is_used = (y != ignore_index).all(1)
    all_used = False
    if checks.wanted(check, features, labels):
        for name, each in zip(("labels", "mix[0] (other_labels)"), both, strict=False):
            checks.label_values(name, each, classes, ignore_index)
        checks.finite_rows("features", features, is_used)
        checks.positive_values("scale", scale)
        all_used = bool(is_used.all())
    counts = None if all_used else is_used

    with full_precision(features):
        x = widen(features, wide)
        if counts is not None:
            y = y.masked_fill(~counts.unsqueeze(1), 0)
            x = x.masked_fill(~counts.unsqueeze(1), 0.0)  # keeps NaN of ignored rows out
        b = None if bias is None else widen(bias, wide)
        f, direction, length = scaled(x, weight, scale, unit_features=unit_features, unit_weight=unit_weight)
        found = scores(
            f,
            weight,
            y,
            unit_weight=unit_weight,
            bias=b,
            direction=direction,
            rival_sum=rival_sum,
            hardest=hardest,
            backend=settings,
            update=update,
        )
    return Batch(y, counts, b, length, found)


def scaled(
    x: Tensor, W: Tensor, scale: float | Tensor, *, unit_features: bool, unit_weight: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """f = s·x̂ or s·x, its direction x̂ and its length (N, 1).

    Rows whose products against a free weight would overflow are shrunk until they do not.
    """
    s = _column(scale, x)
    if not (unit_features and unit_weight):
        largest = 1.0 if unit_weight else torch.linalg.vector_norm(W.detach(), math.inf).clamp(min=1.0)
        limit = torch.finfo(x.dtype).max / (4.0 * W.numel()) / largest
        x = fit(x, limit / s.detach().clamp(min=1.0))
    direction, length = polar(x)
    if unit_features:
        return s * direction, direction, s * (length > 0).to(x.dtype)  # zero rows stay zero
    return s * x, direction, s * length


def full_precision(x: Tensor) -> AbstractContextManager[None]:
    """Autocast off: what follows is computed in float32 or wider."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def _sizes(features: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[int, int]:
    checks.features_and_weight(features, weight, bias)
    return features.shape[0], weight.shape[0]


def _column(scale: float | Tensor, like: Tensor) -> Tensor:
    """The scale as a tensor that multiplies rows."""
    if isinstance(scale, Tensor):
        s = widen(scale, like.dtype)
        return s.reshape(-1, 1) if s.dim() else s
    return constant(scale, like)


def _of_labels(table: Tensor, y: Tensor) -> Tensor:
    """table[y] for a table by class; embedding's backward is repeatable on the CPU, indexing's is not."""
    picked = F.embedding(y, table.reshape(table.shape[0], -1))
    return picked.reshape(*y.shape, *table.shape[1:])


def _margins_of(m: Tensor, y: Tensor, classes: int) -> Tensor:
    """m for each (row, label): one for all and one a row broadcast, one a class is looked up."""
    by_row = m.dim() >= 2 and m.shape[1] == 1 and m.shape[0] == y.shape[0]
    by_class = not by_row and m.dim() >= 1 and m.shape[0] == classes
    return _of_labels(m, y) if by_class else m


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
    margin: Margin,
    gradient: str,
    m: Tensor | None,
    lam: float | Tensor,
    label_smoothing: float,
    reduction: str,
    rows: int,
    classes: int,
) -> None:
    checks.instance("margin", margin, Margin, "ArcFace(m=0.5)")
    checks.one_of("gradient", gradient, ("exact", "straight"))
    checks.one_of("reduction", reduction, ("mean", "sum", "none"))
    checks.in_range("label_smoothing", label_smoothing, 0.0, 1.0)
    if not isinstance(lam, Tensor):
        checks.in_range("lam", lam, 0.0, math.inf)
    numbers = None if margin.m is None else len(margin.m) if isinstance(margin.m, tuple) else 1
    checks.margin_tensor(m, numbers, rows, classes)
