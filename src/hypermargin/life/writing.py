"""Heads into files, whole or not at all."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.files import replacing
from hypermargin.head import MarginHead
from hypermargin.life.files import PathLike
from hypermargin.life.shards import shard_range
from hypermargin.life.weights import Weights, weights_of
from hypermargin.shipping.formats import free_path

FORMATS = {
    "hypermargin": (".pt", ".pth"),
    "safetensors": (".safetensors",),
    "npy": (".npy",),
    "linear": (".pt", ".pth"),
    "metric-learning": (".pt", ".pth"),
    "insightface": (),
}
BY_ENDING = {".pt": "hypermargin", ".pth": "hypermargin", ".safetensors": "safetensors", ".npy": "npy"}
HOLDS = {
    "linear": ("weight", "bias"),
    "npy": ("weight",),
    "metric-learning": ("weight",),
    "insightface": ("weight",),
}


class Output(NamedTuple):
    """One file to be written: its tensors by name, views of the weights."""

    path: Path
    format: str
    entries: dict[str, Tensor]


def write(
    target: MarginHead | Weights,
    path: PathLike,
    *,
    format: str | None = None,
    shards: int = 1,
    rows_only: bool = False,
    replace: bool = False,
) -> list[Path]:
    """Write a head's weights; the files are whole or not there, and one that is there is kept unless `replace`.

    - format: hypermargin (.pt, its state_dict), safetensors, npy, linear (.pt), metric-learning (.pt), or
      insightface: `path` is then a folder for softmax_fc_gpu_{rank}.pt, as many as `shards`; default by the ending
    - rows_only: leave out a bias or margins by class where the format cannot hold them, instead of an error

    Scale and schedules are left out by the formats of others, which keep them in their settings.
    """
    outputs = plan_outputs(target, path, format=format, shards=shards, rows_only=rows_only, replace=replace)
    save(outputs)
    return [output.path for output in outputs]


def save(outputs: list[Output]) -> None:
    """Write them: all are complete before the first is moved into place."""
    with ExitStack() as stack:
        for output in outputs:
            _save(output, stack.enter_context(replacing(output.path)))


def plan_outputs(
    target: MarginHead | Weights,
    path: PathLike,
    *,
    format: str | None = None,
    shards: int = 1,
    rows_only: bool = False,
    replace: bool = False,
) -> list[Output]:
    """What `write` would write, after all its checks."""
    weights = weights_of(target) if isinstance(target, MarginHead) else target
    path = Path(path)
    if format is None:
        format = "insightface" if path.is_dir() else BY_ENDING.get(path.suffix)
        if format is None:
            raise ValueError(f"path must end in {', '.join(BY_ENDING)}, or name its format; got {path}.")
    checks.one_of("format", format, tuple(FORMATS))
    if shards != 1 and format != "insightface":
        raise ValueError(f"shards is for the format insightface; got {shards} with {format}.")
    entries = weights.entries()
    lost = [name for name in ("bias", "m") if name in entries and name not in HOLDS.get(format, (name,))]
    if lost and not rows_only:
        raise ValueError(
            f"the format {format} cannot hold {' and '.join(lost)}, which these weights have. Use safetensors, or "
            "rows_only=True (--rows-only)."
        )
    _finite(weights)
    entries = {name: t for name, t in entries.items() if name in HOLDS.get(format, (name,))}
    if format == "metric-learning":
        entries = {"W": weights.weight.T}
    if format == "npy" and weights.weight.dtype == torch.bfloat16:
        raise ValueError("npy has no bfloat16. Use safetensors, or convert with weights.weight.float().")
    if format != "insightface":
        return [Output(free_path("path", path, FORMATS[format], replace), format, entries)]
    checks.count("shards", shards)
    if shards > weights.classes:
        raise ValueError(f"shards must be at most the number of classes, {weights.classes}; got {shards}.")
    if not path.is_dir():
        raise ValueError(f"path: insightface's files need a folder, and there is none at {path}. Make it first.")
    outputs = []
    for rank in range(shards):
        of = shard_range(weights.classes, rank, shards)
        file = free_path("path", path / f"softmax_fc_gpu_{rank}.pt", (".pt",), replace)
        outputs.append(Output(file, format, {"weight": weights.weight[of.start : of.stop]}))
    stray = path / f"softmax_fc_gpu_{shards}.pt"
    if stray.exists():
        raise ValueError(f"path: {stray} is there, of more shards than {shards}. Choose an empty folder.")
    return outputs


def _finite(weights: Weights) -> None:
    for name, tensor in weights.entries().items():
        bad = ~tensor.isfinite().reshape(len(tensor) if tensor.dim() else 1, -1).all(1)
        if bool(bad.any()):
            ids = bad.nonzero()[:, 0].tolist()
            listed = ",".join(map(str, ids[:20])) + (",…" if len(ids) > 20 else "")
            raise ValueError(
                f"{name} would be NaN or inf for {len(ids)} classes ({listed}, as they would be written). Remove "
                "those as well: life.remove_classes, or hypermargin head resize --remove."
            )


def _save(output: Output, path: Path) -> None:
    # Contiguous copies: torch.save would write all that a slice is a view of.
    entries = {
        name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in output.entries.items()
    }
    if output.format == "npy":
        with path.open("wb") as file:
            np.save(file, entries["weight"].numpy(), allow_pickle=False)
    elif output.format == "safetensors":
        from safetensors.torch import save

        path.write_bytes(save(entries, metadata={"format": "pt"}))
    else:
        with path.open("wb") as file:  # a handle: from a path, torch puts the temporary name into the archive
            torch.save(entries, file)
