"""A process that has imported everything, and forks one for each run: importing torch costs more than a short run.

Started as `python -m hypermargin.compare.server`. It reads folders from stdin, one a line, as JSON, and says on
stdout when a run starts, {"folder", "pid"}, and when it ends, {"folder", "code"}. When stdin closes, however its
other end came to an end, all runs are asked to save and stop, and it ends with the last of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypermargin.compare.worker import work

TICK = 0.05  # seconds between looks at the children


def serve() -> None:
    """Until stdin is closed and every run has ended."""
    children: dict[int, str] = {}
    listening, text = True, b""
    while listening or children:
        if select.select([0] if listening else [], [], [], TICK)[0]:
            chunk = os.read(0, 65536)
            text += chunk
            *lines, text = text.split(b"\n")
            for line in lines:
                folder = json.loads(line)
                pid = _start(folder)
                children[pid] = folder
                _say(folder=folder, pid=pid)
            if not chunk:
                listening = False
                for pid in children:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGTERM)
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _say(folder=children.pop(pid), code=os.waitstatus_to_exitcode(status))


def _say(**news: Any) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(news), flush=True)


def _start(folder: str) -> int:
    with (Path(folder) / "output.txt").open("ab") as output:
        if not hasattr(os, "fork"):
            program = [sys.executable, "-m", "hypermargin.compare.worker", folder]
            return subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=output, stderr=output).pid
        pid = os.fork()
        if pid:
            return pid
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            code = work(Path(folder))
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):
                    stream.flush()
            os._exit(code)  # what the parent had registered for its own end is none of ours


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us decides
    serve()
