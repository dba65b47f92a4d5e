"""The loader benchmark: images per second from files to scaled batches, ours beside what people write.

Every contender starts at a path and delivers each image once, shuffled, in float batches. The images are made here:
crops of a smooth random texture with the 1/f spectrum of photographs, so that their JPEGs have a realistic size.
"""

from __future__ import annotations

import io
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks import command
from benchmarks.measure import interleaved
from benchmarks.record import Say, in_words, store, surroundings, threads_set
from hypermargin.data import Array, Data, Feed, Scaling, batches, decode_once, open_data

BATCH = 128
PER_IDENTITY = 20
LFW = 250 / 112  # the side of LFW's images beside that of aligned faces
CONTENDERS = {
    "floor": "floor",
    "loop": "plain PIL loop",
    "torch": "torch DataLoader",
    "once": "ours, first epoch, decoded once",
    "lazy": "ours, read lazily (memory = 0)",
    "later": "ours, later epochs",
}


class Plain(Dataset[Any]):
    """Images in files as people read them: open, convert, resize, array."""

    def __init__(self, path: Path, size: int) -> None:
        self.size = size
        self.open(path)

    def open(self, path: Path) -> None:
        """Find the images."""
        self.found: Any = sorted(path.rglob("*.jpg"))

    def raw(self, row: int) -> bytes:
        """The encoded image."""
        return bytes(self.found[row].read_bytes())

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, row: int) -> Array:
        from PIL import Image

        image = Image.open(io.BytesIO(self.raw(row))).convert("RGB")
        return np.array(image.resize((self.size, self.size), Image.Resampling.BILINEAR))


class PlainRecords(Plain):
    """The same from a .rec file by its .idx."""

    def open(self, path: Path) -> None:
        self.file = path.open("rb")
        self.found = [int(line.split()[1]) for line in path.with_suffix(".idx").read_text().splitlines()]

    def raw(self, row: int) -> bytes:
        # pread: the file's position is shared between forked workers.
        _, length = struct.unpack("<II", os.pread(self.file.fileno(), 8, self.found[row]))
        return os.pread(self.file.fileno(), length, self.found[row] + 8)[24:]


class PlainArray(Plain):
    """An array in a .npz file."""

    def open(self, path: Path) -> None:
        with np.load(path) as file:
            self.found = file["images"]

    def __getitem__(self, row: int) -> Array:
        return np.asarray(self.found[row])


class Case(NamedTuple):
    """One format: where it is, how people read it, and how much an image takes."""

    name: str
    path: Path
    plain: type[Plain]
    bytes: float


def texture(side: int, seed: int = 0) -> Array:
    """(side, side, 3) colours with amplitudes 1/f^1.3, little colour beside the light, as in photographs."""
    rng = np.random.default_rng(seed)
    f = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None])
    spectrum = np.fft.rfft2(rng.standard_normal((3, side, side))) / np.maximum(f, 1 / side) ** 1.3
    planes = np.fft.irfft2(spectrum, s=(side, side))
    light, a, b = planes / planes.std(axis=(1, 2), keepdims=True)
    colours = np.stack([light + 0.3 * a, light + 0.3 * b, light - 0.3 * a], -1)
    return (128 + 50 * colours).clip(0, 255).astype(np.uint8)


def crops(images: int, size: int, seed: int = 0) -> Iterator[Array]:
    """Images cut from one texture at random places."""
    whole = texture(max(1024, 2 * size), seed)
    for y, x in np.random.default_rng(seed).integers(0, len(whole) - size, (images, 2)):
        yield whole[y : y + size, x : x + size]


def jpeg(pixels: Array, quality: int) -> bytes:
    """An encoded image."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=quality)
    return out.getvalue()


def write_folder(folder: Path, encoded: list[bytes]) -> None:
    """One sub-folder for each identity."""
    for k, raw in enumerate(encoded):
        path = folder / f"{k // PER_IDENTITY:05d}" / f"{k % PER_IDENTITY:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)


def write_records(path: Path, encoded: list[bytes]) -> None:
    """train.rec and train.idx as insightface's: magic number, length, flag, label, two ids, image, padding."""
    at, lines = 0, []
    with path.open("wb") as file:
        for k, raw in enumerate(encoded):
            content = struct.pack("<IfQQ", 0, k // PER_IDENTITY, k + 1, 0) + raw
            lines.append(f"{k + 1}\t{at}\n")
            at += file.write(struct.pack("<II", 0xCED7230A, len(content)) + content + bytes(-len(content) % 4))
    path.with_suffix(".idx").write_text("".join(lines))


def make(folder: Path, images: int, size: int) -> list[Case]:
    """The files to be read."""
    large = round(LFW * size)
    pixels = np.stack(list(crops(images, size)))
    small_jpegs = [jpeg(image, 90) for image in pixels]
    large_jpegs = [jpeg(image, 75) for image in crops(images, large)]
    write_folder(folder / "small", small_jpegs)
    write_folder(folder / "large", large_jpegs)
    write_records(folder / "train.rec", small_jpegs)
    np.savez(folder / "faces.npz", images=pixels, labels=np.arange(images) // PER_IDENTITY)
    small, larger = (sum(map(len, jpegs)) / images for jpegs in (small_jpegs, large_jpegs))
    return [
        Case(f"folder of JPEGs, {size}×{size}", folder / "small", Plain, small),
        Case(f"folder of JPEGs, {large}×{large} resized to {size}", folder / "large", Plain, larger),
        Case(f".rec and .idx of JPEGs, {size}×{size}", folder / "train.rec", PlainRecords, small),
        Case(f".npz of bytes, {size}×{size}", folder / "faces.npz", PlainArray, 3.0 * size * size),
    ]


def contenders(case: Case, size: int, workers: int) -> dict[str, Callable[[], Iterator[Tensor]]]:
    """What delivers an epoch of scaled batches, from opening the path on (later epochs: from memory)."""
    scaling = Scaling()

    def loop() -> Iterator[Tensor]:
        dataset = case.plain(case.path, size)
        order = np.random.default_rng(0).permutation(len(dataset))
        for at in range(0, len(order), BATCH):
            yield scaling(torch.from_numpy(np.stack([dataset[row] for row in order[at : at + BATCH]])))

    def by_torch() -> Iterator[Tensor]:
        dataset = case.plain(case.path, size)
        for raw in DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers):
            yield scaling(raw)

    def epoch(data: Data) -> Iterator[Tensor]:
        order = batches(data.labels, "shuffled", BATCH, seed=0, epoch=0)
        for raw, _ in Feed(data.samples, torch.device("cpu"), workers=workers)(order):
            yield scaling(raw)

    def opened() -> Data:
        return open_data(case.path, size=size)

    in_memory = decode_once(opened(), workers=workers)
    found: dict[str, Callable[[], Iterator[Tensor]]] = {
        "loop": loop,
        "torch": by_torch,
        "once": lambda: epoch(decode_once(opened(), workers=workers)),
        "lazy": lambda: epoch(decode_once(opened(), memory=0.0)),
        "later": lambda: epoch(in_memory),
    }
    if case.plain is PlainArray:  # nothing to decode
        del found["lazy"]
    return found


def floor(case: Case, size: int) -> Callable[[], object]:
    """PIL's decoder alone, the files already in memory; for an array, reading the file."""
    if case.plain is PlainArray:
        return lambda: case.plain(case.path, size)
    from PIL import Image

    dataset = case.plain(case.path, size)
    encoded = [dataset.raw(row) for row in range(len(dataset))]
    return lambda: [Image.open(io.BytesIO(raw)).load() for raw in encoded]


def measure(case: Case, images: int, size: int, workers: int, rounds: int) -> dict[str, Any]:
    """Images per second of every contender: the best of interleaved rounds."""
    steps: dict[str, Callable[[], Any]] = {"floor": floor(case, size)}
    for name, source in contenders(case, size, workers).items():
        steps[name] = _whole(source, images, size)
    times = interleaved(steps, rounds, "cpu")
    pace = {name: images / min(seconds) for name, seconds in times.items()}
    if case.plain is not PlainArray:
        pace["floor"] *= max(1, workers)  # one process × cores
    to_torch = {name: pace[name] / pace["torch"] for name in pace}
    return {"name": case.name, "bytes": case.bytes, "images_per_s": pace, "to_torch": to_torch}


def as_markdown(result: dict[str, Any]) -> str:
    """The table, for people."""
    p, env = result["problem"], result["environment"]
    shown = {name: words for name, words in CONTENDERS.items() if name != "floor"}
    lines = [
        f"# Loader: {p['images']:,} images to {p['size']}×{p['size']}, {p['workers']} workers, {env['device']}",
        "",
        in_words(env),
        "Images per second, in brackets as a multiple of torch's DataLoader: from opening the path to shuffled "
        f"float batches of {p['batch']}, files in the system's cache, best of {p['rounds']} interleaved rounds. "
        "The images are crops of a smooth random texture with the spectrum of photographs. Floor: PIL's decoder "
        f"alone in one process × {max(1, p['workers'])} cores; of the array, np.load alone. The plain loop "
        "and the DataLoader's data set do Image.open, convert, resize, np.array; bytes are scaled a batch at "
        "a time in all.",
        "",
        "| | kB an image | floor | " + " | ".join(shown.values()) + " |",
        "|---|---:|---:|" + "---:|" * len(shown),
    ]
    for row in result["table"]:
        pace, ratio = row["images_per_s"], row["to_torch"]
        cells = [f"{pace[n]:,.0f} ({ratio[n]:.2f})" if n in pace else "" for n in shown]
        lines.append(
            f"| {row['name']} | {row['bytes'] / 1000:.1f} | {pace['floor']:,.0f} | " + " | ".join(cells) + " |"
        )
    return "\n".join(lines) + "\n"


def _whole(source: Callable[[], Iterator[Tensor]], images: int, size: int) -> Callable[[], None]:
    def step() -> None:
        seen = 0
        for x in source():
            if x.dtype != torch.float32 or x.shape[1:] != (3, size, size):
                raise RuntimeError(f"a batch came as {x.dtype} {tuple(x.shape)}")
            seen += len(x)
        if seen != images:
            raise RuntimeError(f"{seen} of {images} images came")

    return step


def run(
    images: int = 4000,
    size: int = 112,
    workers: int = 2,
    *,
    threads: int = 1,
    rounds: int = 3,
    out: Path | None = None,
    say: Say = print,
) -> dict[str, Any]:
    """The whole benchmark; writes loader-….json and .md into `out`."""
    problem = {"images": images, "size": size, "workers": workers, "batch": BATCH, "rounds": rounds}
    with threads_set(threads):
        result: dict[str, Any] = {"problem": problem, "environment": surroundings(), "table": []}
        with tempfile.TemporaryDirectory() as folder:
            say(f"making {images:,} images in each format")
            for case in make(Path(folder), images, size):
                say(f"{case.name}: {rounds} interleaved rounds")
                result["table"].append(measure(case, images, size, workers, rounds))
    store(result, as_markdown(result), f"loader-n{images}-s{size}-w{workers}", out, say)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command.flags(
        "loader",
        "Images per second from JPEGs, .rec and .npz: ours beside a PIL loop, torch's DataLoader and the floor.",
        "",
        "--images 20000 --workers 8 --out results",
    )
    several = command.at_least(1)
    parser.add_argument("--images", type=several, default=4000, help="images of each format")
    parser.add_argument("--size", type=command.at_least(8), default=112, help="side of the images")
    parser.add_argument("--workers", type=command.at_least(0), default=2, help="processes that decode")
    parser.add_argument("--threads", type=several, default=1, help="CPU threads of torch")
    parser.add_argument("--rounds", type=several, default=3, help="interleaved rounds to time")
    given = vars(parser.parse_args(arguments))
    with command.plain_errors(parser):
        result = run(**given, say=command.say)
    print(as_markdown(result))


if __name__ == "__main__":
    main()
