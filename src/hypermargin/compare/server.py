"""A process that has imported everything, and forks one for each run: importing torch costs more than a short run.

Started as `python -m hypermargin.compare.server`. It reads folders from stdin, one per line, as JSON, and says on
stdout when a run starts, {"folder", "pid"}, and when it ends, {"folder", "code"}. When stdin closes, however its
other end came to an end, all runs are asked to save and stop, and it ends with the last of them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from hypermargin.compare.worker import work

TICK = 0.05  # seconds between looks at the children


def serve() -> None:
    """Serve until stdin is closed and every run has ended. SIGTERM is taken as the end of stdin."""
    importlib.import_module("torch._dynamo")  # as torch's optimizers do when first used: 1.5 s less for every run
    children: dict[int, str] = {}
    asked: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us decides
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    listening, text = True, b""
    try:
        while listening or children:
            chunk = b""
            if listening and not asked and select.select([0], [], [], TICK)[0]:
                chunk = os.read(0, 65536)
                asked += [] if chunk else [0]
            elif not listening:
                time.sleep(TICK)
            text += chunk
            *lines, text = text.split(b"\n")
            for line in lines:
                folder = json.loads(line)
                pid = _start(folder)
                children[pid] = folder
                _say(folder=folder, pid=pid)
            if asked and listening:
                listening = False
                _stop(children)
            for pid in list(children):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    _say(folder=children.pop(pid), code=os.waitstatus_to_exitcode(status))
    finally:
        _stop(children)


def _stop(children: dict[int, str]) -> None:
    """Ask all runs to save and leave."""
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _say(**news: Any) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(news), flush=True)


def _start(folder: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        output = os.open(Path(folder) / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output, stream.fileno())
        code = work(Path(folder))
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)  # what the parent had registered for its own end is none of ours


if __name__ == "__main__":
    serve()
