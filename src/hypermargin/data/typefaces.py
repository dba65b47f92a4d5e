"""Typefaces among the installed fonts: which there are, which only copy another, and which belong together."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hypermargin.common.union_find import UnionFind
from hypermargin.data.base import Bad, DataError, Rows
from hypermargin.data.drawing import Drawing, draw_all
from hypermargin.data.fonts import ABSENT, DEFAULT, FontError, character_codes, matplotlib_fonts
from hypermargin.data.scripts import Script

ENDINGS = (".ttf", ".otf", ".ttc", ".otc")
MOST_FACES = 64  # in one collection
COVER = 1 / 20  # of a script's characters that a face must have to count for it
SAMPLE = 24  # characters of a script by which typefaces are compared
# Mean difference of two typefaces' characters as a share of their ink. Copies under other names lie below 0.01, a
# weight between two weights below 0.25; regular and bold at 0.4, unrelated designs from 0.45.
COPY, RELATED = 0.25, 0.35
LEAST_FACES, FEW_FACES = 4, 12
MOST_OF_FAMILY = 4  # typefaces of one family and script: some have dozens of weights


@dataclass(frozen=True)
class Typeface:
    """A face in a font file, with those of the wanted characters that it has."""

    path: Path
    index: int
    name: str
    family: str
    characters: frozenset[str]
    absent: str | None  # a character it has not: it draws the box for missing ones


@dataclass(frozen=True)
class Chosen:
    """The typefaces that are drawn, for which scripts each, and a number per family."""

    faces: list[Typeface]
    use: NDArray[np.bool_]  # (faces, scripts)
    family: Rows  # (faces,)
    notes: list[str]


def font_roots() -> list[Path]:
    """List the folders where systems keep fonts, and matplotlib's."""
    home, data = Path.home(), os.environ.get("XDG_DATA_HOME")
    folders = [Path("/usr/share/fonts"), Path("/usr/local/share/fonts"), home / ".fonts"]
    folders += [Path(data) / "fonts" if data else home / ".local/share/fonts"]
    folders += [Path("/System/Library/Fonts"), Path("/Library/Fonts"), home / "Library/Fonts"]
    folders += [Path(os.environ[name], "Fonts") for name in ("WINDIR",) if name in os.environ]
    return [folder for folder in folders if folder.is_dir()]


def font_paths(folder: Path | None) -> list[Path]:
    """List the font files below a folder; None: those installed on this machine and matplotlib's DejaVu."""
    if folder is None:
        own = matplotlib_fonts()
        found = [path for path in _below(own) if DEFAULT.fullmatch(path.name)]
        return found + [path for root in font_roots() for path in _below(root)]
    if not folder.is_dir():
        raise DataError(f"fonts must be a folder of font files; {folder} is not a folder.")
    return _below(folder)


def _below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())


def open_typefaces(paths: Sequence[Path], wanted: frozenset[str]) -> tuple[list[Typeface], list[Bad]]:
    """Look into every file for faces with some of the wanted characters."""
    found, bad, there = list[Typeface](), list[Bad](), set[Path]()
    for path in paths:
        real = path.resolve()
        if real in there:  # a link to a file that was seen
            continue
        there.add(real)
        try:
            for index in range(_faces_in(path)):
                codes = character_codes(path, index)
                characters = frozenset(map(chr, codes)) & wanted
                if characters:
                    family, style = _named(path, index)
                    absent = next((c for c in ABSENT if ord(c) not in codes), None)
                    found.append(Typeface(path, index, f"{family} {style}", family, characters, absent))
        except Exception as error:  # FreeType's errors come as OSError, RuntimeError, ValueError and more
            bad.append(FontError(path, error).bad)
    return found, bad


def _faces_in(path: Path) -> int:
    with path.open("rb") as file:
        head = file.read(12)
    if head[:4] != b"ttcf":
        return 1
    count = int.from_bytes(head[8:12], "big")
    if not 1 <= count <= MOST_FACES:
        raise ValueError(f"a collection of {count} faces")
    return count


def _named(path: Path, index: int) -> tuple[str, str]:
    from PIL import ImageFont

    family, style = ImageFont.truetype(path, 16, index=index, layout_engine=ImageFont.Layout.BASIC).getname()
    return (family or "").strip() or path.stem, style or "Regular"


def choose(found: Sequence[Typeface], scripts: Sequence[Script], workers: int) -> Chosen:
    """Leave out, script by script, what only copies a typeface that is taken; find the families of the others."""
    related, notes, lacking = UnionFind(), list[str](), list[str]()
    compared = [_compare(found, script, workers, related) for script in scripts]
    by_word: dict[str, int] = {}
    for f in sorted({f for one in compared for f in one.kept}):
        # also without shared shapes: Nanum Gothic and Nanum Myeongjo are from one hand
        related.union(by_word.setdefault(_first_word(found[f].family), f), f)
    use = np.zeros((len(found), len(scripts)), np.bool_)
    for s, (script, one) in enumerate(zip(scripts, compared, strict=True)):
        families: dict[int, list[int]] = {}
        for f in one.kept:
            families.setdefault(related.find(f), []).append(f)
        taken = [f for family in families.values() for f in one.spread(family, MOST_OF_FAMILY)]
        use[taken, s] = True
        words = f"{script.name}: {len(taken)} typefaces of {len(families)} families, out of {one.faces} faces"
        words += f", {one.broken} of which cannot be drawn" if one.broken else ""
        if len(taken) < FEW_FACES:
            words += f". More on Debian or Ubuntu: apt install {' '.join(script.packages)}"
        (lacking if len(taken) < LEAST_FACES else notes).append(words)
    if lacking:
        raise DataError(
            f"glyphs: too few typefaces that differ, at least {LEAST_FACES} are needed. A face counts for a script "
            "if it has a twentieth of its characters.\n" + "\n".join(lacking)
        )
    every = np.flatnonzero(use.any(1)).tolist()
    family = np.unique([related.find(f) for f in every], return_inverse=True)[1].astype(np.int64)
    return Chosen([found[f] for f in every], use[every], family, notes)


@dataclass(frozen=True)
class _Compared:
    """The faces of a script that differ, and how much."""

    faces: int
    broken: int
    kept: list[int]
    difference: dict[tuple[int, int], float]

    def spread(self, family: list[int], most: int) -> list[int]:
        """Choose faces that are far from one another, the fullest first."""
        chosen, left = family[:1], family[1:]
        while left and len(chosen) < most:
            far = max(left, key=lambda f: min(self.difference[min(f, g), max(f, g)] for g in chosen))
            chosen.append(far)
            left.remove(far)
        return chosen


def _compare(found: Sequence[Typeface], script: Script, workers: int, related: UnionFind) -> _Compared:
    """Draw a sample in every face with enough of the script; leave out copies, and note which faces are related."""
    wanted = frozenset(script.characters())
    counts = [len(face.characters & wanted) for face in found]
    members = [f for f, count in enumerate(counts) if count >= max(2, COVER * len(wanted))]
    # The fullest first, so that copies of a part of it are what is left out.
    members.sort(key=lambda f: (-counts[f], found[f].name, found[f].path.name))
    if not members:
        return _Compared(0, 0, [], {})
    images, drawn = _samples([found[f] for f in members], wanted, workers)
    working = np.flatnonzero(drawn.sum(1) >= SAMPLE / 8).tolist()
    places, between = list[int](), dict[tuple[int, int], float]()
    for place in working:
        f, differ = members[place], [_difference(images, drawn, place, other) for other in places]
        for other, value in zip(places, differ, strict=True):
            g = members[other]
            between[min(f, g), max(f, g)] = value
            if value < RELATED:
                related.union(f, g)
        if min(differ, default=1.0) >= COPY:
            places.append(place)
    kept = [members[place] for place in places]
    return _Compared(len(members), len(members) - len(working), kept, between)


def _first_word(family: str) -> str:
    """Return what a foundry's names have in common: "Nanum" of NanumBarunGothic, "Noto" of Noto Sans CJK."""
    match = re.match(r"[A-Z]*[a-z]*", family)
    return (match[0] if match and len(match[0]) > 1 else family.split()[0]).lower()


def _samples(
    faces: Sequence[Typeface], wanted: frozenset[str], workers: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Draw a few characters that many of the faces have: (faces, SAMPLE, pixels), and which there are."""
    have = {c: sum(c in face.characters for face in faces) for c in wanted}
    common = sorted(sorted(wanted, key=lambda c: (-have[c], c))[: max(SAMPLE, len(wanted) // 8)])
    some = [common[k] for k in np.unique(np.linspace(0, len(common) - 1, SAMPLE).round().astype(int))]
    places = [(f, k) for f, face in enumerate(faces) for k, c in enumerate(some) if c in face.characters]
    drawing = Drawing.of([(faces[f], some[k]) for f, k in places], size=32)
    images = np.zeros((len(faces), len(some), 32, 32), np.uint8)
    for rows, part in draw_all(drawing, workers):
        for row, image in zip(rows, part, strict=True):
            images[places[row]] = _centered(image)
    flat = images.reshape(len(faces), len(some), -1).astype(np.float32)
    flat /= 255
    return flat, np.asarray(flat.any(2))


def _centered(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Move the ink to the middle: copies often sit on another baseline."""
    for axis in (0, 1):
        ink = np.flatnonzero(image.any(1 - axis))
        if len(ink):
            image = np.roll(image, (image.shape[axis] - 1 - int(ink[0]) - int(ink[-1])) // 2, axis)
    return image


def _difference(images: NDArray[np.float32], drawn: NDArray[np.bool_], a: int, b: int) -> float:
    """Compare two typefaces: the mean over the characters of both of Σ|a − b| / ink."""
    both = drawn[a] & drawn[b]
    if both.sum() < SAMPLE / 8:
        return 1.0
    one, other = images[a, both], images[b, both]
    ink = np.maximum(one.sum(1), other.sum(1))
    return float((np.abs(one - other).sum(1) / ink).mean())
