"""The table in plain words: what can be said, and what cannot."""

from __future__ import annotations

from collections.abc import Mapping

from hypermargin.compare.numbers import MEASURES, Cell, Measure

BY_KEY = {measure.key: measure for measure in MEASURES}
Table = Mapping[str, Mapping[str, Cell]]


def reading(found: Table, seeds: int, failed: Mapping[str, str]) -> list[str]:
    """Sentences, the most important first."""
    said = []
    main = "accuracy" if "accuracy" in found else "eer"
    if main in found:
        said.append(_ranking(BY_KEY[main], found[main], seeds))
        said += _agreement(main, found)
    said += _geometry(found)
    said += _promise(found)
    said += _cost(found)
    if failed:
        runs = "1 run failed" if len(failed) == 1 else f"{len(failed)} runs failed"
        said.append(
            f"{runs} ({'; '.join(failed)}), missing from the means: a head that sometimes fails is worse than that."
        )
    said.append(_caution(seeds))
    return said


def _named(heads: list[str]) -> str:
    return heads[0] if len(heads) == 1 else f"{', '.join(heads[:-1])} and {heads[-1]}"


def _of(cells: Mapping[str, Cell], mark: str) -> list[str]:
    return [head for head, cell in cells.items() if cell.mark == mark]


def _order(measure: Measure, cells: Mapping[str, Cell]) -> list[str]:
    return sorted(cells, key=lambda head: -measure.better * cells[head].mean)


def _ranking(measure: Measure, cells: Mapping[str, Cell], seeds: int) -> str:
    order = _order(measure, cells)
    first, most = order[0], "lowest" if measure.better < 0 else "highest"
    start = f"{first} has the {most} {measure.title}, {cells[first].text(measure)}"
    if len(order) == 1:
        return f"{start}; there is no other head to compare it with."
    level = [head for head in order[1:] if cells[head].mark == "level"]
    behind = [head for head in order if cells[head].mark == "behind"]
    if cells[first].mark == "best":
        then = f"next is {order[1]} with {cells[order[1]].text(measure)}"
        return f"{start}, ahead of every other head by more than the seeds vary; {then}."
    if not level and not behind:
        return f"{start}. With one seed nobody knows whether that is more than luck."
    text = f"{start}, but {_named(level)} cannot be told apart from it with {seeds} seeds" if level else start
    if behind:
        text += f"; behind by more than the seeds vary: {_named(behind)}"
    return text + "."


def _agreement(main: str, found: Table) -> list[str]:
    """Do the other measures of quality name the same head?"""
    first = _order(BY_KEY[main], found[main])[0]
    others = [key for key in ("accuracy", "eer", "tar", "rank1") if key in found and key != main]
    differ = [key for key in others if _order(BY_KEY[key], found[key])[0] != first]
    if not others:
        return []
    titles = {key: BY_KEY[key].title for key in others}
    if not differ:
        return [f"{_named(list(titles.values()))} {'names' if len(titles) == 1 else 'name'} the same head."]
    parts = []
    for key in differ:
        head = _order(BY_KEY[key], found[key])[0]
        sure = "" if found[key][head].mark == "best" else ", within the noise"
        parts.append(f"by {titles[key]} it is {head} ({found[key][head].text(BY_KEY[key])}{sure})")
    return [f"The other measures do not all agree: {'; '.join(parts)}."]


def _geometry(found: Table) -> list[str]:
    if "intra" not in found or "inter" not in found or len(found["intra"]) < 2:
        return []
    intra, inter = BY_KEY["intra"], BY_KEY["inter"]
    tight, wide = _order(intra, found["intra"])[0], _order(inter, found["inter"])[0]
    close, far = found["intra"][tight].text(intra), found["inter"][wide].text(inter)
    and_ = " and" if tight == wide else f"; {wide}"
    return [
        f"{tight} holds samples of one identity closest together ({close} on average){and_} keeps different ones "
        f"farthest apart ({far}). Neither counts alone: what separates is the distance between the two."
    ]


def _promise(found: Table) -> list[str]:
    if "met" not in found:
        return []
    met = BY_KEY["met"]
    low = {head: cell for head, cell in found["met"].items() if cell.mean < 0.5}
    if not low:
        return []
    parts = ", ".join(f"{head} {cell.text(met)}" for head, cell in low.items())
    return [
        f"Fewer than half of the training samples meet the margin with {parts}: it asks for more than was learned "
        "in this budget. More epochs, or a smaller m, would show which of the two is to blame."
    ]


def _cost(found: Table) -> list[str]:
    if "seconds" not in found or len(found["seconds"]) < 2:
        return []
    seconds = {head: cell.mean for head, cell in found["seconds"].items()}
    fast, slow = min(seconds, key=seconds.__getitem__), max(seconds, key=seconds.__getitem__)
    ratio = seconds[slow] / seconds[fast]
    if ratio < 1.1:
        return ["All heads take the same time within 10 %: the network is what costs."]
    return [f"{slow} takes {ratio:.2f} times as long as {fast}."]


def _caution(seeds: int) -> str:
    noise = (
        f"A difference counts where its mean over {seeds} seeds differs from 0 at 95 % (Student's t, seed by "
        "seed); one in twenty that counts is chance."
        if seeds > 1
        else "One seed says nothing about noise, so nothing is marked: use --seeds 3 or more."
    )
    return f"{noise} All heads had the same budget, and none was tuned: that favours those whose defaults fit."
