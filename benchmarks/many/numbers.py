"""What stored results say: means over seeds, gains over other heads, searched against advised."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from benchmarks.many import plan
from benchmarks.many.plan import Spec
from benchmarks.study.agenda import Result

METRICS = {  # name in the results: title, and whether less is better
    "eer": ("EER", True),
    "tar0.001": ("TAR@1e-3", False),
    "tar0.0001": ("TAR@1e-4", False),
    "tar1e-05": ("TAR@1e-5", False),
    "tar1e-06": ("TAR@1e-6", False),
    "rank1": ("rank-1", False),
}
# The same head without its margin.
WITHOUT = {
    "a-softmax": "softmax",
    **dict.fromkeys(("cosface", "arcface", "combined", "curricularface", "sphereface2"), "normface"),
}
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % quantile of Student's t by number of seeds


def of(results: Iterable[Result], study: str, head: str | None = None, classes: int | None = None) -> list[Result]:
    """The runs of a study, by seed."""
    found = [
        r
        for r in results
        if (s := r["spec"])["study"] == study and head in (None, s["head"]) and classes in (None, s["identities"])
    ]
    return sorted(found, key=lambda r: int(r["spec"]["seed"]))


def counts(results: Iterable[Result], study: str) -> list[int]:
    """The numbers of training identities of a study."""
    return sorted({int(r["spec"]["identities"]) for r in of(results, study)})


def heads(results: Iterable[Result], study: str, classes: int, order: Sequence[str]) -> list[str]:
    """The heads with a run that did not fail, in the order given."""
    there = {r["spec"]["head"] for r in of(results, study, None, classes) if not r["broken"]}
    return [head for head in order if head in there]


def values(
    results: Iterable[Result], study: str, head: str, classes: int, metric: str, part: str = ""
) -> list[float]:
    """A number of the test in per cent, by seed; `part` "seen" for typefaces that training saw."""
    found = []
    for r in of(results, study, head, classes):
        test = {} if r["broken"] else r["test"].get(part, {}) if part else r["test"]
        if metric in test:
            found.append(100 * float(test[metric]))
    return found


def gain(results: Sequence[Result], head: str, base: str, classes: int, metric: str) -> tuple[float, float] | None:
    """How much better a head is than another, seed by seed, in points: the mean and half the 95 % interval.

    Student's t over the seeds: it says how much a run varies. NaN for one seed.
    """
    one, other = (
        {
            r["spec"]["seed"]: r["test"][metric]
            for r in of(results, "gain", each, classes)
            if metric in r.get("test", {})
        }
        for each in (head, base)
    )
    sign = -100.0 if METRICS[metric][1] else 100.0
    each = [sign * (one[seed] - other[seed]) for seed in sorted(set(one) & set(other))]
    if not each:
        return None
    half = math.nan
    if len(each) in STUDENT:
        half = STUDENT[len(each)] * statistics.stdev(each) / math.sqrt(len(each))
    return statistics.fmean(each), half


def best_of_map(results: Sequence[Result], head: str, classes: int, metric: str) -> tuple[Result, Result] | None:
    """The best run of the map of s and m, and the one nearest to what the advisor says."""
    runs = [r for r in of(results, "scale map", head, classes) if metric in r.get("test", {})]
    if not runs:
        return None
    sign = -1.0 if METRICS[metric][1] else 1.0
    best = max(runs, key=lambda r: sign * r["test"][metric])
    spec = Spec(**runs[0]["spec"])
    s, m = plan.advised(head, classes, spec.dim), plan.advised_margin(head, classes, spec.dim)
    near = min(
        runs, key=lambda r: (abs(math.log(r["spec"]["set"]["scale"] / s)), abs(r["spec"]["set"].get("m", 0) - m))
    )
    return best, near


def setting(spec: Spec) -> str:
    """What the search chose, in a few words."""
    words = [
        f"{'s' if k == 'scale' else k} {v:.3g}" for k, v in spec.set.items() if k not in ("learn_scale", "lam")
    ]
    words += [f"λ → {spec.lam_floor:g}"] if spec.lam_floor is not None else []
    words += [f"wd {spec.weight_decay:g}"] if spec.weight_decay != plan.DECAY else []
    words += [f"head wd {spec.head_decay:g}"] if spec.head_decay is not None else []
    return ", ".join(words + ([f"lr {spec.lr:g}"] if spec.lr != plan.RATE else []))


def spread(found: Sequence[float]) -> str:
    """Mean ± standard deviation."""
    if not found:
        return "–"
    return f"{statistics.fmean(found):.2f}" + (f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else "")
