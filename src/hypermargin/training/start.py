"""Where a run starts from, if not from random weights: another's network, and its class vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from hypermargin.common.tensor_files import read_state
from hypermargin.head import MarginHead
from hypermargin.training.run import About, find


def first_weights(network: nn.Module, init: Path) -> dict[str, Tensor]:
    """Read the network's weights of a run, or of a file."""
    if init.is_file():
        return part_for(network, read_state(init))
    if not init.exists():
        raise ValueError(f"init: there is no run and no file {init}.")
    return find(init, "best").weights("network")


def part_for(network: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return those tensors of a file that are the network's, whatever module they were in; all, where none fit."""
    own = list(network.state_dict())
    ends = [name.removesuffix(own[0]) for name in tensors if own and name.endswith(own[0])]
    begin = next((p for p in ends if all(p + name in tensors for name in own)), None)
    return tensors if begin is None else {name: tensors[begin + name] for name in own}


@torch.no_grad()
def start_head_from(head: MarginHead, run: Path, classes: Sequence[str]) -> None:
    """Copy the class vectors of a run with the same classes; of a sharded head, those held here."""
    if run.is_file():
        raise ValueError(f"init_head: {run} is a file; class vectors come with a run. Leave init_head out.")
    if tuple(About.read(run).classes) != tuple(classes):
        raise ValueError(
            f"init_head: {run} was trained on other classes. Take the same data, split and seed, or leave it out."
        )
    weight = find(run, "best").weights("head")["weight"]
    centers, held = head.settings.centers.count, head.layout.held(head.classes)
    if weight.shape != (head.classes * centers, head.dim):
        raise ValueError(
            f"init_head: the class vectors of {run} have shape {tuple(weight.shape)}, here they have "
            f"{(head.classes * centers, head.dim)}. Use the same dim and centers."
        )
    head.weight.copy_(weight[held.start * centers : held.stop * centers])


def start_from(network: nn.Module, weights: dict[str, Tensor], where: str) -> None:
    """Load a network's weights; an error names what does not fit."""
    own = network.state_dict()
    wrong = [k for k in own if k not in weights or weights[k].shape != own[k].shape] + [
        k for k in weights if k not in own
    ]
    if wrong:
        raise ValueError(
            f"init: the network of {where} does not fit: {len(wrong)} tensors differ, first {wrong[0]!r}. "
            "Use the same model, dim, size and color."
        )
    network.load_state_dict(weights)
