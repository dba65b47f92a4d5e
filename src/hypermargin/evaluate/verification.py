"""Verification, are two samples of one identity: EER, AUC, minDCF and TAR at fixed FAR, of all or given pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hypermargin import checks
from hypermargin.common.arrays import Counts, Truth, Values, to_numpy
from hypermargin.evaluate.curve import Curve, count_scores, given_pairs
from hypermargin.evaluate.edges import Problem
from hypermargin.evaluate.intervals import (
    Intervals,
    bootstrap,
    bootstrap_pairs,
    check,
    few,
    jackknife,
    tables,
    tables_of_pairs,
)
from hypermargin.evaluate.pairs import GRID, Samples, block_size, cells, histogram, samples

FAR = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


@dataclass(frozen=True)
class Verification:
    """What the pairs say. See `verification` for how they are scored.

    eer         FAR = FRR, on the straight lines between neighbouring operating points
    threshold   the score to accept from at that error: the highest one with FAR ≥ FRR
    auc         P(genuine > impostor) + ½·P(genuine = impostor)
    tar         by FAR f: the largest TAR of a threshold with FAR ≤ f
    thresholds  by FAR f: the lowest score with FAR ≤ f
    min_dcf     the least detection cost at 1 % genuine trials and equal costs; `curve.min_dcf` has others
    genuine     number of such pairs
    impostor    number of such pairs
    intervals   (low, high) of "eer", "auc", "min_dcf", and by FAR f of the TAR; None if not asked for
    curve       everything the thresholds accept
    """

    eer: float
    threshold: float
    auc: float
    tar: dict[float, float]
    thresholds: dict[float, float]
    min_dcf: float
    genuine: int
    impostor: int
    intervals: Intervals | None = None
    curve: Curve = field(compare=False, repr=False, kw_only=True)

    @property
    def supported(self) -> tuple[float, ...]:
        """The FARs that the number of impostor pairs can show: f·impostor ≥ 1."""
        return tuple(f for f in self.tar if self.curve.supports(f))


def verification(
    embeddings: Values,
    labels: Values,
    *,
    far: Sequence[float] = FAR,
    confidence: float | None = None,
    method: str = "auto",
    block: int | None = None,
) -> Verification:
    """Compare all pairs i < j of the rows, scored by their cosine rounded to a multiple of 2⁻²⁰ ≈ 1e-6.

    For these scores the numbers are exact, and collapsed embeddings get an EER of ½. Time grows with the pairs,
    memory (some 150 MB beside the embeddings) does not.

    - embeddings: (N, d), of any length but 0; computed in float32, or float64 if given so, on their device
    - labels: (N,) identities: whole numbers, or names in a numpy array
    - confidence: 0.95, say, for intervals over identities; None or 0: none. `method` "bootstrap" (up to 500,000
      pairs), "jackknife" (a second pass over the pairs), or "auto": the first that can. See
      `hypermargin.evaluate.intervals`
    - block: rows and columns of one product
    """
    return of_samples(samples(embeddings, labels), far, confidence, method, block)


def of_samples(
    s: Samples, far: Sequence[float], confidence: float | None, method: str, block: int | None
) -> Verification:
    """Compute `verification` of samples that are already sorted."""
    size = block_size(block, s.x)
    confidence = check(confidence, method)
    _check_far(far)
    if s.genuine == 0 or s.impostor == 0:
        Curve.of(np.zeros(1), np.array([s.genuine]), np.array([s.impostor]))  # says which are missing
    curve = Curve.of(*histogram(s, size))
    found = None
    if confidence is not None:
        problem = Problem(curve, tuple(far), confidence)
        if few(s.genuine + s.impostor, method):
            i, j = np.triu_indices(len(s.ids), 1)
            scores = cells(s.x, s.x).cpu().numpy()[i, j] / GRID - 1
            found = bootstrap(problem, scores, s.ids[i] == s.ids[j], s.ids[i], s.ids[j])
        else:
            found = jackknife(problem, *tables(problem, s, size))
    return _measured(curve, far, found)


def from_scores(
    scores: Values,
    same: Values,
    *,
    far: Sequence[float] = FAR,
    identities: tuple[Values, Values] | None = None,
    confidence: float | None = None,
    method: str = "auto",
) -> Verification:
    """Judge given pairs: (P,) scores, higher for more alike, taken as they are, and (P,) whether each is genuine.

    `identities` are those of the first and of the second sample of each pair. With them the intervals are over
    identities; without them over pairs, as if no two pairs shared a person, which is too narrow where some do.
    """
    confidence = check(confidence, method)
    _check_far(far)
    s, truth = given_pairs(scores, same)
    curve = Curve.of(*count_scores(s, truth))
    found = None
    if confidence is not None:
        problem = Problem(curve, tuple(far), confidence)
        if identities is None:
            if method == "jackknife":
                raise ValueError(
                    'method "jackknife" leaves out identities, one at a time. Give identities, or use "auto".'
                )
            found = bootstrap_pairs(problem)
        else:
            first, second = _same_names(identities, truth)
            if few(len(s), method):
                found = bootstrap(problem, s, truth, first, second)
            else:
                found = jackknife(problem, *tables_of_pairs(problem, s, truth, first, second))
    return _measured(curve, far, found)


def _measured(curve: Curve, far: Sequence[float], found: Intervals | None) -> Verification:
    eer, threshold = curve.equal_error()
    return Verification(
        eer,
        threshold,
        curve.auc,
        {float(f): curve.tar_at(f) for f in far},
        {float(f): curve.threshold_at(f) for f in far},
        curve.min_dcf()[0],
        curve.genuines,
        curve.impostors,
        found,
        curve=curve,
    )


def _same_names(identities: tuple[Values, Values], same: Truth) -> tuple[Counts, Counts]:
    """Return both columns as 0, 1, …, with one number for one name."""
    first, second = (to_numpy(column) for column in identities)
    if first.shape != same.shape or second.shape != same.shape:
        raise ValueError(
            f"identities must be two arrays of shape {same.shape}, like same; got {first.shape} and {second.shape}."
        )
    both = np.unique(np.concatenate((first, second)), return_inverse=True)[1]
    first, second = both[: len(same)], both[len(same) :]
    wrong = np.flatnonzero((first == second) != same)
    if len(wrong):
        raise ValueError(
            f"identities must be equal where same is true, and only there; pair {wrong[0]} is otherwise "
            f"({len(wrong)} such pairs)."
        )
    return first, second


def _check_far(far: Sequence[float]) -> None:
    for f in far:
        checks.in_range("far", f, 0.0, 1.0)
