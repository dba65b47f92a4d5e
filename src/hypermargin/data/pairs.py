"""Pairs of images to verify: insightface's .bin, and lists of names; and lists of images."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hypermargin.data import plainpickle
from hypermargin.data.base import Bad, Data, DataError, Rows, Source
from hypermargin.data.folder import FileImages, file_data
from hypermargin.data.images import EXTENSIONS, Encoded, check_options, common_shape, leave_out
from hypermargin.data.pairlists import read_list, read_table
from hypermargin.data.plainarrays import BOOL, UINT8, PlainArray

PATH, LABEL, SPLIT = ("path", "file", "image"), ("label", "identity", "class"), ("split",)
LONGEST_LABEL = 256


@dataclass(frozen=True)
class Pairs:
    """Pairs of images: same[k] says whether first[k] and second[k] are of one identity.

    samples   every distinct image once
    fold      (P,) the fold each pair belongs to, where the data say so
    bad       what on_bad="skip" left out
    people    (P, 2) who each pair is of, where the data say so: LFW's do
    names     the name of each sample in the list; None where the images have none
    """

    name: str
    samples: Source
    first: Rows
    second: Rows
    same: NDArray[np.bool_]
    fold: Rows | None = None
    bad: list[Bad] = field(default_factory=list)
    people: NDArray[np.str_] | None = None
    names: tuple[str, ...] | None = None

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


def read_bin(path: str | Path, *, size: int | None = None, color: str = "auto", on_bad: str = "error") -> Pairs:
    """Read insightface's verification sets: a pickle of (encoded images, same); images 2k and 2k+1 are pair k."""
    check_options(size, color, on_bad)
    images, same = bin_content(path)
    rows: dict[bytes, int] = {}
    places: list[int] = []
    bad: list[Bad] = []
    pairs: list[tuple[int, int, bool]] = []
    for k, answer in enumerate(same):
        one, two = map(_encoded, images[2 * k : 2 * k + 2])
        if not (isinstance(one, bytes) and isinstance(two, bytes)):
            leave_out(
                bad, on_bad, f"{path}, pair {k}", f"not bytes but {type(one).__name__}, {type(two).__name__}."
            )
            continue
        for place, image in ((2 * k, one), (2 * k + 1, two)):
            if image not in rows:
                rows[image] = len(rows)
                places.append(place)
        pairs.append((rows[one], rows[two], answer))
    samples = MemoryImages(str(path), list(rows), places)
    shape, unreadable = common_shape(samples, size, color, on_bad) if rows else ((), [])
    k = len(unreadable)
    samples = MemoryImages(str(path), samples.encoded[k:], places[k:], shape)
    return _pairs(Pairs(str(path), samples, *_columns(pairs), bad=bad + unreadable), k)


def bin_content(path: str | Path) -> tuple[list[object], list[bool]]:
    """Return what lies in the two lists of an insightface .bin: images of any kind, and the answers."""
    try:
        loaded = plainpickle.loads(Path(path).read_bytes(), str(path))
    except OSError as error:
        raise DataError(f"{path}: the file cannot be read ({error}).") from error
    if isinstance(loaded, tuple | list) and len(loaded) == 2 and _is_bools(loaded[1]):
        loaded = (loaded[0], [value == 1 for value in loaded[1].raw])
    if not (isinstance(loaded, tuple | list) and len(loaded) == 2 and all(isinstance(x, list) for x in loaded)):
        raise DataError(
            f"{path}: expected a pickle of two lists: encoded images, and whether each pair is the same."
        )
    images, same = loaded
    if not all(isinstance(s, bool | int) and s in (0, 1) for s in same) or len(images) != 2 * len(same):
        raise DataError(
            f"{path}: expected two images a pair; got {len(images)} images and {len(same)} answers (bool)."
        )
    return images, [bool(answer) for answer in same]


def _is_bools(value: object) -> bool:
    return isinstance(value, PlainArray) and value.dtype == BOOL and value.is_column


def _encoded(image: object) -> object:
    """Return the bytes of an image that cv2.imencode made; anything else as it is."""
    if isinstance(image, PlainArray) and image.dtype == UINT8 and image.is_column:
        return image.raw
    return image


def read_pairs(
    path: str | Path,
    images: str | Path | None = None,
    *,
    size: int | None = None,
    color: str = "auto",
    on_bad: str = "error",
) -> Pairs:
    """Read pairs that a text file names, see `read_list`; images are below `images`, or else beside the file.

    A name may leave out the ending of its image.
    """
    check_options(size, color, on_bad)
    file = Path(path)
    folder = Path(images) if images is not None else file.parent
    bad: list[Bad] = []
    rows: dict[str, int] = {}
    names: list[str] = []
    pairs: list[tuple[int, int, bool]] = []
    folds: list[int | None] = []
    people: list[tuple[str, str] | None] = []
    for pair in read_list(file):
        if isinstance(pair, Bad):
            leave_out(bad, on_bad, *pair)
            continue
        found = [_image(folder, name) for name in (pair.first, pair.second)]
        missing = [image for image in found if not os.path.isfile(image)]
        if missing:
            leave_out(bad, on_bad, pair.where, f"there is no image {missing[0][:500]}.")
            continue
        for image, name in zip(found, (pair.first, pair.second), strict=True):
            if image not in rows:
                rows[image] = len(rows)
                names.append(name)
        pairs.append((rows[found[0]], rows[found[1]], pair.same))
        folds.append(pair.fold)
        people.append(pair.people)
    shape, unreadable = common_shape(FileImages(list(rows)), size, color, on_bad) if rows else ((), [])
    k = len(unreadable)
    whole = Pairs(
        str(file),
        FileImages(list(rows)[k:], shape),
        *_columns(pairs),
        None if None in folds else np.array(folds, dtype=np.int64),
        bad + unreadable,
        None if None in people else np.array(people, dtype=str).reshape(-1, 2),
        tuple(names[k:]),
    )
    return _pairs(whole, k)


def _image(folder: Path, name: str) -> str:
    """Return the file of a name, which may lack an ending; where there is none, the one that was looked for."""
    path = os.path.join(folder, name)
    if os.path.isfile(path):
        return path
    found = (path + extension for extension in EXTENSIONS if os.path.isfile(path + extension))
    return next(found, path if os.path.splitext(path)[1] else path + ".jpg")


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
    for where, row in read_table(Path(path), PATH, LABEL, optional=SPLIT):
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


def _columns(pairs: list[tuple[int, int, bool]]) -> tuple[Rows, Rows, NDArray[np.bool_]]:
    first, second, same = np.array(pairs, dtype=np.int64).reshape(-1, 3).T
    return first, second, same.astype(bool)


def _pairs(whole: Pairs, dropped: int) -> Pairs:
    """Return the pairs without those that use one of `dropped` images which were the first."""
    keep = (whole.first >= dropped) & (whole.second >= dropped)
    if not keep.any():
        raise DataError(f"{whole.name}: there are no pairs in it.")
    return dataclasses.replace(
        whole,
        first=whole.first[keep] - dropped,
        second=whole.second[keep] - dropped,
        same=whole.same[keep],
        fold=None if whole.fold is None else whole.fold[keep],
        people=None if whole.people is None else whole.people[keep],
    )
