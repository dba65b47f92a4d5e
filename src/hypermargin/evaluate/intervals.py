"""Intervals over identities: how far the numbers would move with other people.

Pairs that share a person are not independent: one face that resembles many others moves thousands of impostor
pairs at once. So what is drawn again, or left out, is an identity with all its pairs, never a pair. Two ways:

- bootstrap, for few pairs: identity i is drawn w_i times; a genuine pair of i counts w_i, an impostor pair of i
  and j counts w_i·w_j. The interval is that of the percentiles over the draws. Where given pairs hardly share
  people it is too wide.
- jackknife, for many: each of n identities is left out once, which gives θ_(−i) and
      se² = (n−1)/n·Σ(θ_(−i) − mean)²
  The interval is θ ± z·se on the scale of log θ/(1−θ), so that it stays within [0, 1].

Both look at the pairs through some hundred edges of the score, close together where FAR or FRR is small, and join
the points at the edges by straight lines. Where no error was seen (θ = 0 or 1) nothing moves; then the interval
goes as far as 1 − α^(1/n): were the share of identities with errors larger, n of them would show one with
probability 1 − α. What rests on a handful of impostor pairs (the TAR at a small FAR, and minDCF) has no
interval worth the name, by either way.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hypermargin import checks
from hypermargin.common.arrays import Counts, Floats, Truth
from hypermargin.evaluate.edges import Name, Problem
from hypermargin.evaluate.pairs import GRID, Samples, add, blocks

Intervals = dict[Name, tuple[float, float]]

DRAWS = 1000
FEW = 500_000  # pairs that a bootstrap goes through in a few seconds
ROWS = 4096  # identities left out at a time


def check(confidence: float | None, method: str) -> float | None:
    """Check the settings of an interval; return the confidence, None for no intervals, which 0 means too."""
    checks.one_of("method", method, ("auto", "bootstrap", "jackknife"))
    if confidence is not None and not 0 <= confidence < 1:
        raise ValueError(
            f"confidence must lie in [0, 1), such as 0.95; got {confidence:g}. 0 or None: no intervals."
        )
    return confidence or None


def few(pairs: int, method: str) -> bool:
    """Tell whether pairs are few enough for the bootstrap."""
    if method == "bootstrap" and pairs > FEW:
        raise ValueError(f'method "bootstrap" takes {FEW:,} pairs at most; got {pairs:,}. Use "jackknife".')
    return method != "jackknife" and pairs <= FEW


def bootstrap(problem: Problem, scores: Floats, same: Truth, first: Counts, second: Counts) -> Intervals:
    """Take percentiles over 1000 draws of identities; `first` and `second` say whose pair it is, as 0, 1, …"""
    K, n = len(problem.edges), int(max(first.max(), second.max())) + 1
    bins = problem.bins(scores)
    g_bin, g_of = bins[same], first[same]
    a_bin, a_first, a_second = bins[~same], first[~same], second[~same]
    genuine, impostor = np.empty((DRAWS, K + 1)), np.empty((DRAWS, K + 1))
    rng = np.random.default_rng(0)
    for r in range(DRAWS):
        for _ in range(100):
            w = np.bincount(rng.integers(0, n, n), minlength=n).astype(np.float64)
            genuine[r] = np.bincount(g_bin, w[g_of], K + 1)
            impostor[r] = np.bincount(a_bin, w[a_first] * w[a_second], K + 1)
            if genuine[r].any() and impostor[r].any():  # few identities may be drawn without a pair
                break
        else:
            raise ValueError("there are too few identities with pairs to draw from. Leave confidence out.")
    return _percentiles(problem, genuine, impostor, len(np.unique(g_of)))


def bootstrap_pairs(problem: Problem) -> Intervals:
    """Take percentiles over draws of pairs, as many of each kind as there are, if nobody knows whose they are."""
    rng = np.random.default_rng(0)
    drawn = []
    for accepted, total in zip(problem.pooled, (problem.curve.genuines, problem.curve.impostors), strict=True):
        counts = np.diff(accepted, prepend=0, append=total)
        drawn.append(rng.multinomial(total, counts / total, DRAWS).astype(np.float64))
    return _percentiles(problem, drawn[0], drawn[1], problem.curve.genuines)


def tables(problem: Problem, s: Samples, block: int) -> tuple[NDArray[Any], NDArray[Any], Counts, Counts]:
    """Count, by identity and bin, its genuine and its impostor pairs (of two identities each), and all it has.

    A second pass over the products. Pairs below all edges are dropped, which are most.
    """
    K, n = len(problem.edges), len(s.sizes)
    device = s.x.device
    ids = torch.from_numpy(s.ids).to(device)
    lowest = round((float(problem.edges[-1]) + 1) * GRID)
    bin_of = torch.from_numpy(problem.bins(np.arange(2 * GRID + 1) / GRID - 1)).to(device, torch.int32)
    # The most that one identity can have in one bin must fit.
    kind = torch.int32 if int(s.sizes.max()) * len(s.ids) < 2**31 else torch.int64
    genuine, impostor = (torch.zeros(n * K, dtype=kind, device=device) for _ in range(2))
    for b in blocks(s, block):
        counts = b.found >= lowest
        for table, mask in ((genuine, b.genuine), (impostor, b.impostor)):
            if mask is None and table is genuine:
                continue
            i, j = (counts if mask is None else counts & mask).nonzero(as_tuple=True)
            bins = bin_of[b.found[i, j]]
            add(table, ids[b.i + i] * K + bins)
            if table is impostor:
                add(table, ids[b.j + j] * K + bins)
    g, a = (table.view(n, K).cpu().numpy() for table in (genuine, impostor))
    return g, a, s.sizes * (s.sizes - 1) // 2, s.sizes * (len(s.ids) - s.sizes)


def tables_of_pairs(
    problem: Problem, scores: Floats, same: Truth, first: Counts, second: Counts
) -> tuple[NDArray[Any], NDArray[Any], Counts, Counts]:
    """Count given pairs by identity and bin, as `tables` does."""
    K, n = len(problem.edges), int(max(first.max(), second.max())) + 1
    bins = problem.bins(scores)

    def table(of: Counts, these: Truth) -> Counts:
        return np.bincount(of[these] * (K + 1) + bins[these], minlength=n * (K + 1)).reshape(n, K + 1)

    g, a = table(first, same), table(first, ~same) + table(second, ~same)
    return g[:, :K], a[:, :K], g.sum(1), a.sum(1)


def jackknife(
    problem: Problem, genuine: NDArray[Any], impostor: NDArray[Any], genuines: Counts, impostors: Counts
) -> Intervals:
    """θ ± z·se from leaving out every identity once, given the pairs of each by bin and in all."""
    found: Intervals = {}
    for name, left in without_each(problem, genuine, impostor, genuines, impostors).items():
        there = left[~np.isnan(left)]
        if len(there) < 2:
            raise ValueError("there are too few identities with pairs to leave one out. Leave confidence out.")
        z = NormalDist().inv_cdf((1 + problem.confidence) / 2)
        unseen = problem.unseen(int((genuines > 0).sum()))
        found[name] = around(problem.theta[name], z * standard_error(there), unseen)
    return found


def without_each(
    problem: Problem, genuine: NDArray[Any], impostor: NDArray[Any], genuines: Counts, impostors: Counts
) -> dict[Name, Floats]:
    """Compute each number without each identity in turn, in the order of these; NaN where that leaves no curve."""
    g, a = problem.pooled
    G, A = problem.curve.genuines, problem.curve.impostors
    found = {name: np.full(len(genuine), np.nan) for name in problem.theta}
    for at in range(0, len(genuine), ROWS):
        part = slice(at, at + ROWS)
        # An identity that has all genuine or all impostor pairs leaves no curve.
        kept = (genuines[part] < G) & (impostors[part] < A)
        far = (a - np.cumsum(impostor[part][kept], 1, dtype=np.int64)) / (A - impostors[part][kept, None])
        tar = (g - np.cumsum(genuine[part][kept], 1, dtype=np.int64)) / (G - genuines[part][kept, None])
        for name, values in problem.statistics(far, tar).items():
            found[name][part][kept] = values
    return found


def standard_error(left: Floats) -> float:
    """Return the jackknife's standard error of a number, given it without each of n identities."""
    return math.sqrt((len(left) - 1) * left.var())


def _percentiles(problem: Problem, genuine: Floats, impostor: Floats, units: int) -> Intervals:
    """Return percentiles from drawn pairs by bin, without what the lines between edges shift the number by."""
    far, tar = (np.cumsum(drawn, 1)[:, :-1] / drawn.sum(1, keepdims=True) for drawn in (impostor, genuine))
    drawn, lines = problem.statistics(far, tar), problem.lines()
    tails = ((1 - problem.confidence) / 2, (1 + problem.confidence) / 2)
    found: Intervals = {}
    for name, theta in problem.theta.items():
        low, high = (float(q) + theta - lines[name] for q in np.quantile(drawn[name], tails))
        unseen = problem.unseen(units)
        low = min(low, 1 - unseen) if theta >= 1 else min(low, theta)
        high = max(high, unseen) if theta <= 0 else max(high, theta)
        found[name] = max(0.0, low), min(1.0, high)
    return found


def around(theta: float, reach: float, unseen: float) -> tuple[float, float]:
    """Return θ ± `reach` on the scale of the odds; where no error was seen, as far as `unseen`."""
    if theta <= 0.0:
        return 0.0, min(1.0, max(unseen, reach))
    if theta >= 1.0:
        return max(0.0, 1.0 - max(unseen, reach)), 1.0
    odds, factor = theta / (1 - theta), math.exp(min(700.0, reach / (theta * (1 - theta))))
    return odds / (odds + factor), odds / (odds + 1 / factor)
