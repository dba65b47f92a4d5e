"""The table of a comparison: means and spreads over seeds, and which differences exceed them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Two-sided 95 % of Student's t for 1, 2, … degrees of freedom; 1.96 beyond 30.
T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """A column: its key in measures.json, its title, what is better, and how it is written.

    better  +1: more is better; −1: less; 0: neither is
    factor  from the number to the unit shown
    """

    key: str
    title: str
    about: str
    better: int
    factor: float = 1.0
    unit: str = ""
    digits: int = 2


MEASURES = (
    Measure("accuracy", "accuracy", "test samples given to their own class", 1, 100, "%"),
    Measure("pair_accuracy", "pairs right", "mean of TAR and 1 − FAR at the validation threshold", 1, 100, "%"),
    Measure("eer", "EER", "errors where false accepts and false rejects are equally frequent", -1, 100, "%"),
    Measure("tar", "TAR@FAR=1e-3", "genuine pairs accepted where one impostor in 1,000 is", 1, 100, "%", 1),
    Measure("rank1", "rank-1", "samples whose nearest other sample is of their identity", 1, 100, "%", 1),
    Measure("intra", "within", "mean angle of genuine pairs", -1, 1, "°", 1),
    Measure("inter", "between", "mean angle of impostor pairs", 1, 1, "°", 1),
    Measure("met", "margin met", "training samples that meet the margin they were trained with", 0, 100, "%", 1),
    Measure("seconds", "time", "training, wall clock of its process", 0, 1, "s", 1),
    Measure("bytes", "memory", "the most its process held", 0, 1e-6, "MB", 0),
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One number of one head over the seeds that have it: `spread` is the standard deviation, None of a single one.

    mark  "best": ahead of every other head by more than the noise; "level": not told apart from the best mean;
          "behind": worse than the best mean by more than the noise; "": not judged
    """

    values: Mapping[int, float]
    mean: float
    spread: float | None
    mark: str = ""

    def text(self, measure: Measure, *, unit: bool = True) -> str:
        """2.41 ± 0.08 %."""
        mean = f"{measure.factor * self.mean:,.{measure.digits}f}"
        spread = "" if self.spread is None else f" ± {measure.factor * self.spread:,.{measure.digits}f}"
        return f"{mean}{spread}" + (f"{'' if measure.unit == '°' else ' '}{measure.unit}" if unit else "")


def exceeds_noise(better: Mapping[int, float], worse: Mapping[int, float]) -> bool | None:
    """Is the mean difference over common seeds more than chance would give? None: fewer than two seeds in common.

    Seeds are the same for both heads (same split, same order of batches), so the differences d_i are taken seed by
    seed, and n of them differ from 0 when |mean d| > t·sd(d)/√n with Student's t of n − 1 degrees of freedom, 95 %.
    """
    common = sorted(better.keys() & worse.keys())
    if len(common) < 2:
        return None
    differences = [better[seed] - worse[seed] for seed in common]
    t = T95[len(common) - 2] if len(common) - 2 < len(T95) else 1.96
    return abs(statistics.fmean(differences)) > t * statistics.stdev(differences) / math.sqrt(len(common))


def column(measure: Measure, by_head: Mapping[str, Mapping[int, float]]) -> dict[str, Cell]:
    """The cells of a measure, judged. A head with failed runs is judged on the seeds it has."""
    cells = {
        head: Cell(values, statistics.fmean(values.values()), _spread(list(values.values())))
        for head, values in by_head.items()
        if values
    }
    if measure.better == 0 or len(cells) < 2:
        return cells
    best = max(cells, key=lambda head: measure.better * cells[head].mean)
    apart = {head: exceeds_noise(cells[best].values, cell.values) for head, cell in cells.items() if head != best}
    marks = {head: "" if told is None else "behind" if told else "level" for head, told in apart.items()}
    if all(apart.values()):  # every one True
        marks[best] = "best"
    elif any(told is not None for told in apart.values()):
        marks[best] = "level"
    return {head: Cell(c.values, c.mean, c.spread, marks.get(head, "")) for head, c in cells.items()}


def _spread(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def table(measured: Mapping[str, Mapping[int, Mapping[str, float]]]) -> dict[str, dict[str, Cell]]:
    """By measure's key, then head, from the measures of every head and seed. Measures nobody has are left out."""
    found = {}
    for measure in MEASURES:
        by_head = {
            head: {seed: values[measure.key] for seed, values in seeds.items() if measure.key in values}
            for head, seeds in measured.items()
        }
        if any(by_head.values()):
            found[measure.key] = column(measure, by_head)
    return found
