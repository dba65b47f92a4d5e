"""Processes that read groups of samples ahead of whoever needs them, and that end, whatever happens.

torch's DataLoader asks its workers to end by SIGTERM, and at the end of the program waits until they do. Ours must
not listen to SIGTERM, which torchrun sends to all, since what they read is needed to save; so a program with an
error never ended. Here each worker has a pipe of its own, so that killing one takes nothing away from the others;
it is killed when its work is over, and looks itself whether its parent is still there.
"""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Generator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

import numpy as np
import torch

from hypermargin.common.arrays import Array
from hypermargin.data.base import Bad, DataError, Rows, Source

AHEAD = 4  # groups that are read, or waiting to be, for each worker
TRIES = 3  # how often a sample may take its reader along before it is a bad sample
FRUITLESS = 10  # readers that ended in a row before any group was read


class Found(NamedTuple):
    """What was read of a group: samples, their rows, and what could not be read."""

    samples: Array
    rows: Rows
    bad: list[Bad]


def read(source: Source, groups: Sequence[Rows], workers: int = 0) -> Generator[Found]:
    """Yield what is read of each group, in order. A bad sample comes back as data; other errors are raised.

    Close the iterator when it is left early: its workers end with it.
    """
    if not workers:
        for rows in groups:
            yield _read(source, rows, {}, lambda row: None)
        return
    crew = _Crew(source, groups, min(workers, max(1, len(groups))))
    try:
        for number in range(len(groups)):
            yield crew.take(number)
    finally:
        crew.close()


def _read(source: Source, rows: Rows, lost: dict[int, str], note: Any) -> Found:
    samples = np.empty((len(rows), *source.shape), np.uint8)
    kept: list[int] = []
    bad: list[Bad] = []
    for row in rows.tolist():
        note(row)
        try:
            if row in lost:
                raise DataError(lost[row])
            samples[len(kept)] = source[row]
            kept.append(row)
        except (DataError, MemoryError) as error:
            where = source.where(row)
            why = str(error) if isinstance(error, DataError) else "there is not enough memory to read it."
            bad.append(Bad(where, why.removeprefix(f"{where}: ")))
    return Found(samples[: len(kept)], np.asarray(kept, np.int64), bad)


class _Worker:
    """A process, its pipe, the row it is at, and the groups it has been given, the one under work first."""

    def __init__(self, source: Source, groups: Sequence[Rows], lost: dict[int, str]) -> None:
        context = multiprocessing.get_context()
        self.pipe, theirs = context.Pipe()
        self.at = context.RawValue("q", -1)
        self.todo: collections.deque[int] = collections.deque()
        parent = os.getpid() if context.get_start_method() == "fork" else None
        self.process = context.Process(
            target=_work, args=(source, groups, lost, theirs, self.at, parent), daemon=True
        )
        try:
            self.process.start()
        except OSError as error:
            raise DataError(
                f"no process can be started to read samples ({error}). Give fewer workers (--workers)."
            ) from error
        theirs.close()

    def give(self, number: int) -> None:
        self.todo.append(number)
        with contextlib.suppress(OSError):  # it has ended; that is seen when its answer is waited for
            self.pipe.send(number)


class _Crew:
    """The workers of one reading."""

    def __init__(self, source: Source, groups: Sequence[Rows], workers: int) -> None:
        self.source, self.groups = source, groups
        self.found: dict[int, Found | Exception] = {}
        self.given = 0
        self.lost: dict[int, str] = {}
        self.ended: collections.Counter[int] = collections.Counter()  # readers, by the row they were at
        self.fruitless = 0
        self.workers: list[_Worker] = []
        # Before multiprocessing waits for its children at the end of the program; also when this is forgotten.
        self.close = Finalize(self, _end, args=(self.workers,), exitpriority=10)
        try:
            self.workers.extend(_Worker(source, groups, self.lost) for _ in range(workers))
        except BaseException:
            self.close()
            raise

    def take(self, number: int) -> Found:
        """Return what was read of a group; wait for it if need be."""
        self._give(number)
        while number not in self.found:
            self._collect(None)
        self._collect(0)  # a worker whose answer is not taken cannot go on
        self._give(number + 1)
        found = self.found.pop(number)
        if isinstance(found, Exception):
            raise found
        return found

    def _give(self, wanted: int) -> None:
        """Give each worker something to do, but not more than will be wanted soon."""
        while self.given < min(len(self.groups), wanted + AHEAD * len(self.workers)):
            min(self.workers, key=lambda worker: len(worker.todo)).give(self.given)
            self.given += 1

    def _collect(self, timeout: float | None) -> None:
        """Take the answers that are there; put another in the place of a worker that has ended."""
        ready = wait([x for w in self.workers for x in (w.pipe, w.process.sentinel)], timeout)
        for place, worker in enumerate(self.workers):
            try:
                if worker.pipe in ready:
                    self.found[worker.todo[0]] = worker.pipe.recv()
                    worker.todo.popleft()
                    self.fruitless = 0
                elif worker.process.sentinel in ready and not worker.pipe.poll():
                    raise EOFError
            except (EOFError, OSError, pickle.UnpicklingError):
                self._replace(place)

    def _replace(self, place: int) -> None:
        old = self.workers[place]
        _end([old])
        code, row = old.process.exitcode or 0, int(old.at.value)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        hint = " Is the memory full?" if code == -signal.SIGKILL else ""
        self.fruitless += 1
        if self.fruitless > FRUITLESS:
            raise DataError(
                f"the processes that read samples end at once, with {how}.{hint} With workers=0 (--workers 0) "
                "samples are read without them."
            )
        self.ended[row] += row >= 0
        if self.ended[row] >= TRIES:
            self.lost[row] = f"reading it ended {TRIES} processes, the last with {how}.{hint}"
            self.fruitless = 0
        self.workers[place] = _Worker(self.source, self.groups, self.lost)
        for number in old.todo:
            self.workers[place].give(number)


def _end(workers: Sequence[_Worker]) -> None:
    """Kill them: they only read, so there is nothing to lose."""
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.process.join(5)  # at once, but for one that waits for a dead disk
        worker.pipe.close()


def _work(
    source: Source, groups: Sequence[Rows], lost: dict[int, str], pipe: Connection, at: Any, parent: int | None
) -> None:
    """Read the groups whose numbers come through the pipe, until nobody is left to ask."""
    for number in (signal.SIGINT, signal.SIGTERM):  # which reach workers too: what they read is needed to save
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)  # a source may use torch, whose threads do not survive a fork

    def note(row: int) -> None:
        at.value = row

    with contextlib.suppress(EOFError, OSError):
        while True:
            rows = groups[pipe.recv()]
            try:
                answer: Found | Exception = _read(source, rows, lost, note)
            except BaseException as error:  # a source of somebody's own may raise anything, SystemExit too
                answer = _sendable(error)
            note(-1)
            pipe.send(answer)


def _end_with(parent: int | None) -> None:
    """End this process when its parent has ended, in whatever way, and whatever is done here meanwhile."""
    started = multiprocessing.parent_process()
    assert started is not None
    # The number too: after a fork the pipe that the sentinel is stays open in the other workers.
    while not wait([started.sentinel], 1.0) and parent in (None, os.getppid()):
        pass
    os._exit(1)


def _sendable(error: BaseException) -> Exception:
    """Return the error, or its words where it does not survive the way to another process."""
    told = traceback.format_exc()
    try:
        copy = pickle.loads(pickle.dumps(error))
        found = copy if isinstance(copy, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
    except Exception:
        found = RuntimeError(f"{type(error).__name__}: {error}")
    found.add_note(f"In a process that reads samples:\n{told}")
    return found
