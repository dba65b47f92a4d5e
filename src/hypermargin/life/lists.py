"""Lists of ids in text files, and embeddings in numpy's: what the command line is given besides heads."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from hypermargin.evaluate.files import Embedded, _load, read
from hypermargin.files import replacing

MOST = 10**7  # ids in a range


def read_ids(name: str, text: str) -> list[int]:
    """`3,5,8-12`, or a file of such, in lines or with commas."""
    if Path(text).is_file():
        return [k for line, words in _lines(Path(text)) for word in words for k in _range(line, word)]
    return [k for word in text.split(",") for k in _range(f"{name} (no file of that name)", word.strip())]


def read_groups(path: Path) -> list[list[int]]:
    """One group of ids a line."""
    return [[k for word in words for k in _range(line, word)] for line, words in _lines(path)]


def read_map(path: Path) -> dict[int, int]:
    """Lines of old,new; a heading is passed over."""
    found: dict[int, int] = {}
    for line, words in _lines(path):
        if len(words) != 2:
            raise ValueError(f"{line}: expected old,new; got {','.join(words)!r}.")
        if not found and words == ["old", "new"]:
            continue
        old, new = (_range(line, word)[0] for word in words)
        if any("-" in word for word in words):
            raise ValueError(f"{line}: expected old,new; got {','.join(words)!r}.")
        if old in found:
            raise ValueError(f"{line}: class {old} is there already.")
        found[old] = new
    if not found:
        raise ValueError(f"{path}: it holds no ids.")
    return found


def read_embeddings(embeddings: Path, labels: Path) -> tuple[Tensor, Tensor]:
    """Two .npy files."""
    found = read(embeddings, labels)
    assert isinstance(found, Embedded)
    if found.labels.dtype.kind not in "iu":
        raise ValueError(f"{labels}: labels must be whole numbers; got {found.labels.dtype}.")
    return torch.from_numpy(found.features), torch.from_numpy(found.labels.astype("int64"))


def read_counts(path: Path) -> Tensor:
    """One number a class, .npy."""
    found = _load(path)
    if isinstance(found, dict) or found.dtype.kind not in "iuf" or found.ndim != 1:
        raise ValueError(f"{path}: expected a .npy file with one number a class.")
    return torch.from_numpy(found.astype("float64"))


def write_ids(path: Path, ids: Tensor) -> None:
    """Lines of old,new; −1: removed."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(("old", "new"))
        lines.writerows(enumerate(ids.tolist()))


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Where and what, of every line that is not empty."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read ({error}).") from None
    for number, line in enumerate(text.splitlines(), 1):
        words = [word.strip() for word in line.split(",") if word.strip()]
        if words:
            yield f"{path}, line {number}", words


def _range(where: str, word: str) -> range:
    first, dash, last = word.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise ValueError(f"{where}: expected ids such as 3 or 8-12; got {word!r}.")
    found = range(int(first), int(last if dash else first) + 1)
    if not 0 < len(found) <= MOST:
        raise ValueError(f"{where}: {word} is {'no' if not found else 'too long a'} range of ids.")
    return found
