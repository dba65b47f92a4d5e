"""Write the family table into README.md, between its two markers. `make docs` runs it; a test compares."""

from pathlib import Path

from hypermargin.family import as_markdown

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- the family: written by `make docs` -->\n", "\n<!-- end of the family -->"


def with_table(text: str) -> str:
    """The README's text with a fresh table."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + as_markdown() + END + rest.split(END)[1]


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
