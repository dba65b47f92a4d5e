"""What can be trained on: samples, an identity for each, and the errors that name the file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hypermargin.common.arrays import Array

Rows = NDArray[np.int64]

TRAIN, VALIDATION, TEST, UNUSED = 0, 1, 2, -1
UNREADABLE = "error", "skip"


class DataError(ValueError):
    """Data that cannot be used. The message names the file, what is wrong with it, and what to do."""


class Bad(NamedTuple):
    """A sample that was left out, and why."""

    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


@runtime_checkable
class Source(Protocol):
    """Samples that stay in their files until asked for. Must survive pickling: worker processes read from it."""

    shape: tuple[int, ...]  # of one sample: (H, W) or (H, W, 3)

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, row: int, /) -> Array:
        """Return sample `row`, uint8 of `shape`; DataError if it cannot be read."""
        ...

    def where(self, row: int, /) -> str:
        """Return the file, or the file and the record in it."""
        ...


@dataclass(frozen=True)
class Data:
    """Samples and their identities.

    samples   (N, H, W) or (N, H, W, 3) images, uint8 or float32; (N, d) float32 vectors; or a `Source` of images
    labels    (N,) class ids 0 … C−1, `classes` their names
    parts     (N,) TRAIN, VALIDATION, TEST or UNUSED where the data come with a split of their own, else None
    open_set  are the identities of the test unseen in training? The default way to split, and to evaluate
    bad       what on_bad="skip" left out
    """

    name: str
    samples: Array | Source
    labels: Rows
    classes: tuple[str, ...]
    parts: NDArray[np.int8] | None = None
    open_set: bool = True
    augment: str = "none"  # what suits these data, in the words of `data.augment`
    bad: list[Bad] = field(default_factory=list)
    origin: tuple[Source, Rows] | None = None  # of samples that were decoded: their files, and the row there

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.samples):
            raise DataError(f"{self.name}: {len(self.samples)} samples but {len(self.labels)} labels.")
        if len(self.labels) == 0:
            raise DataError(f"{self.name}: there are no samples in it.")
        counts = np.bincount(self.labels, minlength=len(self.classes))
        if (counts == 0).any():
            empty = [self.classes[i] for i in np.flatnonzero(counts == 0)]
            raise DataError(f"{self.name}: {some(empty)} without any sample. Remove the label or add samples.")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample as a network gets it: (channels, height, width) or (d,)."""
        one = tuple(self.samples.shape[1:]) if isinstance(self.samples, np.ndarray) else self.samples.shape
        if len(one) == 1:
            return one
        return (1, *one) if len(one) == 2 else (one[2], one[0], one[1])

    def where(self, row: int) -> str:
        """Return a sample's name for messages."""
        if self.origin is not None:
            source, rows = self.origin
            return source.where(int(rows[row]))
        return f"{self.name}, sample {row}" if isinstance(self.samples, np.ndarray) else self.samples.where(row)


def from_names(names: list[str]) -> tuple[Rows, tuple[str, ...]]:
    """Return class ids in the sorted order of the names, and the names."""
    classes, labels = np.unique(np.asarray(names, dtype=object).astype(str), return_inverse=True)
    return labels.astype(np.int64), tuple(map(str, classes))


def some(names: list[str], most: int = 5) -> str:
    """Say how many labels these are, and which the first few are."""
    shown = ", ".join(names[:most])
    return f"{len(names)} labels ({shown}{', …' if len(names) > most else ''})" if names[1:] else f"label {shown}"
