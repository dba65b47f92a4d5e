"""Time and memory, measured so that neither can flatter."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.contenders import CONTENDERS, Contender, Problem
from benchmarks.memory import peak_beyond


def stepper(contender: Contender, problem: Problem) -> Callable[[], None]:
    """One whole training step of a contender; gradients are dropped before each, or are a graph's own."""
    loss = contender.build(problem)

    def step() -> None:
        problem.x.grad = problem.W.grad = None
        with problem.autocast():
            value = loss()
        value.backward()  # type: ignore[no-untyped-call]

    return Captured(step, problem) if contender.graph else step


class Captured:
    """A step as a CUDA graph: run a few times, captured once, replayed at every call.

    Its gradients are always the same tensors, put back after each replay, since between rounds they are dropped.
    `bytes` is the most memory alive during the capture beyond what was alive before: a replay allocates nothing.
    """

    def __init__(self, step: Callable[[], None], problem: Problem) -> None:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # compiles, and makes what a capture may not make
                step()
        torch.cuda.current_stream().wait_stream(side)
        problem.x.grad = problem.W.grad = None
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            step()
        self.bytes: int = torch.cuda.max_memory_allocated() - before
        self.step = step  # keeps alive what the graph reads
        self.problem, self.gradients = problem, (problem.x.grad, problem.W.grad)

    def __call__(self) -> None:
        """One step."""
        self.graph.replay()
        self.problem.x.grad, self.problem.W.grad = self.gradients


def interleaved(
    steps: dict[str, Callable[[], None]], rounds: int, device: str, between: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    """Seconds of each step in each round. One after the other in turn, so that a slow moment hits all alike.

    A step that runs out of the GPU's memory has no times, and the others go on. `between` runs untimed.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    failed: set[str] = set()
    for round_number in range(rounds + 1):
        for name, step in steps.items():
            if name in failed:
                continue
            between()
            _wait(device)
            start = time.perf_counter()
            try:
                step()
            except torch.OutOfMemoryError:
                failed.add(name)
                times[name].clear()
                torch.cuda.empty_cache()
                continue
            _wait(device)
            if round_number:  # the first is for compiling and for first touches
                times[name].append(time.perf_counter() - start)
    return times


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many other processes that never rest, as the workers of a data loader."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak_extra_bytes(step: Callable[[], None], problem: Problem) -> int:
    """The most memory alive during a step beyond what was alive before it: gradients and everything transient."""
    if isinstance(step, Captured):
        return step.bytes
    device = problem.device
    step()  # compiles, touches
    problem.x.grad = problem.W.grad = None
    gc.collect()
    if device == "cuda":
        _wait(device)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        _wait(device)
        return torch.cuda.max_memory_allocated() - before
    return peak_beyond(step)


def memory_in_a_fresh_process(name: str, problem: Problem) -> int:
    """`peak_extra_bytes` of a contender where nothing ran before."""
    request: dict[str, Any] = {"rows": problem.rows, "classes": problem.classes, "dim": problem.dim}
    request |= {"device": problem.device, "precision": problem.precision}
    return ask_a_fresh_process("benchmarks.measure", name, request)


def peak_memory(name: str, **problem: Any) -> int:
    """The same in this process; `ask_a_fresh_process` calls it there."""
    contender = next(c for c in CONTENDERS if c.name == name)
    made = Problem(**problem)
    return peak_extra_bytes(stepper(contender, made), made)


_ASKED = (
    "import importlib, json, sys; name = sys.argv[1]; "
    "print(importlib.import_module(name).peak_memory(**json.loads(sys.argv[2])))"
)


def ask_a_fresh_process(module: str, name: str, request: dict[str, Any]) -> int:
    """The bytes that `module.peak_memory(name, **request)` finds where nothing ran before."""
    run = subprocess.run(
        [sys.executable, "-c", _ASKED, module, json.dumps({"name": name, **request})],
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        last = (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1]
        raise RuntimeError(f"measuring the memory of {name} failed: {last}")
    return int(run.stdout.split()[-1])
