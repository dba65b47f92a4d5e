"""What a stored result needs: versions, device and date around the numbers, and files that are whole."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import hypermargin
from hypermargin.files import write_text

Say = Callable[[str], None]


def environment(device: str) -> dict[str, str]:
    """Versions, device and date: what a stored number needs to be worth anything."""
    packages = ("numpy", "pytorch-metric-learning", "cut-cross-entropy", "liger-kernel", "triton")
    found = {"hypermargin": hypermargin.__version__, "torch": torch.__version__}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    found["device"] = torch.cuda.get_device_name() if device == "cuda" else _processor()
    found["threads"] = str(torch.get_num_threads())
    found["python"] = platform.python_version()
    found["date"] = datetime.date.today().isoformat()
    return found


def in_words(environment: dict[str, str]) -> str:
    """All of it but the device, which stands in the title."""
    return ", ".join(f"{key} {value}" for key, value in environment.items() if key != "device") + "."


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def surroundings() -> dict[str, str]:
    """The versions that matter on a CPU without the head's peers, and what else the machine was doing."""
    found = environment("cpu")
    found = {key: found[key] for key in ("hypermargin", "torch", "numpy", "device", "threads", "python", "date")}
    with suppress(PackageNotFoundError):
        found["pillow"] = version("pillow")
    found["cores"] = str(os.cpu_count())
    with suppress(OSError, AttributeError):  # not on every system
        found["load before"] = f"{os.getloadavg()[0]:.1f}"
    return found


@contextmanager
def threads_set(threads: int) -> Iterator[None]:
    """Torch's threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def store(result: dict[str, Any], markdown: str, stem: str, out: Path | None, say: Say) -> None:
    """JSON and Markdown into a folder, if there is one."""
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / f"{stem}.json", json.dumps(result, indent=1) + "\n")
    write_text(out / f"{stem}.md", markdown)
    say(f"written to {out / stem}.*")
