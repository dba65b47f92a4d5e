"""From a plan to a report.

OUT/
  plan.json        what is compared
  runs/            HEAD-seedK: a run each, as `hypermargin train` leaves it
  plane/           HEAD: the same in two dimensions, for pictures
  comparison.json  every number of every run
  table.csv        means and spreads
  report.html      all of it, in one file
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hypermargin import checks
from hypermargin.compare import pool
from hypermargin.compare.numbers import MEASURES, Cell, table
from hypermargin.compare.plan import Plan, Run
from hypermargin.compare.reading import reading
from hypermargin.data import Data, DataError
from hypermargin.deploy.metadata import now, versions
from hypermargin.files import replacing, write_text
from hypermargin.plots.style import need_matplotlib
from hypermargin.training import RunError
from hypermargin.training.build import read_data
from hypermargin.training.config import from_dict
from hypermargin.training.run import locked, read_json

CLASSES, ENOUGH, PLENTY = 10, 50, 150  # of a picture in the plane: classes, and samples of each


@dataclass(frozen=True)
class Comparison:
    """What came out.

    measured     by head, then seed: the measures.json of the run
    failed       by the run's name: why it failed
    failed_flat  the same, of the runs in the plane, which are not in the table
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
        """Of the runs that are done."""
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
    def table(self) -> dict[str, dict[str, Cell]]:
        """By measure, then head."""
        numbers = {
            head: {k: about["numbers"] for k, about in seeds.items()} for head, seeds in self.measured.items()
        }
        return table(numbers)

    @cached_property
    def sentences(self) -> list[str]:
        """The table in plain words."""
        return reading(self.table, self.failed)

    def arrays(self, run: Run) -> dict[str, Any]:
        """What the pictures of a run show; empty if it is not done."""
        if not pool.is_done(run.folder):
            return {}
        with np.load(run.folder / "arrays.npz", allow_pickle=False) as saved:
            return dict(saved)

    def save(self) -> None:
        """comparison.json and table.csv."""
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


def compare(
    plan: Plan,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    jobs: int | None = None,
    watch: pool.Watch = lambda seen, about: None,
) -> Comparison:
    """Train everything in the plan, measure it, write the report in `out`.

    With `resume`, go on with the comparison there: what is done stays, what failed is tried again.
    `jobs` runs at a time; default one a core, on a GPU one. Ctrl-C saves every run and raises Interrupted.
    """
    from hypermargin.compare.report import write_report

    if not hasattr(os, "fork"):
        raise RunError("compare starts its runs by fork, which this system has not; Linux and macOS have.")
    need_matplotlib()  # now, and not when everything is trained
    folder = Path(out)
    if jobs is not None:
        checks.count("jobs", jobs)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if (folder / "plan.json").exists():
            if not resume:
                raise RunError(
                    f"{folder} holds a comparison. Add --resume to go on with it, or choose another --out."
                )
            saved = Plan.read(folder)
            plan = saved.grown(plan.settings, plan.heads, plan.seeds, None if saved.plane else plan.plane)
        config = from_dict(plan.settings)
        _keep_for_the_plane(folder, plan, read_data(config, lambda _: None))  # bad data are an error now, not later
        plan.save(folder)
        runs = [*plan.runs(folder), *plan.plane_runs(folder)]
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        on_gpu = config.device.startswith("cuda") or (config.device == "auto" and torch.cuda.is_available())
        jobs = min(jobs or (1 if on_gpu else cores), len(runs))
        threads = max(1, cores // jobs)
        pool.work(runs, jobs=jobs, threads=threads, watch=watch)
        found = Comparison.read(folder, plan, jobs, threads)
        found.save()
        write_report(found)
    return found


def _keep_for_the_plane(folder: Path, plan: Plan, data: Data) -> None:
    """Ten classes of images, if so many have enough samples; otherwise the digits will do."""
    path = folder / "plane" / "data.npz"
    if not plan.plane or path.exists() or len(data.shape) != 3:
        return
    classes, counts = np.unique(data.labels, return_counts=True)
    chosen = classes[np.argsort(-counts, kind="stable")][:CLASSES]
    if len(chosen) < 2 or counts[np.isin(classes, chosen)].min() < ENOUGH:
        return
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.permutation(np.flatnonzero(data.labels == k))[:PLENTY] for k in chosen])
    readable, samples = [], []
    for row in rows:
        with contextlib.suppress(DataError):  # what cannot be read is the runs' to report
            samples.append(np.asarray(data.samples[row]))
            readable.append(row)
    names = np.array([data.classes[k] for k in data.labels[readable]])
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        np.savez_compressed(temporary, samples=np.stack(samples), labels=names)
