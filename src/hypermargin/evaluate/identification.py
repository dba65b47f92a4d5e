"""Who is it? Each sample looks for its own identity among all the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.evaluate.pairs import GRID, Floats, Samples, Values, add, cells, samples


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
    """Leave one out: each sample is a query to all the others, by cosine rounded as in `verification`.

    Samples whose identity has no second one are only searched, and ask nothing. Rank: a tie is lost, a stranger
    with the same score as the nearest of the own identity counts as nearer. Average precision, as scikit-learn's:

        AP = mean over the others p of its identity of  #own with score ≥ s_p / #all with score ≥ s_p

    Inputs as in `verification`; `block` is the number of queries at a time.
    """
    return of_samples(samples(embeddings, labels), k, block)


def of_samples(s: Samples, k: Sequence[int], block: int | None) -> Identification:
    """`identification` of samples that are already sorted."""
    for each in k:
        checks.count("k", each)
    if block is not None:
        checks.count("block", block)
    queries = int((s.sizes[s.ids] > 1).sum())
    if queries == 0:
        raise ValueError("there is no query: every label occurs once. Give at least one identity with two samples.")
    N, device = len(s.ids), s.x.device
    sizes = torch.from_numpy(s.sizes[s.ids]).to(device)
    firsts = torch.from_numpy((np.cumsum(s.sizes) - s.sizes)[s.ids]).to(device)
    step = block or max(1, (2**26 if device.type == "cuda" else 2**20) // N)
    hits = dict.fromkeys(k, 0)
    precisions: list[float] = []
    found: list[Tensor] = []
    for start in range(0, N, step):
        rows = torch.arange(start, min(N, start + step), device=device)
        size, first = sizes[rows], firsts[rows]
        scores = cells(s.x[rows], s.x).scatter_(1, rows[:, None], -1)  # oneself is below everybody
        column = torch.arange(int(size.max()), device=device)
        places = torch.where(column < size[:, None], first[:, None] + column, rows[:, None])
        absent = places == rows[:, None]
        # An absent one stands above everybody, so nobody has its score.
        own = scores.gather(1, places).masked_fill_(absent, 2 * GRID + 1).sort(1).values
        others = size - 1
        at_least = _counts(own, scores)
        strangers = scores.scatter_(1, places, -1).amax(1)
        asks = others > 0
        own_at_least = others[:, None] - torch.searchsorted(own, own)
        present = column < others[:, None]
        ratio = own_at_least.double() / at_least.clamp(min=1)
        precisions += (ratio.masked_fill(~present, 0.0).sum(1) / others.clamp(min=1)).tolist()
        best = (others - 1).clamp(min=0)[:, None]
        nearest = own.gather(1, best).squeeze(1)
        nearer = (at_least - own_at_least).gather(1, best).squeeze(1)
        for each in hits:
            hits[each] += int(((nearer < each) & asks).sum())
        found.append(torch.stack((nearest.where(asks, -1), own[:, 0].where(asks, -1), strangers)))
    cosines = _as_given(torch.cat(found, 1), s)
    rank = {each: count / queries for each, count in hits.items()}
    return Identification(rank, math.fsum(precisions) / queries, queries, *cosines)


def _counts(own: Tensor, scores: Tensor) -> Tensor:
    """By query and own sample: how many of all scores are at least its own, by sorting them into so few bins."""
    rows, M = own.shape
    bins = torch.searchsorted(own, scores, right=True)  # own samples with at most that score
    bins += (M + 1) * torch.arange(rows, device=own.device)[:, None]
    counts = torch.zeros(rows * (M + 1), dtype=torch.int64, device=own.device)
    add(counts, bins.flatten())
    return counts.view(rows, M + 1)[:, 1:].flip(1).cumsum(1).flip(1)


def _as_given(found: Tensor, s: Samples) -> Floats:
    """Cells to cosines, in the order of the rows as they were given; −1, nobody, to NaN."""
    sorted_cells = found.cpu().numpy()
    cosines = np.empty(sorted_cells.shape)
    cosines[:, s.order] = np.where(sorted_cells < 0, np.nan, sorted_cells / GRID - 1)
    return cosines
