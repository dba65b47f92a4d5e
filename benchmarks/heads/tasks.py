"""The data of the study, each with the split that settings are chosen on and the one that is reported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypermargin.data import open_data
from hypermargin.data.base import TEST, TRAIN
from hypermargin.training import create_model

FILES = {
    "omniglot": "omniglot28.npz",
    "omniglot-turns": "omniglot28.npz",
    "audiomnist": "audiomnist_logmel.npz",
    "audiomnist-warped": "audiomnist_logmel.npz",
    "mnist": "mnist.npz",
    "fashion-mnist": "fashion.npz",
}
CLOSED = "mnist", "fashion-mnist"
AUGMENT = {
    "omniglot": "affine",
    "omniglot-turns": "affine",
    "audiomnist": "none",  # shifted bands and changed levels made unseen speakers harder to tell apart
    "audiomnist-warped": "none",
    "mnist": "affine",
    "fashion-mnist": "flip",
}
# Of the training identities (closed set: of the training samples), to choose settings on; speakers are few.
HELD_OUT = {"audiomnist": 1 / 3}
USUALLY_HELD_OUT = 0.2
WARPS = 1.0, 0.9, 1 / 0.9  # of the mel axis, from its lowest band: shorter and longer throats


@dataclass(frozen=True)
class Part:
    """Images on the device, (N, H, W) uint8, and labels 0 … C−1."""

    images: Tensor
    labels: Tensor

    @property
    def classes(self) -> int:
        """How many identities."""
        return int(self.labels.max()) + 1


@dataclass(frozen=True)
class Task:
    """Train on `train`, measure on `test`. Open set: the identities of `test` are not in `train`."""

    name: str
    train: Part
    test: Part
    open_set: bool


def load(name: str, folder: Path, stage: str, device: torch.device) -> Task:
    """`stage` "select": trained on a part of the training data and measured on the rest; "final": on the test."""
    if name in CLOSED:
        data = open_data(str(folder / FILES[name]))
        images, labels = np.asarray(data.samples), data.labels
        assert data.parts is not None
        train = np.flatnonzero(data.parts == TRAIN)
        test = np.flatnonzero(data.parts == TEST)
        if stage == "select":
            train = np.random.default_rng(0).permutation(train)
            held = round(USUALLY_HELD_OUT * len(train))
            train, test = np.sort(train[held:]), np.sort(train[:held])
        return Task(name, _part(images, labels, train, device), _part(images, labels, test, device), False)
    with np.load(folder / FILES[name], allow_pickle=False) as found:
        if name.startswith("audiomnist"):
            images, labels = found["logmel_u8"], found["speaker"].astype(np.int64)
            order = np.random.default_rng(0).permutation(np.unique(labels))
            group = labels  # whole speakers are held out
            training = np.isin(labels, order[:40])
        else:
            images, labels, group = found["images"], found["label"].astype(np.int64), found["alphabet"]
            training = found["split"] == 0
    if stage == "select":
        aside = np.isin(group, _some(group[training], labels[training], HELD_OUT.get(name, USUALLY_HELD_OUT)))
        train, test = np.flatnonzero(training & ~aside), np.flatnonzero(training & aside)
    else:
        train, test = np.flatnonzero(training), np.flatnonzero(~training)
    part = _part(images, labels, train, device)
    if name == "omniglot-turns":
        part = Part(
            torch.cat([torch.rot90(part.images, k, (1, 2)) for k in range(4)]),
            torch.cat([part.labels + k * part.classes for k in range(4)]),
        )
    if name == "audiomnist-warped":
        part = Part(
            torch.cat([_warped(part.images, factor) for factor in WARPS]),
            torch.cat([part.labels + k * part.classes for k in range(len(WARPS))]),
        )
    return Task(name, part, _part(images, labels, test, device), True)


def network(name: str, shape: tuple[int, ...], dim: int, width: int) -> nn.Module:
    """lenet++; for audiomnist with standardised features, which did better on held-out training speakers."""
    model = create_model("lenet++", shape, dim, width=width)
    return nn.Sequential(model, nn.BatchNorm1d(dim, affine=False)) if name.startswith("audiomnist") else model


def fewer(task: Task, identities: int, seed: int) -> Task:
    """The same test with fewer training identities."""
    chosen = torch.from_numpy(np.random.default_rng(seed).permutation(task.train.classes)[:identities])
    place = torch.full((task.train.classes,), -1)
    place[chosen] = torch.arange(identities)
    labels = place.to(task.train.labels.device)[task.train.labels]
    return Task(task.name, Part(task.train.images[labels >= 0], labels[labels >= 0]), task.test, task.open_set)


def _warped(images: Tensor, factor: float) -> Tensor:
    """(N, time, mel) bytes with the mel axis stretched from its lowest band by 1/factor."""
    matrix = torch.tensor([[factor, 0.0, factor - 1.0], [0.0, 1.0, 0.0]], device=images.device)
    grid = F.affine_grid(matrix[None], [1, 1, *images.shape[1:]], align_corners=False)
    parts = [
        F.grid_sample(
            x[:, None].float(), grid.expand(len(x), -1, -1, -1), padding_mode="border", align_corners=False
        )
        for x in torch.split(images, 4096)
    ]
    return torch.cat(parts)[:, 0].round().to(torch.uint8)


def _some(groups: np.ndarray, labels: np.ndarray, share: float) -> list[int]:
    """Whole groups (alphabets, speakers) with at least a share of the identities, by chance."""
    enough = share * len(np.unique(labels))
    chosen: list[int] = []
    for group in np.random.default_rng(1).permutation(np.unique(groups)):
        if len(np.unique(labels[np.isin(groups, chosen)])) >= enough:
            break
        chosen.append(int(group))
    return chosen


def _part(images: np.ndarray, labels: np.ndarray, rows: np.ndarray, device: torch.device) -> Part:
    renumbered = np.unique(labels[rows], return_inverse=True)[1]
    return Part(torch.from_numpy(images[rows]).to(device), torch.from_numpy(renumbered).to(device))
