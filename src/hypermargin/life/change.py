"""Add, remove, merge and reorder classes. Everything that belongs to a class moves along, or nothing moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.head import MarginHead
from hypermargin.life.follow import Optimizers, install
from hypermargin.life.plan import Plan, check_ids, removing
from hypermargin.life.weights import Weights, by_class

Target = MarginHead | Weights


@torch.no_grad()
def add_classes(
    target: Target,
    count: int | None = None,
    *,
    embeddings: Tensor | None = None,
    labels: Tensor | None = None,
    m: float | Sequence[float] | None = None,
    seed: int | None = None,
    optimizer: Optimizers = None,
) -> Tensor:
    """New classes after the old ones: random rows like a fresh head's, or one from the embeddings of each label.

    - embeddings (N, dim), labels (N,): every label becomes a class, in the order of the labels. Its row is the mean
      direction of its embeddings, as long as the old rows are in the mean.
    - m: theirs, where margins go by class; default the margin's own
    - seed: for random rows; None draws from torch's generator

    Bias and optimiser state begin at 0. Adam's count of steps is one for all rows, so a new row's first steps are
    longer, up to (1 − β1)/√(1 − β2) times: 3 with its defaults.
    """
    classes, dim = target.weight.shape
    if embeddings is None and labels is None:
        if count is None:
            raise ValueError("count is missing: say how many classes to add, or give embeddings and labels.")
        checks.count("count", count)
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        rows = torch.randn(count, dim, generator=generator) * dim**-0.5  # as MarginHead.reset_parameters
    else:
        if embeddings is None or labels is None:
            raise ValueError("embeddings and labels belong together; one of them is missing.")
        rows = _mean_rows(embeddings, labels, target.weight)
        if count not in (None, len(rows)):
            raise ValueError(f"count is {count}, but labels name {len(rows)} classes. Leave count out.")
    margins = _margins(target, m, len(rows))
    plan = Plan(torch.arange(classes), classes + len(rows))
    return install(target, plan, {"weight": rows, "m": margins}, optimizer)


def remove_classes(target: Target, ids: Iterable[int] | Tensor, *, optimizer: Optimizers = None) -> Tensor:
    """Without these classes; the others move up and keep their order. Their new id is −1."""
    classes = len(target.weight)
    gone = check_ids("ids", ids, classes)
    if len(gone) == classes:
        raise ValueError(f"ids name all {classes} classes; a head needs at least one.")
    return install(target, removing(classes, gone), {}, optimizer)


def merge_classes(
    target: Target,
    groups: Iterable[Iterable[int]],
    *,
    counts: Sequence[float] | Tensor | None = None,
    optimizer: Optimizers = None,
) -> Tensor:
    """Each group of ids becomes one class, in the place of its lowest id; the others move up.

    Its row has the mean direction of the rows and their mean length; bias, m and optimiser state are means.
    `counts`, one number a class such as its samples, weighs all of these.
    """
    classes = len(target.weight)
    listed = [check_ids("groups", group, classes) for group in groups]
    if not listed:
        raise ValueError("groups is empty: nothing to merge.")
    for group in listed:
        if len(group) < 2:
            raise ValueError(f"groups must have at least two classes each; got {group.tolist()}.")
    members = check_ids("groups", torch.cat(listed), classes)
    weighed = _counts(counts, classes)
    shares = []
    for group in listed:
        total = weighed[group].sum()
        if total == 0:
            raise ValueError(f"counts of the classes {group.tolist()} are all 0, so they have no mean.")
        shares.append(weighed[group] / total)
    lowest = torch.cat([group.min().expand(len(group)) for group in listed])
    plan = removing(classes, members[members != lowest])
    plan.new_ids[members] = plan.new_ids[lowest]
    plan = Plan(plan.new_ids, plan.classes, members, torch.cat(shares))
    return install(target, plan, {}, optimizer)


def reorder_classes(
    target: Target, new_ids: Mapping[int, int] | Sequence[int] | Tensor, *, optimizer: Optimizers = None
) -> Tensor:
    """Class i becomes class new_ids[i]. In a dictionary, classes that are not named stay where they are.

    For names, `reorder_classes(head, by_name(now, wanted))`.
    """
    classes = len(target.weight)
    if isinstance(new_ids, Mapping):
        check_ids("new_ids", new_ids, classes)
        new_ids = [new_ids.get(old, old) for old in range(classes)]
    if len(new_ids) != classes:
        raise ValueError(f"new_ids must name a place for each of {classes} classes; got {len(new_ids)}.")
    return install(target, Plan(check_ids("new_ids", new_ids, classes), classes), {}, optimizer)


def by_name(now: Sequence[str], wanted: Sequence[str]) -> Tensor:
    """New ids that put the names `now` into the order `wanted`."""
    for name, names in (("now", now), ("wanted", wanted)):
        if len(set(names)) != len(names):
            twice = next(n for n in names if list(names).count(n) > 1)
            raise ValueError(f"{name} must name a class once; got {twice!r} twice or more.")
    place = {name: k for k, name in enumerate(wanted)}
    other = sorted(set(now) ^ set(wanted))
    if other:
        where = "wanted" if other[0] in place else "now"
        raise ValueError(f"{other[0]!r} is in {where} only; both must have the same names ({len(other)} differ).")
    return torch.tensor([place[name] for name in now], dtype=torch.int64)


def _counts(counts: Sequence[float] | Tensor | None, classes: int) -> Tensor:
    found = torch.ones(classes, dtype=torch.float64)
    if counts is not None:
        found = torch.as_tensor(counts, dtype=torch.float64)
    if found.shape != (classes,) or not bool((found.isfinite() & (found >= 0)).all()):
        raise ValueError(f"counts must be {classes} numbers of at least 0, one a class; got {counts}.")
    return found


def _mean_rows(embeddings: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    dim = weight.shape[1]
    if embeddings.dim() != 2 or embeddings.shape[1] != dim:
        raise ValueError(
            f"embeddings must have shape (N, {dim}), the dim of the head, which does not change; "
            f"got {tuple(embeddings.shape)}."
        )
    if len(embeddings) == 0:
        raise ValueError(f"embeddings must have at least one row; got {tuple(embeddings.shape)}.")
    embeddings, labels = embeddings.detach().cpu(), labels.cpu()
    checks.labels_like("labels", labels, len(embeddings), labels.device)
    checks.finite_rows("embeddings", embeddings, torch.ones(len(embeddings), dtype=torch.bool))
    kinds, group = torch.unique(labels, return_inverse=True)
    wide = embeddings.double()
    wide = wide / torch.linalg.vector_norm(wide, dim=1, keepdim=True).clamp(min=1e-300)
    means = torch.zeros(len(kinds), dim, dtype=torch.float64).index_add_(0, group, wide)
    means /= torch.bincount(group)[:, None]
    size = torch.linalg.vector_norm(means, dim=1, keepdim=True)
    if bool((size < 1e-6).any()):
        label = int(kinds[size[:, 0].argmin()])
        raise ValueError(f"the embeddings of label {label} are 0 or cancel out, so it has no mean direction.")
    length = float(torch.linalg.vector_norm(weight.detach().float(), dim=1).double().mean())
    if not 0 < length < float("inf"):
        raise ValueError(f"the old rows have a mean length of {length:g}, which new ones cannot take over.")
    rows: Tensor = means / size * length
    return rows


def _margins(target: Target, m: float | Sequence[float] | None, count: int) -> Tensor | None:
    now = by_class(target).get("m") if isinstance(target, MarginHead) else target.m
    if now is None:
        if m is not None:
            raise ValueError("m is for heads with a margin by class; this one has one margin for all.")
        return None
    if m is None and isinstance(target, Weights):
        raise ValueError("these weights have margins by class: give m, the margin of the new ones.")
    value = torch.as_tensor(target.margin.m if m is None and isinstance(target, MarginHead) else m)
    if value.shape not in ((), now.shape[1:]):
        raise ValueError(f"m must be a number, or of shape {tuple(now.shape[1:])}; got {tuple(value.shape)}.")
    if isinstance(target, MarginHead):
        low, high = (torch.as_tensor(bound) for bound in target.margin_bounds)
        if not bool(((value >= low) & (value < high)).all()):
            raise ValueError(f"m must lie in [{low.tolist()}, {high.tolist()}); got {value.tolist()}.")
    return value.to(now.dtype).expand(count, *now.shape[1:])
