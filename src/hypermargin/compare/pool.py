"""Several runs at a time, each in a process of its own, all of them watched."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hypermargin.common.text import say
from hypermargin.compare.plan import Run
from hypermargin.files import write_text
from hypermargin.training import Interrupted, RunError
from hypermargin.training.config import read_toml
from hypermargin.training.process import stop_signals

STEP = re.compile(r"step (\d+)/(\d+)\s+(.*)")
TICK = 0.3  # seconds between looks at what the runs say


@dataclass
class Seen:
    """How far a run is, for whoever watches. `state`: waiting, running, done, failed or stopped."""

    run: Run
    state: str = "waiting"
    pid: int = 0
    step: int = 0
    total: int = 0
    words: str = ""
    read: int = 0  # bytes of its output

    @property
    def name(self) -> str:
        """The name of the run for people."""
        return self.run.name


Watch = Callable[[Sequence[Seen], Seen], None]


def is_done(folder: Path) -> bool:
    """Tell whether a run is trained and measured."""
    return (folder / "measures.json").exists()


def failure(folder: Path) -> str | None:
    """Return why a run failed, if it did."""
    path = folder / "failed.json"
    return str(json.loads(path.read_text(encoding="utf-8"))["error"]) if path.exists() else None


def work(runs: Sequence[Run], *, jobs: int, threads: int, watch: Watch, trust: bool = False) -> None:
    """Work on all runs that are not done yet, `jobs` at a time. A failed one is noted, and the others go on.

    Ctrl-C and SIGTERM stop all of them, saved, and raise Interrupted.
    """
    seen = [Seen(run, "done" if is_done(run.folder) else "waiting") for run in runs]
    waiting = [each for each in seen if each.state == "waiting"]
    working: dict[str, Seen] = {}
    if not waiting:
        return
    with _server(threads) as (orders, news), stop_signals() as stopped:
        while working or (waiting and not stopped):
            while waiting and len(working) < jobs and not stopped:
                each = waiting.pop(0)
                _prepare(each, threads, trust)
                working[str(each.run.folder)] = each
                orders.write(json.dumps(str(each.run.folder)) + "\n")
                orders.flush()
                each.state = "running"
            if stopped and not orders.closed:
                orders.close()
            for each in working.values():
                if _listen(each):
                    watch(seen, each)
            try:
                told = news.get(timeout=TICK)
            except queue.Empty:
                continue
            if told is None:
                raise RunError("the process that starts the runs has ended. Add --resume to go on.")
            each = working[told["folder"]]
            if "pid" in told:
                each.pid = told["pid"]
            else:
                del working[told["folder"]]
                _listen(each)
                each.state = _ended(each, told["code"], asked=bool(stopped))
            watch(seen, each)
    if stopped:
        raise Interrupted("stopped; every run under way is saved")


@contextlib.contextmanager
def _server(threads: int) -> Iterator[tuple[IO[str], queue.SimpleQueue[Any]]]:
    """Start the server; yield where to order runs, and where their starts and ends are told (None: no more)."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hypermargin.compare.server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        start_new_session=True,  # Ctrl-C comes to us, and we let the runs stop
    )
    assert process.stdin is not None
    assert process.stdout is not None
    answers, news = process.stdout, queue.SimpleQueue[Any]()

    def hear() -> None:
        for line in answers:
            news.put(json.loads(line))
        news.put(None)

    threading.Thread(target=hear, daemon=True).start()
    try:
        yield process.stdin, news
    finally:
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.wait()


def _prepare(each: Seen, threads: int, trust: bool) -> None:
    folder = each.run.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "failed.json").unlink(missing_ok=True)  # it is tried again
    started = folder / "config.toml"
    if started.exists():  # a run goes on with the threads it was started with: they decide how sums are rounded
        with contextlib.suppress(ValueError):  # if that is damaged, the run will say so
            threads = read_toml(started).get("threads", threads)
    config = dataclasses.asdict(dataclasses.replace(each.run.config, threads=threads))
    write_text(
        folder / "job.json", json.dumps({"config": config, "plane": each.run.plane, "trust": trust}, indent=1)
    )
    output = folder / "output.txt"
    each.read = output.stat().st_size if output.exists() else 0


def _listen(each: Seen) -> bool:
    """Read how far a run is from what it has said since; False if that is nothing."""
    try:
        with (each.run.folder / "output.txt").open("rb") as file:
            file.seek(each.read)
            text = file.read()
    except FileNotFoundError:
        return False
    whole = text.rfind(b"\n") + 1
    each.read += whole
    found = STEP.findall(text[:whole].decode("utf-8", errors="replace"))
    if found:
        each.step, each.total, each.words = int(found[-1][0]), int(found[-1][1]), found[-1][2]
    return bool(found)


def _ended(each: Seen, code: int, *, asked: bool) -> str:
    folder = each.run.folder
    if code == 0:
        return "done"
    if asked:
        return "stopped"
    if failure(folder) is None:  # it could not say why itself
        why = f"the process ended with signal {-code}" if code < 0 else f"the process ended with exit code {code}"
        output = folder / "output.txt"  # not there if it ended at once
        said = output.read_text(encoding="utf-8", errors="replace").strip().splitlines() if output.exists() else []
        last = f"; its last words: {said[-1]}" if said else ""
        write_text(folder / "failed.json", json.dumps({"error": why + last}))
    each.words = failure(folder) or ""
    return "failed"


class Left:
    """Says how long a comparison will still take, by the steps that were done since it was watched.

    A step of every run is taken for as long, and what comes after the steps (measuring, pictures) for a twentieth
    of them. Runs that have not said how many steps they take are as long as those that have.
    """

    AFTER = 0.05
    SETTLED = 0.02  # of the work that must have been seen before anything is said

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.start: tuple[float, float] | None = None  # when it began, and what was done then
        self.totals: dict[bool, int] = {}  # steps of a run, and of one in the plane

    def seconds(self, seen: Sequence[Seen]) -> float | None:
        """Return how many seconds are left; None as long as nobody can know."""
        for each in seen:
            if each.total:
                self.totals[bool(each.run.plane)] = each.total
        if not self.totals:
            return None
        steps = [each.total or self.totals.get(bool(each.run.plane)) or max(self.totals.values()) for each in seen]
        work = float(sum(steps))
        done = sum(total * share(each) for total, each in zip(steps, seen, strict=True))
        now = self.clock()
        if self.start is None or done < self.start[1]:  # a run was begun again
            self.start = now, done
        began, before = self.start
        if done - before < self.SETTLED * (work - before) or now <= began:
            return None
        return (now - began) / (done - before) * (work - done)


def share(each: Seen) -> float:
    """Return how much of a run is done, from 0 to 1."""
    if each.state in ("done", "failed"):
        return 1.0
    return (1 - Left.AFTER) * each.step / max(1, each.total)


def lasting(seconds: float | None) -> str:
    """Write `1:02:03 left`; nothing if it is not known."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}:{minutes:02d}" if hours else f"{minutes}") + f":{rest:02d} left"


@contextlib.contextmanager
def shown(names: Mapping[str, str] | None = None) -> Iterator[Watch]:
    """Show the time left, and a bar for each run under way and for all, in a terminal; elsewhere a line per run.

    Heads are called as `names` calls them.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    console, left = Console(stderr=True), Left()

    def called(each: Seen) -> str:
        return each.name.replace(each.run.head, (names or {}).get(each.run.head, each.run.head), 1)

    if not console.is_terminal:
        told: dict[str, str] = {}

        def line(seen: Sequence[Seen], about: Seen) -> None:
            remaining = left.seconds(seen)
            if told.get(about.name) != about.state:
                told[about.name] = about.state
                ended = sum(each.state not in ("waiting", "running") for each in seen)
                words = f"  {about.words}" if about.words else ""
                ahead = f"  {lasting(remaining)}" if remaining and about.state == "done" else ""
                say(f"{ended}/{len(seen)}  {called(about)}: {about.state}{words}{ahead}")

        yield line
        return
    # What a run says is cut where the terminal ends; the names, the bars and the times are always whole.
    kept, cut = Column(no_wrap=True, min_width=7), Column(no_wrap=True, overflow="ellipsis", ratio=1)
    columns = (
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        BarColumn(20, table_column=Column(min_width=20)),
        TimeElapsedColumn(table_column=kept),
        TextColumn("{task.fields[words]}", table_column=cut),
    )  # fmt: skip
    with Progress(*columns, console=console, expand=True) as bar:
        everything = bar.add_task("all runs", words="")
        tasks: dict[str, Any] = {}

        def move(seen: Sequence[Seen], about: Seen) -> None:
            words = lasting(left.seconds(seen))
            bar.update(everything, completed=sum(map(share, seen)), total=len(seen), words=words)
            if about.state == "running":
                if about.name not in tasks:
                    tasks[about.name] = bar.add_task(called(about), words="")
                total = about.total or None  # None: not known yet
                bar.update(tasks[about.name], completed=about.step, total=total, words=about.words)
            elif about.name in tasks:
                bar.remove_task(tasks.pop(about.name))
                if about.state == "failed":
                    bar.console.print(f"{called(about)} failed: {about.words}", markup=False, highlight=False)

        yield move
