"""What can be trained on: built-in data, real formats, splits, sampling, loading.

`open_data` finds the reader from a name or a path; each reader is also a function of its own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from hypermargin import checks
from hypermargin.common.arrays import Array
from hypermargin.common.needs import not_installed
from hypermargin.common.text import Say
from hypermargin.data.arrays import from_parts, read_npz
from hypermargin.data.augment import Augment
from hypermargin.data.base import TEST, TRAIN, UNUSED, VALIDATION, Bad, Data, DataError, Source
from hypermargin.data.cifar import find_cifar, is_cifar, read_cifar
from hypermargin.data.drawn import ENDING, read_drawn
from hypermargin.data.folder import read_folder
from hypermargin.data.glyphs import glyphs
from hypermargin.data.idx import find_fashion_mnist, find_mnist, read_idx
from hypermargin.data.loader import Feed, Scaling, decode_once
from hypermargin.data.pairs import Pairs, read_bin, read_csv, read_pairs
from hypermargin.data.recordio import read_records
from hypermargin.data.sampling import batches
from hypermargin.data.scripts import SCRIPTS, glyphs_named
from hypermargin.data.split import Split, at_most, split

BUILT_IN = ("glyphs", "digits", "mnist", "fashion-mnist", "cifar10")

__all__ = [
    "BUILT_IN", "TEST", "TRAIN", "UNUSED", "VALIDATION",
    "Array", "Augment", "Bad", "Data", "DataError", "Feed", "Pairs", "Scaling", "Source", "Split",
    "at_most", "batches", "decode_once", "digits", "find_fashion_mnist", "from_arrays", "glyphs", "open_data",
    "open_pairs", "read_bin", "read_cifar", "read_csv", "read_drawn", "read_folder", "read_idx", "read_npz",
    "read_pairs", "read_records", "split",
]  # fmt: skip


def open_data(
    what: str | os.PathLike[str],
    *,
    size: int | None = None,
    color: str = "auto",
    samples_key: str | None = None,
    labels_key: str | None = None,
    levels: int | None = None,
    on_bad: str = "error",
    say: Say = lambda _: None,
) -> Data:
    """Open the data set of that name, or in that file or folder.

    - glyphs, digits, mnist, fashion-mnist, cifar10: built in or found on this machine
    - glyphs:han+hangul, whole scripts in all installed typefaces; glyphs:FOLDER, the fonts of a folder
    - a folder with one folder per identity, of IDX files, of CIFAR's batches, or with a .rec file; a .rec file
    - a .npz file of images or embeddings with labels; a .csv list of paths and labels; a .glyphs file

    `size` and `color` (auto, gray, rgb) are for images in files; the keys for .npz files; `levels`, how many
    folders name an identity, for folders of images.
    """
    name = os.fspath(what)
    images: dict[str, Any] = {"size": size, "color": color, "on_bad": on_bad}
    checks.one_of("color", color, ("auto", "gray", "rgb"))
    checks.one_of("on_bad", on_bad, ("error", "skip"))
    if name == "digits":
        return digits()
    if name == "fashion-mnist":
        return read_idx(find_fashion_mnist())
    if name == "glyphs" or name.startswith("glyphs:"):
        scripts, folder = glyphs_named(name)
        if folder and not scripts and not Path(folder).is_dir():
            raise DataError(
                f"{name}: {folder!r} is neither a folder of fonts nor names of scripts, like han+hangul. Scripts: "
                f"{', '.join(SCRIPTS)}.{checks.near(folder, SCRIPTS)}"
            )
        return glyphs(Path(folder) if folder else None, scripts=scripts or None, size=size, on_bad=on_bad, say=say)
    if name == "mnist":
        return read_idx(find_mnist())
    if name == "cifar10":
        return read_cifar(find_cifar())
    path = Path(name)
    if path.is_dir():
        names = [entry.name for entry in path.iterdir()]
        if any(Path(n).suffix == ".rec" for n in names):
            return read_records(path, **images)
        if any("-ubyte" in n for n in names):
            return read_idx(path)
        if is_cifar(path):
            return read_cifar(path)
        return read_folder(path, levels=levels, **images)
    if not path.exists():
        raise DataError(
            f"data must be one of {', '.join(BUILT_IN)}, or a file or folder; {name!r} is neither."
            f"{checks.near(name, BUILT_IN)}"
        )
    if path.suffix == ".npz":
        return read_npz(path, samples_key=samples_key, labels_key=labels_key, on_bad=on_bad)
    if path.suffix == ENDING:
        return read_drawn(path).data()
    if path.suffix == ".rec":
        return read_records(path, **images)
    if path.suffix == ".csv":
        return read_csv(path, **images)
    raise DataError(
        f"{path}: a file of this kind cannot be trained on. Known are .npz (images or embeddings), .rec "
        "(insightface) and .csv (paths and labels), and folders of images, of IDX files or of a .rec file."
    )


def open_pairs(path: str | os.PathLike[str], images: Path | None = None, *, on_bad: str = "error") -> Pairs:
    """Open pairs to verify: insightface's .bin, a .csv of pairs, or LFW's pairs.txt beside a folder of images."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"pairs: there is no file {path}. If it has moved, give its new place.")
    return read_bin(path, on_bad=on_bad) if path.suffix == ".bin" else read_pairs(path, images, on_bad=on_bad)


def digits() -> Data:
    """Load scikit-learn's 1,797 digits of 8×8 pixels, a closed set; every fifth sample is for the test."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise DataError(not_installed("data 'digits' needs", "scikit-learn")) from None
    pixels, labels = load_digits(return_X_y=True)
    images = np.round(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    parts = np.where(np.arange(len(labels)) % 5 == 4, TEST, TRAIN).astype(np.int8)
    names = tuple(str(k) for k in range(10))
    return Data("digits", images, labels.astype(np.int64), names, parts, open_set=False, augment="shift=0.1")


def from_arrays(samples: Array, labels: Array, *, name: str = "arrays", open_set: bool = True) -> Data:
    """Use your own arrays: images (N, H, W[, 3]) or vectors (N, d), and a label of any kind for each."""
    return from_parts(name, np.asarray(samples), np.asarray(labels), open_set=open_set)
