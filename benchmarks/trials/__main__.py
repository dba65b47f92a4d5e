"""Check and time the kernels on trial, in processes of their own; see the section in benchmarks/README.md.

First every candidate is checked at two small sizes, one of them ragged, several at a time: that compiles them too.
Then those that were right are timed, size by size, most valuable first, one at a time.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from benchmarks import command
from benchmarks.record import Say, environment, store
from benchmarks.trials.candidates import CANDIDATES
from benchmarks.trials.table import as_markdown

SIZES = ((1024, 1_000_000, 512), (1024, 100_000, 512), (4096, 1_000_000, 512), (1024, 1_000_000, 768))
SMALL = ((256, 4096, 512), (200, 5003, 512))  # rows, classes, dim
PATIENCE = 90.0  # seconds without a word from a process
AT_A_TIME = 6
TIME_IS_UP = "the time was up"
WORKER = (sys.executable, "-m", "benchmarks.trials.worker")


def answers(request: dict[str, Any], until: float, worker: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield what a process found of each candidate; one that ends or hangs is named, and the rest get a new one.

    Nothing is waited for after `until`, by time.monotonic().
    """
    left = list(request["candidates"])
    while left:
        at: int | None = None  # the candidate under way
        why = ""
        for said in _lines(request | {"candidates": left}, until, worker):
            at, why = said.get("begin", at), said.get("ended", "")
            if "done" in said:
                left.remove(said["done"])
                at = None
                yield said["done"], said["found"]
        if why == TIME_IS_UP or not left:
            return
        lost = left if at is None else [at]  # without one under way, the size itself is too much
        left = [number for number in left if number not in lost]
        for number in lost:
            yield number, {"failed": why}


def _lines(request: dict[str, Any], until: float, worker: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield what a process says, and at last {"ended": why}; it is killed when it says nothing for long."""
    lines: queue.Queue[str | None] = queue.Queue()
    errors: list[str] = []
    with subprocess.Popen(
        worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        readers = [
            threading.Thread(target=_into, args=(process.stdout, lines.put, True)),
            threading.Thread(target=_into, args=(process.stderr, errors.append, False)),
        ]
        for reader in readers:
            reader.start()
        with suppress(OSError):  # it may have ended already
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.close()
        ended = ""
        try:
            while (line := lines.get(timeout=max(min(PATIENCE, until - time.monotonic()), 0.0))) is not None:
                yield json.loads(line)
        except queue.Empty:
            ended = TIME_IS_UP if time.monotonic() >= until else f"no answer within {PATIENCE:.0f} s"
        finally:
            process.kill()
        for reader in readers:
            reader.join()
    last = next((line for line in reversed(errors) if line.strip()), "").strip()[:200]
    yield {"ended": ended or f"the process ended: {last}"}


def _into(stream: Any, put: Any, ends: bool) -> None:
    """Pass on the lines of a stream, and None at its end if it `ends` something."""
    for line in stream:
        put(line)
    if ends:
        put(None)


def checked(numbers: list[int], until: float, worker: Sequence[str], say: Say) -> dict[int, dict[str, Any]]:
    """What each candidate did at the small sizes, several processes at a time; its failure, if it has one."""
    found: dict[int, dict[str, Any]] = {}

    def some(mine: list[int]) -> None:
        for rows, classes, dim in SMALL:
            still = [number for number in mine if "failed" not in found.get(number, {})]
            request = {"rows": rows, "classes": classes, "dim": dim, "candidates": still, "rounds": 0}
            for number, seen in answers(request, until, worker):
                found[number] = seen
                say(f"{rows} × {classes}, {CANDIDATES[number].name}: {seen.get('failed', 'right')}")

    threads = [threading.Thread(target=some, args=(numbers[k::AT_A_TIME],)) for k in range(AT_A_TIME)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def run(
    out: Path | None = None, say: Say = print, *, seconds: float = 400.0, rounds: int = 7,
    worker: Sequence[str] = WORKER, device: str = "cuda",
) -> dict[str, Any]:  # fmt: skip
    """All candidates at all sizes; writes trials-DEVICE.json and .md into `out`, anew after each result."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "the trials need a CUDA device, and there is none; benchmarks.trials.offline compiles them."
        )
    begun = time.monotonic()
    until = begun + seconds
    result: dict[str, Any] = {"environment": environment(device), "rounds": rounds, "checks": {}, "sizes": []}

    def keep() -> None:
        store(result, as_markdown(result), f"trials-{device}", out, lambda _: None)

    found = checked(list(range(len(CANDIDATES))), until, worker, say)
    result["checks"] = {str(number): found[number] for number in sorted(found)}
    keep()
    right = [number for number, seen in sorted(found.items()) if "failed" not in seen]
    for rows, classes, dim in SIZES:
        table: dict[str, Any] = {}
        result["sizes"].append({"rows": rows, "classes": classes, "dim": dim, "table": table})
        able = [number for number in right if dim <= CANDIDATES[number].most]
        request = {"rows": rows, "classes": classes, "dim": dim, "candidates": able, "rounds": rounds}
        for number, seen in answers(request, until, worker):
            table[str(number)] = seen
            say(f"{time.monotonic() - begun:.0f} s, {rows} × {classes} × {dim}, {CANDIDATES[number].name}: {seen}")
            keep()
    keep()
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command.flags(
        "trials", "Kernels on trial beside those of the fused backend, checked and timed on this GPU.", "",
        "--seconds 400 --out results",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=400.0, help="end after so many, with what there is by then"
    )
    parser.add_argument("--rounds", type=command.at_least(1), default=7, help="single steps to time, in turns")
    given = parser.parse_args(arguments)
    with command.plain_errors(parser):
        result = run(given.out, command.say, seconds=given.seconds, rounds=given.rounds)
    print(as_markdown(result))


if __name__ == "__main__":
    main()
