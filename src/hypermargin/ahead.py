"""What margins and rules may ask about a batch before its loss, all without gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hypermargin.backends.chunked import chunk_for
from hypermargin.backends.dense import label_mask
from hypermargin.batch import ScaledRows, target_of
from hypermargin.centers import Centers, from_text
from hypermargin.layout import ClassTable, Layout
from hypermargin.numerics import unit, widen

if TYPE_CHECKING:
    from hypermargin.margins import MarginAtRows


class LookAhead:
    """The cosines of a batch; with a sharded head, of the rows of all ranks to the classes of all ranks.

    Each answer is computed when it is asked for: `cosine` and `margined` look at the rows of the labels once more,
    the others pass over all classes.
    """

    def __init__(self, rows: ScaledRows, table: ClassTable, layout: Layout) -> None:
        self._rows, self._table, self._layout = rows, table, layout

    def cosine(self) -> Tensor:
        """Return the cosine of each row to its first class, (N,)."""
        with torch.no_grad():
            return self._first(self._angle().cos()).squeeze(1)

    def margined(self, psi: MarginAtRows) -> Tensor:
        """Return the margined cosine of each row to its first class, (N, 1)."""
        with torch.no_grad():
            angle = self._angle()
            return self._first(angle.cos() + psi.lift(angle))

    def largest_rivals(self, k: int) -> Tensor:
        """Return the cosines of the k nearest rival classes, (N, k), descending; −inf where there are fewer."""
        with torch.no_grad():
            u, weight, local = self._operands()
            if self._table.is_empty:
                found = u.new_full((len(u), k), -math.inf)
            else:
                found = largest_rivals(u, weight, local, self._table.centers.text, k)
            return self._layout.collected(found).topk(k).values

    def nearest_class(self) -> Tensor:
        """Return the cosine between each label's class and the nearest other, (N, L); −inf if there is none."""
        with torch.no_grad():
            u, weight, local = self._operands()
            table, K = self._table, self._table.centers.count
            N, L = local.shape[0], local.shape[1] // K
            mine = unit(widen(table.label_rows(weight), u.dtype))
            if table.inside is not None:
                mine = mine.masked_fill(~table.inside.unsqueeze(-1), 0.0)
            rows = self._layout.sum(mine).flatten(0, 1)  # the rows of the labels, on every process
            if table.is_empty:
                found = rows.new_full((len(rows), 1), -math.inf)
            else:
                own = local.view(N, L, 1, K).expand(N, L, K, K).reshape(N * L * K, K)
                found = largest_rivals(rows, weight, own, table.centers.text, 1)
            return self._layout.collected(found).amax(1).view(N, L, K).amax(-1)

    def mean_above(self, threshold: Tensor) -> Tensor:
        """Return the mean cosine of the rivals above a threshold (N, 1), (N, 1); 0 where there are none."""
        with torch.no_grad():
            u, weight, local = self._operands()
            found = (
                u.new_zeros(len(u), 2)
                if self._table.is_empty
                else sum_above(u, weight, local, self._table.centers.text, threshold)
            )
            total, count = self._layout.sum(found).chunk(2, 1)
            return total / count.clamp(min=1)

    def _angle(self) -> Tensor:
        w = widen(self._table.label_rows(self._table.weight), self._rows.f.dtype)
        return target_of(self._rows, unit(w) if self._table.unit else w, self._table).angle

    def _first(self, by_label: Tensor) -> Tensor:
        """Return the numbers of the first label on every process, (N, 1)."""
        return self._layout.sum(self._table.own(by_label)[:, :1])

    def _operands(self) -> tuple[Tensor, Tensor, Tensor]:
        table = self._table
        local = table.local if table.inside is None else table.local.masked_fill(~table.inside, -1)
        return self._rows.direction.detach(), table.weight.detach(), local


def _cosines_by_block(u: Tensor, weight: Tensor, local: Tensor, centers: Centers) -> Iterator[Tensor]:
    """Yield the cosines to one block of the weight's rows after another, −inf where a row is a label.

    A block has all centers of its classes, and a column for each of them, or with a pool for each class.
    """
    rows, K = weight.shape[0], centers.count
    chunk = -(-chunk_for(len(u), rows, u.device) // K) * K
    for start in range(0, rows, chunk):
        w = unit(weight[start : start + chunk].to(u.dtype))
        c, here = u @ w.T, local - start
        if centers.pooled:
            c, here = centers.score(centers.by_class(c)), here[:, ::K] // K
        off = label_mask(here, (here >= 0) & (here < c.shape[1]), c.shape[1])
        yield c.masked_fill_(off, -math.inf)


@torch.library.custom_op("hypermargin::largest_rivals", mutates_args=())
def largest_rivals(u: Tensor, weight: Tensor, local: Tensor, centers: str, k: int) -> Tensor:
    """Return the k largest cosines of unit rows u to classes that are not labels, (N, k), block by block."""
    found = u.new_full((len(u), k), -math.inf)
    each = from_text(centers)
    for c in _cosines_by_block(u, weight, local, each):
        of_class = each.by_class(c).amax(-1) if each.count > 1 and not each.pooled else c
        found = torch.cat((found, of_class), 1).topk(k).values
    return found


@largest_rivals.register_fake
def _(u: Tensor, weight: Tensor, local: Tensor, centers: str, k: int) -> Tensor:
    return u.new_empty(len(u), k)


@torch.library.custom_op("hypermargin::sum_above", mutates_args=())
def sum_above(u: Tensor, weight: Tensor, local: Tensor, centers: str, threshold: Tensor) -> Tensor:
    """Return the sum of the cosines above a threshold (N, 1) and their number, (N, 2), labels left out."""
    found = u.new_zeros(len(u), 2)
    for c in _cosines_by_block(u, weight, local, from_text(centers)):
        above = (c > threshold) & (c > -math.inf)
        found[:, 0] += c.masked_fill(~above, 0.0).sum(1)
        found[:, 1] += above.sum(1)
    return found


@sum_above.register_fake
def _(u: Tensor, weight: Tensor, local: Tensor, centers: str, threshold: Tensor) -> Tensor:
    return u.new_empty(len(u), 2)
