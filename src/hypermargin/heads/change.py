"""Add, remove, merge and reorder classes. Everything that belongs to a class moves along, or nothing moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.head import MarginHead
from hypermargin.heads.convert import Optimizers
from hypermargin.heads.look import lengths
from hypermargin.heads.moving import Plan, check_ids, install, removing
from hypermargin.heads.weights import Weights, by_class, centers_of, classes_of, refuse_centers

Target = MarginHead | Weights


@torch.no_grad()
def add_classes(
    target: Target,
    count: int | None = None,
    *,
    embeddings: Tensor | None = None,
    labels: Tensor | None = None,
    m: float | Sequence[float] | Tensor | None = None,
    seed: int | None = None,
    optimizer: Optimizers = None,
) -> Tensor:
    """Add classes after the old ones: random rows like a fresh head's, or one from the embeddings of each label.

    - embeddings (N, dim), labels (N,): every label becomes a class, in the order of the labels. Its row is the mean
      direction of its embeddings, as long as the old rows are in the mean. Of several centers this is the first;
      each other is that of its embeddings which is farthest from the centers before it, or random where there are
      no more.
    - m: theirs, where margins go by class: one for all of them, or one each; default the margin's own
    - seed: for random rows; None draws from torch's generator

    Bias and optimiser state begin at 0. Adam's count of steps is one for all rows (but in SampledAdamW), so a new
    row's first steps are longer, up to (1 − β1)/√(1 − β2) times: 3 with its defaults.
    """
    classes, dim, K = classes_of(target), target.weight.shape[1], centers_of(target)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    if embeddings is None and labels is None:
        if count is None:
            raise ValueError("count is missing: say how many classes to add, or give embeddings and labels.")
        checks.count("count", count)
        rows = torch.randn(count * K, dim, generator=generator) * dim**-0.5  # as MarginHead.reset_parameters
    else:
        if embeddings is None or labels is None:
            raise ValueError("embeddings and labels belong together; one of them is missing.")
        rows = _rows_from(embeddings, labels, target.weight, K, generator)
        if count not in (None, len(rows) // K):
            raise ValueError(f"count is {count}, but labels name {len(rows) // K} classes. Leave count out.")
    more = len(rows) // K
    margins = _margins(target, m, more)
    plan = Plan(torch.arange(classes), classes + more)
    return install(target, plan, {"weight": rows, "m": margins}, optimizer)


def remove_classes(target: Target, ids: Iterable[int] | Tensor, *, optimizer: Optimizers = None) -> Tensor:
    """Remove these classes, whose new id is −1; the others move up and keep their order."""
    classes = classes_of(target)
    gone = check_ids("ids", ids, classes)
    if len(gone) == classes:
        raise ValueError(f"ids name all {classes} classes; a head needs at least one.")
    return install(target, removing(classes, gone), {}, optimizer)


def merge_classes(
    target: Target,
    groups: Iterable[Iterable[int]] | Tensor,
    *,
    counts: Sequence[float] | Tensor | None = None,
    optimizer: Optimizers = None,
) -> Tensor:
    """Make each group of ids one class, in the place of its lowest id; the others move up.

    Its row has the mean direction of the rows and their mean length; bias, m and optimiser state are means.
    `counts`, one number per class such as its samples, weighs all of these.
    """
    refuse_centers(target, "those of two classes have no order in which to merge them")
    classes = classes_of(target)
    groups = groups.tolist() if isinstance(groups, Tensor) else groups
    if not isinstance(groups, Iterable):
        raise TypeError(f"groups must be a list of lists of class ids; got {groups!r}.")
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
    """Make class i class new_ids[i]. In a dictionary, classes that are not named stay where they are.

    For names, `reorder_classes(head, by_name(now, wanted))`.
    """
    classes = classes_of(target)
    if isinstance(new_ids, Mapping):
        moved, to = check_ids("new_ids", new_ids, classes), check_ids("new_ids", new_ids.values(), classes)
        new_ids = torch.arange(classes).index_copy_(0, moved, to)
    places = check_ids("new_ids", new_ids, classes)
    if len(places) != classes:
        raise ValueError(f"new_ids must name a place for each of {classes} classes; got {len(places)}.")
    return install(target, Plan(places, classes), {}, optimizer)


def by_name(now: Sequence[str], wanted: Sequence[str]) -> Tensor:
    """Return the new ids that put the names `now` into the order `wanted`."""
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
    if counts is None:
        return torch.ones(classes, dtype=torch.float64)
    try:
        found = torch.as_tensor(counts, dtype=torch.float64).cpu()
    except (TypeError, ValueError):
        found = torch.empty(0)
    if found.shape != (classes,) or not bool((found.isfinite() & (found >= 0)).all()):
        raise ValueError(f"counts must be {classes} numbers of at least 0, one per class; got {counts}.")
    return found


def _rows_from(
    embeddings: Tensor, labels: Tensor, weight: Tensor, centers: int, generator: torch.Generator | None
) -> Tensor:
    dim = weight.shape[1]
    checks.instance("embeddings", embeddings, Tensor, "torch.as_tensor(array)")
    checks.instance("labels", labels, Tensor, "torch.as_tensor(array)")
    if embeddings.dim() != 2 or embeddings.shape[1] != dim:
        raise ValueError(
            f"embeddings must have shape (N, {dim}), the dim of the head, which does not change; "
            f"got {tuple(embeddings.shape)}."
        )
    if len(embeddings) == 0:
        raise ValueError(f"embeddings must have at least one row; got {tuple(embeddings.shape)}.")
    embeddings, labels = embeddings.detach().cpu(), labels.cpu()
    if not embeddings.is_floating_point():
        embeddings = embeddings.float()
    checks.labels_like("labels", labels, len(embeddings), labels.device)
    if int(labels.min()) < 0:
        raise ValueError(
            f"labels must be at least 0; got {int(labels.min())} at row {int(labels.argmin())}. Leave out the rows "
            "that belong to no class."
        )
    checks.finite_rows("embeddings", embeddings, torch.ones(len(embeddings), dtype=torch.bool))
    kinds, group = torch.unique(labels, return_inverse=True)
    wide = embeddings.double()
    wide = wide / torch.linalg.vector_norm(wide, dim=1, keepdim=True).clamp(min=1e-300)
    means = torch.zeros(len(kinds), dim, dtype=torch.float64).index_add_(0, group, wide)
    means /= torch.bincount(group)[:, None]
    size = torch.linalg.vector_norm(means, dim=1, keepdim=True)
    if bool((size < 8 * torch.finfo(embeddings.dtype).eps).any()):  # what is left of them is rounding
        label = int(kinds[size[:, 0].argmin()])
        raise ValueError(f"the embeddings of label {label} are 0 or cancel out, so it has no mean direction.")
    length = float(lengths(weight).mean())
    if not 0 < length < float("inf"):
        raise ValueError(f"the old rows have a mean length of {length:g}, which new ones cannot take over.")
    rows: Tensor = means / size
    if centers > 1:
        rows = torch.cat([_farthest(wide[group == k], rows[k], centers, generator) for k in range(len(rows))])
    return rows * length


def _farthest(units: Tensor, first: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Return the unit row `first` and count − 1 of `units`, each the farthest from all before it."""
    found = [first]
    nearest = units @ first  # the cosine of each to the nearest that was taken
    for _ in range(count - 1):
        at = int(nearest.argmin())
        if nearest[at] > 1 - 1e-9:  # all were taken: a tie would never be broken
            drawn = torch.randn(first.shape, generator=generator, dtype=first.dtype)
            found.append(torch.nn.functional.normalize(drawn, dim=0))
            continue
        found.append(units[at])
        nearest = torch.maximum(nearest, units @ units[at])
    return torch.stack(found)


def _margins(target: Target, m: float | Sequence[float] | Tensor | None, count: int) -> Tensor | None:
    now = by_class(target).get("m")
    if now is None:
        if m is not None:
            raise ValueError("m is for heads with a margin by class; this one has one margin for all.")
        return None
    if m is None and isinstance(target, Weights):
        raise ValueError("these weights have margins by class: give m, the margin of the new ones.")
    value = torch.as_tensor(target.margin.m if m is None and isinstance(target, MarginHead) else m).cpu()
    one = tuple(now.shape[1:])  # (), or (3,) of m1, m2, m3
    if tuple(value.shape) not in (one, (count, *one)):
        what = "a number" if one == () else f"{one[0]} numbers"
        raise ValueError(
            f"m must be {what}, or of shape {(count, *one)}, {what} for each new class; got {value.tolist()}."
        )
    low, high = (torch.as_tensor(bound) for bound in _bounds(target))
    if not bool(((value >= low) & (value < high)).all()):
        raise ValueError(f"m must lie in [{low.tolist()}, {high.tolist()}); got {value.tolist()}.")
    return value.to(now.dtype).expand(count, *one)


def _bounds(target: Target) -> tuple[Any, Any]:
    if isinstance(target, MarginHead):
        return target.margin_bounds
    return float("-inf"), float("inf")  # a file does not say which margin it is of
