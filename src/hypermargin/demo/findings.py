"""What came out of the demo: the numbers on its page, and which of them may be called better."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hypermargin.common.arrays import Floats
from hypermargin.compare.numbers import CHANCE, MEASURES, Cell, chance
from hypermargin.compare.results import Comparison

HEADS = {
    "large": "normface:scale=64,learn_scale=false",
    "advised": "normface:learn_scale=false",
    "margin": "arcface",
}
TITLES = {HEADS["large"]: "s = 64", HEADS["advised"]: "s as advised", HEADS["margin"]: "with a margin"}
CLOSER = 0.9  # an angle that is smaller by less is not called smaller


class Flat(NamedTuple):
    """One head in two dimensions: its s and m, how far test samples are from their class (degrees), how many right.

    features (N, 2), labels (N,), and prototypes (C, 2) after the last step.
    """

    scale: float
    m: float
    away: float
    right: float
    features: Floats
    labels: Any
    prototypes: Floats
    names: tuple[str, ...]


class Many(NamedTuple):
    """One head on many classes: its s and m, cells of the table, and histograms of the first seed's scores."""

    scale: float
    m: float
    eer: Cell
    rank1: Cell
    edges: Floats
    genuine: Any
    impostor: Any


@dataclass(frozen=True)
class Findings:
    """What the page shows, by the keys of HEADS."""

    flat: Mapping[str, Flat]
    many: Mapping[str, Many]
    classes: int  # trained on
    unseen: int  # tested on
    dim: int
    seeds: int
    epochs: int
    flat_epochs: int

    def closer(self, one: str, other: str) -> bool:
        """Tell whether test samples in two dimensions are clearly closer to their class with the first head."""
        return self.flat[one].away < CLOSER * self.flat[other].away

    def verdict(self, key: str, one: str, other: str) -> str:
        """Return "better", "worse" or "level": how a measure of the first head compares with the second's.

        As in a comparison's table: by the differences seed by seed, with a share of chance for each of the pairs.
        """
        measure = next(measure for measure in MEASURES if measure.key == key)
        a, b = (getattr(self.many[head], key).values for head in (one, other))
        p = chance(a, b)
        if p is None or p >= CHANCE / math.comb(len(HEADS), 2):
            return "level"
        gain = sum(measure.better * (a[seed] - b[seed]) for seed in a.keys() & b.keys())
        return "better" if gain > 0 else "worse"


def find(found: Comparison) -> Findings:
    """Gather the numbers of a finished demo."""
    runs = {run.head: run for run in reversed(found.plan.runs(found.folder))}  # the first seed of each
    flats = {run.head: run for run in found.plan.plane_runs(found.folder)}
    flat, many = {}, {}
    for key, head in HEADS.items():
        kept = found.arrays(flats[head])
        about = json.loads((flats[head].folder / "measures.json").read_text(encoding="utf-8"))
        features, prototypes = (kept[name][-1].astype(np.float64) for name in ("features", "prototypes"))
        away = _degrees(features, prototypes[kept["labels"]]).mean()
        names = tuple(map(str, kept["names"]))
        right = about["numbers"]["accuracy"]
        flat[key] = Flat(*_numbers(about), float(away), right, features, kept["labels"], prototypes, names)
        about, kept = found.measured[head][0], found.arrays(runs[head])
        eer, rank1 = (found.table[name][head] for name in ("eer", "rank1"))
        many[key] = Many(*_numbers(about), eer, rank1, kept["edges"], kept["genuine"], kept["impostor"])
    parts, settings = about["data"]["parts"], found.plan.settings
    return Findings(
        flat, many, parts["train"][1], parts["test"][1], settings["dim"], found.plan.seeds, settings["epochs"],
        found.plan.plane,
    )  # fmt: skip


def _numbers(about: dict[str, Any]) -> tuple[float, float]:
    """Return s, and m of an additive angular margin; 0 without one."""
    return about["head"]["scale"], about["head"]["numbers"].get("m", 0.0)


def _degrees(one: Floats, other: Floats) -> Floats:
    """Return the angles between rows."""
    cosines = (one * other).sum(1) / (np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)).clip(1e-30)
    angles: Floats = np.degrees(np.arccos(cosines.clip(-1, 1)))
    return angles
