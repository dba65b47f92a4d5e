"""Look at data before training on it: a summary in words, a picture, a copy as one .npz file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hypermargin.common.arrays import Array
from hypermargin.data.base import TEST, TRAIN, VALIDATION, Bad, Data, DataError
from hypermargin.files import replacing


def summary(data: Data, most: int | None = None) -> list[tuple[str, str]]:
    """Describe data for a person, as pairs of name and value; of what was left out the first `most`."""
    counts = np.bincount(data.labels)
    kind = "vectors" if len(data.shape) == 1 else "images"
    dtype = data.samples.dtype if isinstance(data.samples, np.ndarray) else "uint8, in files"
    lines = [
        ("samples", f"{len(data):,} {kind} of {'×'.join(map(str, data.shape))} ({dtype})"),
        ("identities", f"{len(data.classes):,}, {_samples_each(counts)}"),
        ("task", "open set: identities of the test unseen in training" if data.open_set else "closed set"),
    ]
    if data.parts is not None:
        named = ((TRAIN, "train"), (VALIDATION, "validation"), (TEST, "test"))
        sizes = [
            f"{word} {(data.parts == part).sum():,} of {len(np.unique(data.labels[data.parts == part])):,}"
            for part, word in named
            if (data.parts == part).any()
        ]
        lines.append(("given split", ", ".join(sizes) + " (samples of identities)"))
    alone = int((counts == 1).sum())
    if alone:
        lines.append(("note", f"identities with one sample only, which cannot be verified: {alone:,}"))
    lines += [("left out", str(bad)) for bad in data.bad[:most]]
    if most is not None and len(data.bad) > most:
        lines.append(("left out", f"{len(data.bad) - most:,} more, {len(data.bad):,} in all"))
    return lines


def _samples_each(counts: Array) -> str:
    """Say how many samples identities have."""
    low, high = int(counts.min()), int(counts.max())
    if low == high:
        return f"{low:,} {'sample' if low == 1 else 'samples'} each"
    return f"{low:,} to {high:,} samples each, {np.median(counts):g} typical"


def write_bad(bad: Sequence[Bad], path: Path) -> None:
    """Write what was left out, and why, as a .csv file with the columns file and why."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(("file", "why"))
        lines.writerows(bad)


def montage(data: Data, rows: int = 8, columns: int | None = None, seed: int = 0) -> Array:
    """Draw a picture: each row is one identity, each column one of its samples: 12 to 24, as many as is typical."""
    if len(data.shape) != 3:
        raise DataError(f"{data.name} holds vectors; only images can be shown.")
    rng = np.random.default_rng(seed)
    columns = columns or int(np.clip(np.median(np.bincount(data.labels)), 12, 24))
    channels, height, width = data.shape
    canvas = np.zeros((rows * (height + 2), columns * (width + 2), channels), np.float64)
    for i, identity in enumerate(rng.choice(len(data.classes), min(rows, len(data.classes)), replace=False)):
        samples = np.flatnonzero(data.labels == identity)
        for j, row in enumerate(rng.permutation(samples)[:columns]):
            top, left = i * (height + 2), j * (width + 2)
            canvas[top : top + height, left : left + width] = np.reshape(
                data.samples[row], (height, width, channels)
            )
    if not isinstance(data.samples, np.ndarray) or data.samples.dtype == np.uint8:
        return canvas.astype(np.uint8).squeeze()
    low, high = canvas.min(), canvas.max()
    scaled: Array = 255 * (canvas - low) / (high - low or 1)
    return scaled.round().astype(np.uint8).squeeze()


def save_npz(data: Data, path: Path) -> None:
    """Write one file with images (or embeddings), labels, classes and the given split, as `read_npz` reads it."""
    if not isinstance(data.samples, np.ndarray):
        raise DataError(f"{data.name}: its images are still in their files. Decode them first with decode_once.")
    arrays = {
        "images" if data.samples.ndim > 2 else "embeddings": data.samples,
        "labels": data.labels,
        "classes": np.asarray(data.classes, dtype=str),
    }
    if data.parts is not None:
        words = {TRAIN: "train", VALIDATION: "val", TEST: "test"}
        used = np.isin(data.parts, list(words))
        arrays = {k: v if k == "classes" else v[used] for k, v in arrays.items()}
        arrays["split"] = np.asarray([words[int(part)] for part in data.parts[used]])
    with replacing(path) as temporary:
        np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
