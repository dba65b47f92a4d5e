"""Samples to leave out of training, listed in a file by their own files' names."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import numpy as np

from hypermargin.data.base import Data, DataError, Rows, some
from hypermargin.data.split import Split


def read_names(path: Path) -> list[str]:
    """Read the column `file` of a .csv file, such as `hypermargin head clean` writes."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.DictReader(file)
            if "file" not in (lines.fieldnames or ()):
                raise DataError(f"{path}: its first line must name a column `file`; got {lines.fieldnames}.")
            return [line["file"] for line in lines if line["file"]]
    except FileNotFoundError:
        raise DataError(f"exclude: there is no file {path}.") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"exclude: {path} cannot be read ({error}).") from None


def excluded(path: Path, data: Data) -> Rows:
    """Return the rows of the data that a list names."""
    names = set(read_names(path))
    rows = [row for row in range(len(data)) if data.where(row) in names]
    if len({data.where(row) for row in rows}) < len(names):
        strange = sorted(names - {data.where(row) for row in rows})
        raise DataError(
            f"exclude: {path} names {len(strange):,} samples that {data.name} has not, such as {strange[0]}; the "
            f"data's own are called as {data.where(0)} is. Give the data that the list was made from, by the same "
            "path."
        )
    return np.asarray(rows, dtype=np.int64)


def without(parts: Split, rows: Rows, data: Data) -> Split:
    """Return the split with these rows left out of its training part, and identities that have no others.

    The other parts stay as they are: rows of theirs are not left out, and a closed set must train what it tests.
    """
    train = parts.train[~np.isin(parts.train, rows)]
    classes = np.unique(data.labels[train]).astype(np.int64)
    gone = np.setdiff1d(parts.classes, classes)
    tested = np.concatenate([parts.validation, parts.test])
    if len(classes) < 2:
        raise DataError(f"exclude leaves {len(classes)} identities for training; a margin needs at least 2.")
    if not parts.open_set and np.isin(gone, data.labels[tested]).any():
        names = [data.classes[k] for k in gone[np.isin(gone, data.labels[tested])]]
        raise DataError(
            f"exclude leaves nothing to train of {some(names)}, which a closed set tests. Keep a sample of each, "
            'or use split="identity".'
        )
    return dataclasses.replace(parts, train=train, classes=classes)
