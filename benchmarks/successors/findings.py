"""`python -m benchmarks.successors.findings`: what the study says to its questions; written into docs/findings.md.

A head is compared with the one that it was made from, seed by seed: seeds share what is random, which labels are
wrong among it. With three seeds the 95 % interval of the mean difference is ± 4.30·sd/√3 (Student's t, two degrees
of freedom). It says how much a run varies, not how much the characters do.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.heads.tables import table
from benchmarks.study.agenda import Result
from benchmarks.successors import plan
from benchmarks.successors.tables import STORED, errors, heads_of, of

PAGE = Path("docs/findings.md")
STUDENT = {3: 4.303}  # 97.5 % quantile by number of seeds
# Each with what it was made from, and what is claimed of it.
NOISE = {
    "subcenter-arcface": ("arcface", "bears"),
    "uniface": ("cosface", "bears"),
    "sface": ("arcface", "bears"),
    "curricularface": ("arcface", "suffers"),
    "mv-arcface": ("arcface", "suffers"),
}
TAIL = {
    "balanced-softmax": "softmax",
    "logit-adjustment": "softmax",
    "ldam": "cosface",
    "arcface-by-counts": "arcface",
}


def main() -> None:
    from benchmarks.successors.__main__ import read

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", default=STORED)
    parser.add_argument("--page", type=Path, default=PAGE, help="file whose marked tables are written anew")
    given = parser.parse_args()
    results = read(given.results)
    for name, text in answers(results).items():
        print(f"{name}\n\n{text}\n")
    print("\n".join(summary(results)))
    given.page.write_text(with_tables(given.page.read_text(encoding="utf-8"), results), encoding="utf-8")


def answers(results: Sequence[Result]) -> dict[str, str]:
    """A table per question."""
    return {"after ArcFace": clean(results), "wrong labels": noise(results), "the long tail": tail(results)}


def with_tables(text: str, results: Sequence[Result]) -> str:
    """The page with fresh tables between their markers; one that has no markers is not written."""
    for name, found in answers(results).items():
        begin, end = markers(name)
        if begin in text:
            before, rest = text.split(begin)
            text = before + begin + found + end + rest.split(end)[1]
    return text


def markers(name: str) -> tuple[str, str]:
    """What stands before a table and after it."""
    return f"<!-- {name}: written by `python -m benchmarks.successors.findings` -->\n", f"\n<!-- end of {name} -->"


def decimals(text: str) -> set[str]:
    """The numbers with two decimals, which come from the study and from nowhere else."""
    return set(re.findall(r"(?<![\w.])\d+\.\d\d(?![\d.])", text))


def clean(results: Sequence[Result]) -> str:
    """Every head less softmax, and less ArcFace, right labels."""
    rows = [
        [head, *(f"{v:.2f}" for v in [statistics.fmean(errors(results, "clean", head))])]
        + [less(results, "clean", head, base) for base in ("softmax", "arcface")]
        for head in heads_of(results, "clean")
    ]
    return table(["head", "EER", "less softmax", "less ArcFace"], rows)


def noise(results: Sequence[Result]) -> str:
    """What is claimed of a head under wrong labels: less the head it was made from, by the share of them."""
    rows = []
    for head, (base, claim) in NOISE.items():
        found = [less(results, c, head, base) for c in ("clean", "noise20", "noise40")]
        rows.append([f"{head}, said to {'bear it' if claim == 'bears' else 'suffer'}", base, *found])
        rows[-1] += ["/".join(_aside(results, "noise40", each, "believed") for each in (head, base))]
    return table(
        ["head", "less", "0 % wrong", "20 % wrong", "40 % wrong", "wrong labels believed at 40 %, both"], rows
    )


def tail(results: Sequence[Result]) -> str:
    """What knows how frequent a class is, less the head it was made from."""
    rows = []
    for head, base in TAIL.items():
        pairs = [
            "/".join(_aside(results, "tail", each, f"left_out_{group}") for each in (head, base))
            for group in ("few", "many")
        ]
        rows.append([head, base, less(results, "tail", head, base), *pairs])
    columns = ["head", "less", "EER", "left-out images of identities with 2–3, both", "of those with 9–19, both"]
    return table(columns, rows)


def summary(results: Sequence[Result]) -> list[str]:
    """What to look at before a sentence is written: the best, what wrong labels cost, settings at the edge."""
    found = []
    for condition in plan.CONDITIONS:
        heads = heads_of(results, condition)
        later = [head for head in heads if head not in (*plan.ANCHORS, "l-softmax")]
        for base in ("softmax", "arcface"):
            words = {head: less(results, condition, head, base) for head in later}
            below = [head for head, text in words.items() if text.startswith("**−")]
            above = [head for head, text in words.items() if text.startswith("**+")]
            found.append(
                f"{condition}, less {base}: of {len(later)} successors {len(below)} below ({', '.join(below)}), "
                f"{len(above)} above ({', '.join(above)})"
            )
        means = [f"{head} {statistics.fmean(errors(results, condition, head)):.2f}" for head in heads]
        found.append(f"{condition}, by EER: {', '.join(means)}")
        edges = [head for head in heads if at_edge(results, condition, head)]
        found.append(f"{condition}, chosen at the lowest or the highest scale or weight decay: {', '.join(edges)}")
    both = [head for head in heads_of(results, "noise40") if head in heads_of(results, "clean")]
    cost = {
        head: statistics.fmean(errors(results, "noise40", head)) - statistics.fmean(errors(results, "clean", head))
        for head in both
    }
    words = {head: f"{head} +{cost[head]:.2f}" for head in sorted(both, key=lambda head: cost[head])}
    return [*found, f"40 % less 0 %: {', '.join(words.values())}"]


def at_edge(results: Sequence[Result], condition: str, head: str) -> bool:
    """Whether the chosen scale, or weight decay, is the lowest or the highest of those searched."""
    chosen = of(results, "final", condition, head)[0]["spec"]
    searched = [r["spec"] for r in of(results, "search", condition, head)]
    scales = chosen["set"].get("scale"), {s["set"].get("scale") for s in searched}
    decays = chosen["weight_decay"], {s["weight_decay"] for s in searched}
    return any(len(tried) > 1 and mine in (min(tried), max(tried)) for mine, tried in (scales, decays))


def less(results: Sequence[Result], condition: str, head: str, base: str) -> str:
    """The mean difference in EER, seed by seed, with its interval; in bold where that leaves out 0."""
    if not {head, base} <= set(heads_of(results, condition)) or head == base:
        return "–"
    both = zip(errors(results, condition, head), errors(results, condition, base), strict=True)
    found = [a - b for a, b in both]
    mean = statistics.fmean(found)
    half = STUDENT[len(found)] * statistics.stdev(found) / math.sqrt(len(found))
    words = f"{mean:+.2f} ± {half:.2f}".replace("-", "−")
    return f"**{words}**" if abs(mean) > half else words


def _aside(results: Sequence[Result], condition: str, head: str, name: str) -> str:
    runs = [r for r in of(results, "final", condition, head) if name in r.get("train", {})]
    return f"{100 * statistics.fmean(r['train'][name] for r in runs):.1f}" if runs else "–"


if __name__ == "__main__":
    main()
