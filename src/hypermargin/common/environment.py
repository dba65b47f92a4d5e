"""Where and when something was computed: versions, the time, cores, and the device that "auto" means."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def enough_memory(what: str) -> Iterator[None]:
    """Say what was too large, where torch would name bytes or lengths that overflow."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or re.search("allocate|overflow|memory", str(error)):
            raise ValueError(f"{what} needs more memory than there is.") from error
        raise


def check_device(name: str) -> None:
    """Require the name of a device, be it on this machine or not."""
    kind, colon, number = name.partition(":")
    checks.one_of("device", kind, DEVICES)
    if colon and (kind not in ("cpu", "cuda", "mps") or not re.fullmatch("[0-9]{1,3}", number)):
        raise ValueError(f"device must be cpu, cuda, cuda:1, mps or auto; got {checks.shown(name)}.")


def find_device(name: str) -> torch.device:
    """Turn cpu, cuda, cuda:1, mps or auto into a device; auto is cuda where there is one, else cpu."""
    check_device(name)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} is not there: torch finds no CUDA device. Use cpu or auto.")
    if name.startswith("mps") and not torch.backends.mps.is_available():
        raise ValueError(f"device {name!r} is not there: torch finds no MPS device. Use cpu or auto.")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {name!r} is not there: torch finds {torch.cuda.device_count()} CUDA devices.")
    return device
