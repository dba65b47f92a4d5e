"""Tensors and arrays in files: .safetensors, .pt, .pth, .ckpt, .npy, .npz. Nothing in a file is unpickled or run.

Writers write to the path they are given; for a file that is whole or not there, give them `files.replacing`'s.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hypermargin.common.arrays import Array
from hypermargin.common.needs import not_installed
from hypermargin.common.text import first_line

STATES = (".safetensors", ".pt", ".pth", ".ckpt")


def has_safetensors() -> bool:
    """Tell whether the safetensors package is installed."""
    try:
        import safetensors.torch  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write named tensors; OSError if the disk cannot take them."""
    _need_safetensors(path)
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(_plain(tensors), path, metadata={"format": "pt", **(metadata or {})})
    except SafetensorError as error:  # a full disk, among others
        raise OSError(first_line(error)) from error
    path.chmod(mode)  # some versions of save_file leave a file that only its owner may read


def read_safetensors(path: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Read named tensors."""
    _need_safetensors(path)
    from safetensors.torch import load_file

    return load_file(path, device=str(device))


def write_pt(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors as torch.save does."""
    with path.open("wb") as file:  # a handle: from a path, torch puts the file's temporary name into the archive
        torch.save(_plain(tensors), file)


class NotTensorsError(ValueError):
    """A file that is no plain tensors, but a program or objects of Python's."""


def read_pt(path: Path, device: torch.device | str = "cpu") -> Any:
    """Read a .pt, .pth or .ckpt file of tensors and plain containers; NotTensorsError if it holds anything else."""
    _check_archive(path)
    if _is_torchscript(path):
        raise NotTensorsError(
            "it is a TorchScript program, which is not read, because it would have to be run. Where you trust it, "
            "save its tensors: torch.save(torch.jit.load(path).state_dict(), other_path)."
        )
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError as error:  # whose text advises to switch weights_only off
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f"Python objects such as {named[1][:80]}" if named else "Python objects"
        raise NotTensorsError(
            f"it is damaged, or holds {what}, which are not read, because they can run any program. Save plain "
            "tensors: torch.save(module.state_dict(), path)."
        ) from None


def _is_torchscript(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def flat(content: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Return the tensors in dictionaries within dictionaries, by names with dots; of Lightning's file the model's.

    RecursionError where they hold one another without end.
    """
    lightning = content.get("state_dict")
    return dict(_tensors(lightning if isinstance(lightning, Mapping) and lightning else content))


def _tensors(content: Mapping[Any, Any], before: str = "") -> Iterator[tuple[str, Tensor]]:
    for key, value in content.items():
        if isinstance(value, Tensor):
            yield f"{before}{key}", value.detach()
        elif isinstance(value, Mapping):
            yield from _tensors(value, f"{before}{key}.")


def read_state(path: Path) -> dict[str, Tensor]:
    """Read the named tensors of a network's file; ValueError says what is wrong with it."""
    if path.suffix not in STATES:
        raise ValueError(f"{path}: expected a file ending in {', '.join(STATES)}.")
    try:
        content = read_safetensors(path) if path.suffix == ".safetensors" else read_pt(path)
        found = flat(content) if isinstance(content, Mapping) else {}
    except NotTensorsError as error:
        raise ValueError(f"{path}: {error}") from None
    except ModuleNotFoundError:
        raise
    except Exception as error:  # zipfile, pickle and safetensors have many words for a broken file
        raise ValueError(f"{path}: not a readable {path.suffix} file ({first_line(error).rstrip('.')}).") from None
    if not found:
        raise ValueError(
            f"{path}: it holds no named tensors. Save a network's: torch.save(module.state_dict(), path)."
        )
    return found


def write_npy(path: Path, array: Array) -> None:
    """Write one array; a ValueError of numpy's if it holds Python objects."""
    with path.open("wb") as file:  # a handle: to a path, numpy adds its own ending
        np.save(file, np.asarray(array, order="C"), allow_pickle=False)


def read_npy(path: Path) -> Array:
    """Read one array; a ValueError of numpy's if it holds Python objects."""
    # Mapped, so that a header that promises more than the file has is an error and not an allocation.
    return np.array(np.load(path, mmap_mode="r", allow_pickle=False))


def read_npz(path: Path) -> dict[str, Array]:
    """Read all arrays of a .npz file; a ValueError of numpy's if one holds Python objects."""
    # A handle, since numpy leaves a file that it opened itself open where it is no archive.
    with path.open("rb") as file:
        found = np.load(file, allow_pickle=False)
        return {name: found[name] for name in found.files}


def read_arrays(path: Path) -> Array | dict[str, Array]:
    """Read a .npy file as one array, a .npz file as arrays by name; ValueError says what is wrong with the file."""
    if path.suffix not in (".npy", ".npz"):
        raise ValueError(f"{path}: expected a .npy or .npz file, or a run's folder.")
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file.")
    try:
        return read_npz(path) if path.suffix == ".npz" else read_npy(path)
    except Exception as error:  # zipfile, zlib and numpy's header parser raise many kinds on damaged files
        if holds_objects(error):
            raise ValueError(
                f"{path}: it holds Python objects, which are not read, because they can run any program. "
                "Save plain numbers or strings, as in np.array(labels, dtype=str)."
            ) from None
        raise ValueError(f"{path}: not a readable {path.suffix} file ({type(error).__name__}: {error}).") from None


def holds_objects(error: Exception) -> bool:
    """Tell whether numpy refused a file because it holds Python objects."""
    return "allow_pickle" in str(error) or "Python objects" in str(error)


def _check_archive(path: Path) -> None:
    """Refuse an archive that unpacks to more than it is: torch.save packs nothing, torch.load unpacks it all."""
    if not zipfile.is_zipfile(path):
        return  # of torch before 1.6; its tensors are read from the file as they are
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > path.stat().st_size:
        raise ValueError(f"it would unpack to {size:,} bytes, which torch.save does not do")


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU: safetensors refuses tied weights, and torch.save writes all that a slice is a view of."""
    return {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}


def _need_safetensors(path: Path) -> None:
    if not has_safetensors():
        raise ModuleNotFoundError(not_installed(f"{path} needs", "safetensors"), name="safetensors")
