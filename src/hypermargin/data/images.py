"""Encoded images: bytes in, uint8 arrays of one shape out, and never another error than DataError.

What a decoded image is: palettes are looked up; transparency is laid over black; 16-bit gray keeps its high byte;
EXIF orientation is applied; a size that differs from the wanted one is stretched to it (bilinear, antialiased).
Float images are refused, since nothing says what their white is. `PREPARATION` says the same to other programs.
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from hypermargin import checks
from hypermargin.common.arrays import Array
from hypermargin.common.needs import not_installed
from hypermargin.data.base import UNREADABLE, Bad, DataError

if TYPE_CHECKING:
    from PIL.Image import Image

# Named one by one, so that no plugin that runs a program (EPS) or that nobody looks after is ever reached.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
COLORS = "auto", "gray", "rgb"
MAX_PIXELS = 64 * 2**20  # of one image in its file: 192 MiB decoded; HYPERMARGIN_MAX_PIXELS is another number
BYTES = 4  # of a file for each pixel allowed, at most: what an uncompressed image takes
ORIENTATION = 0x0112  # the EXIF tag; 5 to 8 exchange width and height
GRAY = {"1", "L", "LA", "La", "I", "F"}
CLEAR = {"LA", "La", "PA", "RGBA", "RGBa"}
RESIZE = "bilinear", 2  # Pillow's number of it: the triangle is as wide as the image shrinks, so it is antialiased
PREPARATION: dict[str, Any] = {  # what `decode` does; exported with a network (deploy/metadata.py)
    "filter": RESIZE[0],
    "antialias": True,
    "library": "pillow",
    "call": "image.resize((width, height), PIL.Image.Resampling.BILINEAR), before scaling, in uint8",
    "ratio": "stretched to height and width, nothing is cropped or added",
    "jpeg": "of four times the size or more, decoded at 1/2, 1/4 or 1/8 first: image.draft(mode, twice the size)",
    "orientation": "turned upright by EXIF",
    "transparency": "laid over black",
    "gray": "(299 R + 587 G + 114 B) / 1000",
}


def decode(raw: bytes, shape: tuple[int, ...], where: str) -> Array:
    """Decode an image to uint8 of `shape`: (H, W) gray or (H, W, 3) RGB. DataError naming `where` if broken."""
    mode = "L" if len(shape) == 2 else "RGB"
    wanted = (shape[1], shape[0])
    try:
        image = _open(raw)
        turn = _orientation(image)
        size = wanted[::-1] if turn >= 5 else wanted
        # A JPEG can be decoded at 1/2, 1/4 or 1/8; at least twice the wanted size is left to the better filter.
        if mode == "L" or image.width >= 4 * size[0]:
            image.draft(mode, (2 * size[0], 2 * size[1]))
        image.load()
        image = _plain(image, mode)
        if image.size != size:
            image = image.resize(size, resample=RESIZE[1])
        if turn > 1:
            image = image.transpose(TURNS[turn])
        return np.array(image)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    except MemoryError:
        raise DataError(f"{where}: there is not enough memory to decode it. {REMEDY}") from None
    except ModuleNotFoundError:  # no pillow: nothing is wrong with the image, and none is left out for it
        raise
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, IndexError, … as they please
        raise DataError(f"{where}: the image is broken ({reason(error)}). {REMEDY}") from error


def probe(raw: bytes, where: str) -> tuple[int, ...]:
    """Return the shape an image has in its file, upright: (H, W) or (H, W, 3)."""
    try:
        image = _open(raw)
        width, height = image.size[::-1] if _orientation(image) >= 5 else image.size
        gray = image.mode in GRAY or image.mode.startswith("I;")
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    except ModuleNotFoundError:  # no pillow
        raise
    except Exception as error:  # as in `decode`
        raise DataError(f"{where}: the image is broken ({reason(error)}). {REMEDY}") from error
    return (height, width) if gray else (height, width, 3)


REMEDY = "Replace or remove it."
LARGER = "If it is right, set HYPERMARGIN_MAX_PIXELS to more."
# EXIF orientation 2 … 8 → PIL's Transpose: mirror, 180°, flip, transpose, 270°, transverse, 90°
TURNS: dict[int, Any] = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}


def most_pixels() -> int:
    """Return how many pixels an image may have; ValueError if the environment says it in a way that is none."""
    wanted = os.environ.get("HYPERMARGIN_MAX_PIXELS", "")
    if wanted and not (wanted.isdecimal() and int(wanted)):
        raise ValueError(f"HYPERMARGIN_MAX_PIXELS must be a number of pixels, from 1; got {wanted!r}.")
    return int(wanted) if wanted else MAX_PIXELS


def check_size(size: int, where: str) -> None:
    """Refuse a file that is too large for an image, before it is read; DataError says what is allowed."""
    pixels = most_pixels()
    if size > BYTES * pixels:
        raise DataError(
            f"{where}: the file has {size:,} bytes; of an image at most {BYTES * pixels:,} are read, {BYTES} for "
            f"each of {pixels:,} pixels. {REMEDY} {LARGER}"
        )


def _open(raw: bytes) -> Image:
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError:
        raise ModuleNotFoundError(not_installed("reading images needs", "pillow"), name="PIL") from None
    most = most_pixels()
    # Pillow warns from this number on and refuses twice as many. Ours is less, unless it was raised.
    if Image.MAX_IMAGE_PIXELS is not None and most > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = most
    try:
        image = Image.open(io.BytesIO(raw), formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise DataError(
            f"the image is too large: at most {most:,} pixels are read ({error}). {REMEDY} {LARGER}"
        ) from None
    except UnidentifiedImageError:
        what = "it is empty" if not raw else f"it is none of {', '.join(FORMATS)}, or its first bytes are damaged"
        raise DataError(f"not an image: {what}. {REMEDY}") from None
    if image.width * image.height > most:
        raise DataError(
            f"the image has {image.width}×{image.height} pixels; at most {most:,} are read. {REMEDY} {LARGER}"
        )
    if image.format == "TIFF":
        image.load()  # PIL turns a TIFF upright while loading, and no other format
    return image


def _orientation(image: Image) -> int:
    # Most images carry no EXIF at all; asking PIL to parse nothing costs a fifth of decoding a face.
    if "exif" not in image.info and image.format != "TIFF":
        return 1
    try:
        turn = image.getexif().get(ORIENTATION, 1)
        return turn if turn in TURNS else 1
    except Exception:  # as in `decode`; but an image is not broken because its EXIF is
        return 1


def _plain(image: Image, mode: str) -> Image:
    from PIL import Image

    if image.mode == "F":
        raise DataError("the image holds floating-point numbers. Save it with 8 or 16 bits a channel.")
    if image.mode == "I" or image.mode.startswith("I;"):  # "I" is what older PIL makes of 16 bits
        image = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    elif image.mode in CLEAR or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)
    return image if image.mode == mode else image.convert(mode)


def reason(error: Exception) -> str:
    """Return what an exception says, or what it is."""
    return str(error) or type(error).__name__


class Encoded(ABC):
    """A `Source` of images that stay encoded until asked for."""

    shape: tuple[int, ...]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def raw(self, row: int) -> bytes:
        """Return the encoded image `row`; DataError if it cannot be had."""

    @abstractmethod
    def where(self, row: int) -> str:
        """Return the file, or the file and the place in it."""

    def __getitem__(self, row: int) -> Array:
        return decode(self.raw(row), self.shape, self.where(row))


def leave_out(bad: list[Bad], on_bad: str, where: str, why: str) -> None:
    """Note what is left out; with on_bad="error" refuse instead."""
    if on_bad == "error":
        raise DataError(f'{where}: {why} (on_bad="skip" leaves such out.)')
    bad.append(Bad(where, why))


def check_options(size: int | None, color: str, on_bad: str) -> None:
    """Check the three arguments every reader of images takes."""
    if size is not None:
        checks.count("size", size)
    checks.one_of("color", color, COLORS)
    checks.one_of("on_bad", on_bad, UNREADABLE)


def common_shape(samples: Encoded, size: int | None, color: str, on_bad: str) -> tuple[tuple[int, ...], list[Bad]]:
    """Find the shape all samples get: the first readable one's where `size` and `color` leave it open.

    Also return the unreadable ones before it: as many of the first rows have to be dropped.
    """
    bad: list[Bad] = []
    for row in range(len(samples)):
        try:
            height, width, *channels = probe(samples.raw(row), samples.where(row))
        except DataError as error:
            leave_out(bad, on_bad, samples.where(row), str(error).removeprefix(f"{samples.where(row)}: "))
            continue
        if size is not None:
            height = width = size
        rgb = bool(channels) if color == "auto" else color == "rgb"
        return ((height, width, 3) if rgb else (height, width)), bad
    raise DataError(
        f"{samples.where(0) if len(samples) else 'the data'}: none of {len(samples)} images can be read."
    )
