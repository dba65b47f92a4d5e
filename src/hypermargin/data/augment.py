"""Random changes to images whose randomness comes from seed, epoch and sample, never from who computes them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hypermargin import checks
from hypermargin.data.base import Rows

DRAWS = 9  # random numbers per image
PRESETS = {"none": "", "flip": "flip=1", "affine": "rotate=10,zoom=0.1,shear=0.1,shift=0.08"}


@dataclass(frozen=True)
class Augment:
    """How far an image may be changed, each way up to the number given, uniformly.

    rotate in degrees; zoom, shear, shift as shares of the side; contrast and brightness as shares of the range;
    flip mirrors half of the images. On the device, a batch at a time; what leaves the image repeats its edge.
    """

    rotate: float = 0.0
    zoom: float = 0.0
    shear: float = 0.0
    shift: float = 0.0
    contrast: float = 0.0
    brightness: float = 0.0
    flip: bool = False

    @classmethod
    def parse(cls, text: str) -> Augment:
        """Read a preset (none, flip, affine) or `rotate=10,zoom=0.1,flip`."""
        known = [f.name for f in fields(cls)]
        values: dict[str, Any] = {}
        for part in filter(None, (p.strip() for p in PRESETS.get(text, text).split(","))):
            name, _, value = part.partition("=")
            if name not in known:
                raise ValueError(
                    f"augment must be {', '.join(PRESETS)}, or a list of {', '.join(known)} like "
                    f"'rotate=10,flip'; got {text!r}.{checks.near(name, [*known, *PRESETS])}"
                )
            try:
                values[name] = bool(float(value or 1)) if name == "flip" else float(value)
            except ValueError:
                raise ValueError(f"augment: {name} needs a number, like {name}=0.1; got {part!r}.") from None
            if name != "flip":
                checks.in_range(f"augment {name}", values[name], 0.0, 180.0 if name == "rotate" else 1.0)
        return cls(**values)

    def __call__(self, images: Tensor, rows: Rows, *, seed: int, epoch: int) -> Tensor:
        """Change (N, C, H, W) images; image k is sample rows[k]."""
        return self.apply(images, self.draws(rows, seed=seed, epoch=epoch).to(images.device, non_blocking=True))

    def draws(self, rows: Rows, *, seed: int, epoch: int) -> Tensor:
        """Return the random numbers for samples in an epoch, (N, DRAWS) in [0, 1); none if nothing is changed."""
        if self == Augment():
            return torch.empty(len(rows), 0)
        return torch.from_numpy(uniform(seed, epoch, rows, DRAWS).astype(np.float32))

    def apply(self, images: Tensor, u: Tensor) -> Tensor:
        """Change (N, C, H, W) images by such numbers; vectors are left as they are."""
        if self == Augment() or images.dim() != 4 or not len(images):
            return images
        signed = 2 * u - 1
        if self.flip:
            images = torch.where(u[:, 0].reshape(-1, 1, 1, 1) < 0.5, images.flip(-1), images)
        if self.rotate or self.zoom or self.shear or self.shift:
            images = F.grid_sample(
                images,
                F.affine_grid(self._matrices(signed).to(images.dtype), list(images.shape), align_corners=False),
                padding_mode="border",
                align_corners=False,
            )
        if self.contrast or self.brightness:
            gain, offset = (signed[:, k].reshape(-1, 1, 1, 1).to(images.dtype) for k in (7, 8))
            images = images * (1 + self.contrast * gain) + 2 * self.brightness * offset  # the range is [−1, 1]
        return images

    def _matrices(self, u: Tensor) -> Tensor:
        """Return (N, 2, 3): where in the image each pixel comes from; rotation · shear · zoom, and the shift."""
        angle = math.radians(self.rotate) * u[:, 1]
        shear = self.shear * u[:, 2]
        sx, sy = 1 + self.zoom * u[:, 3], 1 + self.zoom * u[:, 4]
        c, s = angle.cos(), angle.sin()
        tx, ty = 2 * self.shift * u[:, 5], 2 * self.shift * u[:, 6]
        first = torch.stack([c * sx, (c * shear - s) * sy, tx], 1)
        second = torch.stack([s * sx, (s * shear + c) * sy, ty], 1)
        return torch.stack([first, second], 1)


def uniform(seed: int, epoch: int, rows: Rows, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return (N, count) numbers in [0, 1), a hash of seed, epoch, sample and column."""
    with np.errstate(over="ignore"):  # wrapping round is what a hash does
        key = _mix(np.uint64(seed & (2**64 - 1)) + _mix(np.asarray([epoch], np.uint64)))
        cells = rows.astype(np.uint64)[:, None] * np.uint64(count) + np.arange(count, dtype=np.uint64)
        hashed: np.ndarray[Any, np.dtype[np.uint64]] = _mix(key + _mix(cells)) >> np.uint64(11)
    return hashed.astype(np.float64) * 2.0**-53


def _mix(x: Any) -> Any:
    """Mix bits by SplitMix64 (Steele, Lea, Flood 2014): every bit of the result depends on every bit of x."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
