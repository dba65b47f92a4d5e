"""`python -m benchmarks.many.tables`: many.md and many-gain.png beside the results."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.heads.tables import table
from benchmarks.many import plan
from benchmarks.many.numbers import METRICS, WITHOUT, best_of_map, counts, gain, heads, of, setting, spread, values
from benchmarks.many.plan import Spec
from benchmarks.many.published import DIFFERS, PUBLISHED
from benchmarks.record import in_words
from benchmarks.study.agenda import Result
from benchmarks.study.runner import read

STORED, STORED_PUBLISHED = (Path(f"benchmarks/results/{name}.jsonl") for name in ("many", "many-published"))


def main() -> None:
    from benchmarks.many.picture import draw

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=STORED)
    parser.add_argument("--published", type=Path, default=STORED_PUBLISHED)
    given = parser.parse_args()
    results = read(given.results)
    given.results.with_suffix(".md").write_text(document(results, read(given.published)), encoding="utf-8")
    if counts(results, "gain"):
        draw(results).savefig(given.results.with_name(f"{given.results.stem}-gain.png"), dpi=110)


def document(results: Sequence[Result], published_runs: Sequence[Result] = ()) -> str:
    """All tables."""
    parts = ["# Thousands of characters as classes"]
    if results:
        env, spec = results[0]["environment"], Spec(**results[0]["spec"])
        words = in_words({k: v for k, v in env.items() if v != "absent"})
        parts.append(
            f"{len(results)} runs, {sum(r['steps'] for r in results):,} steps, on {env['device']}. {words} "
            f"{spec.model}, d = {spec.dim}, batch {spec.batch}, {spec.epochs} epochs, at least {spec.least_steps} "
            "steps. How: [benchmarks](../README.md). Per cent unless a unit is given; ± is the standard deviation "
            "of the seeds. Settings were chosen by TAR@1e-4 on identities of their own."
        )
    for classes in counts(results, "gain"):
        parts += [f"## {classes:,} training identities", gains(results, classes)]
        parts += ["Angles, in degrees:", compact(results, classes)]
    for title, text in (
        ("Which s, which m", advice(results)),
        ("The ladder, trained", ladder(results)),
        ("Few samples of many identities", imbalance(results)),
        ("L-Softmax's own networks", published(published_runs)),
    ):
        parts += [f"## {title}", text] if text else []
    searched = [found for found in (searches(results, c) for c in counts(results, "gain search")) if found]
    parts += ["## The searches", *searched] if searched else []
    return "\n\n".join(parts) + "\n"


def gains(results: Sequence[Result], classes: int) -> str:
    """Every head at its chosen setting, in unseen typefaces."""
    rows = []
    shown = [m for m in METRICS if any(values(results, "gain", h, classes, m) for h in plan.HEADS)]
    for head in heads(results, "gain", classes, plan.HEADS):
        runs = [r for r in of(results, "gain", head, classes) if not r["broken"]]
        cells = [spread(values(results, "gain", head, classes, metric)) for metric in shown]
        span = runs[0]["test"].get("intervals", {}).get("eer")
        sure = f"{100 * span[0]:.2f} to {100 * span[1]:.2f}" if span else "–"
        seen = spread(values(results, "gain", head, classes, "eer", "seen"))
        rows.append([head, setting(Spec(**runs[0]["spec"])), *cells, sure, seen])
    names = [METRICS[m][0] for m in shown]
    return table(["head", "chosen", *names, "EER, 95 % over identities", "EER, seen typefaces"], rows)


def gain_by_count(results: Sequence[Result], metric: str) -> str:
    """Points gained over softmax, and over the same head without margin, by the number of classes."""
    columns = counts(results, "gain")
    rows = []
    for head in plan.HEADS:
        for base in dict.fromkeys(("softmax", WITHOUT.get(head, ""))):
            found = [gain(results, head, base, c, metric) if base not in ("", head) else None for c in columns]
            if any(found):
                rows.append([head, base, *(_points(each) for each in found)])
    return table(["head", "over", *(f"{c:,}" for c in columns)], rows) if rows else ""


def _points(found: tuple[float, float] | None) -> str:
    if found is None:
        return "–"
    mean, half = found
    text = f"{mean:+.2f}" + (f" ± {half:.2f}" if half == half else "")
    return f"**{text}**" if half == half and abs(mean) > half else text


def compact(results: Sequence[Result], classes: int) -> str:
    """Angles within and between identities, on training images and on the test."""
    names = [
        ("train", "own_prototype"), ("train", "rival_prototype"), ("train", "nearest_prototype"),
        ("test", "intra"), ("test", "inter"),
    ]  # fmt: skip
    rows = []
    for head in heads(results, "gain", classes, plan.HEADS):
        runs = [r for r in of(results, "gain", head, classes) if not r["broken"] and "intra" in r["test"]]
        if runs:
            rows.append([head, *(f"{statistics.fmean(r[part][name] for r in runs):.1f}" for part, name in names)])
    columns = ["head", "train: own class vector", "nearest other", "between class vectors"]
    return table([*columns, "test: own center", "nearest other center"], rows)


def advice(results: Sequence[Result]) -> str:
    """The best s and m that were tried, beside those nearest to the advisor's."""
    rows = []
    for classes in counts(results, "scale map"):
        for head in ("normface", "cosface", "arcface"):
            for metric in ("eer", plan.CHOSEN_BY):
                found = best_of_map(results, head, classes, metric)
                if found is None:
                    continue
                best, near = found
                spec = Spec(**best["spec"])
                s, m = (f(head, classes, spec.dim) for f in (plan.advised, plan.advised_margin))
                lost = 100 * (near["test"][metric] - best["test"][metric])
                row = [f"{classes:,}", head, METRICS[metric][0], setting(spec)]
                row += [f"{100 * best['test'][metric]:.2f}", f"s {s:.3g}, m {m:g}"]
                rows.append([*row, setting(Spec(**near["spec"])), f"{lost:+.2f}"])
    columns = ["classes", "head", "by", "best tried", "it has", "advised", "nearest tried to that", "less the best"]
    return table(columns, rows) if rows else ""


def ladder(results: Sequence[Result]) -> str:
    """What the rungs did when trained."""
    rows = []
    for classes in counts(results, "ladder"):
        for head in heads(results, "ladder", classes, plan.LADDER):
            runs = [r for r in of(results, "ladder", head, classes) if not r["broken"]]
            failed = sum(r["broken"] for r in of(results, "ladder search", head, classes))
            first, last, most = (statistics.fmean(r["gradient"][k] for r in runs) for k in range(3))
            numbers = [spread(values(results, "ladder", head, classes, m)) for m in ("eer", plan.CHOSEN_BY)]
            row = [f"{classes:,}", head, setting(Spec(**runs[0]["spec"])), *numbers]
            row += [f"{first:.2g} → {last:.2g}, {most:.2g}"]
            clipped = f"{100 * statistics.fmean(r['clipped'] for r in runs):.0f}"
            rows.append([*row, clipped, f"{failed} of {plan.EACH}"])
    columns = ["classes", "rung", "chosen", "EER", "TAR@1e-4", "|gradient| first → last, most", "steps clipped, %"]
    return table([*columns, "searches failed"], rows) if rows else ""


def imbalance(results: Sequence[Result]) -> str:
    """A long tail: what left-out images of identities with few and with many samples are taken for."""
    groups = {"few": "2–3 samples", "some": "4–8", "many": "9–20"}
    rows = []
    for classes in counts(results, "imbalance"):
        for head in heads(results, "imbalance", classes, plan.IMBALANCE):
            runs = [r for r in of(results, "imbalance", head, classes) if not r["broken"]]
            found = [
                [100 * r["train"][f"left_out_{g}"] for r in runs if f"left_out_{g}" in r["train"]] for g in groups
            ]
            eer = spread(values(results, "imbalance", head, classes, "eer"))
            rows.append([f"{classes:,}", head, setting(Spec(**runs[0]["spec"])), eer, *map(spread, found)])
    return table(["classes", "head", "chosen", "EER", *groups.values()], rows) if rows else ""


def published(results: Sequence[Result]) -> str:
    """Published errors and ours, side by side."""
    rows = []
    for task, by_m in PUBLISHED.items():
        for m, theirs in by_m.items():
            runs = [r for r in results if r["spec"]["task"] == task and r["spec"]["set"]["m"] == m]
            if runs:
                ours = [100 - 100 * r["test"]["accuracy"] for r in runs if not r["broken"]]
                width = runs[0]["spec"]["width"]
                name = "softmax" if m == 1 else f"L-Softmax, m = {m}"
                rows.append(
                    [task, name, f"{theirs:.2f}", spread(ours), str(len(runs)), f"{runs[0]['steps']:,}", str(width)]
                )
    if not rows:
        return ""
    return f"{table(['', 'head', 'published error', 'ours', 'seeds', 'steps', 'width'], rows)}\n\n{DIFFERS}"


def searches(results: Sequence[Result], classes: int) -> str:
    """What each setting gave on the held identities, best first."""
    rows = []
    for head in plan.HEADS:
        runs = sorted(of(results, "gain search", head, classes), key=lambda r: -plan.value(r))
        if runs:
            cells = [
                f"{setting(Spec(**r['spec']))}: " + ("failed" if r["broken"] else f"**{100 * plan.value(r):.1f}**")
                for r in runs
            ]
            rows.append([head, *cells, *[""] * (plan.EACH - len(cells))])
    text = f"{classes:,} identities, TAR@1e-4 on the held ones, the chosen setting first:"
    return f"{text}\n\n{table(['head', 'chosen', *[''] * (plan.EACH - 1)], rows)}" if rows else ""


if __name__ == "__main__":
    main()
