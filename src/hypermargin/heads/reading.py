"""Heads in files: torch's state_dicts, safetensors, numpy, and insightface's shards. Nothing is unpickled.

What the files of others hold, read in their source:

  insightface      see insightface.py
  metric-learning  {"W": (dim, classes)}
  linear           {"weight": (classes, dim)}, perhaps "bias"
  Lightning        {"state_dict": {…}, …}, of which the first is read
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hypermargin.class_state import known_entries
from hypermargin.common.tensor_files import (
    STATES,
    NotTensorsError,
    flat,
    holds_objects,
    read_npy,
    read_pt,
    read_safetensors,
)
from hypermargin.common.text import first_line, say
from hypermargin.heads.convert import weights_of
from hypermargin.heads.insightface import MOST_RANKS, SHARDS, insightface_range, shards_in
from hypermargin.heads.shards import join
from hypermargin.heads.weights import Weights

PathLike = str | os.PathLike[str]
PREFIXES = ("", "head.", "module.", "state_dict_softmax_fc.")
# Of our own, what does not go by class.
REST = (
    "scale", "sampled_steps", "classes_held", "schedules.", "row_margin.", "rule_state.", "view_state.",
    "row_terms.", "optimizer.",
)  # fmt: skip
ENDINGS = (*STATES, ".npy")


class Found(NamedTuple):
    """Files to read, in order; for shards also their ranks, and those that are not there."""

    paths: list[Path]
    ranks: list[int]
    missing: list[int]


def read(
    paths: PathLike | Sequence[PathLike],
    *,
    prefix: str = "",
    classes: int | None = None,
    centers: int | None = None,
    allow_older: bool = False,
) -> Weights:
    """Read the weights in a file, in several to join, in a folder of insightface's shards, or in a run's folder.

    - prefix: where the head is one layer of a model, the beginning of its names ("fc.")
    - classes: how many there must be; else a missing last shard cannot be noticed
    - centers: how many rows a class has, for files that do not say: a state_dict with several centers, or others'
    - allow_older: of a run, as in `hypermargin.load`

    Shards are put in the order of their ranks; other files are joined in the order given.
    """
    given = [Path(p) for p in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    found = find(given)
    if found.missing:
        raise ValueError(
            f"{found.paths[0].parent}: the shards of the ranks {', '.join(map(str, found.missing))} are missing; "
            f"given are {', '.join(map(str, found.ranks))}. Give all of them, or their folder."
        )
    parts = [read_one(path, prefix, allow_older, centers) for path in found.paths]
    if found.ranks:
        total = sum(part.classes for part in parts)
        for rank, part in enumerate(parts):
            wanted = len(insightface_range(total, rank, len(parts)))
            if part.classes != wanted:
                raise ValueError(
                    f"{found.paths[rank]} holds {part.classes} classes; of {total} in {len(parts)} shards, rank "
                    f"{rank} has {wanted}. A shard is missing, or they are from different runs."
                )
    if any("classes_held" in part.rest for part in parts):
        parts = _slices(parts, found.paths)
    try:
        whole = join(parts) if len(parts) > 1 else parts[0]
    except ValueError as error:
        raise ValueError(f"{', '.join(map(str, found.paths))} do not belong together: {error}") from None
    if classes is not None and whole.classes != classes:
        raise ValueError(f"{given[0]} holds {whole.classes} classes, not {classes}. Is a shard missing?")
    return whole


def find(given: Sequence[Path]) -> Found:
    """Find out which files to read, in which order, and which shards are missing among or beside them."""
    if not given:
        raise ValueError("paths is empty: give a file, or several.")
    files = list(given)
    if len(given) == 1 and given[0].is_dir() and not (given[0] / "run.json").exists():
        files = next(filter(None, ([p for p, _ in shards_in(given[0], kind)] for kind in SHARDS)), [])
        if not files:
            raise ValueError(
                f"{given[0]} is a folder without softmax_fc_gpu_*.pt, rank_*_softmax_weight.pt or "
                "checkpoint_gpu_*.pt. Give the file itself."
            )
    for path in files:
        if not path.exists():
            raise ValueError(f"{path}: there is no such file.")
    kind = next((kind for kind in SHARDS if all(kind.fullmatch(path.name) for path in files)), None)
    if kind is None:
        return Found(files, [], [])
    ranked = sorted((int(match[1]), path) for path in files if (match := kind.fullmatch(path.name)))
    ranks = [rank for rank, _ in ranked]
    twice = next((rank for rank in ranks if ranks.count(rank) > 1), None)
    if twice is not None:
        raise ValueError(f"rank {twice} is given twice. Give each shard once.")
    if ranks[-1] >= MOST_RANKS:
        raise ValueError(f"{ranked[-1][1]}: there is no rank {ranks[-1]}.")
    beside = {rank for folder in {path.parent for path in files} for _, rank in shards_in(folder, kind)}
    missing = sorted((set(range(max(ranks) + 1)) | beside) - set(ranks))
    return Found([path for _, path in ranked], ranks, missing)


def _slices(parts: list[Weights], paths: list[Path]) -> list[Weights]:
    """Put the state_dicts of the ranks of a sharded head, which say what they hold, in order."""
    held = [part.rest.pop("classes_held", torch.tensor([])).tolist() for part in parts]
    if not all(held):
        raise ValueError(f"{paths[held.index([])]} does not say which classes it holds, as the other files do.")
    order = sorted(range(len(parts)), key=lambda k: held[k][:2])
    place, (_, _, classes, _, ranks) = 0, held[0]
    for k in order:
        start, stop, total, rank, world = held[k]
        if (start, total, world) != (place, classes, ranks):
            raise ValueError(
                f"{paths[k]} holds the classes {start}:{stop} of {total} (rank {rank} of {world}), where class "
                f"{place} of {classes}, of {ranks} ranks, should follow. Give the file of every rank, once."
            )
        place = stop
    if place != classes:
        raise ValueError(f"the classes {place}:{classes} are missing. Give the file of every rank, once.")
    return [parts[k] for k in order if parts[k].classes]


def read_one(path: Path, prefix: str = "", allow_older: bool = False, centers: int | None = None) -> Weights:
    """Read one file, or the head of a run's folder."""
    if path.is_dir():
        from hypermargin.training import RunError, load

        try:
            trained = load(path, allow_older=allow_older)
            for note in trained.passed_over:
                say(note)
            return _checked_centers(weights_of(trained.head), path, centers)
        except (RunError, OSError) as error:
            raise ValueError(str(error)) from None
    if path.suffix not in ENDINGS:
        raise ValueError(f"{path}: expected a file ending in {', '.join(ENDINGS)}, or a folder.")
    try:
        content = _content(path)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # pickle, zipfile, numpy and safetensors have many words for a broken file
        if isinstance(error, NotTensorsError):
            raise ValueError(f"{path}: {error}") from None
        if holds_objects(error):
            raise ValueError(
                f"{path}: it is damaged, or holds Python objects, which are not read, because they can run any "
                "program. Save plain tensors: torch.save(module.state_dict(), path)."
            ) from None
        kind, first = type(error).__name__, first_line(error)
        raise ValueError(f"{path}: not a readable {path.suffix} file ({kind}: {first}).") from None
    try:
        return _checked_centers(_weights(content, path, prefix, centers), path, centers)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None
    except RecursionError:
        raise ValueError(f"{path}: its dictionaries hold one another without end.") from None


def _content(path: Path) -> Any:
    if path.suffix == ".npy":
        return torch.from_numpy(read_npy(path))
    return read_safetensors(path) if path.suffix == ".safetensors" else read_pt(path)


def _weights(content: Any, path: Path, prefix: str, centers: int | None) -> Weights:
    shard = any(kind.fullmatch(path.name) for kind in SHARDS)
    if isinstance(content, Tensor):
        kind = "insightface" if shard else path.suffix[1:]
        return Weights(content.detach(), format=kind, centers=centers or 1)
    if not isinstance(content, Mapping):
        raise ValueError(f"expected tensors by name; got {type(content).__name__}.")
    named = flat(content)
    if not any(name.startswith("state_dict.") for name in named):  # a name may begin as the file does
        prefix = prefix.removeprefix("state_dict.")
    mains = ("weight", "W", "weight_activated")
    choices = (prefix,) if prefix else PREFIXES
    start = next((p for p in choices if any(p + main in named for main in mains)), None)
    if start is None:
        layers = sorted({name.removesuffix("weight") for name in named if name.endswith(".weight")})
        known = f" It has {', '.join(layers[:8])}" + (", …" if len(layers) > 8 else "") if layers else ""
        raise ValueError(f"there is no {prefix}weight.{known}{'; name one as prefix.' if layers else ''}")
    own = {name.removeprefix(start): tensor for name, tensor in named.items() if name.startswith(start)}
    if "W" in own:
        _only(own, ("W",))
        return Weights(own["W"].T.contiguous(), format="metric-learning", centers=centers or 1)
    if shard or "weight_activated" in own:
        _only(own, ("weight", *(name for name in own if name.startswith("weight_"))))  # theirs: momentum, samples
        # `weight` is the whole shard where both are there; weight_activated then holds the rows last sampled.
        rows = own.get("weight", own.get("weight_activated", torch.empty(0)))
        return Weights(rows, format="insightface", centers=centers or 1)
    _only(own, ("weight", "bias", "m", "offsets", "centers", *REST))
    weight, m = own.pop("weight"), own.get("m")
    K = _centers_in(own, weight, centers)
    # A slice of three is taken to have three margins: were they one of the head's, the whole would not fit it.
    if m is not None and m.shape == (3,) and len(weight) == 3 * K and "classes_held" not in own:
        raise ValueError("m of 3 numbers may be one per class or one for all; change the head itself instead.")
    if m is not None and (m.dim() == 0 or len(m) * K != len(weight)):
        m = None
    bias = own.get("bias")
    bias = None if bias is None or not bias.dim() else bias  # one that all classes share is not by class
    by_class = ["weight", "offsets", *(["bias"] if bias is not None else []), *(["m"] if m is not None else [])]
    state = {k: t for k, t in own.items() if k.startswith("optimizer.") and k.split(".")[1] in by_class and t.dim()}
    parts = {k: own[k] for k in known_entries() if k in own and own[k].shape[:1] == weight.shape[:1]}
    rest = {k: t for k, t in own.items() if k not in state and k not in by_class and k not in parts}
    ours = "scale" in rest or start == "head." or bool(state)
    kind = "hypermargin" if ours else "linear"
    return Weights(weight, bias, m, rest, kind, state, own.get("offsets"), parts=parts, centers=K)


def _centers_in(own: dict[str, Tensor], weight: Tensor, said: int | None) -> int:
    """Return how many rows a class has: what the file says, else what was said, else one."""
    saved, held = own.pop("centers", None), own.get("classes_held")
    if saved is not None:
        if saved.numel() != 1 or saved.is_floating_point():
            raise ValueError(f"centers must be a whole number; got {saved.tolist()}.")
        return int(saved)
    if said is None and held is not None and held.shape == (5,) and held[1] > held[0]:
        return max(len(weight) // int(held[1] - held[0]), 1)
    return said or 1


def _checked_centers(found: Weights, path: Path, said: int | None) -> Weights:
    if said is not None and found.centers != said:
        raise ValueError(f"{path} has {found.centers} centers per class, not {said}. Leave centers out.")
    return found


def _only(own: dict[str, Tensor], known: tuple[str, ...]) -> None:
    other = [name for name in own if not any(name == k or (k[-1] == "." and name.startswith(k)) for k in known)]
    if other:
        raise ValueError(
            f"besides the weight it holds {', '.join(other[:5])}. If the head is a layer of this model, name it as "
            "prefix."
        )
