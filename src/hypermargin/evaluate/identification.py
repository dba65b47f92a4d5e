"""Identification, who is it: each sample looks for its own identity among all the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.common.arrays import Floats, Values
from hypermargin.evaluate.pairs import GRID, Samples, add, cells, samples


@dataclass(frozen=True)
class Identification:
    """What the search found; the arrays are by row as given, and NaN where there is nobody.

    rank           by k: the share of queries with their own identity among the k nearest
    map            mean over the queries of their average precision
    queries        samples whose identity has a second one
    own_nearest    the highest cosine to another sample of the own identity
    own_farthest   the lowest
    stranger       the highest cosine to a sample of another identity
    """

    rank: dict[int, float]
    map: float
    queries: int
    own_nearest: Floats = field(compare=False, repr=False)
    own_farthest: Floats = field(compare=False, repr=False)
    stranger: Floats = field(compare=False, repr=False)


def identification(
    embeddings: Values, labels: Values, k: Sequence[int] = (1, 5, 10), *, block: int | None = None
) -> Identification:
    """Identify each sample: it is a query to all the others, by cosine rounded as in `verification`.

    Samples whose identity has no second one are only searched, and ask nothing. Rank: a tie is lost, a stranger
    with the same score as the nearest of the own identity counts as nearer. Average precision, as scikit-learn's:

        AP = mean over the others p of its identity of  #own with score ≥ s_p / #all with score ≥ s_p

    Inputs as in `verification`; `block` is the number of queries at a time.
    """
    return of_samples(samples(embeddings, labels), k, block)


def of_samples(s: Samples, k: Sequence[int], block: int | None) -> Identification:
    """Compute `identification` of samples that are already sorted."""
    for each in k:
        checks.count("k", each)
    if block is not None:
        checks.count("block", block)
    queries = int((s.sizes[s.ids] > 1).sum())
    if queries == 0:
        raise ValueError("there is no query: every label occurs once. Give at least one identity with two samples.")
    hits = dict.fromkeys(k, 0)
    precisions: list[float] = []
    found: list[Tensor] = []
    step = block or (2048 if s.x.is_cuda else 256)
    for start in range(0, len(s.ids), step):
        one = _Queries(s, start, min(len(s.ids), start + step))
        present = torch.arange(one.own.shape[1], device=s.x.device) < one.others[:, None]
        own_at_least = one.others[:, None] - torch.searchsorted(one.own, one.own)
        ratio = own_at_least.double() / (own_at_least + one.nearer).clamp(min=1)
        precisions += (ratio.masked_fill(~present, 0.0).sum(1) / one.others.clamp(min=1)).tolist()
        best, asks = (one.others - 1).clamp(min=0)[:, None], one.others > 0
        nearest, nearer = one.own.gather(1, best).squeeze(1), one.nearer.gather(1, best).squeeze(1)
        for each in hits:
            hits[each] += int(((nearer < each) & asks).sum())
        found.append(torch.stack((nearest.where(asks, -1), one.own[:, 0].where(asks, -1), one.stranger)))
    cosines = _as_given(torch.cat(found, 1), s)
    rank = {each: count / queries for each, count in hits.items()}
    return Identification(rank, math.fsum(precisions) / queries, queries, *cosines)


class _Queries:
    """Rows start … end of sorted samples against all, a tile of columns at a time.

    others    (R,) how many more the query's identity has
    own       (R, M) their scores, lowest first; places beyond `others` stand above everybody
    nearer    (R, M) strangers with at least that score
    stranger  (R,) the highest score of a stranger, −1 if there is none
    """

    def __init__(self, s: Samples, start: int, end: int) -> None:
        x, rows = s.x[start:end], torch.arange(start, end, device=s.x.device)
        across = 16384 if s.x.is_cuda else 4096
        firsts = np.cumsum(s.sizes) - s.sizes
        # Rows are sorted by identity, so the own samples of all queries lie side by side.
        low = int(firsts[s.ids[start]]) // across * across
        high = int(firsts[s.ids[end - 1]] + s.sizes[s.ids[end - 1]])
        tiles = {j: cells(x, s.x[j : j + across]) for j in range(low, high, across)}
        size = torch.from_numpy(s.sizes[s.ids[start:end]]).to(s.x.device)
        first = torch.from_numpy(firsts[s.ids[start:end]]).to(s.x.device)
        column = torch.arange(int(size.max()), device=s.x.device)
        places = torch.where(column < size[:, None], first[:, None] + column, rows[:, None])
        near = torch.cat(list(tiles.values()), 1)
        absent = places == rows[:, None]  # oneself, and what fills the rows
        self.others = size - 1
        self.own = near.gather(1, places - low).masked_fill_(absent, 2 * GRID + 1).sort(1).values
        # One rising list for all rows, so that a search needs no copy of a row for every score in it.
        rising = (self.own + _span(rows - start)).flatten()
        M = self.own.shape[1]
        reached = torch.zeros(len(rows) * (M + 1), dtype=torch.int64, device=s.x.device)
        self.stranger = torch.full((len(rows),), -1, dtype=torch.int32, device=s.x.device)
        ids = torch.from_numpy(s.ids).to(s.x.device)
        for j in range(0, len(s.ids), across):
            found = tiles.pop(j) if j in tiles else cells(x, s.x[j : j + across])
            if low <= j < high:
                found.masked_fill_(ids[start:end, None] == ids[j : j + across], -1)
            self.stranger = torch.maximum(self.stranger, found.amax(1))
            # Most strangers are below all of the query's own.
            i, c = (found >= self.own[:, :1]).nonzero(as_tuple=True)
            key = found[i, c] + _span(i).squeeze(1)
            add(reached, torch.searchsorted(rising, key, right=True) + i)
        self.nearer = reached.view(-1, M + 1)[:, 1:].flip(1).cumsum(1).flip(1)


def _span(row: Tensor) -> Tensor:
    """Return what lifts a row's scores above those of the rows before."""
    return row[:, None] * (2 * GRID + 2)


def _as_given(found: Tensor, s: Samples) -> Floats:
    """Turn cells into cosines, in the order of the rows as they were given; −1, nobody, to NaN."""
    sorted_cells = found.cpu().numpy()
    cosines = np.empty(sorted_cells.shape)
    cosines[:, s.order] = np.where(sorted_cells < 0, np.nan, sorted_cells / GRID - 1)
    return cosines
