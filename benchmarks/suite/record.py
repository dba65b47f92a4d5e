"""What the benchmarks of loader and step share: their surroundings, and where results go."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.suite.head import Say, environment
from hypermargin.files import write_text


@contextmanager
def threads_set(threads: int) -> Iterator[None]:
    """Torch's threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def surroundings() -> dict[str, str]:
    """The versions that matter for data and training, and what else the machine was doing."""
    found = environment("cpu")
    found = {key: found[key] for key in ("hypermargin", "torch", "numpy", "device", "threads", "python", "date")}
    with suppress(PackageNotFoundError):
        found["pillow"] = version("pillow")
    found["cores"] = str(os.cpu_count())
    with suppress(OSError, AttributeError):  # not on every system
        found["load before"] = f"{os.getloadavg()[0]:.1f}"
    return found


def store(result: dict[str, Any], markdown: str, stem: str, out: Path | None, say: Say) -> None:
    """JSON and Markdown into a folder, if there is one."""
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / f"{stem}.json", json.dumps(result, indent=1) + "\n")
    write_text(out / f"{stem}.md", markdown)
    say(f"written to {out / stem}.*")
