"""How far embeddings move when images are resized in another way than in training.

Two thousand images of a folder, drawn once, through a run's network; every way against Pillow's bilinear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from benchmarks import command
from benchmarks.record import Say, in_words, store, surroundings
from hypermargin import load
from hypermargin.data.images import EXTENSIONS

MOST = 2000
Pixels = NDArray[np.uint8]


def _pillow(filter: Image.Resampling) -> Callable[[Image.Image, int, int], Pixels]:
    return lambda image, width, height: np.array(image.resize((width, height), filter))


def _torch(antialias: bool) -> Callable[[Image.Image, int, int], Pixels]:
    def resize(image: Image.Image, width: int, height: int) -> Pixels:
        x = torch.from_numpy(np.array(image)).float()
        x = x[None, None] if x.dim() == 2 else x.permute(2, 0, 1)[None]
        x = torch.nn.functional.interpolate(x, (height, width), mode="bilinear", antialias=antialias)
        x = x.round().clamp(0, 255).byte()[0].permute(1, 2, 0)
        return np.asarray(x.squeeze(2) if x.shape[2] == 1 else x)

    return resize


RIGHT = "Pillow BILINEAR, as trained"
WAYS: dict[str, Callable[[Image.Image, int, int], Pixels]] = {
    RIGHT: _pillow(Image.Resampling.BILINEAR),
    "torch interpolate, bilinear, antialias=True": _torch(True),
    "Pillow BOX": _pillow(Image.Resampling.BOX),
    "Pillow BICUBIC": _pillow(Image.Resampling.BICUBIC),
    "Pillow LANCZOS": _pillow(Image.Resampling.LANCZOS),
    "bilinear without antialiasing (torch's default, OpenCV's INTER_LINEAR)": _torch(False),
    "Pillow NEAREST": _pillow(Image.Resampling.NEAREST),
}


def run(folder: Path, images: Path, *, name: str, out: Path | None = None, say: Say = print) -> dict[str, Any]:
    """Measure, and write resize-NAME.json and .md into `out`."""
    trained = load(folder)
    channels, height, width = trained.about.shape
    files = sorted(path for path in images.rglob("*") if path.suffix.lower() in EXTENSIONS)
    if not files:
        raise ValueError(f"--images: there are no images in {images}.")
    chosen = np.random.default_rng(0).permutation(len(files))[:MOST]
    pictures = [Image.open(files[k]).convert("RGB" if channels == 3 else "L") for k in sorted(chosen)]
    embedded = {}
    for way, resize in WAYS.items():
        say(f"resize: {way}")
        pixels = np.stack([resize(picture, width, height) for picture in pictures])
        embedded[way] = trained.embed(pixels).double().numpy()
    right = embedded[RIGHT]
    cosines = {way: (right * other).sum(1) for way, other in embedded.items()}
    sizes = [picture.size for picture in pictures]
    result: dict[str, Any] = {
        "images": len(pictures),
        "sizes": [list(map(int, np.min(sizes, 0))), list(map(int, np.max(sizes, 0)))],
        "shape": list(trained.about.shape),
        "two_images": float((right[1:] * right[:-1]).sum(1).mean()),
        "rows": {
            way: {"mean": float(c.mean()), "least": float(c.min()), "q05": float(np.quantile(c, 0.05))}
            for way, c in cosines.items()
        },
        "environment": surroundings(),
    }
    store(result, as_markdown(result, name), f"resize-{name}", out, say)
    return result


def as_markdown(result: dict[str, Any], name: str) -> str:
    """The table, for people."""
    (w, h), (w2, h2) = result["sizes"]
    pixels = f"{w}×{h}" if (w, h) == (w2, h2) else f"{w}×{h} to {w2}×{h2}"
    channels, height, width = result["shape"]
    return "\n".join(
        [
            f"# Other ways to resize, {name}",
            "",
            f"{result['images']:,} images of {pixels} pixels to {width}×{height} "
            f"({'RGB' if channels == 3 else 'gray'}). Cosine of an image's embedding to that of the same image, "
            f"resized as in training; that of two neighbouring images is {result['two_images']:.3f} in the mean.",
            "",
            "| | mean | 5 % are below | least |",
            "|---|---:|---:|---:|",
            *(
                f"| {way} | {row['mean']:.4f} | {row['q05']:.4f} | {row['least']:.4f} |"
                for way, row in result["rows"].items()
            ),
            "",
            in_words(result["environment"]),
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command.flags(
        "resize",
        "How far a run's embeddings move when images are resized in another way than in training.",
        "comparisons/demo/runs/arcface-seed0 photos/ --name photos",
    )
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("images", type=Path, help="a folder of images, larger than the network's")
    parser.add_argument("--name", required=True, help="of the data, for the files")
    given = parser.parse_args(arguments)
    with command.plain_errors(parser):
        result = run(given.run, given.images, name=given.name, out=given.out, say=command.say)
    print(as_markdown(result, given.name))


if __name__ == "__main__":
    main()
