"""A layout around another one: what `PartialFC` and a view of the classes change of a step, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from hypermargin.centers import Centers
from hypermargin.layout import ClassTable, Layout, Share

if TYPE_CHECKING:
    from hypermargin.batch import Batch
    from hypermargin.rules import Aggregate


class Wrapped(Layout):
    """The layout of one step: another one, `inner`, with something changed. This base changes nothing."""

    def __init__(self, inner: Layout) -> None:
        self.inner = inner
        self.rank, self.world, self.covers_all = inner.rank, inner.world, inner.covers_all

    def classes(self, here: int) -> int:
        """Return the number of all classes."""
        return self.inner.classes(here)

    def held(self, classes: int) -> range:
        """Return which classes this process holds."""
        return self.inner.held(classes)

    def busiest(self, here: int) -> int:
        """Return about how many classes the busiest process has in a step."""
        return self.inner.busiest(here)

    def check_weight(self, weight: Tensor, centers: Centers) -> None:
        """Raise unless the weight has the rows of the classes that this process holds."""
        self.inner.check_weight(weight, centers)

    def gather(self, check: Callable[[], Batch], asked: str, weight: Tensor) -> Batch:
        """Return the batch that the inner layout gathers."""
        return self.inner.gather(check, asked, weight)

    def table(
        self, weight: Tensor, batch: Batch, *, unit: bool, bias: Tensor | None, centers: Centers
    ) -> ClassTable:
        """Return the rows of the inner layout."""
        return self.inner.table(weight, batch, unit=unit, bias=bias, centers=centers)

    def combine(
        self, table: ClassTable, aggregate: Aggregate, share: Share, bound: float | Tensor | None = None
    ) -> Share:
        """Return the shares added up by the inner layout."""
        return self.inner.combine(table, aggregate, share, bound)

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over all processes."""
        return self.inner.sum(x)

    def collected(self, x: Tensor) -> Tensor:
        """Return the numbers (N, k) of all processes side by side, without gradient."""
        return self.inner.collected(x)

    def mean(self, by_class: Tensor) -> Tensor:
        """Return the mean of a table by class, over all classes."""
        return self.inner.mean(by_class)

    def largest(self, x: Tensor) -> Tensor:
        """Return the largest `x` over all processes, without gradient."""
        return self.inner.largest(x)

    def shared(self, x: Tensor) -> Tensor:
        """Return a parameter that all processes hold alike, for use in this process's share of the work."""
        return self.inner.shared(x)

    def fixed(self, scale: Tensor) -> Tensor | float:
        """Return a scale that is not learned as it is best used here."""
        return self.inner.fixed(scale)

    def own(self, by_row: Tensor, batch: Batch) -> Tensor:
        """Return the numbers of the rows that this process brought."""
        return self.inner.own(by_row, batch)

    def columns(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return logits (N, C) of own rows against all classes."""
        return self.inner.columns(logits, batch)

    def refuse_ddp(self, weight: Tensor) -> None:
        """Raise inside a DistributedDataParallel that would corrupt the weight."""
        self.inner.refuse_ddp(weight)
