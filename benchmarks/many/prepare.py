"""`python -m benchmarks.many.prepare OUT`: what a machine without fonts needs, in files that can be carried there.

Draws Han and Hangul, or takes them from the cache, and writes OUT/many.glyphs with as many images as fit into
--megabytes. With --cifar also OUT/cifar10 with CIFAR-10's binary batches, of which each is 31 MB.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.command import say
from hypermargin.data import open_data
from hypermargin.data.cifar import FILES_OF_CIFAR10
from hypermargin.data.drawn import Drawn, Kept, join_pixels, pack
from hypermargin.data.glyphs import draw_named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--scripts", default="han+hangul")
    parser.add_argument("--megabytes", type=float, default=58.0)
    parser.add_argument("--cifar", help="a folder, or cifar10")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    drawn = draw_named(f"glyphs:{given.scripts}", say=say)
    drawn = fitting(drawn, given.megabytes * 2**20)
    drawn.save(given.out / "many.glyphs")
    size = (given.out / "many.glyphs").stat().st_size / 2**20
    say(
        f"{len(drawn):,} images of {len(drawn.classes):,} identities in {len(drawn.faces)} typefaces, "
        f"{size:.1f} MiB"
    )
    if given.cifar:
        write_cifar(given.cifar, given.out / "cifar10")


def fitting(drawn: Drawn, most: float) -> Drawn:
    """The drawing with fewer images of the identities that have many, so that it takes about so many bytes."""
    stored = sum(map(len, drawn.packed))
    if stored <= most:
        return drawn
    wanted = most / stored * len(drawn)
    counts = drawn.there.sum(0)
    cap = next(c for c in range(int(counts.max()), 0, -1) if np.minimum(counts, c).sum() <= wanted)
    return thinned(drawn, cap)


def thinned(drawn: Drawn, most: int) -> Drawn:
    """At most so many images per identity, by chance; unseen typefaces keep their share, two at least."""
    rng, there = np.random.default_rng(0), np.zeros_like(drawn.there)
    for column in range(drawn.there.shape[1]):
        seen, unseen = (
            rng.permutation(np.flatnonzero(drawn.there[:, column] & which)) for which in (drawn.seen, ~drawn.seen)
        )
        total = len(seen) + len(unseen)
        few = min(len(unseen), max(2, round(most * len(unseen) / total)))
        there[np.concatenate((unseen[:few], seen[: max(most - few, 1)])), column] = True
    images, at, kept = drawn.images(), 0, list[Kept]()
    for face, row in enumerate(drawn.there):
        own = images[at : at + int(row.sum())]
        at += int(row.sum())
        kept.append(Kept(np.flatnonzero(there[face]), join_pixels(own[there[face][row]] // 85)))
    return replace(drawn, there=there, packed=pack(kept))


def write_cifar(what: str, out: Path) -> None:
    """CIFAR-10 as binary batches, which numpy alone reads."""
    data = open_data(what)
    out.mkdir(exist_ok=True)
    images = np.moveaxis(np.asarray(data.samples), 3, 1).reshape(len(data), -1)
    rows = np.concatenate((data.labels[:, None].astype(np.uint8), images), 1)
    for name, part in zip(FILES_OF_CIFAR10, np.split(rows, len(FILES_OF_CIFAR10)), strict=True):
        (out / f"{name}.bin").write_bytes(part.tobytes())


if __name__ == "__main__":
    main()
