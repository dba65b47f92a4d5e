"""The report's page: sections and their words."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from hypermargin.common.environment import now
from hypermargin.compare.report.pictures import Row, plane, side_by_side, summary, together
from hypermargin.compare.report.tables import breakable, counted, failures, fixed, settings, table
from hypermargin.compare.results import Comparison
from hypermargin.files import write_text
from hypermargin.plots import Display, explorer
from hypermargin.plots.html import as_json, colours, document, picture_colours
from hypermargin.plots.style import Framed

MOST_WIDE = 4.4  # inches
SMALL = (4.2, 3.4)  # inches, of a picture that stands in a row


def write_report(found: Comparison) -> None:
    """Write `page` as OUT/report.html."""
    write_text(found.report, page(found))


def page(found: Comparison) -> str:
    """Return the whole document."""
    name = _name(found)
    css, body, script = explorer.parts()
    moving = plane(found)
    first = summary(found)
    sections = [
        _section("words", "In plain words", f'<div class="top">{_list(found.sentences)}{_top(first)}</div>'),
        _section("table", "The table", table(found) + failures(found)),
        _section("heads", "All heads", _grid(together(found))),
        _section("plane", "In two dimensions", _plane(found, moving)) if moving else "",
        _section("side", "Side by side", "".join(_row(row) for row in side_by_side(found))),
        _section("settings", "Settings and versions", settings(found)),
    ]
    links = (("words", "Words"), ("table", "Table"), ("heads", "All heads"), ("plane", "Two dimensions"),
             ("side", "Side by side"), ("settings", "Settings"), ("explorer", "Explorer"))  # fmt: skip
    shown = [(key, text) for key, text in links if key != "plane" or moving]
    style = "\n".join((css, colours(":root"), _asset("report.css"), picture_colours(".picture")))
    whole = f"""<div class="report">
<header>
<h1>{escape(name)}</h1>
<p>{escape(_summary(found))}</p>
<nav aria-label="sections">{" ".join(f'<a href="#{key}">{text}</a>' for key, text in shown)}
<label>Theme <select id="theme"><option value="auto">as the system</option><option value="light">light</option>
<option value="dark">dark</option></select></label></nav>
</header>
<main>
{"".join(sections)}
</main>
</div>
<section id="explorer" aria-label="explorer">
{body}
</section>
<script type="application/json" id="plane-data">{as_json(moving)}</script>"""
    return document(name, style, whole, f"{script}\n{_asset('report.js')}", root='data-theme="auto"')


def _name(found: Comparison) -> str:
    data = _data(found).get("name") or Path(str(found.plan.settings.get("data", "glyphs"))).name
    return f"{len(found.plan.heads)} heads on {data}"


def _about(found: Comparison) -> Iterable[dict[str, Any]]:
    return (about for seeds in found.measured.values() for about in seeds.values())


def _data(found: Comparison) -> dict[str, Any]:
    return next((about["data"] for about in _about(found)), {})


def _summary(found: Comparison) -> str:
    data = _data(found)
    if not data:
        return "No run has finished."
    train, test = data["parts"]["train"], data["parts"]["test"]
    whom = f"{test[1]:,} other identities, never trained," if data["open_set"] else "the same classes"
    config = found.decided
    today = now()[:10].replace("-", "\u2011")  # on one line
    seeds, epochs = counted(found.plan.seeds, "seed"), counted(config.epochs or 0, "epoch")
    return (
        f"{train[0]:,} samples of {train[1]:,} identities to train, {test[0]:,} of {whom} to test "
        f"(first seed). {seeds} of each head, {epochs}, batches of {config.batch}, "
        f"{config.dim} dimensions. {today}."
    )


def _section(key: str, title: str, content: str) -> str:
    return f'<section id="{key}"><h2>{escape(title)}</h2>{content}</section>\n'


def _list(sentences: Iterable[str]) -> str:
    return "<ul class='words'>" + "".join(f"<li>{fixed(text)}</li>" for text in sentences) + "</ul>"


def _picture(display: Display, title: str, caption: str = "", size: tuple[float, float] | None = None) -> str:
    """Return a picture to stand inline, so that the theme switch reaches it."""
    below = f"<figcaption>{breakable(caption)}</figcaption>" if caption else ""
    return f'<figure class="picture">{below}{display.inline(title, size=size)}</figure>'


def _top(row: Row | None) -> str:
    """Return the picture that a reader sees first."""
    if row is None:
        return ""
    pictures = "".join(_picture(Framed(display), row.title, row.title) for display in row.displays.values())
    return f"<div>{pictures}<p>{escape(row.words)}</p></div>"


def _grid(rows: Iterable[Row]) -> str:
    cards = (
        f"<div><h3>{escape(row.title)}</h3><p>{escape(row.words)}</p>"
        + "".join(_picture(Framed(d), row.title, size=_readable(d)) for d in row.displays.values())
        + "</div>"
        for row in rows
    )
    return f'<div class="pairs">{"".join(cards)}</div>'


def _readable(display: Display) -> tuple[float, float]:
    """Return a size at which the words of a picture can be read on a phone."""
    wide, high = display.size
    return min(wide, MOST_WIDE), max(high * min(1, MOST_WIDE / wide), 3.6)


def _row(row: Row) -> str:
    pictures = "".join(_picture(d, f"{row.title}: {head}", head, SMALL) for head, d in row.displays.items())
    return f'<h3>{escape(row.title)}</h3><p>{escape(row.words)}</p><div class="row">{pictures}</div>'


def _plane(found: Comparison, moving: list[dict[str, Any]]) -> str:
    own = (found.folder / "plane" / "data.npz").exists()
    which = (
        f"{len(moving[0]['names'])} classes of these data"
        if own
        else "the ten digits of scikit-learn, since these data have no ten classes of fifty images"
    )
    frames = "".join(
        f"<figure><figcaption>{breakable(head['head'])}<output data-right='{k}'></output></figcaption>"
        f'<canvas width="560" height="560" data-plane="{k}" role="img" '
        f'aria-label="features of {escape(head["head"])} in two dimensions"></canvas></figure>'
        for k, head in enumerate(moving)
    )
    last = len(moving[0]["epochs"]) - 1
    return (
        f"<p>The same heads with an embedding of two numbers, on {which}: test samples as dots, the classes' "
        "prototypes as rays. Each picture has its own scale; the ring is the mean length.</p>"
        '<p class="player"><button type="button" id="play">Play</button> '
        f'<label>epoch <input type="range" id="epoch" min="0" max="{last}" value="{last}"></label> '
        '<output id="epoch-shown"></output></p>'
        f'<div class="row">{frames}</div>'
    )


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
