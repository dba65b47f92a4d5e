"""Lists of pairs for a run: read before it, scored after it, and whether they hold people it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from hypermargin.data import Pairs, open_pairs
from hypermargin.data.base import Rows
from hypermargin.data.pairlists import check_both
from hypermargin.evaluate import Scored

UNNAMED = "its images have no names, so whether pairs hold people of the training set is not known"


def read_pairs(
    names: Sequence[str], images: Path | None, shape: tuple[int, ...], on_bad: str = "error"
) -> dict[str, Pairs]:
    """Read files of pairs, by their short names, images resized to what the network knows.

    A list without genuine pairs, or without impostors, is refused now, and not when all images have been embedded.
    """
    found: dict[str, Pairs] = {}
    for name in names:
        if len(shape) != 3:
            raise ValueError(f"{name}: pairs are of images; this network takes vectors of {shape[0]} numbers.")
        pairs = open_pairs(name, images, on_bad=on_bad)
        check_both(name, pairs.same)
        channels, *sides = shape
        pairs.samples.shape = (*sides, 3) if channels == 3 else tuple(sides)
        short = Path(name).name
        found[name if short in found else short] = pairs
    return found


@dataclass(frozen=True)
class Familiar:
    """Pairs that hold people of the training set, whom the network knows: how many, and who."""

    pairs: int
    people: tuple[str, ...]

    def __str__(self) -> str:
        how = "compared by name: a class of the training set, a folder in the list"
        if not self.pairs:
            return f"no pair holds somebody of the training set ({how})"
        some = ", ".join(self.people[:3]) + (", …" if self.people[3:] else "")
        return f"{self.pairs:,} pairs hold one of {len(self.people):,} people of the training set: {some} ({how})"


def familiar(pairs: Pairs, classes: Sequence[str]) -> Familiar | None:
    """Count pairs with people of the training set, by the folders in their names; None if images have no names."""
    if pairs.names is None:
        return None
    known = set(classes)
    found = [next((folder for folder in _folders(name) if folder in known), None) for name in pairs.names]
    there = np.array([who is not None for who in found])
    rows = there[pairs.first] | there[pairs.second]
    used = np.union1d(pairs.first, pairs.second)
    return Familiar(int(rows.sum()), tuple(sorted({who for k in used.tolist() if (who := found[k]) is not None})))


def _folders(name: str) -> list[str]:
    """Return the folders of a path, and several in a row as one name, as classes of --levels 2 have."""
    parts = name.replace("\\", "/").split("/")[:-1]
    return ["/".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)]


def score_pairs(pairs: Pairs, features: Tensor, read: Rows) -> Scored:
    """Return cosines, and what is known of the pairs, of those whose images could be read, from their features."""
    place = np.full(len(pairs.samples), -1)
    place[read] = np.arange(len(read))
    first, second = place[pairs.first], place[pairs.second]
    whole = (first >= 0) & (second >= 0)
    unit = nn.functional.normalize(features)
    scores = (unit[first[whole]] * unit[second[whole]]).sum(1)
    same, people = pairs.same[whole], None
    if pairs.people is not None:
        one, two = pairs.people[whole].T
        people = (one, two) if ((one == two) == same).all() else None  # else the list contradicts itself
    return Scored(scores.numpy(), same, people, None if pairs.fold is None else pairs.fold[whole])
