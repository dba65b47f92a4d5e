"""A run or an exported ONNX file, ready to embed: the two answer alike."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from hypermargin.common.environment import find_device
from hypermargin.common.text import first_line
from hypermargin.deploy import metadata
from hypermargin.deploy.formats import onnx_session
from hypermargin.deploy.graph import Whole
from hypermargin.evaluate.thresholds import Thresholds
from hypermargin.training.run import Trained, load


@dataclass(frozen=True)
class Model:
    """A network: `run` takes raw samples on `device` to unit embeddings (N, dim) and norms (N,) on the CPU."""

    name: str
    about: dict[str, Any]  # as `metadata.describe` writes it
    thresholds: Thresholds | None
    device: torch.device
    run: Callable[[Tensor], tuple[Tensor, Tensor]]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one raw sample: (H, W), (H, W, 3) or (d,)."""
        return tuple(self.about["input"]["shape"][1:])

    @property
    def dtype(self) -> str:
        """The dtype of raw samples: uint8 or float32."""
        return str(self.about["input"]["dtype"])


def open_model(
    run: str | os.PathLike[str] | Trained,
    *,
    which: Literal["best", "last"] = "best",
    device: str = "cpu",
    trust: bool = False,
    allow_older: bool = False,
    thresholds: Thresholds | None = None,
) -> Model:
    """Open a run's folder, an exported .onnx file, or what `hypermargin.load` gave.

    `device` is cpu, cuda or auto; an ONNX file runs on the CPU. The rest as in `hypermargin.load` and `export`.
    """
    place = find_device(device)
    if isinstance(run, Trained):
        return _of_trained(run.config.data, run, thresholds, run.head.weight.device)
    path = Path(run)
    if path.suffix == ".onnx" and not path.is_dir():
        if device != "auto" and place.type != "cpu":
            raise ValueError(f"device must be cpu for an ONNX file; got {device!r}. Give the run's folder instead.")
        return _of_file(path)
    trained = load(path, which, device=place, trust=trust, allow_older=allow_older)
    return _of_trained(str(path), trained, thresholds or Thresholds.read(path), place)


def _of_trained(name: str, trained: Trained, thresholds: Thresholds | None, device: torch.device) -> Model:
    whole = Whole(trained).to(device).eval()
    about = metadata.describe(trained, thresholds)

    @torch.no_grad()
    def run(samples: Tensor) -> tuple[Tensor, Tensor]:
        found = whole(samples)
        return found["embedding"].cpu(), found["norm"].cpu()

    return Model(name, about, metadata.thresholds_in(about), device, run)


def _of_file(path: Path) -> Model:
    if not path.is_file():
        raise ValueError(f"run: there is no file {path}.")
    try:
        session = onnx_session(path)
    except ValueError:
        raise
    except Exception as error:  # onnxruntime has a kind for every way a file can be broken
        raise ValueError(f"run: {path} is not a readable ONNX file: {first_line(error)}") from None
    try:
        about = json.loads(session.get_modelmeta().custom_metadata_map[metadata.KEY])
        metadata.CONTENT("", about)
        thresholds = metadata.thresholds_in(about)
        shape, dtype = [int(side) for side in about["input"]["shape"][1:]], str(about["input"]["dtype"])
        name, dim, format = str(about["input"]["name"]), int(about["dim"]), about["format"]
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        why = error if isinstance(error, ValueError) else repr(error)
        raise ValueError(
            f"run: {path} was not written by hypermargin export, or its metadata are damaged ({why})."
        ) from None
    if format != metadata.FORMAT:
        raise ValueError(f"run: {path} has format {format}; this version reads {metadata.FORMAT}.")
    takes = session.get_inputs()[0]
    kinds = {"tensor(uint8)": "uint8", "tensor(float)": "float32"}
    if (takes.name, takes.shape[1:], kinds.get(takes.type)) != (name, shape, dtype) or dim < 1:
        raise ValueError(f"run: {path} is not what its metadata say: the graph takes {takes.type} {takes.shape}.")

    def run(samples: Tensor) -> tuple[Tensor, Tensor]:
        embedding, norm = session.run(["embedding", "norm"], {name: samples.cpu().numpy()})
        return torch.from_numpy(embedding).float(), torch.from_numpy(norm)

    return Model(str(path), about, thresholds, torch.device("cpu"), run)
