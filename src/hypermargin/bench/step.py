"""The step benchmark: what the trainer adds to a training step, beside a loop written by hand.

Both train the same network and head on the same batches with the same optimiser and clipping, to the same weights.
The trainer does in addition what it always does: it looks at every loss, sets the learning rate, watches angles and
norms, writes the log, and is deterministic.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hypermargin.bench.head import Say, environment
from hypermargin.bench.measure import interleaved
from hypermargin.data import Augment, Data, Scaling, Split, batches, from_arrays, split
from hypermargin.files import write_text
from hypermargin.head import MarginHead
from hypermargin.training import Config, create_model
from hypermargin.training.build import build_head, resolve, resolve_head
from hypermargin.training.loop import Trainer
from hypermargin.training.monitor import Monitor
from hypermargin.training.optim import create_optimizer

CONTENDERS = {"bare": "bare loop", "repeatable": "bare loop, deterministic", "ours": "hypermargin.training"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A network, a head and batches for them."""

    name: str
    model: str
    shape: tuple[int, ...]  # of one sample; images are bytes
    classes: int
    batch: int
    steps: int  # whole periods of the trainer's watching (10 steps) and logging (50)
    dim: int = 128
    augment: str = "none"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


LENET = Case("lenet++, 28×28 gray, 1,100 classes, batch 128", "lenet++", (28, 28), 1100, 128, 50)
MLP = Case("mlp 64→128, 10 classes, batch 128", "mlp", (8, 8), 10, 128, 300, options={"widths": []})
NONE = Case("none, 512-d embeddings, 20,000 classes, batch 256", "none", (512,), 20_000, 256, 50, dim=512)
CASES = (
    LENET,
    dataclasses.replace(LENET, name=f"{LENET.name}, affine", augment="affine"),
    MLP,
    dataclasses.replace(MLP, name=f"{MLP.name}, shift", augment="shift=0.1"),
    NONE,
)


class Setup:
    """The parts of a run, in the same state every time."""

    def __init__(self, case: Case) -> None:
        rng = np.random.default_rng(0)
        rows = max((case.steps + 1) * case.batch, case.classes)
        vectors = len(case.shape) == 1
        samples = (
            rng.standard_normal((rows, *case.shape), np.float32)
            if vectors
            else rng.integers(0, 256, (rows, *case.shape), np.uint8)
        )
        self.case = case
        self.data: Data = from_arrays(samples, rng.permutation(np.arange(rows) % case.classes))
        config = Config(
            model=case.model, model_set=case.options, dim=case.dim, batch=case.batch, augment=case.augment,
            split="none", epochs=1, lr_schedule="constant", lr_warmup=0.0, device="cpu", tensorboard=False,
        )  # fmt: skip
        self.config, _ = resolve_head(resolve(config, self.data), case.classes)
        self.split: Split = split(self.data, "none")
        self.scaling = Scaling.fit(self.data, self.split.train, as_they_are=vectors)

    def modules(self) -> tuple[nn.Module, MarginHead]:
        """Network and head, newly initialised."""
        torch.manual_seed(0)
        network = create_model(self.case.model, self.data.shape, self.case.dim, **self.case.options)
        return network, build_head(self.config, self.case.classes)

    def bare(self, network: nn.Module, head: MarginHead) -> list[float]:
        """A loop as one writes it by hand. The time at the end of every step."""
        config, times = self.config, []
        assert config.lr is not None
        assert config.weight_decay is not None
        optimizer = create_optimizer(network, head, name="adamw", lr=config.lr, weight_decay=config.weight_decay)
        parameters = [*network.parameters(), *head.parameters()]
        samples = torch.from_numpy(np.asarray(self.data.samples))
        labels = torch.from_numpy(self.data.labels)
        augment = Augment.parse(self.case.augment)
        order = batches(self.data.labels, "shuffled", self.case.batch, seed=0, epoch=0)
        network.train()
        for rows in order[: self.case.steps + 1]:
            chosen = torch.from_numpy(rows)
            inputs = self.scaling(samples[chosen])
            if self.case.augment != "none":
                inputs = augment(inputs, rows, seed=0, epoch=0)
            optimizer.zero_grad()
            loss: Tensor = head(network(inputs), labels[chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters, config.clip)
            optimizer.step()
            times.append(perf_counter())
        return times

    def ours(self, network: nn.Module, head: MarginHead) -> list[float]:
        """The trainer, stopped before it would evaluate and save."""
        with tempfile.TemporaryDirectory() as folder, deterministic():
            trainer = Trainer(self.config, self.data, self.split, self.scaling, network, head, Path(folder))
            clock = Clock(Path(folder), self.case.steps + 1)
            with suppress(_EnoughError):
                trainer.fit(clock)
        return clock.times


class _EnoughError(Exception):
    pass


class Clock(Monitor):
    """Notes the time after every step, and ends the training after `steps`."""

    def __init__(self, folder: Path, steps: int) -> None:
        super().__init__(folder, total=steps, step=0, tensorboard=False, quiet=True)
        self.times: list[float] = []

    def advance(self, step: int, epoch: int) -> None:  # noqa: D102
        super().advance(step, epoch)
        self.times.append(perf_counter())
        if step == self.total:
            raise _EnoughError


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Milliseconds a step: the mean over the steps of each one's least time in interleaved rounds."""
    setup = Setup(case)
    seconds: dict[str, list[Any]] = {name: [] for name in CONTENDERS}

    def repeatable(network: nn.Module, head: MarginHead) -> list[float]:
        with deterministic():
            return setup.bare(network, head)

    loops = {"bare": setup.bare, "repeatable": repeatable, "ours": setup.ours}

    def runner(name: str) -> Callable[[], None]:
        return lambda: seconds[name].append(np.diff(loops[name](*setup.modules())))

    interleaved({name: runner(name) for name in loops}, rounds, "cpu")
    found = {name: 1e3 * float(np.min(times[1:], axis=0).mean()) for name, times in seconds.items()}
    return {
        "name": case.name,
        "ms": found,
        "ratio": found["ours"] / found["bare"],
        "ratio_deterministic": found["ours"] / found["repeatable"],
    }


def as_markdown(result: dict[str, Any]) -> str:
    """The table, for people."""
    env = result["environment"]
    lines = [
        f"# Training step: the trainer beside a bare loop, {env['device']}",
        "",
        ", ".join(f"{key} {value}" for key, value in env.items() if key != "device") + ".",
        "AdamW with the same groups, gradient clipping, batches in memory, the same weights in the end. "
        "Milliseconds a step: the mean over the steps of each one's least time in "
        f"{result['rounds']} interleaved rounds. The trainer watches every 10 steps, logs every 50 and is "
        "deterministic, as by default; no evaluation, no checkpoint.",
        "",
        "| | " + " | ".join(f"{words}, ms" for words in CONTENDERS.values()) + " | × bare | × deterministic |",
        "|---|" + "---:|" * (len(CONTENDERS) + 2),
    ]
    for row in result["table"]:
        cells = [f"{row['ms'][name]:.3f}" for name in CONTENDERS]
        cells += [f"{row['ratio']:.3f}", f"{row['ratio_deterministic']:.3f}"]
        lines.append(f"| {row['name']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def run(
    cases: tuple[Case, ...] = CASES,
    *,
    threads: int = 1,
    rounds: int = 7,
    out: Path | None = None,
    say: Say = print,
) -> dict[str, Any]:
    """The whole benchmark; writes step-cpu.json and .md into `out`."""
    with threads_set(threads):
        result: dict[str, Any] = {"environment": surroundings(), "rounds": rounds, "table": []}
        for case in cases:
            say(f"{case.name}: {rounds} interleaved rounds")
            result["table"].append(measure(case, rounds))
    store(result, as_markdown(result), "step-cpu", out, say)
    return result


@contextmanager
def deterministic() -> Iterator[None]:
    """As the trainer runs by default on the CPU."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextmanager
def threads_set(threads: int) -> Iterator[None]:
    """Torch's threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def surroundings() -> dict[str, str]:
    """The versions that matter for data and training, and what else the machine was doing."""
    found = environment("cpu")
    found = {key: found[key] for key in ("hypermargin", "torch", "numpy", "device", "threads", "python", "date")}
    with suppress(PackageNotFoundError):
        found["pillow"] = version("pillow")
    found["cores"] = str(os.cpu_count())
    with suppress(OSError, AttributeError):  # not on every system
        found["load before"] = f"{os.getloadavg()[0]:.1f}"
    return found


def store(result: dict[str, Any], markdown: str, stem: str, out: Path | None, say: Say) -> None:
    """JSON and Markdown into a folder, if there is one."""
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / f"{stem}.json", json.dumps(result, indent=1) + "\n")
    write_text(out / f"{stem}.md", markdown)
    say(f"written to {out / stem}.*")
