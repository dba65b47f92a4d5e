"""Where and when something was computed: versions, the time, cores, and the device that "auto" means."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import numpy as np
import torch

from hypermargin import checks
from hypermargin.version import __version__

DEVICES = ("auto", "cpu", "cuda", "mps")


def versions() -> dict[str, str]:
    """Return the versions of hypermargin, torch and numpy, which files keep beside their numbers."""
    return {"hypermargin": __version__, "torch": torch.__version__, "numpy": np.__version__}


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def cores() -> int:
    """Count the cores this process may use: its share of them, where torchrun started several here."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, allowed // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def find_device(name: str) -> torch.device:
    """Turn cpu, cuda, cuda:1, mps or auto into a device; auto is cuda where there is one, else cpu."""
    checks.one_of("device", name.partition(":")[0], DEVICES)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} is not there: torch finds no CUDA device. Use cpu or auto.")
    if name.startswith("mps") and not torch.backends.mps.is_available():
        raise ValueError(f"device {name!r} is not there: torch finds no MPS device. Use cpu or auto.")
    return torch.device(name)
