"""What an eager call costs beside its arithmetic, on one thread of the CPU, now and in an older checkout.

Small batches, where Python and torch's dispatch count: the head's call beside a textbook's, the functions it passes
through, and the import of the package. `overhead_probe.py` measures, in fresh processes that take turns between the
checkouts.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import command
from benchmarks.record import Say, in_words, store, surroundings, threads_set

HERE = Path(__file__).resolve().parents[1]
PROBE = Path(__file__).with_name("overhead_probe.py")
SIZES = ((64, 10, 64), (256, 1000, 128))  # N, C, d
PASSES = ("forward", "forward and backward")


def probe(checkout: Path, calls: int) -> dict[str, Any]:
    """What `overhead_probe.py` finds with the package of a checkout."""
    source = checkout / "src"
    given = {**os.environ, "OMP_NUM_THREADS": "1"}
    given["PYTHONPATH"] = os.pathsep.join([str(source), *filter(None, [os.environ.get("PYTHONPATH")])])
    given.pop("PYTHONDONTWRITEBYTECODE", None)  # an import that compiles every time is nobody's import
    request = json.dumps({"sizes": SIZES, "calls": calls})
    # -P: the modules of this folder are not to be found as `head`, `record`, …
    run = subprocess.run(
        [sys.executable, "-P", str(PROBE), request], capture_output=True, text=True, check=False, env=given
    )
    if run.returncode:
        last = (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1]
        raise RuntimeError(f"measuring the checkout in {checkout} failed: {last}")
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    measured = Path(found["import"].pop("package"))  # not stored: it is a path of this machine
    if measured.resolve() != (source / "hypermargin").resolve():
        raise RuntimeError(f"the package of {source} was to be measured, but Python imports the one in {measured}.")
    return found


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds, each the median of a process, and their range; the walk is the same in all."""
    imports = [found["import"] for found in rounds]
    cases = []
    for same in zip(*(found["cases"] for found in rounds), strict=True):
        us: dict[str, Any] = {}
        for which in PASSES:
            heads, peers = ([case["us"][which][who] for case in same] for who in ("head", "textbook"))
            ratios = [head / peer for head, peer in zip(heads, peers, strict=True)]
            us[which] = {"head": heads, "textbook": peers, "to_textbook": statistics.median(ratios)}
        cases.append({**same[0], "us": us})
    return {
        "version": imports[0]["version"],
        "import": {**imports[0], "ms": [each["ms"] for each in imports]},
        "cases": cases,
    }


def commit(checkout: Path) -> str:
    """The short name of what is checked out; empty where git does not tell."""
    asked = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    try:
        run = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return run.stdout.strip()


def as_markdown(result: dict[str, Any]) -> str:
    """The tables and the walk, for people."""
    env, sides = result["environment"], result["checkouts"]
    lines = [
        f"# What an eager call costs, {env['device']}",
        "",
        in_words(env),
        "`MarginHead(d, C, ArcFace(), scale=16.0)` beside a textbook snippet with the same weight (normalise, "
        "linear, arc cosine and margin on the target, `F.cross_entropy`), float32, one thread. Microseconds: the "
        f"median of {result['calls']} calls in a process, then of {result['rounds']} processes, in brackets their "
        "range. Calls of head and textbook take turns, and so do the processes of the checkouts.",
        "",
        *_times(sides),
        "",
        "## The way of one call",
        "",
        "`head(features, labels)`, by `sys.setprofile`. Parameters are those of the distinct functions passed "
        "through, `self` not counted. Importing: after torch and numpy.",
        "",
        *_counts(sides),
    ]
    for name, side in sides.items():
        shown: list[Any] = []
        for case in side["cases"]:
            if case["walk"]["steps"] in shown:
                continue  # most sizes go the same way
            shown.append(case["walk"]["steps"])
            lines += ["", f"### {_titled(name, side)}, {_size(case)}", "", *_walk(case["walk"]["steps"])]
    return "\n".join(lines) + "\n"


def _titled(name: str, side: dict[str, Any]) -> str:
    return f"{name} ({', '.join(filter(None, [side['version'], side['commit']]))})"


def _size(case: dict[str, Any]) -> str:
    return f"N = {case['rows']}, C = {case['classes']:,}, d = {case['dim']}"


def _times(sides: dict[str, Any]) -> Iterator[str]:
    yield "| | | | head µs | textbook µs | × textbook |"
    yield "|---|---|---|---:|---:|---:|"
    for which in PASSES:
        for number in range(len(SIZES)):
            for name, side in sides.items():
                case = side["cases"][number]
                us = case["us"][which]
                yield (
                    f"| {_size(case)} | {which} | {_titled(name, side)} | {_range(us['head'])} | "
                    f"{_range(us['textbook'])} | {us['to_textbook']:.2f} |"
                )


def _counts(sides: dict[str, Any]) -> Iterator[str]:
    yield "| | " + " | ".join(_titled(name, side) for name, side in sides.items()) + " |"
    yield "|---|" + "---:|" * len(sides)
    walks = [side["cases"][0]["walk"] for side in sides.values()]
    imports = [side["import"] for side in sides.values()]
    rows = {
        "files of hypermargin": [f"{walk['files']}" for walk in walks],
        "functions of hypermargin": [f"{walk['functions']}" for walk in walks],
        "calls of them": [f"{walk['calls']}" for walk in walks],
        "Python calls in all, torch's too": [f"{walk['python_calls']}" for walk in walks],
        "most parameters": [f"{walk['most_parameters']} (`{walk['most_parameters_of']}`)" for walk in walks],
        "mean of the parameters": [f"{walk['mean_parameters']:.1f}" for walk in walks],
        "modules loaded by `import hypermargin`": [f"{each['modules']}" for each in imports],
        "of these hypermargin's": [f"{each['own_modules']}" for each in imports],
        "`import hypermargin`, ms": [_range(each["ms"]) for each in imports],
    }
    for name, cells in rows.items():
        yield f"| {name} | " + " | ".join(cells) + " |"


def _walk(steps: list[dict[str, Any]]) -> Iterator[str]:
    """One line per call, indented by what it is called from."""
    yield "```text"
    for step in steps:
        yield f"{'  ' * step['depth']}{step['function']}  {step['file']}"
    yield "```"


def _range(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def run(
    before: Path | None = None,
    *,
    rounds: int = 7,
    calls: int = 500,
    out: Path | None = None,
    say: Say = print,
) -> dict[str, Any]:
    """The whole benchmark, some minutes; writes overhead-cpu.json and .md into `out`."""
    checkouts = {"now": HERE} if before is None else {"before": before, "now": HERE}
    for checkout in checkouts.values():
        if not (checkout / "src" / "hypermargin" / "__init__.py").is_file():
            raise ValueError(f"--before must be a checkout of hypermargin; {checkout} has no src/hypermargin.")
    with threads_set(1):
        env = surroundings()
    env.pop("pillow", None)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in checkouts}
    for number in range(rounds + 1):
        say(f"round {number} of {rounds}" if number else "warming up")
        for name, checkout in checkouts.items():
            seen = probe(checkout, calls if number else 1)
            if number:  # the first one compiles the modules
                found[name].append(seen)
    sides = {name: summary(seen) | {"commit": commit(checkouts[name])} for name, seen in found.items()}
    result = {"environment": env, "rounds": rounds, "calls": calls, "checkouts": sides}
    store(result, as_markdown(result), "overhead-cpu", out, say)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command.flags(
        "overhead",
        "What an eager call of the head costs beside its arithmetic, on one thread of the CPU.",
        "",
        "--before ../hypermargin-0.1",
        "--rounds 2 --calls 50 --out results",
    )
    parser.add_argument("--before", type=Path, help="an older checkout to measure beside this one")
    parser.add_argument("--rounds", type=command.at_least(1), default=7, help="processes of each checkout, in turn")
    parser.add_argument("--calls", type=command.at_least(1), default=500, help="calls to time in each process")
    given = vars(parser.parse_args(arguments))
    with command.plain_errors(parser):
        result = run(**given, say=command.say)
    print(as_markdown(result))


if __name__ == "__main__":
    main()
