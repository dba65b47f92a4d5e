"""Pages of one file: a document that may fetch nothing, and data within it that no name can end."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict
from html import escape
from typing import Any

from hypermargin.plots.style import DARK, LIGHT, Look, recoloured

# Nothing may be fetched, sent or framed, not even by mistake.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def document(
    title: str, css: str, body: str, script: str, *, lang: str = "en", fetches: bool = False, root: str = ""
) -> str:
    """Return a whole HTML document; `root` are further attributes of its first element.

    Its policy names the script by its hash: no other one runs in it, whatever stands in the body. With `fetches` it
    may ask the server that it came from.
    """
    policy, element = POLICY, ""
    if script:
        script = f"\n{script}\n"
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
        element = f"<script>{script}</script>\n"
    if fetches:
        policy += "; connect-src 'self'"
    return f"""<!doctype html>
<html lang="{lang}"{f" {root}" if root else ""}>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(title)}</title>
<style>
{css}
</style>
</head>
<body>
{body}
{element}</body>
</html>
"""


def as_json(value: Any) -> str:
    """Write JSON for a script element, which no name of a class may end."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def colours(root: str) -> str:
    """Return the pictures' colours as CSS variables of an element: light, dark by the reader's preference, and as
    its data-theme says.
    """

    def rules(colours: Look, scheme: str) -> str:
        return f"color-scheme: {scheme}; " + " ".join(
            f"--{name}: {value};" for name, value in asdict(colours).items()
        )

    dark = rules(DARK, "dark")
    return f"""{root} {{ {rules(LIGHT, "light")} }}
@media (prefers-color-scheme: dark) {{ {root}:not([data-theme="light"]) {{ {dark} }} }}
{root}[data-theme="dark"] {{ {dark} }}"""


def picture_colours(scope: str) -> str:
    """Return CSS by which inline pictures follow the reader's preference, and the data-theme of the document."""
    return f"""@media (prefers-color-scheme: dark) {{
{recoloured(f':root:not([data-theme="light"]) {scope}')}
}}
{recoloured(f':root[data-theme="dark"] {scope}')}"""
