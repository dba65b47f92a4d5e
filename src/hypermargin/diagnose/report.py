"""A report for people and programs: the same findings as text, as plain data, and as one HTML page."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

from hypermargin.common.environment import now, versions
from hypermargin.diagnose.diagnosis import Diagnosis
from hypermargin.diagnose.findings import DOCUMENT, LEVELS, Finding
from hypermargin.diagnose.pictures import MeasuredDisplay, RivalsDisplay
from hypermargin.plots import Display
from hypermargin.plots.html import colours, document, picture_colours

WIDTH = 100  # characters of a line of text
SCROLLS = '<p class="scrolls">The picture is wider than this window: scroll it sideways →</p>'
ABOUT = {
    "wrong": "not the loss that was meant, or NaN",
    "doubtful": "costs something; look at it",
    "note": "worth knowing, and may be wanted",
}


@dataclass(frozen=True, eq=False)
class Report:
    """What is said of a criterion, of a run's settings, or of a run."""

    title: str
    verdict: str
    facts: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]
    lines: tuple[tuple[str, str], ...] = ()  # code that may be copied, each with what it is
    pictures: tuple[tuple[str, str, Display], ...] = field(default=(), repr=False)
    data: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, found: Diagnosis) -> Report:
        """Make it from a diagnosis."""
        facts = [("called", found.called)]
        if found.curves is not None:
            facts.append(("sure", sureness(found)))
        lines = [("the same loss", found.same)] if found.same else []
        lines += [("what we would take", found.better)] if found.better else []
        pictures: list[tuple[str, str, Display]] = []
        if found.curves is not None and found.scale:
            words = "Dots are what was measured; lines are this library's. Right: the slope that training follows."
            pictures.append(("ψ and its slope", words, MeasuredDisplay.of(found)))
            words = "A rival counts as its cosine unless there is a rule for it."
            pictures.append(("Rivals", words, RivalsDisplay.of(found.curves, found.scale)))
        return cls(
            found.name, found.kind, tuple(facts), found.findings, tuple(lines), tuple(pictures), found.plain()
        )

    def plain(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        own = self.data or {
            "format": 1, "name": self.title, "kind": self.verdict, "facts": dict(self.facts),
            "findings": [each.plain() for each in self.findings],
        }  # fmt: skip
        return {**own, "versions": versions(), "date": now()}

    def text(self) -> str:
        """Return it for a terminal."""
        out = [self.title, *_folded("what", self.verdict)]
        for name, value in self.facts:
            out += _folded(name, value)
        out.append("")
        for each in self.findings:
            out += _folded(each.level, each.said)
            out += _folded("", f"→ {each.remedy}") if each.remedy else []
            out += _folded("", f"see “{each.errata}” in {DOCUMENT}") if each.errata else []
        if not self.findings:
            out.append("nothing found")
        for name, code in self.lines:
            out += ["", f"{name}:", f"  {code}"]
        return "\n".join(out)

    def page(self) -> str:
        """Return it as one HTML document, which needs no network and runs no script."""
        own = files(__package__).joinpath("report.css").read_text(encoding="utf-8")
        css = "\n".join((colours(":root"), own, picture_colours(".picture")))
        return document(f"{self.title}: a diagnosis", css, self._body(), "")

    def _body(self) -> str:
        facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in self.facts)
        found = "".join(map(_finding, self.findings)) or "<p>Nothing was found.</p>"
        code = "".join(
            f"<h3>{escape(name)}</h3><pre><code>{escape(line)}</code></pre>" for name, line in self.lines
        )
        pictures = "".join(
            f"<h2>{escape(title)}</h2><p>{escape(words)}</p>{SCROLLS if _width(shown) == 'wide' else ''}"
            f'<figure class="picture {_width(shown)}" tabindex="0">{shown.inline(title)}</figure>'
            for title, words, shown in self.pictures
        )
        legend = "; ".join(f"<b>{level}</b>: {ABOUT[level]}" for level in reversed(LEVELS))
        about = ", ".join(f"{name} {version}" for name, version in versions().items())
        return f"""<main>
<header><p class="over">hypermargin diagnose</p><h1>{escape(self.title).replace(":", ":<wbr>")}</h1>
<p class="verdict">{escape(self.verdict)}</p><dl>{facts}</dl></header>
<h2>Findings</h2><p class="small">{legend}.</p><ul class="findings">{found}</ul>
{f"<h2>Instead</h2>{code}" if code else ""}
{pictures}
<footer>{escape(about)}; {now()[:10]}. Entries of the errata are in {DOCUMENT}.</footer>
</main>"""


def _width(shown: Display) -> str:
    return "wide" if shown.size[0] > 8 else "narrow"


def sureness(found: Diagnosis) -> str:
    """Say how sure the name is."""
    if found.margin is None or not found.confidence:
        return "no margin of the family was recognised"
    last = 175.0 if found.curves is None else min(175.0, math.degrees(found.curves.theta[-1]))
    said = f"agrees at {100 * found.confidence:.4g} % of the angles from 5° to {last:.0f}°"
    if found.proof is None:
        return f"{said}; not run beside ours, since more than ψ differs from softmax with a margin"
    return (
        f"{said}; run beside ours on a batch at all angles its loss differs by {found.proof.loss:.1g} of its size, "
        f"its gradient by {found.proof.gradient:.1g}"
    )


def _folded(name: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=f"  {name:<9} ", subsequent_indent=" " * 12, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _finding(each: Finding) -> str:
    remedy = f'<p class="remedy">{escape(each.remedy)}</p>' if each.remedy else ""
    errata = f'<p class="small">Errata: {escape(each.errata)}</p>' if each.errata else ""
    return (
        f'<li class="{each.level}"><span class="level">{each.level}</span> <code class="name">{escape(each.code)}'
        f"</code><p>{escape(each.said)}</p>{remedy}{errata}</li>"
    )
