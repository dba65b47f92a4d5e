"""`python -m benchmarks.many.findings`: the tables of the study in docs/findings.md, between their markers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.many import tables
from benchmarks.many.numbers import counts
from benchmarks.study.agenda import Result
from benchmarks.study.runner import read
from hypermargin.files import write_text

PAGE = Path("docs/findings.md")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=tables.STORED)
    parser.add_argument("--published", type=Path, default=tables.STORED_PUBLISHED)
    parser.add_argument("--page", type=Path, default=PAGE, help="file whose marked tables are written anew")
    given = parser.parse_args()
    found = answers(read(given.results), read(given.published))
    for name, text in found.items():
        print(f"{name}\n\n{text}\n")
    write_text(given.page, with_tables(given.page.read_text(encoding="utf-8"), found))


def answers(results: Sequence[Result], published: Sequence[Result]) -> dict[str, str]:
    """A table per question that has results."""
    largest = max(counts(results, "gain"), default=0)
    found = {
        "gain by classes, EER": tables.gain_by_count(results, "eer"),
        "gain by classes, TAR at 1e-5": tables.gain_by_count(results, "tar1e-05"),
        "compact within, apart between": tables.compact(results, largest) if largest else "",
        "which s, which m": tables.advice(results),
        "the ladder": tables.ladder(results),
        "few samples": tables.imbalance(results),
        "L-Softmax's networks": tables.published(published),
    }
    return {name: text for name, text in found.items() if text}


def with_tables(text: str, found: dict[str, str]) -> str:
    """The page with fresh tables; a question without markers is left out."""
    for name, table in found.items():
        begin, end = markers(name)
        if begin in text:
            before, rest = text.split(begin)
            text = before + begin + table + end + rest.split(end)[1]
    return text


def markers(name: str) -> tuple[str, str]:
    """What stands before a table and after it."""
    return f"<!-- {name}: written by `python -m benchmarks.many.findings` -->\n", f"\n<!-- end of {name} -->"


if __name__ == "__main__":
    main()
