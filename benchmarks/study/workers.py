"""Processes that share one GPU, each with a few runs at once; one that dies costs its runs a second try, no more.

Launching the kernels of recorded steps keeps a core busy, so one process cannot fill the GPU with small networks.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from benchmarks.heads.loop import Spec
from benchmarks.record import environment
from benchmarks.study.agenda import Agenda, Result
from hypermargin.common.text import first_line

ROUND = 25  # steps of each run between looks at the others


@dataclass(frozen=True)
class Settings:
    """How the runs are made."""

    data: Path
    device: str
    processes: int
    at_once: int  # runs of a process that take turns
    graphs: bool = True
    start: str = "fork"  # quick, and sound as long as this process has not touched the GPU; or "spawn"
    study: str = "benchmarks.successors.run"  # the module with `Data`, for the folder and device, and `StudyRun`


@dataclass
class Worker:
    """A process as its parent sees it."""

    process: Any
    pipe: Connection
    runs: list[Spec] = field(default_factory=list)  # that it has and has not handed in


def train_all(
    agenda: Agenda, settings: Settings, *, seconds: float, say: Callable[[str], None] = print
) -> Iterator[Result]:
    """Yield every result as it comes; begin no run that would not end within `seconds`, and end then."""
    begun = time.monotonic()
    crew = [_start(settings) for _ in range(settings.processes)]
    lost: dict[str, int] = {}  # runs that a dying process took along
    longest = 0.0  # seconds that a run takes in such company
    restarts = 2 * settings.processes
    try:
        while True:
            left = begun + seconds - time.monotonic()
            for worker in crew:
                while left > 1.2 * longest and len(worker.runs) < settings.at_once:
                    spec = agenda.next()
                    if spec is None:
                        break
                    worker.runs.append(spec)
                    with suppress(OSError):  # it has died, which is seen below
                        worker.pipe.send(spec)
            if left <= 0 or not any(worker.runs for worker in crew):
                return
            for pipe in wait([worker.pipe for worker in crew], timeout=min(left, 1.0)):
                worker = next(w for w in crew if w.pipe is pipe)
                try:
                    spec, result = worker.pipe.recv()
                except (EOFError, OSError):
                    crew.remove(worker)
                    say(f"a process has died with {len(worker.runs)} runs; {restarts} may still be started anew")
                    for spec in worker.runs:
                        lost[spec.key] = lost.get(spec.key, 0) + 1
                        if lost[spec.key] > 1:
                            failed = _failed(spec, "the process died twice with it")
                            agenda.finished(spec, failed)
                            yield failed
                        else:
                            agenda.give_back(spec)
                    if restarts and settings.processes:
                        restarts -= 1
                        crew.append(_start(settings))
                    continue
                worker.runs = [s for s in worker.runs if s.key != spec.key]
                longest = max(longest, result["seconds"])
                agenda.finished(spec, result)
                yield result
    finally:
        for worker in crew:
            worker.process.kill() if worker.runs else worker.pipe.close()
        for worker in crew:
            worker.process.join(10)
            worker.process.kill()


def _start(settings: Settings) -> Worker:
    context: Any = multiprocessing.get_context(settings.start)
    ours, theirs = context.Pipe()
    foreign = ours if settings.start == "fork" else None  # a fork has our end as well
    process = context.Process(target=_serve, args=(theirs, foreign, settings, os.getpid()), daemon=True)
    process.start()
    theirs.close()
    return Worker(process, ours)


def _serve(pipe: Connection, foreign: Connection | None, settings: Settings, parent: int) -> None:
    """Train what comes through the pipe, a few runs in turn, until it is closed."""
    study: Any = importlib.import_module(settings.study)
    if foreign is not None:
        foreign.close()
    torch.set_num_threads(1)
    device = torch.device(settings.device)
    data, versions, active = study.Data(settings.data, device), environment(settings.device), list[Any]()

    def failed(spec: Spec, error: Exception) -> None:
        why = _failed(spec, f"{type(error).__name__}: {first_line(error)}")
        pipe.send((spec, why | {"environment": versions}))
        if "CUDA error" in str(error):  # nothing more can be had of this process's GPU context
            os._exit(1)

    while os.getppid() == parent:
        while len(active) < settings.at_once and (not active or pipe.poll(0)):
            try:
                spec = pipe.recv()
            except (EOFError, OSError):
                return
            try:
                active.append(study.StudyRun(spec, data.of(spec)))
                active[-1].graphs = settings.graphs
            except Exception as error:  # a setting that cannot be: told, not fatal
                failed(spec, error)
        for run in list(active):
            try:
                for _ in range(min(ROUND, run.total - run.done)):
                    run.advance()
                if run.done < run.total:
                    continue
                result = run.result() | {"recorded": run.graph is not None, "environment": versions}
                pipe.send((run.spec, result | ({"why_not": run.why_not} if run.why_not else {})))
            except Exception as error:
                failed(run.spec, error)
            active.remove(run)


def _failed(spec: Spec, why: str) -> Result:
    return {"spec": asdict(spec), "seconds": 0.0, "steps": 0, "broken": True, "error": why}
