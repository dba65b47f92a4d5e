"""Checkpoints of several ranks in torch.distributed.checkpoint's format: each writes its classes, any number reads.

The folder of a step is itself such a checkpoint. torch keeps the list of its tensors as a pickle (.metadata). It is
read here with stand-ins for torch's classes, which only hold what they are given, and then made anew from the
numbers and names in them; the tensors themselves are read with weights_only.

Imported where such a checkpoint is met: it takes a second.
"""

from __future__ import annotations

import inspect
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict, load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from hypermargin.training.slices import Slices

METADATA = ".metadata"
# Ends the name of a tensor (classes, centers, …) whose first two dimensions are one in memory: torch cuts the first
# dimension its own way, which is ours by class, and not by center.
BY_CENTER = "@centers"


def write(folder: Path, tensors: dict[str, Tensor], slices: Slices) -> None:
    """Write the tensors, by all ranks together; `folder` exists."""
    with _plainly():
        save(
            dict(_to_write(name, tensor.detach(), slices) for name, tensor in tensors.items()),
            storage_writer=FileSystemWriter(folder),
            process_group=slices.group,
        )


def read(folder: Path, slices: Slices | None = None) -> dict[str, Tensor]:
    """Read every tensor of a checkpoint; with `slices` only this rank's classes. Each process reads by itself."""
    reader = _Reader(folder)
    found = {}
    for name, about in reader.read_metadata().state_dict_metadata.items():
        assert isinstance(about, TensorStorageMetadata)
        size, dtype = list(about.size), about.properties.dtype
        if slices is not None and slices.cuts(name.removesuffix(BY_CENTER), len(size)):
            if size[0] != slices.classes:
                raise ValueError(f"{name} in {folder} has {size[0]} classes; the head has {slices.classes}.")
            size[0] = slices.stop - slices.start
            found[name] = _distributed(torch.empty(size, dtype=dtype), slices)
        else:
            found[name] = torch.empty(size, dtype=dtype)
    with _plainly():
        if "no_dist" in inspect.signature(load).parameters:
            load(found, storage_reader=reader, no_dist=True)
        else:  # before torch had the option, it was there under this name
            _load_state_dict(found, storage_reader=reader, no_dist=True)
    return dict(_as_read(name, _local(tensor)) for name, tensor in found.items())


def _to_write(name: str, tensor: Tensor, slices: Slices) -> tuple[str, Tensor]:
    """Return a tensor as it is written, and its name there."""
    if not slices.cuts(name, tensor.dim()):
        return name, tensor.cpu()  # torch copies from the current device, which need not be the tensor's
    per_class = slices.per_class(name)
    if per_class == 1:
        return name, _distributed(tensor, slices)
    return name + BY_CENTER, _distributed(tensor.reshape(-1, per_class, *tensor.shape[1:]), slices)


def _as_read(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    """Return a tensor as it was before `_to_write`, with its name."""
    if not name.endswith(BY_CENTER):
        return name, tensor
    return name.removesuffix(BY_CENTER), tensor.flatten(0, 1)


def _distributed(local: Tensor, slices: Slices) -> Tensor:
    """Make this rank's rows part of the tensor of all classes."""
    group = slices.group or dist.group.WORLD
    assert group is not None
    shape = torch.Size((slices.classes, *local.shape[1:]))
    stride = torch.empty(shape, device="meta").stride()
    mesh = DeviceMesh.from_group(group, "cpu")
    local = local.cpu().contiguous()
    whole: Tensor = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
    return whole


def _local(tensor: Tensor) -> Tensor:
    own: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return own


@contextmanager
def _plainly() -> Iterator[None]:
    """Raise torch's error, a BaseException with tracebacks for a message, as an OSError that says whose and why.

    Silence torch's remark that one process reads alone, which is what was asked for.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")
        try:
            yield
        except CheckpointException as error:
            rank, (why, _) = next(iter(error.failures.items()))
            raise OSError(f"{why} (rank {rank})") from error


class _Reader(FileSystemReader):
    """torch's reader, with a list of tensors that cannot run anything and names no file outside its folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        path = self.folder / METADATA
        try:
            with path.open("rb") as file:
                found = _Unpickler(file).load().state
            listed = Metadata(
                {str(name): _tensor(about.state) for name, about in found["state_dict_metadata"].items()},
                storage_data=dict(_piece(*pair) for pair in found["storage_data"].items()),
                storage_meta=StorageMeta(),
            )
        except (AttributeError, KeyError, TypeError, ValueError, IndexError, EOFError) as error:
            raise ValueError(f"{path} is no list of tensors: {error}") from error
        assert listed.storage_meta is not None
        listed.storage_meta.load_id = self.load_id
        return listed


def _tensor(about: dict[str, Any]) -> TensorStorageMetadata:
    dtype = about["properties"].state[0]
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{dtype!r} is no dtype")
    chunks = [ChunkStorageMetadata(_size(c.state["offsets"]), _size(c.state["sizes"])) for c in about["chunks"]]
    return TensorStorageMetadata(TensorProperties(dtype=dtype), _size(about["size"]), chunks)


def _piece(index: Any, place: Any) -> tuple[MetadataIndex, _StorageInfo]:
    fqn, offset, number = (index.state[name] for name in ("fqn", "offset", "index"))
    file = str(place.state["relative_path"])
    if Path(file).name != file:
        raise ValueError(f"it names a file elsewhere, {file}")
    whole = None if number is None else int(number)
    return (
        MetadataIndex(str(fqn), None if offset is None else _size(offset), whole),
        _StorageInfo(file, int(place.state["offset"]), int(place.state["length"])),
    )


def _size(numbers: Any) -> torch.Size:
    return torch.Size(int(number) for number in numbers)


class _StandIn:
    """An object that holds what a pickle gives it, and does nothing."""

    state: Any = None

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """An unpickler with no class or function of anybody's on its stack: only stand-ins, tuple and dtypes."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(kind := getattr(torch, name, None), torch.dtype):
            return kind
        if (module, name) == ("torch", "Size"):
            return tuple
        if module == "pathlib" or module.startswith("torch.distributed.checkpoint.") or name == "_get_layout":
            return _StandIn
        raise pickle.UnpicklingError(
            f"it names {module}.{name}, which has no place in a list of tensors; nothing was run"
        )
