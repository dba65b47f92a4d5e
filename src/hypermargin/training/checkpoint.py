"""Checkpoints that are whole or not used: a folder a step, moved into place when complete, checked when read.

checkpoints/step-00000420/
  model.safetensors   network and head (model.pt without the safetensors package)
  training.pt         optimiser, schedules, averages, random states; loaded with weights_only=True
  state.json          where the run was
  manifest.json       size and SHA-256 of the others; written last
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hypermargin.data.base import Say
from hypermargin.files import sync

FORMAT = 1


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
        """The state_dict of "network" or "head"."""
        return {key.partition(".")[2]: value for key, value in self.model.items() if key.startswith(f"{name}.")}


def save(folder: Path, checkpoint: Checkpoint, *, keep: int, best: int | None) -> Path:
    """Write the checkpoint, then `prune`."""
    final = folder / f"step-{checkpoint.step:08d}"
    temporary = folder / f".writing-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        save_tensors(temporary / "model", checkpoint.model)
        torch.save(checkpoint.training, temporary / "training.pt")
        (temporary / "state.json").write_text(json.dumps({"step": checkpoint.step, **checkpoint.state}))
        files = {p.name: {"bytes": p.stat().st_size, "sha256": _digest(p)} for p in sorted(temporary.iterdir())}
        (temporary / "manifest.json").write_text(json.dumps({"format": FORMAT, "files": files}, indent=1))
        for path in temporary.iterdir():
            sync(path)
        shutil.rmtree(final, ignore_errors=True)  # a broken one of the same step, or one from before a resume
        os.replace(temporary, final)
        sync(folder)
    # safetensors and torch.save report a full disk each with an error of its own kind, and not always in words.
    except Exception as error:
        free = shutil.disk_usage(folder).free if folder.exists() else 0
        shutil.rmtree(temporary, ignore_errors=True)
        why = "No space left on device" if free < 2**20 else _first_line(error)
        raise CheckpointError(
            f"checkpoint {final} could not be written: {why} ({free / 1e6:.1f} MB free). Earlier ones are kept."
        ) from error
    prune(folder, keep, best)
    return final


def prune(folder: Path, keep: int, best: int | None) -> None:
    """Remove all but the last `keep` checkpoints and the step `best`."""
    for path in steps(folder)[: -max(1, keep)]:
        if best is None or path.name != f"step-{best:08d}":
            shutil.rmtree(path, ignore_errors=True)


def steps(folder: Path) -> list[Path]:
    """The checkpoints there, oldest first."""
    return sorted(p for p in folder.glob("step-*") if p.is_dir())


def load(path: Path, device: torch.device | str = "cpu") -> Checkpoint:
    """Read one checkpoint; CheckpointError if anything of it is missing, cut off or changed."""
    check(path)
    try:
        state = json.loads((path / "state.json").read_text())
        return Checkpoint(
            step=int(state["step"]),
            model=load_tensors(path / "model", device),
            training=torch.load(path / "training.pt", map_location="cpu", weights_only=True),
            state=state,
        )
    except CheckpointError:
        raise
    except (
        Exception
    ) as error:  # whatever a reader says of a file whose digest is right but whose content is not ours
        raise CheckpointError(f"checkpoint {path} cannot be read: {_first_line(error)}") from error


def load_last(folder: Path, say: Say, device: torch.device | str = "cpu") -> Checkpoint | None:
    """The newest whole checkpoint, saying which ones had to be passed over; None if there is none at all."""
    found = steps(folder)
    for path in reversed(found):
        try:
            return load(path, device)
        except CheckpointError as error:
            say(f"{error}. Going back to the one before.")
    if found:
        raise CheckpointError(f"none of the {len(found)} checkpoints in {folder} can be read. Start a new run.")
    return None


def forget_after(folder: Path, step: int) -> None:
    """Remove checkpoints that were passed over, and what a killed process left half-written."""
    for path in [*folder.glob(".writing-*"), *(p for p in steps(folder) if p.name > f"step-{step:08d}")]:
        shutil.rmtree(path, ignore_errors=True)


def check(path: Path) -> None:
    """Sizes and digests as in the manifest."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        files = dict(manifest["files"])
        version = manifest["format"]
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointError(f"checkpoint {path} is incomplete: its manifest.json is missing or broken") from None
    if version != FORMAT:
        raise CheckpointError(f"checkpoint {path} has format {version}; this version reads {FORMAT}")
    for name, expected in files.items():
        file = path / Path(name).name
        if not file.is_file():
            raise CheckpointError(f"checkpoint {path} is incomplete: {name} is missing")
        if file.stat().st_size != expected["bytes"]:
            raise CheckpointError(
                f"checkpoint {path} is cut off: {name} has {file.stat().st_size} bytes of {expected['bytes']}"
            )
        if _digest(file) != expected["sha256"]:
            raise CheckpointError(f"checkpoint {path} is damaged: {name} is not what was written")


def note(say: Say) -> None:
    """One line if the weights will not be in the format that others read."""
    try:
        import safetensors  # noqa: F401
    except ModuleNotFoundError:
        say("Weights are saved as model.pt, without the safetensors package (pip install 'hypermargin[train]').")


def save_tensors(stem: Path, tensors: dict[str, Tensor]) -> Path:
    """`stem`.safetensors, or `stem`.pt without that package."""
    # Tied weights share memory, which safetensors refuses; copies are small beside a run.
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    try:
        from safetensors.torch import save_file
    except ModuleNotFoundError:
        path = stem.with_name(stem.name + ".pt")
        torch.save(plain, path)
        return path
    path = stem.with_name(stem.name + ".safetensors")
    save_file(plain, path)
    return path


def load_tensors(stem: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """What `save_tensors` wrote, whichever it was. Neither file can execute anything."""
    path = stem.with_name(stem.name + ".safetensors")
    if not path.exists():
        found: dict[str, Tensor] = torch.load(
            stem.with_name(stem.name + ".pt"), map_location=device, weights_only=True
        )
        return found
    try:
        from safetensors.torch import load_file
    except ModuleNotFoundError:
        raise CheckpointError(
            f"{path} needs safetensors, which is not installed. Run: pip install 'hypermargin[train]'"
        ) from None
    return load_file(path, device=str(device))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")
