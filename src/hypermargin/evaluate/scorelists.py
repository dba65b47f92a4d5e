"""Scores in text files: with an answer beside each, or with two names, for which a list of pairs has the answer."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hypermargin.common.arrays import Array
from hypermargin.data.base import DataError
from hypermargin.data.pairlists import ANSWERS, FIRST, FOLD, SAME, SECOND, bare, text_of
from hypermargin.evaluate.files import Scored
from hypermargin.evaluate.named import good_pairs, identities

SCORE = ("score", "scores", "similarity", "cosine", "llr")
LAYOUTS = (
    "two columns, score and label in either order; `a b score` or `score a b`, and the pairs in a second file; or "
    "a first line that names the columns: score, and same, or a and b"
)


def read_scores(path: str | os.PathLike[str], pairs: str | os.PathLike[str] | None = None) -> Scored:
    """Read scores from a text file: columns by comma, semicolon, tab or space, with or without a line of names.

    score, label      label as in lists of pairs: 1 or 0, target or nontarget, …; in either order
    a, b, score       or score, a, b; `pairs` is a list of the same names with the answers, in any order
    """
    rows, header = _cells(Path(path))
    if header:
        at = {word: _column(header, names) for word, names in _COLUMNS.items()}
        score, same, a, b = (at[word] for word in ("score", "same", "a", "b"))
        if score is None or (same is None and (a is None or b is None)):
            raise ValueError(f"{path}: its first line names the columns {', '.join(header)}. Expected: {LAYOUTS}.")
        if same is not None and pairs is None:
            fold = None if at["fold"] is None else np.unique([r[at["fold"]] for r in rows], return_inverse=True)[1]
            return Scored(_numbers(path, rows, score), _answers(path, rows, same), None, fold)
        if a is None or b is None:
            raise ValueError(f"{path}: it has no names, a and b, by which the pairs of {pairs} could be found.")
        return _joined(path, rows, [(a, b, score)], pairs)
    width = len(rows[0])
    if width == 2:
        _no_pairs(path, pairs)
        sides = [
            side for side in (1, 0) if all(r[side].lower() in ANSWERS for r in rows) and _is_score(rows, 1 - side)
        ]
        if len(sides) != 1:
            what = (
                "either of its two columns may be the label" if sides else "neither of its two columns is a label"
            )
            raise ValueError(f"{path}: {what}. Expected: {LAYOUTS}.")
        return Scored(_numbers(path, rows, 1 - sides[0]), _answers(path, rows, sides[0]), None, None)
    orders = [order for order in ((0, 1, 2), (1, 2, 0)) if width == 3 and _is_score(rows, order[2])]
    if not orders:
        raise ValueError(f"{path}: its first line is {' '.join(rows[0])[:80]!r}. Expected: {LAYOUTS}.")
    return _joined(path, rows, orders, pairs)


_COLUMNS = {"score": SCORE, "same": SAME, "a": FIRST, "b": SECOND, "fold": FOLD}


def _cells(path: Path) -> tuple[list[list[str]], list[str]]:
    """Return the lines as cells, all equally many, and the names of the columns if the first line gives them."""
    lines = [line for line in text_of(path).splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{path}: it is empty. Expected: {LAYOUTS}.")
    mark = max(",;\t", key=lines[0].count)
    try:
        rows = list(csv.reader(lines, delimiter=mark)) if mark in lines[0] else [line.split() for line in lines]
    except csv.Error as error:
        raise ValueError(f"{path}: {error}.") from None
    rows = [[cell.strip() for cell in row] for row in rows]
    odd = next((k for k, row in enumerate(rows) if len(row) != len(rows[0])), None)
    if odd is not None:
        raise ValueError(f"{path}: line {odd + 1} has {len(rows[odd])} columns, the first has {len(rows[0])}.")
    header = [cell.lower() for cell in rows[0]]
    named = _column(header, SCORE) is not None
    if named and len(rows) == 1:
        raise ValueError(f"{path}: there are no scores below its first line.")
    return (rows[1:], header) if named else (rows, [])


def _column(header: Sequence[str], names: Sequence[str]) -> int | None:
    return next((header.index(name) for name in names if name in header), None)


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _is_score(rows: list[list[str]], column: int) -> bool:
    return all(_float(row[column]) is not None for row in rows)


def _numbers(path: str | os.PathLike[str], rows: list[list[str]], column: int) -> Array:
    found = [_float(row[column]) for row in rows]
    if None in found:
        k = found.index(None)
        raise ValueError(f"{path}: the score must be a number; got {rows[k][column][:40]!r} for pair {k}.")
    return np.array(found)


def _answers(path: str | os.PathLike[str], rows: list[list[str]], column: int) -> Array:
    found = [ANSWERS.get(row[column].lower()) for row in rows]
    if None in found:
        k = found.index(None)
        raise ValueError(f"{path}: the label must be 1 or 0, target or nontarget; got {rows[k][column][:40]!r}.")
    return np.array(found, bool)


def _no_pairs(path: str | os.PathLike[str], pairs: str | os.PathLike[str] | None) -> None:
    if pairs is not None:
        raise ValueError(f"{path}: it has the answers itself; leave the pairs of {pairs} out.")


def _joined(
    path: str | os.PathLike[str],
    rows: list[list[str]],
    orders: list[tuple[int, int, int]],
    pairs: str | os.PathLike[str] | None,
) -> Scored:
    """Give each listed pair its score, by its names; of several orders of columns the one that knows more."""
    if pairs is None:
        raise ValueError(
            f"{path}: it holds names and scores, but not which pairs are the same. Give that as pairs."
        )
    listed = good_pairs(pairs)
    wanted = [(bare(pair.first), bare(pair.second)) for pair in listed]
    best: list[float | None] = []
    for a, b, score in orders:
        known: dict[tuple[str, str], float] = {}
        for row, value in zip(rows, _numbers(path, rows, score).tolist(), strict=True):
            key = bare(row[a]), bare(row[b])
            if known.setdefault(key, value) != value:
                raise DataError(f"{path}: {' '.join(key)} has two scores, {known[key]:g} and {value:g}.")
        found = [known.get(key, known.get(key[::-1])) for key in wanted]
        if not best or found.count(None) < best.count(None):
            best = found
    if None in best:
        first = listed[best.index(None)]
        a, b, _ = orders[0]
        raise DataError(
            f"{pairs}: {best.count(None):,} of its {len(listed):,} pairs have no score in {path}. The first is "
            f"{first.first!r}, {first.second!r}; there it looks like {rows[0][a]!r}, {rows[0][b]!r}."
        )
    folds = [pair.fold for pair in listed]
    fold = None if None in folds else np.array(folds)
    return Scored(np.array(best), np.array([pair.same for pair in listed]), identities(listed), fold)
