"""Embeddings of anything that can be read, a batch at a time: images are never all in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hypermargin import checks
from hypermargin.common.arrays import Array
from hypermargin.common.environment import now, versions
from hypermargin.common.text import Say
from hypermargin.data import Bad, DataError, Feed, Source, open_data
from hypermargin.data.base import UNREADABLE, Rows
from hypermargin.data.folder import FileImages
from hypermargin.data.images import EXTENSIONS, Encoded
from hypermargin.deploy import metadata
from hypermargin.deploy.model import Model
from hypermargin.files import free_path, replacing

ENDINGS = ".npz", ".npy"


@dataclass(frozen=True)
class Embeddings:
    """The embeddings of a source, and what belongs to them.

    embeddings   (N, dim) float32 of unit length, or the features themselves if `raw`; norms (N,) their lengths
    names        (N,) the file of each, or its place in the source
    labels       (N,) numbers into `classes`, where the source has identities; else None
    bad          what could not be read and was left out
    about        what made them
    """

    embeddings: Array
    norms: Array
    names: Array
    labels: Rows | None
    classes: tuple[str, ...]
    bad: tuple[Bad, ...]
    about: dict[str, Any]

    def save(self, path: str | os.PathLike[str], *, replace: bool = False) -> None:
        """Write a .npz file without pickles, which `hypermargin train` reads; or the embeddings alone as .npy."""
        target = free_path("path", path, ENDINGS, replace)
        with replacing(target) as temporary:
            if target.suffix == ".npy":
                np.save(temporary, self.embeddings)
                return
            arrays: dict[str, Any] = {"embeddings": self.embeddings, "norms": self.norms, "names": self.names}
            if self.labels is not None:
                arrays |= {"labels": self.labels, "classes": np.array(self.classes, dtype=str)}
            np.savez(temporary, **arrays, about=np.array(json.dumps(self.about, ensure_ascii=False)))


@dataclass(frozen=True)
class _Found:
    samples: Array | Source
    where: Callable[[int], str]
    labels: Rows | None
    classes: tuple[str, ...]
    bad: list[Bad]


def embed(
    model: Model,
    source: str | os.PathLike[str],
    *,
    batch: int = 256,
    workers: int = 0,
    levels: int | None = None,
    on_bad: str = "error",
    raw: bool = False,
    say: Say = lambda _: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Embeddings:
    """Compute the embedding of every sample of `source`: an image, a folder of images, or what `open_data` reads.

    Images in files are resized and converted as in training. Where a folder has one
    folder per identity, the labels are their names; one with images lying in it has none, and is read to any depth.
    `levels` says how many folders name an identity, as in `open_data`.
    on_bad="error" stops at the first unreadable image, "skip" leaves it out and lists it in `bad`.
    """
    checks.count("batch", batch)
    checks.count("workers", workers, 0)
    checks.one_of("on_bad", on_bad, UNREADABLE)
    found = _find(model, os.fspath(source), levels, on_bad, say)
    total = len(found.samples)
    groups = np.split(np.arange(total), range(batch, total, batch))
    feed = Feed(found.samples, model.device, workers=workers if len(groups) > 1 else 0, on_bad=on_bad)
    embeddings = np.empty((total, model.about["dim"]), np.float32)
    norms = np.empty(total, np.float32)
    kept = np.empty(total, np.int64)
    done = 0
    with closing(feed(groups)) as read:
        for number, (samples, rows) in enumerate(read, 1):
            if len(rows):
                here = slice(done, done + len(rows))
                unit, length = model.run(samples)
                embeddings[here] = unit * length[:, None] if raw else unit
                norms[here], kept[here] = length, rows
                done += len(rows)
            progress(min(number * batch, total), total)
    bad = (*found.bad, *feed.bad.values())
    if done == 0:
        raise DataError(f"{source}: none of its {total} samples can be read; the first: {bad[0]}")
    kept = kept[:done]
    return Embeddings(
        embeddings[:done],
        norms[:done],
        np.array([found.where(int(row)) for row in kept], dtype=str),
        None if found.labels is None else found.labels[kept],
        found.classes,
        bad,
        {
            "format": metadata.FORMAT,
            "source": os.fspath(source),
            "model": model.name,
            "raw": raw,
            "samples": done,
            "left_out": [list(one) for one in bad],
            "network": {key: value for key, value in model.about.items() if key != "classes"},
            "versions": versions(),
            "date": now(),
        },
    )


def _find(model: Model, source: str, levels: int | None, on_bad: str, say: Say) -> _Found:
    paths = _without_identity(Path(source))
    if paths is not None:
        metadata.check_preparation(model.about)
        images = FileImages(paths, model.shape)
        _check(model, source, images)
        return _Found(images, images.where, None, (), [])
    height, *rest = model.shape
    square = bool(rest) and rest[0] == height
    data = open_data(
        source,
        size=height if square else None,
        color="rgb" if len(model.shape) == 3 else "gray",
        levels=levels,
        on_bad=on_bad,
        say=say,
    )
    if isinstance(data.samples, Encoded) and rest:
        metadata.check_preparation(model.about)
        data.samples.shape = model.shape
    _check(model, source, data.samples)
    return _Found(data.samples, data.where, data.labels, data.classes, data.bad)


def _without_identity(path: Path) -> list[str] | None:
    """List the images of a folder that has some lying in it, or the one image; None for anything else."""
    if path.is_file() and path.suffix.lower() in EXTENSIONS:
        return [str(path)]
    if not path.is_dir() or not any(_is_image(entry.name) and entry.is_file() for entry in path.iterdir()):
        return None
    found = []
    for folder, below, files in os.walk(path):
        below[:] = [name for name in below if not name.startswith(".")]
        found += [os.path.join(folder, name) for name in files if _is_image(name)]
    return sorted(found)


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in EXTENSIONS


def _check(model: Model, source: str, samples: Array | Source) -> None:
    """Check that samples are as in training: others would be scaled wrongly, and nobody would notice."""
    inside = isinstance(samples, np.ndarray)
    shape = samples.shape[1:] if inside else samples.shape
    dtype = str(samples.dtype) if isinstance(samples, np.ndarray) else "uint8"
    if shape == model.shape and dtype == model.dtype:
        return
    wanted = f"{model.name} takes {model.dtype} samples of shape {model.shape}"
    if inside:
        raise ValueError(f"{source}: {wanted}; these are {dtype} of shape {shape}. Convert them as in training.")
    kind = "vectors" if len(model.shape) == 1 else "images of floating-point numbers"
    raise ValueError(f"{source}: {wanted}, {kind}; these are image files. Give a .npz file like the training data.")
