"""What several ranks hold in slices: everything of a run that goes by class.

Tensors of a checkpoint have these names:

    network.…, head.…         the weights; by class are head.weight, and where there are such bias, m, offsets
    optimizer.INDEX.NAME      the optimiser's state of a parameter
    ema.…                     averaged weights
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hypermargin.common.optimizer_state import PER_ELEMENT, PER_ROW
from hypermargin.head import MarginHead
from hypermargin.parallel.messages import Group


class Slices(NamedTuple):
    """Which tensors of a checkpoint go by class, and which of their rows this rank holds."""

    names: frozenset[str]  # some may also be a single number: the steps of torch's optimisers
    start: int
    stop: int
    classes: int
    group: Group
    by_center: frozenset[str] = frozenset()  # those of `names` that have `centers` rows per class
    centers: int = 1

    def cut(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Cut whole tensors to this rank's rows, where they go by class."""
        return {n: self._cut(t, self.per_class(n)) if self.cuts(n, t.dim()) else t for n, t in tensors.items()}

    def _cut(self, whole: Tensor, per_class: int) -> Tensor:
        return whole[self.start * per_class : self.stop * per_class].clone()

    def cuts(self, name: str, dims: int) -> bool:
        """Tell whether a tensor with so many dimensions goes by class."""
        return name in self.names and dims > 0

    def per_class(self, name: str) -> int:
        """Return how many rows of such a tensor belong to a class."""
        return self.centers if name in self.by_center else 1


def slices_of(head: MarginHead, optimizer: torch.optim.Optimizer, group: Group) -> Slices:
    """Return the slices of a sharded head, and of an optimiser that trains it."""
    own, held = head.by_class(), head.layout.held(head.classes)
    names = {f"{where}.{name}" for name in own for where in ("head", "ema.1")}
    by_center = {"head.weight", "ema.1.weight"}
    parameters = [p for g in optimizer.param_groups for p in g["params"]]
    for index, parameter in enumerate(parameters):
        state = {f"optimizer.{index}.{name}" for name in PER_ELEMENT | PER_ROW}
        if any(parameter is tensor for tensor in own.values()):
            names |= state
        if parameter is head.weight:
            by_center |= state
    K = head.settings.centers.count
    return Slices(frozenset(names), held.start, held.stop, head.classes, group, frozenset(by_center), K)


def flatten(training: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of optimiser and averages by name, and all the rest."""
    optimizer = training["optimizer"]
    tensors: dict[str, Tensor] = {}
    plain: dict[int, dict[str, Any]] = {}
    for index, state in optimizer["state"].items():
        plain[index] = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
        tensors |= {f"optimizer.{index}.{n}": value for n, value in state.items() if isinstance(value, Tensor)}
    tensors |= {f"ema.{name}": value for name, value in training.get("ema", {}).items()}
    rest = {name: value for name, value in training.items() if name != "ema"}
    return tensors, {**rest, "optimizer": {**optimizer, "state": plain}}


def unflatten(tensors: dict[str, Tensor], rest: dict[str, Any]) -> dict[str, Any]:
    """Return what `flatten` was given."""
    state = {index: dict(values) for index, values in rest["optimizer"]["state"].items()}
    averages = {}
    for key, value in tensors.items():
        kind, name = key.split(".", 1)
        if kind == "optimizer":
            index, name = name.split(".", 1)
            state[int(index)][name] = value
        elif kind == "ema":
            averages[name] = value
    training = {**rest, "optimizer": {**rest["optimizer"], "state": state}}
    return {**training, "ema": averages} if averages else training
