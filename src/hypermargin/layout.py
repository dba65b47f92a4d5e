"""Where the classes live. `WHOLE`, the default, has all of them here; `hypermargin.parallel` has the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hypermargin.numerics import wide_dtype, widen

if TYPE_CHECKING:
    from hypermargin.backends import Backend, Rivals
    from hypermargin.batch import Batch
    from hypermargin.rules import Aggregate, RuleAtRows


class ClassTable(NamedTuple):
    """The class rows that a call is computed against, and where its labels are among them.

    A class has K rows, its centres, one after the other; K is 1 unless a head says otherwise. A batch has L
    labels per row, 2 with mixup and else 1.
    """

    weight: Tensor  # (C·K, d)
    unit: bool  # w̃ = W/|W|, or W as it is
    bias: Tensor | None  # (C·K,)  b_j: bias, offset and a sample's correction together
    local: Tensor  # (N, L·K)  rows of the labels, the K of one label side by side
    inside: Tensor | None = None  # (N, L·K)  where `local` is valid; None: everywhere
    centres: int = 1  # K
    m: Tensor | None = None  # (C·K, …)  margins by class
    is_empty: bool = False  # no class is here: the one row is zero, and no label names it
    raised: float = 0.0  # how much a sample's correction raises the bound on the logits

    def of_labels(self, by_class: Tensor) -> Tensor:
        """Return what a table by class says of each label, (N, L, …); any row's where the label is not here."""
        first = self.local[:, :: self.centres]
        if self.inside is not None:
            first = first.masked_fill(~self.inside[:, :: self.centres], 0)
        return look_up(by_class, first)

    def margins(self, m: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """Return the m of each label, where margins go by class, else the m that was given."""
        m = m if self.m is None else self.of_labels(self.m)
        return None if m is None else widen(m, dtype)

    def own(self, by_label: Tensor) -> Tensor:
        """Return numbers by label, (N, L), with zeros where the label is not here."""
        return by_label if self.inside is None else by_label.masked_fill(~self.inside[:, :: self.centres], 0.0)

    def label_rows(self, weight: Tensor) -> Tensor:
        """Return the rows of the labels, (N, L·K, d); any row where the label is not here."""
        return look_up(weight, self.local if self.inside is None else self.local.masked_fill(~self.inside, 0))

    def rivals(self, backend: Backend, f: Tensor, rule: RuleAtRows, **wanted: bool) -> Rivals:
        """Return what a backend finds in this table, less the row of zeros that stands for no class at all."""
        found = backend(f, self, rule, **wanted)
        if not self.is_empty:
            return found
        return found._replace(
            rivals=torch.full_like(found.rivals, rule.rule.aggregate.nothing),
            hardest=None if found.hardest is None else torch.full_like(found.hardest, -torch.inf),
        )


class Share(NamedTuple):
    """What the classes of one layout say of every row; shares of several add up to the same for all classes."""

    rivals: Tensor  # (N,)  R
    target: Tensor  # (N, L)  T, 0 where the label is elsewhere
    as_rival: Tensor | None = None  # (N, L)  what each label adds to the R of the other, with mixup
    rival_sum: Tensor | None = None  # (N,)  Σ z over the rivals, with label smoothing
    terms: Tensor | None = None  # (N,)  what is added to the loss


def look_up(table: Tensor, rows: Tensor) -> Tensor:
    """Return table[rows]; the backward of F.embedding is repeatable on the CPU, that of indexing is not."""
    if table.dim() == 2:
        return F.embedding(rows, table)
    picked = F.embedding(rows, table.reshape(table.shape[0], -1))
    return picked.reshape(*rows.shape, *table.shape[1:])


class Layout:
    """What it takes to compute with classes that may be elsewhere. The base has them all here, and does nothing.

    A batch goes through it in this order: `gather` (whose rows), `table` (which classes), `largest` and
    `shared` on the way, `combine` (what every share says of a row), `own` (whose rows again).
    """

    rank = 0
    world = 1
    covers_all = True  # every class takes part in every call

    def classes(self, here: int) -> int:
        """Return how many classes there are in all, if `here` of them are here."""
        return here

    def held(self, classes: int) -> range:
        """Return which of so many classes are here."""
        return range(classes)

    def busiest(self, here: int) -> int:
        """Return about how many classes take part where most do: what a backend is chosen for."""
        return here

    def check_weight(self, weight: Tensor, centres: int) -> None:
        """Raise unless the weight is that of the classes that are here."""
        if weight.shape[0] < 1:
            raise ValueError(f"weight must have at least one class; got shape {tuple(weight.shape)}.")
        if weight.shape[0] % centres:
            raise ValueError(
                f"weight must have {centres} rows per class, as centres={centres} says; got {weight.shape[0]} rows."
            )

    def gather(self, check: Callable[[], Batch], asked: str, weight: Tensor) -> Batch:
        """Return the checked batch that the classes here are to be scored against; `asked` says what for."""
        return check()

    def table(
        self, weight: Tensor, batch: Batch, *, unit: bool, bias: Tensor | None = None, centres: int = 1
    ) -> ClassTable:
        """Return the rows of the classes that take part."""
        y, m = batch.classes(), batch.class_m
        if centres == 1 and bias is None:
            return ClassTable(weight, unit, None, y, m=m)
        m = by_centre(m, centres)
        return ClassTable(
            weight, unit, bias_by_row(bias, weight, batch, centres), rows_of(y, centres), None, centres, m
        )

    def combine(
        self,
        table: ClassTable,
        aggregate: Aggregate,
        share: Share,
        bound: float | Tensor | None = None,
    ) -> Share:
        """Return what all classes say of every row. `bound` is the s that no logit exceeds, if there is one."""
        return share

    def sum(self, x: Tensor) -> Tensor:
        """Return Σ over the shares."""
        return x

    def mean(self, by_class: Tensor) -> Tensor:
        """Return the mean of the numbers in a table by class, over all classes."""
        return by_class.mean()

    def largest(self, x: Tensor) -> Tensor:
        """Return the largest over the shares, without gradient."""
        return x.detach()

    def shared(self, x: Tensor) -> Tensor:
        """Return a parameter that is the same everywhere, for use in one share of the work."""
        return x

    def own(self, by_row: Tensor, batch: Batch) -> Tensor:
        """Return the numbers of the rows that this process brought."""
        return by_row

    def columns(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return (N, C) logits of this process's rows against all classes, from those against the classes here."""
        return logits

    def refuse_ddp(self, weight: Tensor) -> None:
        """Raise inside a DistributedDataParallel that would spoil the weight."""

    @torch.no_grad()
    def first_weights(self, weight: Tensor, std: float) -> None:
        """Draw normal class weights."""
        torch.nn.init.normal_(weight, std=std)


WHOLE = Layout()


def rows_of(classes: Tensor, centres: int) -> Tensor:
    """Return the rows (N, L·K) of classes (N, L); −1 stays −1."""
    if centres == 1:
        return classes
    rows = classes.unsqueeze(-1) * centres + torch.arange(centres, device=classes.device)
    return rows.masked_fill(classes.unsqueeze(-1) < 0, -1).flatten(1)


def by_centre(by_class: Tensor | None, centres: int) -> Tensor | None:
    """Return a table by class as one by row."""
    if by_class is None or centres == 1:
        return by_class
    return by_class.repeat_interleave(centres, 0)


def bias_by_row(bias: Tensor | None, weight: Tensor, batch: Batch, centres: int) -> Tensor | None:
    """Return a bias, one for all or one per class, as one per row of the weight, in the dtype of the products."""
    if bias is None:
        return None
    bias = widen(bias, wide_dtype(batch.features, weight))
    return bias.expand(weight.shape[0]) if bias.dim() == 0 else by_centre(bias, centres)
