"""The pairs behind a threshold: the highest impostors, the lowest genuine ones, and some of what lies between."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hypermargin import checks
from hypermargin.common.arrays import Counts, Floats, Truth
from hypermargin.evaluate.curve import Curve
from hypermargin.evaluate.pairs import GRID, Samples, block_size, blocks

BINS = 60  # of the scores, from which pairs between the extremes are drawn
DRAWN = 20_000  # pairs of each kind that they are drawn from


@dataclass(frozen=True, eq=False)
class WorstPairs:
    """Pairs by the rows that were given, highest score first.

    highest  every impostor pair with this score or a higher one is here; inf if there is no such score
    lowest   every genuine pair with this score or a lower one is here; −inf if there is no such score
    """

    first: Counts
    second: Counts
    score: Floats
    genuine: Truth
    highest: float
    lowest: float


def worst_pairs(s: Samples, curve: Curve, most: int = 2000, between: int = 4) -> WorstPairs:
    """Find up to `most` of the worst pairs of each kind, whole scores at a time, and `between` per bin of the rest.

    One pass over all pairs. What is between is drawn from random pairs, the same every time.
    """
    checks.count("most", most)
    highest, lowest = _limits(curve, most)
    top, low = _cell(highest), _cell(lowest)
    found = []
    for b in blocks(s, block_size(None, s.x)):
        reached = b.found >= top
        if b.impostor is not None and b.genuine is not None:
            reached &= b.impostor
            found += [_places(b.i, b.j, (b.found <= low) & b.genuine)]
        found += [_places(b.i, b.j, reached)]
    rows = np.concatenate([*found, _drawn(s, between)], axis=1)
    rows = np.unique(np.sort(rows, axis=0), axis=1)
    scores = _scores(s, rows)
    order = np.argsort(-scores, kind="stable")
    i, j = rows[:, order]
    return WorstPairs(s.order[i], s.order[j], scores[order], s.ids[i] == s.ids[j], highest, lowest)


def _limits(curve: Curve, most: int) -> tuple[float, float]:
    """Return the score from which on the impostors, and that down to which the genuine pairs, are not too many."""
    k = int(np.searchsorted(curve.impostor, most, side="right"))
    below = curve.genuines - np.concatenate(([0], curve.genuine[:-1]))  # with at most each score
    fits = np.flatnonzero(below <= most)
    return float(curve.scores[k - 1]) if k else np.inf, float(curve.scores[fits[0]]) if len(fits) else -np.inf


def _cell(score: float) -> int:
    return round((min(max(score, -2.0), 2.0) + 1) * GRID)


def _places(i: int, j: int, hit: torch.Tensor) -> Counts:
    """Return rows of the sorted samples, (2, pairs), where a block has what is looked for."""
    at: Counts = hit.nonzero().cpu().numpy().T + np.array([[i], [j]])
    return at


def _drawn(s: Samples, between: int) -> Counts:
    """Draw pairs of both kinds, the same number from each bin of scores."""
    rng = np.random.default_rng(0)
    i = rng.integers(0, len(s.ids), 2 * DRAWN)
    starts = np.cumsum(s.sizes) - s.sizes
    own = starts[s.ids[i]] + rng.integers(0, s.sizes[s.ids[i]])
    j = np.where(np.arange(len(i)) < DRAWN, own, rng.integers(0, len(s.ids), len(i)))
    rows = np.unique(np.sort(np.stack((i, j))[:, i != j], axis=0), axis=1)
    rng.shuffle(rows, axis=1)
    scores = _scores(s, rows)
    if not len(scores):
        return rows
    edges = np.linspace(scores.min(), scores.max(), BINS + 1)
    kind = np.searchsorted(edges, scores, side="right") * 2 + (s.ids[rows[0]] == s.ids[rows[1]])
    order = np.argsort(kind, kind="stable")
    begin = np.searchsorted(kind[order], kind[order])  # where the pair's own bin begins
    return rows[:, order[np.arange(len(order)) - begin < between]]


def _scores(s: Samples, rows: Counts) -> Floats:
    """Score pairs of sorted samples as `verification` does."""
    i, j = (torch.from_numpy(side).to(s.x.device) for side in rows)
    sides = zip(torch.split(i, 65536), torch.split(j, 65536), strict=True)
    parts = [(s.x[a].double() * s.x[b].double()).sum(1) for a, b in sides]
    found = torch.cat(parts) if parts else s.x.new_zeros(0, dtype=torch.float64)
    scores: Floats = ((found * GRID).round() / GRID).clamp(-1, 1).cpu().numpy()
    return scores
