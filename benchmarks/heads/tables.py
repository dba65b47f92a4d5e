"""`python -m benchmarks.heads.tables RESULTS.jsonl`: the tables of the study, as Markdown beside the results."""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.heads import plan
from benchmarks.heads.loop import Spec
from benchmarks.heads.tasks import CLOSED
from benchmarks.record import in_words

Result = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=Path("benchmarks/results/heads.jsonl"))
    given = parser.parse_args()
    results = [json.loads(line) for line in given.results.read_text(encoding="utf-8").splitlines()]
    given.results.with_suffix(".md").write_text(document(results), encoding="utf-8")


def document(results: list[Result]) -> str:
    """All tables."""
    env = next(r["environment"] for r in results if "steps" in r)
    device, words = env["device"], in_words({k: v for k, v in env.items() if v != "absent"})
    spent = sum(r.get("steps", 0) for r in results)
    runs = sum("steps" in r for r in results)
    parts = [
        "# Every head with the same search",
        f"{runs} runs, {spent:,} steps, on one {device}. {words} How: [benchmarks](../README.md). Numbers "
        "are per cent unless they have a unit; ± is the standard deviation of three seeds.",
    ]
    for task in ("omniglot", "audiomnist", *CLOSED):
        if _of(results, "final", task):
            parts += [f"## {TITLES[task]}", heads(results, task)]
            parts += more_classes(results, task)
    parts += difficulty(results)
    parts += quality(results)
    parts += ["# The searches"]
    for task in ("omniglot", "audiomnist", *CLOSED):
        parts += effects(results, task)
    return "\n\n".join(parts) + "\n"


TITLES = {
    "omniglot": "Omniglot, open set: 964 characters to train, 659 others to test",
    "audiomnist": "AudioMNIST, open set: 40 speakers to train, 20 others to test",
    "mnist": "MNIST, closed set",
    "fashion-mnist": "Fashion-MNIST, closed set",
}


def heads(results: list[Result], task: str) -> str:
    """Each head's best setting, chosen on held-out training data, beside its paper's and the advisor's."""
    closed = task in CLOSED
    metrics = ["accuracy"] if closed else ["eer", "tar0.001", "rank1"]
    rows = []
    for head in plan.HEADS:
        runs = _of(results, "final", task, head)
        if not runs:
            continue
        rows.append(
            [
                head,
                settings(Spec(**runs[0]["spec"])),
                *(_spread([100 * r["test"][m] for r in runs]) for m in metrics),
                *(f"{_mean(r['test'][m] for r in runs):.0f}°" for m in ("intra", "inter")),
                *(
                    _spread([100 * r["test"][metrics[0]] for r in _of(results, study, task, head)])
                    for study in ("paper", "advised")
                ),
            ]
        )
    for r in _of(results, "baseline", task):
        rows.append([r["spec"]["head"], "no network", *(f"{100 * r['test'][m]:.2f}" for m in metrics), *["–"] * 4])
    words = {"eer": "EER", "tar0.001": "TAR@FAR=1e-3", "rank1": "rank-1", "accuracy": "accuracy"}
    first = words[metrics[0]]
    columns = ["head", "chosen", *(words[m] for m in metrics), "own center", "nearest other"]
    columns += [f"{first}, paper's settings", f"{first}, advised"]
    return table(columns, rows)


def effects(results: list[Result], task: str) -> list[str]:
    """What the settings of the search did, on the held-out part of the training data."""
    found = []
    runs = _of(results, "search", task)
    metric, words = ("accuracy", "accuracy") if task in CLOSED else ("eer", "EER")
    for head in plan.HEADS:
        own = [r for r in runs if r["spec"]["head"] == head]
        if not own:
            continue
        plain = head not in plan.MANY

        def name(r: Result, plain: bool = plain) -> str:
            s = Spec(**r["spec"])
            return (f"lr {s.lr:g}" if plain else settings(s, optimiser=False)) + _epochs(s)

        decays = sorted({r["spec"]["weight_decay"] for r in own})
        cells = {(name(r), r["spec"]["weight_decay"]): f"{100 * r['test'][metric]:.2f}" for r in own if "test" in r}
        rows = [[n, *(cells.get((n, d), "failed") for d in decays)] for n in dict.fromkeys(map(name, own))]
        title = TITLES[task].split(",")[0]
        found += [f"{title}: {words} of {head} on held-out training data, by weight decay:"]
        found += [table(["", *(f"{d:g}" for d in decays)], rows)]
    return found


def more_classes(results: list[Result], task: str) -> list[str]:
    """Changed copies of the training data as classes of their own."""
    words = {
        "omniglot": "Quarter turns as classes of their own, 3,856 of them, at the settings chosen without:",
        "audiomnist": "Voices warped along the mel axis (by 0.9 and 1/0.9) as classes of their own, 120 of them:",
    }
    rows = []
    for head in plan.HEADS:
        runs = [r for r in _of(results, "turns", None, head) if r["spec"]["task"].startswith(task)]
        if runs:
            values = (_spread([100 * r["test"][m] for r in runs]) for m in ("eer", "tar0.001", "rank1"))
            rows.append([head, settings(Spec(**runs[0]["spec"])), *values])
    return [words[task], table(["head", "setting", "EER", "TAR@FAR=1e-3", "rank-1"], rows)] if rows else []


def difficulty(results: list[Result]) -> list[str]:
    """By study, width of the band and kind of margin."""
    kinds = {
        (head, round(next(iter(m.values())), 6)): (width, kind)
        for width in plan.WIDTHS
        for kind, (head, m) in plan.margins_of_width(width).items()
    }
    found = []
    for study in dict.fromkeys(r["spec"]["study"] for r in results if r["spec"]["study"].startswith("difficulty")):
        groups: dict[tuple[float, str], list[Result]] = {}
        for r in _of(results, study):
            groups.setdefault(kinds[r["spec"]["head"], round(r["spec"]["set"]["m"], 6)], []).append(r)
        rows = []
        for (width, kind), runs in sorted(groups.items()):
            mean = _mean_of(runs)
            m = runs[0]["spec"]["set"]["m"]
            rows.append(
                [
                    f"{width:g}",
                    f"{kind}, m = {m:.3g}" if width else "none",
                    f"{mean(lambda r: r['first_loss']):.1f} → {mean(lambda r: r['last_loss']):.2f}",
                    _steps(runs, "steps_to_50"),
                    _steps(runs, "steps_to_90"),
                    f"{sum(failed(r) for r in runs)} of {len(runs)}",
                    f"{mean(lambda r: r['train']['own_prototype']):.0f}° / "
                    f"{mean(lambda r: r['train']['rival_prototype']):.0f}°",
                    f"{mean(lambda r: r['test']['intra']):.0f}° / {mean(lambda r: r['test']['inter']):.0f}°",
                    f"{100 * mean(lambda r: r['train']['accuracy'] - r['test']['rank1']):.1f}",
                    _spread([100 * r["test"]["eer"] for r in runs if "test" in r]),
                ]
            )
        _, scale, identities = study.split()
        found += [
            f"## Difficulty: {scale}, {identities} of Omniglot's 964 training characters",
            "Width is that of the band between classes at right angles, in radians. Loss: mean of the first and of "
            "the last 50 steps. Steps until the mean accuracy of 50 steps is reached. Failed: not finite, or "
            "the training samples ended beyond the knot, π/m or π − m from their own prototype. Gap: accuracy on "
            "training samples less rank-1 on the test.",
            table(
                ["width", "margin", "loss", "to 50 %", "to 90 %", "failed", "training: own / rival prototype",
                 "test: own / other center", "gap", "EER"],
                rows,
            ),
        ]  # fmt: skip
    return found


def failed(result: Result) -> bool:
    """Not finite, or the training samples sit, on average, beyond the knot of ψ at π/m or π − m; cosine: π/2."""
    head, m = result["spec"]["head"], result["spec"]["set"]["m"]
    knot = {"a-softmax": 180 / max(m, 1.0), "arcface": 180 - math.degrees(m), "cosface": 90.0}[head]
    return bool(result["broken"]) or result["train"]["own_prototype"] > knot


def quality(results: list[Result]) -> list[str]:
    """What blur and noise did, by head."""
    runs = _of(results, "quality")
    if not runs:
        return []
    rows = []
    for r in runs:
        for q in r["quality"]:
            rows.append(
                [
                    r["spec"]["head"],
                    f"{q['kind']} {q['strength']:g}" if q["strength"] else "none",
                    f"{q['norm']:.0f}",
                    f"{100 * q['train_accuracy']:.0f}",
                    f"{q['gradient']:.3f}",
                    f"{q['turn']:.1f}",
                    f"{100 * q['eer']:.1f}",
                ]
            )
    return [
        "## Image quality",
        "Omniglot, best setting of each head. Norm and EER of test images; accuracy, mean |dL/dx| and what of it "
        "turns the feature (its part at right angles to x, times |x|) of training images. Blur in pixels, noise as "
        "a share of the range. softmax and modified-softmax see the length of the feature, the other two do not.",
        table(["head", "worsened by", "norm", "accuracy", "gradient", "turning", "EER"], rows),
    ]


def settings(spec: Spec, optimiser: bool = True) -> str:
    """The setting in a few words."""
    short = {"scale": "s"}
    parts = [f"{short.get(k, k)} {v:g}" for k, v in spec.set.items() if k not in ("learn_scale", "unit_features")]
    parts = [p for p in parts if p != "lam 0"]
    if spec.lam_floor is not None:
        parts.append(f"λ → {spec.lam_floor:g}")
    if optimiser:
        parts += [f"wd {spec.weight_decay:g}"] + ([] if spec.head in plan.MANY else [f"lr {spec.lr:g}"])
        parts[-1] += _epochs(spec)
    return ", ".join(parts)


def _epochs(spec: Spec) -> str:
    return f", {spec.epochs} epochs" if spec.task.startswith("audiomnist") else ""  # elsewhere all have the same


def table(columns: list[str], rows: list[list[str]]) -> str:
    """Markdown."""
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _of(results: list[Result], study: str, task: str | None = None, head: str | None = None) -> list[Result]:
    return [
        r
        for r in results
        if (s := r["spec"])["study"] == study and task in (None, s["task"]) and head in (None, s["head"])
    ]


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


def _mean_of(runs: list[Result]) -> Callable[[Callable[[Result], float]], float]:
    return lambda f: _mean(f(r) for r in runs if not r["broken"])


def _spread(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{_mean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def _steps(runs: list[Result], name: str) -> str:
    reached = [r[name] for r in runs if r[name] is not None]
    if not reached:
        return "never"
    return f"{_mean(reached):.0f}" + ("" if len(reached) == len(runs) else f" ({len(reached)} of {len(runs)})")


if __name__ == "__main__":
    main()
