"""NVIDIA's MPS, by which processes use one GPU at the same time rather than in turn; without it where it fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
FOLDER = Path(tempfile.gettempdir()) / "hypermargin-mps"
NAMES = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
# The first calls of any CUDA program, without torch, which takes long to import. Each returns 0 where it works.
TRY = """
from ctypes import CDLL, byref, c_int, c_void_p
cuda, device, context = CDLL("libcuda.so.1"), c_int(), c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGet(byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(byref(context), device) == 0
"""


@contextmanager
def mps(wanted: bool) -> Iterator[str]:
    """Processes that are started inside share the GPU, if that works here; yields how it went, "" if it does."""
    if not wanted:
        yield "not asked for"
        return
    if shutil.which(CONTROL) is None:
        yield f"{CONTROL} is not there"
        return
    FOLDER.mkdir(exist_ok=True)
    os.environ.update(dict.fromkeys(NAMES, str(FOLDER)))
    _quit()  # one that a call which was killed has left behind
    why = _begin()
    if why:
        _quit()
        _forget()
    try:
        yield why
    finally:
        if not why:
            _quit()
            _forget()


def _begin() -> str:
    """Start the daemon and see whether a process can compute with it; return why not, or ""."""
    try:
        nothing = subprocess.DEVNULL  # no pipes: the daemon would hold on to them
        subprocess.run([CONTROL, "-d"], check=True, timeout=15, stdin=nothing, stdout=nothing, stderr=nothing)
    except (subprocess.SubprocessError, OSError) as error:
        return f"it did not start: {error}"
    try:
        subprocess.run([sys.executable, "-c", TRY], check=True, timeout=45, capture_output=True)
    except (subprocess.SubprocessError, OSError) as error:
        return f"a process could not use it: {error}"
    return ""


def _quit() -> None:
    with suppress(subprocess.SubprocessError, OSError):
        subprocess.run([CONTROL], input=b"quit -t 5\n", timeout=15, capture_output=True, check=False)


def _forget() -> None:
    for name in NAMES:
        os.environ.pop(name, None)
