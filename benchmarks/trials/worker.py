"""A process that tries candidates at one size: a line of JSON before and after each, so that its end loses nothing.

It reads one line: rows, classes, dim, the numbers of the candidates, whether to time, rounds. A kernel that hangs
or writes where it must not takes this process with it and nothing else; `__main__` goes on with the next
candidate.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.trials.candidates import CANDIDATES, COST, Candidate, Launch, present, why
from benchmarks.trials.case import Case, Exact

MOST = 1.1  # times the present kernels' error
SUSTAINED = 0.1  # seconds of replays back to back


def errors_of(case: Case, exact: Exact, part: str, runs: list[Any], each: int, keeps: tuple[str, ...]) -> Any:
    """Errors of a part computed by these runs into poisoned buffers."""
    case.poison(part, keeps)
    for run in runs:
        run()
    return exact.errors(case, part, each)


def graph_of(runs: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """The runs as one CUDA graph, since launching takes longer than the kernels at small sizes."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for run in runs:
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in runs:
            run()
    return graph.replay


def seconds(run: Callable[[], object], times: int = 1) -> float:
    """Seconds per call by the GPU's clock, of so many calls back to back on a GPU that has come to rest."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    begin.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return 1e-3 * float(begin.elapsed_time(end)) / times


def timed(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds of each way, taken in turns: one by one, and sustained."""
    single: dict[str, list[float]] = {name: [] for name in ways}
    sustained: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, run in ways.items():
            found = seconds(run)
            if number:  # the first warms up
                single[name].append(found)
    for _ in range(3):
        for name, run in ways.items():
            times = max(int(SUSTAINED / statistics.median(single[name])), 1)
            sustained[name].append(seconds(run, times))
    return {
        name: {"single": statistics.median(single[name]), "sustained": statistics.median(sustained[name])}
        for name in ways
    }


def resources(runs: list[Any]) -> dict[str, list[int]]:
    """Registers, spilled registers and bytes of shared memory of each of our kernels."""
    return {
        run.kernel.__name__: [run.made.n_regs, run.made.n_spills, run.made.metadata.shared]
        for run in runs
        if isinstance(run, Launch) and run.made is not None
    }


def tried(case: Case, exact: Exact, given: Candidate, rounds: int) -> dict[str, Any]:
    """Errors, and unless one is too large, times beside today's kernels and the bare products."""
    part, old = given.part, present(case, given.part)
    right = errors_of(case, exact, part, old, case.step.tiles.scores.columns, ("units",) if part == "step" else ())
    runs = given.make(case)
    found: dict[str, Any] = {"errors": errors_of(case, exact, part, runs, given.blocks, given.keeps)}
    found |= {"errors today": right, "kernels": resources(runs)}
    wrong = [name for name, error in found["errors"].items() if not error <= MOST * right[name] + 1e-6]
    if wrong:
        found["failed"] = "wrong: " + ", ".join(f"{name} by {found['errors'][name]:.2e}" for name in wrong)
    elif rounds:
        products = case.products()
        bare = [products[name] for name in part.split(" and ") if name in products]
        ways = {"candidate": graph_of(runs), "today": graph_of(old)}
        if bare:
            ways["cuBLAS"] = graph_of(bare)
        found["seconds"] = timed(ways, rounds)
        found["flops"], found["bytes"] = COST[part](case.N, case.C, case.d)
    return found


def main() -> None:
    """Answer the request on stdin."""

    def say(**words: Any) -> None:
        print(json.dumps(words), flush=True)

    request = json.loads(sys.stdin.readline())
    say(begin=None)
    case = Case(request["rows"], request["classes"], request["dim"], "cuda")
    case.fill()
    exact = Exact(case)
    for number in request["candidates"]:
        say(begin=number)
        try:
            found = tried(case, exact, CANDIDATES[number], request["rounds"])
        except Exception as error:  # it does not compile, or a launch is refused
            found = {"failed": why(error)}
        torch.cuda.synchronize()  # what the kernel did to the GPU ends this process here, not at the next one
        case.restore()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        say(done=number, found=found)


if __name__ == "__main__":
    main()
