"""Characters in many typefaces as one compact file: two bits per pixel, compressed typeface by typeface.

A gray level of 0, 1, 2 or 3 is what a stroke thinner than a pixel needs; images of 32×32 then take some 70 bytes.
Reading needs numpy alone, so that the file can be carried to a machine without fonts and image libraries.
"""

from __future__ import annotations

import lzma
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hypermargin.common.environment import cores
from hypermargin.common.tensor_files import read_npz
from hypermargin.data.base import TEST, TRAIN, UNUSED, VALIDATION, Data, DataError, Rows
from hypermargin.files import replacing

ENDING = ".glyphs"  # of the file, which is an .npz
LEVELS = 4  # of gray
SHIFTS = np.array([0, 2, 4, 6], np.uint8)  # of four pixels in a byte
FORMAT = 1
SHARE, MOST_TEST, MOST_VALIDATION = 1 / 3, 3000, 1000
LARGEST, MOST_IMAGES, MOST_BYTES = 1024, 2**26, 2**36  # what a header may ask for, unpacked
MOST_MEMORY = 2**26  # what a compressed stream may ask for


class Kept(NamedTuple):
    """The images of one typeface: the columns of its characters, and (N, size²/4) bytes of `join_pixels`."""

    columns: Rows
    pixels: NDArray[np.uint8]


@dataclass(frozen=True)
class Drawn:
    """Characters in typefaces.

    size      images are (size, size)
    classes   the names of the identities, `faces` those of the typefaces
    seen      (faces,) which of them training may see; the others are of other families
    there     (faces, classes) which characters are drawn in which typefaces
    packed    per typeface its images, in the order of the classes, compressed
    notes     what was left out and why, for people
    """

    size: int
    classes: tuple[str, ...]
    faces: tuple[str, ...]
    seen: NDArray[np.bool_]
    there: NDArray[np.bool_]
    packed: tuple[bytes, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return int(self.there.sum())

    def rows(self) -> tuple[Rows, Rows]:
        """Return the typeface and the class of each image, in the order of `images`."""
        face, label = np.nonzero(self.there)
        return face, label

    def images(self) -> NDArray[np.uint8]:
        """Unpack all images as (N, size, size) uint8, bright ink on black."""
        counts = self.there.sum(1)
        ends = np.cumsum(counts)
        found = np.empty((int(ends[-1]), self.size, self.size), np.uint8)

        def unpack(face: int) -> None:
            want = int(counts[face]) * self.size**2 // 4
            try:
                stream = lzma.LZMADecompressor(memlimit=MOST_MEMORY)
                raw = stream.decompress(self.packed[face], max_length=want + 1)
            except (lzma.LZMAError, EOFError) as error:
                raise DataError(f"the images of {self.faces[face]} are damaged ({error}).") from error
            if len(raw) != want or not stream.eof or stream.unused_data:
                raise DataError(f"the images of {self.faces[face]} are damaged: {len(raw)} bytes of {want}.")
            levels = split_pixels(np.frombuffer(raw, np.uint8).reshape(int(counts[face]), -1), self.size)
            np.multiply(levels, 255 // (LEVELS - 1), out=found[ends[face] - counts[face] : ends[face]])

        with ThreadPoolExecutor(cores()) as pool:
            list(pool.map(unpack, range(len(self.faces))))
        return found

    def data(self, seed: int = 0) -> Data:
        """Make data of all images, split by identity and by typeface.

        A third of the identities, at most 3,000, is TEST, in every typeface. Of the others a tenth, at most 1,000,
        is VALIDATION and the rest TRAIN, in the seen typefaces; in the unseen ones they are UNUSED.
        """
        face, label = self.rows()
        testable = (self.there & ~self.seen[:, None]).sum(0) >= 2
        parts = split_identities(len(self.classes), testable, seed)[label]
        parts[(parts != TEST) & ~self.seen[face]] = UNUSED
        return Data("glyphs", self.images(), label, self.classes, parts, augment="affine")

    def save(self, path: Path) -> None:
        """Write one file, whole or not at all."""
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(
                file,
                format=np.array([FORMAT, self.size]),
                images=np.frombuffer(b"".join(self.packed), np.uint8),
                ends=np.cumsum([len(each) for each in self.packed]),
                there=np.packbits(self.there, axis=1),
                seen=self.seen,
                classes=np.array(self.classes),
                faces=np.array(self.faces),
                notes=np.array(self.notes, dtype=np.str_),
            )


def split_identities(count: int, testable: NDArray[np.bool_], seed: int) -> NDArray[np.int8]:
    """Choose the part of each identity; only testable ones are TEST."""
    order = np.random.default_rng([seed, count]).permutation(count)
    parts = np.full(count, TRAIN, np.int8)
    order = np.concatenate((order[testable[order]], order[~testable[order]]))
    test = min(math.ceil(SHARE * count), MOST_TEST, int(testable.sum()))
    rest = np.random.default_rng([seed, count, 1]).permutation(order[test:])
    parts[order[:test]] = TEST
    parts[rest[: min(round(len(rest) / 10), MOST_VALIDATION)]] = VALIDATION
    return parts


def join_pixels(levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Put four pixels (N, size, size) of gray levels 0 … 3 into each byte."""
    four = levels.reshape(len(levels), -1, 4)
    return np.asarray((four << SHIFTS).sum(2, dtype=np.uint8))


def split_pixels(pixels: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Return the gray levels (N, size, size) that `join_pixels` has put together."""
    four: NDArray[np.uint8] = (pixels[..., None] >> SHIFTS) & np.uint8(LEVELS - 1)
    return four.reshape(-1, size, size)


def pack(kept: list[Kept]) -> tuple[bytes, ...]:
    """Compress the images of each typeface."""
    with ThreadPoolExecutor(cores()) as pool:  # lzma lets other threads work
        return tuple(pool.map(lambda each: lzma.compress(each.pixels.tobytes(), preset=6), kept))


def read_drawn(path: Path) -> Drawn:
    """Read what `save` wrote; DataError if the file is not that, or damaged."""
    try:
        found = read_npz(path)
        number, size = (int(value) for value in found["format"])
        if number != FORMAT:
            raise ValueError(f"it is of format {number}, and this version reads {FORMAT}")
        classes, faces = (tuple(map(str, found[name])) for name in ("classes", "faces"))
        there = np.unpackbits(found["there"], axis=1, count=len(classes)).astype(np.bool_)
        seen, ends = found["seen"].astype(np.bool_), found["ends"].astype(np.int64)
        if not 1 <= size <= LARGEST or there.sum() > min(MOST_IMAGES, MOST_BYTES // size**2):
            raise ValueError(f"it says {there.sum():,} images of {size}×{size}")
        if size % 4:
            raise ValueError(f"its images are {size}×{size}, and no multiple of 4")
        if not len(faces) == len(there) == len(seen) == len(ends) or ends[-1] != len(found["images"]):
            raise ValueError("its parts do not fit one another")
        if (np.diff(ends, prepend=0) < 0).any() or not there.any(0).all():
            raise ValueError("a character or a typeface without images")
        starts = np.concatenate(([0], ends[:-1]))
        packed = tuple(found["images"][a:b].tobytes() for a, b in zip(starts, ends, strict=True))
        return Drawn(size, classes, faces, seen, there, packed, tuple(map(str, found["notes"])))
    except FileNotFoundError:
        raise
    except Exception as error:  # zip files break in many ways
        raise DataError(f"{path}: not a readable file of drawn characters ({error}). Draw it again.") from error
