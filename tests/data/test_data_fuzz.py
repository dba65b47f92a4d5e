"""The law of every reader: whatever the bytes, a valid result or a DataError that names the file.

Never another exception, never code run, and neither time nor memory out of proportion to the file. Valid files are
damaged in every way a disk, a network or an enemy would, and opened and read to the last sample.
"""

import gzip
import io
import os
import pickle
import re
import resource
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from formats import encoded, noise, photo, record, write, write_bin, write_faces, write_idx, write_mnist
from PIL import Image

from hypermargin.data.arrays import read_npz
from hypermargin.data.base import Data, DataError
from hypermargin.data.folder import read_folder
from hypermargin.data.idx import read_idx, read_idx_array
from hypermargin.data.images import decode, probe
from hypermargin.data.pairs import Pairs, read_bin, read_csv, read_pairs
from hypermargin.data.plainpickle import loads
from hypermargin.data.recordio import read_records

# PIL warns of damaged tags, numpy of odd headers; our own warnings stay errors.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:::PIL")

ROUNDS = 300  # damaged files a format
TELLING = [
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    2**29 - 1,
    2**63 - 1,
    2**64 - 1,
]


def damage(raw: bytes, rng: np.random.Generator) -> bytes:
    """One to three of: flipped, cut, put in, repeated, moved, and numbers overwritten with telling ones."""
    for _ in range(int(rng.integers(1, 4))):
        size = max(len(raw), 1)
        at, to = sorted(rng.integers(0, size, 2).tolist())
        if rng.random() < 0.5:  # most of what can go wrong goes wrong near the beginning
            at = min(at, int(rng.integers(0, 64)))
        kind = rng.integers(8)
        if kind <= 1:
            flipped = bytearray(raw)
            for k in rng.integers(0, size, int(rng.integers(1, 9))).tolist():
                flipped[k : k + 1] = bytes([rng.integers(256)])
            raw = bytes(flipped)
        elif kind == 2:
            raw = raw[:at] + bytes([rng.integers(256)]) + raw[at + 1 :]
        elif kind == 3:
            raw = raw[:to]
        elif kind == 4:
            raw = raw[:at] + rng.bytes(int(rng.integers(1, 20))) + raw[at:]
        elif kind == 5:
            raw = raw[:at] + raw[to:]
        elif kind == 6:
            raw = raw[:to] + raw[at:to] + raw[to:]
        else:
            value = TELLING[rng.integers(len(TELLING))]
            order, width = ("<>"[rng.integers(2)], "BHIQ"[rng.integers(4)])
            number = struct.pack(order + width, value & (256 ** struct.calcsize(width) - 1))
            raw = raw[:at] + number + raw[at + len(number) :]
    return raw


def damage_entry(raw: bytes, rng: np.random.Generator) -> bytes:
    """A zip whose checksums are right and whose arrays are not."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        chosen = rng.integers(len(old.namelist()))
        for k, name in enumerate(old.namelist()):
            new.writestr(name, damage(old.read(name), rng) if k == chosen else old.read(name))
    return out.getvalue()


def damage_inside(raw: bytes, rng: np.random.Generator) -> bytes:
    return gzip.compress(damage(gzip.decompress(raw), rng), 1)


def damage_chunks(raw: bytes, rng: np.random.Generator) -> bytes:
    """A PNG whose checksums are right and whose chunks are not."""
    out, at = raw[:8], 8
    while at < len(raw):
        (size,) = struct.unpack_from(">I", raw, at)
        chunk = raw[at + 4 : at + 8 + size]
        if rng.random() < 0.5:
            chunk = chunk[:4] + damage(chunk[4:], rng)
        out += struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        at += 12 + size
    return out


def consume(result) -> None:
    """Valid to the last sample, or a DataError."""
    if isinstance(result, Data):
        assert result.labels.min() >= 0
        assert result.labels.max() < len(result.classes)
        assert result.parts is None or len(result.parts) == len(result)
    if isinstance(result, Pairs):
        assert max(result.first.max(), result.second.max()) < len(result.samples)
        assert min(result.first.min(), result.second.min()) >= 0
    samples = result.samples
    if isinstance(samples, np.ndarray):
        assert samples.dtype in (np.uint8, np.float32)
        assert np.isfinite(samples).all()
        return
    for row in range(len(samples)):
        try:
            sample = samples[row]
            assert sample.shape == samples.shape
            assert sample.dtype == np.uint8
        except DataError as error:
            assert str(error).startswith(samples.where(row))  # noqa: PT017


def lawful(read, path: Path, on_bad: str, folder: Path) -> bool:
    """Was it read? A refusal must name a file below the folder."""
    try:
        consume(read(path, on_bad=on_bad))
        return True
    except DataError as error:
        assert str(folder) in str(error)  # noqa: PT017
        return False


PIXELS = noise(6, 5, 6)
PNGS = [encoded(pixels) for pixels in PIXELS]


def make_npz(folder: Path, save) -> Path:
    save(
        folder / "a.npz",
        images=PIXELS,
        labels=np.array(["ä", "b", "ä", "b", "c", "c"]),
        split=np.int64([0, 1, 0, 1, 2, 2]),
        classes=np.array(["x", "y"]),
    )
    return folder / "a.npz"


def make_vectors(folder: Path) -> Path:
    np.savez(folder / "a.npz", x=noise(4, 3).astype(">f8"), y=np.uint16([3, 3, 1, 0]))
    return folder / "a.npz"


def make_images(folder: Path, text: str, name: str) -> Path:
    for k in range(3):
        write(folder / f"Al/Al_{k + 1:04}.png", PNGS[k])
    return write(folder / name, text.encode())


def as_arrays(images: list[bytes]) -> list:
    return [np.frombuffer(image, np.uint8).reshape((-1, 1) if k % 2 else -1) for k, image in enumerate(images)]


def make_mnist(folder: Path, ending: str) -> Path:
    write_mnist(folder, PIXELS, np.uint8([0, 1, 2, 0, 1, 2]), tests=2, ending=ending)
    return folder / f"train-images-idx3-ubyte{ending}"


def in_folder(read):
    """A reader of folders, called with one file of it."""
    return lambda path, on_bad: read(path.parent, on_bad=on_bad)


CSV_PAIRS = "a,b,same,fold\nAl/Al_0001.png,Al/Al_0002.png,1,0\nAl/Al_0003.png,Al/Al_0002.png,0,1\n"
CSV_LIST = "path,label,split\nAl/Al_0001.png,x,train\nAl/Al_0002.png,y,test\nAl/Al_0003.png,x,val\n"
# name → (makes a valid folder and says which file to damage, reads it, and perhaps damages it)
FORMATS = {
    "npz": (lambda f: make_npz(f, np.savez), read_npz),
    "npz packed": (lambda f: make_npz(f, np.savez_compressed), read_npz),
    "npz vectors": (make_vectors, read_npz),
    "npz entries": (lambda f: make_npz(f, np.savez), read_npz, damage_entry),
    "npz vector entries": (make_vectors, read_npz, damage_entry),
    "idx": (lambda f: make_mnist(f, ""), in_folder(read_idx)),
    "idx.gz": (lambda f: make_mnist(f, ".gz"), in_folder(read_idx)),
    "idx.gz inside": (lambda f: make_mnist(f, ".gz"), in_folder(read_idx), damage_inside),
    "rec": (lambda f: write_faces(f / "a.rec", [0, 0, 1, 1, 2, 2], PNGS), read_records),
    "rec scanned": (lambda f: write_faces(f / "a.rec", [0, 0, 1, 1, 2, 2], PNGS, index=False), read_records),
    "rec index": (
        lambda f: write_faces(f / "a.rec", [0, 0, 1, 1, 2, 2], PNGS).with_suffix(".idx"),
        lambda path, on_bad: read_records(path.with_suffix(".rec"), on_bad=on_bad),
    ),
    "bin 0": (lambda f: write_bin(f / "a.bin", PNGS, [True, False, True], 0), read_bin),
    "bin 2": (lambda f: write_bin(f / "a.bin", PNGS, [True, False, True], 2), read_bin),
    "bin 4": (lambda f: write_bin(f / "a.bin", PNGS, [True, False, True], 4), read_bin),
    "bin numpy 2": (lambda f: write_bin(f / "a.bin", as_arrays(PNGS), [True, False, True], 2), read_bin),
    "bin numpy 4": (lambda f: write_bin(f / "a.bin", as_arrays(PNGS), [True, False, True], 4), read_bin),
    "bin numpy 5": (lambda f: write_bin(f / "a.bin", as_arrays(PNGS), np.array([True, False, True]), 5), read_bin),
    "trials": (lambda f: make_images(f, "1 Al/Al_0001 Al/Al_0002\n0 Al/Al_0003 Al/Al_0002\n", "t.txt"), read_pairs),
    "pairs.txt": (lambda f: make_images(f, "1 1\nAl 1 2\nAl\t2\tAl\t3\n", "pairs.txt"), read_pairs),
    "pairs.csv": (lambda f: make_images(f, CSV_PAIRS, "pairs.csv"), read_pairs),
    "list.csv": (lambda f: make_images(f, CSV_LIST, "list.csv"), read_csv),
    "folder": (
        lambda f: write(write(f / "a/2.png", PNGS[1]).with_name("1.png"), PNGS[0]),
        lambda path, on_bad: read_folder(path.parent.parent, on_bad=on_bad),
    ),
}


def fuzz(name: str, folder: Path, rounds: int) -> None:
    make, read, harm = (*FORMATS[name], damage)[:3]
    folder = folder / "fuzzed"
    folder.mkdir()
    path = make(folder)
    assert lawful(read, path, "error", folder), "the valid file itself must be read"
    valid = path.read_bytes()
    rng = np.random.default_rng([11, *name.encode()])
    outcomes = set()
    for k in range(rounds):
        path.write_bytes(harm(valid, rng))
        outcomes.add(lawful(read, path, "skip" if k % 2 else "error", folder))
    assert False in outcomes, "no damage was noticed"


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files(name, tmp_path):
    fuzz(name, tmp_path, ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_many_more_damaged_files(name, tmp_path):
    fuzz(name, tmp_path, 30 * ROUNDS)


IMAGES = {
    "JPEG": encoded(photo(40, 50), "JPEG"),
    "progressive": encoded(photo(40, 50), "JPEG", progressive=True, exif=Image.Exif()),
    "PNG": encoded(noise(9, 9, 3)),
    "PNG palette": encoded(photo(40, 50).quantize(8)),
    "PNG 16": encoded(noise(9, 9).astype(np.uint16)),
    "BMP": encoded(noise(9, 9, 3), "BMP"),
    "GIF": encoded(photo(20, 20), "GIF"),
    "WEBP": encoded(photo(40, 50), "WEBP"),
    "TIFF": encoded(noise(9, 9, 3), "TIFF"),
    "TIFF packed": encoded(photo(20, 20), "TIFF", compression="tiff_lzw"),
    "PPM": encoded(noise(9, 9, 3), "PPM"),
}


def fuzz_images(kind: str, rounds: int) -> None:
    rng = np.random.default_rng([12, *kind.encode()])
    for k in range(rounds):
        raw = (damage_chunks if kind.startswith("PNG") and k % 4 else damage)(IMAGES[kind], rng)
        for shape in ((12, 10), (12, 10, 3))[k % 2 :]:
            try:
                assert decode(raw, shape, "here.img").shape == shape
                assert len(probe(raw, "here.img")) in (2, 3)
            except DataError as error:
                assert str(error).startswith("here.img: ")  # noqa: PT017


@pytest.mark.parametrize("kind", IMAGES)
def test_damaged_images(kind):
    fuzz_images(kind, ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", IMAGES)
def test_many_more_damaged_images(kind):
    fuzz_images(kind, 30 * ROUNDS)


class Reduced:
    """Pickles to a call."""

    def __init__(self, function, *given, state=None):
        self.given = (function, given) if state is None else (function, given, state)

    def __reduce__(self):
        return self.given


def evil(command: str):
    """A pickle for every instruction that can name, make or call something."""
    say = command.encode()
    word, code = b"V" + say + b"\n", b"V__import__('os').system('" + say + b"')\n"
    for protocol in range(6):
        yield pickle.dumps(Reduced(os.system, command), protocol=protocol)
        yield pickle.dumps(Reduced(eval, f"__import__('os').system({command!r})"), protocol=protocol)
        yield pickle.dumps(([Reduced(os.system, command)], [True]), protocol=protocol)
        yield pickle.dumps({"a": Reduced(os.system, command, state={"x": 1})}, protocol=protocol)
    yield b"cos\nsystem\n(" + word + b"tR."  # GLOBAL, REDUCE
    yield b"cposix\nsystem\n" + word + b"\x85R."
    yield b"c__builtin__\neval\n(" + code + b"tR."
    yield b"cbuiltins\nexec\n(" + code + b"tR."
    yield b"(ios\nsystem\n" + word + b"."  # wrong order on purpose
    yield b"(" + word + b"ios\nsystem\n."  # INST
    yield b"(cos\nsystem\n" + word + b"o."  # OBJ
    yield b"cos\nsystem\n" + word + b"\x85\x81."  # NEWOBJ
    yield b"cos\nsystem\n" + word + b"\x85}\x92."  # NEWOBJ_EX
    yield b"\x80\x04\x8c\x02os\x8c\x06system\x93" + word + b"\x85R."  # STACK_GLOBAL
    yield b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93" + code + b"\x85R."
    yield b"\x80\x02\x82\x01" + word + b"\x85R."  # EXT1
    yield b"\x80\x02\x83\x01\x00" + word + b"\x85R."
    yield b"\x80\x02\x84\x01\x00\x00\x00" + word + b"\x85R."
    yield b"P" + say + b"\n."  # PERSID
    yield word + b"Q."  # BINPERSID
    yield b"]}V__setstate__\ncos\nsystem\nsb" + word + b"b."  # BUILD
    yield b"c_codecs\nencode\n" + word + b"Vlatin1\n\x86R0cos\nsystem\n" + word + b"\x85R."
    yield b"c_codecs\nencode\n0cos\nsystem\n" + word + b"\x85R."
    yield b"c_codecs\nencode.__globals__\n" + word + b"\x85R."
    yield b"c_codecs\ndecode\n" + word + b"Vrot13\n\x86R."
    yield b"\x97" + word + b"."  # NEXT_BUFFER
    yield b"\x97\x98" + word + b"."


def test_no_pickle_runs_anything(tmp_path):
    sentinel = tmp_path / "sentinel"
    command = f"touch {sentinel}"
    rng = np.random.default_rng(13)
    # Is the trap alive? pickle itself runs it.
    pickle.loads(pickle.dumps(Reduced(os.system, command)))
    assert sentinel.exists()
    sentinel.unlink()
    for raw in evil(command):
        with pytest.raises(DataError, match=r"^x\.bin: "):
            loads(raw, "x.bin")
        for _ in range(20):
            try:
                loads(damage(raw, rng), "x.bin")
            except DataError as error:
                assert str(error).startswith("x.bin: ")  # noqa: PT017
        path = write(tmp_path / "x.bin", raw)
        with pytest.raises(DataError):
            read_bin(path)
        np.savez(tmp_path / "x.npz", x=noise(2, 2), y=np.array([Reduced(os.system, command), 1], dtype=object))
        with pytest.raises(DataError, match="Python objects"):
            read_npz(tmp_path / "x.npz")
    assert not sentinel.exists()


def test_lies_about_size_cost_no_memory(tmp_path):
    big = 2**31 - 1
    idx = struct.pack(">HBB3I", 0, 0x0E, 3, 2**20, 2**10, 2**10) + bytes(100)
    head = repr({"descr": "<f8", "fortran_order": False, "shape": (2**27, 2)}).encode() + b"\n"
    npy = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + bytes(64)
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w") as archive:
        archive.writestr("x.npy", npy)
        archive.writestr("y.npy", npy)
    zipped = stored.getvalue()
    # The same with the zip's own sizes made to fit the lie, so that only reading shows it.
    sizes, promised = struct.pack("<II", len(npy), len(npy)), len(npy) - 64 + 2**31
    lied = zipped.replace(sizes, struct.pack("<II", len(npy), promised))
    lied_twice = zipped.replace(sizes, struct.pack("<II", promised, promised))
    cases = [
        (read_idx_array, idx),
        (read_idx_array, gzip.compress(idx)),
        (read_npz, zipped),
        (read_npz, lied),
        (read_npz, lied_twice),
        (read_bin, b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x."),
        (read_bin, b"T" + struct.pack("<i", -1) + b"."),
        (read_bin, b"\x8b" + struct.pack("<i", big) + b"."),
        (read_records, struct.pack("<II", 0xCED7230A, 2**29 - 1) + record([1.0] * 3, b"x")),
        (read_records, struct.pack("<III", 0xCED7230A, 28, 2**32 - 1) + bytes(24)),
    ]  # fmt: skip
    # Address space is taken before the lie is noticed; of the 2 GiB and more that each promises, a tenth would show
    # in the pages that were touched. A high-water mark of other tests can only hide it, on no machine cause it.
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for k, (read, raw) in enumerate(cases):
        path = write(tmp_path / f"{k}.rec", raw)
        with pytest.raises(DataError, match=re.escape(str(path))):
            read(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB


def test_zeros_pack_well_and_stop_at_the_promised_size(tmp_path, monkeypatch):
    """A stream of zeros a thousand times its file is refused one byte after what its header promised."""
    zeros = gzip.compress(struct.pack(">HBBI", 0, 8, 1, 10) + bytes(2**24), 9)
    path = write(tmp_path / "labels.gz", zeros)
    asked, read = [], gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, size=-1: asked.append(size) or read(self, size))
    with pytest.raises(DataError, match="it goes on after the 10 bytes"):
        read_idx_array(path)
    assert sum(asked) == 8 + 10 + 1
    assert write_idx(tmp_path / "fine.gz", np.zeros(2**20, np.uint8)).stat().st_size < 2**13
    assert read_idx_array(tmp_path / "fine.gz").shape == (2**20,)
