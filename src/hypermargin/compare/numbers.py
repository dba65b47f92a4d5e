"""The table of a comparison: means and spreads over seeds, and which differences exceed them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hypermargin.common.student import two_sided

CHANCE = 0.05  # of a column of equal heads in which any of them is called behind
FEWEST = 3  # seeds from which on differences are judged


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
    Measure("intra", "within", "mean angle of genuine pairs", 0, 1, "°", 1),
    Measure("inter", "between", "mean angle of impostor pairs", 0, 1, "°", 1),
    Measure("met", "margin met", "training samples that meet the margin they were trained with", 0, 100, "%", 1),
    Measure("cpu", "CPU time", "of training, all threads; a busy machine lengthens it", 0, 1, "s", 1),
    Measure("bytes", "memory", "the most its process held", 0, 1e-6, "MB", 0),
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One number of one head over the seeds that have it: `spread` is the standard deviation, None of a single one.

    mark  "best": ahead of every other head by more than the noise; "level": not told apart from the best mean;
          "behind": worse than the best mean by more than the noise; "": not judged, by fewer than three seeds
    """

    values: Mapping[int, float]
    mean: float
    spread: float | None
    mark: str = ""

    def text(self, measure: Measure, *, unit: bool = True) -> str:
        """Write the cell as 2.41 ± 0.08 %."""
        mean = f"{measure.factor * self.mean:,.{measure.digits}f}"
        spread = "" if self.spread is None else f" ± {measure.factor * self.spread:,.{measure.digits}f}"
        return f"{mean}{spread}" + (f"{'' if measure.unit == '°' else ' '}{measure.unit}" if unit else "")


def chance(better: Mapping[int, float], worse: Mapping[int, float]) -> float | None:
    """Return how often equal heads would differ so much, either way; None with fewer than three seeds in common.

    Seeds are the same for both heads (split, initial weights, order of batches), so the differences d_i are taken
    seed by seed, and t = mean(d)·√n/sd(d) is judged by Student's distribution with n − 1 degrees of freedom. If all
    differences are equal (one sample more or less, at every seed) they know nothing of their noise: 1.
    """
    common = sorted(better.keys() & worse.keys())
    if len(common) < FEWEST:
        return None
    differences = [better[seed] - worse[seed] for seed in common]
    spread = statistics.stdev(differences)
    if spread <= 1e-12 * max(map(abs, (*better.values(), *worse.values()))):
        return 1.0
    return two_sided(statistics.fmean(differences) * math.sqrt(len(common)) / spread, len(common) - 1)


def column(measure: Measure, by_head: Mapping[str, Mapping[int, float]]) -> dict[str, Cell]:
    """Judge the cells of a measure. A head with failed runs is judged on the seeds it has.

    Any two of k heads may be the ones compared, so a comparison may be chance in 5 % over k(k − 1)/2 (Bonferroni):
    of equal heads, one column in twenty at most calls any of them behind.
    """
    cells = {
        head: Cell(values, statistics.fmean(values.values()), _spread(list(values.values())))
        for head, values in by_head.items()
        if values
    }
    if measure.better == 0 or len(cells) < 2:
        return cells
    best = max(cells, key=lambda head: measure.better * cells[head].mean)
    allowed = CHANCE / (len(cells) * (len(cells) - 1) / 2)
    marks = {}
    for head, cell in cells.items():
        if head != best:
            p = chance(cells[best].values, cell.values)
            ahead = _ahead(measure, cells[best].values, cell.values)
            marks[head] = "" if p is None else "behind" if p < allowed and ahead else "level"
    if any(marks.values()):
        marks[best] = "best" if all(mark == "behind" for mark in marks.values()) else "level"
    return {head: Cell(c.values, c.mean, c.spread, marks.get(head, "")) for head, c in cells.items()}


def _ahead(measure: Measure, one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    """Compare the means on the seeds that both have: a mean over other seeds may be the better for them."""
    return sum(measure.better * (one[seed] - other[seed]) for seed in one.keys() & other.keys()) > 0


def _spread(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def table(measured: Mapping[str, Mapping[int, Mapping[str, float]]]) -> dict[str, dict[str, Cell]]:
    """Make the table, by measure's key, then head, of every head and seed. Measures nobody has are left out."""
    found = {}
    for measure in MEASURES:
        by_head = {
            head: {seed: values[measure.key] for seed, values in seeds.items() if measure.key in values}
            for head, seeds in measured.items()
        }
        if any(by_head.values()):
            found[measure.key] = column(measure, by_head)
    return found
