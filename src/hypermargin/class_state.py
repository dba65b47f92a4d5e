"""State with one row per class: it is cut over the ranks, saved, and moved along when classes change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from hypermargin.layout import Layout, places


class ByClass(NamedTuple):
    """What becomes of one number (or row) per class when classes are merged, and what a `new` class has."""

    merged: Literal["mean", "sum", "new"] = "mean"
    new: float = 0.0


class ClassState(nn.Module):
    """A part of a head that may remember something of every class. The base remembers nothing.

    A part of your own names its buffers with one row per class in `by_class_entries`, makes them in `hold`, and
    sets the next state in `advance` or `end_epoch`. A rank of a sharded head holds the rows of its own classes.
    """

    part: ClassVar[str] = ""  # what a head calls it
    by_class_entries: ClassVar[Mapping[str, ByClass]] = {}
    first_class = 0  # of those held here

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[str, Tensor] = {}  # what `reset_parameters` sets, on the CPU

    def hold(self, held: range, dim: int, counts: Tensor | None) -> None:
        """Make room for the classes `held` of features in `dim` dimensions.

        `counts` are the training samples of all classes, (C,) in float64, if the head was told.
        """
        self.first_class = held.start

    def _told(self, name: str, value: Tensor) -> None:
        """Register a buffer whose numbers come from outside, and which `reset_parameters` sets to them again."""
        self._first[name] = value
        self.register_buffer(name, value.clone())

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Begin anew with what the part was told."""
        for name, value in self._first.items():
            getattr(self, name).copy_(value)

    def by_class(self) -> dict[str, Tensor]:
        """Return the buffers with one row per class, by name."""
        return {name: getattr(self, name) for name in self.by_class_entries}

    def end_epoch(self, layout: Layout) -> None:
        """Settle what goes by epochs; all ranks call it together."""

    def advance(self) -> None:
        """Advance the state by one training step."""

    def places(self, labels: Tensor, classes: int) -> Tensor:
        """Return the rows of these classes among the `classes` held here; −1 for those that are not."""
        return places(labels, range(self.first_class, self.first_class + classes))


def known_entries(kind: type[ClassState] = ClassState) -> dict[str, ByClass]:
    """Return what has one row per class in the parts of any head, by its name in a head's state_dict."""
    found = {f"{kind.part}.{name}": entry for name, entry in kind.by_class_entries.items()}
    for each in kind.__subclasses__():
        found |= known_entries(each)
    return found


def add_rows(total: Tensor, rows: Tensor, x: Tensor) -> None:
    """Add x to these rows of a table, in place; several times the same row gives the same bits every time."""
    if total.is_cuda:  # sorts, where index_add_ adds in any order
        total.index_put_((rows,), x, accumulate=True)
    else:
        total.index_add_(0, rows, x)


def last_of_each(rows: Tensor, count: int) -> Tensor:
    """Return for each of `count` rows of a table the last place in `rows` that names it, −1 where none does."""
    place = torch.arange(len(rows), device=rows.device)
    found = torch.full((count,), -1, dtype=torch.int64, device=rows.device)
    return found.scatter_reduce_(0, rows.clamp(min=0), torch.where(rows < 0, -1, place), "amax")
