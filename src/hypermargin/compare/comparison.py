"""Run a comparison, from a plan to a report.

OUT/
  plan.json        what is compared
  runs/            HEAD-seedK: one run each, as `hypermargin train` leaves it
  plane/           HEAD: the same in two dimensions, for pictures
  comparison.json  every number of every run
  table.csv        means and spreads
  report.html      all of it, in one file
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

import numpy as np

from hypermargin import checks
from hypermargin.common.environment import cores, find_device
from hypermargin.compare import pool
from hypermargin.compare.plan import Plan
from hypermargin.compare.report import write_report
from hypermargin.compare.results import Comparison
from hypermargin.data import Data, DataError
from hypermargin.files import replacing
from hypermargin.plots.style import need_matplotlib
from hypermargin.training import RunError
from hypermargin.training.build import read_data
from hypermargin.training.config import from_dict
from hypermargin.training.paths import absolutes
from hypermargin.training.run import locked
from hypermargin.training.trust import code_in, refusal, sign

MOST_JOBS = 1024
CLASSES, ENOUGH, PLENTY = 10, 50, 150  # of a picture in the plane: classes, and samples of each


def compare(
    plan: Plan,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    jobs: int | None = None,
    trust: bool = False,
    watch: pool.Watch = lambda seen, about: None,
) -> Comparison:
    """Train everything in the plan, measure it, write the report in `out`.

    With `resume`, go on with the comparison there: what is done stays, what failed is tried again.
    A comparison that is there may name code for its networks (MODULE:FUNCTION): as in `train`, this user must have
    begun it, or `plan` names the same, or `trust` is True. `jobs` runs at a time; default one per core, on a GPU
    one. Ctrl-C saves every run and raises Interrupted.
    """
    if not hasattr(os, "fork"):
        raise RunError("compare starts its runs by fork, which this system has not; Linux and macOS have.")
    need_matplotlib()  # now, and not when everything is trained
    folder = Path(out)
    if jobs is not None:
        checks.count("jobs", jobs, 1, MOST_JOBS)
    if folder.exists() and not folder.is_dir():
        raise RunError(f"out must be a folder; {folder} is a file.")
    folder.mkdir(parents=True, exist_ok=True)
    plan = dataclasses.replace(plan, settings=plan.settings | absolutes(plan.settings))
    with locked(folder):
        if (folder / "plan.json").exists():
            if not resume:
                raise RunError(
                    f"{folder} holds a comparison. Add --resume to go on with it, or choose another --out."
                )
            saved = Plan.read(folder)
            why = None if trust else refusal(folder, saved.network, plan.network)
            if why is not None:
                raise RunError(why)
            plan = saved.grown(plan.settings, plan.heads, plan.seeds, None if saved.plane else plan.plane)
        elif code_in(*plan.network):
            sign(folder, *plan.network)
        config = from_dict(plan.settings)
        _keep_for_the_plane(folder, plan, read_data(config, lambda _: None))  # bad data are an error now, not later
        plan.save(folder)
        runs = [*plan.runs(folder), *plan.plane_runs(folder)]
        on_gpu = find_device(config.device).type == "cuda"
        jobs = min(jobs or (1 if on_gpu else cores()), len(runs))
        threads = max(1, cores() // jobs)
        pool.work(runs, jobs=jobs, threads=threads, watch=watch, trust=trust)
        found = Comparison.read(folder, plan, jobs, threads)
        found.save()
        write_report(found)
    return found


def _keep_for_the_plane(folder: Path, plan: Plan, data: Data) -> None:
    """Keep ten classes of images, if so many have enough samples; otherwise the digits will do."""
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
