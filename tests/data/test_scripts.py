"""Whole scripts, drawn with matplotlib's fonts alone, so that no font needs to be installed."""

import shutil
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image

from hypermargin.data import glyphs, open_data, read_drawn
from hypermargin.data.base import TEST, TRAIN, UNUSED, VALIDATION, DataError
from hypermargin.data.drawn import Drawn, join_pixels, split_identities, split_pixels
from hypermargin.data.scripts import SCRIPTS, glyphs_named, scripts_named
from hypermargin.data.typefaces import _first_word, choose, font_paths, open_typefaces
from hypermargin.data.whole_scripts import _crowds, _whole, draw_scripts

FONTS = Path(matplotlib.get_data_path(), "fonts", "ttf")
# Three families, one of them under a second name, too.
NAMES = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono", "DejaVuSerif",
    "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "cmr10", "cmtt10", "cmb10",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    fonts = tmp_path_factory.mktemp("fonts")
    for name in NAMES:
        shutil.copy(FONTS / f"{name}.ttf", fonts)
    shutil.copy(FONTS / "DejaVuSans.ttf", fonts / "Another Name.ttf")
    (fonts / "Broken.ttf").write_bytes(b"no font")
    return fonts


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def heard():
    return []


@pytest.fixture(scope="module")
def greek(folder, cache, heard):
    return draw_scripts("greek", folder, cache=cache, workers=0, say=heard.append)


def test_what_it_is(greek, heard):
    face, label = greek.rows()
    images = greek.images()
    assert images.shape == (len(greek), 32, 32) == (len(face), 32, 32)
    assert set(np.unique(images)) == {0, 85, 170, 255}
    assert images.reshape(len(images), -1).any(1).all()
    assert np.bincount(label).min() >= 4
    assert len(set(greek.classes)) == len(greek.classes) > 60
    assert any("greek: " in line and "typefaces of" in line for line in heard)
    assert any("Broken.ttf" in note for note in greek.notes)


def test_a_copy_under_another_name_is_left_out(greek):
    assert greek.faces.count("DejaVu Sans Book") == 1
    label = greek.rows()[1]
    images = greek.images().reshape(len(label), -1) >= 128
    for identity in range(len(greek.classes)):
        own = images[label == identity]
        differ = (own[:, None] != own).sum(2) / np.maximum(own.sum(1)[:, None], own.sum(1))
        assert differ[np.triu_indices(len(own), 1)].min() > 0.1


def test_families_are_seen_or_not_as_a_whole(greek):
    words = [_first_word(face) for face in greek.faces]
    assert all(len({s for w, s in zip(words, greek.seen, strict=True) if w == word}) == 1 for word in words)
    assert 0 < (~greek.seen).sum() < greek.seen.sum()


def test_homoglyphs_are_merged(folder, cache):
    data = draw_scripts("latin+greek+cyrillic", folder, cache=cache, workers=0)
    names = {name.split()[1] for name in data.classes}
    assert "A" in names
    assert not names & {"Α", "А", "Β", "В", "ο", "о"}
    assert {"I", "Ω", "Ж", "a", "б", "O", "0", "o", "j", "&"} <= names


def test_the_split(greek):
    data = greek.data()
    face, label = greek.rows()
    ids = {part: set(label[data.parts == part]) for part in (TRAIN, VALIDATION, TEST, UNUSED)}
    assert not ids[TEST] & (ids[TRAIN] | ids[VALIDATION] | ids[UNUSED])
    assert not ids[TRAIN] & ids[VALIDATION]
    assert greek.seen[face[data.parts == TRAIN]].all()
    assert not greek.seen[face[data.parts == UNUSED]].any()
    assert data.open_set
    assert data.augment == "affine"
    assert (greek.data(seed=1).parts != data.parts).any()


def test_test_identities_have_pairs_in_unseen_typefaces():
    testable = np.zeros(100, bool)
    testable[:20] = True
    parts = split_identities(100, testable, 0)
    assert (np.flatnonzero(parts == TEST) < 20).all()
    assert (parts == TEST).sum() == 20
    assert (parts == VALIDATION).sum() == 8
    large = split_identities(20_000, np.ones(20_000, bool), 0)
    assert [(large == part).sum() for part in (TRAIN, VALIDATION, TEST)] == [16_000, 1000, 3000]


def test_the_same_with_and_without_workers(folder, greek):
    other = draw_scripts("greek", folder, workers=2)
    assert other.classes == greek.classes
    assert other.packed == greek.packed
    np.testing.assert_array_equal(other.there, greek.there)
    np.testing.assert_array_equal(other.seen, greek.seen)


def test_the_cache_is_read_and_a_damaged_one_drawn_again(folder, cache, greek, tmp_path):
    again = draw_scripts("greek", folder, cache=cache, workers=0, say=pytest.fail)
    assert (again.packed, again.classes, again.faces, again.notes) == (
        greek.packed, greek.classes, greek.faces, greek.notes
    )  # fmt: skip
    (file,) = cache.glob("glyphs-greek-*.glyphs")
    copy = tmp_path / file.name
    copy.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    lines = []
    drawn = draw_scripts("greek", folder, cache=tmp_path, workers=0, say=lines.append)
    assert "not a readable file of drawn characters" in lines[0]
    assert drawn.packed == greek.packed
    assert read_drawn(copy).packed == greek.packed


def test_a_file_is_carried_and_read(greek, tmp_path):
    path = tmp_path / "greek.glyphs"
    greek.save(path)
    data = open_data(path)
    np.testing.assert_array_equal(data.samples, greek.images())
    np.testing.assert_array_equal(data.labels, greek.rows()[1])
    assert path.stat().st_size < 250 * len(greek) + 20_000
    for content in (b"", b"PK", path.read_bytes()[:1000]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"greek.glyphs: not a readable file of drawn characters"):
            open_data(path)


def test_a_header_cannot_ask_for_all_memory(tmp_path):
    names, every = tuple(map(str, range(25_000))), np.ones((3, 25_000), np.bool_)
    path = tmp_path / "large.glyphs"
    Drawn(1024, names, ("a", "b", "c"), np.ones(3, np.bool_), every, (b"x",) * 3).save(path)
    with pytest.raises(DataError, match="it says 75,000 images of 1024×1024"):
        read_drawn(path)


def test_damaged_images_are_noticed(greek):
    for packed in (greek.packed[0][:-20], b"xz", greek.packed[1] + greek.packed[0]):
        bad = Drawn(32, greek.classes, greek.faces, greek.seen, greek.there, (packed, *greek.packed[1:]))
        with pytest.raises(DataError, match=f"the images of {greek.faces[0]} are damaged"):
            bad.images()


def test_too_few_typefaces_say_what_to_install(folder):
    with pytest.raises(DataError) as error:
        draw_scripts("greek+han", folder, workers=0)
    text = str(error.value)
    assert "han: 0 typefaces of 0 families, out of 0 faces" in text
    assert "apt install fonts-arphic-bkai00mp" in text
    assert "fonts-noto-cjk" in text
    assert "greek:" not in text


def test_few_typefaces_are_used_with_a_word(folder, heard, greek):
    assert any("More on Debian or Ubuntu: apt install fonts-dejavu" in line for line in heard)


def test_boxes_for_missing_characters_are_found():
    rng = np.random.default_rng(0)
    levels = rng.integers(0, 256, (40, 64)).astype(np.uint8)
    levels[3] = 0  # blank
    levels[5:15] = levels[5]  # ten alike
    levels[20:22] = levels[20]  # two alike: A and Α
    levels[30] = levels[0]  # like what is drawn for a character that is not there
    good = _whole(levels, np.arange(40) == 0)
    assert np.flatnonzero(~good).tolist() == [0, 3, *range(5, 15), 30]


def test_four_pixels_are_a_byte():
    levels = np.random.default_rng(0).integers(0, 4, (7, 12, 12)).astype(np.uint8)
    assert join_pixels(levels).shape == (7, 36)
    np.testing.assert_array_equal(split_pixels(join_pixels(levels), 12), levels)


def test_a_typeface_that_shows_readings_is_noticed():
    rng = np.random.default_rng(0)
    readings = rng.integers(1, 256, (40, 64)).astype(np.uint8)
    assert _crowds(readings.repeat(12, 0)) == 40
    assert _crowds(readings.repeat(3, 0)) == 0
    assert _crowds(np.zeros((50, 64), np.uint8)) == 0


def test_names():
    assert [s.name for s in scripts_named("han+hangul+han")] == ["hangul", "han"]
    assert len(SCRIPTS["hangul"].characters()) == 11_172
    assert 20_900 < len(SCRIPTS["han"].characters()) <= 20_992  # by the version of Unicode
    with pytest.raises(ValueError, match=r"script must be one of 'latin'.*Did you mean 'hangul'"):
        scripts_named("hangull")
    assert glyphs_named("glyphs") == ("", "")
    assert glyphs_named("glyphs:han") == ("han", "")
    assert glyphs_named("glyphs:han+kana:/fonts") == ("han+kana", "/fonts")
    assert glyphs_named("glyphs:C:/fonts") == ("", "C:/fonts")
    with pytest.raises(DataError, match="Did you mean 'hangul'"):
        open_data("glyphs:hangull")
    with pytest.raises(ValueError, match="size must be a multiple of 4"):
        glyphs(scripts="greek", size=30)
    with pytest.raises(ValueError, match="give one of them"):
        glyphs(scripts="greek", characters="abc")


def test_four_typefaces_of_a_family_are_taken_and_they_differ(folder, tmp_path):
    found, bad = open_typefaces(font_paths(folder), frozenset(SCRIPTS["latin"].characters()))
    assert len(found) == 11
    assert len(bad) == 1
    names = [face.name for face in choose(found, scripts_named("latin"), 0).faces]
    deja_vu = {"DejaVu Sans Book", "DejaVu Sans Bold", "DejaVu Sans Mono Book", "DejaVu Serif Book"}
    assert deja_vu <= set(names)
    assert len(names) == len(set(names))
    for name in (*NAMES, "DejaVuSerif-Bold", "DejaVuSans-Oblique", "DejaVuSerif-Italic"):
        shutil.copy(FONTS / f"{name}.ttf", tmp_path)
    found, _ = open_typefaces(font_paths(tmp_path), frozenset(SCRIPTS["latin"].characters()))
    names = [face.name for face in choose(found, scripts_named("latin"), 0).faces]
    assert sum(name.startswith("DejaVu") for name in names) == 4


def test_the_command_shows_a_sheet_and_writes_the_file(folder, tmp_path, monkeypatch, run):
    monkeypatch.setenv("HYPERMARGIN_CACHE", str(tmp_path / "cache"))
    sheet, out = tmp_path / "sheet.png", tmp_path / "greek.glyphs"
    code, printed, told = run("data", f"glyphs:{folder}", "--script", "greek", "--picture", sheet, "--out", out)
    assert code == 0, told
    assert "open set" in printed
    assert "greek: " in told
    assert Image.open(sheet).size == (12 * 34, 8 * 34)
    assert len(open_data(out)) == len(read_drawn(out))
    assert run("data", "digits", "--script", "greek")[2].count("--script is for glyphs") == 1
    code, _, told = run("data", "digits", "--out", tmp_path / "x.glyphs")
    assert code == 2
    assert "--out must end in .npz" in told


def test_installed_fonts_are_matplotlib_s_and_the_system_s(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("hypermargin.data.typefaces.font_roots", lambda: [folder])
    found = font_paths(None)
    assert len(found) == 12 + len(list(folder.iterdir()))
    assert not any(path.name.startswith("cmr") for path in found[:12])
    with pytest.raises(DataError, match="nowhere is not a folder"):
        font_paths(tmp_path / "nowhere")


def test_collections_are_read_face_by_face(folder, tmp_path):
    from fontTools.ttLib import TTCollection, TTFont

    both = TTCollection()
    both.fonts = [TTFont(folder / f"{name}.ttf") for name in ("DejaVuSans", "DejaVuSerif")]
    both.save(tmp_path / "both.ttc")
    (tmp_path / "many.ttc").write_bytes(b"ttcf\0\1\0\0" + b"\xff" * 8)
    found, bad = open_typefaces(font_paths(tmp_path), frozenset("abc"))
    assert [(face.name, face.index) for face in found] == [("DejaVu Sans Book", 0), ("DejaVu Serif Book", 1)]
    assert len(bad) == 1
    assert "a collection of 4294967295 faces" in str(bad[0])
