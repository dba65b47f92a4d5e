"""What a person sees of a run: a bar in a terminal, lines elsewhere, a JSON-lines log and TensorBoard events."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypermargin.common.needs import not_installed
from hypermargin.common.text import Say, say
from hypermargin.files import write_text

# How a number of the log is shown: its short name and format. Others are only written to the log.
SHOWN = {
    "loss": ("loss", "{:.3f}"),
    "accuracy": ("acc", "{:.1%}"),
    "angle": ("own", "{:.1f}°"),
    "rival_angle": ("rival", "{:.1f}°"),
    "past_fold": ("past π−m", "{:.1%}"),
    "norms": ("|x|", "{}"),
    "images_per_s": ("", "{:,.0f}/s"),
    "eer": ("EER", "{:.2%}"),
    "rank1": ("rank-1", "{:.1%}"),
    "tar": ("TAR@FAR=1e-3", "{:.1%}"),
}


def words(values: dict[str, Any]) -> str:
    """Write numbers as `loss 1.234  acc 56.7%  own 40.1°  …`."""
    values = dict(values)
    if "norm_p50" in values:
        values["norms"] = "/".join(f"{values[f'norm_p{p}']:.3g}" for p in (10, 50, 90))
    shown = ((*SHOWN[name], values[name]) for name in SHOWN if name in values)
    return "  ".join(f"{short} {form.format(value)}".strip() for short, form, value in shown)


def duration(seconds: float) -> str:
    """Write seconds as 1:02:03 or 4:05."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


class Log:
    """The file log.jsonl: one JSON object per line, flushed. A full disk costs the log, not the run."""

    def __init__(self, path: Path, say: Say) -> None:
        self.path, self.say, self.broken = path, say, False

    def forget_after(self, step: int) -> None:
        """Drop what a run wrote after its last checkpoint, and a line it did not finish: they are written again."""
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                record = json.loads(line)
                if record["step"] <= step and record["kind"] in ("train", "validation"):  # the test comes last
                    kept.append(line + "\n")
        write_text(self.path, "".join(kept))

    def write(self, record: dict[str, Any]) -> None:
        """Add one line."""
        # JSON has no NaN; null is what readers expect in its place.
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(plain) + "\n")
        except OSError as error:
            if not self.broken:
                self.say(f"{self.path} cannot be written ({error.strerror}); training goes on without the log.")
            self.broken = True


class Events:
    """TensorBoard events, if the package is there."""

    def __init__(self, folder: Path, wanted: bool, step: int, say: Say) -> None:
        self.writer: Any = None
        self.folder, self.say = folder, say
        if not wanted:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            say(not_installed("TensorBoard events are not written: they need", "tensorboard"))
            return
        try:
            # purge_step hides what a killed run wrote after its last checkpoint.
            self.writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)
        except OSError as error:
            self._give_up(error)

    def write(self, record: dict[str, Any]) -> None:
        """Write every number under kind/name."""
        if self.writer is None:
            return
        try:
            for name, value in record.items():
                if isinstance(value, float):
                    self.writer.add_scalar(f"{record['kind']}/{name}", value, record["step"])
            self.writer.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.say(f"{self.folder} cannot be written ({error.strerror}); training goes on without it.")
        self.close()

    def close(self) -> None:
        """Write what is left."""
        writer, self.writer = self.writer, None
        if writer is not None:
            with contextlib.suppress(OSError):
                writer.close()


class Monitor:
    """The bar, the log and the events together.

    In a terminal with rich: a bar with the latest numbers and the time left. Else: a line now and then, on stderr.
    With several ranks one is `watched`; the others say and write nothing.
    """

    def __init__(
        self,
        folder: Path,
        *,
        total: int,
        step: int,
        tensorboard: bool,
        quiet: bool = False,
        watched: bool = True,
    ) -> None:
        self.total, self.quiet, self.watched = total, quiet or not watched, watched
        self.progress: Any = None
        self.task: Any = None
        self.log = Log(folder / "log.jsonl", self.say)
        if watched:
            self.log.forget_after(step)
        self.events = Events(folder / "tensorboard", tensorboard and watched, step, self.say)
        self.started, self.first = time.monotonic(), step

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Show the bar inside."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.events.close)
            if not self.quiet and sys.stderr.isatty():
                with contextlib.suppress(ModuleNotFoundError):
                    self.progress = stack.enter_context(_bar())
                    self.task = self.progress.add_task("", total=self.total, completed=self.first)
            self.started = time.monotonic()
            try:
                yield
            finally:
                self.progress = None

    def say(self, text: str) -> None:
        """Show one line to the person watching."""
        if self.progress is not None:
            self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
        elif not self.quiet:
            say(text)

    def advance(self, step: int, epoch: int) -> None:
        """Note that `step` steps are done."""
        if self.progress is not None:
            self.progress.update(self.task, completed=step, description=f"epoch {epoch + 1}")

    def record(
        self,
        kind: str,
        step: int,
        epoch: int,
        values: dict[str, float],
        *,
        tested: int | None = None,
        why: str = "",
    ) -> None:
        """Write a line to the log and to TensorBoard, and show it; in the end with the step that was tested."""
        if not self.watched:
            return
        record: dict[str, Any] = {"kind": kind, "step": step, "epoch": epoch + 1, **values}
        if tested is not None:
            record |= {"tested": tested, "why": why}
        self.log.write(record)
        self.events.write(record)
        if kind == "train" and self.progress is not None:
            self.progress.numbers = words(values)
            return
        where = f"epoch {epoch + 1}  step {step}/{self.total}"
        left = f"  {self._left(step)} left" if kind == "train" and step > self.first else ""
        about, chosen = (kind, "") if tested is None else (f"{kind} of step {tested}", f"  ({why})")
        about = "" if kind == "train" else f"{about}  "
        self.say(f"{where}  {about}{words(values)}{left}{chosen}")

    def _left(self, step: int) -> str:
        pace = (time.monotonic() - self.started) / (step - self.first)
        return duration(pace * (self.total - step))


def _bar() -> Any:
    """The bar on one line and the numbers on the next: together they would not fit into 80 columns."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Bar(Progress):
        numbers = ""

        def get_renderables(self) -> Iterator[Any]:
            yield self.make_tasks_table(self.tasks)
            yield Text(self.numbers)

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Bar(*columns, console=Console(stderr=True))
