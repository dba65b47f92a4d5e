"""Batches from samples: decoded once when they fit in memory, read by worker processes when they do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from contextlib import closing

import numpy as np
import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.common.arrays import Array
from hypermargin.common.text import Say
from hypermargin.data.base import UNREADABLE, Bad, Data, DataError, Rows, Source
from hypermargin.data.workers import read

BLOCK = 256  # samples a worker decodes at a time


def decode_once(
    data: Data, *, memory: float = 4.0, workers: int = 0, on_bad: str = "error", say: Say = lambda _: None
) -> Data:
    """Return the same data with its images decoded, if they take at most `memory` GiB; else as they are.

    on_bad="error" stops at the first unreadable sample; "skip" leaves it out and lists it in `Data.bad`.
    """
    checks.one_of("on_bad", on_bad, UNREADABLE)
    source = data.samples
    if isinstance(source, np.ndarray):
        return data
    needed = len(source) * int(np.prod(source.shape))
    if needed > memory * 2**30:
        say(f"{len(source)} images take {needed / 2**30:.1f} GiB decoded, more than memory = {memory:g}: "
            f"they are read again every epoch by {workers} worker processes.")  # fmt: skip
        return data
    try:
        samples = np.empty((len(source), *source.shape), np.uint8)
    except MemoryError:
        raise DataError(
            f"{data.name}: its images take {needed / 2**30:,.1f} GiB decoded; there is not as much."
        ) from None
    kept: list[Rows] = []
    bad = list(data.bad)
    done, told = 0, 0
    groups = np.split(np.arange(len(source)), range(BLOCK, len(source), BLOCK))
    with closing(read(source, groups, workers if len(groups) > 1 else 0)) as found_groups:
        for found, rows, wrong in found_groups:
            if wrong and on_bad == "error":
                raise DataError(f"{wrong[0]} (on_bad=skip leaves such samples out.)")
            samples[done : done + len(rows)] = found
            done += len(rows)
            kept.append(rows)
            bad.extend(wrong)
            if 10 * done // len(source) > told:
                told = 10 * done // len(source)
                say(f"decoded {done} of {len(source)} images")
    rows = np.concatenate(kept)
    named = dataclasses.replace(data, bad=bad, origin=(source, np.arange(len(source), dtype=np.int64)))
    return select(named, rows, samples[:done])


def select(data: Data, rows: Rows, samples: Array | Source) -> Data:
    """Select rows, whose samples are given; identities left without any are dropped."""
    labels = data.labels[rows]
    used, labels = np.unique(labels, return_inverse=True)
    return dataclasses.replace(
        data,
        samples=samples,
        labels=labels.astype(np.int64),
        classes=tuple(data.classes[i] for i in used),
        parts=None if data.parts is None else data.parts[rows],
        origin=None if data.origin is None else (data.origin[0], data.origin[1][rows]),
    )


@dataclasses.dataclass(frozen=True)
class Scaling:
    """What a network gets: (value − mean)/std, images as (N, channels, height, width)."""

    mean: float = 127.5
    std: float = 127.5

    @classmethod
    def fit(cls, data: Data, rows: Rows, as_they_are: bool = False) -> Scaling:
        """Choose [−1, 1] for bytes; mean 0 and deviation 1 over `rows` for floats; no change if `as_they_are`."""
        samples = data.samples
        if not isinstance(samples, np.ndarray) or samples.dtype == np.uint8:
            return cls()
        if as_they_are:
            return cls(0.0, 1.0)
        part = samples[rows]
        return cls(float(part.mean(dtype=np.float64)), float(part.std(dtype=np.float64)) or 1.0)

    def __call__(self, raw: Tensor) -> Tensor:
        """Scale samples as they are stored."""
        x = raw.to(torch.float32, copy=True).sub_(self.mean).div_(self.std)  # in place: half the memory traffic
        if x.dim() == 3:
            return x.unsqueeze(1)
        return x.permute(0, 3, 1, 2) if x.dim() == 4 else x


class Feed:
    """Raw samples of given rows, group after group, on the device.

    Samples in memory move to a CUDA device as a whole when they take less than half of what is free there. Samples
    in files are read ahead by worker processes; unreadable ones drop out of their group if on_bad="skip" and are
    listed in `bad`.
    """

    def __init__(
        self, samples: Array | Source, device: torch.device, *, workers: int = 0, on_bad: str = "error"
    ) -> None:
        checks.one_of("on_bad", on_bad, UNREADABLE)
        self.source, self.device, self.workers, self.on_bad = samples, device, workers, on_bad
        self.bad: dict[str, Bad] = {}
        self.samples: Tensor | None = None
        if isinstance(self.source, np.ndarray):
            self.samples = torch.from_numpy(self.source)
            if device.type == "cuda" and self.samples.nbytes < torch.cuda.mem_get_info(device)[0] / 2:
                self.samples = self.samples.to(device)

    def __call__(self, groups: Sequence[Rows]) -> Generator[tuple[Tensor, Rows]]:
        """Yield (samples, their rows) for each group. Close it if it is left early: the workers end with it."""
        if self.samples is not None:
            for rows in groups:
                picked = self.samples.index_select(0, torch.from_numpy(rows).to(self.samples.device))
                yield picked.to(self.device, non_blocking=True), rows
            return
        source = self.source
        assert not isinstance(source, np.ndarray)
        with closing(read(source, groups, self.workers)) as found_groups:
            for found, rows, bad in found_groups:
                if bad and self.on_bad == "error":
                    raise DataError(f"{bad[0]} (on_bad=skip leaves such samples out.)")
                self.bad.update((b.where, b) for b in bad)
                yield torch.from_numpy(found).to(self.device, non_blocking=True), rows
