"""A real browser for pages: opened from a file, watched for errors and for anything that would leave the machine.

from browser import chromium, opened  # noqa: F401

def test_page(browser, tmp_path):
    with opened(browser, html, tmp_path) as page: ...
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = "chromium", "chromium-browser", "google-chrome"
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
AT_HOME = "file:", "data:", "about:", "blob:"
DESKTOP, PHONE = (1280, 900), (390, 844)


@pytest.fixture(scope="session", name="browser")
def chromium() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"no browser found; looked for {', '.join(PROGRAMS)}")
    with api.sync_playwright() as play:
        found = play.chromium.launch(executable_path=program, args=list(QUIET))
        yield found
        found.close()


@contextmanager
def opened(
    browser: Any,
    html: str,
    folder: Path,
    *,
    size: tuple[int, int] = DESKTOP,
    scheme: str = "light",
    anchor: str = "",
) -> Iterator[Any]:
    """The page of an HTML text; at the end it fails on console errors, page errors and requests to elsewhere."""
    file = folder / "page.html"
    file.write_text(html, encoding="utf-8")
    phone = size[0] < 500
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, has_touch=phone, is_mobile=phone
    )
    problems: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on("console", lambda said: said.type in ("error", "warning") and problems.append(f"console: {said.text}"))
    page.on("request", lambda r: r.url.startswith(AT_HOME) or problems.append(f"request: {r.url}"))
    try:
        page.goto(file.as_uri() + anchor)
        yield page
        assert not problems, problems
    finally:
        context.close()
