"""`python -m benchmarks.successors --data FOLDER`: train what the plan says and has not been trained yet.

Results are lines of JSON in --out, written as they come. Interrupt it, or limit it with --budget-seconds, and call
it again: it goes on, most valuable runs first. --known names files with results of earlier calls elsewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from benchmarks.command import at_least, say
from benchmarks.successors import plan
from benchmarks.successors.mps import mps
from benchmarks.successors.workers import Settings, train_all

# With MPS, and without: processes that take turns on the GPU need more of their own runs side by side.
SHARED, IN_TURN = (12, 2), (4, 6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with omniglot28.npz")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/successors.jsonl"))
    parser.add_argument("--known", type=Path, nargs="*", default=[], help="results that need not be made again")
    parser.add_argument("--budget-seconds", type=float, default=float("inf"), help="end by then")
    parser.add_argument("--conditions", nargs="+", choices=plan.CONDITIONS, default=plan.CONDITIONS)
    parser.add_argument("--heads", nargs="+", choices=plan.SETTINGS, default=list(plan.SETTINGS), metavar="HEAD")
    parser.add_argument("--width", type=at_least(1), default=plan.Size.width)
    parser.add_argument("--batch", type=at_least(2), default=plan.Size.batch)
    parser.add_argument("--epochs", type=float, default=1.0, help="multiple of the plan's epochs")
    parser.add_argument("--processes", type=at_least(1), help=f"{SHARED[0]} with MPS, {IN_TURN[0]} without")
    parser.add_argument("--at-once", type=at_least(1), help=f"runs per process: {SHARED[1]}, or {IN_TURN[1]}")
    parser.add_argument("--graphs", action=argparse.BooleanOptionalAction, default=True, help="record the steps")
    parser.add_argument("--start", choices=("fork", "spawn"), default="fork", help="how processes are made")
    parser.add_argument("--mps", action=argparse.BooleanOptionalAction, default=True, help="where it works")
    parser.add_argument("--device", default="cuda", help="or cpu")
    given = parser.parse_args()
    begun = time.monotonic()

    size = plan.Size(given.width, given.batch, given.epochs)
    wanted = [(c, h) for c, h in plan.groups() if c in given.conditions and h in given.heads]
    known = [r for file in [*given.known, given.out] for r in read(file) if "error" not in r]
    agenda = plan.Agenda(wanted, size, known)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with mps(given.mps and given.device == "cuda") as why_not, given.out.open("a", encoding="utf-8") as log:
        usual = IN_TURN if why_not else SHARED
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
        )
        say(f"MPS: {why_not or 'yes'}; {settings.processes} processes with {settings.at_once} runs each")
        say(f"{len(wanted)} heads under a condition; {len(known)} results are known")
        runs = steps = 0
        first: tuple[float, int] | None = None  # after the first result: seconds, steps
        left = given.budget_seconds - (time.monotonic() - begun)
        for result in train_all(agenda, settings, seconds=left, say=say):
            log.write(json.dumps(result) + "\n")
            log.flush()
            runs, steps = runs + 1, steps + result["steps"]
            spent = time.monotonic() - begun
            first = first or (spent, steps)
            pace = 1e3 * (spent - first[0]) / max(steps - first[1], 1)
            say(f"{spent:.0f} s, {runs} runs, {pace:.2f} ms a step: {describe(result)}")
    say(f"{runs} runs, {steps:,} steps in {time.monotonic() - begun:.0f} s")


def read(file: Path) -> list[plan.Result]:
    """The results in a file, if it is there; a last line that was cut off does not count."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            say(f"{file}: a line is no JSON and is left out: {line[:60]}")
    return found


def describe(result: plan.Result) -> str:
    """One line."""
    spec = plan.Spec(**result["spec"])
    numbers = " ".join(f"{k}={v:g}" for k, v in spec.set.items())
    words = f"{spec.study} {spec.condition} {spec.head} {numbers} wd {spec.weight_decay:g} lr {spec.lr:g} "
    words += f"seed {spec.seed}: "
    if result["broken"]:
        return f"{words}{result.get('error', 'not finite')}"
    found = f"EER {100 * result['test']['eer']:.2f} ({result['seconds']:.1f} s)"
    return f"{words}{found}" + (f", not recorded: {result['why_not']}" if "why_not" in result else "")


if __name__ == "__main__":
    main()
