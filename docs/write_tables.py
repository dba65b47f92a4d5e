"""Write the family's tables into README.md and docs/after-arcface.md, each between its two markers.

`make docs` runs it; a test compares.
"""

from pathlib import Path

from hypermargin.family import as_markdown, successors_as_markdown

DOCS = Path(__file__).resolve().parent
README, AFTER = DOCS.parent / "README.md", DOCS / "after-arcface.md"
BEGIN, END = "<!-- the family: written by `make docs` -->\n", "\n<!-- end of the family -->"
TABLES = {README: as_markdown, AFTER: successors_as_markdown}


def with_table(path: Path) -> str:
    """The text of one of the files with a fresh table."""
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return before + BEGIN + TABLES[path]() + END + rest.split(END)[1]


if __name__ == "__main__":
    for file in TABLES:
        file.write_text(with_table(file), encoding="utf-8")
