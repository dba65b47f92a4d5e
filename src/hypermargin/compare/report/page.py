"""The report's page: sections and their words."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from hypermargin.common.environment import now, versions
from hypermargin.compare.numbers import MEASURES
from hypermargin.compare.report.pictures import Row, places, plane, side_by_side, summary, together, trained_margin
from hypermargin.compare.results import Comparison
from hypermargin.files import write_text
from hypermargin.margins import number_fields
from hypermargin.plots import Display, explorer
from hypermargin.plots.html import as_json
from hypermargin.plots.style import LIGHT, Framed, recoloured, stroke_of
from hypermargin.training.config import Config, from_dict, read_toml

MARKS = {
    "best": ("best", "ahead of every other head by more than the noise"),
    "level": ("≈", "not told apart from the best mean"),
}


# A table that may be wider than its place; the script shows the note where it is.
WIDE = (
    '<p class="scrolls" hidden>The table is wider than this window: scroll it sideways →</p>'
    '<div class="wide" role="region" aria-label="table, scrolls sideways" tabindex="0">'
)
SHAPES = {"s": "M13.6 1.6h6.8v6.8h-6.8z", "^": "M17 .8l4 7.4h-8z", "D": "M17 .2l4.8 4.8-4.8 4.8-4.8-4.8z"}
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
        _section("table", "The table", _table(found) + _failures(found)),
        _section("heads", "All heads", _grid(together(found))),
        _section("plane", "In two dimensions", _plane(found, moving)) if moving else "",
        _section("side", "Side by side", "".join(_row(row) for row in side_by_side(found))),
        _section("settings", "Settings and versions", _settings(found)),
    ]
    links = (("words", "Words"), ("table", "Table"), ("heads", "All heads"), ("plane", "Two dimensions"),
             ("side", "Side by side"), ("settings", "Settings"), ("explorer", "Explorer"))  # fmt: skip
    shown = [(key, text) for key, text in links if key != "plane" or moving]
    return f"""<!doctype html>
<html lang="en" data-theme="auto">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{explorer.POLICY}">
<title>{escape(name)}</title>
<style>
{css}
{explorer.colours(":root")}
{_asset("report.css")}
@media (prefers-color-scheme: dark) {{
{recoloured(':root:not([data-theme="light"]) .picture')}
}}
{recoloured(':root[data-theme="dark"] .picture')}
</style>
</head>
<body>
<div class="report">
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
<script type="application/json" id="plane-data">{as_json(moving)}</script>
<script>
{script}
{_asset("report.js")}
</script>
</body>
</html>
"""


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
    config = _decided(found)
    seeds = "1 seed" if found.plan.seeds == 1 else f"{found.plan.seeds} seeds"
    epochs = "1 epoch" if config.epochs == 1 else f"{config.epochs} epochs"
    return (
        f"{train[0]:,} samples of {train[1]:,} identities to train, {test[0]:,} of {whom} to test "
        f"(first seed). {seeds} of each head, {epochs}, batches of {config.batch}, "
        f"{config.dim} dimensions. {now()[:10]}."
    )


def _decided(found: Comparison) -> Config:
    """Return the settings of a run that was started, with nothing left open; all runs have the same data."""
    saved = (run.folder / "config.toml" for run in found.plan.runs(found.folder))
    path = next(path for path in saved if path.exists())
    return from_dict(read_toml(path), str(path))


def _section(key: str, title: str, content: str) -> str:
    return f'<section id="{key}"><h2>{escape(title)}</h2>{content}</section>\n'


def _list(sentences: Iterable[str]) -> str:
    return "<ul class='words'>" + "".join(f"<li>{_fixed(text)}</li>" for text in sentences) + "</ul>"


def _fixed(text: str) -> str:
    """Escape text, and keep lines from breaking inside 2.4 ± 0.1 %, within, ° and 1e-3."""
    for loose, kept in (
        (" ± ", "\u00a0±\u00a0"),
        (" %", "\u00a0%"),
        (" °", "\u00a0°"),
        (" ↑", "\u00a0↑"),
        (" ↓", "\u00a0↓"),
        ("1e-", "1e\u2011"),
        ("rank-1", "rank\u20111"),
    ):
        text = text.replace(loose, kept)
    return escape(text)


def _table(found: Comparison) -> str:
    measures = [measure for measure in MEASURES if measure.key in found.table]
    top = "".join(
        f'<th scope="col" title="{escape(m.about)}">{_fixed(f"{m.title}, {m.unit}{_arrow(m.better)}")}</th>'
        for m in measures
    )
    body = []
    for head in found.plan.heads:
        cells = []
        for measure in measures:
            cell = found.table[measure.key].get(head)
            if cell is None:
                cells.append("<td>–</td>")
                continue
            sign, why = MARKS.get(cell.mark, ("", ""))
            mark = f' <span class="mark {cell.mark}" title="{why}">{sign}</span>' if sign else ""
            cells.append(f'<td class="{cell.mark}">{_fixed(cell.text(measure, unit=False))}{mark}</td>')
        runs = f"{len(found.measured[head])}/{found.plan.seeds}"
        name = f'<th scope="row">{_swatch(places(found)[head])}{escape(head)}</th>'
        body.append(f"<tr>{name}<td>{runs}</td>{''.join(cells)}</tr>")
    notes = "".join(f"<dt>{escape(m.title)}</dt><dd>{escape(m.about)}</dd>" for m in measures)
    return (
        f'{WIDE}<table><thead><tr><th scope="col">head</th><th scope="col">runs</th>{top}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
        "<p>Mean ± standard deviation over seeds. ↑ more is better, ↓ less. "
        '<span class="mark best">best</span> ahead of every other head by more than the noise; '
        '<span class="mark level">≈</span> not told apart from the best mean.</p>'
        f"<details><summary>What the columns mean</summary><dl>{notes}</dl></details>"
    )


def _swatch(k: int) -> str:
    """Return the line of a head in the pictures, for the table."""
    line = stroke_of(k, LIGHT)
    unit = {"-": "", "--": "5 3", "-.": "7 2 2 2", ":": "2 2"}
    dashes = line["linestyle"]
    array = unit[dashes] if isinstance(dashes, str) else " ".join(f"{1.7 * each:g}" for each in dashes[1])
    mark = f'<path d="{SHAPES[line["marker"]]}" style="fill: {line["color"]}"/>' if "marker" in line else ""
    return (
        '<span class="picture swatch"><svg width="34" height="10" viewBox="0 0 34 10" aria-hidden="true">'
        f'<path d="M0 5H34" fill="none" stroke-width="2.4" stroke-dasharray="{array}" '
        f'style="stroke: {line["color"]}"/>{mark}</svg></span>'
    )


def _arrow(better: int) -> str:
    return {1: " ↑", -1: " ↓", 0: ""}[better]


def _failures(found: Comparison) -> str:
    failed = found.failed | found.failed_flat
    if not failed:
        return ""
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(_without_paths(why, found))}</dd>" for name, why in failed.items()
    )
    return f'<h3>Failed runs</h3><dl class="failed">{rows}</dl>'


def _without_paths(text: str, found: Comparison) -> str:
    """Remove paths: where things lie on some machine is nobody's business."""
    data = Path(str(found.plan.settings.get("data", "")))
    for path in (found.folder.resolve(), found.folder, data.resolve().parent, Path.cwd()):
        text = text.replace(f"{path}/", "") if str(path) not in (".", "/") else text
    return text


def _picture(display: Display, title: str, caption: str = "", size: tuple[float, float] | None = None) -> str:
    """Return a picture to stand inline, so that the theme switch reaches it."""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
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
        f"<figure><figcaption>{escape(head['head'])}<output data-right='{k}'></output></figcaption>"
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


def _settings(found: Comparison) -> str:
    heads = "".join(
        f'<tr><th scope="row">{escape(head)}</th><td>{escape(_margin(about))}</td>'
        f"<td>{_scale(about)}</td><td>{_yes(about['head']['unit_weight'])}</td>"
        f"<td>{_yes(about['head']['unit_features'])}</td></tr>"
        for head, seeds in found.measured.items()
        for about in list(seeds.values())[:1]
    )
    config = found.plan.runs(found.folder)[0].config
    changed = {
        **{k: getattr(config, k) for k in ("data", "model", "epochs", "batch", "dim")},
        **found.plan.settings,
    }
    lines = {
        **{name: "chosen from the data" if value is None else value for name, value in changed.items()},
        **{name: Path(str(changed[name])).name for name in ("data", "init", "verify_images") if changed.get(name)},
        "runs at a time": f"{found.jobs}, {found.threads} threads each" if found.jobs else "–",
        **{f"version of {name}": value for name, value in versions().items()},
    }
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(_plain(value))}</dd>" for name, value in lines.items())
    return (
        f'{WIDE}<table><thead><tr><th scope="col">head</th><th scope="col">ψ(θ), as trained</th>'
        '<th scope="col">s</th><th scope="col">unit W</th><th scope="col">unit x</th></tr></thead>'
        f"<tbody>{heads}</tbody></table></div><dl>{rows}</dl>"
        "<p>Every run's folder beside this file holds its config.toml, with everything that was decided; "
        "comparison.json and table.csv hold every number.</p>"
    )


def _margin(about: dict[str, Any]) -> str:
    """Write a margin as its formula and numbers: a head may share it with another that has its name."""
    margin = trained_margin(about)
    numbers = {("λ" if f.name == "lam" else f.name): getattr(margin, f.name) for f in number_fields(type(margin))}
    return "; ".join([margin.formula, *(f"{name} = {value:.4g}" for name, value in numbers.items())])


def _scale(about: dict[str, Any]) -> str:
    return f"{about['head']['scale']:.3g}" if about["head"]["unit_features"] else "|x|"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
