"""The part of a head that belongs to its classes, without its settings, as files hold it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.head import MarginHead

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass
class Weights:
    """Rows, perhaps a bias, margins and offsets by class; `rest` is what does not go by class: scale, schedules.

    Everything in `hypermargin.heads` that changes a head changes these too. `parts` is what parts of the head
    remember of every class, such as "row_margin.weights" of KappaFace. `state` is that of an optimiser
    (`weights_of(head, optimizer)`), such as "optimizer.weight.momentum_buffer". Both move with the rows. With
    several `centers` a class has so many rows in `weight` and its state, one class after the other.
    """

    weight: Tensor  # (classes·centers, dim)
    bias: Tensor | None = None  # (classes,)
    m: Tensor | None = None  # (classes,), or (classes, 3)
    rest: dict[str, Tensor] = field(default_factory=dict)
    format: str = "hypermargin"  # of the file they came from
    state: dict[str, Tensor] = field(default_factory=dict)  # (classes, …) each
    offsets: Tensor | None = None  # (classes,)
    parts: dict[str, Tensor] = field(default_factory=dict)  # (classes, …) each
    centers: int = 1

    def __post_init__(self) -> None:
        # A rank of a sharded head may hold no class.
        sizes = self.weight.shape[1:] if "classes_held" in self.rest else self.weight.shape
        if self.weight.dim() != 2 or 0 in sizes:
            raise ValueError(
                f"weight must have shape (classes, dim), at least (1, 1); got {tuple(self.weight.shape)}."
            )
        checks.count("centers", self.centers, 1, checks.MOST_CENTERS)
        if len(self.weight) % self.centers:
            raise ValueError(
                f"weight must have {self.centers} rows per class, as centers={self.centers} says; got "
                f"{len(self.weight)} rows."
            )
        for name, tensor in self.rows().items():
            if tensor.dtype not in DTYPES:
                allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
                raise TypeError(f"{name} must be of a floating dtype ({allowed}); got {tensor.dtype}.")
            if tensor.layout != torch.strided or tensor.is_meta:
                raise TypeError(f"{name} must be a plain tensor with values; got a sparse one or one without.")
            numbers = {"bias": (1,), "m": (1, 2), "offsets": (1,)}.get(name, (tensor.dim(),))
            if tensor.dim() not in numbers or len(tensor) != self.classes * self.per_class(name):
                hint = " If a class has several rows in weight, say centers=." if self.centers == 1 else ""
                raise ValueError(
                    f"{name} must have one row per class, {self.classes}; got {tuple(tensor.shape)}.{hint}"
                )
        held = self.rest.get("classes_held")
        if held is not None and (held.shape != (5,) or held[1] - held[0] != self.classes):
            raise ValueError(
                "classes_held must be first, end, classes, rank, ranks; from first to end as many as weight has, "
                f"{self.classes}; got {held.tolist()}."
            )

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.weight.shape[0] // self.centers

    @property
    def dim(self) -> int:
        """The dimension of the features."""
        return self.weight.shape[1]

    def per_class(self, name: str) -> int:
        """Return how many rows of a class there are in what is called so."""
        return self.centers if of_centers(name) else 1

    def rows(self) -> dict[str, Tensor]:
        """Return what has one row per class, or one per center, by name."""
        named = {"weight": self.weight, "bias": self.bias, "m": self.m, "offsets": self.offsets}
        return {name: tensor for name, tensor in named.items() if tensor is not None} | self.parts | self.state

    def put(self, rows: dict[str, Tensor]) -> None:
        """Put other tensors in place of `rows()`."""
        self.weight, self.bias, self.m = rows["weight"], rows.get("bias"), rows.get("m")
        self.offsets = rows.get("offsets")
        self.parts = {name: rows[name] for name in self.parts}
        self.state = {name: rows[name] for name in self.state}

    def entries(self) -> dict[str, Tensor]:
        """Return all tensors by name, as a state_dict has them, and how many centers a class has if several."""
        several = {"centers": torch.tensor(self.centers)} if self.centers > 1 else {}
        return self.rows() | self.rest | several


def of_centers(name: str) -> bool:
    """Tell whether what is called so has one row per center of a class."""
    return name == "weight" or name.startswith("optimizer.weight.")


def by_class(target: MarginHead | Weights) -> dict[str, Tensor]:
    """Return what has one row per class, or center, by name; an error if not all classes are here."""
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
    rows = target.by_class()
    held = len(rows["weight"]) // centers_of(target)
    if target.settings.shard is not None or held != target.classes:
        raise ValueError(
            f"head is sharded and holds {held} of {target.classes} classes. Write it with "
            "heads.write on every rank, and change the files: heads.read joins them."
        )
    return rows


def centers_of(target: MarginHead | Weights) -> int:
    """Return how many centers a class has."""
    return target.centers if isinstance(target, Weights) else target.settings.centers.count


def classes_of(target: MarginHead | Weights) -> int:
    """Return the number of classes; an error if not all are here."""
    return len(by_class(target)["weight"]) // centers_of(target)


def refuse_centers(target: MarginHead | Weights, why: str) -> None:
    """Raise if a class has several centers, where that has no meaning; `why` says so."""
    if centers_of(target) > 1:
        raise ValueError(
            f"a class has {centers_of(target)} centers here, and {why}. For a head with one per class see "
            "heads.dominant_centers (hypermargin head clean)."
        )


def set_classes(head: MarginHead, rows: dict[str, Tensor]) -> None:
    """Tell a head how many classes it holds now, and what `reset_parameters` sets their m and offsets to."""
    head.settings = dataclasses.replace(head.settings, classes=len(rows["weight"]) // centers_of(head))
    for prefix, first in (("", head._first), *((f"{k}.", p._first) for k, p in head.parts_by_class().items())):
        for name in first:
            if prefix + name in rows:
                first[name] = rows[prefix + name].detach().cpu().clone()
