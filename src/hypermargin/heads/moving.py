"""What becomes of every class: its rows in a head or in `Weights`, and its state in the head's optimisers."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hypermargin.class_state import ByClass, known_entries
from hypermargin.head import MarginHead
from hypermargin.heads.convert import Optimizers, as_list, goes_by_class
from hypermargin.heads.weights import Weights, by_class, centers_of, of_centers, set_classes
from hypermargin.scales import adacos_scale


@dataclass(frozen=True)
class Plan:
    """What becomes of the classes: `new_ids[old]` is the new id of a class, −1 if it goes."""

    new_ids: Tensor
    classes: int  # afterwards
    members: Tensor | None = None  # the old ids that are merged
    shares: Tensor | None = None  # theirs in the mean; they sum to 1 in every group, float64

    def rows(
        self, old: Tensor, *, directions: bool = False, fill: float = 0.0, merged: str = "mean", per_class: int = 1
    ) -> Tensor:
        """Return the new tensor: kept rows to the bit, others `fill`.

        Merged rows are means (of direction and length), or as `merged` says a "sum", or like a "new" one.
        `per_class` rows, one class after the other, belong together.
        """
        if per_class > 1:
            together = old.reshape(-1, per_class, *old.shape[1:])
            return self.rows(together, fill=fill, merged=merged).flatten(0, 1)
        new = old.new_full((self.classes, *old.shape[1:]), fill)
        kept = (self.new_ids >= 0).nonzero()[:, 0]
        new[self.new_ids[kept].to(old.device)] = old[kept.to(old.device)]
        if self.members is not None and self.shares is not None:
            targets, group = torch.unique(self.new_ids[self.members], return_inverse=True)
            rows = old[self.members.to(old.device)].cpu()
            if merged == "new":
                found = rows.new_full((len(targets), *rows.shape[1:]), fill)
            elif merged == "sum":
                found = rows.new_zeros(len(targets), *rows.shape[1:]).index_add_(0, group, rows)
            else:
                found = self._means(rows, group, len(targets), directions)
            new[targets.to(old.device)] = found.to(old)
        return new

    def _means(self, rows: Tensor, group: Tensor, groups: int, directions: bool) -> Tensor:
        assert self.members is not None
        assert self.shares is not None
        first = torch.empty(groups, dtype=torch.int64)
        first[group.flip(0)] = torch.arange(len(group)).flip(0)
        share = self.shares.reshape(-1, *[1] * (rows.dim() - 1))

        def mean(values: Tensor) -> Tensor:
            return values.new_zeros(groups, *values.shape[1:]).index_add_(0, group, values * share)

        wide = rows.double()
        if directions:
            lengths = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
            middle = mean(wide / lengths.clamp(min=1e-300))
            size = torch.linalg.vector_norm(middle, dim=1, keepdim=True)
            # Rows that cancel leave their rounding.
            lost = (size[:, 0] < 8 * torch.finfo(rows.dtype).eps) & (mean(lengths)[:, 0] > 0)
            if bool(lost.any()):
                ids = self.members[group == lost.nonzero()[0, 0]].tolist()
                raise ValueError(f"classes {ids} point in opposite directions and have no mean. Leave one out.")
            found: Tensor = middle / size.clamp(min=1e-300) * mean(lengths)
        else:
            found = mean(wide)
        # Equal rows stay what they are, to the bit.
        differs = (rows != rows[first[group]]).reshape(len(rows), -1).any(1)
        same = torch.zeros(groups, dtype=torch.int64).index_add_(0, group, differs.long()) == 0
        found[same] = wide[first[same]]
        if not bool(found.isfinite().all()):
            bad = (~found.isfinite()).reshape(groups, -1).any(1).nonzero()[0, 0]
            raise ValueError(f"classes {self.members[group == bad].tolist()} hold NaN or inf. Remove those first.")
        return found


def removing(classes: int, gone: Tensor) -> Plan:
    """Plan to remove the classes `gone`; the others move up."""
    stays = torch.ones(classes, dtype=torch.bool)
    stays[gone] = False
    new_ids = torch.where(stays, stays.long().cumsum(0) - 1, -1)
    return Plan(new_ids, int(stays.sum()))


def check_ids(name: str, ids: Iterable[object] | Tensor, classes: int) -> Tensor:
    """Return class ids as a tensor; an error if one is no class or comes twice."""
    values = ids.tolist() if isinstance(ids, Tensor) else ids
    if not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list of class ids; got {values!r}. Put it in brackets.")
    found = torch.tensor([_id(name, value, classes) for value in values], dtype=torch.int64)
    kinds, counts = torch.unique(found, return_counts=True)
    if bool((counts > 1).any()):
        raise ValueError(f"{name} must name a class once; got {int(kinds[counts > 1][0])} twice or more.")
    return found


def _id(name: str, value: Any, classes: int) -> int:
    try:
        found = operator.index(value)
    except TypeError:
        found = None
    # A mask of booleans is no list of ids, and a float no id, be they numbers or tensors of one number.
    if found is None or getattr(value, "dtype", type(value)) in (bool, torch.bool):
        raise TypeError(f"{name} must be class ids; got {value!r} ({type(value).__name__}).")
    if not 0 <= found < classes:
        raise ValueError(f"{name} must lie in [0, {classes}); got {found}. Classes start at 0.")
    return found


class Move(NamedTuple):
    """A parameter's place in an optimiser, and what shall be there."""

    optimizer: Optimizer
    params: list[Tensor]
    place: int
    new: nn.Parameter
    state: dict[str, Any]


@torch.no_grad()
def install(
    target: MarginHead | Weights, plan: Plan, added: dict[str, Tensor | None], optimizer: Optimizers
) -> Tensor:
    """Apply the plan; `added` are the rows at its end. All is made first, so an error changes nothing."""
    held = [type(term).__name__ for term in getattr(target, "row_terms", ()) if hasattr(term, "classes")]
    if held:
        raise ValueError(
            f"{held[0]} holds something for each class, which does not move with the weights. Change "
            "weights_of(head) and make a head from them with a new term."
        )
    if isinstance(target, Weights) and optimizer is not None:
        raise ValueError("optimizer belongs to a head; these are weights without one.")
    old = by_class(target)
    new: dict[str, Tensor] = {}
    entries = _entries(target)
    for name, tensor in old.items():
        entry = entries.get(name, ByClass())
        rows = plan.rows(
            tensor.detach(), directions=name == "weight", fill=entry.new, merged=entry.merged,
            per_class=centers_of(target) if of_centers(name) else 1,
        )  # fmt: skip
        extra = added.get(name)
        if extra is not None:
            rows[len(tensor) :] = extra.to(rows)
        new[name] = nn.Parameter(rows, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else rows
    if isinstance(target, Weights):
        target.put(new)
        return plan.new_ids
    for move in _moves(target, old, new, plan, optimizer):
        move.optimizer.state.pop(move.params[move.place], None)
        move.params[move.place] = move.new
        if move.state:
            move.optimizer.state[move.new] = move.state
    _scale(target, plan.classes)
    set_classes(target, new)
    for name, tensor in new.items():
        part, _, own = name.rpartition(".")
        setattr(target.get_submodule(part), own, tensor)
    return plan.new_ids


def _entries(target: MarginHead | Weights) -> dict[str, ByClass]:
    """Return how what parts remember of every class is taken over, by name."""
    if isinstance(target, Weights):
        return known_entries()
    parts = target.parts_by_class().items()
    return {f"{part}.{name}": entry for part, module in parts for name, entry in module.by_class_entries.items()}


def _moves(
    head: MarginHead, old: dict[str, Tensor], new: dict[str, Tensor], plan: Plan, optimizer: Optimizers
) -> list[Move]:
    given = as_list(optimizer)
    if head.fused_optimizer is not None and head.fused_optimizer not in given:
        given.append(head.fused_optimizer)  # the head knows it, so it cannot be forgotten
    moves = []
    for each in given:
        found = [
            Move(each, group["params"], place, tensor, _state(each, group, old[name], plan, head))
            for group in each.param_groups
            for place, param in enumerate(group["params"])
            for name, tensor in new.items()
            if param is old[name] and isinstance(tensor, nn.Parameter)
        ]
        if not found:
            raise ValueError(
                f"optimizer ({type(each).__name__}) does not hold head.weight. Give the one that trains this head."
            )
        moves += found
    if given and head.weight.requires_grad and all(move.new is not new["weight"] for move in moves):
        raise ValueError(
            f"optimizer ({', '.join(type(each).__name__ for each in given)}) does not hold head.weight. Give the "
            "one that does as well: it would go on with the old rows."
        )
    return moves


def _state(
    optimizer: Optimizer, group: dict[str, Any], param: Tensor, plan: Plan, head: MarginHead
) -> dict[str, Any]:
    """Return the state of the new rows: kept, means of merged ones, 0 for new ones (Adagrad: its first sum)."""
    new = {}
    for key, value in optimizer.state.get(param, {}).items():
        if goes_by_class(optimizer, key, value, param):
            fill = group.get("initial_accumulator_value", 0.0) if key == "sum" else 0.0
            per_class = centers_of(head) if param is head.weight else 1
            value = plan.rows(value, fill=fill, per_class=per_class)
        new[key] = value
    return new


def _scale(head: MarginHead, classes: int) -> None:
    """Set AdaCos's scale anew, which goes by the number of classes."""
    if head.settings.scale == "adacos":
        head._first["scale"] = torch.tensor(adacos_scale(classes), device="cpu")
        head.scale.copy_(head._first["scale"])
