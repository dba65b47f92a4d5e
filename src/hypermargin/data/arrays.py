"""Arrays in a .npz file, checked before memory is taken for them."""

from __future__ import annotations

import math
import sys
import zipfile
from gzip import GzipFile
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from hypermargin import checks
from hypermargin.common.arrays import Array
from hypermargin.data.base import UNREADABLE, Bad, Data, DataError
from hypermargin.data.folder import parts_of, suits, unseen
from hypermargin.data.images import leave_out, reason

SAMPLES = "images", "samples", "features", "embeddings", "x", "X", "data"
LABELS = "labels", "label", "y", "identity", "target"
MEMORY_LIMIT = 32 * 2**30
PIECE = 2**24


def read_npz(
    path: str | Path,
    *,
    samples_key: str | None = None,
    labels_key: str | None = None,
    on_bad: str = "error",
    memory_limit: int = MEMORY_LIMIT,
) -> Data:
    """Read samples and labels from a .npz file.

    samples   images (N, H, W[, 1 or 3]) or (N, 1 or 3, H, W), uint8 or numbers; or vectors (N, d)
    labels    (N,) integers or strings
    split     optional, (N,): 0 or train, 1 or test, 2 or val
    classes   optional: the name of label i

    The keys are found by their usual names, or given. Rows with NaN or inf are bad. No array may be larger than
    `memory_limit` bytes.
    """
    checks.one_of("on_bad", on_bad, UNREADABLE)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            found = _Archive(archive, entries, str(path), memory_limit)
            samples = found.read(found.key(samples_key, SAMPLES, "samples"))
            labels = found.read(found.key(labels_key, LABELS, "labels"))
            split = found.read("split") if "split" in entries else None
            classes = found.read("classes") if "classes" in entries else None
    except DataError:
        raise
    except Exception as error:  # zipfile, zlib and numpy's header parser raise many kinds on damaged files
        raise DataError(f"{path}: not a readable .npz file ({reason(error)}).") from error
    return from_parts(str(path), samples, labels, split=split, classes=classes, on_bad=on_bad)


def from_parts(
    name: str,
    samples: Array,
    labels: Array,
    *,
    split: Array | None = None,
    classes: Array | None = None,
    open_set: bool = True,
    on_bad: str = "error",
) -> Data:
    """Make data of arrays in memory, as `read_npz` describes them. A `split` decides about `open_set` itself."""
    samples, labels = as_samples(np.asarray(samples), name), np.asarray(labels)
    for key, array in (("labels", labels), ("split", split)):
        if array is not None and array.shape != samples.shape[:1]:
            hint = " One-hot rows become ids with argmax(1)." if array.ndim == 2 else ""
            raise DataError(
                f"{name}: {key} must have shape ({len(samples)},), one per sample; got {array.shape}.{hint}"
            )
    if split is not None and split.dtype.kind not in "iuU":
        raise DataError(f"{name}: split must be integers or strings; got {split.dtype}.")
    if labels.dtype.kind not in "iuUS":
        raise DataError(
            f"{name}: labels must be integers or strings; got {labels.dtype}. Convert with astype(int)."
        )
    bad: list[Bad] = []
    if samples.dtype == np.float32:
        fine = np.isfinite(samples.reshape(len(samples), -1).sum(1, dtype=np.float64))
        for row in np.flatnonzero(~fine):
            leave_out(bad, on_bad, f"{name}, sample {row}", "it holds NaN or inf.")
        if bad:
            samples, labels = samples[fine], labels[fine]
            split = None if split is None else split[fine]
    values, ids = np.unique(labels, return_inverse=True)
    ids = ids.reshape(-1).astype(np.int64)
    parts = None if split is None else parts_of(split, name)
    names = tuple(_names(values, classes, name))
    shape = samples.shape[1:]
    if parts is not None:
        open_set = unseen(ids, parts)
    return Data(name, samples, ids, names, parts, open_set=open_set, augment=suits(shape), bad=bad)


def as_samples(array: Array, where: str) -> Array:
    """Return samples as (N, H, W), (N, H, W, 3) or (N, d), in uint8 (images only) or float32."""
    if array.size == 0:
        raise DataError(f"{where}: there are no samples; got shape {array.shape}.")
    if array.dtype.kind not in "uifb":
        raise DataError(f"{where}: samples must be numbers; got {array.dtype}.")
    if array.ndim == 4:
        first, last = array.shape[1] in (1, 3), array.shape[3] in (1, 3)
        if first == last:
            why = "both look like channels" if first else "neither is 1 or 3 channels"
            raise DataError(
                f"{where}: images must have shape (N, H, W, 3) or (N, 3, H, W); got {array.shape}, where {why}."
            )
        array = np.moveaxis(array, 1, 3) if first else array
        array = array[..., 0] if array.shape[3] == 1 else array
    elif array.ndim not in (2, 3):
        raise DataError(f"{where}: samples must be images (N, H, W[, 3]) or vectors (N, d); got {array.shape}.")
    if array.dtype == np.uint8 and array.ndim > 2:
        return np.ascontiguousarray(array)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found as inf
        return np.ascontiguousarray(array, dtype=np.float32)


def read_exactly(stream: IO[bytes] | GzipFile, size: int) -> Array:
    """Read `size` bytes in pieces: a false size then costs address space, and no memory until bytes really come."""
    out = np.empty(size, np.uint8)
    done = 0
    while done < size:
        piece = stream.read(min(size - done, PIECE))
        if not piece:
            raise EOFError(f"it ends after {done} of {size} bytes")
        out[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
        done += len(piece)
    return out


class _Archive(NamedTuple):
    archive: zipfile.ZipFile
    entries: dict[str, zipfile.ZipInfo]
    path: str
    memory_limit: int

    def key(self, given: str | None, usual: tuple[str, ...], what: str) -> str:
        if given is not None and given in self.entries:
            return given
        found = [key for key in usual if key in self.entries]
        if given is None and found:
            return found[0]
        wanted = f"no array {given!r}" if given is not None else f"no array named {', '.join(usual)}"
        raise DataError(f"{self.path}: {wanted}. It holds {self.listing()}. Name one with {what}_key.")

    def listing(self) -> str:
        shown = []
        for key, info in list(self.entries.items())[:20]:
            with self.archive.open(info) as stream:
                shape, _, dtype = _header(stream)
            shown.append(f"{key} {shape} {dtype}")
        return "; ".join(shown) or "nothing"

    def read(self, key: str) -> Array:
        info, where = self.entries[key], f"{self.path}, array {key!r}"
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DataError(f"{where}: unknown compression. Write it with np.savez or np.savez_compressed.")
        if info.file_size > self.memory_limit:
            raise DataError(
                f"{where}: it has {info.file_size:,} bytes, and more than {self.memory_limit:,} are not read. Save "
                "less in one file, or raise the limit (memory_limit= in Python)."
            )
        with self.archive.open(info) as stream:
            shape, columns_first, dtype = _header(stream)
            if dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None:
                raise DataError(
                    f"{where}: it holds Python objects or records ({dtype}), which are not read, because they can "
                    "run any program. Save plain numbers or strings, as in np.array(labels, dtype=str)."
                )
            size = math.prod(shape) * dtype.itemsize
            if min(shape, default=1) < 1 or size == 0:
                raise DataError(f"{where}: it is empty; got shape {shape}.")
            stored = info.file_size - stream.tell()
            if size != stored:
                raise DataError(f"{where}: shape {shape} of {dtype} needs {size} bytes, but {stored} are stored.")
            flat = read_exactly(stream, size).view(dtype).astype(dtype.newbyteorder("="), copy=False)
            if stream.read(1):
                raise DataError(f"{where}: more bytes than its shape {shape} needs.")
        if dtype.kind == "U" and flat.view(np.uint32).max() > sys.maxunicode:
            raise DataError(f"{where}: its strings hold codes that are no characters.")
        return flat.reshape(shape[::-1]).T if columns_first else flat.reshape(shape)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    version = npy.read_magic(stream)
    if version == (1, 0):
        return npy.read_array_header_1_0(stream)
    if version == (2, 0):
        return npy.read_array_header_2_0(stream)
    raise ValueError(f"version {version} of the array format is unknown")


def _names(values: Array, classes: Array | None, name: str) -> list[str]:
    if values.dtype.kind == "S":
        return [value.decode("utf-8", "replace") for value in values.tolist()]
    if classes is None or values.dtype.kind == "U":
        return [str(value) for value in values]
    if classes.ndim != 1 or values[0] < 0 or values[-1] >= len(classes):
        raise DataError(
            f"{name}: classes must name every label {values[0]} … {values[-1]}, from 0; got {classes.shape}."
        )
    return [str(classes[int(value)]) for value in values]
