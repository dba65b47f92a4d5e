"""`python -m benchmarks.successors.tables`: successors.md and successors.png beside the results, as Markdown."""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.heads.plan import value
from benchmarks.heads.tables import table
from benchmarks.record import in_words
from benchmarks.study.agenda import Result
from benchmarks.successors import plan
from benchmarks.successors.plan import Spec

STORED = Path("benchmarks/results/successors.jsonl")
TITLES = {
    "clean": "Right labels, 20 samples per identity",
    "noise20": "20 % of the training labels wrong",
    "noise40": "40 % of the training labels wrong",
    "tail": "A long tail: 2 to 20 samples per identity, 6 on average",
}
ASIDE = {  # what else is told of a condition: columns, and the numbers of the training part that they show
    "clean": {"training": "accuracy"},
    "noise20": {"right labels": "right", "wrong, believed": "believed", "wrong, seen through": "seen_through"},
    "noise40": {"right labels": "right", "wrong, believed": "believed", "wrong, seen through": "seen_through"},
    "tail": {"2–3 samples": "left_out_few", "4–8": "left_out_some", "9–19": "left_out_many"},
}
WORDS = {
    "clean": "Training: share of the training images, as they are, that are taken for their own class.",
    "noise20": "The last three columns are of training images as they are: those with a right label that are taken "
    "for it; those with a wrong one that are taken for what it says, and for what they really are.",
    "noise40": "Columns as above.",
    "tail": "The last three columns are of images that the tail left out, of training identities with so many "
    "samples: the share that is taken for the right one of all training identities.",
}


def main() -> None:
    from benchmarks.successors.__main__ import read
    from benchmarks.successors.picture import draw

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=STORED)
    given = parser.parse_args()
    results = read(given.results)
    given.results.with_suffix(".md").write_text(document(results), encoding="utf-8")
    draw(results).savefig(given.results.with_suffix(".png"), dpi=110)


def document(results: Sequence[Result]) -> str:
    """All tables."""
    env = results[0]["environment"]
    words = in_words({k: v for k, v in env.items() if v != "absent"})
    spec, steps = Spec(**results[0]["spec"]), sum(r["steps"] for r in results)
    parts = [
        "# What came after ArcFace, with the same search",
        f"{len(results)} runs, {steps:,} steps, on one {env['device']}. {words} Omniglot, 964 characters to train, "
        f"659 others to test; lenet++ of width {spec.width}, batch {spec.batch}, {spec.epochs} epochs (the long "
        f"tail {_epochs(results, 'tail')}). How: [benchmarks](../README.md). Numbers are per cent unless they have "
        "a unit; ± is the standard deviation of three seeds, which also decide which labels are wrong and which "
        "identities are rare.",
    ]
    for condition in plan.CONDITIONS:
        if heads_of(results, condition):
            parts += [f"## {TITLES[condition]}", outcome(results, condition), WORDS[condition]]
            parts += [failed] if (failed := failures(results, condition)) else []
    parts += ["## EER by the share of wrong labels", by_noise(results), "# The searches"]
    for condition in plan.CONDITIONS:
        found = searches(results, condition)
        if found:
            parts += [f"{TITLES[condition]}: EER on held-out alphabets, the chosen setting first:", found]
    return "\n\n".join(parts) + "\n"


def of(results: Iterable[Result], study: str, condition: str, head: str) -> list[Result]:
    """The runs of a head."""
    wanted = study, condition, head
    return [r for r in results if (s := r["spec"]) and (s["study"], s["condition"], s["head"]) == wanted]


def heads_of(results: Sequence[Result], condition: str) -> list[str]:
    """Heads with all seeds, the lowest mean EER first."""
    means = {}
    for head in plan.SETTINGS:
        runs = of(results, "final", condition, head)
        if len(runs) == len(plan.SEEDS) and not any(r["broken"] for r in runs):
            means[head] = statistics.fmean(errors(results, condition, head))
    return sorted(means, key=lambda head: means[head])


def failures(results: Sequence[Result], condition: str) -> str:
    """A sentence on the runs that did not end with a network, or ""."""
    runs = [r for r in results if r["spec"]["condition"] == condition and r["broken"]]
    counts = Counter(f"{r['spec']['head']} in the {r['spec']['study']} runs" for r in runs)
    words = ", ".join(f"{name} {n}" for name, n in counts.items())
    return f"Runs that failed, by a loss or weights that were not finite: {words}." if words else ""


def errors(results: Iterable[Result], condition: str, head: str) -> list[float]:
    """EER on the test in per cent, by seed."""
    runs = sorted(of(results, "final", condition, head), key=lambda r: int(r["spec"]["seed"]))
    return [100 * r["test"]["eer"] for r in runs]


def outcome(results: Sequence[Result], condition: str) -> str:
    """Every head at the setting chosen for it, the lowest EER first."""
    rows = []
    for head in heads_of(results, condition):
        runs = of(results, "final", condition, head)
        tests = [[100 * r["test"][name] for r in runs] for name in ("eer", "tar0.001", "rank1")]
        aside = [[100 * r["train"][name] for r in runs] for name in ASIDE[condition].values()]
        rows.append(
            [
                head,
                setting(Spec(**runs[0]["spec"])),
                *map(spread, tests),
                *(f"{statistics.fmean(v):.1f}" for v in aside),
            ]
        )
    return table(["head", "chosen", "EER", "TAR@FAR=1e-3", "rank-1", *ASIDE[condition]], rows)


def by_noise(results: Sequence[Result]) -> str:
    """EER with 0, 20 and 40 % of the labels wrong, and what the 40 % cost."""
    conditions = "clean", "noise20", "noise40"
    rows = []
    for head in heads_of(results, "noise40"):
        found = [errors(results, c, head) if head in heads_of(results, c) else [] for c in conditions]
        cost = statistics.fmean(found[2]) - statistics.fmean(found[0]) if found[0] else None
        rows.append([head, *map(spread, found), "–" if cost is None else f"{cost:+.2f}"])
    return table(["head", "0 %", "20 %", "40 %", "40 % less 0 %"], rows)


def searches(results: Sequence[Result], condition: str) -> str:
    """What each setting gave on the held-out alphabets, best first."""
    rows = []
    for head in plan.SETTINGS:
        runs = sorted(of(results, "search", condition, head), key=lambda r: -value(r))
        if len(runs) == plan.EACH:
            rows.append([head, *(_searched(r) for r in runs)])
    return table(["head", "chosen", *[""] * (plan.EACH - 1)], rows) if rows else ""


def _searched(result: Result) -> str:
    found = "failed" if result["broken"] else f"**{100 * result['test']['eer']:.2f}**"
    return f"{setting(Spec(**result['spec']))}: {found}"


def setting(spec: Spec) -> str:
    """What the search chose, in a few words."""
    names = {"scale": "s", "tau": "τ"}
    words = [f"{names.get(k, k)} {v:g}" for k, v in spec.set.items() if k != "learn_scale"]
    words += [f"λ → {spec.lam_floor:g}"] if spec.lam_floor is not None else []
    if spec.weight_decay != Spec.weight_decay:
        words += [f"wd {spec.weight_decay:g}"] + ([f"lr {spec.lr:g}"] if spec.lr != plan.RATE else [])
    return ", ".join(words)


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation."""
    return f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}" if values else "–"


def _epochs(results: Iterable[Result], condition: str) -> str:
    found = sorted({r["spec"]["epochs"] for r in results if r["spec"]["condition"] == condition})
    return ", ".join(map(str, found)) or "not trained"


if __name__ == "__main__":
    main()
