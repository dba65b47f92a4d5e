"""RecordIO with an index, the format of insightface's training sets: train.rec and train.idx.

A record is uint32 magic, uint32 (part << 29 | length), then `length` bytes, padded to four. part 0 is a whole
record; 1, 2 … 2, 3 are its pieces, to be joined by the magic number they were cut at. The bytes are uint32 flag,
float32 label, uint64 id, uint64 id2, then `flag` float32 labels that replace the label, then the image. All
little-endian.

A record for detection has labels too: the length of their header, the length of a box, perhaps more header, and
boxes of (class, left, top, right, bottom, …). It has no identity, and is refused.

A record with labels and no image is bookkeeping: the one with key 0 says (first key after the images, end), the
others are the ranges of keys of one identity.
"""

from __future__ import annotations

import mmap
import os
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hypermargin.common.arrays import Floats
from hypermargin.data.base import Bad, Data, DataError, Rows
from hypermargin.data.folder import suits
from hypermargin.data.images import Encoded, check_options, common_shape, leave_out

MAGIC = 0xCED7230A
MAGIC_BYTES = MAGIC.to_bytes(4, "little")
LENGTH = 2**29 - 1
HEADER = 24
CHUNK = 2**16
MOST_LABELS = 2**31
LOOKED_AT = 64
LEAST_BOX = 5  # class, left, top, right, bottom


class RecordImages(Encoded):
    """Images in a record file, which is mapped anew in every process."""

    def __init__(self, path: str, keys: Rows, offsets: Rows, shape: tuple[int, ...] = ()) -> None:
        self.path, self.keys, self.offsets, self.shape = path, keys, offsets, shape
        self._mapped: mmap.mmap | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    @property
    def mapped(self) -> mmap.mmap:
        """Return the file's bytes."""
        if self._mapped is None:
            try:
                with open(self.path, "rb") as file:
                    self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:  # ValueError: it is empty
                raise DataError(f"{self.path}: the file cannot be read ({error}).") from error
        return self._mapped

    def raw(self, row: int) -> bytes:
        """Return the encoded image."""
        mapped = self.mapped
        try:
            left = os.stat(self.path).st_size
        except OSError as error:
            raise DataError(f"{self.where(row)}: the file cannot be read ({error}).") from error
        if left < len(mapped):  # to touch a page that is gone would end the process by SIGBUS
            raise DataError(
                f"{self.where(row)}: the file has {left} bytes now, and had {len(mapped)} when it was opened."
            )
        try:
            return _record(mapped, int(self.offsets[row]))[2]
        except _BrokenRecordError as error:
            raise DataError(f"{self.where(row)}: {error}") from None

    def where(self, row: int) -> str:
        """Return file, key and offset, for messages."""
        return f"{self.path}, key {self.keys[row]} at offset {self.offsets[row]}"


def read_records(path: str | Path, *, size: int | None = None, color: str = "auto", on_bad: str = "error") -> Data:
    """Read images and labels of a .rec file, or of a folder with one. Without an .idx beside it, it is scanned."""
    check_options(size, color, on_bad)
    file = _find(Path(path))
    bad: list[Bad] = []
    index = file.with_suffix(".idx")
    all_records = RecordImages(str(file), np.empty(0, np.int64), np.empty(0, np.int64))
    if index.is_file():
        all_records.keys, all_records.offsets = _read_index(index)
    else:
        all_records.offsets = _scan(all_records.mapped, file, on_bad, bad)
        all_records.keys = np.arange(len(all_records.offsets))
    labels, end = _labels(all_records, on_bad, bad)
    rows = np.flatnonzero((labels >= 0) & (all_records.keys < end))
    _check_no_boxes(all_records, rows)
    if not rows.size:
        raise DataError(f"{file}: there is no image in its {len(labels)} records.")
    records = RecordImages(str(file), all_records.keys[rows], all_records.offsets[rows])
    shape, unreadable = common_shape(records, size, color, on_bad)
    kept = slice(len(unreadable), None)
    values, ids = np.unique(labels[rows[kept]], return_inverse=True)
    return Data(
        str(file),
        RecordImages(str(file), records.keys[kept], records.offsets[kept], shape),
        ids.astype(np.int64),
        tuple(map(str, values)),
        augment=suits(shape),
        bad=bad + unreadable,
    )


class _BrokenRecordError(Exception):
    pass


def _check_no_boxes(records: RecordImages, rows: Rows) -> None:
    """Refuse a file whose labels are boxes around objects: the first of them would be taken for an identity."""
    some = rows[np.linspace(0, len(rows) - 1, min(LOOKED_AT, len(rows)), dtype=int)]
    labels = [_more_labels(records.mapped, int(records.offsets[row])) for row in some]
    if labels and all(map(_are_boxes, labels)) and len({float(found[0]) for found in labels}) == 1:
        raise DataError(
            f"{records.path}: its labels are boxes around objects, for detection; none says who is in an image. "
            "Expected one identity an image, as in insightface's training sets. Cut the objects out and write them "
            "with their identities."
        )


def _more_labels(raw: mmap.mmap, at: int) -> Floats:
    """Return the labels after a record's header; none where it is broken, which is said elsewhere."""
    try:
        _, begin, end = _piece(raw, at)
        (flag,) = struct.unpack_from("<I", raw, begin)
        count = flag if begin + HEADER + 4 * flag <= end else 0
        return np.frombuffer(raw, "<f4", count, begin + HEADER).astype(np.float64)
    except (_BrokenRecordError, struct.error):
        return np.empty(0)


def _are_boxes(labels: Floats) -> bool:
    if len(labels) < 2 + LEAST_BOX or not np.isfinite(labels).all():
        return False
    header, width = labels[:2]
    if header != int(header) or width != int(width) or header < 2 or width < LEAST_BOX:
        return False
    boxes = labels[int(header) :]
    if not len(boxes) or len(boxes) % int(width):
        return False
    kind, left, top, right, bottom = boxes.reshape(-1, int(width))[:, :LEAST_BOX].T
    there = kind >= 0  # −1 fills up
    return bool(((kind == np.floor(kind)) & ~(there & ((left > right) | (top > bottom)))).all() and there.any())


def _find(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = sorted(file for file in path.glob("*.rec") if file.is_file())
    if len(found) != 1:
        raise DataError(f"{path}: exactly one .rec file is needed; found {len(found)}. Name the file.")
    return found[0]


def _read_index(path: Path) -> tuple[Rows, Rows]:
    try:
        with warnings.catch_warnings(action="ignore"):  # that it is empty is said below
            table = np.loadtxt(path, dtype=np.int64, comments=None, ndmin=2)
        if not table.size:
            raise ValueError("it is empty")
        if table.shape[1] != 2:
            raise ValueError(f"its lines have {table.shape[1]} numbers")
    except (OSError, ValueError, OverflowError) as error:
        raise DataError(
            f"{path}: lines must be a key, a tab and an offset ({error}). Without the file the records are scanned."
        ) from error
    return np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])


def _scan(raw: mmap.mmap, file: Path, on_bad: str, bad: list[Bad]) -> Rows:
    offsets: list[int] = []
    at = 0
    while at < len(raw):
        try:
            part, begin, end = _piece(raw, at)
        except _BrokenRecordError as error:
            leave_out(bad, on_bad, f"{file}, record {len(offsets)} at offset {at}", f"{error} The rest is lost.")
            break
        if part in (0, 1):
            offsets.append(at)
        at = begin + (end - begin + 3) // 4 * 4
    return np.array(offsets, dtype=np.int64)


def _labels(records: RecordImages, on_bad: str, bad: list[Bad]) -> tuple[Rows, float]:
    """Read the label of every record, −1 for no image; and the key at which the images end."""
    raw, end = records.mapped, np.inf
    labels = np.concatenate(
        [_usual(raw, records.offsets[at : at + CHUNK]) for at in range(0, len(records), CHUNK)]
        or [records.keys[:0]]
    )
    for row in np.flatnonzero(labels < 0):
        try:
            flag, label, image = _record(raw, int(records.offsets[row]))
            if flag and not image:
                end = label if records.keys[row] == 0 else end
            elif not (0 <= label < MOST_LABELS and label == int(label)):
                raise _BrokenRecordError(f"its label must be a whole number from 0; got {label:g}.")
            else:
                labels[row] = int(label)
        except _BrokenRecordError as error:
            leave_out(bad, on_bad, records.where(int(row)), str(error))
    return labels, end


def _usual(raw: mmap.mmap, offsets: Rows) -> Rows:
    """Read labels of whole, sound records with an image, many at once; −1 for others, to be looked at singly."""
    if len(raw) < 8 + HEADER:
        return np.full(len(offsets), -1)
    words: NDArray[np.uint32] = np.frombuffer(raw, dtype="<u4", count=len(raw) // 4)
    inside = (offsets >= 0) & (offsets <= len(raw) - 8 - HEADER) & (offsets % 4 == 0)
    first = np.where(inside, offsets, 0) // 4
    head = words[np.minimum(first[:, None] + np.arange(9), len(words) - 1)]
    magic, lengths, flag = head[:, 0], head[:, 1], head[:, 2].astype(np.int64)
    label = np.where(flag > 0, head[:, 8], head[:, 3]).view("<f4")
    image = lengths.astype(np.int64) - HEADER - 4 * flag  # its bytes, since part 0 adds nothing to the length
    fine = inside & (magic == MAGIC) & (lengths <= LENGTH) & (image > 0) & (offsets + 8 + lengths <= len(raw))
    with np.errstate(invalid="ignore"):  # NaN compares as not fine
        fine &= (label >= 0) & (label < MOST_LABELS) & (label == np.floor(label))
    return np.where(fine, label, -1).astype(np.int64)


def _piece(raw: mmap.mmap, at: int) -> tuple[int, int, int]:
    """Return part, begin and end of the piece at an offset."""
    if not 0 <= at <= len(raw) - 8 or at % 4:
        raise _BrokenRecordError(f"no record can begin there in a file of {len(raw)} bytes.")
    magic, length = struct.unpack_from("<II", raw, at)
    if magic != MAGIC:
        raise _BrokenRecordError(f"no record begins there: magic number 0x{magic:08x}, not 0x{MAGIC:08x}.")
    begin, end = at + 8, at + 8 + (length & LENGTH)
    if end > len(raw):
        raise _BrokenRecordError(
            f"the record is cut off: it needs {end - begin} bytes, the file has {len(raw) - begin}."
        )
    return length >> 29, begin, end


def _record(raw: mmap.mmap, at: int) -> tuple[int, float, bytes]:
    """Return flag, label and image of the record at an offset."""
    part, begin, end = _piece(raw, at)
    if part not in (0, 1):
        raise _BrokenRecordError(f"it is piece {part} of a record, not its first.")
    pieces = [raw[begin:end]]
    while part not in (0, 3):
        part, begin, end = _piece(raw, begin + (end - begin + 3) // 4 * 4)
        if part not in (2, 3):
            raise _BrokenRecordError(f"the record is cut off after {len(pieces)} pieces.")
        pieces.append(raw[begin:end])
    content = MAGIC_BYTES.join(pieces)
    if len(content) < HEADER:
        raise _BrokenRecordError(f"{len(content)} bytes, fewer than its header's {HEADER}.")
    flag, label = struct.unpack_from("<If", content)
    if len(content) < HEADER + 4 * flag:
        raise _BrokenRecordError(f"{len(content)} bytes, too few for {flag} labels.")
    if flag:
        (label,) = struct.unpack_from("<f", content, HEADER)
    return flag, label, content[HEADER + 4 * flag :]
