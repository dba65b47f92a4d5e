"""Who is it? Each sample looks for its own identity among all the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from hypermargin import checks
from hypermargin.evaluate.verification import Values, cells, directions


def rank_k(embeddings: Values, labels: Values, k: Sequence[int] = (1, 5), *, block: int = 64) -> dict[int, float]:
    """By k: the share of queries that have their own identity among the k nearest of the other samples.

    Leave one out: each sample is a query to all the others, by cosine rounded as in `verification`. Samples
    whose identity has no second one are only searched, and ask nothing. A tie is lost: a stranger with the same
    score as the nearest of the own identity counts as nearer. Inputs as in `verification`; `block` is the number
    of queries at a time.
    """
    x, ids = directions(embeddings, labels)
    for each in k:
        checks.count("k", each)
    checks.count("block", block)
    queries = np.flatnonzero(np.bincount(ids)[ids] > 1)
    if len(queries) == 0:
        raise ValueError("there is no query: every label occurs once. Give at least one identity with two samples.")
    y = torch.from_numpy(ids).to(x.device)
    hits = dict.fromkeys(k, 0)
    for start in range(0, len(queries), block):
        rows = torch.from_numpy(queries[start : start + block]).to(x.device)
        found = cells(x[rows], x)
        same = y[rows, None] == y
        own = found.masked_fill(~same, -1).scatter_(1, rows[:, None], -1)
        nearer = ((found >= own.amax(1, keepdim=True)) & ~same).sum(1)
        for each in hits:
            hits[each] += int((nearer < each).sum())
    return {each: count / len(queries) for each, count in hits.items()}
