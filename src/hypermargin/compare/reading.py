"""The table in plain words. They name a head as better only where the table marks it."""

from __future__ import annotations

from collections.abc import Mapping

from hypermargin.compare.numbers import FEWEST, MEASURES, Cell, Measure

BY_KEY = {measure.key: measure for measure in MEASURES}
QUALITY = "accuracy", "eer", "tar", "rank1"
Table = Mapping[str, Mapping[str, Cell]]


def reading(found: Table, failed: Mapping[str, str]) -> list[str]:
    """Write the table as sentences, the most important first."""
    said = []
    main = "accuracy" if "accuracy" in found else "eer"
    if main in found:
        said.append(_ranking(BY_KEY[main], found[main]))
        said += [_other(BY_KEY[key], found[key]) for key in QUALITY if key in found and key != main]
    said += [*_angles(found), *_promise(found)]
    if failed:
        runs = "1 run failed" if len(failed) == 1 else f"{len(failed)} runs failed"
        said.append(
            f"{runs} ({'; '.join(failed)}), missing from the means: a head that sometimes fails is worse than that."
        )
    said.append(
        f"Heads are compared seed by seed, from {FEWEST} seeds on; of equal heads one column in twenty at most "
        "would call any behind. All had the same budget, and none was tuned: that favours those whose defaults fit."
    )
    return [sentence for sentence in said if sentence]


def _named(heads: list[str]) -> str:
    return heads[0] if len(heads) == 1 else f"{', '.join(heads[:-1])} and {heads[-1]}"


def _order(measure: Measure, cells: Mapping[str, Cell]) -> list[str]:
    return sorted(cells, key=lambda head: -measure.better * cells[head].mean)


def _ranking(measure: Measure, cells: Mapping[str, Cell]) -> str:
    order = _order(measure, cells)
    first, most = order[0], "lowest" if measure.better < 0 else "highest"
    start = f"{first} has the {most} mean {measure.title}, {cells[first].text(measure)}"
    if len(order) == 1:
        return f"{start}; there is no other head to compare it with."
    level = [head for head in order[1:] if cells[head].mark == "level"]
    behind = [head for head in order if cells[head].mark == "behind"]
    if cells[first].mark == "best":
        then = f"next is {order[1]} with {cells[order[1]].text(measure)}"
        return f"{start}, ahead of every other head by more than the seeds vary; {then}."
    if not level and not behind:
        return f"{start}. Fewer than {FEWEST} seeds cannot tell whether that is more than luck."
    text = f"{start}, but {_named(level)} cannot be told apart from it" if level else start
    return text + (f"; behind by more than the seeds vary: {_named(behind)}." if behind else ".")


def _other(measure: Measure, cells: Mapping[str, Cell]) -> str:
    """Say of another measure only what is marked."""
    best = next((head for head, cell in cells.items() if cell.mark == "best"), None)
    behind = [head for head in _order(measure, cells) if cells[head].mark == "behind"]
    if best is not None:
        return f"By {measure.title}, {best} is ahead of every other head ({cells[best].text(measure)})."
    if behind:
        text = f"By {measure.title}, behind the first by more than the seeds vary: {_named(behind)}"
        return f"{text}; the others cannot be told apart from it."
    if any(cell.mark for cell in cells.values()):
        return f"By {measure.title}, no head can be told apart from the first."
    return ""


def _angles(found: Table) -> list[str]:
    if "intra" not in found or "inter" not in found:
        return []
    within, between = (_range(BY_KEY[key], found[key]) for key in ("intra", "inter"))
    return [
        f"Samples of one identity are {within} apart on average, of two identities {between}. Neither counts "
        "alone: what separates is the distance between the two."
    ]


def _range(measure: Measure, cells: Mapping[str, Cell]) -> str:
    """Write a range as 29.2° (softmax) to 36.5° (cosface)."""
    order = sorted(cells, key=lambda head: cells[head].mean)
    low, high = (f"{measure.factor * cells[head].mean:,.{measure.digits}f}" for head in (order[0], order[-1]))
    unit = measure.unit if measure.unit == "°" else f" {measure.unit}"
    if low == high:
        return f"{low}{unit}"
    return f"{low}{unit} ({order[0]}) to {high}{unit} ({order[-1]})"


def _promise(found: Table) -> list[str]:
    met = BY_KEY["met"]
    low = {head: cell for head, cell in found.get("met", {}).items() if cell.mean < 0.5}
    if not low:
        return []
    parts = ", ".join(f"{head} ({cell.text(met)})" for head, cell in low.items())
    return [
        f"Fewer than half of the training samples meet the margin with {parts}: it asks for more than was learned "
        "in this budget. More epochs, or a smaller m, would show which of the two is to blame."
    ]
