"""The samples of a run that do not belong to the dominant center of their class, as a list to train without."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hypermargin.common.text import say as tell
from hypermargin.files import replacing
from hypermargin.heads.cleaning import RIGHT, Cleaned, clean

if TYPE_CHECKING:
    from torch import Tensor

    from hypermargin.data import Data
    from hypermargin.data.base import Rows

HEADING = "file", "label", "center", "angle"
GROUP = 256


@dataclass(frozen=True)
class CleanedRun:
    """What was found in the training part of a run."""

    cleaned: Cleaned
    data: Data
    rows: Rows  # of the data, one for each sample that was looked at
    targets: Rows  # the head's class of each of them
    classes: tuple[str, ...]  # names of the head's classes

    def dropped(self) -> Iterator[tuple[str, str, int, float]]:
        """Yield file, class, nearest center and the angle to the dominant one in degrees, farthest first."""
        out = (~self.cleaned.keep).nonzero()[:, 0]
        for at in out[self.cleaned.angle[out].argsort(descending=True, stable=True)].tolist():
            row = int(self.rows[at])
            center, angle = int(self.cleaned.nearest[at]), math.degrees(self.cleaned.angle[at])
            yield self.data.where(row), self.data.classes[self.data.labels[row]], center, angle

    def write(self, path: Path) -> None:
        """Write them as a .csv file, which `train --exclude` takes."""
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerow(HEADING)
            lines.writerows((*first, f"{angle:.2f}") for *first, angle in self.dropped())


def clean_run(
    folder: Path,
    angle: float = RIGHT,
    *,
    data: str | None = None,
    say: Callable[[str], None] = tell,
    progress: Callable[[int, int], None] = lambda done, total: None,
    **loading: Any,
) -> CleanedRun:
    """Find the dominant centers of a run's head, and the training samples farther than `angle` from theirs.

    - data: where the training data lie now, if not where they were
    - the rest as in `hypermargin.load`: which, device, trust, allow_older
    """
    from hypermargin.training import load
    from hypermargin.training.evaluation import open_parts

    trained = load(folder, **loading)
    for note in trained.passed_over:
        say(note)
    parts = open_parts(folder, trained, data=data, say=say)
    rows, targets, read = parts.split.train, parts.split.targets(parts.data.labels), []

    def features() -> Iterator[tuple[Tensor, Tensor]]:
        import torch

        done = 0
        with closing(parts.feed(np.split(rows, range(GROUP, len(rows), GROUP)))) as groups:
            for raw, here in groups:
                read.append(here)
                yield trained.features(raw), torch.from_numpy(targets[here])
                done += len(here)
                progress(done, len(rows))

    cleaned = clean(trained.head, features(), angle)
    seen = np.concatenate(read)
    return CleanedRun(cleaned, parts.data, seen, targets[seen], trained.classes)
