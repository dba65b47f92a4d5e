"""Whether settings and weights belong together: what config.toml and run.json ask for, and what a checkpoint holds.

A folder whose files were changed, or mixed with another's, is refused with the field that does not fit, before
memory is taken for what its numbers ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hypermargin.common.optimizer_state import goes_by_row
from hypermargin.recipes import FAMILY
from hypermargin.training.checkpoint import Checkpoint
from hypermargin.training.config import Config
from hypermargin.training.models import create_model

MOST_SHOWN = 60  # characters of a table of options


def check_settings(saved: Checkpoint, config: Config, shape: tuple[int, ...], classes: int, *, own: bool) -> None:
    """Raise ValueError where the settings ask for another head or network; `own`: the network is the caller's."""
    weight = saved.weights("head").get("weight")
    if weight is None or weight.dim() != 2:
        raise ValueError("the checkpoint has no head")
    rows, columns = weight.shape
    own_centers = FAMILY[config.head].centers.count if config.head in FAMILY else 1
    centers = int(config.set.get("centers", own_centers))
    if columns != config.dim:
        raise ValueError(f"dim = {config.dim} (config.toml) does not fit the weights, which have dim = {columns}")
    if rows != classes * centers:
        per = f" with centers = {centers} each{' (set)' if 'centers' in config.set else ''}" if centers > 1 else ""
        raise ValueError(f"classes (run.json) lists {classes:,}{per}, and the head's weights have {rows:,} rows")
    if not own and ":" not in str(config.model):
        with torch.device("meta"):  # shapes alone
            network = create_model(str(config.model), shape, config.dim, **config.model_set)
        check_network(saved, network, config, shape)


def check_resumed(
    saved: Checkpoint,
    network: nn.Module,
    head: nn.Module,
    optimizer: torch.optim.Optimizer,
    config: Config,
    shape: tuple[int, ...],
) -> None:
    """Raise ValueError where training cannot go on from the checkpoint with what was made for it."""
    check_network(saved, network, config, shape)
    check_head(saved, head, config)
    check_optimizer(saved, optimizer, config)


def check_network(saved: Checkpoint, network: nn.Module, config: Config, shape: tuple[int, ...]) -> None:
    """Raise ValueError where the checkpoint's network is another."""
    differs = _difference(saved.weights("network"), network.state_dict())
    if differs:
        options = str(config.model_set)
        options = options if len(options) <= MOST_SHOWN else options[:MOST_SHOWN] + "…"
        raise ValueError(
            f"model = {config.model!r} with model_set = {options} (config.toml), for shape = {list(shape)} "
            f"(run.json), does not fit the weights: {differs}"
        )


def check_head(saved: Checkpoint, head: nn.Module, config: Config) -> None:
    """Raise ValueError where the checkpoint's head is another."""
    state = {name: tensor for name, tensor in head.state_dict().items() if name != "classes_held"}
    weights = {name: tensor for name, tensor in saved.weights("head").items() if name != "classes_held"}
    differs = _difference(weights, state)
    if differs:
        raise ValueError(
            f"head = {config.head!r} with its set, schedule, settings and sample_rate (config.toml) does not fit "
            f"the weights: {differs}"
        )


def check_optimizer(saved: Checkpoint, optimizer: torch.optim.Optimizer, config: Config) -> None:
    """Raise ValueError where the checkpoint's optimiser is another, or its state is not its parameters'."""
    what = f"optimizer = {config.optimizer!r} (config.toml) does not fit the checkpoint"
    found: Any = saved.training.get("optimizer")
    try:
        groups = [list(group["params"]) for group in found["param_groups"]]
        state = dict(found["state"])
        own = [group["params"] for group in optimizer.param_groups]
        if [len(group) for group in groups] != [len(group) for group in own]:
            raise ValueError(f"{what}: it has parameters in groups of {_sizes(groups)}, here are {_sizes(own)}")
        for name in ("betas", "momentum"):  # what only one of them has; other names come and go with torch
            if name in optimizer.param_groups[0] and name not in found["param_groups"][0]:
                raise ValueError(f"{what}: that has no {name}")
        for numbers, parameters in zip(groups, own, strict=True):
            for number, parameter in zip(numbers, parameters, strict=True):
                for name, tensor in state.get(number, {}).items():
                    if not isinstance(tensor, Tensor) or not tensor.dim():
                        continue
                    if tensor.shape != parameter.shape and not goes_by_row(name, tensor, parameter):
                        raise ValueError(
                            f"{what}: its {name} {number} has shape {tuple(tensor.shape)}, the parameter "
                            f"{tuple(parameter.shape)}"
                        )
    except (KeyError, TypeError, AttributeError, IndexError):
        raise ValueError(f"{what}: training.pt holds no state of an optimiser") from None


def _sizes(groups: list[Any]) -> str:
    return ", ".join(str(len(group)) for group in groups)


def _difference(saved: Mapping[str, Any], built: Mapping[str, Tensor]) -> str | None:
    for name in [*built, *(name for name in saved if name not in built)]:
        there, here = saved.get(name), built.get(name)
        if here is None:
            return f"the checkpoint has {name}, which the settings do not ask for"
        if not isinstance(there, Tensor):
            return f"the settings ask for {name}, which the checkpoint has not"
        if there.shape != here.shape:
            return (
                f"the settings ask for {name} of shape {tuple(here.shape)}, the checkpoint has {tuple(there.shape)}"
            )
    return None
