"""A picture that no document shows is one that nobody looks at."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_picture_is_shown_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    pictures = [path.name for path in (ROOT / "docs" / "pictures").iterdir()]
    assert len(pictures) > 20
    assert [name for name in pictures if f"pictures/{name}" not in text] == []
