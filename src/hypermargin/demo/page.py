"""The demo's page: one HTML file in two languages that needs no network."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from hypermargin.common.environment import now
from hypermargin.compare.numbers import MEASURES, Cell
from hypermargin.demo.findings import HEADS, Findings, Flat, Many
from hypermargin.plots import Display
from hypermargin.plots.features import FeaturesDisplay, together
from hypermargin.plots.html import as_json, colours, document, picture_colours
from hypermargin.plots.verification import ScoresDisplay
from hypermargin.scales import largest_angle
from hypermargin.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BY_KEY = {measure.key: measure for measure in MEASURES}
COMMANDS = """hypermargin advise --classes 200 --dim 128
hypermargin train --data your/photos
hypermargin compare --data your/photos"""


def page(found: Findings) -> str:
    """Return the whole document."""
    style = "\n".join((colours(":root"), _asset("page.css"), picture_colours("figure")))
    titles = {lang: said["title"] for lang, said in words().items()}
    body = f"""<header>
<div class="bar"><span>{_both("name")}</span>{_switches()}</div>
<h1>{_headline(found)}</h1>
</header>
<main>
<div class="three circle">{_circles(found)}</div>
<div class="three texts">{_texts(found)}</div>
<p class="small">{_both("flat_about")}</p>
<h2>{_both("many", classes=f"{found.classes:,}")}</h2>
<p class="lead">{_many_headline(found)}</p>
<p class="key"><span class="same">{_both("same")}</span><span class="other">{_both("other")}</span></p>
<div class="three">{_scores(found)}</div>
<p class="small">{_many_about(found)}</p>
<p>{_more()}</p>
<p class="small">{_both("made", version=__version__, date=now()[:10], runs=len(HEADS) * (found.seeds + 1))}</p>
</main>
<script type="application/json" id="titles">{as_json(titles)}</script>"""
    return document(titles["en"], style, body, _asset("page.js"), root='data-theme="auto"')


@functools.cache
def words() -> dict[str, dict[str, str]]:
    """Return every word on the page, by language and key."""
    found: dict[str, dict[str, str]] = json.loads(_asset("words.json"))
    return found


def _both(*keys: str, **values: Any) -> str:
    """Say something in both languages, of which the page shows one."""
    spoken = []
    for lang, said in words().items():
        text = ("" if lang == "zh" else " ").join(said[key].format(**values) for key in keys)
        kept = text.replace(" %", "\u00a0%").replace(" = ", "\u00a0=\u00a0").replace(" ± ", "\u00a0±\u00a0")
        spoken.append(f'<span lang="{"zh-CN" if lang == "zh" else lang}">{escape(kept)}</span>')
    return "".join(spoken)


def _switches() -> str:
    themes = "".join(
        f'<option value="{value}"'
        + "".join(f' data-{lang}="{escape(said[f"theme_{value}"])}"' for lang, said in words().items())
        + f">{escape(words()['en'][f'theme_{value}'])}</option>"
        for value in ("auto", "light", "dark")
    )
    return (
        f'<span class="switches"><label>{_both("language")} <select id="lang"><option value="en">English</option>'
        f'<option value="zh">中文</option></select></label> <label>{_both("theme")} '
        f'<select id="theme">{themes}</select></label></span>'
    )


# ---- few classes ----------------------------------------------------------------------------------------------


def _headline(found: Findings) -> str:
    """Say how far samples are from their class, which is true however it came out, and what did not help."""
    keys = ["headline"]
    keys += [] if found.closer("advised", "large") else ["headline_no_scale"]
    keys += [] if found.closer("margin", "advised") else ["headline_no_margin"]
    away = {key: f"{flat.away:.1f}" for key, flat in found.flat.items()}
    third = found.flat["margin"]
    return _both(*keys, **away, s=_short(third.scale), m=_degrees(third.m))


def title(found: Findings, key: str, lang: str) -> str:
    """Return what stands below one of the pictures of few classes."""
    flat = found.flat[key]
    return words()[lang][key].format(s=_short(flat.scale), m=_degrees(flat.m))


def _circles(found: Findings) -> str:
    shown = []
    for key, display in circles(found).items():
        flat = found.flat[key]
        caption = _both("flat_caption", away=f"{flat.away:.1f}", right=f"{100 * flat.right:.1f}")
        label = words()["en"]["flat_label"].format(title=title(found, key, "en"))
        shown.append(_figure(display, label, (4.0, 4.0), _heading(key, flat) + caption))
    return "".join(shown)


def circles(found: Findings) -> dict[str, FeaturesDisplay]:
    """Return the pictures of the test samples on the circle, to one measure and without words."""
    made = (
        FeaturesDisplay.of(flat.features, flat.labels, flat.prototypes, names=flat.names, on="circle")
        for flat in found.flat.values()
    )
    wordless = [dataclasses.replace(display, title="", explained=False) for display in together(list(made))]
    return dict(zip(found.flat, wordless, strict=True))


def _texts(found: Findings) -> str:
    flat = found.flat["margin"]
    apart = math.degrees(largest_angle(len(flat.names), 2))
    numbers = {
        "m": f"{flat.m:.2f}", "degrees": _degrees(flat.m), "apart": f"{apart:.0f}",
        "left": f"{apart - math.degrees(0.5):.0f}",
    }  # fmt: skip
    # A browser may break a line at any hyphen; "--" must stay with what it is of.
    whole = re.sub(r"\S+", r"<span>\g<0></span>", escape(COMMANDS))
    commands = "".join(f"<div>{line}</div>" for line in whole.splitlines())
    gathered = found.closer("advised", "large") and found.closer("margin", "advised")
    paragraphs = (
        ("changed", ["changed_text"], ""),
        ("moved", ["moved_seen", "moved_text"] if gathered else ["moved_text"], ""),
        ("next", ["next_text"], f"<pre>{commands}</pre>"),
    )
    return "".join(
        f"<div><h3>{_both(title)}</h3><p>{_both(*keys, **numbers)}</p>{rest}</div>"
        for title, keys, rest in paragraphs
    )


# ---- many classes ---------------------------------------------------------------------------------------------


def _many_headline(found: Findings) -> str:
    scale = found.verdict("eer", "advised", "large")
    margin = found.verdict("eer", "margin", "advised")
    errors = {key: _mean("eer", many.eer) for key, many in found.many.items()}
    keys = "many_headline", f"many_scale_{scale}", f"many_margin_{margin}"
    return _both(*keys, **errors, s=_short(found.many["advised"].scale))


class _Scores(ScoresDisplay):
    """Scores without words, since the page says them in two languages, and on shared axes."""

    top = 0.0
    least = -1.0

    def draw(self, ax: Axes) -> None:
        super().draw(ax)
        ax.set(xlabel="cos", ylabel="", xlim=(self.least, 1.0), ylim=(0.0, self.top))
        ax.set_title("", loc="left")
        legend = ax.get_legend()
        if legend is not None:
            legend.remove()


def _scores(found: Findings) -> str:
    displays = {key: _Scores(many.edges, many.genuine, many.impostor) for key, many in found.many.items()}
    shares = [counts / max(1, counts.sum()) for d in displays.values() for counts in (d.genuine, d.impostor)]
    least = min(float(d.edges[:-1][(d.genuine + d.impostor) > 0].min(initial=1.0)) for d in displays.values())
    shown = []
    for key, display in displays.items():
        display.top, display.least = 1.05 * float(np.max([share.max() for share in shares])), least
        many = found.many[key]
        caption = _both("many_caption", eer=_spread("eer", many.eer), rank1=_spread("rank1", many.rank1))
        label = words()["en"]["many_label"].format(s=_short(many.scale))
        shown.append(_figure(display, label, (4.6, 3.0), _heading(key, many) + caption))
    return "".join(shown)


def _many_about(found: Findings) -> str:
    numbers: Mapping[str, Any] = {
        "classes": f"{found.classes:,}", "unseen": f"{found.unseen:,}", "dim": found.dim, "epochs": found.epochs,
        "seeds": found.seeds,
    }  # fmt: skip
    return _both("many_about", **numbers)


# ---- parts ----------------------------------------------------------------------------------------------------


def _more() -> str:
    return _both("more", report="\0").replace("\0", f'<a href="report.html">{_both("report")}</a>')


def _heading(key: str, head: Flat | Many) -> str:
    return f"<b>{_both(key, s=_short(head.scale), m=_degrees(head.m))}</b>"


def _figure(display: Display, label: str, size: tuple[float, float], caption: str) -> str:
    return f"<figure>{display.inline(label, size=size)}<figcaption>{caption}</figcaption></figure>"


def _mean(key: str, cell: Cell) -> str:
    measure = BY_KEY[key]
    return f"{measure.factor * cell.mean:.{measure.digits}f} %"


def _spread(key: str, cell: Cell) -> str:
    return cell.text(BY_KEY[key])


def _short(value: float) -> str:
    return f"{value:.3g}"


def _degrees(radians: float) -> str:
    return f"{math.degrees(radians):.0f}"


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
