"""The order of an epoch: a pure function of seed and epoch, so that a position in it is two numbers."""

from __future__ import annotations

import numpy as np

from hypermargin import checks
from hypermargin.data.base import Rows

SAMPLINGS = ("shuffled", "balanced", "identities")


def batches(labels: Rows, sampling: str, batch: int, *, seed: int, epoch: int, per_identity: int = 4) -> list[Rows]:
    """Yield positions in `labels`, batch by batch.

    - "shuffled": every sample once
    - "balanced": identities in turn, each as often as any other; rare ones repeat, frequent ones take their turn
    - "identities": P = batch/K different identities per batch, K = `per_identity` samples of each (with repeats
      where an identity has fewer)

    A last batch of one sample joins the one before: batch normalisation cannot train on one.
    """
    checks.one_of("sampling", sampling, SAMPLINGS)
    checks.count("batch", batch)
    rng = np.random.default_rng([seed, 1, epoch])
    if sampling == "shuffled":
        return _cut(rng.permutation(len(labels)), batch)
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]  # grouped by identity, shuffled within
    _, first, counts = np.unique(labels[order], return_index=True, return_counts=True)
    C = len(counts)

    def take(identity: Rows, turn: Rows) -> Rows:
        """Return the `turn`-th sample of an identity, going round."""
        return order[first[identity] + turn % counts[identity]].astype(np.int64)

    if sampling == "balanced":
        turns = -(-len(labels) // C)
        identity = np.concatenate([rng.permutation(C) for _ in range(turns)])
        return _cut(take(identity, np.repeat(np.arange(turns), C))[: len(labels)], batch)

    P = batch // per_identity
    if not 1 <= P <= C or batch % per_identity:
        raise ValueError(
            f'sampling="identities" takes batch / per_identity different identities per batch; got '
            f"batch = {batch}, per_identity = {per_identity} and {C} identities. Make batch a multiple "
            f"of per_identity, at most {C * per_identity}."
        )
    each = C // P  # batches in one turn through the identities; who is left over differs from turn to turn
    wanted = max(1, len(labels) // batch)
    turns = -(-wanted // each)
    identity = np.concatenate([rng.permutation(C)[: each * P] for _ in range(turns)])
    turn = np.repeat(np.arange(turns), each * P)
    sample = (turn[:, None] * per_identity + np.arange(per_identity)).reshape(-1)
    return _cut(take(np.repeat(identity, per_identity), sample)[: wanted * batch], batch)


def _cut(rows: Rows, batch: int) -> list[Rows]:
    starts = list(range(0, len(rows), batch))
    if len(starts) > 1 and len(rows) - starts[-1] == 1:
        starts.pop()
    return [rows[a:b] for a, b in zip(starts, [*starts[1:], len(rows)], strict=True)]
