"""Every format read back to the exact pixels and labels, and every refusal in its words."""

import gzip
import os
import pickle
import re
import struct
import sys
import zipfile
import zlib

import numpy as np
import pytest
from formats import (
    encoded,
    framed,
    noise,
    photo,
    record,
    write,
    write_bin,
    write_faces,
    write_idx,
    write_mnist,
    write_records,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hypermargin.data.arrays import from_parts, read_npz
from hypermargin.data.base import TEST, TRAIN, VALIDATION, DataError
from hypermargin.data.folder import read_folder
from hypermargin.data.idx import find_fashion_mnist, read_idx, read_idx_array
from hypermargin.data.images import MAX_PIXELS, decode, probe
from hypermargin.data.pairlists import check_both, read_list
from hypermargin.data.pairs import read_bin, read_csv, read_pairs
from hypermargin.data.plainpickle import loads
from hypermargin.data.recordio import read_records


def refused(*words):
    return pytest.raises(DataError, match="(?s)" + ".*".join(map(re.escape, words)))


def equal(got, expected):
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, expected)


# --- one image


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3)])
def test_lossless_formats_give_their_pixels(kind, shape):
    pixels = noise(*shape)
    raw = encoded(pixels, kind, **({"lossless": True} if kind == "WEBP" else {}))
    seen = decode(raw, shape, "here")
    equal(seen, pixels)
    assert seen.flags.writeable
    assert probe(raw, "here") == (shape if kind != "WEBP" else (5, 7, 3))


def test_modes_are_converted():
    gray = noise(4, 6)
    rgb = noise(4, 6, 3)
    sixteen = Image.fromarray(gray.astype(np.uint16) * 256 + 77)
    equal(decode(encoded(sixteen), (4, 6), ""), gray)  # the high byte
    assert probe(encoded(sixteen), "") == (4, 6)
    alpha = noise(4, 6, seed=1)
    laid_on_black = np.round(rgb * (alpha[..., None] / 255)).astype(int)
    clear = decode(encoded(np.dstack([rgb, alpha])), (4, 6, 3), "")
    assert np.abs(clear.astype(int) - laid_on_black).max() <= 1
    palette = Image.fromarray(rgb).quantize(16)
    equal(decode(encoded(palette), (4, 6, 3), ""), np.asarray(palette.convert("RGB")))
    equal(decode(encoded(palette, "GIF"), (4, 6, 3), ""), np.asarray(palette.convert("RGB")))
    ink = gray > 99
    equal(decode(encoded(Image.fromarray(ink)), (4, 6), ""), ink * np.uint8(255))
    equal(decode(encoded(gray), (4, 6, 3), ""), np.dstack([gray] * 3))
    equal(decode(encoded(rgb), (4, 6), ""), np.asarray(Image.fromarray(rgb).convert("L")))
    assert decode(encoded(photo(9, 9).convert("CMYK"), "JPEG"), (9, 9, 3), "").shape == (9, 9, 3)
    with refused("here", "floating-point"):
        decode(encoded(Image.fromarray(np.ones((4, 6), np.float32)), "TIFF"), (4, 6), "here")


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_exif_orientation_is_applied(turn, kind):
    pixels = noise(4, 6, 3)
    exif = Image.Exif()
    exif[0x0112] = turn
    raw = encoded(pixels, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    # From the standard: which side of the picture the 0th row and the 0th column of the file are.
    upright = {
        1: pixels,
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: pixels.swapaxes(0, 1),
        6: pixels.swapaxes(0, 1)[:, ::-1],
        7: pixels.swapaxes(0, 1)[::-1, ::-1],
        8: pixels.swapaxes(0, 1)[::-1],
    }[turn]
    assert probe(raw, "") == upright.shape
    equal(decode(raw, upright.shape, ""), upright)


@pytest.mark.parametrize(("height", "width", "turn"), [(900, 1200, 1), (1200, 700, 6), (230, 250, 1)])
def test_large_photographs_shrink_as_if_fully_decoded(height, width, turn):
    exif = Image.Exif()
    exif[0x0112] = turn
    raw = encoded(photo(height, width), "JPEG", quality=95, exif=exif)
    full = decode(raw, probe(raw, ""), "")
    for shape in ((112, 112, 3), (40, 90, 3), (64, 64)):
        slow = Image.fromarray(full).resize(shape[1::-1], Image.Resampling.BILINEAR)
        slow = np.asarray(slow if len(shape) == 3 else slow.convert("L")).astype(int)
        quick = decode(raw, shape, "").astype(int)
        assert np.abs(quick - slow).mean() < 1.5
        assert np.abs(quick - slow).max() < 24


def test_shrinking_is_antialiased():
    stripes = np.zeros((64, 64), np.uint8)
    stripes[:, ::2] = 200
    assert np.abs(decode(encoded(stripes), (16, 16), "").astype(int)[:, 1:-1] - 100).max() <= 3


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "it is empty"),
        (b"hello, this is no picture", "none of JPEG, PNG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "none of JPEG, PNG"),
        (encoded(noise(40, 40, 3))[:900], "broken"),
        (encoded(photo(40, 40), "JPEG")[:500], "broken"),
    ],
)
def test_broken_images_name_their_place(raw, why):
    with refused("album/7.png: ", why, "Replace or remove it."):
        decode(raw, (8, 8), "album/7.png")


@pytest.mark.parametrize("side", [9000, 30000])
def test_decompression_bombs_are_refused(side):
    chunk = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    with refused("bomb.png", f"{MAX_PIXELS:,}", "HYPERMARGIN_MAX_PIXELS"):
        decode(bomb + encoded(noise(2, 2))[33:], (8, 8), "bomb.png")


@pytest.mark.parametrize("on_bad", ["error", "skip"])
def test_without_pillow_it_is_named_and_no_image_is_called_bad(tmp_path, monkeypatch, on_bad):
    raw = encoded(noise(2, 2))
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(raw)
    monkeypatch.setitem(sys.modules, "PIL", None)
    sentence = "^reading images needs pillow, which is not installed. Run: pip install pillow$"
    with pytest.raises(ModuleNotFoundError, match=sentence):
        decode(raw, (2, 2), "x.png")
    with pytest.raises(ModuleNotFoundError, match=sentence):
        read_folder(tmp_path, on_bad=on_bad)


# --- folders

PIXELS = noise(6, 8, 9, 3)


def fill(folder, names, first=0):
    for k, name in enumerate(names, first):
        write(folder / name, encoded(PIXELS[k]))
    return folder


def test_folder(tmp_path):
    fill(tmp_path, ["bob/1.png", "alice/b.PNG", "alice/deep/er/a.png"])
    write(tmp_path / "alice/notes.txt", b"x")
    write(tmp_path / "alice/.hidden.png", b"x")
    write(tmp_path / ".cache/1.png", b"x")
    data = read_folder(tmp_path)
    assert data.classes == ("alice", "bob")
    assert data.labels.tolist() == [0, 0, 1]
    for row, k in enumerate((1, 2, 0)):
        equal(data.samples[row], PIXELS[k])
    assert data.shape == (3, 8, 9)
    assert (data.parts, data.open_set, data.augment, data.bad) == (None, True, "flip", [])
    assert data.where(2) == str(tmp_path / "bob/1.png")
    again = pickle.loads(pickle.dumps(data.samples))
    equal(again[2], PIXELS[0])
    small = read_folder(tmp_path, size=5, color="gray")
    assert small.samples.shape == small.samples[1].shape == (5, 5)
    assert small.augment == "none"


def test_folder_auto_color_is_the_first_image(tmp_path):
    write(tmp_path / "a/1.png", encoded(noise(4, 4)))
    write(tmp_path / "b/1.png", encoded(noise(6, 5, 3)))
    data = read_folder(tmp_path)
    assert [data.samples[k].shape for k in (0, 1)] == [(4, 4)] * 2
    assert read_folder(tmp_path, color="rgb").samples.shape == (4, 4, 3)


@pytest.mark.parametrize(("tested", "open_set"), [("carol", True), ("alice", False)])
@pytest.mark.parametrize("val", ["", "val", "valid", "validation"])
def test_folder_with_its_own_split(tmp_path, tested, open_set, val):
    fill(tmp_path, ["train/alice/1.png", "train/bob/1.png", f"test/{tested}/1.png"])
    if val:
        fill(tmp_path, [f"{val}/bob/9.png"], 3)
    data = read_folder(tmp_path)
    found = {(data.classes[label], part) for label, part in zip(data.labels, data.parts, strict=True)}
    expected = {("alice", TRAIN), ("bob", TRAIN), (tested, TEST)} | ({("bob", VALIDATION)} if val else set())
    assert found == expected
    assert data.open_set == open_set
    row = int(np.flatnonzero(data.parts == TEST)[0])
    equal(data.samples[row], PIXELS[2])


def test_folder_refusals(tmp_path):
    with refused(str(tmp_path / "none"), "cannot be read"):
        read_folder(tmp_path / "none")
    with refused(str(tmp_path), "there are no images in it", "one sub-folder per identity"):
        read_folder(tmp_path)
    fill(tmp_path, ["1.png"])
    with refused(str(tmp_path), "images such as 1.png lie in it without an identity", "alice/1.jpg"):
        read_folder(tmp_path)
    fill(tmp_path, ["train/alice/1.png"])
    with refused("train look like a split", "needs train/ and test/"):
        read_folder(tmp_path)
    with pytest.raises(ValueError, match="color must be one of 'auto', 'gray', 'rgb'; got 'grey'"):
        read_folder(tmp_path, color="grey")
    with pytest.raises(ValueError, match="size must be at least 1; got 0"):
        read_folder(tmp_path, size=0)
    with pytest.raises(ValueError, match="on_bad must be one of"):
        read_folder(tmp_path, on_bad="ignore")


def test_folder_leaves_out_what_is_bad(tmp_path):
    fill(tmp_path, ["bob/1.png", "carol/1.png"])
    write(tmp_path / "alice/1.png", b"broken")
    write(tmp_path / "empty/readme.txt", b"")
    with refused(str(tmp_path / "empty"), "a label without images", 'on_bad="skip"'):
        read_folder(tmp_path)
    data = read_folder(tmp_path, on_bad="skip")
    assert data.classes == ("bob", "carol")
    assert [bad.where for bad in data.bad] == [str(tmp_path / "empty"), str(tmp_path / "alice/1.png")]
    assert "without images" in data.bad[0].why
    assert data.bad[1].why.startswith("not an image")
    write(tmp_path / "carol/1.png", b"broken")
    with refused(str(tmp_path / "carol/1.png"), "not an image"):
        data.samples[1]
    os.remove(tmp_path / "bob/1.png")
    with refused(str(tmp_path / "bob/1.png"), "cannot be read", "No such file"):
        data.samples[0]


@pytest.mark.parametrize("below", ["", "train/", "test/"])
def test_alphabet_and_character_are_not_merged(tmp_path, below):
    names = [f"{alphabet}/{character}/1.png" for alphabet in ("Greek", "Latin") for character in ("c1", "c2")]
    fill(tmp_path, [below + name for name in names])
    if below:
        other = "test" if below == "train/" else "train"
        fill(tmp_path, [f"{other}/Thai/c1/1.png", f"{other}/Thai/c1/2.png"], 4)
    more = 1 if below else 0
    shown = f"{below}Greek/c1/1.png"
    with refused(
        str(tmp_path), shown, f"--levels) to 1 for the first ({2 + more} identities)", f"together ({4 + more})"
    ):
        read_folder(tmp_path)
    assert len(read_folder(tmp_path, levels=1).classes) == 2 + more
    assert read_folder(tmp_path, levels=2).classes == (
        "Greek/c1", "Greek/c2", "Latin/c1", "Latin/c2", *(["Thai/c1"] if below else []),
    )  # fmt: skip
    fill(tmp_path, [f"{below}Greek/loose.png"])
    with refused(f"{below}Greek/loose.png", "above the 2 folders that name an identity"):
        read_folder(tmp_path, levels=2)
    assert len(read_folder(tmp_path, levels=2, on_bad="skip").bad) == 1
    with pytest.raises(ValueError, match="levels must be at least 1; got 0"):
        read_folder(tmp_path, levels=0)


def test_one_folder_more_merges_nobody(tmp_path):
    fill(tmp_path, ["alice/photos/1.png", "bob/photos/1.png", "carol/1.png", "carol/a/1.png", "carol/b/1.png"])
    assert read_folder(tmp_path).classes == ("alice", "bob", "carol")


def test_levels_end_where_links_lead_back_up(tmp_path):
    fill(tmp_path, ["a/x/1.png", "b/y/1.png"])
    os.symlink(tmp_path, tmp_path / "a/up")
    assert read_folder(tmp_path, levels=2).classes == ("a/x", "b/y")


def test_a_split_with_something_beside_it_is_no_identity(tmp_path):
    fill(tmp_path, ["train/alice/1.png", "test/bob/1.png", "extra/carol/1.png"])
    with refused(str(tmp_path), "test, train look like a split", "there is also extra", "Move that away"):
        read_folder(tmp_path)
    train = fill(tmp_path / "trains", ["train/1.png", "tram/1.png"])  # a train is a thing too
    assert read_folder(train).classes == ("train", "tram")


def test_links_that_lead_back_up_end(tmp_path):
    fill(tmp_path, ["a/1.png", "b/1.png"])
    os.symlink(tmp_path, tmp_path / "a/up")
    os.symlink(tmp_path / "b", tmp_path / "c")  # an identity may be a link
    assert read_folder(tmp_path).classes == ("a", "b", "c")


# --- arrays

LABELS = np.array([7, 3, 7, 9, 3])


def save(tmp_path, **arrays):
    np.savez_compressed(tmp_path / "x.npz", **arrays)
    return tmp_path / "x.npz"


@pytest.mark.parametrize(
    "shape", [(5, 6, 4), (5, 6, 4, 1), (5, 1, 6, 4), (5, 6, 4, 3), (5, 3, 6, 4), (5, 8), (5, 1)]
)
@pytest.mark.parametrize("dtype", ["u1", "f8", ">f4", "<i2", "?"])
@pytest.mark.parametrize("order", "CF")
def test_npz_shapes(tmp_path, shape, dtype, order):
    array = np.asarray(noise(*shape).astype(dtype), order=order)
    data = read_npz(save(tmp_path, images=array, labels=LABELS))
    expected = array
    if shape[1] in (1, 3) and len(shape) == 4:
        expected = np.moveaxis(array, 1, 3)
    if len(shape) == 4 and expected.shape[3] == 1:
        expected = expected[..., 0]
    np.testing.assert_array_equal(data.samples, expected.astype(data.samples.dtype))
    assert data.samples.dtype == (np.uint8 if dtype == "u1" and len(shape) > 2 else np.float32)
    assert data.samples.flags.c_contiguous
    assert data.classes == ("3", "7", "9")
    assert data.labels.tolist() == [1, 0, 1, 2, 0]
    assert data.augment == ("flip" if expected.ndim == 4 else "none")
    assert (data.open_set, data.parts) == (True, None)


@pytest.mark.parametrize("key", ["images", "samples", "features", "embeddings", "x", "X", "data"])
@pytest.mark.parametrize("name", ["labels", "label", "y", "identity", "target"])
def test_npz_keys(tmp_path, key, name):
    path = save(tmp_path, **{"other": np.zeros(2), key: noise(5, 4), name: np.array(list("abcab"))})
    data = read_npz(path)
    assert data.classes == ("a", "b", "c")
    assert data.labels.tolist() == [0, 1, 2, 0, 1]
    np.testing.assert_array_equal(data.samples, noise(5, 4))


def test_npz_named_keys_classes_and_split(tmp_path):
    names = np.array([f"class {k}" for k in range(12)])
    path = save(
        tmp_path, foo=noise(5, 4, 4), images=noise(5, 2), bar=LABELS, classes=names, split=np.uint8([0, 1, 0, 2, 1])
    )
    data = read_npz(path, samples_key="foo", labels_key="bar")
    assert data.classes == ("class 3", "class 7", "class 9")
    assert data.parts.tolist() == [TRAIN, TEST, TRAIN, VALIDATION, TEST]
    assert data.open_set
    path = save(
        tmp_path, x=noise(5, 2), y=LABELS.astype("S"), split=np.array(["train", "test", "test", "val", "train"])
    )
    data = read_npz(path)
    assert data.parts.tolist() == [TRAIN, TEST, TEST, VALIDATION, TRAIN]
    assert not data.open_set
    assert data.classes == ("3", "7", "9")


def test_npz_rows_with_nan(tmp_path):
    rows = np.ones((5, 3))
    rows[1, 2], rows[3, 0] = np.nan, 1e39  # the second is inf in float32
    path = save(tmp_path, x=rows, y=LABELS, split=np.int64([0, 0, 0, 1, 1]))
    with refused(f"{path}, sample 1: it holds NaN or inf", 'on_bad="skip"'):
        read_npz(path)
    data = read_npz(path, on_bad="skip")
    assert [bad.where for bad in data.bad] == [f"{path}, sample 1", f"{path}, sample 3"]
    assert data.classes == ("3", "7")
    assert data.labels.tolist() == [1, 1, 0]
    assert data.parts.tolist() == [TRAIN, TRAIN, TEST]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": noise(5, 2), "y": LABELS}, ["no array named images", "a (5, 2) uint8; y (5,) int64", "samples_key"]),
        ({"x": noise(5, 2), "b": LABELS}, ["no array named labels", "b (5,) int64", "labels_key"]),
        ({"x": noise(5, 2), "y": LABELS[:4]}, ["labels must have shape (5,), one per sample; got (4,)"]),
        ({"x": noise(5, 2), "y": np.eye(5, dtype=int)}, ["labels must have shape (5,)", "argmax(1)"]),
        ({"x": noise(5, 2), "y": LABELS / 2}, ["labels must be integers or strings; got float64", "astype(int)"]),
        ({"x": noise(5, 2), "y": LABELS, "split": LABELS}, ["split must be train, test or val", "got '3'"]),
        ({"x": noise(5, 2), "y": LABELS, "split": LABELS * 0.5}, ["split must be integers or strings; got"]),
        ({"x": noise(5, 2), "y": LABELS, "classes": LABELS}, ["classes must name every label 3 … 9"]),
        ({"x": noise(5), "y": LABELS}, ["samples must be images (N, H, W[, 3]) or vectors (N, d); got (5,)"]),
        ({"x": noise(5, 3, 4, 3), "y": LABELS}, ["got (5, 3, 4, 3), where both look like channels"]),
        ({"x": noise(5, 6, 4, 4), "y": LABELS}, ["where neither is 1 or 3 channels"]),
        ({"x": np.array(list("abcde")), "y": LABELS}, ["samples must be numbers; got <U1"]),
        ({"x": noise(5, 2), "y": np.array([{}, 1, 2, 3, 4])}, ["array 'y'", "Python objects", "dtype=str"]),
        ({"x": np.zeros((5, 0)), "y": LABELS}, ["array 'x': it is empty; got shape (5, 0)"]),
    ],
)  # fmt: skip
def test_npz_refusals(tmp_path, arrays, words):
    path = save(tmp_path, **arrays)
    with refused(str(path), *words):
        read_npz(path)


def test_npz_named_key_must_be_there(tmp_path):
    path = save(tmp_path, x=noise(5, 2), y=LABELS)
    with refused(str(path), "no array 'speaker'", "x (5, 2) uint8; y (5,) int64", "labels_key"):
        read_npz(path, labels_key="speaker")


def npy(shape, body, descr="|u1"):
    head = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head) + 1) + head + b"\n" + body


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (npy((10**12, 4), bytes(20)), ["needs 4000000000000 bytes, but 20 are stored"]),
        (npy((5, 4), bytes(21)), ["needs 20 bytes, but 21 are stored"]),
        (npy((-5, -4), bytes(20)), ["it is empty; got shape (-5, -4)"]),
        (npy((10**18, 0), b""), ["it is empty"]),
        (npy((5,), b"(dp0\n.", "|O"), ["Python objects"]),
        (b"not an array", ["not a readable .npz file"]),
        (b"", ["not a readable .npz file"]),
    ],
)
def test_npz_with_lying_headers(tmp_path, entry, words):
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", entry)
        archive.writestr("y.npy", npy((5,), bytes(5)))
    with refused(str(tmp_path / "x.npz"), *words):
        read_npz(tmp_path / "x.npz")


def test_npz_memory_limit_and_other_files(tmp_path):
    path = save(tmp_path, x=np.zeros((5, 10**6), np.uint8), y=LABELS)
    assert path.stat().st_size < 10**4
    with refused(str(path), "array 'x': it has 5,000,128 bytes, and more than 5,000,000 are not read"):
        read_npz(path, memory_limit=5 * 10**6)
    for raw in (b"", b"PK", b"\x93NUMPY"):
        with refused("y.npz", "not a readable .npz file"):
            read_npz(write(tmp_path / "y.npz", raw))
    with refused("no.npz", "No such file"):
        read_npz(tmp_path / "no.npz")
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", npy((5, 1), bytes(5)))
    with refused("x.npz, array 'x': unknown compression", "np.savez"):
        read_npz(tmp_path / "x.npz")


def test_arrays_in_memory():
    data = from_parts("mine", np.ones((5, 2)), list("abcab"), open_set=False)
    assert (data.name, data.open_set, data.classes) == ("mine", False, ("a", "b", "c"))
    with refused("mine: there are no samples; got shape (0, 2)"):
        from_parts("mine", np.ones((0, 2)), [])


# --- IDX


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("dot", "-.")
def test_mnist(tmp_path, ending, dot):
    images, labels = noise(7, 4, 5), np.uint8([2, 0, 2, 1, 0, 1, 2])
    data = read_idx(write_mnist(tmp_path, images, labels, tests=3, ending=ending, dot=dot))
    equal(data.samples, np.concatenate([images[3:], images[:3]]))
    assert data.labels.tolist() == [1, 0, 1, 2, 2, 0, 2]
    assert data.classes == ("0", "1", "2")
    assert data.parts.tolist() == [TRAIN] * 4 + [TEST] * 3
    assert (data.open_set, data.augment) == (False, "none")


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "f4", "f8"])
@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3, 1)])
@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_idx_arrays(tmp_path, dtype, shape, name):
    array = (noise(*shape).astype(int) - 99).astype(dtype)
    back = read_idx_array(write_idx(tmp_path / name, array))
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


HEAD = struct.pack(">HBBII", 0, 8, 2, 2, 3)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", ["it ends after 0 of 4 bytes"]),
        (HEAD[:9], ["it ends after 5 of 8 bytes"]),
        (HEAD + bytes(5), ["ends after 5 of 6 bytes"]),
        (HEAD + bytes(7), ["it goes on after the 6 bytes of its shape (2, 3)"]),
        (struct.pack(">HBB", 0, 0x0A, 1), ["type 0x0a in 1 dimensions"]),
        (struct.pack(">HBB3I", 0, 8, 3, 2**31, 2**31, 2**31), ["which do not fit into the file"]),
        (struct.pack(">HBBII", 0, 8, 2, 0, 3), ["it is empty, of shape (0, 3)"]),
    ],
)
def test_idx_refusals(tmp_path, raw, words):
    for path, content in (("f", raw), ("f.gz", gzip.compress(raw))):
        with refused(str(tmp_path / path), "not a readable IDX file", *words):
            read_idx_array(write(tmp_path / path, content))
    whole = gzip.compress(HEAD + bytes(6))
    for broken in (whole[:-9], whole[:-8] + bytes(8), whole[:12] + b"\xff" * 9):
        with refused("g.gz: not a readable IDX file"):
            read_idx_array(write(tmp_path / "g.gz", broken))


def test_mnist_refusals(tmp_path):
    with refused(str(tmp_path), "there is no train-images-idx3-ubyte, plain or .gz"):
        read_idx(tmp_path)
    write_mnist(tmp_path, noise(7, 4, 5), np.zeros(7, np.uint8), tests=3)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.zeros(2, np.uint8))
    with refused("t10k-labels-idx1-ubyte: labels must have shape (3,) like t10k-images-idx3-ubyte; got (2,)"):
        read_idx(tmp_path)
    write_mnist(tmp_path, noise(7, 4, 5), np.zeros(7, np.uint8), tests=3)
    write_idx(tmp_path / "t10k-images-idx3-ubyte", noise(3, 4, 4))
    with refused(str(tmp_path), "samples of shape (4, 5) in train, (4, 4) in t10k"):
        read_idx(tmp_path)


def test_fashion_mnist_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr("hypermargin.data.idx.DEBIAN", tmp_path / "debian")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HYPERMARGIN_DATA", str(tmp_path / "mine"))
    with refused(
        str(tmp_path / "debian"), "apt install dataset-fashion-mnist", str(tmp_path / "mine/fashion-mnist")
    ):
        find_fashion_mnist()
    for folder in ("debian", "cache/hypermargin/fashion-mnist", "mine/fashion-mnist"):
        (tmp_path / folder).mkdir(parents=True)
        assert find_fashion_mnist() == tmp_path / folder


# --- records

PNGS = [encoded(pixels) for pixels in PIXELS]
FACES = [4, 4, 0, 0, 0, 7]


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("as_folder", [True, False])
def test_records_of_insightface(tmp_path, index, as_folder):
    path = write_faces(tmp_path / "train.rec", FACES, PNGS, index)
    data = read_records(tmp_path if as_folder else path)
    assert data.classes == ("0", "4", "7")
    assert data.labels.tolist() == [1, 1, 0, 0, 0, 2]
    for row, pixels in enumerate(PIXELS):
        equal(data.samples[row], pixels)
    assert data.augment == "flip"
    assert data.where(1).startswith(f"{path}, key {2 if index else 1} at offset ")
    again = pickle.loads(pickle.dumps(data.samples))
    equal(again[5], PIXELS[5])
    assert read_records(path, size=4, color="gray").samples[2].shape == (4, 4)


def test_records_without_a_header_and_with_more_labels(tmp_path):
    records = [(k, record(float(label) if k % 2 else [label, 0.5, -1.0], PNGS[k])) for k, label in enumerate(FACES)]
    data = read_records(write_records(tmp_path / "a.rec", records[::-1]))
    assert [data.classes[label] for label in data.labels] == [str(label) for label in FACES[::-1]]
    equal(data.samples[0], PIXELS[5])
    equal(data.samples[1], PIXELS[4])


@pytest.mark.parametrize("head", [[2.0, 5.0], [4.0, 6.0, 640.0, 480.0]])
def test_records_for_detection_are_refused(tmp_path, head):
    extra = [0.0] * (int(head[1]) - 5)
    boxes = [[*head, *([3.0, 0.1, 0.2, 0.5, 0.9, *extra] * (1 + k % 3))] for k in range(6)]
    path = write_records(tmp_path / "a.rec", [(k, record(boxes[k], PNGS[k])) for k in range(6)])
    with refused(str(path), "its labels are boxes around objects, for detection", "Cut the objects out"):
        read_records(path)
    # The same person 2 with a box and a landmark, and somebody else: identities, as insightface wrote them.
    faces = [[float(k % 2), 5.0, 10.0, 80.0, 90.0, 30.0, 40.0] for k in range(6)]
    path = write_records(tmp_path / "b.rec", [(k, record(faces[k], PNGS[k])) for k in range(6)])
    assert read_records(path).classes == ("0", "1")


def test_records_after_the_header_s_end_are_no_images(tmp_path):
    records = [(k, record(float(k % 2), PNGS[k])) for k in range(1, 6)] + [(0, record([4.0, 6.0], b""))]
    assert len(read_records(write_records(tmp_path / "a.rec", records))) == 3


@pytest.mark.parametrize("index", [True, False])
def test_records_that_contain_the_magic_number_are_joined(tmp_path, index):
    magic = struct.pack("<I", 0xCED7230A)
    gray = np.frombuffer(magic * 16, np.uint8).reshape(8, 8)
    image = b"P5\n# ....\n8 8\n255\n".replace(b"....", b"." * 6) + gray.tobytes()  # a PGM is its pixels
    assert image.index(magic) % 4 == 0
    content = struct.pack("<IfQ", 0, 3.0, 5) + magic + bytes(4) + image  # one more where id2 stands
    assert framed(content)[7] >> 5 == 1, "it must be written in pieces"
    records = [(0, record(1.0, encoded(gray))), (1, content)]
    data = read_records(write_records(tmp_path / "a.rec", records, index))
    assert data.classes == ("1", "3")
    equal(data.samples[0], gray)
    equal(data.samples[1], gray)


def test_many_records_in_several_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("hypermargin.data.recordio.CHUNK", 4)
    labels = [k // 3 for k in range(23)]
    data = read_records(write_faces(tmp_path / "train.rec", labels, [PNGS[k % 6] for k in range(23)]))
    assert data.labels.tolist() == labels
    equal(data.samples[22], PIXELS[4])


def test_broken_records_are_named_or_left_out(tmp_path):
    path = write_faces(tmp_path / "train.rec", FACES, PNGS)
    raw, lines = path.read_bytes(), (tmp_path / "train.idx").read_text().splitlines()
    at = [int(line.split("\t")[1]) for line in lines]

    def check(why, key, offset, keep, raw=raw, lines=lines):
        write(path, raw)
        write(tmp_path / "train.idx", "\n".join(lines).encode())
        with refused(f"{path}, key {key} at offset {offset}: ", why):
            read_records(path)
        data = read_records(path, on_bad="skip")
        assert data.bad[0].where == f"{path}, key {key} at offset {offset}"
        assert [data.samples.keys[row] for row in range(len(data))] == keep
        equal(data.samples[len(data) - 1], PIXELS[keep[-1] - 1])

    def patched(offset, piece):
        return raw[:offset] + piece + raw[offset + len(piece) :]

    rest = [1, 3, 4, 5, 6]
    check("magic number 0x00000000, not 0xced7230a", 2, at[1], rest, patched(at[1], bytes(4)))
    check("no record can begin there", 2, 10**15, rest, lines=[lines[0], f"2\t{10**15}", *lines[2:]])
    check("no record can begin there", 2, -8, rest, lines=[lines[0], "2\t-8", *lines[2:]])
    check("no record can begin there", 2, at[1] + 1, rest, lines=[lines[0], f"2\t{at[1] + 1}", *lines[2:]])
    check("the record is cut off", 2, at[1], rest, patched(at[1] + 4, struct.pack("<I", 2**29 - 1)))
    check("piece 2 of a record", 2, at[1], rest, patched(at[1] + 4, struct.pack("<I", 2 << 29 | 99)))
    check("after 1 pieces", 2, at[1], rest, patched(at[1] + 4, struct.pack("<I", 1 << 29 | at[2] - at[1] - 8)))
    check("fewer than its header's 24", 2, at[1], rest, patched(at[1] + 4, struct.pack("<I", 20)))
    check("too few for 999999 labels", 2, at[1], rest, patched(at[1] + 8, struct.pack("<I", 999999)))
    for label in (-1.0, 0.5, 2.0**40, 1e30, float("nan"), float("inf")):
        check(f"whole number from 0; got {label:g}", 2, at[1], rest, patched(at[1] + 12, struct.pack("<f", label)))
    check("the record is cut off", 6, at[5], [1, 2, 3, 4, 5], raw[: at[5] + 100], lines[:6])


def test_scan_of_a_truncated_file(tmp_path):
    path = write_faces(tmp_path / "train.rec", FACES, PNGS, index=False)
    write(path, path.read_bytes()[:700])
    with refused(str(path), "cut off", "The rest is lost."):
        read_records(path)
    data = read_records(path, on_bad="skip")
    assert 0 < len(data) < 6
    equal(data.samples[0], PIXELS[0])


def test_records_refusals(tmp_path):
    with refused(str(tmp_path), "exactly one .rec file is needed; found 0"):
        read_records(tmp_path)
    with refused("no.rec", "No such file"):
        read_records(tmp_path / "no.rec")
    with refused("a.rec", "cannot be read", "empty"):
        read_records(write(tmp_path / "a.rec", b""))
    path = write_faces(tmp_path / "a.rec", FACES, PNGS)
    for text in ("", " \n", "0 1 2\n", "zero\t1\n", "0\t99999999999999999999\n", "0\t1\n2\n"):
        write(tmp_path / "a.idx", text.encode())
        with refused("a.idx", "a key, a tab and an offset"):
            read_records(path)
    write_records(path, [(0, record([1.0, 1.0], b""))])
    with refused("a.rec", "there is no image in its 1 records"):
        read_records(path)
    write_records(path, [(0, record(1.0, b"")), (1, record(1.0, b"junk"))])
    with refused("a.rec, key 0 at offset 0: not an image: it is empty"):
        read_records(path)
    with refused("a.rec, key 0", "none of 2 images can be read"):
        read_records(path, on_bad="skip")


# --- pickles of plain data

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.binary() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.binary(), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=100)
@given(plain, st.integers(0, 5))
def test_plain_pickles_are_read_as_pickle_reads_them(value, protocol):
    back = loads(pickle.dumps(value, protocol=protocol), "x")
    assert back == value
    assert repr(back) == repr(value)  # also tells True from 1


def test_pickles_of_python_2():
    jpeg = bytes(range(256))
    for raw in (
        b"((lp0\nS" + repr(jpeg)[1:].encode() + b"\np1\naS'x'\np2\na(lp3\nI01\naI00\natp4\n.",
        b"\x80\x02]q\x00(T\x00\x01\x00\x00" + jpeg + b"q\x01U\x01xq\x02e]q\x03(\x88\x89e\x86q\x04.",
    ):
        assert loads(raw, "x") == ([jpeg, b"x"], [True, False])
    assert loads(b"L12345678901234567890L\n.", "x") == 12345678901234567890


def arrays_in(raw):
    """Name numpy's modules as numpy 1 did."""
    return (
        raw.replace(b"numpy._core", b"numpy.core")
        .replace(b"\x8c\x16numpy.core", b"\x8c\x15numpy.core")
        .replace(b"\x8c\x13numpy.core", b"\x8c\x12numpy.core")
    )


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_of_bytes_are_read_as_numpy_pickles_them(protocol):
    raw = bytes(range(256))
    column, row = np.frombuffer(raw, np.uint8).reshape(-1, 1), np.frombuffer(raw, np.uint8)
    answers = np.array([True, False, True])
    given = [row, column, np.array(row), answers, np.bool_(True), np.bool_(False), np.zeros(0, np.uint8)]
    new = pickle.dumps(given, protocol)
    new = new[:2] + new[11:] if protocol >= 4 else new  # without a frame, whose length is another
    for content in (new, arrays_in(new)):
        *arrays, yes, no, empty = loads(content, "x")
        assert [(a.dtype, a.raw) for a in arrays] == [("uint8", raw)] * 3 + [("bool", b"\1\0\1")]
        assert (yes, no, empty.raw) == (True, False, b"")
    assert pickle.loads(new)[4] == yes  # numpy reads it too


def test_arrays_of_python_2():
    raw = (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x03\x85"
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        b"U\x03abctb."
    )
    assert loads(raw, "x").raw == b"abc"


class Rows(np.ndarray):
    """A class of somebody's."""


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "value",
    [
        np.zeros(3, np.int8),
        np.zeros(3, np.int64),
        np.zeros(3),
        np.array(["a"]),
        np.array([b"a"]),
        np.array([None]),
        np.array([print], dtype=object),
        np.zeros(2, [("a", "u1")]),
        np.zeros((2, 2), np.uint8, order="F"),
        np.zeros((3, 1, 1), np.uint8),
        np.array(3, np.uint8),
        np.float64(1.0),
        np.uint8(3),
        np.datetime64("2020-01-01"),
        np.zeros(3, np.uint8).view(Rows),
        np.dtype("i4"),
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', value)} {np.shape(value)}",
)
def test_no_other_arrays_are_read(value, protocol):
    with refused("lfw.bin: the pickle asks for ", "Only plain lists"):
        loads(pickle.dumps(value, protocol), "lfw.bin")


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_of_rows_are_read_and_are_no_encoded_images(tmp_path, protocol):
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    found = loads(pickle.dumps(array, protocol), "")
    assert (found.shape, found.raw) == ((2, 3), bytes(range(6)))
    (tmp_path / "lfw.bin").write_bytes(pickle.dumps(([array] * 2, [True]), protocol))
    with refused(f"{tmp_path / 'lfw.bin'}, pair 0", "not bytes but PlainArray"):
        read_bin(tmp_path / "lfw.bin")


def test_arrays_that_lie_are_refused():
    whole = pickle.dumps(np.frombuffer(b"abcdef", np.uint8), 3)
    for old, new, words in (
        (b"K\x06\x85", b"K\x07\x85", "an array of shape (7,) in 6 bytes"),
        (b"K\x06\x85", b"J\xff\xff\xff\xff\x85", "not made of numbers"),
        (b"K\x06\x85", b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85", "in 6 bytes"),
        (b"K\x06\x85", b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x85", "not made of numbers"),
        (b"K\x06\x85", b"\x88\x85", "not made of numbers"),
        (b"K\x06\x85", b")", "asks for a numpy array of shape ()"),
        (b"C\x06abcdef", b"]", "of an unknown kind"),
        (b"\x89C\x06", b"\x88C\x06", "another layout"),
        (b"cnumpy\nndarray", b"cnumpy\ndtype", "of an unknown kind"),
        (b"cnumpy\nndarray", b"cbuiltins\neval", "asks for builtins.eval"),
        (b"X\x02\x00\x00\x00u1", b"X\x01\x00\x00\x00O", "numpy.dtype('O')"),
    ):
        assert old in whole
        with refused("x: ", words):
            loads(whole.replace(old, new), "x")
    circle = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87Rq\x00h\x00b."
    with refused("x: ", "a state to be set"):
        loads(circle, "x")
    with refused("x: ", "asks for a call"):  # a string is no name, whatever it says
        loads(b"V_codecs.encode\n(Va\nVlatin1\ntR.", "x")


def test_shared_and_deep_and_circular_pickles():
    laughs = b"]q\x00" + b"".join(b"]q" + bytes([k + 1]) + (b"h" + bytes([k]) + b"a") * 9 for k in range(60)) + b"."
    with refused("x: the pickle is damaged"):  # sixty lists are left on the stack
        loads(laughs, "x")
    deep = loads(b"]" * 10**5 + b"a" * (10**5 - 1) + b".", "x")
    assert len(deep) == 1
    tuples = loads(b")" + b"\x85" * 10**5 + b".", "x")
    assert len(tuples) == 1
    circle = loads(b"]q\x00h\x00a.", "x")
    assert circle[0] is circle
    doubled = b")q\x00" + b"0h\x00h\x00\x86q\x00" * 90  # hashing it takes 2^90 steps
    with refused("x", "plain strings or numbers as keys"):
        loads(b"}" + doubled + b"Ns.", "x")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", ["it ends at byte 0"]),
        (b"\x80\x04", ["it ends at byte 2"]),
        (b"hello", ["damaged"]),
        (b"\xff\xd8\xff", ["not a pickle: byte 0 is b'\\xff'"]),
        (b"cos\nsystem\n(S'true'\ntR.", ["asks for os.system", "Only plain lists", "can run any program"]),
        (pickle.dumps(np.arange(3), protocol=2), ["asks for numpy", "save it again as lists of bytes and bool"]),
        (pickle.dumps({1, 2}, protocol=4), ["asks for EMPTY_SET"]),
        (b"c_codecs\nencode\n(V a\nVutf-16\ntR.", ["asks for a call"]),
        (b"(.", ["ends inside a list"]),
        (b"NN.", ["damaged"]),
        (b"(q\x00]h\x00a.", ["damaged"]),
        (b"T" + struct.pack("<i", -5) + b".", ["inside an instruction"]),  # a step back would be for ever
        (b"c_codecs\nencode\nK\x01R.", ["asks for a call"]),
    ],
)
def test_other_pickles_are_refused(raw, words):
    with refused("lfw.bin: ", *words):
        loads(raw, "lfw.bin")


# --- pairs


@pytest.mark.parametrize("protocol", range(6))
def test_bin(tmp_path, protocol):
    images = [PNGS[k] for k in (0, 1, 2, 0, 1, 1)]
    path = write_bin(tmp_path / "lfw.bin", images, [True, False, True], protocol)
    pairs = read_bin(path)
    assert len(pairs.samples) == 3  # each distinct image once
    assert pairs.first.tolist() == [0, 2, 1]
    assert pairs.second.tolist() == [1, 0, 1]
    assert pairs.same.tolist() == [True, False, True]
    assert (len(pairs), pairs.fold, pairs.bad) == (3, None, [])
    for row, k in enumerate((0, 1, 2)):
        equal(pairs.samples[row], PIXELS[k])
    assert pairs.samples.where(2) == f"{path}, image 2"
    equal(pickle.loads(pickle.dumps(pairs)).samples[1], PIXELS[1])


@pytest.mark.parametrize("protocol", range(2, 6))
def test_bin_with_numpy_arrays(tmp_path, protocol):
    """As cv2.imencode gives them: in old versions as a column."""
    kinds = [
        np.frombuffer(PNGS[0], np.uint8), np.array(np.frombuffer(PNGS[1], np.uint8)).reshape(-1, 1),
        PNGS[2], np.frombuffer(PNGS[0], np.uint8),
    ]  # fmt: skip
    for same in ([True, False], [np.bool_(True), np.bool_(False)], np.array([True, False])):
        pairs = read_bin(write_bin(tmp_path / "lfw.bin", kinds, same, protocol))
        assert (pairs.first.tolist(), pairs.second.tolist(), pairs.same.tolist()) == ([0, 2], [1, 0], [True, False])
        for row in range(3):
            equal(pairs.samples[row], PIXELS[row])
    path = write_bin(tmp_path / "lfw.bin", [*kinds[:3], np.array([True, False])], [True, False], protocol)
    with refused(f"{path}, pair 1", "not bytes but bytes, PlainArray"):
        read_bin(path)


def test_bin_refusals(tmp_path):
    path = tmp_path / "lfw.bin"
    for value in (3, [1, 2, 3], (PNGS, 3), ({}, [])):
        with refused(str(path), "two lists: encoded images, and whether each pair is the same"):
            read_bin(write(path, pickle.dumps(value)))
    for images, same in ((PNGS[:3], [True, False]), (PNGS[:2], ["yes"]), (PNGS[:4], [1.0, 0.0])):
        with refused(str(path), f"two images a pair; got {len(images)} images and {len(same)} answers"):
            read_bin(write_bin(path, images, same))
    with refused(str(path), "there are no pairs in it"):
        read_bin(write_bin(path, [], []))
    with refused(f"{path}, pair 1: not bytes but bytes, str"):
        read_bin(write_bin(path, [*PNGS[:3], "x"], [True, False]))
    write_bin(path, [b"junk", *PNGS[:2], "x", *PNGS[2:4]], [True, False, True])
    with refused(f"{path}, pair 1"):
        read_bin(path)
    pairs = read_bin(path, on_bad="skip")
    assert [bad.where for bad in pairs.bad] == [f"{path}, pair 1", f"{path}, image 0"]
    assert (pairs.first.tolist(), pairs.second.tolist(), pairs.same.tolist()) == ([1], [2], [True])
    equal(pairs.samples[1], PIXELS[2])
    equal(pairs.samples[2], PIXELS[3])
    with refused("none.bin", "cannot be read"):
        read_bin(tmp_path / "none.bin")


LFW = ["Ann_Lee/Ann_Lee_0001.png", "Ann_Lee/Ann_Lee_0012.png", "Bo/Bo_0003.png", "Cy/Cy_0001.png"]


@pytest.mark.parametrize("space", ["\t", " "])
@pytest.mark.parametrize("head", ["2 1\n", "2\n", ""])
def test_lfw_pairs(tmp_path, space, head):
    fill(tmp_path / "images", LFW)
    lines = ["Ann_Lee 1 12", "Bo 3 Cy 1", "Ann_Lee 12 1", "Ann_Lee 1 Bo 3"]
    path = write(tmp_path / "pairs.txt", (head + "\n".join(lines) + "\n").replace(" ", space).encode())
    pairs = read_pairs(path, tmp_path / "images")
    assert len(pairs.samples) == 4
    assert pairs.first.tolist() == [0, 2, 1, 0]
    assert pairs.second.tolist() == [1, 3, 0, 2]
    assert pairs.same.tolist() == [True, False, True, False]
    assert (pairs.fold.tolist() if head == "2 1\n" else pairs.fold) == ([0, 0, 1, 1] if head == "2 1\n" else None)
    equal(pairs.samples[3], PIXELS[3])


def test_lists_of_trials(tmp_path):
    """VoxCeleb's, Kaldi's, and a name without an ending; which it is follows from all lines."""
    fill(tmp_path, ["a/1.png", "a/2.png", "b/1.png"])
    for text in (
        "1 a/1.png a/2.png\n0 a/1.png b/1.png\n",
        "a/1 a/2 target\na/1 b/1 nontarget\n",
        "a/1.png\ta/2.png\t1\na/1.png\tb/1.png\t0\n",
        "a,b,target\na/1.png,a/2.png,1\na/1.png,b/1.png,0\n",
    ):
        path = write(tmp_path / ("x.csv" if text[1] == "," else "x.txt"), text.encode())
        pairs = read_pairs(path)
        assert (pairs.first.tolist(), pairs.second.tolist(), pairs.same.tolist()) == ([0, 0], [1, 2], [True, False])
        assert [name.removesuffix(".png") for name in pairs.names] == ["a/1", "a/2", "b/1"]
        assert (pairs.fold, pairs.people) == (None, None)
    with refused(f"{path.parent / 'y.txt'}, line 2: expected `1 a b` or `0 a b`"):
        list(map(str, read_pairs(write(tmp_path / "y.txt", b"1 a/1 a/2\n2 a/1 b/1\n0 a/1 b/1\n"))))
    numbers = list(read_list(write(tmp_path / "z.txt", b"1 12 15\n0 12 77\n")))
    assert [(p.first, p.second, p.same) for p in numbers] == [("12", "15", True), ("12", "77", False)]
    people = list(read_list(write(tmp_path / "z.txt", b"12 1 2\n12 1 77 3\n")))
    assert [p.people for p in people] == [("12", "12"), ("12", "77")]


def test_lists_of_one_kind():
    check_both("x", [True, False])
    for same, words in (([True] * 3, "no impostor pairs in it"), ([False] * 3, "no genuine pairs in it")):
        with refused("x: there are ", words, "all 3 are", "Add"):
            check_both("x", same)


def test_lfw_refusals(tmp_path):
    fill(tmp_path, LFW)
    path = write(tmp_path / "pairs.txt", b"Ann_Lee 1 12\nBo 4 Cy 1\nBo x Cy 1\nBo 3 Cy 1\n")
    with refused(f"{path}, line 2: there is no image {tmp_path / 'Bo/Bo_0004.jpg'}"):
        read_pairs(path)
    pairs = read_pairs(path, on_bad="skip")
    assert [bad.where for bad in pairs.bad] == [f"{path}, line 2", f"{path}, line 3"]
    assert "expected `name 1 2` or `name 1 other 2`" in pairs.bad[1].why
    assert pairs.same.tolist() == [True, False]
    with refused(str(path), "promises 20 pairs, but 1 lines follow"):
        read_pairs(write(path, b"10 1\nAnn_Lee 1 12\n"))
    with refused(f"{path}, line 1", "got '9999"):  # digits, but no count: int() refuses so many
        read_pairs(write(path, b"9" * 5000 + b" 1\nAnn_Lee 1 12\n"))
    with refused(f"{path}, line 1", "got 'ten folds'"):
        read_pairs(write(path, b"ten folds\nAnn_Lee 1 12\n"))
    for raw, why in ((b"", "there are no pairs"), (b"\xff\xfe\x00", "the text cannot be read")):
        with refused(str(path), why):
            read_pairs(write(path, raw))


@pytest.mark.parametrize("head", ["a,b,same", "First, Second ,isSame", "x,second,first,label,fold"])
def test_csv_pairs(tmp_path, head):
    fill(tmp_path, ["1.png", "2.png", "3.png"])
    rows = ["1.png,2.png,1", "2.png,3.png,False", f"{tmp_path / '3.png'},1.png,yes"]
    if head.startswith("x"):
        rows = [f"?,{b},{a},{same},{k + 5}" for k, (a, b, same) in enumerate(row.split(",") for row in rows)]
    path = write(tmp_path / "pairs.csv", ("\ufeff" + "\r\n".join([head, *rows]) + "\r\n\r\n").encode())
    pairs = read_pairs(path)
    assert (pairs.first.tolist(), pairs.second.tolist()) == ([0, 1, 2], [1, 2, 0])
    assert pairs.same.tolist() == [True, False, True]
    assert pairs.fold is None if not head.startswith("x") else pairs.fold.tolist() == [5, 6, 7]
    equal(pairs.samples[2], PIXELS[2])


def test_csv_pairs_refusals(tmp_path):
    fill(tmp_path, ["1.png", "2.png"])
    text = "a,b,same,fold\n1.png,2.png,maybe,0\n1.png,2.png,1,-1\n1.png,9.png,1,0\n1.png,2.png\n1.png,2.png,0,3\n"
    path = write(tmp_path / "pairs.csv", text.encode())
    with refused(f"{path}, line 2: same must be 1 or 0", "got 'maybe'"):
        read_pairs(path)
    pairs = read_pairs(path, on_bad="skip")
    assert [bad.where for bad in pairs.bad] == [f"{path}, line {n}" for n in (2, 3, 4, 5)]
    whys = [
        "same must be",
        "fold must be a whole number",
        "there is no image",
        "2 columns, but the first line has 4",
    ]
    assert all(why in bad.why for why, bad in zip(whys, pairs.bad, strict=True))
    assert pairs.fold.tolist() == [3]
    for fold in ("9" * 30, "1000000"):
        with refused(f"{path}, line 2: fold must be a whole number"):
            read_pairs(write(path, f"a,b,same,fold\n1.png,2.png,1,{fold}\n".encode()))
    with refused(f"{path}, line 2", "field larger than field limit"):
        read_pairs(write(path, b"a,b,same\n" + b"x" * 200_000 + b",2.png,1\n"))
    with refused(str(path), "must name the columns a or first, b or second, same or issame or label or target"):
        read_pairs(write(path, b"a,c,same\n"))


@pytest.mark.parametrize("head", ["path,label,split", "file;identity;split", "image\tclass\tsplit"])
def test_csv_of_samples(tmp_path, head):
    fill(tmp_path, ["in/1.png", "in/2.png", "in/3.png"])
    rows = ["1.png,bob,train", "2.png,alice,val", "3.png,carol,test"]
    separator = next(c for c in ",;\t" if c in head)
    path = write(tmp_path / "list.csv", "\n".join([head, *(row.replace(",", separator) for row in rows)]).encode())
    data = read_csv(path, tmp_path / "in")
    assert data.classes == ("alice", "bob", "carol")
    assert data.labels.tolist() == [1, 0, 2]
    assert data.parts.tolist() == [TRAIN, VALIDATION, TEST]
    assert data.open_set
    equal(data.samples[1], PIXELS[1])
    equal(pickle.loads(pickle.dumps(data)).samples[2], PIXELS[2])


def test_csv_of_samples_refusals(tmp_path):
    fill(tmp_path, ["1.png", "2.png"])
    text = 'path,label\n1.png,x\n3.png,x\n2.png,\n2.png,"y, z"\n2.png,' + "n" * 999
    path = write(tmp_path / "list.csv", text.encode())
    with refused(f"{path}, line 3: there is no image {tmp_path / '3.png'}", 'on_bad="skip"'):
        read_csv(path)
    data = read_csv(path, on_bad="skip")
    assert data.classes == ("x", "y, z")
    assert [bad.where for bad in data.bad] == [f"{path}, line {n}" for n in (3, 4, 6)]
    assert data.parts is None
    with refused(str(path), "split must be train, test or val", "got 'dev'"):
        read_csv(write(path, b"path,label,split\n1.png,x,dev\n"))
    for text, why in ((b"", "must name the columns"), (b"path,label\n", "there are no samples"), (b"\xff", "text")):
        with refused(str(path), why):
            read_csv(write(path, text))
