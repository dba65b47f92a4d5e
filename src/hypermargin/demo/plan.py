"""What the demo trains: a comparison whose three heads differ in one thing each."""

from __future__ import annotations

import os
from pathlib import Path

from hypermargin.common.needs import absent, not_installed
from hypermargin.compare import Plan, compare, pool
from hypermargin.demo.findings import HEADS, find
from hypermargin.demo.page import page
from hypermargin.files import write_text
from hypermargin.training import RunError

# The first is what is copied from papers; the second changes s alone; the third adds a margin. s is not learned, so
# that what the page says of it is what was trained. Small images, a small network, few epochs: all runs together
# take about 200 seconds of a processor's time. Computed on the CPU everywhere: so small a network gains nothing
# from a GPU.
PLAN = Plan(
    {
        "data": "glyphs", "size": 20, "model": "lenet++", "model_set": {"width": 8}, "dim": 64, "epochs": 10,
        "batch": 64, "lr": 0.003, "lr_warmup": 0.5, "evaluate": 0, "log": 20, "device": "cpu",
    },
    tuple(HEADS.values()),
    seeds=3,
    plane=40,
)  # fmt: skip
NEEDED = "matplotlib", "pillow", "scikit-learn"  # pictures and fonts; drawing the characters; the digits


def demo(
    out: str | os.PathLike[str], *, jobs: int | None = None, watch: pool.Watch = lambda seen, about: None
) -> Path:
    """Train the demo's heads in `out`, or go on with what is there, and return the page that shows them.

    Ctrl-C saves every run and raises Interrupted; the next call goes on.
    """
    missing = absent(*NEEDED)
    if missing:
        raise ModuleNotFoundError(not_installed("the demo needs", *missing), name=missing[0])
    folder = Path(out)
    if (folder / "plan.json").exists() and Plan.read(folder) != PLAN:
        raise RunError(f"{folder} holds another comparison than this demo. Remove it, or choose another --out.")
    found = compare(PLAN, folder, resume=True, jobs=jobs, watch=watch)
    failed = found.failed | found.failed_flat
    if failed:
        reasons = "; ".join(f"{name}: {why}" for name, why in failed.items())
        raise RunError(f"{len(failed)} of the demo's runs failed ({reasons}). Run it again to try them again.")
    path = folder / "index.html"
    write_text(path, page(find(found)))
    return path
