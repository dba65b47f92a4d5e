"""The page as one HTML document: its data, the code that draws them, and the explorer."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from hypermargin import checks
from hypermargin.evaluate.report import plain
from hypermargin.plots import explorer
from hypermargin.plots.html import as_json, colours, document

SCRIPTS = "browse.js", "plots.js", "pairs.js", "figures.js", "live.js", "page.js"


def page(data: dict[str, Any], lang: str = "en") -> str:
    """Return the document that shows `data`, in the language it opens in; `content` and `run` make the data.

    With data["live"] it asks the server that it came from for the log, and has no explorer.
    """
    checks.one_of("lang", lang, list(words()))
    live = bool(data.get("live"))
    shared = "\n".join(explorer.asset(name) for name in ("draw.js", "sphere.js"))
    own = "\n".join(_asset(name) for name in SCRIPTS)
    css, body, script = explorer.parts(lang)
    code = f"""((root, words, data) => {{
"use strict";
{shared}
{own}
start();
}})(document.querySelector(".hm-page"), {as_json({"lang": lang, "words": words()})},
  JSON.parse(document.getElementById("hm-data").textContent));
"""
    below = "" if live else f'\n<section id="explorer" aria-label="explorer">\n{body}\n</section>'
    whole = f"""{_asset("page.html")}{below}
<script type="application/json" id="hm-data">{as_json(plain(data))}</script>"""
    shared_style = explorer.asset("base.css") if live else css
    style = "\n".join((shared_style, colours(":root"), _asset("page.css")))
    scripts = code if live else f"{script}\n{code}"
    return document(data["title"], style, whole, scripts, lang=explorer.TAGS[lang], fetches=live)


@cache
def words() -> dict[str, dict[str, str]]:
    """Return every word on the page, by language and key."""
    found: dict[str, dict[str, str]] = json.loads(_asset("words.json"))
    return found


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
