"""Blocks of work on independent threads, for machines that are not idle.

An operation that torch splits over its threads ends when the last of them is done. If another process has a core,
each operation waits for the thread that was put aside. Here each thread takes whole blocks and computes them alone.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")

AHEAD = 4  # blocks per thread that may wait for an earlier one to be finished; each holds its result


class _Job(Generic[Result]):
    """One call of `in_order`: which block is next, and results that are waiting for their turn."""

    def __init__(
        self, count: int, threads: int, work: Callable[[int], Result], finish: Callable[[Result], None]
    ) -> None:
        self.count, self.ahead, self.work, self.finish = count, AHEAD * threads, work, finish
        self.taken = self.finished = 0
        self.waiting: dict[int, Result] = {}
        self.changed = threading.Condition()
        self.inference = torch.is_inference_mode_enabled()

    def help(self) -> None:
        """Take blocks until none is left."""
        try:
            with torch.inference_mode(self.inference), torch.no_grad():  # both are each thread's own
                while (number := self._take()) is not None:
                    self._give(number, self.work(number))
        except BaseException:
            self.stop()
            raise

    def _take(self) -> int | None:
        with self.changed:
            number, self.taken = self.taken, self.taken + 1
            self.changed.wait_for(lambda: number < self.finished + self.ahead or number >= self.count)
            return number if number < self.count else None

    def _give(self, number: int, result: Result) -> None:
        with self.changed:
            self.waiting[number] = result
            while self.finished in self.waiting:
                self.finish(self.waiting.pop(self.finished))
                self.finished += 1
            self.changed.notify_all()

    def stop(self) -> None:
        """Let no thread begin another block."""
        with self.changed:
            self.count = 0
            self.changed.notify_all()


_pool: ThreadPoolExecutor | None = None
_pool_size = 0
_pool_lock = threading.Lock()


def _forget_pool() -> None:
    """Begin anew in a forked process, which has none of the threads."""
    global _pool, _pool_size, _pool_lock
    _pool, _pool_size, _pool_lock = None, 0, threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_forget_pool)


def _threads(size: int) -> ThreadPoolExecutor:
    """Return at least `size` threads, in each of which torch's operations are not split any further."""
    global _pool, _pool_size
    with _pool_lock:
        if _pool is None or _pool_size < size:
            if _pool is not None:
                _pool.shutdown(wait=False)
            _pool, _pool_size = ThreadPoolExecutor(size, "hypermargin"), size
            # OpenMP and MKL keep the number by thread, but torch also remembers the last one for threads to come.
            before, all_there = torch.get_num_threads(), threading.Barrier(size)

            def alone() -> None:
                torch.get_num_threads()  # a thread's first look takes over the number that torch remembers
                all_there.wait()
                torch.set_num_threads(1)

            wait([_pool.submit(alone) for _ in range(size)])
            torch.set_num_threads(before)
        return _pool


def threads_for(device: torch.device, blocks: int) -> int:
    """Return on how many threads to compute blocks: torch's number on the CPU, where it can be set by thread."""
    threads = min(torch.get_num_threads(), blocks) if device.type == "cpu" else 1
    return threads if threads > 1 and _is_openmp() else 1


@functools.cache
def _is_openmp() -> bool:
    """Return whether torch's own threads are OpenMP's; the number of others cannot be set by thread."""
    return "OpenMP" in torch.__config__.parallel_info().partition("ATen parallel backend:")[2]


def in_order(count: int, threads: int, work: Callable[[int], Result], finish: Callable[[Result], None]) -> None:
    """Do work(i) for each i < count, on several threads, and finish(result) for one after the other by i.

    The order of what `finish` adds up does not depend on the threads, and so neither do the bits of the sum.
    """
    if threads < 2:
        for number in range(count):
            finish(work(number))
        return
    job = _Job(count, threads, work, finish)
    pool = _threads(threads)
    helpers: list[Future[None]] = [pool.submit(job.help) for _ in range(threads)]
    try:
        wait(helpers)
    finally:  # Ctrl-C arrives while waiting
        job.stop()
        wait(helpers)
    for helper in helpers:
        helper.result()
