"""The part of a head that belongs to its classes, without its settings, as files hold it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hypermargin.head import MarginHead

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass
class Weights:
    """Rows, perhaps a bias, margins and offsets by class; `rest` is what does not go by class: scale, schedules.

    Everything in `hypermargin.heads` that changes a head changes these too. `parts` is what parts of the head
    remember of every class, such as "row_margin.weights" of KappaFace. `state` is that of an optimiser
    (`weights_of(head, optimizer)`), such as "optimizer.weight.momentum_buffer". Both move with the rows.
    """

    weight: Tensor  # (classes, dim)
    bias: Tensor | None = None  # (classes,)
    m: Tensor | None = None  # (classes,), or (classes, 3)
    rest: dict[str, Tensor] = field(default_factory=dict)
    format: str = "hypermargin"  # of the file they came from
    state: dict[str, Tensor] = field(default_factory=dict)  # (classes, …) each
    offsets: Tensor | None = None  # (classes,)
    parts: dict[str, Tensor] = field(default_factory=dict)  # (classes, …) each

    def __post_init__(self) -> None:
        # A rank of a sharded head may hold no class.
        sizes = self.weight.shape[1:] if "classes_held" in self.rest else self.weight.shape
        if self.weight.dim() != 2 or 0 in sizes:
            raise ValueError(
                f"weight must have shape (classes, dim), at least (1, 1); got {tuple(self.weight.shape)}."
            )
        for name, tensor in self.rows().items():
            if tensor.dtype not in DTYPES:
                allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
                raise TypeError(f"{name} must be of a floating dtype ({allowed}); got {tensor.dtype}.")
            if tensor.layout != torch.strided or tensor.is_meta:
                raise TypeError(f"{name} must be a plain tensor with values; got a sparse one or one without.")
            numbers = {"bias": (1,), "m": (1, 2), "offsets": (1,)}.get(name, (tensor.dim(),))
            if tensor.dim() not in numbers or len(tensor) != self.classes:
                raise ValueError(f"{name} must have one row per class, {self.classes}; got {tuple(tensor.shape)}.")
        held = self.rest.get("classes_held")
        if held is not None and (held.shape != (5,) or held[1] - held[0] != self.classes):
            raise ValueError(
                "classes_held must be first, end, classes, rank, ranks; from first to end as many as weight has, "
                f"{self.classes}; got {held.tolist()}."
            )

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.weight.shape[0]

    @property
    def dim(self) -> int:
        """The dimension of the features."""
        return self.weight.shape[1]

    def rows(self) -> dict[str, Tensor]:
        """Return what has one row per class, by name."""
        named = {"weight": self.weight, "bias": self.bias, "m": self.m, "offsets": self.offsets}
        return {name: tensor for name, tensor in named.items() if tensor is not None} | self.parts | self.state

    def put(self, rows: dict[str, Tensor]) -> None:
        """Put other tensors in place of `rows()`."""
        self.weight, self.bias, self.m = rows["weight"], rows.get("bias"), rows.get("m")
        self.offsets = rows.get("offsets")
        self.parts = {name: rows[name] for name in self.parts}
        self.state = {name: rows[name] for name in self.state}

    def entries(self) -> dict[str, Tensor]:
        """Return all tensors by name, as a state_dict has them."""
        return self.rows() | self.rest


def by_class(target: MarginHead | Weights) -> dict[str, Tensor]:
    """Return what has one row per class, by name; an error if not all classes are here."""
    if isinstance(target, Weights):
        if "classes_held" in target.rest:
            start, stop, classes, rank, world = target.rest["classes_held"].tolist()
            raise ValueError(
                f"these are the classes {start}:{stop} of {classes} (rank {rank} of {world}). Write "
                "them with heads.write on every rank; heads.read joins the files."
            )
        return target.rows()
    if not isinstance(target, MarginHead):
        raise TypeError(
            f"expected a MarginHead or heads.Weights; got {type(target).__name__}. heads.from_linear and "
            "heads.from_metric_learning convert what other libraries have."
        )
    refuse_centers(target)
    rows = target.by_class()
    if target.settings.shard is not None or len(rows["weight"]) != target.classes:
        raise ValueError(
            f"head is sharded and holds {len(rows['weight'])} of {target.classes} classes. Write it with "
            "heads.write on every rank, and change the files: heads.read joins them."
        )
    return rows


def refuse_centers(head: MarginHead) -> None:
    """Raise if a class has several rows: `Weights` and files would take them for as many classes."""
    if head.settings.centers > 1:
        raise ValueError(
            f"head has {head.settings.centers} centers per class; classes can be changed, cut, joined and written "
            "with one only. Keep head.state_dict() instead."
        )


def set_classes(head: MarginHead, rows: dict[str, Tensor]) -> None:
    """Tell a head how many classes it holds now, and what `reset_parameters` sets their m and offsets to."""
    head.settings = dataclasses.replace(head.settings, classes=len(rows["weight"]))
    for prefix, first in (("", head._first), *((f"{k}.", p._first) for k, p in head.parts_by_class().items())):
        for name in first:
            if prefix + name in rows:
                first[name] = rows[prefix + name].detach().cpu().clone()
