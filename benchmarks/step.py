"""The step benchmark: what the trainer adds to a training step, beside a loop written by hand.

Both train the same network and head on the same batches with the same optimiser and clipping, to the same weights.
The trainer does in addition what it always does: it looks at every loss, sets the learning rate, watches angles and
norms, writes the log, and is deterministic.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import command
from benchmarks.measure import interleaved
from benchmarks.record import Say, in_words, store, surroundings, threads_set
from hypermargin.data import Array, Augment, Scaling, batches, from_arrays
from hypermargin.training import Config, create_model, train
from hypermargin.training.build import build_head, resolve, resolve_head
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
    steps: int  # whole periods of the trainer's watching (10); and of its logging (50), where that could be felt
    dim: int = 128
    augment: str = "none"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


LENET = Case("lenet++, 28×28 gray, 1,100 classes, batch 128", "lenet++", (28, 28), 1100, 128, 20)
MLP = Case("mlp 64→128, 10 classes, batch 128", "mlp", (8, 8), 10, 128, 300, options={"widths": []})
NONE = Case("none, 512-d embeddings, 20,000 classes, batch 256", "none", (512,), 20_000, 256, 20, dim=512)
CASES = (
    LENET,
    dataclasses.replace(LENET, name=f"{LENET.name}, affine", augment="affine"),
    MLP,
    dataclasses.replace(MLP, name=f"{MLP.name}, shift", augment="shift=0.1"),
    NONE,
)


class Timed(nn.Module):
    """A network that notes when it is called to train, and ends that after `steps` whole steps."""

    def __init__(self, network: nn.Module, steps: int) -> None:
        super().__init__()
        self.network, self.steps = network, steps
        self.times: list[float] = []

    def forward(self, inputs: Tensor) -> Tensor:
        """The network's features."""
        if self.training:  # a look at the network before or after is no step
            self.times.append(perf_counter())
        if len(self.times) > self.steps:
            raise _EnoughError
        return cast(Tensor, self.network(inputs))


class _EnoughError(Exception):
    pass


class Setup:
    """Data and settings, and the two loops over them."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.rows = max((case.steps + 2) * case.batch, case.classes)
        rng = np.random.default_rng(0)
        if len(case.shape) == 1:
            samples: Array = rng.standard_normal((self.rows, *case.shape), np.float32)
        else:
            samples = rng.integers(0, 256, (self.rows, *case.shape), np.uint8)
        self.data = from_arrays(samples, rng.permutation(np.arange(self.rows) % case.classes))
        config = Config(
            model=case.model, dim=case.dim, batch=case.batch, augment=case.augment, split="none", epochs=1,
            lr_schedule="constant", lr_warmup=0.0, log=50, device="cpu", tensorboard=False,
        )  # fmt: skip
        self.config, _ = resolve_head(resolve(config, self.data), case.classes)

    def network(self) -> Timed:
        """Newly initialised."""
        torch.manual_seed(0)
        network = create_model(self.case.model, self.data.shape, self.case.dim, **self.case.options)
        return Timed(network, self.case.steps + 1)

    def bare(self, network: Timed) -> None:
        """A loop as one writes it by hand."""
        config = self.config
        torch.manual_seed(config.seed)
        head = build_head(config, self.case.classes)
        lr, decay = cast(float, config.lr), cast(float, config.weight_decay)
        optimizer = create_optimizer(network, head, name="adamw", lr=lr, weight_decay=decay)
        # In the optimiser's order, as the trainer adds up their squares: another would round the norm differently.
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        samples, labels = torch.from_numpy(np.asarray(self.data.samples)), torch.from_numpy(self.data.labels)
        scaling = Scaling.fit(self.data, np.arange(self.rows), as_they_are=config.model == "none")
        augment = Augment.parse(self.case.augment)
        network.train()
        for rows in batches(self.data.labels, "shuffled", self.case.batch, seed=config.seed, epoch=0):
            chosen = torch.from_numpy(rows)
            inputs = scaling(samples[chosen])
            if self.case.augment != "none":
                inputs = augment(inputs, rows, seed=config.seed, epoch=0)
            optimizer.zero_grad()
            loss: Tensor = head(network(inputs), labels[chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters, config.clip)
            optimizer.step()

    def repeatable(self, network: Timed) -> None:
        """The same with torch's deterministic algorithms."""
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)
        try:
            self.bare(network)
        finally:
            torch.use_deterministic_algorithms(before)

    def ours(self, network: Timed) -> None:
        """The trainer, from its front door; it is stopped before it would evaluate and save."""
        with tempfile.TemporaryDirectory() as folder:
            train(self.config, folder, data=self.data, network=network, quiet=True)

    def seconds(self, name: str, network: Timed) -> Array:
        """Of each step but the first, from one call of the network to the next, in the loop of that name."""
        with suppress(_EnoughError):
            getattr(self, name)(network)
        return np.diff(network.times)[1:]


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Milliseconds per step: the mean over the steps of each one's least time in interleaved rounds."""
    setup = Setup(case)
    seconds: dict[str, list[Array]] = {name: [] for name in CONTENDERS}

    def runner(name: str) -> Callable[[], None]:
        return lambda: seconds[name].append(setup.seconds(name, setup.network()))

    interleaved({name: runner(name) for name in CONTENDERS}, rounds, "cpu")
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
        in_words(env),
        "AdamW with the same groups, gradient clipping, batches in memory, the same weights in the end. "
        "Milliseconds per step: the mean over the steps of each one's least time in "
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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command.flags(
        "step",
        "What the trainer adds to a training step, beside a bare loop with the same network, head and batches.",
        "",
        "--only mlp --rounds 20",
        "--out results",
    )
    several = command.at_least(1)
    parser.add_argument("--threads", type=several, default=1, help="CPU threads of torch")
    parser.add_argument("--rounds", type=several, default=7, help="interleaved rounds to time")
    parser.add_argument("--only", default="", help="only the cases whose name contains this")
    given = parser.parse_args(arguments)
    cases = tuple(case for case in CASES if given.only in case.name)
    if not cases:
        parser.error(f"--only {given.only!r} is in no case's name: {'; '.join(case.name for case in CASES)}.")
    with command.plain_errors(parser):
        result = run(cases, threads=given.threads, rounds=given.rounds, out=given.out, say=command.say)
    print(as_markdown(result))


if __name__ == "__main__":
    main()
