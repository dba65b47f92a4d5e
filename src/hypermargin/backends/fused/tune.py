"""Tiles measured on the present GPU and kept in a file, for `Triton(tune=True)`.

The measurement depends on dimension, number of rows (as a power of two) and operands, never on the number of
classes: the best tiles do not depend on it, and a model that gains classes should not be tuned again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
import triton

from hypermargin.backends.fused import kernels, launch, sites
from hypermargin.backends.fused.tiles import MEASURED, Key, Tile, Tiles, key_of, power, processors, tiles_for
from hypermargin.files import write_text

CLASSES, RUNS = 65536, 4
# Candidates: rows and columns of the result, step, warps, stages.
SCORES = [
    (128, 128, 64, 4, 3),
    (128, 128, 32, 4, 6),
    (128, 256, 64, 8, 3),
    (64, 128, 64, 4, 3),
    (64, 256, 64, 4, 3),
]
FEATURES = [
    (128, 256, 64, 8, 3),
    (128, 256, 64, 8, 4),
    (128, 128, 64, 4, 4),
    (64, 256, 64, 4, 4),
    (64, 128, 64, 4, 4),
]
WEIGHT = [
    (64, 512, 32, 8, 4), (64, 512, 64, 8, 3), (128, 256, 64, 8, 3), (128, 256, 32, 8, 5), (64, 256, 64, 4, 3),
    (128, 128, 64, 8, 3), (128, 128, 32, 4, 4), (64, 128, 64, 4, 4),
]  # fmt: skip


def cache_file() -> Path:
    """Return the path of the file in which measured tiles are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hypermargin" / "tiles.json"


def ensure_tuned(rows: int, d: int, operands: str, device: torch.device) -> None:
    """Measure tiles for such calls, unless they are known or the GPU is recording a graph."""
    kind: torch.dtype = getattr(torch, operands)
    key = key_of(rows, d, kind.itemsize, device)
    if key in MEASURED or device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return
    name = f"{torch.cuda.get_device_name(device)}, triton {triton.__version__}, {key.words()}"
    kept = _read()
    if name not in kept:
        kept = {name: measure(key, kind, device)} | _read()
        with suppress(OSError):  # where the file cannot be written, the next process measures again
            cache_file().parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({words: asdict(tiles) for words, tiles in kept.items()}, indent=1)
            write_text(cache_file(), text + "\n")
    MEASURED[key] = kept[name]
    for known in (launch.step_of, sites.plan_of_kind):  # what was chosen before does not know them
        known.cache_clear()


def _read() -> dict[str, Tiles]:
    """Return the tiles kept in the file; none if it is missing or damaged."""
    try:
        kept = json.loads(cache_file().read_text(encoding="utf-8"))
        return {k: Tiles(**{product: Tile(**tile) for product, tile in v.items()}) for k, v in kept.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def measure(
    key: Key, kind: torch.dtype, device: torch.device, say: Callable[[str], None] = lambda _: None
) -> Tiles:
    """Return the fastest tiles of each product."""
    best = tiles_for(key.rows, key.d, kind.itemsize, device)
    rng = torch.Generator(device).manual_seed(0)  # a generator of its own leaves the user's random numbers alone
    f = torch.randn(key.rows, key.d, device=device, generator=rng)
    weight = torch.randn(CLASSES, key.d, device=device, generator=rng)
    step = launch.Step(key.rows, CLASSES, key.d, kind, best, "tf32x3", processors(device))
    w, inverse = torch.empty(CLASSES, step.width, dtype=kind, device=device), torch.empty(CLASSES, device=device)
    launch.unit_rows(step, weight, True, w, inverse)
    e = torch.rand(launch.slabs(key.rows, CLASSES), device=device, generator=rng).to(kind)
    labels = torch.randint(0, CLASSES, (key.rows, 1), device=device, dtype=torch.int32, generator=rng)
    x, dW, one = launch.operand(f, step), torch.empty_like(weight), torch.ones(1, device=device)
    by_rows = torch.zeros(key.rows, 1, key.d, device=device)
    by_tile = {tile: launch.Labels.of(labels, by_rows, CLASSES, tile) for tile in (64, 128)}

    def scores(step: launch.Step) -> None:
        launch.scores(step, kernels.SHARE.value, x, w, labels, None, 0, shift=inverse, out=e)

    def features(step: launch.Step) -> None:
        launch.feature_sums(step, e, w, f.new_empty(step.splits, key.rows, key.d), False)

    def rows(step: launch.Step) -> None:
        given = (by_tile[step.tiles.weight.rows], None, launch.Update(launch.STORE, dW), f.new_empty(0), 0, CLASSES)
        launch.weight_rows(step, e, x, one, weight, inverse, True, *given)

    products = (("scores", scores, SCORES), ("features", features, FEATURES), ("weight", rows, WEIGHT))
    for product, run, candidates in products:
        times = {}
        for tile in _fitting(candidates, product, key, kind, device):
            tried = replace(step, tiles=replace(best, **{product: tile}))
            try:
                times[tile] = _seconds(partial(run, tried))
            except Exception as error:  # too little shared memory or too few registers for this tile
                say(f"{key.words()}, {product}: {tile} does not run: {str(error).splitlines()[0]}")
        say(f"{key.words()}, {product}: " + ", ".join(f"{_short(t)} {1e6 * s:.0f} µs" for t, s in times.items()))
        if times:
            best = replace(best, **{product: min(times, key=lambda tile: times[tile])})
    return best


def _fitting(
    candidates: list[tuple[int, int, int, int, int]],
    product: str,
    key: Key,
    kind: torch.dtype,
    device: torch.device,
) -> Iterator[Tile]:
    """Yield the candidate tiles, each once, not wider than the problem, with as many stages as fit."""
    wide, seen = power(key.d), set()
    for rows, columns, step, warps, stages in candidates:
        if kind.itemsize == 4:  # float32 has twice the bytes, and takes three products in place of one
            rows, columns, step = min(rows, 64), min(columns, 128), min(step, 32)
        if product == "scores":
            tile = Tile(rows, columns, min(step, wide), warps, stages)
        else:
            tile = Tile(rows, min(columns, wide), step, warps, stages)
        tile = tile.fitting(kind.itemsize, device)
        if tile not in seen:
            seen.add(tile)
            yield tile


def _seconds(run: Callable[[], None]) -> float:
    """Return the least time of one run over several replays of a CUDA graph, which leaves out the launch times."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(RUNS):
            run()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(8)]
    for mark in marks:
        mark.record()
        graph.replay()
    torch.cuda.synchronize()
    return 1e-3 / RUNS * min(float(a.elapsed_time(b)) for a, b in pairwise(marks[1:]))


def _short(tile: Tile) -> str:
    return f"{tile.rows}×{tile.columns}×{tile.step} {tile.warps}w {tile.stages}s"
