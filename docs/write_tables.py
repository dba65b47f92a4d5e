"""Write the family's tables into docs/family.md and docs/after-arcface.md, each between its two markers.

`make docs` runs it; a test compares.
"""

from pathlib import Path

from hypermargin.family import as_markdown, groups_as_markdown, successors_as_markdown

DOCS = Path(__file__).resolve().parent
BOOK, AFTER = DOCS / "family.md", DOCS / "after-arcface.md"
FAMILY, GROUPS = "the family", "after ArcFace"
TABLES = {BOOK: {FAMILY: as_markdown, GROUPS: groups_as_markdown}, AFTER: {FAMILY: successors_as_markdown}}


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
