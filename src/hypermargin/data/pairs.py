"""Pairs of images to verify, and lists of images: insightface's .bin, LFW's pairs.txt, and CSV."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hypermargin.data import plainpickle
from hypermargin.data.base import Bad, Data, DataError, Rows, Source
from hypermargin.data.folder import FileImages, file_data
from hypermargin.data.images import EXTENSIONS, Encoded, check_options, common_shape, leave_out

FIRST, SECOND = ("a", "first"), ("b", "second")
SAME, FOLD = ("same", "issame", "label"), ("fold",)
PATH, LABEL, SPLIT = ("path", "file", "image"), ("label", "identity", "class"), ("split",)
YES_NO = {"1": True, "true": True, "yes": True, "same": True} | {"0": False, "false": False, "no": False}
MOST_FOLDS = 10**6
LONGEST_LABEL = 256


@dataclass(frozen=True)
class Pairs:
    """Pairs of images: same[k] says whether first[k] and second[k] are of one identity.

    samples   every distinct image once
    fold      (P,) the fold each pair belongs to, where the data say so
    bad       what on_bad="skip" left out
    """

    name: str
    samples: Source
    first: Rows
    second: Rows
    same: NDArray[np.bool_]
    fold: Rows | None = None
    bad: list[Bad] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.same)


class MemoryImages(Encoded):
    """Encoded images in memory, out of one file."""

    def __init__(self, path: str, encoded: list[bytes], places: list[int], shape: tuple[int, ...] = ()) -> None:
        self.path, self.encoded, self.places, self.shape = path, encoded, places, shape

    def __len__(self) -> int:
        return len(self.encoded)

    def raw(self, row: int) -> bytes:
        """Return the encoded image."""
        return self.encoded[row]

    def where(self, row: int) -> str:
        """Return the file and the number of the image in it."""
        return f"{self.path}, image {self.places[row]}"


class _Pair(NamedTuple):
    where: str
    first: str
    second: str
    same: bool
    fold: int | None


def read_bin(path: str | Path, *, size: int | None = None, color: str = "auto", on_bad: str = "error") -> Pairs:
    """Read insightface's verification sets: a pickle of (encoded images, same); images 2k and 2k+1 are pair k."""
    check_options(size, color, on_bad)
    try:
        loaded = plainpickle.loads(Path(path).read_bytes(), str(path))
    except OSError as error:
        raise DataError(f"{path}: the file cannot be read ({error}).") from error
    if not (isinstance(loaded, tuple | list) and len(loaded) == 2 and all(isinstance(x, list) for x in loaded)):
        raise DataError(
            f"{path}: expected a pickle of two lists: encoded images, and whether each pair is the same."
        )
    images, same = loaded
    if not all(isinstance(s, bool | int) and s in (0, 1) for s in same) or len(images) != 2 * len(same):
        raise DataError(
            f"{path}: expected two images a pair; got {len(images)} images and {len(same)} answers (bool)."
        )
    rows: dict[bytes, int] = {}
    places: list[int] = []
    bad: list[Bad] = []
    pairs: list[tuple[int, int, bool]] = []
    for k, answer in enumerate(same):
        one, two = images[2 * k : 2 * k + 2]
        if not (isinstance(one, bytes) and isinstance(two, bytes)):
            leave_out(
                bad, on_bad, f"{path}, pair {k}", f"not bytes but {type(one).__name__}, {type(two).__name__}."
            )
            continue
        for place, image in ((2 * k, one), (2 * k + 1, two)):
            if image not in rows:
                rows[image] = len(rows)
                places.append(place)
        pairs.append((rows[one], rows[two], bool(answer)))
    samples = MemoryImages(str(path), list(rows), places)
    shape, unreadable = common_shape(samples, size, color, on_bad) if rows else ((), [])
    k = len(unreadable)
    samples = MemoryImages(str(path), samples.encoded[k:], places[k:], shape)
    return _pairs(str(path), samples, pairs, None, k, bad + unreadable)


def read_pairs(
    path: str | Path,
    images: str | Path | None = None,
    *,
    size: int | None = None,
    color: str = "auto",
    on_bad: str = "error",
) -> Pairs:
    """Read pairs named in a text file; images are looked for below `images`, or else beside the file.

    .csv    a header, then the columns a, b, same (or first, second, issame or label) and perhaps fold
    other   LFW's pairs.txt: `folds pairs` or `pairs`, then `name 1 2` or `name 1 other 2`, for name/name_0001.jpg
    """
    check_options(size, color, on_bad)
    file = Path(path)
    folder = Path(images) if images is not None else file.parent
    bad: list[Bad] = []
    rows: dict[str, int] = {}
    pairs: list[tuple[int, int, bool]] = []
    folds: list[int | None] = []
    for pair in _csv_pairs(file, folder) if file.suffix.lower() == ".csv" else _lfw_pairs(file, folder):
        if isinstance(pair, Bad):
            leave_out(bad, on_bad, *pair)
            continue
        missing = [image for image in (pair.first, pair.second) if not os.path.isfile(image)]
        if missing:
            leave_out(bad, on_bad, pair.where, f"there is no image {missing[0][:500]}.")
            continue
        one, two = (rows.setdefault(image, len(rows)) for image in (pair.first, pair.second))
        pairs.append((one, two, pair.same))
        folds.append(pair.fold)
    shape, unreadable = common_shape(FileImages(list(rows)), size, color, on_bad) if rows else ((), [])
    fold = None if None in folds else np.array(folds, dtype=np.int64)
    samples = FileImages(list(rows)[len(unreadable) :], shape)
    return _pairs(str(file), samples, pairs, fold, len(unreadable), bad + unreadable)


def read_csv(
    path: str | Path,
    images: str | Path | None = None,
    *,
    size: int | None = None,
    color: str = "auto",
    on_bad: str = "error",
) -> Data:
    """Read a list of image files: columns path (file, image), label (identity, class), perhaps split.

    Paths are relative to `images`, or else to the list.
    """
    check_options(size, color, on_bad)
    folder = Path(images) if images is not None else Path(path).parent
    bad: list[Bad] = []
    paths: list[str] = []
    names: list[str] = []
    words: list[str] = []
    for where, row in _table(Path(path), PATH, LABEL, optional=SPLIT):
        if isinstance(row, str):
            leave_out(bad, on_bad, where, row)
            continue
        file, label, word = row
        image = os.path.join(folder, file)
        if not label or len(label) > LONGEST_LABEL:
            leave_out(bad, on_bad, where, f"a label of {len(label)} characters; 1 to {LONGEST_LABEL} are allowed.")
        elif not os.path.isfile(image):
            leave_out(bad, on_bad, where, f"there is no image {image[:500]}.")
        else:
            paths.append(image)
            names.append(label)
            words.append(word or "")
    if not paths:
        raise DataError(f"{path}: there are no samples in it.")
    return file_data(str(path), paths, names, words, size, color, on_bad, bad)


def _pairs(
    name: str,
    samples: Encoded,
    pairs: list[tuple[int, int, bool]],
    fold: Rows | None,
    dropped: int,
    bad: list[Bad],
) -> Pairs:
    """Make pairs without those that use one of the first `dropped` images."""
    table = np.array(pairs, dtype=np.int64).reshape(-1, 3)
    keep = (table[:, :2] >= dropped).all(1)
    if not keep.any():
        raise DataError(f"{name}: there are no pairs in it.")
    first, second, same = table[keep].T
    fold = None if fold is None else fold[keep]
    return Pairs(name, samples, first - dropped, second - dropped, same.astype(bool), fold, bad)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: the text cannot be read ({error}).") from error


def _lfw_pairs(path: Path, folder: Path) -> Iterator[_Pair | Bad]:
    lines = [
        (n, line.split("\t") if "\t" in line else line.split())
        for n, line in enumerate(_text(path).splitlines(), 1)
    ]
    lines = [(n, [cell.strip() for cell in cells]) for n, cells in lines if cells]
    half = 0  # pairs of one kind in a fold
    if lines and len(lines[0][1]) in (1, 2):
        header = lines.pop(0)[1]
        if not all(cell.isdecimal() and len(cell) < 10 for cell in header):
            raise DataError(
                f"{path}, line 1: expected `folds pairs` or `pairs`, or a pair; got {' '.join(header)[:80]!r}."
            )
        half = int(header[-1])
        promised = 2 * half * (int(header[0]) if header[1:] else 1)
        if promised != len(lines):
            raise DataError(f"{path}: its first line promises {promised} pairs, but {len(lines)} lines follow.")
        half = half if header[1:] else 0
    for k, (n, cells) in enumerate(lines):
        where = f"{path}, line {n}"
        same = len(cells) == 3
        one, two = (cells[:2], [cells[0], cells[-1]]) if same else (cells[:2], cells[2:])
        if len(cells) not in (3, 4) or not (one[1].isdecimal() and two[1].isdecimal()):
            yield Bad(where, "expected `name 1 2` or `name 1 other 2`.")
        else:
            yield _Pair(
                where, _lfw_image(folder, *one), _lfw_image(folder, *two), same, k // (2 * half) if half else None
            )


def _lfw_image(folder: Path, name: str, number: str) -> str:
    stem = os.path.join(folder, name, f"{name}_{number.zfill(4)}")
    found = (stem + extension for extension in EXTENSIONS if os.path.isfile(stem + extension))
    return next(found, stem + ".jpg")


def _csv_pairs(path: Path, folder: Path) -> Iterator[_Pair | Bad]:
    for where, row in _table(path, FIRST, SECOND, SAME, optional=FOLD):
        if isinstance(row, str):
            yield Bad(where, row)
            continue
        first, second, same, fold = row
        if same.lower() not in YES_NO:
            yield Bad(where, f"same must be 1 or 0, true or false; got {same[:40]!r}.")
        elif fold is not None and not (fold.isdecimal() and len(fold) < 10 and int(fold) < MOST_FOLDS):
            yield Bad(where, f"fold must be a whole number from 0; got {fold[:40]!r}.")
        else:
            one, two = os.path.join(folder, first), os.path.join(folder, second)
            yield _Pair(where, one, two, YES_NO[same.lower()], None if fold is None else int(fold))


def _table(
    path: Path, *columns: tuple[str, ...], optional: tuple[str, ...]
) -> Iterator[tuple[str, list[Any] | str]]:
    """Yield the place of each line with its cells in the wanted columns (None: no optional one), or why not."""
    lines = _text(path).splitlines()
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
