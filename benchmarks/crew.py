"""Processes for the benchmark of ranks: each crew is a process group of its own, or a single process without one.

One process, started anew, imports everything and forks them all; so their settings for OpenMP are known, importing
is paid for once, and no thread of ours is there when they are forked. A rank that fails ends the whole.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch.distributed as dist

from benchmarks.record import Say

# Threads that wait by turning round take the core from the other ranks, and their turning counts as CPU time.
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive"}
PATIENCE = 1.0  # seconds for the others' words, after a rank has failed
CONSEQUENCES = ("did not come", "gloo")  # in the words of ranks that miss another


class RankError(RuntimeError):
    """A rank, or the process above them all, did not do what it was told."""


class Crew:
    """`world` processes that do as they are told, each with a worker of its own; world 0: one process, no group.

    To be made in a process that has not computed anything yet. `make(rank)` makes a worker, in its process.
    """

    def __init__(self, world: int, make: Callable[[int], Any], folder: Path, others: list[Crew]) -> None:
        self.world, self.pipes = world, list[Connection]()
        context = multiprocessing.get_context("fork")
        self.processes: list[Any] = []
        for rank in range(max(world, 1)):
            ours, theirs = context.Pipe()
            self.pipes.append(ours)
            # A fork has our ends of all pipes too; while it does, nobody hears of our end.
            foreign = [pipe for crew in [*others, self] for pipe in crew.pipes]
            given = (theirs, foreign, rank, world, str(folder / f"meet{len(others)}"), make)
            self.processes.append(context.Process(target=_serve, args=given, daemon=True))
            self.processes[-1].start()
            theirs.close()

    def ask(self, what: str, *given: Any) -> list[Any]:
        """What every rank's worker answers to `worker.what(*given)`; RankError if one cannot."""
        for each in self.pipes:
            with suppress(OSError):  # it has ended, which is seen below
                each.send((what, given))
        waiting: dict[Any, int] = {pipe: rank for rank, pipe in enumerate(self.pipes)}
        answers: dict[int, Any] = {}
        troubles: list[tuple[int, int, str]] = []
        while waiting:
            ready: list[Any] = wait(list(waiting), PATIENCE if troubles else None)
            if not ready:
                break  # they may wait for ever for the one that failed
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    fine, said = pipe.recv()
                    order = 2 if any(words in str(said) for words in CONSEQUENCES) else 1
                except (EOFError, OSError):
                    fine, said, order = False, self._how_it_ended(rank), 0
                if fine:
                    answers[rank] = said
                else:
                    troubles.append((order, rank, said))
        if troubles:
            _, rank, said = min(troubles)
            who = f"rank {rank} of {self.world}" if self.world else "the process of the plain head"
            raise RankError(f"{who} failed, which ends the benchmark: {said}")
        return [answers[rank] for rank in range(len(self.pipes))]

    def _how_it_ended(self, rank: int) -> str:
        self.processes[rank].join(PATIENCE)
        code = self.processes[rank].exitcode
        if code is not None and code < 0:
            hint = " Is there enough memory?" if code == -signal.SIGKILL else ""
            return f"it was killed by {signal.Signals(-code).name}.{hint}"
        return f"it ended with exit code {code}."

    def close(self) -> None:
        """They end when nobody can ask them any more."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(PATIENCE)
            process.kill()


def _serve(
    pipe: Connection, foreign: list[Connection], rank: int, world: int, meeting: str, make: Callable[[int], Any]
) -> None:
    """The life of a rank."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who is above ends us
    for other in foreign:
        other.close()
    try:
        if world:
            dist.init_process_group(
                "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world,
                timeout=datetime.timedelta(minutes=10),
            )  # fmt: skip
        worker = make(rank)
        while True:
            try:
                what, given = pipe.recv()
            except EOFError:
                break
            pipe.send((True, getattr(worker, what)(*given)))
    except Exception as error:
        with suppress(OSError):
            pipe.send((False, f"{type(error).__name__}: {error}"))
    os._exit(0)  # leaving the group in order would wait for the others


def in_a_fresh_process(function: Callable[..., Any], *given: Any, say: Say) -> Any:
    """function(*given, say) where nothing has been computed yet; an error of a rank is raised here."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_above, args=(theirs, function, given))
    with _environment():
        process.start()
    theirs.close()
    try:
        while True:
            kind, said = ours.recv()
            if kind == "done":
                return said
            if kind == "failed":
                raise RankError(said)
            say(said)
    except EOFError:
        process.join(PATIENCE)
        raise RankError(f"the process that starts the ranks ended with exit code {process.exitcode}.") from None
    finally:
        process.terminate()  # its ranks see that, and end
        process.join()


def _above(pipe: Connection, function: Callable[..., Any], given: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pipe.send(("done", function(*given, lambda text: pipe.send(("say", text)))))
    except RankError as error:
        pipe.send(("failed", str(error)))


@contextmanager
def _environment() -> Any:
    before = {key: os.environ.get(key) for key in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value
