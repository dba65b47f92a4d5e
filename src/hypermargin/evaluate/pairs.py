"""All pairs of a set, a block of products at a time: never the whole matrix.

The score of a pair is its cosine rounded to a multiple of 2⁻²⁰ ≈ 1e-6, which is what float32 can vouch for: equal
embeddings tie whatever order their products were summed in. A rounded cosine is a cell, a whole number from 0 (−1)
to 2²¹ (1), so all pairs fit into one histogram, and what is computed from it is exact for these scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.common.arrays import Array, Counts, Floats, Values, to_numpy
from hypermargin.numerics import full_precision, polar

GRID = 2**20  # cells a unit of cosine


@dataclass(frozen=True, eq=False)
class Samples:
    """Unit rows, those of one identity side by side, so that most products hold impostors only and need no mask.

    x       (N, d) directions, on the device they came on
    ids     (N,) identities 0, 1, …, rising
    order   (N,) the row each had when it was given
    sizes   (identities,) samples of each
    norms   (N,) lengths before
    names   (identities,) the labels as they were given
    """

    x: Tensor
    ids: Counts
    order: Counts
    sizes: Counts
    norms: Tensor
    names: Array

    @property
    def genuine(self) -> int:
        """The number of pairs of one identity."""
        return int((self.sizes * (self.sizes - 1)).sum()) // 2

    @property
    def impostor(self) -> int:
        """The number of pairs of two identities."""
        return len(self.ids) * (len(self.ids) - 1) // 2 - self.genuine


def samples(embeddings: Values, labels: Values, name: str = "embeddings", least: int = 2) -> Samples:
    """Sort rows (N, d) of any length but 0 and their labels (N,): whole numbers, or names in a numpy array.

    Computed in float32, or float64 if given so. Refuses what has no direction or no label.
    """
    x = torch.as_tensor(embeddings).detach()
    if x.dim() != 2:
        raise ValueError(f"{name} must have shape (rows, dim); got {tuple(x.shape)}.")
    if len(x) < least:
        why = ", to make a pair" if least == 2 else ""
        raise ValueError(f"{name} must have at least {least} rows{why}; got {len(x)}.")
    given = to_numpy(labels)
    if given.shape != (len(x),):
        raise ValueError(f"labels must have shape ({len(x)},), one per row of {name}; got {given.shape}.")
    if given.dtype.kind in "fc":
        raise TypeError(f"labels must be whole numbers or names; got {given.dtype}.")
    x = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    checks.finite_rows(name, x, torch.ones(len(x), dtype=torch.bool, device=x.device))
    zero = (x == 0).all(1).nonzero()
    if len(zero):
        raise ValueError(
            f"{name} must not be zero, which has no direction; got zeros at row {int(zero[0])} "
            f"({len(zero)} such rows). Look at those samples, or leave them out."
        )
    names, ids = np.unique(given, return_inverse=True)
    order = np.argsort(ids, kind="stable")
    unit, norms = polar(x[torch.from_numpy(order).to(x.device)])
    return Samples(unit, ids[order].astype(np.int64), order, np.bincount(ids), norms.squeeze(1), names)


@contextmanager
def exact(x: Tensor) -> Iterator[None]:
    """Compute products in x's own precision inside, whatever autocast or the setting for TF32 says."""
    before = torch.get_float32_matmul_precision()
    if before != "highest":
        torch.set_float32_matmul_precision("highest")
    try:
        with full_precision(x):
            yield
    finally:
        if before != "highest":
            torch.set_float32_matmul_precision(before)


def cells(a: Tensor, b: Tensor) -> Tensor:
    """Return cosines of unit rows in whole cells of 2⁻²⁰, counted from 0 at −1, int32."""
    with exact(a):
        return torch.mm(a, b.T).mul_(GRID).round_().add_(GRID).clamp_(0, 2 * GRID).to(torch.int32)


def block_size(block: int | None, x: Tensor) -> int:
    """Choose rows and columns of one product: enough to be fast, few enough for the cache, or the GPU."""
    if block is None:
        return 4096 if x.is_cuda else 512
    checks.count("block", block)
    return block


class Block(NamedTuple):
    """The pairs of rows i, i+1, … with rows j, j+1, …; `impostor` and `genuine` say which are which.

    Both are None where all are impostors. A pair is in one block, once.
    """

    i: int
    j: int
    found: Tensor
    impostor: Tensor | None
    genuine: Tensor | None


def blocks(s: Samples, block: int) -> Iterator[Block]:
    """Yield every pair of the samples, once."""
    y = torch.from_numpy(s.ids).to(s.x.device)
    for i in range(0, len(s.ids), block):
        for j in range(i, len(s.ids), block):
            found = cells(s.x[i : i + block], s.x[j : j + block])
            if s.ids[i : i + block][-1] < s.ids[j]:
                yield Block(i, j, found, None, None)
                continue
            same = y[i : i + block, None] == y[j : j + block]
            pair = torch.ones_like(same).triu(1) if i == j else torch.ones_like(same)
            yield Block(i, j, found, pair & ~same, pair & same)


def histogram(s: Samples, block: int) -> tuple[Floats, Counts, Counts]:
    """Count the distinct scores of all pairs, highest first, and the genuine and impostor pairs that have each."""
    counts = torch.zeros(2, 2 * GRID + 1, dtype=torch.int64, device=s.x.device)
    for b in blocks(s, block):
        for kind, mask in enumerate((b.genuine, b.impostor)):
            if mask is not None:
                add(counts[kind], b.found[mask])
            elif kind == 1:
                add(counts[kind], b.found.flatten())
    genuine, impostor = counts.cpu().numpy()
    used = np.flatnonzero(genuine + impostor)[::-1]
    return used / GRID - 1, genuine[used], impostor[used]


def add(counts: Tensor, places: Tensor) -> None:
    """Count one more at each place; a place may come often."""
    counts.index_add_(0, places, counts.new_ones(()).expand(len(places)))
