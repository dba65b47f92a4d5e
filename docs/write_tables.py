"""Write tables into pages, each between two markers: the family, and what a head costs inside other libraries.

`make docs` runs it; a test compares.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

from hypermargin.family import as_markdown, groups_as_markdown, successors_as_markdown

DOCS = Path(__file__).resolve().parent
BOOK, AFTER = DOCS / "family.md", DOCS / "after-arcface.md"
FAMILY, GROUPS, COST = "the family", "after ArcFace", "what it costs"
# The pages on other libraries, and the beginnings of what benchmarks/integrations.py calls their pairs.
BESIDE = {
    "huggingface": "transformers", "lightning": "Lightning", "metric-learning": "pytorch-metric-learning",
    "speaker": "SpeechBrain", "timm": "torch",
}  # fmt: skip
MEASURED = DOCS.parent / "benchmarks" / "results" / "integrations-cpu.json"


def cost_as_markdown(library: str) -> str:
    """What a step with a head costs inside a library, from the stored measurement."""
    lines = [
        "| beside | classes | time, ours/theirs (middle half) | theirs | ours | peak memory, theirs | ours |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    pairs: list[dict[str, Any]] = json.loads(MEASURED.read_text(encoding="utf-8"))["pairs"]
    for pair in (each for each in pairs if each["name"].startswith(library)):
        lines.append(
            "| {name} | {classes:,} | {ratio:.2f} ({low:.2f} to {high:.2f}) | {theirs_ms:,.1f} ms "
            "| {ours_ms:,.1f} ms | {theirs_mb:,.0f} MB | {ours_mb:,.0f} MB |".format(**pair)
        )
    return "\n".join(lines)


TABLES = {
    BOOK: {FAMILY: as_markdown, GROUPS: groups_as_markdown},
    AFTER: {FAMILY: successors_as_markdown},
    **{DOCS / f"integrations/{page}.md": {COST: partial(cost_as_markdown, name)} for page, name in BESIDE.items()},
}


def with_tables(path: Path) -> str:
    """The text of one of the files with fresh tables."""
    text = path.read_text(encoding="utf-8")
    for name, table in TABLES[path].items():
        text = replaced(text, name, table())
    return text


def replaced(text: str, name: str, table: str) -> str:
    """A text with another table between the two markers of that name."""
    begin, end = f"<!-- {name}: written by `make docs` -->\n", f"\n<!-- end of {name} -->"
    before, rest = text.split(begin)
    return before + begin + table + end + rest.split(end)[1]


if __name__ == "__main__":
    for file in TABLES:
        file.write_text(with_tables(file), encoding="utf-8")
