"""`python -m benchmarks.many --data FILE.glyphs`: train what the plan says and has not been trained yet.

Results are lines of JSON in --out, written as they come. Interrupt it, or limit it with --budget-seconds, and call
it again: it goes on, most valuable runs first. --known names files with results of earlier calls elsewhere. The
file comes from `python -m benchmarks.many.prepare`. Needs torch and numpy alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.command import at_least, plain_errors
from benchmarks.many import plan
from benchmarks.many.data import available
from benchmarks.study.agenda import Result
from benchmarks.study.runner import add_flags, train_agenda

SHARED = 3, 1  # processes with MPS, runs of each: a residual network fills most of a GPU
DRAWN = tuple(q for q in plan.QUESTIONS if q != "published")  # that has a command of its own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the drawn characters, a .glyphs file")
    parser.add_argument("--questions", nargs="+", choices=DRAWN, default=list(DRAWN))
    parser.add_argument("--heads", nargs="+", choices=plan.HEADS, default=list(plan.HEADS), metavar="HEAD")
    parser.add_argument("--counts", nargs="+", type=at_least(2), default=list(plan.COUNTS), help="identities")
    parser.add_argument("--model", choices=("iresnet18", "iresnet34", "lenet++"), default=plan.Size.model)
    parser.add_argument("--width", type=at_least(1), default=plan.Size.width, help="of lenet++")
    parser.add_argument("--dim", type=at_least(2), default=plan.Size.dim)
    parser.add_argument("--batch", type=at_least(2), default=plan.Size.batch)
    parser.add_argument("--epochs", type=at_least(1), default=plan.Size.epochs)
    parser.add_argument("--least-steps", type=at_least(0), default=plan.Size.least_steps)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default=plan.Size.precision)
    parser.add_argument("--seeds", type=at_least(1), default=len(plan.SEEDS), help="of the chosen setting")
    add_flags(parser, Path("benchmarks/results/many.jsonl"), SHARED)
    given = parser.parse_args()
    size = plan.Size(
        given.model, given.width, given.dim, given.batch, given.epochs, given.least_steps, given.precision,
        tuple(sorted(given.counts)),
    )  # fmt: skip
    with plain_errors(parser):
        searches = plan.searches(given.questions, given.heads, available(given.data), size)
    train_agenda(
        given,
        "benchmarks.many.run",
        lambda known: plan.agenda(searches, range(given.seeds), known),
        describe,
        shared=SHARED,
    )


def describe(result: Result) -> str:
    """One line."""
    spec = plan.Spec(**result["spec"])
    numbers = " ".join(f"{k}={v:g}" for k, v in spec.set.items())
    decay = "" if spec.head_decay is None else f" head wd {spec.head_decay:g}"
    words = (
        f"{spec.study} C={spec.identities} {spec.head} {numbers} wd {spec.weight_decay:g}{decay} lr {spec.lr:g} "
    )
    words += f"seed {spec.seed}: "
    if result["broken"]:
        return f"{words}{result.get('error', 'not finite')}"
    test = result["test"]
    shown = " ".join(f"{k} {100 * test[k]:.2f}" for k in ("eer", "tar0.001", "tar0.0001", "tar1e-05") if k in test)
    return f"{words}{shown} ({result['seconds']:.1f} s)" + (
        f", not recorded: {result['why_not']}" if "why_not" in result else ""
    )


if __name__ == "__main__":
    main()
