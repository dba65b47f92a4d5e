"""Whole scripts in all typefaces of this machine, drawn once: tens of thousands of identities, no download."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hypermargin import checks
from hypermargin.common.environment import cores
from hypermargin.common.text import Say
from hypermargin.data.base import DataError, Rows
from hypermargin.data.drawing import Drawing, check_drawable, draw_all
from hypermargin.data.drawn import ENDING, LARGEST, LEVELS, Drawn, Kept, join_pixels, pack, read_drawn, split_pixels
from hypermargin.data.homoglyphs import same_means
from hypermargin.data.scripts import Script, scripts_named
from hypermargin.data.typefaces import Chosen, Typeface, choose, font_paths, open_typefaces

VERSION = 1  # of what is drawn: a change here makes old cache files unused
MOST_ALIKE = 8  # characters of one typeface with the very same image: more are a box for missing ones
SAME = 0.1  # share of the ink in which the same character of two typefaces differs, at most, to be one drawing
MOST_CROWDS = 10  # of so many alike: more show something else, such as the Korean reading of each Han character
LEAST_IMAGES = 4  # of an identity in the seen typefaces
UNSEEN = 0.15, 0.25  # share of a script's images in unseen families: at least, if possible, and at most


def draw_scripts(
    names: str,
    fonts: Path | None = None,
    *,
    size: int | None = None,
    cache: Path | None = None,
    workers: int | None = None,
    say: Say = lambda _: None,
) -> Drawn:
    """Draw every character of the scripts in every typeface that differs from the others.

    names    "han", "hangul", "latin+greek+cyrillic", …: names of SCRIPTS joined by +
    fonts    a folder with fonts; None for those installed, and matplotlib's
    size     images are (size, size), a multiple of 4; None for 32
    cache    a folder to keep the result in; None: nothing is kept
    workers  processes that draw; None for one per core

    Left out are: faces that only copy another or lie between two weights of it; characters a typeface draws blank,
    cannot draw, or shows the box for missing ones for; drawings that another typeface has too. Characters that look
    the same are one identity, and one with fewer than 4 images is none. Families are never both seen and unseen:
    faces whose names begin with the same word, or whose characters look related, are one family.
    """
    scripts = scripts_named(names)
    size = 32 if size is None else size
    checks.count("size", size, 8, LARGEST)
    if size % 4:
        raise ValueError(f"size must be a multiple of 4 for whole scripts; got {size}.")
    check_drawable()
    paths = font_paths(fonts)
    file = None if cache is None else cache / f"glyphs-{_key(scripts, paths, size)}{ENDING}"
    if file is not None and file.is_file():
        try:
            return read_drawn(file)
        except DataError as error:  # whatever is wrong with the file, it can be made again
            say(f"glyphs: {error}")
    wanted = frozenset(c for script in scripts for c in script.characters())
    workers = cores() if workers is None else workers
    found, bad = open_typefaces(paths, wanted)
    say(f"glyphs: {len(found)} faces with some of {len(wanted):,} characters; which of them differ?")
    chosen = choose(found, scripts, workers)
    for line in chosen.notes:
        say(f"glyphs: {line}")
    drawn = _assemble(chosen, scripts, size, workers, say, [str(each) for each in bad])
    if file is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            drawn.save(file)
            say(f"glyphs: kept in {file}, {file.stat().st_size / 2**20:.0f} MiB")
        except OSError as error:
            say(f"glyphs: not cached, they will be drawn again next time ({error})")
    return drawn


def _key(scripts: Sequence[Script], paths: Sequence[Path], size: int) -> str:
    """Name what is drawn. Fonts are known by name, size and time: reading them all takes long."""
    from PIL import __version__ as pillow
    from PIL import features

    versions = VERSION, pillow, features.version("freetype2"), unicodedata.unidata_version
    key = hashlib.sha256(repr((versions, [script.name for script in scripts], size)).encode())
    for path in paths:
        stat = path.stat()
        key.update(repr((path.name, stat.st_size, stat.st_mtime_ns)).encode())
    return f"{'+'.join(script.name for script in scripts)}-{key.hexdigest()[:12]}"


def _assemble(
    chosen: Chosen, scripts: Sequence[Script], size: int, workers: int, say: Say, bad: list[str]
) -> Drawn:
    script_by = {c: s for s, script in reversed(list(enumerate(scripts))) for c in script.characters()}
    every = sorted(script_by)
    script_of = np.array([script_by[c] for c in every])
    kept, lost = _draw(chosen, every, script_of, size, workers, say)
    there = np.zeros((len(kept), len(every)), np.bool_)
    for f, one in enumerate(kept):
        there[f, one.columns] = True
    copies = _drop_copies(kept, there)
    same = same_means(_means(kept, there, size), lambda a, b: _of_both(kept, there, size, a, b))
    column = np.unique(same, return_inverse=True)[1].astype(np.int64)
    first = np.unique(same)
    seen = _seen(chosen, there, script_of, len(scripts))
    counts = np.zeros((len(kept), len(first)), np.bool_)
    np.logical_or.at(counts, (np.nonzero(there)[0], column[np.nonzero(there)[1]]), True)
    enough = counts[seen].sum(0) >= LEAST_IMAGES
    if enough.sum() < 3:
        raise DataError(f"glyphs: only {enough.sum()} characters have {LEAST_IMAGES} images. Install more fonts.")
    place = np.cumsum(enough) - 1
    final, grid = list[Kept](), np.zeros((len(kept), int(enough.sum())), np.bool_)
    for f, one in enumerate(kept):
        mine = column[one.columns]
        mine, at = np.unique(np.where(enough[mine] & there[f, one.columns], mine, -1), return_index=True)
        mine, at = mine[mine >= 0], at[mine >= 0]
        final.append(Kept(place[mine], one.pixels[at]))
        grid[f, place[mine]] = True
    names = tuple(f"U+{ord(every[k]):04X} {every[k]}" for k in first[enough])
    notes = [*chosen.notes, *bad, f"{lost:,} blank, missing or failed", f"{copies:,} copies of another typeface's"]
    notes.append(f"{len(every) - len(first):,} characters that look like another")
    say(
        f"glyphs: {int(grid.sum()):,} images of {len(names):,} identities in {len(kept)} typefaces, "
        f"{int((~seen).sum())} of them unseen; left out: {'; '.join(notes[-3:])}"
    )
    faces = tuple(face.name for face in chosen.faces)
    return Drawn(size, names, faces, seen, grid, pack(final), tuple(notes))


def _draw(
    chosen: Chosen, every: list[str], script_of: Rows, size: int, workers: int, say: Say
) -> tuple[list[Kept], int]:
    """Draw all, as four pixels per byte; count what is left out."""
    wanted, column = list[tuple[Typeface, str]](), list[int]()
    place = {c: k for k, c in enumerate(every)}
    for f, face in enumerate(chosen.faces):
        wanted += [(face, face.absent)] if face.absent else []
        column += [-1] if face.absent else []
        mine = sorted(k for c in face.characters if chosen.use[f, script_of[k := place[c]]])
        wanted += [(face, every[k]) for k in mine]
        column += mine
    columns = np.array(column, np.int64)
    drawing = Drawing.of(wanted, size)
    say(f"glyphs: drawing {len(wanted):,} characters with {workers} processes")
    rows_of = [list[Rows]() for _ in chosen.faces]
    parts_of = [list[NDArray[np.uint8]]() for _ in chosen.faces]
    for rows, images in draw_all(drawing, workers):
        levels = join_pixels(((images.astype(np.uint16) * (LEVELS - 1) + 127) // 255).astype(np.uint8))
        for f in np.unique(drawing.face_of[rows]):
            own = drawing.face_of[rows] == f
            rows_of[int(f)].append(columns[rows[own]])
            parts_of[int(f)].append(levels[own])
    kept = list[Kept]()
    for f in range(len(chosen.faces)):
        cols = np.concatenate([np.empty(0, np.int64), *rows_of[f]])
        levels = np.concatenate([np.empty((0, size * size // 4), np.uint8), *parts_of[f]])
        whole = _whole(levels, cols < 0)
        for s in np.unique(script_of[cols[cols >= 0]]):
            mine = (cols >= 0) & (script_of[cols] == s)
            if _crowds(levels[mine]) > MOST_CROWDS:
                whole &= ~mine
        kept.append(Kept(cols[whole], levels[whole]))
        rows_of[f], parts_of[f] = [], []
    return kept, int((columns >= 0).sum()) - sum(len(one.columns) for one in kept)


def _crowds(levels: NDArray[np.uint8]) -> int:
    """Count the images, but for blank ones, that more than MOST_ALIKE characters share."""
    return int((np.unique(levels[levels.any(1)], axis=0, return_counts=True)[1] > MOST_ALIKE).sum())


def _whole(levels: NDArray[np.uint8], absent: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Find the images that show a character: not blank, not the box for missing ones, not one of many alike."""
    kind = levels.view([("", levels.dtype, levels.shape[1])]).reshape(-1) if len(levels) else levels[:, 0]
    _, which, counts = np.unique(kind, return_inverse=True, return_counts=True)
    which = which.reshape(-1)
    good = levels.any(1) & (counts[which] <= MOST_ALIKE) & ~absent
    for box in which[absent]:
        good &= which != box
    return good


BITS = np.array([bin(k).count("1") for k in range(256)], np.uint8)


def _drop_copies(kept: list[Kept], there: NDArray[np.bool_]) -> int:
    """Take the drawings out of `there` that an earlier typeface has, too; count them."""
    ink = [one.pixels & 0xAA for one in kept]  # the higher bit of each pixel: gray or brighter
    amount = [BITS[one].sum(1, dtype=np.int32) for one in ink]
    place = np.full(there.shape, -1, np.int64)
    for f, one in enumerate(kept):
        place[f, one.columns] = np.arange(len(one.columns))
    dropped = 0
    for b in range(1, len(kept)):
        for a in range(b):
            both = np.flatnonzero(there[a] & there[b])
            at, bt = place[a, both], place[b, both]
            differing = BITS[ink[a][at] ^ ink[b][bt]].sum(1, dtype=np.int32)
            copies = both[differing <= SAME * np.maximum(amount[a][at], amount[b][bt])]
            there[b, copies] = False
            dropped += len(copies)
    return dropped


def _means(kept: list[Kept], there: NDArray[np.bool_], size: int) -> NDArray[np.float32]:
    """Average each character over its typefaces, ink in [0, 1]."""
    total = np.zeros((there.shape[1], size, size), np.float32)
    for f, one in enumerate(kept):
        use = there[f, one.columns]
        total[one.columns[use]] += split_pixels(one.pixels[use], size)
    total /= np.maximum(there.sum(0), 1)[:, None, None] * (LEVELS - 1)
    return total


def _of_both(
    kept: list[Kept], there: NDArray[np.bool_], size: int, a: int, b: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the images of two characters in the typefaces that draw both."""
    faces = np.flatnonzero(there[:, a] & there[:, b])
    pairs = [
        np.stack([kept[f].pixels[np.searchsorted(kept[f].columns, k)] for f in faces])
        if len(faces)
        else np.empty((0, size * size // 4), np.uint8)
        for k in (a, b)
    ]
    one, other = (split_pixels(each, size).astype(np.float32) for each in pairs)
    return one / np.float32(LEVELS - 1), other / np.float32(LEVELS - 1)


def _seen(chosen: Chosen, there: NDArray[np.bool_], script_of: Rows, scripts: int) -> NDArray[np.bool_]:
    """Choose the typefaces that training may see: whole families, and about four fifths of each script's images."""
    images = np.stack([there[:, script_of == s].sum(1) for s in range(scripts)], 1).astype(np.float64)
    images /= np.maximum(images.sum(0), 1)
    count = int(chosen.family.max()) + 1
    of_family = np.stack([images[chosen.family == k].sum(0) for k in range(count)])
    unseen, share = np.zeros(count, np.bool_), np.zeros(scripts)
    for k in np.random.default_rng(0).permutation(count):
        if (share + of_family[k] <= UNSEEN[1]).all() and (share[of_family[k] > 0] < UNSEEN[0]).any():
            unseen[k] = True
            share += of_family[k]
    if not unseen.any() and count > 1:  # few families, all large
        unseen[np.argmin(of_family.sum(1))] = True
    return np.asarray(~unseen[chosen.family])
