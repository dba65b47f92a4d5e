"""A run's folder, and what is loaded from it.

RUN/
  config.toml      every setting, as resolved
  begun.json       proof of who began it, if the settings name code; see trust.py
  run.json         versions, the data's fingerprint, the names of the classes, scaling of the input
  split.npz        which rows train, validate and test
  log.jsonl        the numbers; tensorboard/ has the same
  checkpoints/     see checkpoint.py
  result.json      what came out
  thresholds.json  from which score on two samples count as one identity
  report.html      the page of the run; look-first.csv lists what deserves a look
  evaluation/      what `hypermargin evaluate` found
  diverged-*.pt    the batch that gave NaN, if one did
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from hypermargin import checks
from hypermargin.common import plain
from hypermargin.common.arrays import Array
from hypermargin.common.environment import find_device, versions
from hypermargin.common.tensor_files import read_npz
from hypermargin.common.text import Say
from hypermargin.data import Data, Scaling, Split
from hypermargin.files import replacing
from hypermargin.head import MarginHead
from hypermargin.training import checkpoint
from hypermargin.training.build import build_head
from hypermargin.training.config import Config, read_config
from hypermargin.training.content import ABOUT
from hypermargin.training.fit import check_head, check_network, check_settings
from hypermargin.training.models import create_model
from hypermargin.training.optim import EMA
from hypermargin.training.ranks import Ranks
from hypermargin.training.slices import Slices
from hypermargin.training.trust import code_in


class RunError(RuntimeError):
    """A run's folder that cannot be used as asked; the message says why and what to do."""


@dataclass(frozen=True)
class About:
    """What is in run.json: all that is needed to use the network without the data."""

    shape: tuple[int, ...]
    classes: tuple[str, ...]  # the head's, in its order
    open_set: bool
    scaling: Scaling
    data: dict[str, Any]  # name, samples, classes, fingerprint
    network: str | None = None  # the class of a network given by the caller, which only the caller can build again
    versions: dict[str, str] = dataclasses.field(default_factory=dict)

    def to_json(self) -> str:
        """Return the file's text."""
        return json.dumps({"format": 1, **dataclasses.asdict(self)}, indent=1, ensure_ascii=False)

    @classmethod
    def read(cls, folder: Path) -> About:
        """Read it from a run's folder."""
        values = read_json(folder / "run.json")
        try:
            ABOUT("", values)
        except ValueError as error:
            raise RunError(f"{folder / 'run.json'} is damaged: {error}.") from None
        values.pop("format", None)
        return cls(
            **{
                **values,
                "shape": tuple(values["shape"]),
                "classes": tuple(values["classes"]),
                "scaling": Scaling(**values["scaling"]),
            }
        )


def _missing(path: Path) -> RunError:
    """Return the error for a file that every run has."""
    if not path.parent.exists():
        return RunError(f"there is no folder {path.parent}.")
    return RunError(f"{path.parent} is not a run: {path.name} is missing.")


def read_json(path: Path) -> Any:
    """Read a JSON file of a run."""
    try:
        return plain.read_json(path)
    except FileNotFoundError:
        raise _missing(path) from None
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}.") from None


def describe(data: Data, split: Split, scaling: Scaling, network: nn.Module | None) -> About:
    """Make the run.json of a new run."""
    return About(
        shape=data.shape,
        classes=tuple(data.classes[k] for k in split.classes),
        open_set=split.open_set,
        scaling=scaling,
        data={
            "name": data.name,
            "samples": len(data),
            "classes": len(data.classes),
            "fingerprint": fingerprint(data),
            "left_out": [list(bad) for bad in data.bad],
        },
        network=None if network is None else f"{type(network).__module__}.{type(network).__qualname__}",
        versions=versions(),
    )


def fingerprint(data: Data, name: str = "") -> str:
    """Digest labels, names and some of the samples: enough to notice that a run is resumed on other data.

    With `name`, as if the data lay where those of that name did: they may have moved since.
    """
    digest = hashlib.sha256()
    digest.update(repr((data.shape, data.classes)).encode())
    digest.update(data.labels.tobytes())
    for row in np.linspace(0, len(data) - 1, num=min(256, len(data)), dtype=int):
        inside = isinstance(data.samples, np.ndarray)
        content = np.ascontiguousarray(data.samples[row]).tobytes() if inside else _place(data, row, name).encode()
        digest.update(content)
    return digest.hexdigest()


def _place(data: Data, row: int, name: str) -> str:
    """Return a sample's file; with `name`, where it would be if the data lay there."""
    where = data.where(row)
    if name:
        for now, then in ((data.name, name), (str(Path(data.name).parent), str(Path(name).parent))):
            if where.startswith(now):
                return then + where[len(now) :]
    return where


def save_split(path: Path, split: Split) -> None:
    """Write the row numbers in numpy's format."""
    with replacing(path) as temporary:
        np.savez_compressed(temporary, **dataclasses.asdict(split))


def read_split(path: Path, samples: int, classes: int) -> Split:
    """Read what `save_split` wrote for data of so many samples and classes."""
    try:
        most = 16 * (samples + classes) + 2**16  # bytes: eight a row, and headers
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > most:
                raise ValueError(f"it holds more than {most:,} bytes, for {samples:,} samples")
        saved = read_npz(path)
        parts: dict[str, Any] = {f.name: saved[f.name] for f in dataclasses.fields(Split)}
        for name, rows in parts.items():
            end = classes if name == "classes" else samples
            if name == "open_set":
                fits = rows.dtype == bool and rows.shape == ()
            else:
                fits = rows.dtype == np.int64 and rows.ndim == 1 and not ((rows < 0) | (rows >= end)).any()
            if not fits:
                raise ValueError(f"{name} is not what a split of {samples:,} samples has")
    except FileNotFoundError:
        raise _missing(path) from None
    except Exception as error:  # zipfile, zlib and numpy have many words for a broken file
        raise RunError(f"{path} is damaged: {error}.") from None
    return Split(**{**parts, "open_set": bool(parts["open_set"])})


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let only one process train in a folder. The lock ends with the process, however it ends."""
    try:
        import fcntl
    except ModuleNotFoundError:  # not on Windows; there nobody watches
        yield
        return
    with (folder / ".lock").open("w") as file:
        try:
            # Not flock: worker processes would inherit it, and hold it for seconds after the trainer was killed.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(
                f"{folder} is in use: another process trains there. Wait for it, or choose another --out."
            ) from None
        yield


@dataclass(frozen=True)
class Trained:
    """A trained network with its head, ready for use: `hypermargin.load(run)`."""

    network: nn.Module
    head: MarginHead
    config: Config
    about: About
    step: int
    passed_over: tuple[str, ...] = ()  # why this step is not the one asked for; empty if it is

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the head's classes."""
        return self.about.classes

    @torch.no_grad()
    def features(self, samples: Tensor | Array, batch: int = 256) -> Tensor:
        """Compute (N, dim) features of raw samples, as in training: (N, H, W[, 3]) images or (N, d) vectors."""
        raw = torch.as_tensor(samples)
        got = tuple(self.about.scaling(raw[:0]).shape[1:]) if raw.dim() > 1 else ()
        if got != self.about.shape:
            _, *sides = self.about.shape
            wanted = (*sides, 3)[: 2 + (self.about.shape[0] == 3)] if sides else self.about.shape
            raise ValueError(f"samples must have shape (N, {', '.join(map(str, wanted))}); got {tuple(raw.shape)}.")
        device = self.head.weight.device
        parts = [
            self.network(self.about.scaling(part.to(device))).float().cpu() for part in torch.split(raw, batch)
        ]
        return torch.cat(parts) if parts else torch.empty(0, self.config.dim)

    def embed(self, samples: Tensor | Array, batch: int = 256) -> Tensor:
        """Compute (N, dim) embeddings of unit length: compare them by their dot product, the cosine."""
        return nn.functional.normalize(self.features(samples, batch))

    @torch.no_grad()
    def predict_proba(self, samples: Tensor | Array, batch: int = 256) -> Tensor:
        """Compute (N, C) probabilities of the training classes."""
        features = self.features(samples, batch).to(self.head.weight.device)
        return self.head.predict_proba(features).cpu()


def load(
    run: str | os.PathLike[str],
    which: Literal["best", "last"] = "best",
    *,
    device: torch.device | str = "cpu",
    network: nn.Module | None = None,
    trust: bool = False,
    allow_older: bool = False,
) -> Trained:
    """Load the network and head of a run, in evaluation mode; averaged weights if the run kept them.

    "best" is the checkpoint that `train` chose by the validation part; the last one if there was none. A network
    that was handed to `train` as an object must be handed in again, with any weights. If the checkpoint is damaged,
    that is an error; with `allow_older` another one is taken, and `Trained.passed_over` says so.

    Nothing in a run's folder is executed. A run whose model is MODULE:FUNCTION names code to be imported, and
    options of timm's may name a file, a URL or a function: such a network is built only with trust=True.
    """
    checks.one_of("which", which, ("best", "last"))
    folder = Path(run)
    about = About.read(folder)
    config = read_config(folder)
    if network is None and about.network is not None:
        raise RunError(
            f"{folder} was trained with a network of your own ({about.network}), which only Python "
            "can give: hypermargin.load(folder, network=…)."
        )
    code = None if network is not None or trust else code_in(config.model, config.model_set)
    if code is not None:
        raise RunError(
            f"{folder} names {code}. If you know it, add --trust (trust=True in Python; or give network=)."
        )
    place = find_device(device) if isinstance(device, str) else device
    said: list[str] = []
    found = find(folder, which, allow_older=allow_older, say=said.append)
    try:
        check_settings(found, config, about.shape, len(about.classes), own=network is not None)
        network = network or create_model(str(config.model), about.shape, config.dim, **without_download(config))
        check_network(found, network, config, about.shape)
        head = build_head(config, len(about.classes))
        restore(found, network, head, config)
    except (ValueError, TypeError) as error:
        raise RunError(f"{folder}: {str(error).rstrip('.')}.") from error
    return Trained(network.to(place).eval(), head.to(place).eval(), config, about, found.step, tuple(said))


def without_download(config: Config) -> dict[str, Any]:
    """Return the options of the network for weights that are there already: timm would fetch others first."""
    if not str(config.model).startswith("timm:"):
        return config.model_set
    return {name: value for name, value in config.model_set.items() if name != "pretrained"}


def find(
    folder: Path,
    which: str = "last",
    *,
    allow_older: bool = False,
    say: Say = lambda _: None,
    held: Slices | None = None,
    ranks: Ranks = Ranks(),  # noqa: B008 (frozen)
) -> checkpoint.Checkpoint:
    """Read the best checkpoint of a run, or the last.

    If it is damaged, `allow_older` lets the newest that is whole take its place, in words; else CheckpointError.
    """
    kept = folder / "checkpoints"
    known = ranks.lead(lambda: checkpoint.best_of(kept)) if which == "best" else None
    said: list[str] = []
    if known is not None:
        try:
            return checkpoint.load(kept / f"step-{known:08d}", held=held, ranks=ranks)
        except checkpoint.CheckpointError as error:
            said.append(f"{error}.")
    found = checkpoint.load_last(kept, said.append, held=held, ranks=ranks)
    if found is None:
        raise RunError(f"{folder} has no checkpoint yet.")
    said = list(dict.fromkeys(text.removesuffix(checkpoint.GOING_BACK) for text in said))
    if said and not allow_older:
        raise checkpoint.CheckpointError(
            f"{' '.join(said)} Step {found.step} is whole. To use that, add --allow-older (allow_older=True in "
            f"Python; plot and compare take none). To train on from it: train --out {folder} "
            "--resume."
        )
    for text in said:
        say(f"{text} Step {found.step} is used in its place.")
    return found


def restore(saved: checkpoint.Checkpoint, network: nn.Module, head: MarginHead, config: Config) -> None:
    """Put a checkpoint's weights into network and head; if the run kept averaged ones, those."""
    check_head(saved, head, config)
    network.load_state_dict(saved.weights("network"))
    head.load_state_dict(saved.weights("head"))
    if config.ema:
        if "ema" not in saved.training:
            raise ValueError(f"ema = {config.ema:g} (config.toml), and the checkpoint holds no averages")
        ema = EMA([network, head], config.ema)
        ema.load_state_dict(saved.training["ema"])
        with ema.swapped():
            states = [copy.deepcopy(module.state_dict()) for module in (network, head)]
        for module, state in zip((network, head), states, strict=True):
            module.load_state_dict(state)
