"""Slices of the classes, as `Shard` cuts them: contiguous, in rank order, ⌈C/world⌉ classes each, then the rest."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn

from hypermargin import checks
from hypermargin.head import MarginHead
from hypermargin.heads.weights import Weights, by_class, centers_of, classes_of, of_centers, set_classes
from hypermargin.parallel.shard import class_range

T = TypeVar("T", MarginHead, Weights)
DIFFERENT = ("classes", "check", "backend", "shard")  # settings in which parts of one head may differ


@torch.no_grad()
def split(target: T, world: int) -> list[T]:
    """Cut a head (or Weights) into `world` new ones, each with the classes that a rank of `Shard` would hold.

    That is ⌈C/world⌉ classes each, then what is left, then none: 5 classes over 4 ranks are 2, 2, 1 and 0. Each has
    the scale of the whole.
    """
    rows = by_class(target)
    checks.count("world", world)
    classes = classes_of(target)
    if world > classes:
        raise ValueError(f"world must be at most the number of classes, {classes}; got {world}.")
    K = centers_of(target)

    def part_of(name: str, tensor: Tensor, rank: int) -> Tensor:
        per_class, (start, stop) = K if of_centers(name) else 1, class_range(classes, rank, world)
        return tensor.detach()[start * per_class : stop * per_class].clone()

    parts = [_with(target, {k: part_of(k, t, rank) for k, t in rows.items()}) for rank in range(world)]
    for part in parts:
        if isinstance(part, MarginHead) and isinstance(target, MarginHead) and part.settings.learn_scale:
            part.settings = dataclasses.replace(part.settings, scale_floor=target.settings.least_scale)
    return parts


@torch.no_grad()
def join(parts: Iterable[T]) -> T:
    """Make one new head (or Weights) with the classes of all parts, in order. All else must be the same in all."""
    parts = list(parts)
    if not parts:
        raise ValueError("parts is empty: nothing to join.")
    rows = [by_class(part) for part in parts]
    for k, part in enumerate(parts):
        _same(parts[0], part, k)
        for name, first in rows[0].items():
            mine = rows[k].get(name)
            if mine is None or mine.shape[1:] != first.shape[1:]:
                got = "none" if mine is None else tuple(mine.shape[1:])
                raise ValueError(f"part {k} has a {name} of {got} a class; the first has {tuple(first.shape[1:])}.")
            if mine.dtype != first.dtype:
                raise ValueError(f"part {k} has a {name} of {mine.dtype}, the first of {first.dtype}.")
        if rows[k].keys() != rows[0].keys():
            more = sorted(rows[k].keys() - rows[0].keys())
            raise ValueError(f"part {k} also has {', '.join(more)}, which the first has not.")
    whole = _with(parts[0], {name: torch.cat([each[name].detach() for each in rows]) for name in rows[0]})
    if isinstance(whole, MarginHead) and whole.settings.scale_floor is not None:
        usual = dataclasses.replace(whole.settings, scale_floor=None)
        if usual.least_scale == whole.settings.scale_floor:  # the parts of `split` have the floor of the whole
            whole.settings = usual
    return whole


def _with(target: T, rows: dict[str, Tensor]) -> T:
    """Copy a head or Weights with these rows in place of its own, which are never copied."""
    if isinstance(target, Weights):
        found = copy.copy(target)
        found.rest = dict(target.rest)
        found.put(rows)
        return found
    # Neither copied: the optimiser stays with the head it belongs to, and the old rows are large.
    shell = copy.copy(target)
    shell.__dict__["training_backend"] = None
    memo: dict[int, object] = {}
    for name, old in by_class(target).items():
        new = rows[name]
        memo[id(old)] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
    made = copy.deepcopy(shell, memo)
    set_classes(made, rows)
    return made


def _same(first: MarginHead | Weights, part: MarginHead | Weights, k: int) -> None:
    if type(first) is not type(part):
        raise TypeError(f"part {k} is a {type(part).__name__}, the first a {type(first).__name__}.")
    one, other = _settings(first), _settings(part)
    for name in [*one, *(name for name in other if name not in one)]:
        a, b = one.get(name), other.get(name)
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            # Ranks that count alike may differ in the last digit of a learned scale.
            alike = a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-5, atol=0, equal_nan=True)
            a, b = a.tolist(), b.tolist()
        else:
            alike = not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b
        if not alike:
            raise ValueError(f"part {k} has {name} {b}, the first {a}. Only parts of one head can be joined.")


def _settings(target: MarginHead | Weights) -> dict[str, object]:
    """Return all that does not go by class, by name."""
    if isinstance(target, Weights):
        return target.rest | {"centers": target.centers}
    rows, state = by_class(target), target.state_dict()
    settings = {f.name: getattr(target.settings, f.name) for f in dataclasses.fields(target.settings)}
    settings = {name: value for name, value in settings.items() if name not in DIFFERENT}
    return settings | {k: t for k, t in state.items() if k not in rows}
