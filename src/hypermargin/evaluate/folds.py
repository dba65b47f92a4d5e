"""Accuracy over folds, as published for LFW: thresholds never see the pairs they are measured on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hypermargin import checks
from hypermargin.common.arrays import Counts, Values, to_numpy
from hypermargin.evaluate.curve import count_scores, given_pairs


@dataclass(frozen=True)
class Folds:
    """The accuracy, mean over the folds; its standard error, std(n−1)/√n; the rest fold by fold."""

    accuracy: float
    error: float
    accuracies: tuple[float, ...]
    thresholds: tuple[float, ...]


def kfold(scores: Values, same: Values, folds: int | Values | None = None) -> Folds:
    """Measure accuracy on each fold, with the threshold that is right most often on all the other folds.

    Thresholds are the scores of those other folds, and one just above them all. Of equally good ones the highest
    counts: the strictest, as in the published code, which takes the first of rising distances.

    - scores, same: as in `from_scores`
    - folds: how many, cut in the order of the pairs as scikit-learn's KFold(shuffle=False) does, the first ones
      larger by one; or (P,) the fold of each pair; None: 10
    """
    s, truth = given_pairs(scores, same)
    fold = _numbers(folds, len(s))
    accuracies, thresholds = [], []
    for number in np.unique(fold):
        out = fold == number
        levels, genuine, impostor = count_scores(s[~out], truth[~out])
        right = np.concatenate(([0], np.cumsum(genuine - impostor)))  # and the same number more at each
        best = int(right.argmax())
        threshold = float(levels[best - 1]) if best else math.nextafter(float(levels[0]), math.inf)
        accuracies.append(float(((s[out] >= threshold) == truth[out]).mean()))
        thresholds.append(threshold)
    error = float(np.std(accuracies, ddof=1)) / math.sqrt(len(accuracies))
    return Folds(float(np.mean(accuracies)), error, tuple(accuracies), tuple(thresholds))


def _numbers(folds: int | Values | None, pairs: int) -> Counts:
    """Return the fold of each pair."""
    folds = 10 if folds is None else folds
    if isinstance(folds, int):
        checks.count("folds", folds, 2)
        if folds > pairs:
            raise ValueError(f"folds must be at most the number of pairs, {pairs}; got {folds}.")
        sizes = [len(part) for part in np.array_split(np.arange(pairs), folds)]
        return np.repeat(np.arange(folds), sizes)
    given = to_numpy(folds)
    if given.shape != (pairs,):
        raise ValueError(f"folds must be a number, or have shape ({pairs},), one per pair; got {given.shape}.")
    found = np.unique(given, return_inverse=True)[1]
    if pairs == 0 or found.max() < 1:
        raise ValueError("folds must hold at least 2 different ones: a threshold comes from the others.")
    return found
