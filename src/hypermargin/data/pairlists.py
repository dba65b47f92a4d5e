"""Lists of pairs as text: LFW's pairs.txt, trials as VoxCeleb and Kaldi list them, and CSV. Names, not images."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hypermargin.common.arrays import Truth
from hypermargin.data.base import Bad, DataError
from hypermargin.data.images import EXTENSIONS

FIRST, SECOND = ("a", "first"), ("b", "second")
SAME, FOLD = ("same", "issame", "label", "target"), ("fold",)
YES = ("1", "1.0", "true", "yes", "same", "target", "genuine")
NO = ("0", "0.0", "-1", "false", "no", "different", "nontarget", "impostor")
ANSWERS = dict.fromkeys(YES, True) | dict.fromkeys(NO, False)
MOST_FOLDS = 10**6
ENDINGS = (*EXTENSIONS, ".wav", ".flac", ".m4a", ".mp3", ".ogg", ".opus")
LFW, ANSWER_FIRST, ANSWER_LAST = (
    "`name 1 2` or `name 1 other 2`",
    "`1 a b` or `0 a b`",
    "`a b target` or `a b nontarget`, or 1 and 0",
)


class Listed(NamedTuple):
    """One pair: its place in the list, two names, whether they are of one identity; perhaps fold and identities."""

    where: str
    first: str
    second: str
    same: bool
    fold: int | None = None
    people: tuple[str, str] | None = None


def read_list(path: str | os.PathLike[str]) -> Iterator[Listed | Bad]:
    """Read pairs of names, and lines that are none.

    .csv    a header, then the columns a, b, same (or first, second, issame, label, target) and perhaps fold
    other   LFW's pairs.txt: `folds pairs` or `pairs`, then `name 1 2` or `name 1 other 2`, for name/name_0001;
            or VoxCeleb's `1 a b`; or Kaldi's `a b target`, or `a b 1`

    Which of the others it is follows from all lines together: the one that fits most of them.
    """
    file = Path(path)
    return _csv(file) if file.suffix.lower() == ".csv" else _words(file)


def check_both(name: str, same: Truth | Sequence[bool]) -> None:
    """Refuse pairs that are all genuine, or all impostors: they have no error rates."""
    answers = np.asarray(same, bool)
    if len(answers) and answers.all() != answers.any():
        return
    kind, other, right = ("genuine", "impostor", "1") if answers.all() else ("impostor", "genuine", "0")
    raise DataError(
        f"{name}: there are no {other} pairs in it, so there is no error rate: all {len(answers):,} are {kind}. "
        f"Add {other} pairs. Does {right} mean {'the same' if right == '1' else 'different'} in it, as it should?"
    )


def bare(name: str) -> str:
    """Return a name without the ending of an image or a recording."""
    stem, ending = os.path.splitext(name)
    return stem if ending.lower() in ENDINGS else name


def text_of(path: Path) -> str:
    """Read a text file; DataError if it is none."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: the text cannot be read ({error}).") from error


def _words(path: Path) -> Iterator[Listed | Bad]:
    lines = [
        (n, line.split("\t") if "\t" in line else line.split())
        for n, line in enumerate(text_of(path).splitlines(), 1)
    ]
    lines = [(n, [cell.strip() for cell in cells]) for n, cells in lines if cells]
    half, kind = 0, ""  # half: pairs of one kind in a fold
    if lines and len(lines[0][1]) in (1, 2):
        header, kind = lines.pop(0)[1], LFW
        if not all(cell.isdecimal() and len(cell) < 10 for cell in header):
            raise DataError(
                f"{path}, line 1: expected `folds pairs` or `pairs`, or a pair; got {' '.join(header)[:80]!r}."
            )
        half = int(header[-1])
        promised = 2 * half * (int(header[0]) if header[1:] else 1)
        if promised != len(lines):
            raise DataError(f"{path}: its first line promises {promised} pairs, but {len(lines)} lines follow.")
        half = half if header[1:] else 0
    kind = kind or _kind([cells for _, cells in lines])
    for k, (n, cells) in enumerate(lines):
        where = f"{path}, line {n}"
        if kind not in _fits(cells):
            yield Bad(where, f"expected {kind}.")
        elif kind == LFW:
            (name, one), (other, two) = cells[:2], (cells[0], cells[2]) if len(cells) == 3 else cells[2:]
            first, second = (f"{who}/{who}_{number.zfill(4)}" for who, number in ((name, one), (other, two)))
            yield Listed(where, first, second, len(cells) == 3, k // (2 * half) if half else None, (name, other))
        else:
            answer, *names = cells if kind == ANSWER_FIRST else (cells[2], *cells[:2])
            yield Listed(where, names[0], names[1], ANSWERS[answer.lower()])


def _fits(cells: list[str]) -> list[str]:
    """Return the layouts that a line could be in. One that could be LFW's alone too is taken for the other."""
    found = []
    if len(cells) == 3:
        found += [ANSWER_FIRST] if cells[0].lower() in ANSWERS else []
        found += [ANSWER_LAST] if cells[2].lower() in ANSWERS else []
    if (len(cells) == 3 and cells[1].isdecimal() and cells[2].isdecimal()) or (
        len(cells) == 4 and cells[1].isdecimal() and cells[3].isdecimal()
    ):
        found.append(LFW)
    return found


def _kind(lines: list[list[str]]) -> str:
    fits = [kind for cells in lines for kind in _fits(cells)]
    # In this order if several fit all lines: a list of LFW's with genuine pairs alone would be refused anyway.
    return (
        max((ANSWER_FIRST, ANSWER_LAST, LFW), key=fits.count)
        if fits
        else ", or ".join((LFW, ANSWER_FIRST, ANSWER_LAST))
    )


def _csv(path: Path) -> Iterator[Listed | Bad]:
    for where, row in read_table(path, FIRST, SECOND, SAME, optional=FOLD):
        if isinstance(row, str):
            yield Bad(where, row)
            continue
        first, second, same, fold = row
        if same.lower() not in ANSWERS:
            yield Bad(where, f"same must be 1 or 0, true or false; got {same[:40]!r}.")
        elif fold is not None and not (fold.isdecimal() and len(fold) < 10 and int(fold) < MOST_FOLDS):
            yield Bad(where, f"fold must be a whole number from 0; got {fold[:40]!r}.")
        else:
            yield Listed(where, first, second, ANSWERS[same.lower()], None if fold is None else int(fold))


def read_table(
    path: Path, *columns: tuple[str, ...], optional: tuple[str, ...]
) -> Iterator[tuple[str, list[Any] | str]]:
    """Yield the place of each line with its cells in the wanted columns (None: no optional one), or why not."""
    lines = text_of(path).splitlines()
    head = lines[0] if lines else ""
    rows = csv.reader(lines, delimiter=max(",;\t", key=head.count))
    try:
        header = [cell.strip().lower() for cell in next(rows, [])]
        at = [
            next((header.index(name) for name in names if name in header), None) for names in (*columns, optional)
        ]
        if None in at[:-1]:
            wanted = ", ".join(" or ".join(names) for names in columns)
            raise DataError(f"{path}: its first line must name the columns {wanted}; got {head[:200]!r}.")
        for cells in rows:
            where = f"{path}, line {rows.line_num}"
            if len(cells) == len(header):
                yield where, [None if i is None else cells[i].strip() for i in at]
            elif cells:
                yield where, f"{len(cells)} columns, but the first line has {len(header)}."
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.line_num}: {error}.") from error
