"""The command line of a study: results are lines of JSON, written as they come; the next call goes on."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.command import at_least, say
from benchmarks.study.agenda import Agenda, Result
from benchmarks.study.mps import mps
from benchmarks.study.workers import Settings, train_all

# With MPS, and without: processes that take turns on the GPU need more of their own runs side by side.
SHARED, IN_TURN = (12, 2), (4, 6)


def add_flags(parser: argparse.ArgumentParser, out: Path, shared: tuple[int, int] = SHARED) -> None:
    """What every study takes."""
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--known", type=Path, nargs="*", default=[], help="results that need not be made again")
    parser.add_argument("--budget-seconds", type=float, default=float("inf"), help="end by then")
    parser.add_argument("--processes", type=at_least(1), help=f"{shared[0]} with MPS, {IN_TURN[0]} without")
    parser.add_argument("--at-once", type=at_least(1), help=f"runs per process: {shared[1]}, or {IN_TURN[1]}")
    parser.add_argument("--graphs", action=argparse.BooleanOptionalAction, default=True, help="record the steps")
    parser.add_argument("--start", choices=("fork", "spawn"), default="fork", help="how processes are made")
    parser.add_argument("--mps", action=argparse.BooleanOptionalAction, default=True, help="where it works")
    parser.add_argument("--device", default="cuda", help="or cpu")


def train_agenda(
    given: argparse.Namespace,
    study: str,
    agenda: Callable[[Sequence[Result]], Agenda],
    describe: Callable[[Result], str],
    *,
    shared: tuple[int, int] = SHARED,
) -> None:
    """Train what `agenda` says, given what is known. `study` is the module with `Data` and `StudyRun`."""
    begun = time.monotonic()
    known = [r for file in [*given.known, given.out] for r in read(file) if "error" not in r]
    plan = agenda(known)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with mps(given.mps and given.device == "cuda") as why_not, given.out.open("a", encoding="utf-8") as log:
        usual = IN_TURN if why_not else shared
        if why_not:  # else a process has its share of these already
            os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # streams that do not wait for each other
        if given.out.stat().st_size and not given.out.read_bytes().endswith(b"\n"):
            log.write("\n")  # the last line was cut off
        settings = Settings(
            given.data,
            given.device,
            given.processes or usual[0],
            given.at_once or usual[1],
            given.graphs,
            given.start,
            study,
        )
        say(f"MPS: {why_not or 'yes'}; {settings.processes} processes with {settings.at_once} runs each")
        say(f"{len(plan.searches)} searches; {len(known)} results are known")
        runs = steps = 0
        first: tuple[float, int] | None = None  # after the first result: seconds, steps
        left = given.budget_seconds - (time.monotonic() - begun)
        for result in train_all(plan, settings, seconds=left, say=say):
            log.write(json.dumps(result) + "\n")
            log.flush()
            runs, steps = runs + 1, steps + result["steps"]
            spent = time.monotonic() - begun
            first = first or (spent, steps)
            pace = 1e3 * (spent - first[0]) / max(steps - first[1], 1)
            say(f"{spent:.0f} s, {runs} runs, {pace:.2f} ms a step: {describe(result)}")
    say(f"{runs} runs, {steps:,} steps in {time.monotonic() - begun:.0f} s")


def read(file: Path) -> list[Result]:
    """The results in a file, if it is there; a last line that was cut off does not count."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            say(f"{file}: a line is no JSON and is left out: {line[:60]}")
    return found
