"""One run of a comparison: train, then measure. In a process of its own, so that its memory is its own and a crash
takes nothing else along.

FOLDER/
  …              a run, as `hypermargin train` leaves it
  job.json       what to do
  output.txt     what it said
  seconds.json   how long training took, over all sittings
  measures.json  the numbers of the table; with arrays.npz, what the pictures show
  failed.json    why it failed, if it did
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from hypermargin.compare.measure import measure
from hypermargin.files import write_text
from hypermargin.training import Interrupted, train
from hypermargin.training.config import from_dict

STOPPED = 130  # the exit code of a run that was interrupted, and saved


def work(folder: Path) -> int:
    """Do what FOLDER/job.json says; the exit code."""
    try:
        job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        if not (folder / "result.json").exists():
            started = time.monotonic()
            try:
                train(from_dict(job["config"]), folder, resume=True)
            finally:
                write_text(folder / "seconds.json", json.dumps(_seconds(folder) + time.monotonic() - started))
        measure(folder, plane=job["plane"], spent={"seconds": _seconds(folder), "bytes": float(_peak_bytes())})
    except Interrupted:
        return STOPPED
    except Exception as error:
        kind = "" if isinstance(error, ValueError | RuntimeError | ArithmeticError) else f"{type(error).__name__}: "
        write_text(folder / "failed.json", json.dumps({"error": f"{kind}{error}"}))
        print(f"failed: {kind}{error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _seconds(folder: Path) -> float:
    """Of training, over all sittings that ended by themselves or were asked to."""
    path = folder / "seconds.json"
    return float(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else 0.0


def _peak_bytes() -> int:
    """The most memory this process has held: on the GPU if one was used, else all of it."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    try:
        import resource
    except ModuleNotFoundError:  # not on Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most) if sys.platform == "darwin" else int(most) * 1024


if __name__ == "__main__":
    sys.exit(work(Path(sys.argv[1])))
