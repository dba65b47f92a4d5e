"""One run of a comparison: train, then measure. In a process of its own, so that its memory is its own and a crash
takes nothing else along.

FOLDER/
  …              a run, as `hypermargin train` leaves it
  job.json       what to do
  output.txt     what it said
  spent.json     what training took: processor seconds over all sittings, and the most bytes of any
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
from hypermargin.training import Interrupted, RunError, train
from hypermargin.training.config import from_dict
from hypermargin.training.job import check_code
from hypermargin.training.run import locked

STOPPED = 130  # the exit code of a run that was interrupted, and saved
PATIENCE = 60  # seconds


def work(folder: Path) -> int:
    """Do what FOLDER/job.json says; return the exit code."""
    try:
        job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        config, trust = from_dict(job["config"]), bool(job["trust"])
        if not (folder / "result.json").exists():
            _wait_until_free(folder)
            before, started = _spent(folder), time.process_time()
            try:
                train(config, folder, resume=True, trust=trust)
            finally:
                seconds = before["cpu"] + time.process_time() - started
                now = {"cpu": seconds, "bytes": max(before["bytes"], float(_peak_bytes()))}
                write_text(folder / "spent.json", json.dumps(now))
        if not trust:
            check_code(folder, config)  # of a run that was trained already
        measure(folder, plane=job["plane"], spent=_spent(folder))
    except Interrupted:
        return STOPPED
    except Exception as error:
        kind = "" if isinstance(error, ValueError | RuntimeError | ArithmeticError) else f"{type(error).__name__}: "
        write_text(folder / "failed.json", json.dumps({"error": f"{kind}{error}"}))
        print(f"failed: {kind}{error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _spent(folder: Path) -> dict[str, float]:
    """Return what was spent by all sittings but those that were killed."""
    path = folder / "spent.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {name: float(found.get(name, 0.0)) for name in ("cpu", "bytes")}


def _wait_until_free(folder: Path) -> None:
    """Wait for a run that may still be saving after its comparison was killed."""
    for _ in range(PATIENCE):
        try:
            with locked(folder):
                return
        except RunError:
            time.sleep(1)


def _peak_bytes() -> int:
    """Return the most memory this process has held: on the GPU if one was used, else all of it."""
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
