"""The benchmark of ranks: a training step of the class-parallel head against the number of processes, on one CPU.

Beside it the plain head in one process, the reference of all ratios, and on every rank the same step on its own
classes and all rows without a message: the rest of the step is messages and waiting. A machine with few cores
cannot show how time falls with more ranks than it has cores. It can show that CPU time in all ranks together stays
the same, and that the memory of each rank falls.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks import command
from benchmarks.contenders import SCALE, M
from benchmarks.crew import Crew, RankError, in_a_fresh_process
from benchmarks.ranks_tables import as_markdown
from benchmarks.record import Say, store, surroundings
from hypermargin import MarginHead, PartialFC, SampledSGD, Shard, checks
from hypermargin.margins import ArcFace
from hypermargin.parallel import Sharded, traffic

RATE, MOMENTUM = 0.01, 0.9  # small steps: the numbers stay what they are at the start


class Problem(NamedTuple):
    """What is trained. `rows` are those of all ranks, or of each where there are most ranks."""

    rows: int
    classes: int
    dim: int
    worlds: tuple[int, ...]
    rounds: int
    rate: float  # of Partial FC

    @property
    def fewest(self) -> int:
        """Rows of each rank at the largest world."""
        return self.rows // max(self.worlds)

    def totals(self, world: int, *, sampled: bool) -> list[int]:
        """Rows in all to measure with so many ranks (0: plain), fewest first, since memory once taken may stay."""
        worlds = self.worlds if world == 0 else (world,)
        growing = set() if sampled else {w * self.fewest for w in worlds}
        return sorted({self.rows} | growing)


def threads_of(world: int) -> int:
    """Threads of each rank: the cores, shared out; at least one."""
    return max((os.cpu_count() or 1) // max(world, 1), 1)


class Worker:
    """A rank's head, and its steps. World 0 is the plain head."""

    def __init__(self, p: Problem, world: int, rate: float | None, rank: int) -> None:
        self.p, self.world, self.rank = p, world, rank
        sample = None if rate is None else PartialFC(rate)
        # What "auto" takes for many classes; with few it could take another for a slice than for all.
        self.options: dict[str, Any] = {"scale": SCALE, "sample": sample, "backend": "chunked"}
        torch.set_num_threads(threads_of(world))
        rng = torch.Generator().manual_seed(0)
        self.x = torch.randn(p.rows, p.dim, generator=rng)
        self.y = torch.randint(0, p.classes, (p.rows,), generator=rng)
        self._step(*self._made(64), p.rows, True)  # first messages and first products take memory that stays
        self.before = _tidy()
        self.head, self.optimizer = self._made(p.classes)
        self.alone: MarginHead | None = None

    def _made(self, classes: int) -> tuple[MarginHead, torch.optim.Optimizer]:
        shard = Shard() if self.world else None
        head = MarginHead(self.p.dim, classes, ArcFace(M), shard=shard, **self.options)
        if shard is None:  # the same first weights as with any number of ranks
            Sharded(classes).first_weights(head.weight, self.p.dim**-0.5)
        kind: Any = torch.optim.SGD if self.options["sample"] is None else SampledSGD
        return head, kind(head.parameters(), lr=RATE, momentum=MOMENTUM)

    def _own(self, rows: int) -> slice:
        """This rank's share of so many rows."""
        size = rows // max(self.world, 1)
        return slice(self.rank * size, (self.rank + 1) * size)

    def _step(self, head: MarginHead, optimizer: torch.optim.Optimizer, rows: int, mine: bool) -> None:
        """Forward, backward and step on this rank's share of so many rows, or on all of them."""
        own = self._own(rows) if mine else slice(rows)
        x = self.x[own].clone().requires_grad_()
        optimizer.zero_grad()
        loss: Tensor = head(x, self.y[own] % head.classes)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    @torch.no_grad()
    def first_loss(self) -> float:
        """With the first weights."""
        own = self._own(self.p.rows)
        return float(self.head(self.x[own], self.y[own]))

    def peak(self, rows: int) -> int:
        """The most memory that the head has in a step, weight and momentum included."""
        self._step(self.head, self.optimizer, rows, True)
        _tidy()
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        self._step(self.head, self.optimizer, rows, True)
        return _memory("VmHWM") - self.before

    def timed(self, rows: int, messages: bool) -> tuple[float, float]:
        """Seconds of a step, and of CPU time in this process; without messages, of the same products alone."""
        head = self.head if messages else self._alone()
        if self.world > 1:
            dist.barrier()
        start, used = time.perf_counter(), time.process_time()
        self._step(head, self.optimizer, rows, messages)
        return time.perf_counter() - start, time.process_time() - used

    def _alone(self) -> MarginHead:
        """A plain head of this rank's classes, with the same weight."""
        if self.alone is None:
            held = len(self.head.layout.held(self.head.classes))
            self.alone = MarginHead(self.p.dim, held, ArcFace(M), **self.options)
            self.alone.weight = self.head.weight
        return self.alone


def _tidy() -> int:
    """Bytes in memory, after all that is free has been given back."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return _memory("VmRSS")


def _memory(key: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


def measure(p: Problem, rate: float | None, say: Say) -> list[dict[str, Any]]:
    """One line for each number of ranks and of rows; the plain head's are those of 0 ranks."""
    name = "all classes" if rate is None else f"Partial FC, rate {rate:g}"
    crews: dict[int, Crew] = {}
    lines: list[dict[str, Any]] = []
    losses: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for world in (0, *p.worlds):
                say(f"{name}: memory, {_ranks(world)}")
                crew = Crew(world, partial(Worker, p, world, rate), Path(folder), list(crews.values()))
                crews[world] = crew
                losses[world] = crew.ask("first_loss")[0]
                _same_loss(world, losses)
                for rows in p.totals(world, sampled=rate is not None):
                    peak = max(crew.ask("peak", rows))
                    lines.append(_line(p, world, rows, rate) | {"peak": peak, "loss": losses[world]})
            keys = [(line, True) for line in lines] + [(line, False) for line in lines if line["world"] > 1]
            for number in range(p.rounds + 1):
                say(f"{name}: round {number} of {p.rounds}" if number else f"{name}: warming up")
                for line, messages in keys:
                    seconds, used = zip(*crews[line["world"]].ask("timed", line["rows"], messages), strict=True)
                    if number:
                        prefix = "" if messages else "alone_"
                        line[f"{prefix}seconds"].append(max(seconds))
                        line[f"{prefix}cpu"].append(sum(used))
        finally:
            for crew in crews.values():
                crew.close()
    return [_with_ratios(line, lines) for line in lines]


def _ranks(world: int) -> str:
    return "the plain head" if world == 0 else f"{world} rank{'s' if world > 1 else ''}"


def _line(p: Problem, world: int, rows: int, rate: float | None) -> dict[str, Any]:
    ranks = max(world, 1)
    each = -(-p.classes // ranks)
    return {
        "world": world,
        "rows": rows,
        "rows_each": rows // ranks,
        "classes_each": each,
        "threads": threads_of(world),
        "tables": round((3 if rate is None else 2 + rate) * 4 * each * p.dim),  # weight, momentum, gradient
        "sent": traffic(rows // ranks, p.dim, ranks).total,
        **{key: [] for key in ("seconds", "cpu", "alone_seconds", "alone_cpu")},
    }


def _same_loss(world: int, losses: dict[int, float]) -> None:
    """Every head starts with the same weights and batch, so its first loss is known."""
    if not math.isclose(losses[world], losses[0], rel_tol=1e-4):
        raise RankError(f"{_ranks(world)} begin with a loss of {losses[world]}, the plain head with {losses[0]}.")


def _with_ratios(line: dict[str, Any], lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the rounds; ratios to the plain head with as many rows; the share that is not computing."""
    plain = next(other for other in lines if other["world"] == 0 and other["rows"] == line["rows"])
    middle, of_plain = ({key: statistics.median(each[key]) for key in ("seconds", "cpu")} for each in (line, plain))
    out = line | {
        "median": middle["seconds"],
        "cpu_median": middle["cpu"],
        "to_plain": middle["seconds"] / of_plain["seconds"],
        "cpu_to_plain": middle["cpu"] / of_plain["cpu"],
    }
    if line["alone_seconds"]:
        out["messages"] = 1 - statistics.median(line["alone_seconds"]) / middle["seconds"]
        out["cpu_messages"] = 1 - statistics.median(line["alone_cpu"]) / middle["cpu"]
    return out


def _all(p: Problem, say: Say) -> dict[str, Any]:
    # torch imports its compiler with the first optimiser: once here, rather than in every rank.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0).zero_grad()
    gc.freeze()  # or every rank would look through, and thereby copy, what importing made
    return {"full": measure(p, None, say), "sampled": measure(p, p.rate, say)}


def _checked(p: Problem) -> None:
    for name, value in (("--rows", p.rows), ("--classes", p.classes), ("--dim", p.dim), ("--rounds", p.rounds)):
        checks.count(name, value)
    if not p.worlds or min(p.worlds) < 1 or len(set(p.worlds)) < len(p.worlds):
        raise ValueError(f"--worlds must be different numbers of ranks from 1 on, such as 1,2,4; got {p.worlds}.")
    if not 0 < p.rate <= 1:
        raise ValueError(f"--rate must lie in (0, 1], the share of the classes in a step; got {p.rate:g}.")
    even = math.lcm(*p.worlds)
    if p.rows % even:
        near = -(-p.rows // even) * even
        raise ValueError(f"--rows must be shared out evenly by {p.worlds} ranks; got {p.rows}. Take {near}.")
    if p.classes < max(p.worlds):
        raise ValueError(f"--classes must be at least one per rank, {max(p.worlds)}; got {p.classes}.")
    info = Path("/proc/meminfo")
    if not info.exists() or not Path("/proc/self/clear_refs").exists():
        raise ValueError("the benchmark of ranks reads memory from Linux's /proc, which is not here.")
    free = next(int(line.split()[1]) for line in info.read_text().splitlines() if line.startswith("MemAvailable"))
    needed = 3 * 4 * p.classes * p.dim * (1 + len(p.worlds))
    if needed > 1024 * free:
        raise ValueError(
            f"--classes {p.classes} of --dim {p.dim} need {needed / 1e9:,.0f} GB, since {1 + len(p.worlds)} heads "
            f"are held at a time; {free / 1e6:,.0f} GB are free. Take fewer."
        )


def run(
    rows: int = 240,
    classes: int = 100_000,
    dim: int = 512,
    *,
    worlds: tuple[int, ...] = (1, 2, 3, 4),
    rate: float = 0.1,
    rounds: int = 7,
    out: Path | None = None,
    say: Say = print,
) -> dict[str, Any]:
    """The whole benchmark, some minutes; writes ranks-cpu.json and .md into `out`."""
    p = Problem(rows, classes, dim, tuple(worlds), rounds, rate)
    _checked(p)
    env = surroundings()
    env = {key: value for key, value in env.items() if key not in ("threads", "pillow")}  # threads: by row
    measured: Callable[..., dict[str, Any]] = partial(in_a_fresh_process, _all, p)
    result = {"environment": env, "problem": p._asdict() | {"worlds": list(p.worlds)}, **measured(say=say)}
    store(result, as_markdown(result), "ranks-cpu", out, say)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command.flags(
        "ranks",
        "A training step with the classes on several processes (gloo, CPU): time, messages, memory per rank.",
        "",
        "--classes 20000 --worlds 1,2 --rows 64",
        "--out results",
    )
    parser.add_argument("--rows", type=int, default=240, help="rows in all; each number of ranks must divide it")
    parser.add_argument("--classes", type=int, default=100_000, help="classes in all, C")
    parser.add_argument("--dim", type=int, default=512, help="dimension of the features, d")
    parser.add_argument("--worlds", type=_numbers, default="1,2,3,4", help="numbers of ranks, with commas")
    parser.add_argument("--rate", type=float, default=0.1, help="share of the classes in a step of Partial FC")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds to time")
    given = vars(parser.parse_args(arguments))
    try:
        with command.plain_errors(parser):
            result = run(**given, say=command.say)
    except RankError as error:
        raise SystemExit(f"Error: {error}") from None
    print(as_markdown(result))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be whole numbers with commas, such as 1,2,4; got {text!r}."
        ) from None


if __name__ == "__main__":
    main()
