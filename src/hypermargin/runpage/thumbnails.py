"""Small pictures of samples, as they stand in a page: PNG in the text of a URL."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable, Iterable

import numpy as np
import torch
import torch.nn.functional as F

from hypermargin.common.arrays import Array

SIDE = 48  # pixels, of the longer side
MOST = 600
MOST_BYTES = 2_000_000  # of all pictures of a page


def thumbnails(rows: Iterable[int], sample: Callable[[int], Array]) -> dict[int, str]:
    """Return pictures of samples by row, most important first, until there are too many or they are too large.

    Samples that are no images, and those that cannot be read, have none.
    """
    found: dict[int, str] = {}
    size = 0
    for row in dict.fromkeys(rows):
        if len(found) >= MOST or size >= MOST_BYTES:
            break
        try:
            image = small(np.asarray(sample(row)))
        except (OSError, ValueError):  # a broken file has been told of already
            continue
        if image is None:
            return {}
        found[row] = "data:image/png;base64," + base64.b64encode(png(image)).decode()
        size += len(found[row])
    return found


def small(sample: Array) -> Array | None:
    """Return an image (H, W) or (H, W, 3) as bytes, `SIDE` pixels at most; None if it is no image."""
    if not (sample.ndim == 2 or (sample.ndim == 3 and sample.shape[2] == 3)) or min(sample.shape[:2]) < 3:
        return None
    values = torch.from_numpy(np.ascontiguousarray(sample)).float()
    if sample.dtype != np.uint8:
        low, high = float(values.min()), float(values.max())
        values = (values - low) * (255 / (high - low)) if high > low else values * 0
    planes = values.permute(2, 0, 1) if values.dim() == 3 else values[None]
    share = SIDE / max(planes.shape[1:])
    if share < 1:
        sides = [max(1, round(n * share)) for n in planes.shape[1:]]
        planes = F.interpolate(planes[None], sides, mode="area")[0]
    shrunk: Array = planes.round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    return shrunk


def png(image: Array) -> bytes:
    """Write bytes (H, W, 1 or 3) as a PNG file."""
    height, width, channels = image.shape
    lines = np.zeros((height, 1 + width * channels), np.uint8)  # a 0 before each line: no filter
    lines[:, 1:] = image.reshape(height, -1)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)
