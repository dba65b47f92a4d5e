"""Fonts: which characters a face has, and how one of them looks."""

from __future__ import annotations

import importlib
import io
import os
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hypermargin.common.needs import not_installed
from hypermargin.data.base import Bad, DataError

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

DEFAULT = re.compile(r"DejaVu(Sans|SansMono|Serif)(-\w+)?\.ttf")  # without Display, which has 47 characters
EM, BASELINE = 0.78, 0.77  # of the box: ascenders, descenders and most accents fit without being moved
VISIBLE = "LNPS"  # Unicode's letters, numbers, punctuation, symbols; not marks, separators, control, private use
ABSENT = "\U0010fffd\U000ffffd\ue000"  # private use: fonts seldom have all three


@dataclass(frozen=True)
class Face:
    """One font file, opened, such as bold DejaVu Sans."""

    path: Path
    family: str
    font: FreeTypeFont
    characters: frozenset[str]
    absent: str | None  # a character the font does not have: it draws a box, or nothing, in its place
    baseline: float = BASELINE


class FontError(DataError):
    """A font file that cannot be read."""

    def __init__(self, path: Path, why: object) -> None:
        self.path, self.why = path, str(why)
        self.bad = Bad(str(path), f"this font cannot be read ({why})")
        super().__init__(f"{path}: {self.bad.why}. Remove the file, or leave such files out with on_bad='skip'.")

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it be pickled, since characters are drawn by several processes."""
        return type(self), (self.path, self.why)


def font_files(folder: Path | None) -> dict[Path, bytes]:
    """List the .ttf and .otf files below the folder, ordered by path; None: matplotlib's 12 DejaVu faces."""
    if folder is None:
        return {path: path.read_bytes() for path in _font_paths(matplotlib_fonts()) if DEFAULT.fullmatch(path.name)}
    if not folder.is_dir():
        raise DataError(f"fonts must be a folder of .ttf or .otf files; {folder} is not a folder.")
    try:
        files = {path: path.read_bytes() for path in _font_paths(folder)}
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror}).") from error
    if not files:
        raise DataError(f"{folder}: there are no .ttf or .otf files in it or below it.")
    return files


def _font_paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".ttf", ".otf") and path.is_file())


def matplotlib_fonts() -> Path:
    """Find the folder of the fonts that come with matplotlib."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise missing("matplotlib") from None
    return Path(matplotlib.get_data_path(), "fonts", "ttf")


def missing(*packages: str) -> DataError:
    """Make the error that says which packages are not there, and how to get them."""
    return DataError(not_installed("data 'glyphs' needs", *packages))


def open_faces(files: dict[Path, bytes], box: int, among: str | None, on_bad: str) -> tuple[list[Face], list[Bad]]:
    """Open the faces, with those of the characters `among` they have, to be drawn in boxes of `box` pixels."""
    try:
        importlib.import_module("matplotlib.ft2font")
    except ModuleNotFoundError:
        raise missing("matplotlib") from None
    faces: list[Face] = []
    bad: list[Bad] = []
    for path, content in files.items():
        try:
            faces.append(_open(path, content, box, None if among is None else set(among)))
        except FontError as error:
            if on_bad == "error":
                raise
            bad.append(error.bad)
    return faces, bad


def _open(path: Path, content: bytes, box: int, among: set[str] | None) -> Face:
    from PIL import ImageFont

    try:
        codes = character_codes(io.BytesIO(content))
        font = ImageFont.truetype(io.BytesIO(content), round(EM * box), layout_engine=ImageFont.Layout.BASIC)
        family = font.getname()[0] or path.stem
    except Exception as error:  # FreeType's errors come as OSError, RuntimeError, ValueError and more
        raise FontError(path, error) from error
    visible = {c for c in map(chr, codes) if unicodedata.category(c)[0] in VISIBLE}
    absent = next((c for c in ABSENT if ord(c) not in codes), None)
    return Face(path, family, font, frozenset(visible if among is None else visible & among), absent)


def character_codes(file: Path | io.BytesIO, index: int = 0) -> set[int]:
    """Read which code points a face has; `index` is its place in a collection."""
    from matplotlib.ft2font import FT2Font

    content: Any = os.fspath(file) if isinstance(file, Path) else file
    return set((FT2Font(content, face_index=index) if index else FT2Font(content)).get_charmap())


def draw(face: Face, characters: list[str], box: int) -> NDArray[np.uint8]:
    """Draw the characters, white on black, as (characters, box, box); black if not in the face or without any ink.

    All at one size on one baseline, so that o and O, comma and apostrophe, 2 and ² stay apart; centered from left
    to right; moved up or down, or made smaller, only if they would not fit.
    """
    images = np.zeros((len(characters), box, box), dtype=np.uint8)
    for k, character in enumerate(characters):
        if character in face.characters and (image := draw_one(face, character, box)):
            images[k] = np.asarray(image)
    if face.absent and (placeholder := draw_one(face, face.absent, box)):
        images[(images == np.asarray(placeholder)).all((1, 2))] = 0
    return images


def draw_one(face: Face, character: str, box: int) -> Image | None:
    """Draw one character as `draw` does, or the box for missing ones; None without any ink."""
    from PIL import Image, ImageDraw

    canvas, x, y = Image.new("L", (3 * box, 3 * box)), box, 2 * box
    try:
        ImageDraw.Draw(canvas).text((x, y), character, font=face.font, fill=255, anchor="ls")
    except Exception as error:
        raise FontError(face.path, f"U+{ord(character):04X}: {error}") from error
    ink = canvas.getbbox()
    if ink is None:
        return None
    glyph = canvas.crop(ink)
    if max(glyph.size) > box:
        shrink = box / max(glyph.size)
        smaller = max(1, round(shrink * glyph.width)), max(1, round(shrink * glyph.height))
        glyph = glyph.resize(smaller, Image.Resampling.BOX)
    top = ink[1] - y + round(face.baseline * box)
    result = Image.new("L", (box, box))
    result.paste(glyph, ((box - glyph.width) // 2, min(max(top, 0), box - glyph.height)))
    return result
