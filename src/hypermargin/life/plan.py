"""What becomes of every class, and of every tensor that has one row a class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Plan:
    """`new_ids[old]` is the new id of a class, −1 if it goes; rows that no old class becomes are 0."""

    new_ids: Tensor
    classes: int  # afterwards
    members: Tensor | None = None  # the old ids that are merged
    shares: Tensor | None = None  # theirs in the mean; they sum to 1 in every group, float64

    def rows(self, old: Tensor, *, directions: bool = False) -> Tensor:
        """The new tensor: kept rows to the bit, merged rows as means, or as means of directions and of lengths."""
        new = old.new_zeros(self.classes, *old.shape[1:])
        kept = (self.new_ids >= 0).nonzero()[:, 0]
        new[self.new_ids[kept].to(old.device)] = old[kept.to(old.device)]
        if self.members is not None and self.shares is not None:
            targets, group = torch.unique(self.new_ids[self.members], return_inverse=True)
            means = self._means(old[self.members.to(old.device)].cpu(), group, len(targets), directions)
            new[targets.to(old.device)] = means.to(old)
        return new

    def _means(self, rows: Tensor, group: Tensor, groups: int, directions: bool) -> Tensor:
        assert self.members is not None
        assert self.shares is not None
        first = torch.empty(groups, dtype=torch.int64)
        first[group.flip(0)] = torch.arange(len(group)).flip(0)
        share = self.shares.reshape(-1, *[1] * (rows.dim() - 1))

        def mean(values: Tensor) -> Tensor:
            return values.new_zeros(groups, *values.shape[1:]).index_add_(0, group, values * share)

        wide = rows.double()
        if directions:
            lengths = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
            middle = mean(wide / lengths.clamp(min=1e-300))
            size = torch.linalg.vector_norm(middle, dim=1, keepdim=True)
            # float32 rows that cancel leave some 1e-8 of themselves
            lost = (size[:, 0] < 1e-6) & (mean(lengths)[:, 0] > 0)
            if bool(lost.any()):
                ids = self.members[group == lost.nonzero()[0, 0]].tolist()
                raise ValueError(f"classes {ids} point in opposite directions and have no mean. Leave one out.")
            found: Tensor = middle / size.clamp(min=1e-300) * mean(lengths)
        else:
            found = mean(wide)
        # Equal rows stay what they are, to the bit.
        differs = (rows != rows[first[group]]).reshape(len(rows), -1).any(1)
        same = torch.zeros(groups, dtype=torch.int64).index_add_(0, group, differs.long()) == 0
        found[same] = wide[first[same]]
        if not bool(found.isfinite().all()):
            bad = (~found.isfinite()).reshape(groups, -1).any(1).nonzero()[0, 0]
            raise ValueError(f"classes {self.members[group == bad].tolist()} hold NaN or inf. Remove those first.")
        return found


def removing(classes: int, gone: Tensor) -> Plan:
    """The others move up."""
    stays = torch.ones(classes, dtype=torch.bool)
    stays[gone] = False
    new_ids = torch.where(stays, stays.long().cumsum(0) - 1, -1)
    return Plan(new_ids, int(stays.sum()))


def check_ids(name: str, ids: Iterable[object] | Tensor, classes: int) -> Tensor:
    """Class ids, each once."""
    values = ids.tolist() if isinstance(ids, Tensor) else list(ids)
    for value in values:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(f"{name} must be class ids; got {value!r} ({type(value).__name__}).")
        if not 0 <= int(value) < classes:
            raise ValueError(f"{name} must lie in [0, {classes}); got {value}. Classes start at 0.")
    found = torch.tensor([int(value) for value in values], dtype=torch.int64)
    kinds, counts = torch.unique(found, return_counts=True)
    if bool((counts > 1).any()):
        raise ValueError(f"{name} must name a class once; got {int(kinds[counts > 1][0])} twice or more.")
    return found
