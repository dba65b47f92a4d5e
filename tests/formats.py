"""Writers of the formats that `hypermargin.data` reads."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
from pathlib import Path

import numpy as np
from PIL import Image

MAGIC = 0xCED7230A
IDX_CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def encoded(pixels: np.ndarray | Image.Image, kind: str = "PNG", **options) -> bytes:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def photo(height: int, width: int, seed: int = 0) -> Image.Image:
    """Smooth colours, as photographs have and noise has not."""
    small = noise(height // 32 + 2, width // 32 + 2, 3, seed=seed)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def write(path: Path, raw: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return path


def write_idx(path: Path, array: np.ndarray) -> Path:
    big = array.astype(array.dtype.newbyteorder(">"))
    head = struct.pack(">HBB", 0, IDX_CODES[array.dtype.str[1:]], array.ndim) + struct.pack(
        f">{array.ndim}I", *array.shape
    )
    raw = head + big.tobytes()
    return write(path, gzip.compress(raw, 1) if path.suffix == ".gz" else raw)


def write_mnist(
    folder: Path, images: np.ndarray, labels: np.ndarray, tests: int, ending: str = "", dot: str = "-"
) -> Path:
    for part, rows in (("train", slice(tests, None)), ("t10k", slice(0, tests))):
        write_idx(folder / f"{part}-images{dot}idx3-ubyte{ending}", images[rows])
        write_idx(folder / f"{part}-labels{dot}idx1-ubyte{ending}", labels[rows])
    return folder


def record(labels: float | list[float], image: bytes, ident: int = 0) -> bytes:
    """The content of a record, before it is framed."""
    if isinstance(labels, list):
        return struct.pack("<IfQQ", len(labels), 0.0, ident, 0) + struct.pack(f"<{len(labels)}f", *labels) + image
    return struct.pack("<IfQQ", 0, labels, ident, 0) + image


def framed(content: bytes) -> bytes:
    """A record in as many pieces as there are aligned magic numbers in it, plus one."""
    magic = struct.pack("<I", MAGIC)
    pieces, start = [], 0
    for at in range(0, len(content) - 3, 4):
        if content[at : at + 4] == magic:
            pieces.append(content[start:at])
            start = at + 4
    pieces.append(content[start:])
    parts = [0] if len(pieces) == 1 else [1] + [2] * (len(pieces) - 2) + [3]
    return b"".join(
        magic + struct.pack("<I", part << 29 | len(piece)) + piece + bytes(-len(piece) % 4)
        for part, piece in zip(parts, pieces, strict=True)
    )


def write_records(path: Path, records: list[tuple[int, bytes]], index: bool = True) -> Path:
    """Records of (key, content) in the order given."""
    raw, lines = b"", []
    for key, content in records:
        lines.append(f"{key}\t{len(raw)}\n")
        raw += framed(content)
    if index:
        write(path.with_suffix(".idx"), "".join(lines).encode())
    return write(path, raw)


def write_faces(path: Path, labels: list[int], images: list[bytes], index: bool = True) -> Path:
    """As insightface writes: images from key 1, then a range of keys an identity, then the header with key 0."""
    end = len(images) + 1
    records = [
        (k, record(float(label), image, k)) for k, (label, image) in enumerate(zip(labels, images, strict=True), 1)
    ]
    ranges = [[1.0 + labels.index(i), 1.0 + len(labels) - labels[::-1].index(i)] for i in sorted(set(labels))]
    records += [(end + k, record(both, b"", end + k)) for k, both in enumerate(ranges)]
    records.append((0, record([float(end), float(end + len(ranges))], b"")))
    return write_records(path, records, index)


def write_bin(path: Path, images: list[bytes], same: list[bool], protocol: int = 4) -> Path:
    return write(path, pickle.dumps((images, same), protocol=protocol))
