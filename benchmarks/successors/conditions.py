"""What is done to the training data: labels made wrong, or identities left with few samples; the test stays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.heads.tasks import Part, Task
from benchmarks.successors.plan import NOISE, Spec

FEWEST, MOST, POWER = 2, 20, 1.5  # samples n per identity: p(n) ∝ n^−1.5, about 6 on average


@dataclass(frozen=True)
class Changed(Task):
    """A task whose training part was changed."""

    truth: Tensor  # the right labels of `train`
    left_out: Part  # samples of the training identities that the tail left out; else none

    @property
    def counts(self) -> Tensor:
        """Training samples per identity."""
        return torch.bincount(self.train.labels, minlength=int(self.truth.max()) + 1)


def changed(task: Task, spec: Spec) -> Changed:
    """The task under the spec's condition; what is changed depends on the spec's seed."""
    part, none = task.train, Part(task.train.images[:0], task.train.labels[:0])
    truth = part.labels
    if spec.condition in NOISE:
        labels = wrong_labels(truth.cpu().numpy(), NOISE[spec.condition], spec.seed)
        part = Part(part.images, torch.from_numpy(labels).to(truth.device))
    elif spec.condition == "tail":
        kept = torch.from_numpy(long_tail(truth.cpu().numpy(), spec.seed)).to(truth.device)
        none = Part(part.images[~kept], truth[~kept])
        part = Part(part.images[kept], truth[kept])
        truth = part.labels
    return Changed(task.name, part, task.test, task.open_set, truth, none)


def wrong_labels(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """A share of the labels replaced by those of other classes, all equally likely."""
    rng = np.random.default_rng([seed, 1])
    classes = int(labels.max()) + 1
    chosen = rng.permutation(len(labels))[: round(share * len(labels))]
    found = labels.copy()
    found[chosen] = (labels[chosen] + rng.integers(1, classes, len(chosen))) % classes
    return found


def sizes(classes: int) -> np.ndarray:
    """Samples per identity, rising: quantiles of the power law, so every seed has the same numbers."""
    n = np.arange(FEWEST, MOST + 1)
    shares = n**-POWER / (n**-POWER).sum()
    at = (np.arange(classes) + 0.5) / classes
    return n[np.searchsorted(shares.cumsum()[:-1], at)]


def long_tail(labels: np.ndarray, seed: int) -> np.ndarray:
    """Which samples stay: which identities are rare, and which of their samples stay, is chance."""
    rng = np.random.default_rng([seed, 2])
    classes = int(labels.max()) + 1
    wanted = rng.permutation(sizes(classes))
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]  # by identity, within each by chance
    counts = np.bincount(labels, minlength=classes)
    place = np.arange(len(labels)) - np.repeat(counts.cumsum() - counts, counts)
    kept = np.zeros(len(labels), bool)
    kept[order] = place < wanted[labels[order]]
    return kept
