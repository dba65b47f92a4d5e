"""What `python -m benchmarks.overhead` runs in a process of its own, for this checkout and for an older one.

It prints one line of JSON. Of hypermargin it uses only what version 0.1 has too: `MarginHead(d, C, ArcFace(),
scale=16.0)`. It imports nothing from `benchmarks`, which would bring this checkout's hypermargin along.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy  # noqa: F401  # before the clock starts: an import of hypermargin is timed without it
import torch
import torch.nn.functional as F
from torch import Tensor

SCALE, M = 16.0, 0.5  # M: the default of ArcFace()
CALLS_BEFORE = 20  # untimed


def timed_import() -> dict[str, Any]:
    """Milliseconds and modules of `import hypermargin`, where torch and numpy are there already."""
    before = set(sys.modules)
    start = time.perf_counter()
    package = importlib.import_module("hypermargin")
    seconds = time.perf_counter() - start
    new = set(sys.modules) - before
    return {
        "package": str(Path(str(package.__file__)).parent),
        "version": package.__version__,
        "ms": 1e3 * seconds,
        "modules": len(new),
        "own_modules": sum(name.split(".")[0] == "hypermargin" for name in new),
    }


def textbook(x: Tensor, W: Tensor, y: Tensor) -> Tensor:
    """ArcFace as people write it by hand."""
    cosines = F.linear(F.normalize(x), F.normalize(W))
    target = cosines.gather(1, y[:, None])
    margined = torch.cos(torch.acos(target.clamp(-1 + 1e-7, 1 - 1e-7)) + M)
    return F.cross_entropy(SCALE * cosines.scatter(1, y[:, None], margined), y)


class Case:
    """A batch, our head and the textbook's loss with the same weight."""

    def __init__(self, rows: int, classes: int, dim: int) -> None:
        hypermargin = importlib.import_module("hypermargin")
        torch.manual_seed(0)
        self.size = {"rows": rows, "classes": classes, "dim": dim}
        self.head = hypermargin.MarginHead(dim, classes, hypermargin.margins.ArcFace(), scale=SCALE)
        self.weight: Tensor = self.head.weight
        self.x = torch.randn(rows, dim).requires_grad_()
        self.y = torch.randint(0, classes, (rows,))
        ours, theirs = (float(loss().detach()) for loss in self.losses().values())
        if not math.isclose(ours, theirs, rel_tol=1e-4):
            raise RuntimeError(f"the head's loss is {ours}, the textbook's {theirs}: they do not do the same")

    def losses(self) -> dict[str, Callable[[], Tensor]]:
        """What is timed, forward."""
        return {
            "head": lambda: self.head(self.x, self.y),
            "textbook": lambda: textbook(self.x, self.weight, self.y),
        }

    def both(self, loss: Callable[[], Tensor]) -> None:
        """Forward and backward."""
        self.x.grad = self.weight.grad = None
        loss().backward()  # type: ignore[no-untyped-call]

    def microseconds(self, calls: int) -> dict[str, dict[str, float]]:
        """The median of many calls, which take turns: a slow moment hits all alike."""
        steps: dict[tuple[str, str], Callable[[], object]] = {}
        for name, loss in self.losses().items():
            steps["forward", name] = loss
            steps["forward and backward", name] = lambda loss=loss: self.both(loss)  # type: ignore[misc]
        seen: dict[tuple[str, str], list[float]] = {key: [] for key in steps}
        for number in range(CALLS_BEFORE + calls):
            for key, step in steps.items():
                start = time.perf_counter()
                step()
                seconds = time.perf_counter() - start
                if number >= CALLS_BEFORE:
                    seen[key].append(1e6 * seconds)
        found: dict[str, dict[str, float]] = {"forward": {}, "forward and backward": {}}
        for (which, name), values in seen.items():
            found[which][name] = statistics.median(values)
        return found


def walk(call: Callable[[], object], package: Path) -> dict[str, Any]:
    """The functions of a package that a call passes through, in order, and the number of all Python calls."""
    begun: set[FrameType] = set()  # kept alive, so that a generator that goes on is not taken for another call
    ours: list[tuple[CodeType, int]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or frame in begun or frame.f_code is call.__code__:
            return
        begun.add(frame)
        if Path(frame.f_code.co_filename).is_relative_to(package):
            ours.append((frame.f_code, _depth(frame, package)))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    distinct = {code: _parameters(code) for code, _ in ours}
    longest = max(distinct, key=lambda code: distinct[code])
    return {
        "files": len({code.co_filename for code in distinct}),
        "functions": len(distinct),
        "calls": len(ours),
        "python_calls": len(begun),
        "most_parameters": distinct[longest],
        "most_parameters_of": longest.co_qualname,
        "mean_parameters": statistics.mean(distinct.values()),
        "steps": [
            {"function": code.co_qualname, "file": _relative(code, package), "depth": depth} for code, depth in ours
        ],
    }


def _depth(frame: FrameType, package: Path) -> int:
    """How many functions of the package it was called from, one inside the other."""
    above, depth = frame.f_back, 0
    while above is not None:
        depth += Path(above.f_code.co_filename).is_relative_to(package)
        above = above.f_back
    return depth


def _parameters(code: CodeType) -> int:
    """Named ones, *args and **kwargs; without self, cls and a comprehension's iterator, which nobody writes."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    first = code.co_varnames[0] if code.co_argcount else ""
    return count - (first in ("self", "cls", ".0"))


def _relative(code: CodeType, package: Path) -> str:
    return Path(code.co_filename).relative_to(package.parent).as_posix()


def main() -> None:
    torch.set_num_threads(1)
    request = json.loads(sys.argv[1])
    found: dict[str, Any] = {"import": timed_import(), "cases": []}
    package = Path(found["import"]["package"])
    for size in request["sizes"]:
        case = Case(*size)
        timed = case.microseconds(request["calls"])
        passed = walk(lambda case=case: case.head(case.x, case.y), package)  # type: ignore[misc]
        found["cases"].append({**case.size, "us": timed, "walk": passed})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
