"""Characters drawn by several processes: one sample is one character in one typeface."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hypermargin.common.needs import absent
from hypermargin.data.base import Rows
from hypermargin.data.fonts import Face, FontError, draw_one, missing
from hypermargin.data.workers import read

if TYPE_CHECKING:
    from hypermargin.data.typefaces import Typeface

FINER = 2  # characters are drawn at so many times the size
# Of the box: East Asian characters fill their em, which leaves a pixel or two around them.
EM, BASELINE = 0.9, 0.83
GROUP = 1000


class Drawing:
    """A `Source` of images (size, size): the character `codes[row]` in the typeface `face_of[row]`."""

    def __init__(self, files: Sequence[tuple[Path, int]], face_of: Rows, codes: Rows, size: int) -> None:
        self.files, self.face_of, self.codes = list(files), face_of, codes
        self.size = size
        self.shape: tuple[int, ...] = (size, size)
        self._open: tuple[int, Face] | None = None

    @classmethod
    def of(cls, wanted: Sequence[tuple[Typeface, str]], size: int) -> Drawing:
        """Make a drawing of pairs of typeface and character, those of a typeface one after the other."""
        number: dict[tuple[Path, int], int] = {}
        face_of = [number.setdefault((face.path, face.index), len(number)) for face, _ in wanted]
        return cls(list(number), np.array(face_of, np.int64), np.array([ord(c) for _, c in wanted], np.int64), size)

    def __len__(self) -> int:
        return len(self.codes)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        """Draw one; black without ink. FontError if the typeface cannot draw it."""
        number, character = int(self.face_of[row]), chr(int(self.codes[row]))
        if self._open is None or self._open[0] != number:
            self._open = number, _open_font(*self.files[number], round(EM * FINER * self.size))
        image = draw_one(self._open[1], character, FINER * self.size)
        if image is None:
            return np.zeros(self.shape, np.uint8)
        fine = np.asarray(image, np.uint16).reshape(self.size, FINER, self.size, FINER)
        coarse: NDArray[np.uint8] = (fine.sum((1, 3)) // FINER**2).astype(np.uint8)
        return coarse

    def where(self, row: int) -> str:
        """Return the file and the character."""
        path, index = self.files[int(self.face_of[row])]
        return f"{path}, face {index}, U+{int(self.codes[row]):04X}"


def draw_all(drawing: Drawing, workers: int) -> Iterator[tuple[Rows, NDArray[np.uint8]]]:
    """Yield rows and their images in order, a group at a time; what cannot be drawn is left out."""
    groups = [np.arange(at, min(at + GROUP, len(drawing))) for at in range(0, len(drawing), GROUP)]
    for found in read(drawing, groups, workers):
        yield found.rows, found.samples


def _open_font(path: Path, index: int, pixels: int) -> Face:
    from PIL import ImageFont

    try:
        font = ImageFont.truetype(path, pixels, index=index, layout_engine=ImageFont.Layout.BASIC)
    except Exception as error:  # FreeType's errors come as OSError, RuntimeError, ValueError and more
        raise FontError(path, error) from error
    return Face(path, "", font, frozenset(), None, BASELINE)


def check_drawable() -> None:
    """Refuse where packages that draw are missing."""
    if lacking := absent("pillow", "matplotlib"):
        raise missing(*lacking)
