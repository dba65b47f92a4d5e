"""Variational prototypes: Deng et al. 2021 (CVPR, VPL), class rows mixed with the features that were last seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from hypermargin.class_state import ByClass, last_of_each
from hypermargin.fields import number
from hypermargin.layout import ClassTable
from hypermargin.numerics import snapshot, unit, wide_dtype, widen
from hypermargin.views._base import View, ViewState, register

if TYPE_CHECKING:
    from hypermargin.batch import Batch
    from hypermargin.centers import Centers
    from hypermargin.rules import Rule

NEVER = 2.0**24  # steps ago; float32 counts no further


@register("vpl")
@dataclass(frozen=True)
class VariationalPrototypes(View):
    """In training the row of a class is partly its last feature:

        w̃_j = norm((1 − λ_j)·ŵ_j + λ_j·q_j)

    q_j is the direction of the last feature of class j, without gradient. λ_j is `share` from step `after` + 1 on
    for classes seen at most `within` steps ago, else 0. Rivals that are not in the batch are so compared as samples
    are. With mixup a row counts for its first label.
    """

    share: float = number(0.15, 0.0, 0.5, help="λ: how much of a row is the last feature; 0 is none.")
    within: float = number(200.0, 1.0, help="Steps after which a feature is too old.")
    after: float = number(8000.0, 0.0, help="Steps before rows are mixed: features have to mean something.")
    formula = "norm((1 − λ)ŵ + λq)"

    def state(self) -> ViewState:
        """Return the memory of last features."""
        return LastFeatures(self)

    def check(self, rule: Rule, unit_weight: bool, centers: Centers) -> None:
        """Require unit rows, one per class."""
        if not unit_weight:
            raise ValueError(f"view={self} mixes directions, so it needs unit_weight=True.")
        if centers.count > 1:
            raise ValueError(f"view={self} needs centers=1: it has one feature per class; got {centers.count}.")


class LastFeatures(ViewState):
    """The last feature of every class as a unit row, how many steps ago it was seen, and the number of steps."""

    by_class_entries: ClassVar[dict[str, ByClass]] = {"last": ByClass("new"), "ago": ByClass("new", NEVER)}
    last: Tensor
    ago: Tensor
    step: Tensor

    def __init__(self, view: VariationalPrototypes) -> None:
        super().__init__()
        self.view = view
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self._next: tuple[Tensor, Tensor] | None = None

    def hold(self, held: range, dim: int, counts: Tensor | None) -> None:
        """Make room for these classes, of which nothing was seen."""
        super().hold(held, dim, counts)
        self.register_buffer("last", torch.zeros(len(held), dim))
        self.register_buffer("ago", torch.full((len(held),), NEVER))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Forget everything."""
        self.step.zero_()
        self.last.zero_()
        self.ago.fill_(NEVER)

    def forward(self, table: ClassTable, batch: Batch) -> ClassTable:
        """Return the mixed rows, which the backend normalises; in evaluation the rows as they are."""
        if not self.training:
            return table
        dtype, view = wide_dtype(batch.features, table.weight), self.view
        if len(self.last):
            self._next = self.places(batch.y[:, 0], len(self.last)), unit(batch.clean(dtype).detach())
        recent = (snapshot(self.ago) < view.within) & (snapshot(self.step) >= view.after)
        share = table.by_row(view.share * recent.to(dtype)).unsqueeze(1)
        last = table.by_row(snapshot(self.last)).to(dtype)
        mixed = (1 - share) * unit(widen(table.weight, dtype)) + share * last
        return table.with_rows(mixed, table.unit, table.bias)

    @torch.no_grad()
    def advance(self) -> None:
        """Keep the features of the last training forward; of several of a class, the last row's."""
        self.step += 1
        self.ago.add_(1).clamp_(max=NEVER)
        if self._next is None:
            return
        at, x = self._next
        at = at.masked_fill(~x.isfinite().all(1) | ~(x != 0).any(1), -1)
        newest = last_of_each(at, len(self.last))
        self.ago.masked_fill_(newest >= 0, 0.0)
        # Every row is written, those that change nothing to class 0: the same value each time, so in any order.
        at = at.clamp(min=0)
        place = newest[at].unsqueeze(1)
        new = x.to(self.last.dtype)[place.squeeze(1).clamp(min=0)]
        self.last.index_copy_(0, at, torch.where(place >= 0, new, self.last[at]))
        self._next = None
