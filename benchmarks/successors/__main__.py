"""`python -m benchmarks.successors --data FOLDER`: train what the plan says and has not been trained yet.

Results are lines of JSON in --out, written as they come. Interrupt it, or limit it with --budget-seconds, and call
it again: it goes on, most valuable runs first. --known names files with results of earlier calls elsewhere.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.command import at_least
from benchmarks.study.agenda import Result
from benchmarks.study.runner import add_flags, read, train_agenda
from benchmarks.successors import plan

__all__ = ["main", "read"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with omniglot28.npz")
    parser.add_argument("--conditions", nargs="+", choices=plan.CONDITIONS, default=plan.CONDITIONS)
    parser.add_argument("--heads", nargs="+", choices=plan.SETTINGS, default=list(plan.SETTINGS), metavar="HEAD")
    parser.add_argument("--width", type=at_least(1), default=plan.Size.width)
    parser.add_argument("--batch", type=at_least(2), default=plan.Size.batch)
    parser.add_argument("--epochs", type=float, default=1.0, help="multiple of the plan's epochs")
    add_flags(parser, Path("benchmarks/results/successors.jsonl"))
    given = parser.parse_args()
    size = plan.Size(given.width, given.batch, given.epochs)
    wanted = [(c, h) for c, h in plan.groups() if c in given.conditions and h in given.heads]
    train_agenda(given, "benchmarks.successors.run", lambda known: plan.agenda(wanted, size, known), describe)


def describe(result: Result) -> str:
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
