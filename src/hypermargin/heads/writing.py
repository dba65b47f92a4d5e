"""Write heads to files that are whole or not there."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.common.tensor_files import write_npy, write_pt, write_safetensors
from hypermargin.common.text import first_line
from hypermargin.files import free_path, replacing
from hypermargin.head import MarginHead
from hypermargin.heads.convert import weights_of
from hypermargin.heads.insightface import SHARDS, insightface_range, shards_in
from hypermargin.heads.reading import PathLike
from hypermargin.heads.weights import Weights, by_class, refuse_centers

FORMATS = {
    "hypermargin": (".pt", ".pth"),
    "safetensors": (".safetensors",),
    "npy": (".npy",),
    "linear": (".pt", ".pth"),
    "metric-learning": (".pt", ".pth"),
    "insightface": (),
}
BY_ENDING = {".pt": "hypermargin", ".pth": "hypermargin", ".safetensors": "safetensors", ".npy": "npy"}
# What the formats of others hold; ours hold everything.
HOLDS = {
    "linear": ("weight", "bias"),
    "npy": ("weight",),
    "metric-learning": ("weight",),
    "insightface": ("weight",),
}


class Output(NamedTuple):
    """One file that was written, or would be: its tensors by name, views of the weights."""

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
    dry_run: bool = False,
) -> list[Output]:
    """Write a head's weights; the files are whole or not there, and one that is there is kept unless `replace`.

    - format: hypermargin (.pt, its state_dict), safetensors, npy, linear (.pt), metric-learning (.pt), or
      insightface: `path` is then a folder for softmax_fc_gpu_{rank}.pt, as many as `shards`; default by the ending
    - rows_only: leave out a bias or margins by class where the format cannot hold them, instead of an error
    - dry_run: check everything, and write nothing

    Scale, schedules and optimiser state are left out by the formats of others, which keep them elsewhere. OSError
    if a file cannot be written.
    """
    weights = weights_of(target) if isinstance(target, MarginHead) else target
    if weights.classes == 0 and "classes_held" not in weights.rest:
        raise ValueError("target holds no class, so there is nothing to write. Leave out this slice.")
    path = Path(path)
    if format is None:
        format = "insightface" if path.is_dir() else BY_ENDING.get(path.suffix)
        if format is None:
            raise ValueError(f"path must end in {', '.join(BY_ENDING)}, or name its format; got {path}.")
    checks.one_of("format", format, tuple(FORMATS))
    if shards != 1 and format != "insightface":
        raise ValueError(f"shards is for the format insightface; got {shards} with {format}.")
    entries = weights.entries()
    if format in HOLDS:
        by_class(weights)  # others would take a rank's slice for the whole
        if format in ("linear", "insightface"):
            refuse_centers(weights, f"the format {format} has one row per class")
        lost = [name for name in ("bias", "m") if name in entries and name not in HOLDS[format]]
        if lost and not rows_only:
            raise ValueError(
                f"the format {format} cannot hold {' and '.join(lost)}, which these weights have. Use safetensors, "
                "or rows_only=True (--rows-only)."
            )
        entries = {name: tensor for name, tensor in entries.items() if name in HOLDS[format]}
    if format == "linear" and "bias" in entries:  # one that all classes share, too
        entries["bias"] = entries["bias"].expand(weights.classes).clone()
    _check_finite(weights)
    if format == "metric-learning":
        entries = {"W": weights.weight.T}
    if format == "npy" and weights.weight.dtype == torch.bfloat16:
        raise ValueError("npy has no bfloat16. Use safetensors, or convert with weights.weight.float().")
    if format == "insightface":
        outputs = _shards(weights.weight, path, shards, replace)
    else:
        outputs = [Output(free_path("path", path, FORMATS[format], replace), format, entries)]
    if not dry_run:
        _save(outputs)
    return outputs


def _shards(weight: Tensor, folder: Path, shards: int, replace: bool) -> list[Output]:
    checks.count("shards", shards)
    if shards > len(weight):
        raise ValueError(f"shards must be at most the number of classes, {len(weight)}; got {shards}.")
    if not folder.is_dir():
        raise ValueError(f"path: insightface's files need a folder, and there is none at {folder}. Make it first.")
    outputs = []
    for rank in range(shards):
        of = insightface_range(len(weight), rank, shards)
        file = free_path("path", folder / f"softmax_fc_gpu_{rank}.pt", (".pt",), replace)
        outputs.append(Output(file, "insightface", {"weight": weight[of.start : of.stop]}))
    for stray, rank in shards_in(folder, SHARDS[0]):
        if rank >= shards:
            raise ValueError(f"path: {stray} is there, of more shards than {shards}. Choose an empty folder.")
    return outputs


def _check_finite(weights: Weights) -> None:
    for name, tensor in weights.entries().items():
        finite = tensor.isfinite()
        bad = ~(finite.flatten(1).all(1) if tensor.dim() > 1 else finite.reshape(-1))
        if bool(bad.any()) and name in weights.rest:
            raise ValueError(
                f"{name} is NaN or inf. Training has gone wrong before this; use an earlier checkpoint."
            )
        if bool(bad.any()):
            ids = torch.unique(bad.nonzero()[:, 0] // weights.per_class(name)).tolist()
            listed = ",".join(map(str, ids[:20])) + (",…" if len(ids) > 20 else "")
            raise ValueError(
                f"{name} would be NaN or inf for {len(ids)} classes ({listed}, as they would be written). Remove "
                "those as well: heads.remove_classes, or hypermargin head resize --remove."
            )


def _save(outputs: list[Output]) -> None:
    """Write all files; each is complete before the first is moved into place."""
    path = outputs[0].path
    try:
        with ExitStack() as stack:
            for path, format, entries in outputs:
                # A link stays one, and what it leads to is replaced.
                _save_one(format, entries, stack.enter_context(replacing(path.resolve())))
    except (OSError, RuntimeError) as error:  # torch.save hides a full disk behind a RuntimeError of its own
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        raise OSError(f"{path} cannot be written ({first_line(cause)}).") from error


def _save_one(format: str, entries: dict[str, Tensor], path: Path) -> None:
    if format == "npy":
        write_npy(path, entries["weight"].detach().cpu().numpy())
    elif format == "safetensors":
        write_safetensors(path, entries)
    else:
        write_pt(path, entries)
