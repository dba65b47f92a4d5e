"""Tensors and arrays in files: .safetensors, .pt, .npy and .npz. Nothing in a file is unpickled or run.

Writers write to the path they are given; for a file that is whole or not there, give them `files.replacing`'s.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hypermargin.common.arrays import Array
from hypermargin.common.text import first_line


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


def read_pt(path: Path, device: torch.device | str = "cpu") -> Any:
    """Read a .pt file of tensors and plain containers; a pickle.UnpicklingError if it holds anything else."""
    _check_archive(path)
    return torch.load(path, map_location=device, weights_only=True)


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
        raise ModuleNotFoundError(
            f"{path} needs safetensors, which is not installed. Run: pip install 'hypermargin[train]'"
        )
