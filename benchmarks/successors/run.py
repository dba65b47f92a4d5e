"""A run of the study: the recipe of benchmarks.heads on changed training data, and what it is measured by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.heads.loop import Run
from benchmarks.heads.tasks import Task, load
from benchmarks.successors.conditions import Changed, changed
from benchmarks.successors.plan import Spec
from hypermargin import MarginHead, create_head
from hypermargin.counts import margins_from_counts
from hypermargin.recipes import FAMILY

GROUPS = {"few": (1, 3), "some": (4, 8), "many": (9, 19)}  # training samples of an identity in the long tail


class Data:
    """The data on a device, loaded once and changed for each run."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.folder, self.device, self.tasks = folder, device, dict[str, Task]()

    def of(self, spec: Spec) -> Changed:
        """What a run trains on and is measured on."""
        if spec.stage not in self.tasks:
            self.tasks[spec.stage] = load(spec.task, self.folder, spec.stage, self.device)
        return changed(self.tasks[spec.stage], spec)


class StudyRun(Run):
    """A run on changed data."""

    spec: Spec
    task: Changed

    def make_head(self, overrides: dict[str, Any]) -> MarginHead:
        """The head, with the counts of the classes where it goes by them.

        Dense for all: every head has it, and nothing is compiled.
        """
        dim, counts = self.spec.dim, self.task.counts
        if self.spec.head == "arcface-by-counts":
            high = overrides.pop("m")
            margins = margins_from_counts(counts.cpu(), "power", low=min(0.05, high), high=high)
            return create_head("arcface", dim, len(counts), backend="dense", class_margins=margins, **overrides)
        if FAMILY[self.spec.head].by_counts is not None:
            overrides["counts"] = counts.cpu()
        return create_head(self.spec.head, dim, len(counts), backend="dense", **overrides)

    def watch(self, features: Tensor, labels: Tensor) -> None:
        """Nothing: the accuracy of every step would be a tenth of its kernels."""

    def watched(self) -> dict[str, Any]:
        """Nothing was."""
        return {}

    @torch.no_grad()
    def measure_train(self) -> dict[str, float]:
        """What the training images, as they are, are taken for: a cosine's or a logit's first class."""
        part, found = self.task.train, dict[str, float]()
        features = self.features(part.images)
        taken, wrong = self.decided(features), part.labels != self.task.truth
        found["accuracy"] = _share(taken == part.labels)
        found["norm"] = float(features.norm(dim=1).mean())
        if bool(wrong.any()):
            found["right"] = _share((taken == self.task.truth)[~wrong])  # of samples with the right label
            found["believed"] = _share((taken == part.labels)[wrong])  # of the others: the label they were given
            found["seen_through"] = _share((taken == self.task.truth)[wrong])  # the one they should have had
        if len(self.task.left_out.labels):
            labels = self.task.left_out.labels
            right, counts = self.decided(self.features(self.task.left_out.images)) == labels, self.task.counts
            for name, (least, most) in GROUPS.items():
                members = (counts[labels] >= least) & (counts[labels] <= most)
                if bool(members.any()):
                    found[f"left_out_{name}"] = _share(right[members])
        return found

    def decided(self, features: Tensor) -> Tensor:
        """The class with the highest logit, without margin or offset."""
        rows = range(0, len(features), 4096)
        return torch.cat([self.head.logits(features[i : i + 4096]).argmax(1) for i in rows])


def _share(which: Tensor) -> float:
    return float(which.float().mean())
