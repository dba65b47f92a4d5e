"""Checkpoints of several ranks in torch.distributed.checkpoint's format: each writes its classes, any number reads.

The folder of a step is itself such a checkpoint. torch keeps the list of its tensors as a pickle (.metadata), which
is read here by an unpickler that knows the few harmless classes of such a list and refuses all others; the tensors
themselves are read with weights_only.

Imported where such a checkpoint is met: it takes a second.
"""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
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
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from hypermargin.training.slices import Slices

METADATA = ".metadata"


def write(folder: Path, tensors: dict[str, Tensor], slices: Slices) -> None:
    """All ranks together; `folder` exists."""
    with _plainly():
        save(
            {name: _distributed(t.detach(), slices) if name in slices.names else t for name, t in tensors.items()},
            storage_writer=FileSystemWriter(folder),
            process_group=slices.group,
        )


def read(folder: Path, slices: Slices | None = None) -> dict[str, Tensor]:
    """Every tensor of a checkpoint; with `slices` only this rank's classes. Each process reads by itself."""
    reader = _Reader(folder)
    found = {}
    for name, about in reader.read_metadata().state_dict_metadata.items():
        if not isinstance(about, TensorStorageMetadata):
            raise ValueError(f"{folder / METADATA} lists {name!r}, which is not a tensor; only tensors are read.")
        size, dtype = list(about.size), about.properties.dtype
        if slices is not None and name in slices.names:
            if size[0] != slices.classes:
                raise ValueError(f"{name} in {folder} has {size[0]} classes; the head has {slices.classes}.")
            size[0] = slices.stop - slices.start
            found[name] = _distributed(torch.empty(size, dtype=dtype), slices)
        else:
            found[name] = torch.empty(size, dtype=dtype)
    # Before this option came, a process group that was there was used: then all ranks read together.
    alone = {"no_dist": True} if "no_dist" in inspect.signature(load).parameters else {}
    with _plainly():
        load(found, storage_reader=reader, **alone)
    return {name: _local(tensor) for name, tensor in found.items()}


def _distributed(local: Tensor, slices: Slices) -> Tensor:
    """My rows as part of the tensor of all classes."""
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
    """torch's error, a BaseException with tracebacks for a message, as an OSError that says whose and why.

    And without torch's remark that one process reads alone, which is what was asked for.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")
        try:
            yield
        except CheckpointException as error:
            rank, (why, _) = next(iter(error.failures.items()))
            raise OSError(f"{why} (rank {rank})") from error


class _Reader(FileSystemReader):
    """torch's, with a list of tensors that cannot run anything and names no file outside its folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        with (self.folder / METADATA).open("rb") as file:
            found = _Unpickler(file).load()
        if not isinstance(found, Metadata):
            raise ValueError(f"{self.folder / METADATA} is no list of tensors.")
        for piece in (found.storage_data or {}).values():
            if Path(piece.relative_path).name != piece.relative_path:
                raise ValueError(f"{self.folder / METADATA} names a file elsewhere: {piece.relative_path}.")
        if found.storage_meta is None:
            found.storage_meta = StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "pathlib":  # where it was written, on whatever system
            return pathlib.PurePosixPath
        if module == "torch" and isinstance(kind := getattr(torch, name, None), torch.dtype):
            return kind
        if (module, name) in {("torch", "Size"), ("torch.serialization", "_get_layout")}:
            return super().find_class(module, name)
        lists = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
        if module in lists and "." not in name:  # a dot would lead on into what these modules import
            found = super().find_class(module, name)
            if dataclasses.is_dataclass(found) or name == "_MEM_FORMAT_ENCODING":
                return found
        raise pickle.UnpicklingError(
            f"it names {module}.{name}, which has no place in a list of tensors; nothing was run"
        )
