"""The stored study: its tables are those of its results, and the advice holds against them."""

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hypermargin.advise import recommend
from hypermargin.recipes import FAMILY

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.heads import plan, tables  # noqa: E402  # benchmarks is not installed
from benchmarks.successors import findings  # noqa: E402
from benchmarks.successors import tables as successors_tables  # noqa: E402
from benchmarks.successors.__main__ import read  # noqa: E402
from benchmarks.successors.plan import CONDITIONS  # noqa: E402
from benchmarks.successors.tables import heads_of  # noqa: E402

STORED = ROOT / "benchmarks" / "results" / "heads.jsonl"
RESULTS = [json.loads(line) for line in STORED.read_text(encoding="utf-8").splitlines()]
CLASSES = {"omniglot": 964, "audiomnist": 40, "mnist": 10, "fashion-mnist": 10}
# How far, in points, the advice may be behind settings searched on the same data, and behind the papers'. Set from
# the results: this tells when the rule or the results change, and proves nothing about other data.
BEHIND = {"omniglot": (0.15, 0.0), "audiomnist": (2.0, 0.0), "mnist": (0.1, 0.1), "fashion-mnist": (0.3, 0.3)}


def runs(study, task, head):
    return [r for r in RESULTS if [r["spec"][name] for name in ("study", "task", "head")] == [study, task, head]]


def error(study, task, head):
    """Mean EER, or share of wrong answers, in points."""
    found = [r["test"] for r in runs(study, task, head)]
    assert len(found) == (1 if study != "final" and "eer" not in found[0] else 3)
    return 100 * np.mean([t["eer"] if "eer" in t else 1 - t["accuracy"] for t in found])


def test_tables_are_those_of_the_results():
    assert STORED.with_suffix(".md").read_text(encoding="utf-8") == tables.document(RESULTS)


@pytest.mark.parametrize("task", CLASSES)
def test_every_head_had_the_same_search(task):
    wanted = {"omniglot": 18, "audiomnist": 12}.get(task, 6)
    assert {head: len(runs("search", task, head)) for head in plan.HEADS} == dict.fromkeys(plan.HEADS, wanted)
    assert {head: len(runs("final", task, head)) for head in plan.HEADS} == dict.fromkeys(plan.HEADS, 3)


@pytest.mark.parametrize("task", CLASSES)
@pytest.mark.parametrize("head", ["normface", "cosface", "arcface", "combined"])
def test_the_advice_holds(task, head):
    advice = recommend(CLASSES[task], 128, margin=FAMILY[head].margin.name)
    measured = runs("advised", task, head)[0]["spec"]["set"]["scale"]
    assert advice.s == pytest.approx(measured)  # else it was measured with another rule
    searched, papers = BEHIND[task]
    advised = error("advised", task, head)
    assert advised <= error("final", task, head) + searched
    assert advised <= error("paper", task, head) + papers


# What came after ArcFace: a study of its own.

LATER = ROOT / "benchmarks" / "results" / "successors.jsonl"
LATER_RESULTS = read(LATER)
stored = pytest.mark.skipif(not LATER_RESULTS, reason="the study of the successors is not stored")
PAGE = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")


@stored
def test_tables_of_the_successors_are_those_of_their_results():
    assert LATER.with_suffix(".md").read_text(encoding="utf-8") == successors_tables.document(LATER_RESULTS)
    assert findings.with_tables(PAGE, LATER_RESULTS) == PAGE, "run python -m benchmarks.successors.findings"
    assert all(findings.markers(name)[0] in PAGE for name in findings.answers(LATER_RESULTS))


@stored
def test_every_successor_had_the_same_search_and_three_seeds():
    searched = Counter((s["condition"], s["head"]) for r in LATER_RESULTS if (s := r["spec"])["study"] == "search")
    final = Counter((s["condition"], s["head"]) for r in LATER_RESULTS if (s := r["spec"])["study"] == "final")
    assert all(
        final[c, head] == 3 and searched[c, head] == 6 for c in CONDITIONS for head in heads_of(LATER_RESULTS, c)
    )
    sizes = {tuple(r["spec"][name] for name in ("width", "batch", "dim")) for r in LATER_RESULTS}
    epochs = {(r["spec"]["condition"], r["spec"]["epochs"]) for r in LATER_RESULTS}
    assert len(sizes) == 1
    assert len(epochs) == len({condition for condition, _ in epochs})


@stored
def test_numbers_quoted_of_the_successors_stand_in_their_tables():
    begin = PAGE.index("\n## After ArcFace")
    section = PAGE[begin : PAGE.index("\n## ", begin + 1)]
    known = successors_tables.document(LATER_RESULTS) + "".join(findings.answers(LATER_RESULTS).values())
    earlier = STORED.with_suffix(".md").read_text(encoding="utf-8")
    assert findings.decimals(section)
    assert findings.decimals(section) <= findings.decimals(known) | findings.decimals(earlier)
    assert "⟨" not in section  # what was to be filled in
