"""The classes a step is computed against: all, a rank's slice of them, or a sample of that."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hypermargin.parallel.partial_fc import Sampling, draw
from hypermargin.parallel.shard import Part


class Held(NamedTuple):
    """Tables by class, and where the labels are in them."""

    weight: Tensor  # (C, d)
    bias: Tensor | None  # (C,)
    m: Tensor | None  # (C, …)
    local: Tensor  # (N, K)  rows of the tables; −1 where the label is not held here
    inside: Tensor | None = None  # (N, K)  where it is; None: everywhere
    is_empty: bool = False  # no class is held: the tables have one row of zeros, which no label names
    more: float = 0.0  # by which a correction raises the bound on the logits

    def of_labels(self, table: Tensor, elsewhere: float | None = None) -> Tensor:
        """table[local] (N, K, …); `elsewhere`, or any row, where the label is not held."""
        if self.inside is None:
            return look_up(table, self.local)
        picked = look_up(table, self.local.masked_fill(~self.inside, 0))
        return picked if elsewhere is None else picked.masked_fill(~self.inside, elsewhere)


def look_up(table: Tensor, y: Tensor) -> Tensor:
    """table[y] for a table by class; embedding's backward is repeatable on the CPU, indexing's is not."""
    picked = F.embedding(y, table.reshape(table.shape[0], -1))
    return picked.reshape(*y.shape, *table.shape[1:])


def whole(weight: Tensor, bias: Tensor | None, m: Tensor | None, y: Tensor) -> Held:
    """All classes, here."""
    return Held(weight, bias, m, y)


def held_by(
    part: Part, sampling: Sampling | None, weight: Tensor, bias: Tensor | None, m: Tensor | None, y: Tensor
) -> Held:
    """What a rank holds for labels `y` (N, K), global class numbers or −1."""
    local, more = (y - part.start).masked_fill((y < part.start) | (y >= part.stop), -1), 0.0
    if sampling is not None:
        sample = draw(sampling, part, y)
        local, more = sample.find(local), sample.bound
        weight, m = sample.of(weight), None if m is None else m.index_select(0, sample.rows)
        bias = None if bias is None else sample.of(bias)
        if sample.log_times is not None:
            bias = sample.log_times if bias is None else bias + sample.log_times
    is_empty = weight.shape[0] == 0
    if is_empty:
        weight = _with_a_zero(weight)
        bias, m = (None if t is None else _with_a_zero(t) for t in (bias, m))
    return Held(weight, bias, m, local, local >= 0, is_empty, more)


def _with_a_zero(table: Tensor) -> Tensor:
    return torch.cat((table, table.new_zeros(1, *table.shape[1:])))
