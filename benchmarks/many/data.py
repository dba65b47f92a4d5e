"""The drawn characters on a device, cut into training, held and test identities, in seen and unseen typefaces."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.heads.tasks import Part, Task
from benchmarks.many.plan import Spec
from benchmarks.successors.conditions import long_tail
from hypermargin.data import read_drawn

TEST, HELD = 3000, 1000  # identities at most
SHARES = 1 / 5, 1 / 15  # of all identities at most


@dataclass(frozen=True)
class Drawing:
    """All images, and which identities are for what: never the same for two things."""

    images: Tensor
    label: np.ndarray
    seen: np.ndarray  # of each image: is its typeface one that training may see?
    train: np.ndarray  # identities, those that a smaller number takes first
    held: np.ndarray
    test: np.ndarray


@dataclass(frozen=True)
class Many(Task):
    """Train; `test` has unseen typefaces of the test's (or held) identities, `seen` the others of the same."""

    seen: Part
    left_out: Part  # images of training identities that a long tail leaves out


def divide(there: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divide identities by chance, the same for every run: training, held, test. The last two can be verified."""
    count = there.shape[1]
    order = np.random.default_rng(0).permutation(count)
    testable = (there[~seen].sum(0) >= 2)[order]
    some = order[testable]
    test = min(TEST, int(SHARES[0] * count), len(some))
    held = min(HELD, int(SHARES[1] * count), len(some) - test)
    aside = some[: test + held]
    return order[~np.isin(order, aside)], aside[test:], aside[:test]


class Data:
    """The file, read once, and the task of each run."""

    def __init__(self, file: Path, device: torch.device) -> None:
        drawn = read_drawn(file)
        face, label = drawn.rows()
        train, held, test = divide(drawn.there, drawn.seen)
        images = torch.from_numpy(drawn.images()).to(device)
        self.drawing = Drawing(images, label, drawn.seen[face], train, held, test)

    def of(self, spec: Spec) -> Many:
        """What a run trains on and is measured on."""
        d = self.drawing
        if spec.identities is None or spec.identities > len(d.train):
            raise ValueError(f"{len(d.train)} identities are there to train on; asked for {spec.identities}.")
        train = self.part(d.train[: spec.identities], d.seen)
        left_out = Part(train.images[:0], train.labels[:0])
        if spec.tail:
            kept = torch.from_numpy(long_tail(train.labels.cpu().numpy(), spec.seed)).to(train.labels.device)
            left_out = Part(train.images[~kept], train.labels[~kept])
            train = Part(train.images[kept], train.labels[kept])
        measured = d.held if spec.stage == "select" else d.test
        unseen, seen = self.part(measured, ~d.seen), self.part(measured, d.seen)
        return Many("glyphs", train, unseen, True, seen, left_out)

    def part(self, identities: np.ndarray, which: np.ndarray) -> Part:
        """The images of identities, numbered as they stand, in some typefaces."""
        d = self.drawing
        place = np.full(int(d.label.max()) + 1, -1)
        place[identities] = np.arange(len(identities))
        rows = np.flatnonzero((place[d.label] >= 0) & which)
        at = torch.from_numpy(rows).to(d.images.device)
        return Part(d.images[at], torch.from_numpy(place[d.label[rows]]).to(d.images.device))


def available(file: Path) -> int:
    """How many identities there are to train on."""
    drawn = read_drawn(file)
    return len(divide(drawn.there, drawn.seen)[0])
