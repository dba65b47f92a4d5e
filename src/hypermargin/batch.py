"""A batch on its way to the loss: checked inputs, scaled features, the geometry of the targets, losses by row."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.centers import ONE, Centers
from hypermargin.layout import ClassTable, Layout, Share
from hypermargin.numerics import apply, fit, meeting, polar, wide_dtype, widen
from hypermargin.scales import needed_scale

if TYPE_CHECKING:
    from hypermargin.backends import Rivals
    from hypermargin.margins import Margin
    from hypermargin.rules import Rule


NO_LABEL, NO_CLASS = -1, -2  # the label of a row that does not count, and that of a bad one


class Batch(NamedTuple):
    """A checked batch; with a sharded head, the rows of all ranks.

    A bad row holds NaN or inf, or a label that is no class. Where values are not read first its loss is NaN, and so
    is its gradient by its features; nothing else takes part in it, so that no other row and no class is spoiled.
    """

    features: Tensor  # (N, d)
    y: Tensor  # (N, L)  labels, two with mixup; negative in rows that do not count or are bad
    used: Tensor | None  # (N,)  which rows count, bad ones among them; None: all
    scale: float | Tensor  # s, one or one per row
    share: float | Tensor = 1.0  # weight of the first label, with mixup
    m: Tensor | None = None  # one margin for all, or one per row (N, 1, …)
    m_by_row: bool = False
    class_m: Tensor | None = None  # (C, …)  margins by class
    rows: Any = None  # which ranks brought which rows, if several did
    bad: Tensor | None = None  # (N,)  which rows are bad; None: none

    def classes(self) -> Tensor:
        """Return labels to look up classes by: 0 in rows that do not count or are bad."""
        return self.y if self.used is None else self.y.clamp(min=0)

    def clean(self, dtype: torch.dtype) -> Tensor:
        """Return the features in a wide dtype, with zeros in rows that do not count or are bad."""
        x = widen(self.features, dtype)
        if self.used is None:
            return x
        left_out = self.y[:, :1] < 0
        if self.bad is None:
            return x.masked_fill(left_out, 0.0)
        cleaned: Tensor = apply(_Cleaned, x, left_out, self.bad.unsqueeze(1))
        return cleaned

    def of_rows(self, loss: Tensor) -> Tensor:
        """Return the losses (N,) with 0 for rows that do not count, and NaN for bad ones."""
        loss = loss if self.used is None else loss.masked_fill(~self.used, 0.0)
        return loss if self.bad is None else loss.masked_fill(self.bad, math.nan)


class _Cleaned(torch.autograd.Function):
    """Zeros in the rows left out; the gradient is 0 there too, and NaN in those that are bad."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, left_out: Tensor, bad: Tensor) -> Tensor:
        return x.masked_fill(left_out, 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        left_out, bad = ctx.saved_tensors
        return grad.masked_fill(left_out, 0.0).masked_fill(bad, math.nan), None, None


def check_batch(
    features: Tensor,
    weight: Tensor,
    labels: Tensor | None,
    layout: Layout,
    *,
    scale: float | Tensor | str | None,
    unit_features: bool = True,
    bias: Tensor | None = None,
    centers: Centers = ONE,
    margin: Margin | None = None,
    m: Tensor | None = None,
    mix: checks.Mix | None = None,
    ignore_index: int = -100,
    check: bool | Literal["auto"] = "auto",
) -> Batch:
    """Return a batch whose shapes match, and whose values are valid where `check` reads them; raise otherwise."""
    checks.features_and_weight(features, weight)
    layout.check_weight(weight, centers)
    N, here = features.shape[0], weight.shape[0] // centers.count
    if bias is not None:
        checks.class_bias(bias, here, features.device)
    if not isinstance(scale, (Tensor, float)):
        scale = needed_scale(scale, unit_features, layout.classes(here), features.shape[1], margin)
    checks.row_scale(scale, N)
    if labels is None:
        return Batch(features, torch.empty(N, 0, dtype=torch.int64, device=features.device), None, scale)
    checks.labels_like("labels", labels, N, features.device)
    both, y = {"labels": labels}, labels.long().unsqueeze(1)
    if mix is not None:
        checks.mixture(mix, N, features.device)
        both["mix[0] (other_labels)"] = mix[0]
        y = torch.cat((y, mix[0].long().unsqueeze(1)), 1)
    classes = layout.classes(here)
    if checks.wanted(check, features, labels):
        used, bad = _checked_rows("features", features, both, y, scale, classes, ignore_index), None
    else:
        used = (y != ignore_index).all(1)
        largest = torch.linalg.vector_norm(features.detach(), math.inf, dim=1)  # NaN if an entry is
        bad = used & ~(_are_classes(y, classes) & (largest < math.inf))
    return _with_margins(features, y, used, scale, margin, m, here, bad, 1.0 if mix is None else mix[1])


def check_cosines(
    cosines: Tensor,
    labels: Tensor,
    scale: float | Tensor | str,
    *,
    margin: Margin,
    m: Tensor | None,
    ignore_index: int,
    check: bool | Literal["auto"],
) -> Batch:
    """Return a checked batch that holds cosines (N, C) in place of the features."""
    checks.cosines_matrix(cosines)
    N, classes = cosines.shape
    checks.labels_like("labels", labels, N, cosines.device)
    s = needed_scale(scale, True, classes, classes, margin)
    checks.row_scale(s, N)
    y = labels.long().unsqueeze(1)
    if not checks.wanted(check, cosines, labels):
        counted = labels != ignore_index
        bad = counted & ~_are_classes(y, classes)  # of cosines, a NaN stays in its row anyway
        return _with_margins(cosines, y, counted, s, margin, m, classes, bad)
    used = _checked_rows("cosines", cosines, {"labels": labels}, y, s, classes, ignore_index)
    checks.cosine_values(cosines if used is None else cosines[used])
    return _with_margins(cosines, y, used, s, margin, m, classes)


def _are_classes(y: Tensor, classes: int) -> Tensor:
    return (y == y.clamp(0, classes - 1)).all(1)


def _checked_rows(
    name: str,
    x: Tensor,
    labels: dict[str, Tensor],
    y: Tensor,
    scale: float | Tensor,
    classes: int,
    ignore_index: int,
) -> Tensor | None:
    """Return which rows count, or None if all do; raise if labels, features or scale hold invalid values."""
    each_is_a_class = [checks.label_values(of, each, classes, ignore_index) for of, each in labels.items()]
    used = None
    if not all(each_is_a_class) or 0 <= ignore_index < classes:
        used = (y != ignore_index).all(1)
    checks.finite_rows(name, x, used)
    checks.positive_values("scale", scale)
    return None if used is None or bool(used.all()) else used


def _with_margins(
    x: Tensor,
    y: Tensor,
    used: Tensor | None,
    scale: float | Tensor,
    margin: Margin | None,
    m: Tensor | None,
    classes: int,
    bad: Tensor | None = None,
    share: float | Tensor = 1.0,
) -> Batch:
    """Return the batch with m, told by its shape: one for all, one per class (C,) or one per row (N, 1)."""
    if used is not None:
        y = y.masked_fill(~used.unsqueeze(1), NO_LABEL)
    if bad is not None:
        y = y.masked_fill(bad.unsqueeze(1), NO_CLASS)
    if m is None:
        return Batch(x, y, used, scale, share, bad=bad)
    own = None if margin is None else margin.m
    numbers = None if own is None else len(own) if isinstance(own, tuple) else 1
    checks.margin_tensor(m, numbers, len(y), classes)
    axes = m.dim() - (numbers != 1)
    if axes == 1:
        return Batch(x, y, used, scale, share, class_m=m, bad=bad)
    return Batch(x, y, used, scale, share, m=m, m_by_row=axes == 2, bad=bad)


class ScaledRows(NamedTuple):
    """The scaled features f that are multiplied with the class weights, and the parts they are made of."""

    f: Tensor  # (N, d)  s·x̂, or s·x
    direction: Tensor  # (N, d)  x̂, zero for zero rows
    length: Tensor  # (N, 1)  |f|
    x: Tensor  # (N, d)  float32 or wider, zeros in rows that do not count
    norm: Tensor  # (N, 1)  |x|
    s: Tensor | float  # a number, (), or (N, 1)


def scale_rows(batch: Batch, table: ClassTable, layout: Layout, *, unit_features: bool) -> ScaledRows:
    """Return f = s·x̂ or s·x and its parts.

    Rows whose products with an unnormalised weight would overflow are shrunk until they do not.
    """
    x = batch.clean(wide_dtype(batch.features, table.weight))
    s = column(batch.scale, x.dtype)
    if not (unit_features and table.unit):
        largest: float | Tensor = 1.0
        if not table.unit:
            longest = torch.linalg.vector_norm(table.weight.detach(), math.inf).clamp(min=1.0)
            largest = layout.largest(longest.to(x.dtype))
        K = table.centers.count
        entries = layout.classes(len(table.weight) // K) * K * table.weight.shape[1]
        limit = torch.finfo(x.dtype).max / (4.0 * entries) / largest
        x = fit(x, limit / (s.detach().clamp(min=1.0) if isinstance(s, Tensor) else max(s, 1.0)))
    direction, norm = polar(x)
    if unit_features:
        return ScaledRows(s * direction, direction, s * norm.detach().sign(), x, norm, s)  # zero rows stay zero
    return ScaledRows(s * x, direction, s * norm, x, norm, s)


def column(scale: float | Tensor, dtype: torch.dtype) -> Tensor | float:
    """Return the scale in a shape that multiplies rows: a number, () or (N, 1)."""
    if not isinstance(scale, Tensor):
        return float(scale)
    s = widen(scale, dtype)
    return s.reshape(-1, 1) if s.dim() else s


class Target(NamedTuple):
    """The geometry of each row's own classes before any margin; (N, L) unless noted.

    Of several centers it is the nearest's, or that of the mean cosine which `centers.soft` makes of them.
    """

    product: Tensor  # ⟨f, w̃_y⟩: linear in f, so its gradient is w̃_y even where f or w̃_y is zero
    angle: Tensor  # the angle between f and W_y, in [0, π]; π/2 for zero rows
    length: Tensor  # |f||w̃_y|; (N, 1) if the weight is normalised
    norm: Tensor | None  # |w̃_y|; None if it is 1
    products: Tensor  # (N, L, K)  the product with every center


def target_of(rows: ScaledRows, label_rows: Tensor, table: ClassTable) -> Target:
    """Return the geometry of the targets from the rows (N, L·K, d) of their classes."""
    directions = norm = None
    if not table.unit:
        directions, norms = polar(label_rows)
        norm = norms.squeeze(-1)
    product, angle = meeting(rows.f, rows.direction, label_rows, directions)
    products = product.view(len(product), product.shape[1] // table.centers.count, table.centers.count)
    if table.centers.soft:
        angle = table.centers.angle(products, angle.view_as(products), rows.length)
        return Target(table.centers.score(products, rows.length), angle, rows.length, None, products)
    if table.centers.count > 1:
        nearest = products.detach().argmax(-1, keepdim=True)

        def pick(by_center: Tensor) -> Tensor:
            return by_center.view_as(products).gather(-1, nearest).squeeze(-1)

        product, angle, norm = pick(product), pick(angle), None if norm is None else pick(norm)
    return Target(product, angle, rows.length if norm is None else rows.length * norm, norm, products)


def share_of(
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
        products = own.product.unsqueeze(-1) if table.centers.pooled else own.products
        z = rule.at(rows.length.unsqueeze(-1)).rho(products)
        as_rival = table.own(rule.aggregate.total(z if b is None else z + b.unsqueeze(-1)))
    if row_terms:
        every = torch.stack(row_terms).sum(0)
        terms = table.own(every.unsqueeze(1).expand_as(T))[:, 0]  # only the process with the first label adds them
    return Share(rivals.rivals, table.own(T if b is None else T + b), as_rival, rivals.rival_sum, terms)


def row_losses(rule: Rule, whole: Share, batch: Batch, s: float | Tensor, smoothing: float, classes: int) -> Tensor:
    """Return link(R, T) + (ε/C)·((C − 1)·T − Σ_{j≠y} z_j) + terms of each row; 0 or NaN where it has none."""
    # s is a factor of the loss here, and no way to make it smaller.
    if isinstance(s, Tensor):
        s = s.detach() if s.dim() == 0 else s.detach().squeeze(1)

    def of_label(k: int) -> Tensor:
        R, T, rival_sum = whole.rivals, whole.target.select(1, k), whole.rival_sum
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
    return batch.of_rows(loss if whole.terms is None else loss + whole.terms)
