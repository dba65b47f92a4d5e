"""The process that measures a criterion for the command line: what it does, hangs in or dies of stays in here.

python -m hypermargin.diagnose.worker RESULT.json < REQUEST.json
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hypermargin.common.text import first_line
from hypermargin.diagnose.diagnosis import Diagnosis
from hypermargin.diagnose.doctor import diagnose
from hypermargin.diagnose.findings import Finding
from hypermargin.diagnose.loading import check_trust, load, remaker
from hypermargin.diagnose.stored import read, written
from hypermargin.plots.catalogue import read_margin


@dataclass(frozen=True)
class Request:
    """What to diagnose."""

    name: str  # MODULE:NAME
    trust: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    form: str | None = None
    dim: int | None = None
    classes: int | None = None
    expect: str | None = None  # a margin, like arcface:m=0.5


def diagnose_apart(request: Request, timeout: float) -> Diagnosis:
    """Diagnose in a process of its own; that it hangs or dies is a finding. ValueError: it could not be called."""
    check_trust(request.name, request.trust)
    # Without trust the current directory is not looked into: it may hold a module named like a known package.
    safe = [] if request.trust else ["-P"]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, *safe, "-m", __name__, str(result)]
        try:
            done = subprocess.run(
                command, input=json.dumps(asdict(request)), text=True, timeout=timeout, check=False,
                stdout=sys.stderr.fileno() if _real() else None,  # what it prints is no result
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return _ended(request, f"did not come back within {timeout:g} seconds, and was stopped", "hangs")
        if not result.exists():
            code = done.returncode
            how = (
                f"died of {signal.Signals(-code).name}" if code < 0 else f"ended the process with exit code {code}"
            )
            return _ended(request, f"{how}, and left no result", "crashed")
        found = json.loads(result.read_text(encoding="utf-8"))
    if "error" in found:
        raise ValueError(found["error"])
    return read(found)


def _real() -> bool:
    """Tell whether stderr is a file that another process can write to."""
    try:
        sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return False
    return True


def _ended(request: Request, how: str, code: str) -> Diagnosis:
    said = f"The criterion {how}."
    return Diagnosis(
        request.name,
        "in a process of its own, which gave no result",
        "not measured",
        (Finding(code, "wrong", said),),
    )


def main() -> None:
    """Read a request from stdin, and write what was found."""
    request = Request(**json.load(sys.stdin))
    place = {"dim": request.dim, "trust": request.trust}
    try:
        expect = read_margin(request.expect) if request.expect else None
        criterion = load(request.name, request.settings, classes=request.classes, **place)  # type: ignore[arg-type]
        remake = remaker(request.name, request.settings, **place)  # type: ignore[arg-type]
        found = diagnose(
            criterion, form=request.form, dim=request.dim, classes=request.classes, expect=expect, remake=remake,
            name=request.name,
        )  # fmt: skip
        answer = written(found)
    except (ValueError, TypeError) as error:
        answer = {"error": str(error)}
    except KeyboardInterrupt:
        sys.exit(130)  # of whoever waits for it, who is interrupted too
    except Exception as error:  # of somebody's code, in being made
        answer = {"error": f"{request.name}: {type(error).__name__}: {first_line(error)}"}
    temporary = Path(sys.argv[1] + ".part")
    temporary.write_text(json.dumps(answer), encoding="utf-8")
    temporary.replace(sys.argv[1])


if __name__ == "__main__":
    main()
