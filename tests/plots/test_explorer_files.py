"""What the explorer reads from files, and what it refuses: in words, and without losing what it showed."""

import base64
import io
import json
import re
import struct
import zipfile

import numpy as np
import pytest
from browser import opened
from explorer_page import arrays, give, go, packed, settle, value

from hypermargin.plots import explorer


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    with opened(browser, explorer.page(), tmp_path_factory.mktemp("samples")) as found:
        yield found


def member(name, content, **changes):
    """A zip file of one member, whose central directory may lie."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    whole = bytearray(file.getvalue())
    at = whole.index(b"PK\x01\x02")
    for offset, number in changes.items():
        struct.pack_into("<I", whole, at + int(offset[1:]), number)
    return bytes(whole)


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def refused():
    x, y, w = arrays()
    one = np.ones((3, 2), np.float32)
    whole = packed(embeddings=x, labels=y)
    return {
        "no zip": (b"hello", "is no .npz file"),
        "cut off": (whole[: len(whole) // 2], "is no .npz file"),
        "damaged": (whole[:200] + b"\xff" * 2000 + whole[2200:], "zero or not finite|damaged"),
        "objects": (packed(embeddings=x, labels=y.astype(object)), "Arrays of objects are not read"),
        "arrays": (packed(a=x, b=y), "it needs the arrays embeddings and labels; it holds: a, b"),
        "shape": (packed(embeddings=x[0], labels=y), "rows × dimensions"),
        "labels": (packed(embeddings=x, labels=y[:9]), "400 rows, 9 labels"),
        "weight": (packed(embeddings=x, labels=y, weight=w[:, :3]), "weight must be classes × 12"),
        "weight of texts": (packed(embeddings=x, labels=y, weight=w.astype(str)), "weight must be classes × 12"),
        "rows": (packed(embeddings=x, labels=y + 1, weight=w), "labels must be their row numbers"),
        "one of many": (packed(embeddings=x, labels=np.eye(40)[y]), "400 rows, 400 × 40 labels"),
        # Bytes that would be more than 512 MB as 32-bit numbers; refused before they are.
        "numbers": (packed(True, embeddings=np.zeros((2**20, 129), np.uint8), labels=np.zeros(2**20)), "512 MB"),
        "zero": (packed(embeddings=one * 0, labels=[0, 0, 1]), "row 0 of embeddings is zero"),
        "one class": (packed(embeddings=one, labels=[0, 0, 0]), "one class only"),
        "alone": (packed(embeddings=one, labels=[0, 1, 2]), "every class has one sample only"),
        # A bomb: it says that it unpacks to little.
        "bomb": (member("embeddings.npy", npy(np.zeros((2000, 2000))), _24=1000), "damaged"),
        "huge": (member("embeddings.npy", npy(one), _24=2**30), "more than 512 MB"),
    }


@pytest.mark.parametrize("case", refused())
def test_what_cannot_be_read_is_refused_in_words(page, case):
    content, why = refused()[case]
    if case in ("bomb", "huge"):  # with labels beside it, so that it is unpacked
        content = with_labels(content)
    said = give(page, content)
    assert any(part in said for part in why.split("|")), said


def test_numbers_of_any_size_and_labels_of_any_kind(page):
    """float64 beyond float32, a column of labels, and row numbers that are texts."""
    x, y, w = arrays()
    go(page, m2=0.3, s=30)
    give(page, packed(embeddings=x, labels=y, weight=w))
    found = value(page, "samplesLoss")
    for size in (1e200, 1e-200):
        given = packed(embeddings=size * x.astype(np.float64), labels=y[:, None].astype(str), weight=w)
        assert "400 samples, 40 classes, against the class vectors" in give(page, given)
        assert value(page, "samplesLoss") == pytest.approx(found, rel=1e-5)


def test_what_is_wrong_is_said_in_the_readers_language(page):
    """What was shown before stays, and the page says so."""
    x, y, _ = arrays()
    give(page, packed(embeddings=x, labels=y), "first.npz")
    said = give(page, b"hello", "second.npz")
    assert said == (
        "second.npz: this is no .npz file. Save one with numpy.savez(file, embeddings=…, labels=…). "
        "Still shown: first.npz."
    )
    for lang, part in (("zh", "仍显示：first.npz。"), ("en", "Still shown: first.npz.")):
        page.locator('[data-choice="lang"]').select_option(lang)
        settle(page)
        assert part in page.locator("[data-shows=file]").text_content()


def a_page(**changes):
    """The data of a run's page with twenty samples in two classes, or what is left of them."""
    floats = lambda n: base64.b64encode(np.linspace(-0.9, 0.9, n, dtype="<f4").tobytes()).decode()  # noqa: E731
    cloud = {"own": floats(20), "rival": floats(20), "rest": floats(300), "rows": list(range(20)), "of": 20,
             "classes": 2, "against": "means"}  # fmt: skip
    points = {"at": floats(60), "width": 3, "label": [0] * 20, "names": ["a"]}
    whole = {"cloud": cloud, "points": points}
    for place, new in changes.items():
        part, name = place.split("_")
        whole[part][name] = new
    return f'<script type="application/json" id="hm-data">{json.dumps(whole)}</script>'.encode()


def test_a_page_that_was_changed_is_refused_whole(page):
    assert "20 samples, 2 classes" in give(page, a_page(), "good.html")
    nan = base64.b64encode(np.full(20, np.nan, "<f4").tobytes()).decode()
    for wrong in (
        {"cloud_classes": None}, {"cloud_classes": "<b>"}, {"cloud_rows": None}, {"cloud_rows": [1]},
        {"cloud_own": "@"}, {"cloud_own": nan}, {"cloud_own": ""}, {"cloud_of": {}},
        {"points_at": ""}, {"points_width": 9}, {"points_label": {}},
    ):  # fmt: skip
        said = give(page, a_page(**wrong), "bad.html")
        assert said.endswith("is damaged, or not what its name says. Still shown: good.html."), wrong


def test_a_name_cannot_turn_the_direction_of_writing(page):
    x, y, _ = arrays()
    names = np.array([f"\u202eolleh\u2069{k}" for k in y])
    give(page, packed(embeddings=x, labels=names))
    go(page, m2=0.5, s=30, head="")
    shown = page.locator("[data-shows-table=moved] tbody th").first.text_content()
    assert re.fullmatch("\u2068\u202eolleh\\d+\u2069, row\\s\\d+", shown)


@pytest.mark.slow
def test_of_very_many_samples_some_are_drawn(page):
    rng = np.random.default_rng(0)
    given = packed(embeddings=rng.normal(size=(120_000, 2)).astype(np.float32), labels=np.arange(120_000) % 3)
    said = give(page, given)
    while "%" in said or "Reading" in said:
        settle(page)
        said = page.locator("[data-shows=file]").text_content()
    assert "100,000 of 120,000 samples" in said


def with_labels(content):
    """Put a member labels.npy before the first of a zip file, whose directory is kept as it is."""
    file = io.BytesIO(content)
    with zipfile.ZipFile(file, "a") as archive:
        sizes = {each.filename: (each.file_size, each.compress_size) for each in archive.infolist()}
        archive.writestr("labels.npy", npy(np.arange(3)))
    assert sizes["embeddings.npy"][0] in (1000, 2**30)
    return file.getvalue()
