"""The base class of views, which are what the loss takes for the rows of the classes, and their registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from hypermargin.centers import Centers
from hypermargin.class_state import ClassState
from hypermargin.fields import check_fields
from hypermargin.layout import ClassTable, Layout
from hypermargin.registry import Registry
from hypermargin.wrapped import Wrapped

if TYPE_CHECKING:
    from hypermargin.batch import Batch
    from hypermargin.rules import Rule


@dataclass(frozen=True)
class View:
    """What the loss takes for the class rows and their bias; the base takes them as they are.

    `logits`, `scores` and everything else at inference see the rows themselves. A view is a frozen dataclass of
    numbers. Subclass, decorate with `@register("name")`, and return from `state` a module that makes the rows: it
    is given the `ClassTable` of the step, whatever layout it came from, and returns another. So the rows exist as a
    tensor of their own beside the weight: C×d numbers, the sample's alone with PartialFC, the slice's with Shard.
    """

    name: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    is_identity: ClassVar[bool] = True  # set by __init_subclass__

    def __init_subclass__(cls) -> None:
        cls.is_identity = cls.state is View.state

    def state(self) -> ViewState:
        """Return the module that makes the rows, with what it remembers."""
        return ViewState()

    def check(self, rule: Rule, unit_weight: bool, centers: Centers) -> None:
        """Raise unless the view goes with these settings of a head."""

    def __post_init__(self) -> None:
        check_fields(self)


class ViewState(ClassState):
    """Makes the rows of a step. The base returns the table it is given.

    As with `RowMargin`, `forward` computes the next state without storing it, and `advance`, called in training
    only and after the loss was computed, stores it.
    """

    part = "view_state"

    def forward(self, table: ClassTable, batch: Batch) -> ClassTable:
        """Return the table that the loss is computed against."""
        return table


class Viewed(Wrapped):
    """The layout of one step whose rows go through a view: around any other layout, sampled or sharded."""

    def __init__(self, inner: Layout, view: ViewState) -> None:
        super().__init__(inner)
        self.view = view

    def table(
        self, weight: Tensor, batch: Batch, *, unit: bool, bias: Tensor | None, centers: Centers
    ) -> ClassTable:
        """Return the inner layout's rows as the view has them."""
        found: ClassTable = self.view(self.inner.table(weight, batch, unit=unit, bias=bias, centers=centers), batch)
        return found


AS_THEY_ARE = View()

VIEWS = Registry[View]("view")
register, names, get = VIEWS.register, VIEWS.names, VIEWS.get
