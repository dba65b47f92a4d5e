"""`python -m benchmarks.heads --data FOLDER`: train what the plan says and has not been trained yet.

Results are lines of JSON in --out. Interrupt it, or limit it with --seconds, and call it again: it goes on.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.heads import plan, quality
from benchmarks.heads.loop import Spec, race
from benchmarks.heads.tasks import FILES, Task, fewer, load
from benchmarks.record import environment

STUDIES = "search", "final", "untuned", "turns", "difficulty", "quality"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    files = ", ".join(sorted(set(FILES.values())))
    parser.add_argument("--data", type=Path, required=True, help=f"folder with {files}")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/heads.jsonl"))
    parser.add_argument("--tasks", nargs="*", default=["omniglot", "audiomnist", "mnist", "fashion-mnist"])
    parser.add_argument("--studies", nargs="*", default=list(STUDIES))
    parser.add_argument("--at-once", type=int, default=8, help="runs that share the GPU")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no new run after so long")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()

    device = torch.device(given.device)
    torch.backends.cudnn.benchmark = True
    tasks: dict[tuple[Any, ...], Task] = {}

    def task_of(spec: Spec) -> Task:
        whole = (spec.task, spec.stage)
        if whole not in tasks:
            tasks[whole] = load(spec.task, given.data, spec.stage, device)
        if spec.identities is None:
            return tasks[whole]
        part = (*whole, spec.identities, spec.seed)
        if part not in tasks:
            tasks[part] = fewer(tasks[whole], spec.identities, spec.seed)
        return tasks[part]

    results = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    given.out.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + given.seconds

    def train(specs: list[Spec], after: Any = None) -> None:
        done = {Spec(**r["spec"]).key for r in results}
        left = [s for s in specs if s.key not in done]
        begun, steps = time.monotonic(), 0
        with given.out.open("a", encoding="utf-8") as log:
            for run, result in race(left, task_of, at_once=given.at_once, seconds=end - time.monotonic()):
                if after is not None and not result["broken"]:
                    result |= after(run)
                result["environment"] = versions
                results.append(result)
                log.write(json.dumps(result) + "\n")
                log.flush()
                steps += run.total
                print(describe(result), flush=True)
        if steps:
            spent = time.monotonic() - begun
            print(f"== {steps:,} steps in {spent:.0f} s, {1e3 * spent / steps:.2f} ms a step", flush=True)

    versions = environment(given.device)
    for task in given.tasks:
        if "search" in given.studies:
            train(plan.search(task))
        if "final" in given.studies:
            train(plan.finals(results, task))
        if "turns" in given.studies:
            train(plan.more_classes(results, task))
        if "untuned" in given.studies:
            train(plan.untuned(task, task_of(Spec("", task, "final", "")).train.classes))
    if "difficulty" in given.studies and "omniglot" in given.tasks:
        train(plan.difficulty(16.0) + plan.difficulty(30.0) + plan.difficulty(16.0, identities=100))
    if "quality" in given.studies and "omniglot" in given.tasks:
        train(quality.plan(results), after=quality.measure)


def describe(result: dict[str, Any]) -> str:
    """One line."""
    spec = Spec(**result["spec"])
    test = result.get("test", {})
    shown = {k: f"{100 * test[k]:.2f}" for k in ("eer", "tar0.001", "rank1", "accuracy") if k in test}
    words = " ".join(f"{k} {v}" for k, v in shown.items()) or "not finite"
    settings = " ".join(f"{k}={v:g}" for k, v in spec.set.items())
    floor = "" if spec.lam_floor is None else f" λ→{spec.lam_floor:g}"
    return (
        f"{spec.study} {spec.task} {spec.head} {settings}{floor} lr {spec.lr:g} wd {spec.weight_decay:g} "
        f"seed {spec.seed}: {words} ({result['seconds']:.1f} s)"
    )


if __name__ == "__main__":
    main()
