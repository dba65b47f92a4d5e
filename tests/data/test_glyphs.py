import os
import pickle
import random
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image

from hypermargin.data.base import TEST, TRAIN, UNUSED, VALIDATION, DataError
from hypermargin.data.fonts import FontError, draw, font_files, open_faces
from hypermargin.data.glyphs import glyphs
from hypermargin.data.homoglyphs import SIDE, same_shapes

FONTS = Path(matplotlib.get_data_path(), "fonts", "ttf")
LETTERS = "AΑАBΒВOΟОoοоIΙl0123456789abcdefghijkĂӐāăµμ.,'²"
HOMOGLYPHS = {"AΑА", "BΒВ", "OΟО", "oοо", "IΙ", "ĂӐ", "µμ"}
INVISIBLE = " \u00a0\u0301\u0007\ue000"
FACES = "DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSerif"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HYPERMARGIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path):
    fonts = tmp_path / "fonts"
    fonts.mkdir()
    for name in FACES:
        shutil.copy(FONTS / f"{name}.ttf", fonts)
    return fonts


@pytest.fixture(scope="module")
def letters():
    return glyphs(characters=LETTERS, cache=False)


def named(data, name):
    return data.classes.index(f"U+{ord(name):04X} {name}")


def image(data, character, face):
    return data.samples[data.labels == named(data, character)][face]


def test_what_it_is(letters):
    assert letters.samples.shape == (len(letters), 28, 28)
    assert letters.samples.dtype == np.uint8
    assert letters.shape == (1, 28, 28)
    assert letters.open_set
    assert letters.augment == "affine"
    assert (np.bincount(letters.labels) == 12).all()
    ink = letters.samples.reshape(len(letters), -1).max(1)
    assert ink.min() > 60


def test_homoglyphs_are_one_identity_under_the_lowest_code_point(letters):
    merged = {c for group in HOMOGLYPHS for c in sorted(group)[1:]}
    expected = [f"U+{ord(c):04X} {c}" for c in sorted(set(LETTERS) - merged)]
    assert list(letters.classes) == expected


def test_same_shapes_is_transitive_and_looks_only_at_shared_faces():
    rng = np.random.default_rng(0)
    shapes = (255 * (rng.random((2, 6, SIDE, SIDE)) < 0.2)).astype(np.uint8)
    drawn = np.ones((2, 6), dtype=bool)
    shapes[:, 3] = shapes[:, 1]  # the same in both faces
    shapes[0, 5] = shapes[0, 3]  # the same where it is drawn, unlike where it is not
    drawn[1, 5] = False
    shapes[0, 4] = shapes[0, 0]  # the same in one face of two
    assert same_shapes(shapes, drawn).tolist() == [0, 1, 2, 1, 4, 1]
    drawn[0, 4] = False
    assert same_shapes(shapes, drawn).tolist() == [0, 1, 2, 1, 4, 1]
    drawn[:, 4] = False  # nothing shared with anybody
    assert same_shapes(shapes, drawn).tolist() == [0, 1, 2, 1, 4, 1]


def test_split_by_character_and_family(letters):
    identities = {p: set(letters.labels[letters.parts == p]) for p in (TRAIN, VALIDATION, TEST, UNUSED)}
    assert not identities[TRAIN] & identities[VALIDATION]
    assert not identities[TEST] & (identities[TRAIN] | identities[VALIDATION] | identities[UNUSED])
    assert identities[UNUSED] == identities[TRAIN] | identities[VALIDATION]
    count = len(letters.classes)
    assert len(identities[TEST]) == count - round(2 * count / 3)
    assert len(identities[VALIDATION]) == round(round(2 * count / 3) / 10)
    for label in range(count):
        parts = letters.parts[letters.labels == label].tolist()
        seen = TEST if label in identities[TEST] else TRAIN if label in identities[TRAIN] else VALIDATION
        # The faces in the order of their files: 8 of Sans and Sans Mono, 4 of Serif.
        assert parts == [seen] * 8 + [TEST if seen == TEST else UNUSED] * 4


def test_an_image_depends_on_seed_character_and_face_and_on_nothing_else(letters, folder):
    few = glyphs(characters="g3A7", cache=False)
    for c in "g3A7":
        for face in range(12):
            np.testing.assert_array_equal(image(few, c, face), image(letters, c, face))
    of_folder = glyphs(folder, characters="g3A7", cache=False)
    # DejaVuSans-Bold.ttf comes first in both; DejaVuSans.ttf is the second here, the fourth there.
    np.testing.assert_array_equal(image(of_folder, "g", 1), image(letters, "g", 3))
    other = glyphs(characters="g3A7", seed=1, cache=False)
    assert (image(other, "g", 0) != image(letters, "g", 0)).any()
    clean = draw(
        open_faces({FONTS / "DejaVuSans.ttf": (FONTS / "DejaVuSans.ttf").read_bytes()}, 28, "g", "error")[0][0],
        ["g"],
        28,
    )
    assert 5 < np.abs(image(letters, "g", 3).astype(float) - clean[0]).mean() < 60


def test_drawing_keeps_size_and_place():
    path = FONTS / "DejaVuSans.ttf"
    ((face,), bad) = open_faces({path: path.read_bytes()}, 56, None, "error")
    assert not bad
    assert not face.characters & set(INVISIBLE)
    boxes = {
        c: Image.fromarray(picture).getbbox()
        for c, picture in zip(".'oO²2", draw(face, [*".'oO²2"], 56), strict=True)
    }
    height = {c: box[3] - box[1] for c, box in boxes.items()}
    assert height["."] < height["o"] < height["O"]
    assert height["²"] < height["2"]
    assert boxes["'"][3] < boxes["."][1]
    assert not draw(face, ["\u2800", "\ue000", "字"], 56).any()


@pytest.mark.parametrize("size", [8, 21, 64])
def test_sizes(folder, size):
    data = glyphs(folder, size=size, characters="abcdA", cache=False)
    assert data.samples.shape == (25, size, size)
    assert len(data.classes) == 5


def test_families_of_any_folder(folder):
    data = glyphs(folder, characters=LETTERS, cache=False)  # Sans and Sans Mono train, Serif is unseen
    assert (np.bincount(data.labels) == 5).all()
    (folder / "DejaVuSerif.ttf").unlink()
    data = glyphs(folder, characters=LETTERS, cache=False)  # Sans trains, Sans Mono is unseen
    assert set(data.parts[data.labels == data.labels[data.parts == TRAIN][0]]) == {TRAIN, UNUSED}
    for face in folder.glob("*Mono*"):
        face.unlink()
    data = glyphs(folder, characters=LETTERS, cache=False)  # one family: both
    assert UNUSED not in data.parts
    (folder / "DejaVuSans-Bold.ttf").unlink()
    with pytest.raises(DataError, match="only 0 characters are in 2 of the 1 faces that training sees"):
        glyphs(folder, characters=LETTERS, cache=False)


SCRIPT = """
import hashlib, sys, torch
torch.set_num_threads(int(sys.argv[2]))
from hypermargin.data.glyphs import glyphs
data = glyphs(characters=sys.argv[1], cache=sys.argv[3] == "True")
print(hashlib.sha256(data.samples.tobytes() + data.labels.tobytes() + data.parts.tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_two_processes_at_once_agree_and_leave_one_file(own_cache, letters):
    def start(threads):
        command = [sys.executable, "-c", SCRIPT, LETTERS, str(threads), "True"]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONHASHSEED": str(threads)}
        )

    results = {process.communicate()[0] for process in [start(1), start(2)]}
    assert len(results) == 1
    assert len(results.pop()) == 65
    assert [f.suffix for f in own_cache.iterdir()] == [".npz"]
    again = glyphs(characters=LETTERS)
    np.testing.assert_array_equal(again.samples, letters.samples)
    np.testing.assert_array_equal(again.parts, letters.parts)
    assert again.classes == letters.classes


def test_cache_is_used_and_a_damaged_file_is_noticed(own_cache, folder):
    heard = []
    first = glyphs(folder, characters="abcd", say=heard.append)
    assert len(heard) == 1
    assert "4 characters in 5 faces are 4 shapes, 20 images" in heard[0]
    assert (glyphs(folder, characters="abcd", say=heard.append).samples == first.samples).all()
    assert len(heard) == 1
    (file,) = own_cache.iterdir()
    whole = file.read_bytes()
    rng = random.Random(0)
    for position in rng.sample(range(len(whole)), 40):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        data = glyphs(folder, characters="abcd")
        np.testing.assert_array_equal(data.samples, first.samples)
        np.testing.assert_array_equal(data.labels, first.labels)
        assert data.classes == first.classes
    for content in (b"", whole[: len(whole) // 2], b"not a zip file"):
        file.write_bytes(content)
        assert (glyphs(folder, characters="abcd", say=heard.append).samples == first.samples).all()
        assert "cannot be read" in heard[-2]
        assert file.read_bytes() == whole
    assert [f.name for f in own_cache.iterdir()] == [file.name]


@pytest.mark.parametrize("change", [{"seed": 1}, {"size": 20}, {"characters": "abce"}, {"on_bad": "skip"}])
def test_other_settings_are_other_cache_files(own_cache, folder, change):
    glyphs(folder, characters="abcd")
    glyphs(folder, **{"characters": "abcd", **change})
    assert len(list(own_cache.iterdir())) == 2


def test_other_fonts_are_another_cache_file(own_cache, folder):
    first = glyphs(folder, characters="abcd")
    (folder / "DejaVuSans.ttf").write_bytes((FONTS / "DejaVuSans-Oblique.ttf").read_bytes())
    assert (glyphs(folder, characters="abcd").samples != first.samples).any()
    assert len(list(own_cache.iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch, folder):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HYPERMARGIN_CACHE", str(tmp_path / "file" / "below"))
    heard = []
    assert len(glyphs(folder, characters="abcd", say=heard.append)) == 20
    assert len([line for line in heard if "not cached" in line]) == 1


def test_cache_folder_follows_the_environment(tmp_path, monkeypatch, folder):
    monkeypatch.delenv("HYPERMARGIN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    glyphs(folder, characters="abcd")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    glyphs(folder, characters="abcd")
    assert len(list((tmp_path / "xdg" / "hypermargin").iterdir())) == 1
    assert len(list((tmp_path / "home" / ".cache" / "hypermargin").iterdir())) == 1


def test_folders_that_are_not_fonts(tmp_path):
    with pytest.raises(DataError, match=r"fonts must be a folder of .ttf or .otf files; .*nowhere is not a folder"):
        glyphs(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"there are no .ttf or .otf files in it or below it"):
        glyphs(tmp_path)
    with pytest.raises(ValueError, match="size must be at least 8; got 4"):
        glyphs(size=4)
    with pytest.raises(ValueError, match="on_bad must be one of 'error', 'skip'; got 'skp'"):
        glyphs(on_bad="skp")


def test_a_broken_font_is_named_or_left_out(folder):
    (folder / "Broken.TTF").write_bytes(b"no font")
    with pytest.raises(DataError, match=r"Broken.TTF: this font cannot be read .*on_bad='skip'"):
        glyphs(folder, characters="abcd")
    with pytest.raises(DataError, match="only 0 characters"):
        glyphs(folder, characters="", on_bad="skip")
    for _ in range(2):  # drawn, then from the cache
        data = glyphs(folder, characters="abcd", on_bad="skip")
        assert len(data) == 20
        assert [(Path(where).name, "cannot be read" in why) for where, why in data.bad] == [("Broken.TTF", True)]


def test_nothing_but_broken_fonts(tmp_path):
    (tmp_path / "Broken.otf").write_bytes(b"OTTO")
    with pytest.raises(DataError, match="none of the fonts can be read"):
        glyphs(str(tmp_path), on_bad="skip")


def test_mutated_fonts_are_an_error_or_drawn_but_never_a_crash(folder):
    whole = (folder / "DejaVuSerif.ttf").read_bytes()
    rng = random.Random(0)
    outcomes = []
    for trial in range(60):
        content = bytearray(whole[: rng.randrange(len(whole))] if trial % 3 == 0 else whole)
        for _ in range(rng.choice((1, 20, 2000)) if content else 0):
            # Half of the blows go to the table directory and the first tables.
            end = len(content) if rng.random() < 0.5 else min(400, len(content))
            content[rng.randrange(end)] = rng.randrange(256)
        (folder / "DejaVuSerif.ttf").write_bytes(content)
        try:
            glyphs(folder, characters="abcdAgß", cache=False)
            outcomes.append("")
        except DataError as error:
            outcomes.append(str(error))
    named = [text for text in outcomes if "DejaVuSerif.ttf: this font cannot be read" in text]
    too_few = [text for text in outcomes if "at least 3 are needed" in text]
    assert len(named) > 20
    assert len(named) + len(too_few) + outcomes.count("") == 60
    (folder / "DejaVuSerif.ttf").write_bytes(whole[: len(whole) // 3])
    assert len(glyphs(folder, characters="abcdAgß", on_bad="skip", cache=False).bad) == 1


@pytest.mark.parametrize(("module", "package"), [("PIL", "pillow"), ("matplotlib", "matplotlib")])
def test_a_missing_package_is_named(monkeypatch, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=rf"which is not installed. Run: pip install {package}$"):
        glyphs()


def test_all_default_fonts_are_found():
    files = font_files(None)
    assert len(files) == 12
    assert not any("Display" in path.name for path in files)


def test_the_error_of_a_font_comes_back_from_another_process(tmp_path):
    error = FontError(tmp_path / "bad.ttf", OSError("no font"))
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.bad) == (FontError, str(error), error.bad)
