"""Which pages the site has, under which name, and in which order.

One source: the pages are the Markdown files of the repository, as a code host shows them. `nav.toml` puts them in
order; a file that it does not name is no mistake, it comes at the end, under "More".
"""

from __future__ import annotations

import json
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HOME = "docs/index.md"
FRONT = HOME, "docs/index.zh.md"  # pages that the explorer fills
REST = "More"


def sources() -> list[str]:
    """List every page's file, by its path in the repository."""
    patterns = "*.md", "docs/**/*.md", "docs/tutorials/*.ipynb", "benchmarks/**/*.md"
    found = {path.relative_to(ROOT).as_posix() for pattern in patterns for path in ROOT.glob(pattern)}
    return sorted(found)


def address(source: str) -> str:
    """Return the path in the site of a file of the repository: docs/ is the root, README.md is no index."""
    path = PurePosixPath(source)
    if path.name.startswith("README"):
        path = path.with_name(path.name.lower())
    if path.suffix == ".ipynb":
        path = path.with_suffix(".md")
    inside = path.parts[1:] if path.parts[0] == "docs" else path.parts
    return PurePosixPath(*inside).as_posix()


def order() -> dict[str, list[str]]:
    """Return the sections with the files in them; what no section names is in the last one."""
    left = [source for source in sources() if source != HOME]
    sections = {}
    for title, names in _settings()["sections"].items():
        sections[title] = []
        for name in names:
            matching = [source for source in left if fnmatchcase(source, name)]
            if not matching and "*" not in name:
                raise ValueError(f"docs/site/nav.toml, {title!r}: {name} is no page, or named twice.")
            sections[title] += matching
            left = [source for source in left if source not in matching]
    sections[REST] = sections.get(REST, []) + left
    return {title: files for title, files in sections.items() if files}


def navigation(reference: list[str]) -> str:
    """Return the navigation as TOML: the sections, and the pages of the API reference after them."""

    def table(title: str, value: str) -> str:
        return f"{{{json.dumps(title, ensure_ascii=False)} = {value}}}"

    def entry(source: str) -> str:
        page = json.dumps(address(source))
        return table(titles[source], page) if source in titles else page

    titles = _settings()["titles"]
    parts = [table("Home", json.dumps(address(HOME)))]
    for title, files in order().items():
        pages = ", ".join(map(entry, files))
        parts.append(table(title, f"[{pages}]"))
    api = ", ".join(table(_module(name), json.dumps(f"api/{name}")) for name in reference)
    parts.append(table("API", f"[{api}]"))
    return "nav = [" + ", ".join(parts) + "]\n"


def _settings() -> dict[str, dict[str, Any]]:
    return tomllib.loads((HERE / "nav.toml").read_text(encoding="utf-8"))


def _module(page: str) -> str:
    name = page.removesuffix(".md")
    return "hypermargin" if name == "index" else name
