"""The tile sizes of the fused backend's products, chosen by dimension and number of rows, never by classes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch


@dataclass(frozen=True)
class Tile:
    """The tile of one product: rows and columns of the result, step along the summed dimension, warps, stages."""

    rows: int
    columns: int
    step: int
    warps: int
    stages: int

    def fitting(self, element: int, device: torch.device) -> Tile:
        """Return the same tile with at most as many stages as fit into the device's shared memory."""
        stage = (self.rows + self.columns) * self.step * element
        room = _shared_memory(device) - 8192
        return replace(self, stages=max(min(self.stages, room // stage), 1))


@dataclass(frozen=True)
class Tiles:
    """The tiles of the three products: rows × classes, rows × dimensions, classes × dimensions."""

    scores: Tile
    features: Tile
    weight: Tile

    def __post_init__(self) -> None:
        if self.scores.rows % self.weight.step:  # `weight` would read rows of E that `scores` never wrote
            raise ValueError(f"{self.scores} must cover whole steps of {self.weight} in its rows.")


@cache
def _shared_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return 227 * 1024
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 99 * 1024))


@cache
def processors(device: torch.device) -> int:
    """Return the GPU's number of multiprocessors; 4 where kernels are interpreted, so that sums are split too."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@cache
def _capability(device: torch.device) -> int:
    return torch.cuda.get_device_capability(device)[0]


@dataclass(frozen=True)
class Key:
    """What tiles depend on: rows (as a power of two), dimension, bytes per element of an operand, device."""

    rows: int
    d: int
    element: int
    device: torch.device

    def words(self) -> str:
        """Return the key as text, for the file in which measured tiles are kept."""
        return f"{self.rows} rows, d = {self.d}, {8 * self.element} bits"


MEASURED: dict[Key, Tiles] = {}  # filled by tune.py


def key_of(rows: int, d: int, element: int, device: torch.device) -> Key:
    """Return the key of a call; the number of rows is rounded up to a power of two between 64 and 4096."""
    return Key(min(max(power(rows), 64), 4096), d, element, device)


def power(n: int, least: int = 16) -> int:
    """Return the smallest power of two that is not below n, but at least `least`."""
    return max(1 << (n - 1).bit_length(), least)


def tiles_for(rows: int, d: int, element: int, device: torch.device) -> Tiles:
    """Return measured tiles, else those tuned on an H200 for d = 128, 256, 512, 768 and 1024, or the next of these.

    GPUs before Hopper get smaller ones, with as many stages as their shared memory holds.
    """
    measured = MEASURED.get(key_of(rows, d, element, device)) if MEASURED else None
    if measured is not None:
        return measured
    wide = power(d)
    hopper = device.type != "cuda" or _capability(device) >= 9
    if element == 4:  # float32 operands take three products each, so tiles are half as large
        few = 64 if device.type == "cuda" else 32  # in the interpreter's tests few rows should give several tiles
        chosen = Tiles(
            scores=Tile(few, 128, min(32, wide), 4, 3),
            features=Tile(few, min(128, wide), 32, 4, 3),
            weight=Tile(64, min(128, wide), 32, 4, 3),
        )
    else:
        few = rows <= 64
        chosen = Tiles(
            scores=Tile(64 if few else 128, 128, min(64, wide), 4, 3),
            features=Tile(64 if few else 128, min(256, wide), 64, 4 if few or wide < 256 else 8, 4),
            weight=Tile(64, min(512, wide), 32, 8, 4),
        )
        if -(-d // 256) * 256 < -(-d // 512) * 512 and d > 512:  # 512 columns would be half empty at the end
            chosen = replace(chosen, weight=Tile(128, 256, 64, 8, 3))
        if not hopper:  # results in registers: half the width; never measured
            chosen = Tiles(
                scores=Tile(64 if few else 128, 128, min(32, wide), 8, 3),
                features=Tile(64, min(128, wide), 32, 4, 3),
                weight=Tile(64, min(256, wide), 32, 8, 3),
            )
    return Tiles(*(tile.fitting(element, device) for tile in (chosen.scores, chosen.features, chosen.weight)))
