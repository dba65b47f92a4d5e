"""Which process holds which classes. `WHOLE`, the default, holds all; `hypermargin.parallel` has others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from hypermargin.centers import ONE, Centers
from hypermargin.numerics import wide_dtype, widen

if TYPE_CHECKING:
    from hypermargin.backends import Backend, Rivals
    from hypermargin.batch import Batch
    from hypermargin.rules import Aggregate, RuleAtRows


class ClassTable(NamedTuple):
    """The rows of the class weights that a call is computed against, and where its labels are among them.

    A class has K rows, its centers, one after the other; K is 1 unless a head says otherwise. A batch has L
    labels per row, 2 with mixup and else 1. Where a class is one rival, and not each of its centers,
    `centers.pooled`, the columns of z that rivals are counted in are classes.
    """

    weight: Tensor  # (C·K, d)
    unit: bool  # w̃ = W/|W|, or W as it is
    bias: Tensor | None  # (C·K,)  b_j: the sum of bias, offset and PartialFC's correction
    local: Tensor  # (N, L·K)  rows of the labels, the K of one label side by side
    inside: Tensor | None = None  # (N, L·K)  where `local` is valid; None: everywhere
    centers: Centers = ONE
    m: Tensor | None = None  # (C·K, …)  margins by class
    is_empty: bool = False  # this process has no class: the one row is zero, and no label refers to it
    raised: float = 0.0  # how much PartialFC's correction raises the bound on the logits
    picked: Tensor | None = None  # (S,)  which of the classes held here the rows are of; None: all, in order
    times: Tensor | None = None  # (C·K,)  PartialFC's correction, which is part of `bias`

    def with_rows(self, weight: Tensor, unit: bool, bias: Tensor | None) -> ClassTable:
        """Return the table with other rows and bias of the same classes; torch 2.6 cannot compile `_replace`."""
        return ClassTable(
            weight, unit, bias, self.local, self.inside, self.centers, self.m, self.is_empty, self.raised,
            self.picked, self.times,
        )  # fmt: skip

    def by_row(self, by_class: Tensor) -> Tensor:
        """Return numbers of the classes held here as one per row of `weight`."""
        if self.is_empty:
            return by_class.new_zeros(self.centers.count, *by_class.shape[1:])
        found = by_class if self.picked is None else by_class.index_select(0, self.picked)
        return found if self.centers.count == 1 else found.repeat_interleave(self.centers.count, 0)

    def of_labels(self, by_class: Tensor) -> Tensor:
        """Return the entry of a table by class for each label, (N, L, …); arbitrary if the label is not here."""
        first = self.local[:, :: self.centers.count]
        if self.inside is not None:
            first = first.masked_fill(~self.inside[:, :: self.centers.count], 0)
        return look_up(by_class, first)

    def margins(self, m: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """Return the m of each label if there are margins by class, else the m that was given."""
        m = m if self.m is None else self.of_labels(self.m)
        return None if m is None else widen(m, dtype)

    def own(self, by_label: Tensor) -> Tensor:
        """Return numbers by label, (N, L), with zeros where the label is not here."""
        return (
            by_label if self.inside is None else by_label.masked_fill(~self.inside[:, :: self.centers.count], 0.0)
        )

    def label_rows(self, weight: Tensor) -> Tensor:
        """Return the rows of the labels, (N, L·K, d); an arbitrary row where the label is not here."""
        return look_up(weight, self.local if self.inside is None else self.local.masked_fill(~self.inside, 0))

    def label_columns(self) -> tuple[Tensor, Tensor | None]:
        """Return `local` and `inside` for the columns that rivals are counted in: rows, or with a pool classes."""
        if not self.centers.pooled:
            return self.local, self.inside
        K = self.centers.count
        return self.local[:, ::K] // K, None if self.inside is None else self.inside[:, ::K]

    def column_bias(self) -> Tensor | None:
        """Return the bias of the columns that rivals are counted in."""
        return self.bias[:: self.centers.count] if self.bias is not None and self.centers.pooled else self.bias

    def rivals(self, backend: Backend, f: Tensor, rule: RuleAtRows, **wanted: bool) -> Rivals:
        """Return what a backend finds in this table; an empty table's row of zeros does not count as a rival."""
        found = backend(f, self, rule, **wanted)
        if not self.is_empty:
            return found
        return found._replace(
            rivals=torch.full_like(found.rivals, rule.rule.aggregate.nothing),
            hardest=None if found.hardest is None else torch.full_like(found.hardest, -torch.inf),
        )


class Share(NamedTuple):
    """What the classes held here contribute to every row; `Layout.combine` adds up the shares of all processes."""

    rivals: Tensor  # (N,)  R
    target: Tensor  # (N, L)  T, 0 where another process holds the label
    as_rival: Tensor | None = None  # (N, L)  what each label adds to the R of the other, with mixup
    rival_sum: Tensor | None = None  # (N,)  Σ z over the rivals, with label smoothing
    terms: Tensor | None = None  # (N,)  the sum of the row terms, which is added to the loss


def look_up(table: Tensor, rows: Tensor) -> Tensor:
    """Return table[rows]; the backward of embedding is repeatable on the CPU, that of indexing is not."""
    if table.dim() == 2:
        return torch.embedding(table, rows)
    picked = torch.embedding(table.reshape(table.shape[0], -1), rows)
    return picked.reshape(*rows.shape, *table.shape[1:])


class Layout:
    """The steps of a loss whose classes other processes may hold. The base holds all classes and sends nothing.

    A batch goes through the methods in this order: `gather` collects the rows of all processes, `table` picks the
    classes to score them against, `combine` adds up the shares of all processes, `own` picks this process's rows.
    `largest` and `shared` are used in between.
    """

    rank = 0
    world = 1
    covers_all = True  # every class takes part in every call

    def classes(self, here: int) -> int:
        """Return the number of all classes, of which this process holds `here`."""
        return here

    def held(self, classes: int) -> range:
        """Return which of `classes` classes this process holds."""
        return range(classes)

    def busiest(self, here: int) -> int:
        """Return about how many classes the busiest process has in a step; the backend is chosen for these."""
        return here

    def check_weight(self, weight: Tensor, centers: Centers) -> None:
        """Raise unless the weight has the rows of the classes that this process holds."""
        if weight.shape[0] < 1:
            raise ValueError(f"weight must have at least one class; got shape {tuple(weight.shape)}.")
        if weight.shape[0] % centers.count:
            raise ValueError(
                f"weight must have {centers.count} rows per class, as centers={centers} says; got "
                f"{weight.shape[0]} rows."
            )

    def gather(self, check: Callable[[], Batch], asked: str, weight: Tensor) -> Batch:
        """Return the checked batch of all processes, to be scored against the classes held here.

        `asked` names what is to be computed, which must be the same on all processes.
        """
        return check()

    def table(
        self, weight: Tensor, batch: Batch, *, unit: bool, bias: Tensor | None, centers: Centers
    ) -> ClassTable:
        """Return the rows of the held classes that take part in this call."""
        y, m = batch.classes(), batch.class_m
        if centers.count == 1 and bias is None:
            return ClassTable(weight, unit, None, y, None, ONE, m)
        K = centers.count
        bias, m = bias_by_row(bias, weight, batch, K), by_center(m, K)
        return ClassTable(weight, unit, bias, rows_of(y, K), None, centers, m)

    def combine(
        self,
        table: ClassTable,
        aggregate: Aggregate,
        share: Share,
        bound: float | Tensor | None = None,
    ) -> Share:
        """Return the shares of all processes added up. `bound` is the s that no logit exceeds, if there is one."""
        return share

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over all processes."""
        return x

    def collected(self, x: Tensor) -> Tensor:
        """Return the numbers (N, k) of all processes side by side, without gradient."""
        return x.detach()

    def mean(self, by_class: Tensor) -> Tensor:
        """Return the mean of the numbers in a table by class, over the classes of all processes."""
        return by_class.mean()

    def largest(self, x: Tensor) -> Tensor:
        """Return the largest `x` over all processes, without gradient."""
        return x.detach()

    def shared(self, x: Tensor) -> Tensor:
        """Return a parameter that all processes hold alike, for use in this process's share of the work."""
        return x

    def fixed(self, scale: Tensor) -> Tensor | float:
        """Return a scale that is not learned as it is best used here."""
        return scale

    def own(self, by_row: Tensor, batch: Batch) -> Tensor:
        """Return the numbers of the rows that this process brought."""
        return by_row

    def columns(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return logits (N, C) of own rows against all classes, from those of all rows against own classes."""
        return logits

    def refuse_ddp(self, weight: Tensor) -> None:
        """Raise inside a DistributedDataParallel that would corrupt the weight; the base accepts it."""

    @torch.no_grad()
    def first_weights(self, weight: Tensor, std: float) -> None:
        """Fill the weight with normal random numbers of deviation `std`."""
        torch.nn.init.normal_(weight, std=std)


WHOLE = Layout()


def places(y: Tensor, held: range) -> Tensor:
    """Return the places of classes in the slice that is held, −1 for those that are not in it."""
    return (y - held.start).masked_fill((y < held.start) | (y >= held.stop), -1)


def rows_of(classes: Tensor, centers: int) -> Tensor:
    """Return the rows (N, L·K) of the weight that belong to classes (N, L); −1 stays −1."""
    if centers == 1:
        return classes
    rows = classes.unsqueeze(-1) * centers + torch.arange(centers, device=classes.device)
    return rows.masked_fill(classes.unsqueeze(-1) < 0, -1).flatten(1)


def by_center(by_class: Tensor | None, centers: int) -> Tensor | None:
    """Return a table with one entry per class as one with an entry per row of the weight."""
    if by_class is None or centers == 1:
        return by_class
    return by_class.repeat_interleave(centers, 0)


def bias_by_row(bias: Tensor | None, weight: Tensor, batch: Batch, centers: int) -> Tensor | None:
    """Return a bias, one for all or one per class, as one per row of the weight, in the dtype of the products."""
    if bias is None:
        return None
    bias = widen(bias, wide_dtype(batch.features, weight))
    return bias.expand(weight.shape[0]) if bias.dim() == 0 else by_center(bias, centers)
