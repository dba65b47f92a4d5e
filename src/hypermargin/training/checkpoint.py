"""Checkpoints that are whole or not used: one folder per step, moved into place when complete, checked when read.

checkpoints/step-00000420/
  model.safetensors   network and head (model.pt without the safetensors package)
  training.pt         optimiser, schedules, averages, random states; loaded with weights_only=True
  state.json          where the run was
  manifest.json       size and SHA-256 of the others; written last

With several ranks, the tensors of network, head, optimiser and averages are in .metadata and __RANK_0.distcp
instead, in torch.distributed.checkpoint's format (dcp.py). Either kind is read by any number of ranks.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hypermargin.common.needs import not_installed
from hypermargin.common.plain import read_json
from hypermargin.common.tensor_files import has_safetensors, read_pt, read_safetensors, write_pt, write_safetensors
from hypermargin.common.text import Say, first_line
from hypermargin.files import sync
from hypermargin.training import slices
from hypermargin.training.content import MANIFEST, STATE
from hypermargin.training.ranks import Ranks
from hypermargin.training.slices import Slices

FORMAT = 1
FORMAT_OF_RANKS = 2
GOING_BACK = " Going back to the one before."


class CheckpointError(OSError):
    """A checkpoint that could not be written or read; the message says which, why, and what to do."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds."""

    step: int
    model: dict[str, Tensor]  # "network.…" and "head.…"
    training: dict[str, Any]  # tensors and plain containers
    state: dict[str, Any]  # JSON

    def weights(self, name: str) -> dict[str, Tensor]:
        """Return the state_dict of "network" or "head"."""
        return {key.partition(".")[2]: value for key, value in self.model.items() if key.startswith(f"{name}.")}


def save(folder: Path, checkpoint: Checkpoint, *, keep: int, best: int | None) -> Path:
    """Write the checkpoint, then `prune`."""
    final, temporary = _places(folder, checkpoint.step)
    try:
        _make_empty(temporary)
        _write_model(temporary / "model", checkpoint.model)
        _save_rest(temporary, checkpoint, checkpoint.training)
        _finish(temporary, final, FORMAT, _digests(temporary.iterdir()))
    # safetensors and torch.save report a full disk each with an error of its own kind, and not always in words.
    except Exception as error:
        raise _failed(folder, temporary, final, first_line(error).rstrip(".")) from error
    prune(folder, keep, best)
    return final


def save_slices(
    folder: Path, checkpoint: Checkpoint, held: Slices, ranks: Ranks, *, keep: int, best: int | None
) -> Path:
    """Write and prune by all ranks together, each writing what it holds; if one fails, all do."""
    from hypermargin.training import dcp

    final, temporary = _places(folder, checkpoint.step)
    tensors, rest = slices.flatten(checkpoint.training)

    def write_part() -> dict[str, Any]:
        dcp.write(temporary, {**checkpoint.model, **tensors}, held)
        return _digests(temporary.glob(f"__{ranks.rank}_*"))

    def finish() -> None:
        _save_rest(temporary, checkpoint, rest)
        files = _digests(temporary / name for name in (dcp.METADATA, "training.pt", "state.json"))
        for rank, part in enumerate(parts):
            files |= part
            for name in part:
                if not (temporary / name).exists():
                    raise OSError(f"{temporary} is not the same folder for rank {rank}; give one that all see")
        _finish(temporary, final, FORMAT_OF_RANKS, files)
        prune(folder, keep, best)

    try:
        ranks.lead(lambda: _make_empty(temporary))  # all or none go on to write together
        parts = ranks.gathered(ranks.together(write_part))
        ranks.lead(finish)
    except Exception as error:
        why = first_line(error).rstrip(".")
        raise ranks.lead(lambda: _failed(folder, temporary, final, why)) from error
    return final


def _places(folder: Path, step: int) -> tuple[Path, Path]:
    """Return where a checkpoint goes, and where it is written before."""
    return folder / f"step-{step:08d}", folder / f".writing-{step:08d}"


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _save_rest(temporary: Path, checkpoint: Checkpoint, training: dict[str, Any]) -> None:
    torch.save(training, temporary / "training.pt")
    (temporary / "state.json").write_text(json.dumps({"step": checkpoint.step, **checkpoint.state}))


def _digests(paths: Iterable[Path]) -> dict[str, Any]:
    """Return size and SHA-256 of files for the manifest; each is on the disk afterwards."""
    found = {}
    for path in sorted(paths):
        sync(path)
        found[path.name] = {"bytes": path.stat().st_size, "sha256": _digest(path)}
    return found


def _finish(temporary: Path, final: Path, version: int, files: dict[str, Any]) -> None:
    """Write the manifest, then move the folder into place."""
    manifest = temporary / "manifest.json"
    manifest.write_text(json.dumps({"format": version, "files": files}, indent=1))
    sync(manifest)
    shutil.rmtree(final, ignore_errors=True)  # a broken one of the same step, or one from before a resume
    os.replace(temporary, final)
    sync(final.parent)


def _failed(folder: Path, temporary: Path, final: Path, why: str) -> CheckpointError:
    free = shutil.disk_usage(folder).free if folder.exists() else 0
    shutil.rmtree(temporary, ignore_errors=True)
    why = "No space left on device" if free < 2**20 else why
    return CheckpointError(
        f"checkpoint {final} could not be written: {why} ({free / 1e6:.1f} MB free). Earlier ones are kept."
    )


def prune(folder: Path, keep: int, best: int | None) -> None:
    """Remove all but the last `keep` checkpoints and the step `best`."""
    for path in steps(folder)[: -max(1, keep)]:
        if best is None or path.name != f"step-{best:08d}":
            shutil.rmtree(path, ignore_errors=True)


def steps(folder: Path) -> list[Path]:
    """List the checkpoints in a folder, oldest first."""
    return sorted(p for p in folder.glob("step-*") if p.is_dir())


def load(
    path: Path,
    device: torch.device | str = "cpu",
    *,
    held: Slices | None = None,
    ranks: Ranks = Ranks(),  # noqa: B008 (frozen)
) -> Checkpoint:
    """Read one checkpoint; CheckpointError if anything of it is missing, cut off or changed.

    With `held`, only this rank's rows of tensors with one row per class. Several `ranks` read it together.
    """
    version = ranks.together(lambda: check(path, ranks))
    return ranks.together(lambda: _read(path, version, device, held))


def _read(path: Path, version: int, device: torch.device | str, held: Slices | None) -> Checkpoint:
    try:
        state = read_json(path / "state.json")
        STATE("state.json", state)
        training = read_pt(path / "training.pt")
        if version == FORMAT_OF_RANKS:
            from hypermargin.training import dcp

            tensors = dcp.read(path, held)
            model = {name: t.to(device) for name, t in tensors.items() if name.startswith(("network.", "head."))}
            training = slices.unflatten(tensors, training)
        else:
            model = _read_model(path / "model", device)
            if held is not None:
                tensors, rest = slices.flatten(training)
                model, training = held.cut(model), slices.unflatten(held.cut(tensors), rest)
        if not isinstance(training, dict) or not all(isinstance(t, Tensor) for t in model.values()):
            raise ValueError("it holds something else than tensors by name")
        return Checkpoint(int(state["step"]), model, training, state)
    except (CheckpointError, ModuleNotFoundError):  # a package that is not installed damages no file
        raise
    # Whatever a reader says of a file whose digest is right but whose content is not ours.
    except Exception as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {first_line(error).rstrip('.')}") from error


def load_last(
    folder: Path,
    say: Say,
    device: torch.device | str = "cpu",
    *,
    held: Slices | None = None,
    ranks: Ranks = Ranks(),  # noqa: B008 (frozen)
) -> Checkpoint | None:
    """Read the newest whole checkpoint, saying which ones had to be passed over; None if there is none at all.

    With several ranks, rank 0 decides which one it is.
    """
    found = ranks.lead(lambda: steps(folder))
    for path in reversed(found):
        try:
            return load(path, device, held=held, ranks=ranks)
        except CheckpointError as error:
            say(f"{error}.{GOING_BACK}")
    if found:
        raise CheckpointError(f"none of the {len(found)} checkpoints in {folder} can be read. Start a new run.")
    return None


def best_of(folder: Path) -> int | None:
    """Return the best step as the newest checkpoint has it; None if it has none, or that part of it is damaged."""
    try:
        newest = steps(folder)[-1]
        raw = (newest / "state.json").read_bytes()
        written = json.loads((newest / "manifest.json").read_text())["files"]["state.json"]["sha256"]
        best = json.loads(raw)["best"] if hashlib.sha256(raw).hexdigest() == written else None
        return int(best["step"]) if best else None
    except (IndexError, OSError, ValueError, KeyError, TypeError):
        return None


def forget_after(folder: Path, step: int) -> None:
    """Remove checkpoints that were passed over, and what a killed process left half-written."""
    for path in [*folder.glob(".writing-*"), *(p for p in steps(folder) if p.name > f"step-{step:08d}")]:
        shutil.rmtree(path, ignore_errors=True)


def check(path: Path, ranks: Ranks = Ranks()) -> int:  # noqa: B008 (frozen)
    """Compare sizes and digests with the manifest; return its format. Each rank checks some of the files."""
    try:
        manifest = read_json(path / "manifest.json")
        MANIFEST("", manifest)
        files = {str(name): (about["bytes"], about["sha256"]) for name, about in manifest["files"].items()}
        version = int(manifest["format"])
    except (OSError, ValueError):
        raise CheckpointError(f"checkpoint {path} is incomplete: its manifest.json is missing or broken") from None
    if version not in (FORMAT, FORMAT_OF_RANKS):
        raise CheckpointError(
            f"checkpoint {path} has format {version}; this version reads {FORMAT} and {FORMAT_OF_RANKS}"
        )
    for name in sorted(files)[ranks.rank :: ranks.world]:
        (size, digest), file = files[name], path / Path(name).name
        if not file.is_file():
            raise CheckpointError(f"checkpoint {path} is incomplete: {name} is missing")
        if file.stat().st_size != size:
            raise CheckpointError(f"checkpoint {path} is cut off: {name} has {file.stat().st_size} bytes of {size}")
        if _digest(file) != digest:
            raise CheckpointError(f"checkpoint {path} is damaged: {name} is not what was written")
    return version


def note(say: Say) -> None:
    """Say so if the weights will not be in the format that others read."""
    if not has_safetensors():
        say(not_installed("Weights are saved as model.pt: model.safetensors needs", "safetensors"))


def _write_model(stem: Path, tensors: dict[str, Tensor]) -> None:
    """Write `stem`.safetensors, or `stem`.pt without that package."""
    if has_safetensors():
        write_safetensors(stem.with_suffix(".safetensors"), tensors)
    else:
        write_pt(stem.with_suffix(".pt"), tensors)


def _read_model(stem: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Read what `_write_model` wrote, whichever it was."""
    path = stem.with_suffix(".safetensors")
    found: dict[str, Tensor]
    found = read_safetensors(path, device) if path.exists() else read_pt(stem.with_suffix(".pt"), device)
    return found


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
