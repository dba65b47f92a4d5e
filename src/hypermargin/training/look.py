"""One look at a run on the way: how it does on the validation part, and whether it counts as trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hypermargin.common.arrays import Floats
from hypermargin.data import at_most
from hypermargin.evaluate.edges import Problem
from hypermargin.evaluate.intervals import around, standard_error, tables, without_each
from hypermargin.evaluate.pairs import block_size, samples
from hypermargin.training.evaluation import compare_all

if TYPE_CHECKING:
    from hypermargin.training.loop import Trainer

MOST_VALIDATED = 5_000  # samples of an open set whose pairs are all compared
MOST_KNOWN = 1_000  # training samples that are classified
NARROW = 10.0  # degrees between impostors
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Look:
    """What was seen of a step on the validation part.

    values     the numbers for the log; the first is what steps are compared by
    samples    of the validation part
    known      share of training samples that are nearest their own class
    without    open set: the EER without each identity in turn, None where that leaves no pairs
    apart      open set: median angle of impostor pairs in degrees; None where the network learns nothing
    threshold  open set: the cosine at equal errors
    """

    values: dict[str, float]
    samples: int
    known: float
    without: tuple[float | None, ...] = ()
    apart: float | None = None
    threshold: float | None = None

    @property
    def metric(self) -> str:
        """What steps are compared by."""
        return next(iter(self.values))

    @property
    def logged(self) -> dict[str, float]:
        """What the log gets."""
        more = {"known": self.known} if self.apart is None else {"known": self.known, "apart": self.apart}
        return {**self.values, **self.interval, **more}

    @property
    def interval(self) -> dict[str, float]:
        """The 95 % interval of what steps are compared by: the jackknife's over identities, or Wilson's."""
        theta, z = self.values[self.metric], NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
        if self.metric == "accuracy":
            n = self.samples
            middle, reach = theta + z * z / (2 * n), z * math.sqrt(theta * (1 - theta) / n + (z / (2 * n)) ** 2)
            low, high = ((middle + side * reach) / (1 + z * z / n) for side in (-1, 1))
        else:
            left = self.left
            there = left[~np.isnan(left)]
            if len(there) < 2:
                return {}
            low, high = around(theta, z * standard_error(there), 1 - (1 - CONFIDENCE) ** (1 / len(there)))
        return {f"{self.metric}_low": low, f"{self.metric}_high": high}

    @property
    def left(self) -> Floats:
        """`without`, NaN for None."""
        return np.array([math.nan if value is None else value for value in self.without])

    def doubts(self, classes: int) -> list[str]:
        """Say what tells that the network is not trained: guessing, or impostors side by side.

        Guessing one of C classes is right in 1/C of the cases; half-way from there to 1, as ratios go, is 1/√C.
        """
        found = []
        if self.known < classes**-0.5:
            share = f"{self.known:.1%} of the training samples are nearest their own class"
            found.append(f"{share} (guessing gives {1 / classes:.1%})")
        if self.apart is not None and self.apart < NARROW:
            close = f"half of the impostor pairs are within {self.apart:.1f}°"
            found.append(close + ("" if self.threshold is None else f", threshold cosine {self.threshold:.4f}"))
        return found


def look_at(trainer: Trainer) -> Look:
    """Measure the trainer's weights as they are, averaged ones if it keeps them; of several ranks, all together."""
    split, labels = trainer.split, trainer.data.labels
    with trainer.averaged():
        known = known_share(trainer)
        if not split.open_set:
            accuracy, loss, samples = trainer.classified(split.validation)
            return Look({"accuracy": accuracy, "loss": loss}, samples, known)
        features, read = trainer.embed(trainer.feed, at_most(split.validation, labels, MOST_VALIDATED))
        identities = torch.from_numpy(labels[read])
        look = trainer.ranks.lead(lambda: compare_identities(features.to(trainer.device), identities, known))
    # Samples that are taken as they are may lie as they like.
    return look if trainer.config.model != "none" else replace(look, apart=None, threshold=None)


def known_share(trainer: Trainer) -> float:
    """Return the share of training samples, of some if they are many, that are nearest their own class."""
    rows = trainer.split.train
    chosen = np.sort(np.random.default_rng(0).permutation(len(rows))[:MOST_KNOWN])
    return trainer.classified(rows[chosen])[0]


def compare_identities(features: Tensor, labels: Tensor, known: float) -> Look:
    """Compare identities that training did not see."""
    values, pairs = compare_all(features, labels)
    s = samples(features, labels)
    problem = Problem(pairs.curve, (), CONFIDENCE)
    counted = tables(problem, s, block_size(None, s.x))
    without = tuple(None if math.isnan(eer) else eer for eer in without_each(problem, *counted)["eer"].tolist())
    middle = int(np.searchsorted(pairs.curve.impostor, pairs.impostor / 2))
    apart = math.degrees(math.acos(min(1.0, max(-1.0, float(pairs.curve.scores[middle])))))
    return Look(values, len(labels), known, without, apart, pairs.threshold)
