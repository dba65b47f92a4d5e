"""What belongs to the classes of a head, without its settings: as files hold it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hypermargin.family import create_head
from hypermargin.head import MarginHead


@dataclass
class Weights:
    """Rows, perhaps a bias and margins by class; `rest` is what does not go by class: scale, schedules.

    Everything in `hypermargin.life` that changes a head changes these too.
    """

    weight: Tensor  # (classes, dim)
    bias: Tensor | None = None  # (classes,)
    m: Tensor | None = None  # (classes,), or (classes, 3)
    rest: dict[str, Tensor] = field(default_factory=dict)
    format: str = "hypermargin"  # of the file they came from

    def __post_init__(self) -> None:
        # A rank of a sharded head may hold no class.
        sizes = self.weight.shape[1:] if "classes_held" in self.rest else self.weight.shape
        if self.weight.dim() != 2 or 0 in sizes:
            raise ValueError(
                f"weight must have shape (classes, dim), at least (1, 1); got {tuple(self.weight.shape)}."
            )
        if not self.weight.is_floating_point():
            raise TypeError(f"weight must be of a floating dtype; got {self.weight.dtype}.")
        for name, tensor in (("bias", self.bias), ("m", self.m)):
            if tensor is not None and (tensor.dim() == 0 or len(tensor) != self.classes):
                raise ValueError(f"{name} must have one row a class, {self.classes}; got {tuple(tensor.shape)}.")

    @property
    def classes(self) -> int:
        """How many."""
        return self.weight.shape[0]

    @property
    def dim(self) -> int:
        """Of the features."""
        return self.weight.shape[1]

    def entries(self) -> dict[str, Tensor]:
        """As a state_dict."""
        named = {"weight": self.weight, "bias": self.bias, "m": self.m}
        return {name: t for name, t in named.items() if t is not None} | self.rest


def by_class(head: MarginHead) -> dict[str, Tensor]:
    """The tensors of a head that have one row a class, by name."""
    rows = head.weight.shape[0]
    if head.shard is not None or rows != head.classes:
        raise ValueError(
            f"head is sharded and holds {rows} of {head.classes} classes. Save the state_dict of every rank, and "
            "change the files: life.read joins them."
        )
    found: dict[str, Tensor | None] = {"weight": head.weight, "bias": head.bias}
    if head.m is not None and head.m.dim() > isinstance(head.margin.m, tuple):
        found["m"] = head.m
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def set_classes(head: MarginHead, classes: int) -> None:
    """Let a head know how many it holds now."""
    head.classes = classes
    head.part = dataclasses.replace(head.part, classes=classes, start=0, stop=classes)


@torch.no_grad()
def weights_of(head: MarginHead) -> Weights:
    """A copy of what a head knows, on the CPU."""
    state = {name: tensor.detach().cpu().clone() for name, tensor in head.state_dict().items()}
    return Weights(**{name: state.pop(name) for name in by_class(head)}, rest=state)


@torch.no_grad()
def head_from(weights: Weights, name: str, **overrides: Any) -> MarginHead:
    """A head of the family with these rows; bias, margins, scale and schedules where the file has them.

        head_from(read("softmax_fc_gpu_0.pt"), "arcface", m=0.5, scale=64.0)

    Files of other libraries hold no scale and no margin: give those of the training, as in `create_head`.
    """
    settings = dict(overrides)
    settings.setdefault("bias", weights.bias is not None)
    if weights.m is not None:
        settings.setdefault("class_margins", weights.m)
    settings.setdefault("dtype", weights.weight.dtype)
    head = create_head(name, weights.dim, weights.classes, **settings)
    state = head.state_dict()
    given = {key: tensor for key, tensor in weights.entries().items() if key != "scale" or "scale" not in overrides}
    for key, tensor in given.items():
        if key not in state or state[key].shape != tensor.shape:
            has = f"one of shape {tuple(state[key].shape)}" if key in state else "none"
            raise ValueError(
                f"the weights hold {key} of shape {tuple(tensor.shape)}, and {name} has {has}. "
                "Give the settings the head was trained with."
            )
    head.load_state_dict(state | given)
    return head
