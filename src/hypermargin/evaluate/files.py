"""Embeddings and scores in numpy's files, and a curve as a table. Nothing is unpickled."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hypermargin.common.arrays import Array
from hypermargin.common.tensor_files import read_arrays
from hypermargin.evaluate.curve import Curve
from hypermargin.evaluate.thin import thin
from hypermargin.files import replacing

EMBEDDINGS, LABELS = ("embeddings", "features"), ("labels", "label", "y")
NAMES = ("names", "paths", "files")


class Embedded(NamedTuple):
    """(N, d) features, of their own lengths where the file knows them, and (N,) labels."""

    features: Array
    labels: Array


class Named(NamedTuple):
    """(N, d) embeddings as the file has them, and (N,) names."""

    embeddings: Array
    names: Array


class Scored(NamedTuple):
    """(P,) scores and answers; perhaps the identities of both sides, and the fold of each pair."""

    scores: Array
    same: Array
    identities: tuple[Array, Array] | None
    fold: Array | None


def read(path: str | os.PathLike[str], labels: str | os.PathLike[str] | None = None) -> Embedded | Scored:
    """Read two .npy files, embeddings and labels; or a .npz file of both, or of scores and same.

    Beside embeddings of unit length, a .npz as `hypermargin embed` writes it holds their `norms`; these are
    multiplied back. Beside scores may lie `first`, `second` (identities) and `fold`.
    """
    found = read_arrays(Path(path))
    if labels is not None:
        one, two = found, read_arrays(Path(labels))
        if isinstance(one, dict) or isinstance(two, dict):
            raise ValueError(f"{path} and {labels}: give two .npy files, or one .npz file.")
        if one.ndim == 1 and two.ndim == 2:
            raise ValueError(
                f"{path}: embeddings must have shape (rows, dim); got {one.shape}. Swap the two files."
            )
        return Embedded(_numbers(one, path), two)
    if not isinstance(found, dict):
        raise ValueError(f"{path}: labels are missing. Give them as a second .npy file.")
    if "scores" in found:
        if "same" not in found:
            raise ValueError(
                f"{path}: scores need an array same, whether each pair is genuine; it holds {_list(found)}."
            )
        sides = (found["first"], found["second"]) if {"first", "second"} <= set(found) else None
        return Scored(_numbers(found["scores"], path), found["same"], sides, found.get("fold"))
    x, y = (next((found[name] for name in names if name in found), None) for names in (EMBEDDINGS, LABELS))
    if x is None or y is None:
        raise ValueError(
            f"{path}: expected arrays embeddings and labels, or scores and same; it holds {_list(found)}."
        )
    x = _numbers(x, path)
    if "norms" in found and x.ndim == 2 and found["norms"].shape == x.shape[:1]:
        lengths = np.linalg.norm(x, axis=1)
        x = x * (found["norms"] / np.where(lengths > 0, lengths, 1))[:, None].astype(x.dtype)
    return Embedded(x, y)


def read_named(path: str | os.PathLike[str], names: str | os.PathLike[str] | None = None) -> Named:
    """Read a .npz file of embeddings and names, as `hypermargin embed` writes it; or two .npy files."""
    found = read_arrays(Path(path))
    if names is not None:
        two = read_arrays(Path(names))
        if isinstance(found, dict) or isinstance(two, dict):
            raise ValueError(f"{path} and {names}: give two .npy files, or one .npz file.")
        x, y = found, two
    elif isinstance(found, dict):
        given = [next((found[name] for name in known if name in found), None) for known in (EMBEDDINGS, NAMES)]
        if given[0] is None or given[1] is None:
            raise ValueError(f"{path}: expected arrays embeddings and names; it holds {_list(found)}.")
        x, y = given[0], given[1]
    else:
        raise ValueError(
            f"{path}: the names, by which pairs are found, are missing. Give them as a second .npy file."
        )
    if y.ndim != 1 or y.dtype.kind not in "US":
        raise ValueError(f"{names or path}: names must be strings, (rows,); got {y.dtype} of shape {y.shape}.")
    return Named(_numbers(x, path), y if y.dtype.kind == "U" else np.char.decode(y, "utf-8"))


def write_curve(path: Path, curve: Curve, far: Sequence[float]) -> None:
    """Write threshold, FAR and TAR as CSV, 2,000 lines at most: all at each FAR of `far`, the rest thinned out."""
    points = thin(curve, far)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(("threshold", "far", "tar"))
        lines.writerows(zip(
            [curve.threshold(k) for k in points.tolist()], curve.far[points].tolist(), curve.tar[points].tolist(),
            strict=True,
        ))  # fmt: skip


def _numbers(array: Array, path: str | os.PathLike[str]) -> Array:
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{path}: embeddings and scores must be numbers; got {array.dtype}.")
    wide = np.float64 if array.dtype.kind == "f" and array.dtype.itemsize >= 8 else np.float32
    return np.ascontiguousarray(array, dtype=wide)


def _list(found: dict[str, Array]) -> str:
    return ", ".join(f"{name} {array.shape}" for name, array in found.items()) or "nothing"
