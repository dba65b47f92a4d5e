"""Slices of the classes, as Partial FC cuts them: contiguous, in rank order, the first ranks one class larger."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from hypermargin import checks
from hypermargin.head import MarginHead
from hypermargin.life.weights import Weights, by_class, set_classes

T = TypeVar("T", MarginHead, Weights)
SETTINGS = (
    "dim", "margin", "unit_features", "unit_weight", "gradient", "scale_mode", "scale", "learn_scale",
    "learn_margin", "ignore_index", "label_smoothing", "reduction",
)  # fmt: skip


def shard_range(classes: int, rank: int, world: int) -> range:
    """The classes of one rank: C//w of them, and one more on the first C % w ranks (as insightface's PartialFC)."""
    checks.count("classes", classes)
    checks.count("world", world)
    checks.count("rank", rank, 0)
    if rank >= world:
        raise ValueError(f"rank must lie in [0, {world}); got {rank}.")
    start = classes // world * rank + min(rank, classes % world)
    return range(start, start + classes // world + (rank < classes % world))


@torch.no_grad()
def split(target: T, world: int) -> list[T]:
    """`world` heads (or Weights), each with its slice of the classes and the scale of the whole; all new."""
    checks.count("world", world)
    classes = len(target.weight)
    if world > classes:
        raise ValueError(f"world must be at most the number of classes, {classes}; got {world}.")
    parts = []
    for rank in range(world):
        of = shard_range(classes, rank, world)
        parts.append(
            _with(target, {k: t.detach()[of.start : of.stop].clone() for k, t in _tensors(target).items()})
        )
    return parts


@torch.no_grad()
def join(parts: Sequence[T]) -> T:
    """One head (or Weights) with the classes of all, in this order; new. Settings and scale are the first's."""
    if not parts:
        raise ValueError("parts is empty: nothing to join.")
    tensors = [_tensors(part) for part in parts]
    for k, part in enumerate(parts):
        _same(parts[0], part, k)
        for name, first in tensors[0].items():
            if name not in tensors[k] or tensors[k][name].shape[1:] != first.shape[1:]:
                got = tuple(tensors[k][name].shape[1:]) if name in tensors[k] else "none"
                raise ValueError(f"part {k} has a {name} of {got} a class; the first has {tuple(first.shape[1:])}.")
        if tensors[k].keys() != tensors[0].keys():
            more = sorted(tensors[k].keys() - tensors[0].keys())
            raise ValueError(f"part {k} also has {', '.join(more)}, which the first has not.")
    whole = {name: torch.cat([t[name].detach() for t in tensors]) for name in tensors[0]}
    return _with(parts[0], whole)


def _tensors(target: MarginHead | Weights) -> dict[str, Tensor]:
    if isinstance(target, MarginHead):
        return by_class(target)
    return {name: t for name in ("weight", "bias", "m") if (t := getattr(target, name)) is not None}


def _with(target: T, tensors: dict[str, Tensor]) -> T:
    """A copy with these tensors in place of its own, which are never copied."""
    if isinstance(target, Weights):
        return Weights(**tensors, rest=dict(target.rest), format=target.format)
    # Neither copied: the optimiser stays with the head it belongs to, and the old rows are large.
    shell = copy.copy(target)
    shell.__dict__["fused_optimizer"] = None
    memo: dict[int, object] = {}
    for name, old in by_class(target).items():
        new = tensors[name]
        memo[id(old)] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
    made = copy.deepcopy(shell, memo)
    set_classes(made, len(tensors["weight"]))
    return made


def _same(first: MarginHead | Weights, part: MarginHead | Weights, k: int) -> None:
    if type(first) is not type(part):
        raise TypeError(f"part {k} is a {type(part).__name__}, the first a {type(first).__name__}.")
    for name in SETTINGS if isinstance(first, MarginHead) else ():
        one, other = getattr(first, name), getattr(part, name)
        if isinstance(one, Tensor):
            one, other = float(one.detach()), float(other.detach())
        if one != other:
            raise ValueError(f"part {k} has {name} {other}, the first {one}. Only parts of one head can be joined.")
