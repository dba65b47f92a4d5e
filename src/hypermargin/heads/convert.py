"""A head as `Weights` and back, with the state of its optimisers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hypermargin import checks
from hypermargin.common.optimizer_state import PER_ELEMENT, PER_ROW, goes_by_row
from hypermargin.family import create_head
from hypermargin.head import MarginHead
from hypermargin.heads.weights import Weights, by_class, centers_of
from hypermargin.optim import lay_out
from hypermargin.recipes import FAMILY

Optimizers = Optimizer | Sequence[Optimizer] | None


def as_list(optimizer: Optimizers) -> list[Optimizer]:
    """Return a list of the optimisers given, none, one or several; an error for anything else."""
    found = [] if optimizer is None else [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    for each in found:
        checks.instance("optimizer", each, Optimizer, "torch.optim.SGD(head.parameters(), lr=0.1), or several")
    return found


@torch.no_grad()
def weights_of(head: MarginHead, optimizer: Optimizers = None) -> Weights:
    """Copy what a head knows to the CPU, with the state of the optimiser (or several) for its parameters.

    Of a sharded head these are this rank's classes. `write` them on every rank: `read` joins the files, for any
    number of ranks.
    """
    checks.instance("head", head, MarginHead, "create_head(…)")
    rows = head.by_class()
    rest = dict(head.state_dict())
    found = {name: rest.pop(name) for name in rows}
    state: dict[str, Tensor] = {}
    given = as_list(optimizer)
    if given and not any(
        p is head.weight for each in given for group in each.param_groups for p in group["params"]
    ):
        kinds = ", ".join(type(each).__name__ for each in given)
        raise ValueError(f"optimizer ({kinds}) does not hold head.weight. Give the one that trains this head.")
    for name, parameter in head.named_parameters():
        for each in given:
            for key, value in each.state.get(parameter, {}).items():
                if value is not None:
                    place = state if goes_by_class(each, key, value, parameter) and name in rows else rest
                    place[f"optimizer.{name}.{key}"] = torch.as_tensor(value)
    found, rest, state = (
        {name: tensor.detach().cpu().clone() for name, tensor in each.items()} for each in (found, rest, state)
    )
    parts = {name: found.pop(name) for name in list(found) if "." in name}
    return Weights(**found, rest=rest, state=state, parts=parts, centers=centers_of(head))


def goes_by_class(optimizer: Optimizer, key: str, value: object, parameter: Tensor) -> bool:
    """Tell whether an entry of an optimiser's state has one number for each of the parameter's, or one for all."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return False
    if goes_by_row(key, value, parameter):
        return True
    raise ValueError(
        f"optimizer: the state {key!r} of {type(optimizer).__name__} does not go by class. Do it without "
        "optimizer=, and make a new optimiser for the head."
    )


@torch.no_grad()
def head_from(weights: Weights, name: str, **overrides: Any) -> MarginHead:
    """Make a head of the family with these rows; bias, margins, scale and schedules where the file has them.

        head_from(read("softmax_fc_gpu_0.pt"), "arcface", m=0.5, scale=64.0)

    Files of other libraries hold no scale and no margin: give those of the training, as in `create_head`. With
    `shard=Shard(…)`, every rank gets its slice of the rows. Heads that go by how frequent a class is need `counts`
    for files that do not hold what came of them.
    """
    rows = by_class(weights)
    settings = dict(overrides)
    settings.setdefault("bias", "shared" if "bias" in weights.rest else weights.bias is not None)
    counted = "counts" in overrides  # so margins and offsets are those of new counts
    if weights.offsets is not None and not counted:
        settings.setdefault("class_offsets", weights.offsets)
    if weights.m is not None and not counted:
        settings.setdefault("class_margins", _first_margins(weights.m, name, overrides))
    if weights.parts and not counted:
        settings.setdefault("class_counts", torch.ones(weights.classes))  # what came of theirs is in the parts
    settings.setdefault("dtype", weights.weight.dtype)
    settings.setdefault("centers", weights.centers)
    head = create_head(name, weights.dim, weights.classes, **settings)
    state = head.state_dict()
    held = head.layout.held(head.classes)
    given = {key: _of(weights, key, tensor, held) for key, tensor in rows.items()} | weights.rest
    # What was said here goes before what the file says.
    mine = {"scale": "scale", "class_margins": "m", "class_offsets": "offsets"}
    said = {key for setting, key in mine.items() if setting in overrides}
    if counted:
        told = {f"{part}.{key}" for part, module in head.parts_by_class().items() for key in module._first}
        said |= {"m", "offsets", *told} & state.keys()
    given = {k: t for k, t in given.items() if k not in said and not k.startswith("optimizer.")}
    for key, tensor in given.items():
        if key not in state or state[key].shape != tensor.shape:
            has = f"one of shape {tuple(state[key].shape)}" if key in state else "none"
            raise ValueError(
                f"the weights hold {key} of shape {tuple(tensor.shape)}, and {name} has {has}. "
                "Give the settings the head was trained with."
            )
    head.load_state_dict(state | given)
    return head


def _of(weights: Weights, name: str, rows: Tensor, held: range) -> Tensor:
    """Return the rows of the classes in `held`."""
    K = weights.per_class(name)
    return rows[held.start * K : held.stop * K]


def _first_margins(m: Tensor, name: str, overrides: dict[str, Any]) -> Tensor:
    """Margins by class to make a head with: learned ones may have left their domain, which is no error."""
    recipe = FAMILY.get(name)
    zero = None if recipe is None else overrides.get("margin", recipe.margin).zero
    learned = overrides.get("learn_margin", recipe is not None and recipe.learn_margin)
    if zero is None or not learned or m.shape[1:] != torch.tensor(zero).shape:
        return m
    return torch.tensor(zero).expand_as(m)


@torch.no_grad()
def restore_optimizer(optimizer: Optimizer | Sequence[Optimizer], head: MarginHead, weights: Weights) -> None:
    """Put the state that `weights_of(head, optimizer)` took into an optimiser of a head made by `head_from`.

    A sharded head takes its own classes out of the whole. Learning rate and the like are the optimiser's own, and
    so is the state of other parameters: for a network in the same optimiser, call its `load_state_dict` first.
    """
    checks.instance("head", head, MarginHead, "head_from(…)")
    rows = by_class(weights)
    held = head.layout.held(head.classes)
    found = {k: _of(weights, k, t, held) for k, t in rows.items() if k in weights.state}
    found |= {k: t for k, t in weights.rest.items() if k.startswith("optimizer.")}
    if not found:
        raise ValueError("weights hold no optimiser state: make them with weights_of(head, optimizer).")
    holders = {
        id(p): (each, group) for each in as_list(optimizer) for group in each.param_groups for p in group["params"]
    }
    parameters, new = dict(head.named_parameters()), []
    for name, tensor in found.items():
        owner, _, key = name.removeprefix("optimizer.").rpartition(".")
        parameter = parameters.get(owner)
        if parameter is None or id(parameter) not in holders:
            raise ValueError(f"weights hold {name}, but optimizer does not hold head.{owner}.")
        by_row = key in PER_ELEMENT or (key in PER_ROW and tensor.dim() > 0)
        if by_row and not goes_by_row(key, tensor, parameter):
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}, head.{owner} {tuple(parameter.shape)}. Are the weights "
                "those of this head?"
            )
        holder, group = holders[id(parameter)]
        # Adam counts its steps on the CPU, unless it does everything on the GPU.
        beside = by_row or group.get("capturable") or group.get("fused")
        new.append((holder, parameter, key, tensor.to(parameter.device if beside else "cpu", copy=True)))
    for holder, parameter, _, _ in new:
        holder.state[parameter] = {}
    for holder, parameter, key, tensor in new:
        holder.state[parameter][key] = tensor
    for each in as_list(optimizer):
        lay_out(each)
