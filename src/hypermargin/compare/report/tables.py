"""The tables of a report: numbers of every head, settings, and the runs that failed."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from hypermargin.common.environment import versions
from hypermargin.compare.numbers import MEASURES
from hypermargin.compare.report.pictures import places, trained_margin
from hypermargin.compare.results import Comparison
from hypermargin.margins import number_fields
from hypermargin.plots.style import LIGHT, stroke_of

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


def fixed(text: str) -> str:
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


def breakable(head: str) -> str:
    """Escape the name of a head, which may be broken between its settings and nowhere else."""
    return escape(head).replace(":", ":<wbr>").replace(",", ",<wbr>")


def table(found: Comparison) -> str:
    """Lay out every measure of every head, and what its marks and columns mean."""
    measures = [measure for measure in MEASURES if measure.key in found.table]
    top = "".join(
        f'<th scope="col" title="{escape(m.about)}">{fixed(f"{m.title}, {m.unit}{_arrow(m.better)}")}</th>'
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
            cells.append(f'<td class="{cell.mark}">{fixed(cell.text(measure, unit=False))}{mark}</td>')
        runs = f"{len(found.measured[head])}/{found.plan.seeds}"
        name = f'<th scope="row">{_swatch(places(found)[head])}{breakable(head)}</th>'
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


def failures(found: Comparison) -> str:
    """Say which runs failed, and why; nothing if none did."""
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


def settings(found: Comparison) -> str:
    """Lay out what was trained: heads, settings, versions."""
    heads = "".join(
        f'<tr><th scope="row">{breakable(head)}</th><td>{escape(margin_in_words(about))}</td>'
        f"<td>{_scale(about)}</td><td>{_yes(about['head']['unit_weight'])}</td>"
        f"<td>{_yes(about['head']['unit_features'])}</td></tr>"
        for head, seeds in found.measured.items()
        for about in list(seeds.values())[:1]
    )
    given = found.plan.settings
    names = dict.fromkeys(("data", "model", "epochs", "batch", "dim", *given))
    values = {name: given.get(name, getattr(found.decided, name)) for name in names}
    paths = {name: Path(str(values[name])).name for name in ("data", "init", "verify_images") if values.get(name)}
    lines = {
        **{name: _chosen(value, name in given) for name, value in (values | paths).items()},
        "runs at a time": f"{found.jobs}, {counted(found.threads, 'thread')} each" if found.jobs else "–",
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


def margin_in_words(about: dict[str, Any]) -> str:
    """Write a margin as its formula and numbers: a head may share it with another that has its name."""
    margin = trained_margin(about)
    numbers = {("λ" if f.name == "lam" else f.name): getattr(margin, f.name) for f in number_fields(type(margin))}
    return "; ".join([margin.formula, *(f"{name} = {value:.4g}" for name, value in numbers.items())])


def _scale(about: dict[str, Any]) -> str:
    return f"{about['head']['scale']:.3g}" if about["head"]["unit_features"] else "|x|"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _chosen(value: Any, given: bool) -> str:
    """Write a setting, and whether it was left to the trainer."""
    open_still = "not chosen: no run has begun" if value is None else f"{_plain(value)}, by default"
    return _plain(value) if given else open_still


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def counted(number: int, word: str) -> str:
    """Write 1 seed, 2 seeds."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"
