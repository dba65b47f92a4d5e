"""Anybody's embeddings by name, scored on a list of pairs: the protocol of LFW, VoxCeleb, insightface's .bin."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hypermargin import checks
from hypermargin.common.arrays import Array, Counts, Floats, Truth, Values, to_numpy
from hypermargin.data.base import Bad, DataError
from hypermargin.data.pairlists import Listed, bare, check_both, read_list
from hypermargin.data.pairs import bin_content
from hypermargin.evaluate.files import Scored

METRICS = "cosine", "euclidean"
BLOCK = 2**16  # pairs at a time
MISSING, SEVERAL = -1, -2
Parts = tuple[str, ...]


def score_named(
    embeddings: Values, names: Sequence[str] | Array, pairs: str | os.PathLike[str], *, metric: str = "cosine"
) -> Scored:
    """Score the pairs that a file lists, of (N, d) embeddings with (N,) names; `from_scores` and `kfold` judge.

    - pairs: LFW's pairs.txt, `1 a b`, `a b target`, a .csv; see `hypermargin.data.pairlists.read_list`.
      insightface's .bin names nothing: there rows 2k and 2k+1 of the embeddings are pair k
    - metric: "cosine"; or "euclidean", minus the distance of the embeddings as they are: higher is more alike

    A name stands for the embedding of the same name; or else for the one whose path ends in it, or that it ends in.
    Endings of images and recordings may be missing on either side. Where several could be meant, that is an error.
    """
    checks.one_of("metric", metric, METRICS)
    x = to_numpy(embeddings)
    if x.ndim != 2:
        raise ValueError(f"embeddings must have shape (rows, dim); got {x.shape}.")
    listed: list[Listed] = []
    if Path(pairs).suffix == ".bin":
        rows, same = _rows_of_bin(pairs, len(x))
        check_both(os.fspath(pairs), same)
    else:
        if len(names) != len(x):
            raise ValueError(f"names must be one per row of the embeddings, {len(x)}; got {len(names)}.")
        listed = good_pairs(pairs)
        rows, same = _Names(names, listed).rows_of(listed, os.fspath(pairs)), np.array([p.same for p in listed])
    _check(x, np.unique(rows), list(names), metric)
    folds = [pair.fold for pair in listed]
    fold = None if not folds or None in folds else np.array(folds)
    return Scored(_scores(x, rows, metric), same, identities(listed), fold)


def good_pairs(pairs: str | os.PathLike[str]) -> list[Listed]:
    """Read a list of which every line must be a pair, and both kinds be there."""
    found = []
    for pair in read_list(pairs):
        if isinstance(pair, Bad):
            raise DataError(str(pair))
        found.append(pair)
    if not found:
        raise DataError(f"{pairs}: there are no pairs in it.")
    check_both(os.fspath(pairs), [pair.same for pair in found])
    return found


def identities(listed: Sequence[Listed]) -> tuple[Array, Array] | None:
    """Return who each pair is of, where the list says so, and says so without a contradiction."""
    people = [pair.people for pair in listed if pair.people and (len(set(pair.people)) == 1) == pair.same]
    if not people or len(people) < len(listed):
        return None
    first, second = np.array(people, dtype=str).T
    return first, second


class _Names:
    """The rows of names, found by what they end in."""

    def __init__(self, names: Sequence[str] | Array, listed: Sequence[Listed]) -> None:
        self.names = [str(name) for name in np.asarray(names).tolist()]
        self.exact: dict[str, int] = {}
        self.ends: dict[Parts, int] = {}  # what names end in, of as many parts as the list has
        self.whole: dict[Parts, int] = {}
        lengths = {name.count("/") + 1 for pair in listed for name in (pair.first, pair.second)} | {1}
        for row, name in enumerate(self.names):
            _add(self.exact, name, row)
            for parts in _forms(name):
                _add(self.whole, parts, row)
                for length in lengths:
                    if length <= len(parts):
                        _add(self.ends, parts[-length:], row)

    def find(self, pair: Listed, name: str) -> int:
        """Return the row of a name in a pair; MISSING or SEVERAL."""
        if name in self.exact:
            return self.exact[name]
        forms = _forms(name)
        ways = [(self.ends, form) for form in forms]
        ways += [(self.whole, form[-n:]) for n in range(len(forms[0]) - 1, 0, -1) for form in forms]
        if pair.people is not None:  # LFW's Name/Name_0001, whose last part says it all
            ways += [(self.ends, form[-1:]) for form in forms]
        return next((known[parts] for known, parts in ways if parts in known), MISSING)

    def rows_of(self, listed: Sequence[Listed], pairs: str) -> Counts:
        """Return (P, 2) rows; DataError, with how many and how they look, for names that have none of their own."""
        rows: dict[str, int] = {}
        lines: dict[str, str] = {}
        for pair in listed:
            for name in (pair.first, pair.second):
                if name not in rows:
                    rows[name] = self.find(pair, name)
                    lines[name] = pair.where.removeprefix(f"{pairs}, ")
        look = f"names of embeddings look like {' and '.join(map(repr, self.names[:2]))}"
        for kind, what in (
            (MISSING, f"are not among those of the {len(self.names):,} embeddings"),
            (SEVERAL, "could each be several of the embeddings"),
        ):
            wrong = [name for name, row in rows.items() if row == kind]
            if wrong:
                raise DataError(
                    f"{pairs}: {len(wrong):,} of its {len(rows):,} names {what}. The first is {wrong[0]!r} "
                    f"({lines[wrong[0]]}); {look}."
                )
        taken: dict[int, str] = {}
        for name, row in rows.items():
            other = taken.setdefault(row, name)
            if _forms(other)[-1] != _forms(name)[-1]:
                raise DataError(
                    f"{pairs}: {other!r} and {name!r} would both be the embedding {self.names[row]!r}. Name the "
                    "embeddings with their folders, as the list does."
                )
        return np.array([[rows[pair.first], rows[pair.second]] for pair in listed])


def _forms(name: str) -> tuple[Parts, Parts]:
    """Return the parts of a path, with and without the ending of the last."""
    parts = tuple(part for part in name.replace("\\", "/").split("/") if part not in ("", ".")) or (name,)
    return parts, (*parts[:-1], bare(parts[-1]))


def _add(known: dict[Any, int], key: object, row: int) -> None:
    known[key] = row if known.get(key, row) == row else SEVERAL


def _rows_of_bin(pairs: str | os.PathLike[str], count: int) -> tuple[Counts, Truth]:
    images, same = bin_content(Path(pairs))
    if len(images) != count:
        raise DataError(
            f"{pairs}: its {len(images):,} images have no names, so the embeddings must be theirs, in that order; "
            f"got {count:,} embeddings."
        )
    return np.arange(count).reshape(-1, 2), np.array(same, bool)


def _check(x: Array, rows: Counts, names: list[str], metric: str) -> None:
    for row in rows.tolist():
        v = x[row]
        if not np.isfinite(v).all() or (metric == "cosine" and not v.any()):
            raise ValueError(
                f"embeddings must be finite, and not zero, which has no direction; got {v[:3].tolist()}… at row "
                f"{row}{f' ({names[row]})' if names else ''}."
            )


def _scores(x: Array, rows: Counts, metric: str) -> Floats:
    found = []
    for block in np.array_split(rows, range(BLOCK, len(rows), BLOCK)):
        a, b = (x[block[:, side]].astype(np.float64) for side in (0, 1))
        if metric == "euclidean":
            found.append(-np.linalg.norm(a - b, axis=1))
        else:
            found.append((a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)))
    return np.concatenate(found)
