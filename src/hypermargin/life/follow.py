"""Put the changed tensors into a head, and let its optimisers follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hypermargin.advise import adacos_scale, smallest_scale
from hypermargin.head import MarginHead
from hypermargin.life.plan import Plan
from hypermargin.life.weights import Weights, by_class, set_classes

Optimizers = Optimizer | Sequence[Optimizer] | None
# State with a number for each number of the weight that begins at 0, so that 0 is right for a new class.
BY_ELEMENT = {
    "momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "square_avg", "grad_avg", "acc_delta",
    "sum",
}  # fmt: skip


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
    if isinstance(target, Weights):
        if optimizer is not None:
            raise ValueError("optimizer belongs to a head; these are weights without one.")
        old = {name: tensor for name in ("weight", "bias", "m") if (tensor := getattr(target, name)) is not None}
    else:
        old = by_class(target)
    new: dict[str, Tensor] = {}
    for name, tensor in old.items():
        rows = plan.rows(tensor.detach(), directions=name == "weight")
        extra = added.get(name)
        if extra is not None:
            rows[len(tensor) :] = extra.to(rows)
        new[name] = nn.Parameter(rows, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else rows
    if isinstance(target, MarginHead):
        for move in _moves(target, old, new, plan, optimizer):
            move.optimizer.state.pop(move.params[move.place], None)
            move.params[move.place] = move.new
            if move.state:
                move.optimizer.state[move.new] = move.state
        _scale(target, plan.classes)
        set_classes(target, plan.classes)
    for name, tensor in new.items():
        setattr(target, name, tensor)
    return plan.new_ids


def _moves(
    head: MarginHead, old: dict[str, Tensor], new: dict[str, Tensor], plan: Plan, optimizer: Optimizers
) -> list[Move]:
    given = [] if optimizer is None else [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    if head.fused_optimizer is not None and head.fused_optimizer not in given:
        given.append(head.fused_optimizer)  # the head knows it, so it cannot be forgotten
    moves = []
    for each in given:
        found = [
            Move(each, group["params"], place, tensor, _state(each, old[name], plan))
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
    return moves


def _state(optimizer: Optimizer, param: Tensor, plan: Plan) -> dict[str, Any]:
    """Rows of kept classes, 0 for new ones, means for merged ones."""
    new = {}
    for key, value in optimizer.state.get(param, {}).items():
        if key in BY_ELEMENT and isinstance(value, Tensor) and value.shape == param.shape:
            new[key] = plan.rows(value)
        elif not isinstance(value, Tensor) or value.dim() == 0:
            new[key] = value
        else:
            raise ValueError(
                f"optimizer: the state {key!r} of {type(optimizer).__name__} does not go by class. Change the head "
                "without optimizer=, and make a new optimiser for it."
            )
    return new


def _scale(head: MarginHead, classes: int) -> None:
    """What a head sets by its number of classes it sets again."""
    if head.scale_mode == "adacos":
        head.scale.fill_(adacos_scale(classes))
    if head.learn_scale and head.classes > 1 and head.scale_floor == smallest_scale(head.classes):
        head.scale_floor = smallest_scale(classes) if classes > 1 else 1.0
