"""How the features lie: tight within a class, apart between classes, and what their length says."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hypermargin.common.arrays import Floats, Truth, Values
from hypermargin.evaluate.curve import Curve
from hypermargin.evaluate.identification import Identification
from hypermargin.evaluate.identification import of_samples as identified
from hypermargin.evaluate.pairs import GRID, Samples, block_size, histogram, samples
from hypermargin.evaluate.prototypes import Prototypes, Spread, nearest_other, prototypes_of
from hypermargin.margins import Margin
from hypermargin.numerics import angle_between, unit

QUANTILES = 5


@dataclass(frozen=True)
class Norms:
    """Lengths of the features, before they are made unit. Does a short one mean a poor image?

    mean         of all
    within       standard deviation within a class, over the mean
    between      standard deviation of the classes' means, over the mean
    correlation  Spearman's, of length and cosine to the own center (classes of two and more); NaN if constant
    genuine      (mean length, mean genuine score) in five equal parts of the samples, shortest first
    """

    mean: float
    within: float
    between: float
    correlation: float
    genuine: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Geometry:
    """Angles in radians. The center of a class is the mean direction of its samples, the sample itself among them.

    own_centre    angle to the own center, of samples in classes of two and more
    other_centre  angle to the nearest center of another class, of all samples
    intra         mean angle of genuine pairs
    inter         mean angle of impostor pairs
    separated     share of classes (of two and more) farther from everybody else than wide: the largest angle
                  within is smaller than the smallest to a sample of another class, A-Softmax's promise
    alignment     mean |x−y|² of genuine pairs (Wang and Isola 2020); lower is tighter
    uniformity    log of the mean of exp(−2|x−y|²) over all pairs; lower is more evenly spread
    """

    samples: int
    identities: int
    dim: int
    own_centre: Spread
    other_centre: Spread
    intra: float
    inter: float
    separated: float
    alignment: float
    uniformity: float
    norms: Norms
    prototypes: Prototypes | None


def geometry(
    features: Values, labels: Values, *, prototypes: Values | None = None, margin: Margin | None = None
) -> Geometry:
    """Measure features (N, d) as the network gives them, not yet unit, and labels (N,).

    - prototypes: (C, d), the head's weight, if the labels are its rows
    - margin: the one it was trained with, to see how many samples meet it
    """
    s = samples(features, labels, "features")
    against = prototypes_of(s, prototypes, margin)
    curve = Curve.of(*histogram(s, block_size(None, s.x)))
    return of_samples(s, curve, identified(s, (1,), None), against)


def of_samples(s: Samples, curve: Curve, found: Identification, prototypes: Prototypes | None) -> Geometry:
    """Compute `geometry` of sorted samples, with what verification and identification have already found."""
    y = torch.from_numpy(s.ids).to(s.x.device)
    sums = s.x.new_zeros(len(s.sizes), s.x.shape[1]).index_add_(0, y, s.x)
    centers = unit(sums)
    social = s.sizes[s.ids] > 1
    own = _numpy(angle_between(s.x, centers[y]))
    other = np.arccos(_numpy(nearest_other(s.x, y, centers)[0]).clip(-1, 1))
    angle = np.arccos(curve.scores)
    genuine, impostor = np.diff(curve.genuine, prepend=0), np.diff(curve.impostor, prepend=0)
    near = np.exp(-2 * (2 - 2 * curve.scores))
    return Geometry(
        len(s.ids),
        len(s.sizes),
        s.x.shape[1],
        Spread.of(own[social]),
        Spread.of(other),
        float(genuine @ angle) / curve.genuines,
        float(impostor @ angle) / curve.impostors,
        _separated(s, found),
        float(genuine @ (2 - 2 * curve.scores)) / curve.genuines,
        math.log(float((genuine + impostor) @ near) / (curve.genuines + curve.impostors)),
        _norms(s, y, sums, np.cos(own), social),
        prototypes,
    )


def _separated(s: Samples, found: Identification) -> float:
    starts = np.cumsum(s.sizes) - s.sizes
    widest = np.fmin.reduceat(found.own_farthest[s.order], starts)
    nearest = np.fmax.reduceat(found.stranger[s.order], starts)
    return float((widest > nearest)[s.sizes > 1].mean())


def _norms(s: Samples, y: Tensor, sums: Tensor, own: Floats, social: Truth) -> Norms:
    norms = _numpy(s.norms)
    mean = norms.mean()
    means = np.bincount(s.ids, norms) / s.sizes
    # The scores of a sample with its n−1 others sum to ⟨x, Σx⟩ − 1.
    scores = (_numpy((s.x * sums[y]).sum(1)) - 1) / np.maximum(1, s.sizes[s.ids] - 1)
    order = np.flatnonzero(social)[np.argsort(norms[social], kind="stable")]
    parts = [part for part in np.array_split(order, QUANTILES) if len(part)]
    return Norms(
        float(mean),
        float(np.sqrt(((norms - means[s.ids]) ** 2).mean()) / mean),
        float(means.std() / mean),
        # Two of a class are equally far from their center, but for rounding.
        spearman(norms[social], np.round(own[social] * GRID)),
        tuple((float(norms[part].mean()), float(scores[part].mean())) for part in parts),
    )


def spearman(a: Floats, b: Floats) -> float:
    """Compute the correlation of ranks; equal values share the mean of theirs."""
    ranks = []
    for values in (a, b):
        _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[place])
    x, y = (rank - rank.mean() for rank in ranks)
    size = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / size if size else math.nan


def _numpy(values: Tensor) -> Floats:
    found: Floats = values.double().cpu().numpy()
    return found
