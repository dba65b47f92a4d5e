"""The built-in open-set task: the characters of fonts are the identities, their faces the variation."""

from __future__ import annotations

import hashlib
import math
import os
import unicodedata
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hypermargin import checks
from hypermargin.common.needs import absent
from hypermargin.common.tensor_files import read_npz
from hypermargin.common.text import Say
from hypermargin.data.base import TEST, TRAIN, UNREADABLE, UNUSED, VALIDATION, Bad, Data, DataError, Rows
from hypermargin.data.drawn import Drawn
from hypermargin.data.fonts import Face, FontError, draw, font_files, missing, open_faces
from hypermargin.data.homoglyphs import SIDE, same_shapes
from hypermargin.data.scripts import glyphs_named
from hypermargin.data.whole_scripts import draw_scripts
from hypermargin.files import replacing

VERSION = 1  # of what is drawn: a change here makes old cache files unused
FINER = 2  # characters are drawn at so many times the size
TURN, SHEAR, ZOOM, SHIFT, BLUR, NOISE = 10.0, 0.12, 0.1, 0.06, 0.5, 0.1  # at most: degrees, and shares


def glyphs(
    fonts: Path | None = None,
    *,
    scripts: str | None = None,
    size: int | None = None,
    seed: int = 0,
    characters: str | None = None,
    cache: bool = True,
    on_bad: str = "error",
    say: Say = lambda _: None,
) -> Data:
    """Draw images of characters from the fonts of this machine. Nothing was photographed or written by hand.

    fonts       a folder of .ttf or .otf files; None for the 12 DejaVu faces that come with matplotlib
    scripts     "han", "han+hangul", …: all characters of these instead, in all typefaces of this machine or of the
                folder, by `whole_scripts.draw_scripts`; images are clean, and what follows below is not done
    size        images are (size, size) uint8, bright ink on black; None for 28, with scripts for 32
    seed        of the split and of what each image suffers
    characters  take only these; None for all
    cache       keep the result in $HYPERMARGIN_CACHE, else $XDG_CACHE_HOME/hypermargin, else ~/.cache/hypermargin
    on_bad      "skip" leaves out fonts that cannot be read and lists them in `bad`

    An identity is a visible character that two thirds of the faces of the training families (at least two) have,
    and at least one of the unseen families. Characters of the same shape are one identity. There is one image a
    face: rotated, sheared, zoomed, moved, blurred and made noisy by random numbers from (seed, character, face).

    Families are sorted by name; the last third, at least one if there are two, is unseen by training (of DejaVu:
    Serif). A random third of the identities is TEST in every face. The others are TRAIN, and a tenth of them
    VALIDATION, in the faces of the training families, and UNUSED in the unseen ones.
    """
    checks.count("seed", seed, 0)
    checks.one_of("on_bad", on_bad, UNREADABLE)
    if scripts is not None:
        if characters is not None:
            raise ValueError("glyphs: characters and scripts both say which characters; give one of them.")
        kept_in = cache_folder() if cache else None
        return draw_scripts(scripts, fonts, size=size, cache=kept_in, say=say).data(seed)
    size = 28 if size is None else size
    checks.count("size", size, 8)
    try:
        from PIL import __version__ as pillow
        from PIL import features
    except ModuleNotFoundError:
        raise missing(*absent("pillow", "matplotlib")) from None
    files = font_files(fonts and Path(fonts))
    settings = VERSION, size, seed, characters and sorted(characters), on_bad
    versions = pillow, features.version("freetype2"), unicodedata.unidata_version
    key = hashlib.sha256(repr((settings, versions)).encode())
    for path, content in files.items():
        key.update(path.name.encode() + hashlib.sha256(content).digest())
    file = Path(f"glyphs-{key.hexdigest()[:20]}.npz")
    data = _load(file, say) if cache else None
    if data is None:
        faces, bad = open_faces(files, FINER * size, characters, on_bad)
        while data is None:
            try:
                data = Data("glyphs", *_build(faces, size, seed, say), augment="affine", bad=bad)
            except FontError as error:  # one that opens, and fails at a character
                if on_bad == "error":
                    raise
                bad.append(error.bad)
                faces = [face for face in faces if face.path != error.path]
        if cache:
            _save(file, data, say)
    return data


def draw_named(name: str, *, size: int | None = None, say: Say = lambda _: None) -> Drawn:
    """Draw, or find in the cache, the scripts of a name like glyphs:han+hangul, packed as `Drawn`."""
    scripts, folder = glyphs_named(name)
    return draw_scripts(scripts, Path(folder) if folder else None, size=size, cache=cache_folder(), say=say)


def _build(
    faces: list[Face], size: int, seed: int, say: Say
) -> tuple[NDArray[np.uint8], Rows, tuple[str, ...], NDArray[np.int8]]:
    """Draw samples, with labels, classes and parts."""
    if not faces:
        raise DataError("glyphs: none of the fonts can be read. Look at them without on_bad='skip' to see why.")
    seen = _seen_families(faces)
    every = sorted(frozenset[str]().union(*(face.characters for face in faces)))
    listed = np.array([[c in face.characters for c in every] for face in faces])
    candidates = [every[k] for k in _in_enough_faces(listed, seen)]
    drawn = np.zeros((len(faces), len(candidates)), dtype=np.bool_)
    shapes = np.zeros((*drawn.shape, SIDE, SIDE), dtype=np.uint8)
    images = np.zeros((*drawn.shape, size, size), dtype=np.uint8)
    for f, face in enumerate(faces):
        clean = draw(face, candidates, FINER * size)
        drawn[f] = clean.any((1, 2))
        ink = F.avg_pool2d(torch.from_numpy(clean)[:, None].float(), FINER)
        shapes[f] = F.adaptive_avg_pool2d(ink, SIDE)[:, 0].numpy()
        images[f] = _suffer(ink, [(seed, ord(c), zlib.crc32(face.path.name.encode())) for c in candidates])
    kept = _in_enough_faces(drawn, seen)  # again, since some are blank
    first, identity = np.unique(kept[same_shapes(shapes[:, kept], drawn[:, kept])], return_inverse=True)
    # One image a face and identity: of the first of the same shapes that the face has.
    face_of, column = np.nonzero(drawn[:, kept])
    _, one = np.unique(identity[column] * len(faces) + face_of, return_index=True)
    face_of, column = face_of[one], column[one]
    labels = identity[column].astype(np.int64)
    classes = tuple(f"U+{ord(candidates[k]):04X} {candidates[k]}" for k in first)
    say(f"glyphs: {len(kept)} characters in {len(faces)} faces are {len(classes)} shapes, {len(labels)} images")
    return images[face_of, kept[column]], labels, classes, _parts(labels, seen[face_of], len(classes), seed)


def _seen_families(faces: list[Face]) -> NDArray[np.bool_]:
    """Choose the faces that training may see: those of the families before the last third by name."""
    families = sorted({face.family for face in faces})
    unseen = max(1, len(families) // 3) if len(families) > 1 else 0
    return np.array([face.family in families[: len(families) - unseen] for face in faces])


def _in_enough_faces(has: NDArray[np.bool_], seen: NDArray[np.bool_]) -> Rows:
    """Find the characters, columns of `has`, in two thirds of the seen faces and in one of the others."""
    enough = max(2, -(-2 * int(seen.sum()) // 3))
    kept = np.flatnonzero((has[seen].sum(0) >= enough) & (has[~seen].any(0) | seen.all()))
    if len(kept) < 3:
        raise DataError(
            f"glyphs: only {len(kept)} characters are in {enough} of the {seen.sum()} faces that training sees "
            f"and in one of the {(~seen).sum()} others; at least 3 are needed. Give more fonts, or larger ones."
        )
    return kept


def _suffer(ink: Tensor, keys: list[tuple[int, ...]]) -> NDArray[np.uint8]:
    """Turn, shear, zoom, move, blur and spoil each image with random numbers from its key.

    Every operation works on one image at a time, so that the result does not depend on the other images.
    """
    size = ink.shape[-1]
    generators = [np.random.default_rng(key) for key in keys]
    drawn = np.array([rng.uniform(-1, 1, 7) for rng in generators], dtype=np.float32)
    noise = np.array([rng.standard_normal((size, size), dtype=np.float32) for rng in generators])
    turn, shear, zoom, x, y, blur, spoil = torch.from_numpy(drawn)[:, :, None, None].unbind(1)
    cos, sin = ((ZOOM * zoom).exp() * part(turn * math.radians(TURN)) for part in (torch.cos, torch.sin))
    at = (torch.arange(size) + 0.5) * (2 / size) - 1
    column, row = at[None, None, :] + SHEAR * shear * at[None, :, None], at[None, :, None]
    grid = torch.stack((cos * column + sin * row + 2 * SHIFT * x, cos * row - sin * column + 2 * SHIFT * y), -1)
    image = F.grid_sample(ink, grid, align_corners=False)[:, 0]
    side = 0.25 * BLUR * (1 + blur)  # [side, 1 − 2 side, side], across and down
    for _ in range(2):
        around = F.pad(image, (1, 1))
        image = ((1 - 2 * side) * image + side * around[:, :, :-2] + side * around[:, :, 2:]).transpose(1, 2)
    image = image + 127.5 * NOISE * (1 + spoil) * torch.from_numpy(noise)
    return np.asarray(image.clamp(0, 255).byte())


def _parts(labels: Rows, seen: NDArray[np.bool_], classes: int, seed: int) -> NDArray[np.int8]:
    part = np.full(classes, TEST, dtype=np.int8)
    known = np.random.default_rng(seed).permutation(classes)[: round(2 * classes / 3)]
    part[known] = TRAIN
    part[known[: round(len(known) / 10)]] = VALIDATION
    result = part[labels]
    result[(result != TEST) & ~seen] = UNUSED
    return result


def cache_folder() -> Path:
    """Return where drawn characters are kept."""
    own, general = os.environ.get("HYPERMARGIN_CACHE"), os.environ.get("XDG_CACHE_HOME")
    return Path(own) if own else Path(general or Path.home() / ".cache") / "hypermargin"


def _load(file: Path, say: Say) -> Data | None:
    try:
        kept = read_npz(cache_folder() / file)
        bad = [Bad(str(where), str(why)) for where, why in kept["bad"]]
        classes = tuple(map(str, kept["classes"]))
        return Data("glyphs", kept["samples"], kept["labels"], classes, kept["parts"], augment="affine", bad=bad)
    except FileNotFoundError:
        return None
    except Exception as error:  # whatever is wrong with the file, it can be made again
        say(f"glyphs: the cached file {file} cannot be read ({error}); drawing again")
        return None


def _save(file: Path, data: Data, say: Say) -> None:
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        bad = np.array(data.bad, dtype=np.str_).reshape(-1, 2)
        samples, parts = np.asarray(data.samples), np.asarray(data.parts)
        with replacing(folder / file) as temporary:
            np.savez(temporary, samples=samples, labels=data.labels, classes=data.classes, parts=parts, bad=bad)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        say(f"glyphs: not cached, they will be drawn again next time ({error})")
