"""What came out of a comparison: every number of every run, and the files that hold them."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hypermargin.common.environment import now, versions
from hypermargin.common.tensor_files import read_npz
from hypermargin.compare import pool
from hypermargin.compare.numbers import MEASURES, Cell, table
from hypermargin.compare.plan import Plan, Run
from hypermargin.compare.reading import reading
from hypermargin.files import write_text
from hypermargin.training.config import Config, from_dict, read_toml
from hypermargin.training.run import read_json


@dataclass(frozen=True)
class Comparison:
    """The results of a comparison.

    measured     by head, then seed: the measures.json of the run
    failed       by the run's name: why it failed
    failed_flat  the same for the runs in the plane, which are not in the table
    """

    folder: Path
    plan: Plan
    measured: dict[str, dict[int, dict[str, Any]]]
    failed: dict[str, str]
    failed_flat: dict[str, str]
    jobs: int
    threads: int

    @classmethod
    def read(cls, folder: Path, plan: Plan, jobs: int = 0, threads: int = 0) -> Comparison:
        """Read the runs that are done."""
        measured: dict[str, dict[int, dict[str, Any]]] = {head: {} for head in plan.heads}
        runs = plan.runs(folder)
        for run in runs:
            if pool.is_done(run.folder):
                measured[run.head][run.seed] = read_json(run.folder / "measures.json")
        failed, flat = (
            {run.name: why for run in part if (why := pool.failure(run.folder))}
            for part in (runs, plan.plane_runs(folder))
        )
        return cls(folder, plan, measured, failed, flat, jobs, threads)

    @property
    def report(self) -> Path:
        """The one file to look at."""
        return self.folder / "report.html"

    @cached_property
    def decided(self) -> Config:
        """The settings of a run that was started, with nothing left open; all runs have the same data."""
        runs = self.plan.runs(self.folder)
        saved = (run.folder / "config.toml" for run in runs)
        path = next((path for path in saved if path.exists()), None)
        return runs[0].config if path is None else from_dict(read_toml(path), str(path))

    @cached_property
    def table(self) -> dict[str, dict[str, Cell]]:
        """The table, by measure, then head."""
        numbers = {
            head: {k: about["numbers"] for k, about in seeds.items()} for head, seeds in self.measured.items()
        }
        return table(numbers)

    @cached_property
    def sentences(self) -> list[str]:
        """The table in plain words."""
        return reading(self.table, self.failed)

    def arrays(self, run: Run) -> dict[str, Any]:
        """Return what the pictures of a run show; empty if it is not done."""
        if not pool.is_done(run.folder):
            return {}
        return read_npz(run.folder / "arrays.npz")

    def save(self) -> None:
        """Write comparison.json and table.csv."""
        about = {
            "format": 1,
            "settings": self.plan.settings,
            "runs": {head: {str(k): about for k, about in seeds.items()} for head, seeds in self.measured.items()},
            "failed": self.failed | self.failed_flat,
            "reading": self.sentences,
            "versions": versions(),
            "date": now(),
        }
        write_text(self.folder / "comparison.json", json.dumps(about, indent=1))
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(["head", "measure", "unit", "mean", "spread", "seeds", "mark"])
        for measure in MEASURES:
            for head, cell in self.table.get(measure.key, {}).items():
                mean = measure.factor * cell.mean
                spread = "" if cell.spread is None else measure.factor * cell.spread
                writer.writerow([head, measure.key, measure.unit, mean, spread, len(cell.values), cell.mark])
        write_text(self.folder / "table.csv", text.getvalue())
