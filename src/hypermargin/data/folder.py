"""Images in a folder, one sub-folder per identity."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hypermargin import checks
from hypermargin.common.arrays import Array
from hypermargin.data.base import TEST, TRAIN, VALIDATION, Bad, Data, DataError, Rows, from_names
from hypermargin.data.images import (
    EXTENSIONS,
    Encoded,
    check_options,
    check_size,
    common_shape,
    leave_out,
    reason,
)

PARTS = {"train": TRAIN, "test": TEST, "val": VALIDATION, "valid": VALIDATION, "validation": VALIDATION}
CODES = {"0": TRAIN, "1": TEST, "2": VALIDATION}
LAYOUT = "Expected: one sub-folder per identity, as in alice/1.jpg, or such folders below train/ and test/."


class FileImages(Encoded):
    """Images in files."""

    def __init__(self, paths: Sequence[str], shape: tuple[int, ...] = ()) -> None:
        self.paths, self.shape = list(paths), shape

    def __len__(self) -> int:
        return len(self.paths)

    def raw(self, row: int) -> bytes:
        """Read the file's content."""
        try:
            with open(self.paths[row], "rb") as file:  # half the time of Path.read_bytes
                check_size(os.fstat(file.fileno()).st_size, self.paths[row])
                return file.read()
        except DataError:
            raise
        except (OSError, ValueError, MemoryError) as error:
            raise DataError(f"{self.paths[row]}: the file cannot be read ({reason(error)}).") from error

    def where(self, row: int) -> str:
        """Return the path."""
        return self.paths[row]


def read_folder(
    path: str | Path,
    *,
    size: int | None = None,
    color: str = "auto",
    on_bad: str = "error",
    levels: int | None = None,
) -> Data:
    """Read a folder: identities are the names of its sub-folders, images are found at any depth below them.

    Sub-folders train/ and test/, perhaps with val/, and nothing else, are the data's own split.
    `levels` says how many folders name an identity: 2 for alphabet/character/1.png. Without it it is one, and where
    that might put several into one, an error. `size` makes every image (size, size); `color` is "gray", "rgb" or
    "auto"; else as the first image. Hidden files and files that are no images by their name are ignored.
    """
    check_options(size, color, on_bad)
    if levels is not None:
        checks.count("levels", levels)
    root = Path(path)
    bad: list[Bad] = []
    paths: list[str] = []
    names: list[str] = []
    words: list[str] = []
    deeper: list[_Deeper] = []
    for word, top in _tops(root):
        for name, identity in _identities(top, levels or 1, bad, on_bad):
            found = _images_below(identity)
            if not found:
                leave_out(bad, on_bad, str(identity), "a label without images. Add images, or remove the folder.")
            elif levels is None:
                deeper.append(_look(name, identity, found))
            paths += found
            names += [name] * len(found)
            words += [word] * len(found)
    if not paths:
        loose = [file.name for file in _entries(root, folders=False) if _is_image(file.name)]
        what = f"images such as {loose[0]} lie in it without an identity" if loose else "there are no images in it"
        raise DataError(f"{root}: {what}. {LAYOUT}")
    _check_depth(root, deeper)
    return file_data(str(root), paths, names, words, size, color, on_bad, bad)


class _Deeper(NamedTuple):
    """An identity, the folders in its own that have images, and an image if all lie in these."""

    name: str
    folders: frozenset[str]
    example: str


def _look(name: str, identity: Path, found: list[str]) -> _Deeper:
    begin = len(str(identity)) + 1
    below = [path[begin:].partition(os.sep) for path in found]
    direct = not all(rest for _, _, rest in below)
    return _Deeper(name, frozenset(first for first, _, rest in below if rest), "" if direct else found[0])


def _check_depth(root: Path, deeper: list[_Deeper]) -> None:
    """Refuse to guess whether alphabet/character/1.png is of the alphabet or of the character."""
    example = next((one.example for one in deeper if one.example and len(one.folders) > 1), None)
    if example is None:
        return
    outer = {one.name for one in deeper}
    inner = {(one.name, folder) for one in deeper for folder in (one.folders if one.example else ("",))}
    raise DataError(
        f"{root}: images lie in folders of folders, as {os.path.relpath(example, root)} does. Which folder is the "
        f"identity? Set levels (--levels) to 1 for the first ({len(outer):,} identities), to 2 for the first two "
        f"together ({len(inner):,})."
    )


def _identities(top: Path, levels: int, bad: list[Bad], on_bad: str) -> list[tuple[str, Path]]:
    """List the folders `levels` below, named by the way to them; images on the way have no identity."""
    found = [(folder.name, folder) for folder in _entries(top, folders=True)]
    for _ in range(levels - 1):
        for _, folder in found:
            for file in _entries(folder, folders=False):
                if _is_image(file.name):
                    leave_out(bad, on_bad, str(file), f"it lies above the {levels} folders that name an identity.")
        found = [
            (f"{name}/{below.name}", below)
            for name, folder in found
            for below in _entries(folder, folders=True)
            if not (below.is_symlink() and top.resolve().is_relative_to(below.resolve()))  # it leads back up
        ]
    return found


def file_data(
    name: str,
    paths: list[str],
    names: list[str],
    words: list[str],
    size: int | None,
    color: str,
    on_bad: str,
    bad: list[Bad],
) -> Data:
    """Make data of image files with an identity's name and a part's word (all "": no split) for each."""
    shape, unreadable = common_shape(FileImages(paths), size, color, on_bad)
    kept = slice(len(unreadable), None)
    labels, classes = from_names(names[kept])
    parts = parts_of(np.array(words[kept]), name) if any(words) else None
    return Data(
        name,
        FileImages(paths[kept], shape),
        labels,
        classes,
        parts,
        open_set=unseen(labels, parts),
        augment=suits(shape),
        bad=bad + unreadable,
    )


def parts_of(words: Array, where: str) -> NDArray[np.int8]:
    """Return parts from words (train, test, val) or codes (0 train, 1 test, 2 validation)."""
    values, rows = np.unique(words, return_inverse=True)
    known = {**PARTS, **CODES}
    for value in values:
        if str(value).lower() not in known:
            raise DataError(
                f"{where}: split must be train, test or val, or 0 (train), 1 (test) or 2 (validation); "
                f"got {str(value)[:40]!r}."
            )
    return np.array([known[str(value).lower()] for value in values], dtype=np.int8)[rows.reshape(-1)]


def unseen(labels: Rows, parts: NDArray[np.int8] | None) -> bool:
    """Tell whether the identities of the test are not in the training; True without a split."""
    return parts is None or not np.intersect1d(labels[parts == TRAIN], labels[parts == TEST]).size


def suits(shape: tuple[int, ...]) -> str:
    """Choose the augmentation for samples of a shape: photographs may be mirrored, drawings and letters may not."""
    return "flip" if len(shape) == 3 else "none"


def _tops(root: Path) -> list[tuple[str, Path]]:
    tops = [(folder.name.lower(), folder) for folder in _entries(root, folders=True)]
    words = {word for word, _ in tops}
    other = sorted(folder.name for word, folder in tops if word not in PARTS)
    if other and "train" in words and len(words & PARTS.keys()) > 1:
        raise DataError(
            f"{root}: its folders {', '.join(sorted(words & PARTS.keys()))} look like a split, but there is also "
            f"{other[0]}{f' and {len(other) - 1} more' if other[1:] else ''}. Move that away, or name one folder."
        )
    if not words or other:
        return [("", root)]
    if not {"train", "test"} <= words:
        raise DataError(
            f"{root}: its folders {', '.join(sorted(words))} look like a split, which needs train/ and test/. "
            "Name one folder, or add the missing one."
        )
    return tops


def _entries(folder: Path, *, folders: bool) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            seen = [e for e in entries if not e.name.startswith(".")]
            return sorted(folder / e.name for e in seen if (e.is_dir() if folders else e.is_file()))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: the folder cannot be read ({error}).") from error


def _images_below(top: Path) -> list[str]:
    found: list[Path] = []
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        found += [file for file in _entries(folder, folders=False) if _is_image(file.name)]
        waiting += [
            below for below in _entries(folder, folders=True) if not below.is_symlink()
        ]  # it may lead back up
    return sorted(map(str, found))


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in EXTENSIONS
