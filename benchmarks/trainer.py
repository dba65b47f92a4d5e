"""The trainer on a GPU: its steps, recorded and not, beside a bare loop and a bare loop as a CUDA graph.

All train the same network and head on batches from the same images in GPU memory, with the same augmentation,
clipping and fused AdamW. The trainer's pace is that of its own log, with all that it does for each step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import command
from benchmarks.record import Say, environment, in_words, store
from hypermargin.data import Augment, Scaling, batches, from_arrays
from hypermargin.training import Config, create_model, train
from hypermargin.training.build import build_head, resolve, resolve_head
from hypermargin.training.optim import create_optimizer

CONTENDERS = {
    "bare": "bare loop",
    "bare graph": "bare loop, graph",
    "eager": "`cuda_graphs = false`",
    "ours": "the trainer",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A network, a head, and random bytes for images: a step's time does not depend on what is in them."""

    name: str
    settings: dict[str, Any]
    shape: tuple[int, ...]
    classes: int
    batch: int
    steps: int = 600


SMALL = {"model": "lenet++", "augment": "affine", "dim": 128}
CASES = (
    Case("lenet++, 28×28, 964 classes, batch 128", SMALL, (28, 28), 964, 128),
    Case("lenet++, 28×28, 964 classes, batch 256", SMALL, (28, 28), 964, 256),
    Case("the same, batch 128, bfloat16", {**SMALL, "precision": "bfloat16"}, (28, 28), 964, 128),
    Case(
        "iresnet18, 112×112, 10,000 classes, batch 128, bfloat16",
        {"model": "iresnet18", "augment": "flip", "dim": 512, "precision": "bfloat16"},
        (112, 112, 3), 10_000, 128, 120,
    ),
    Case(
        "no network, 512 numbers, 100,000 classes, batch 1,024, bfloat16",
        {"model": "none", "dim": 512, "precision": "bfloat16"}, (512,), 100_000, 1024, 200,
    ),
)  # fmt: skip


class Setup:
    """Data and settings, and the loops over them."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder = case, folder
        rows = max(20 * case.batch, case.classes)
        rng = np.random.default_rng(0)
        if len(case.shape) == 1:
            samples: Any = rng.standard_normal((rows, *case.shape), np.float32)
        else:
            samples = rng.integers(0, 256, (rows, *case.shape), np.uint8)
        self.data = from_arrays(samples, rng.permutation(np.arange(rows) % case.classes))
        per_epoch = rows // case.batch
        config = Config(
            **case.settings, batch=case.batch, split="none", epochs=max(1, case.steps // per_epoch), evaluate=0,
            lr_schedule="constant", lr_warmup=0.0, device="cuda", tensorboard=False, log=20, keep=1,
        )  # fmt: skip
        self.config, _ = resolve_head(resolve(config, self.data), case.classes)

    def trainer(self, graphs: bool | None) -> float:
        """Milliseconds per step, the median over the lines of the log."""
        folder = self.folder / f"run-{graphs}"
        train(dataclasses.replace(self.config, cuda_graphs=graphs), folder, data=self.data, quiet=True)
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        paces = [line["images_per_s"] for line in lines if line["kind"] == "train"]
        return 1e3 * self.case.batch / float(statistics.median(paces[len(paces) // 3 :]))

    def bare(self, graph: bool) -> float:
        """Milliseconds per step of a loop written by hand, which looks at no loss and writes nothing."""
        config = self.config
        torch.manual_seed(0)
        network = create_model(str(config.model), self.data.shape, config.dim).cuda().train()
        head = build_head(config, self.case.classes).cuda()
        lr, decay = cast(float, config.lr), cast(float, config.weight_decay)
        optimizer = create_optimizer(network, head, name="adamw", lr=lr, weight_decay=decay)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        samples, labels = (torch.from_numpy(np.asarray(a)).cuda() for a in (self.data.samples, self.data.labels))
        scaling = Scaling.fit(self.data, np.arange(len(labels)), as_they_are=config.model == "none")
        augment = Augment.parse(config.augment or "none")

        def step(raw: Tensor, draws: Tensor, y: Tensor) -> None:
            inputs = augment.apply(scaling(raw), draws)
            optimizer.zero_grad(set_to_none=True)
            half = config.precision == "bfloat16"
            with torch.autocast("cuda", torch.bfloat16) if half else contextlib.nullcontext():
                loss: Tensor = head(network(inputs), y)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters, config.clip)
            optimizer.step()

        def batch(rows: Any) -> tuple[Tensor, Tensor, Tensor]:
            chosen = torch.from_numpy(rows).cuda()
            return samples[chosen], augment.draws(rows, seed=0, epoch=0).cuda(), labels[chosen]

        every = batches(self.data.labels, "shuffled", self.case.batch, seed=0, epoch=0)
        order = [rows for rows in every if len(rows) == self.case.batch]
        run: Callable[..., Any] = step
        if graph:
            run = as_graph(step, batch(order[0]), optimizer)
        times = []
        for start in range(0, self.case.steps, 20):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for k in range(start, start + 20):
                run(*batch(order[k % len(order)]))
            torch.cuda.synchronize()
            times.append((time.perf_counter() - began) / 20)
        return 1e3 * statistics.median(times[len(times) // 3 :])

    def milliseconds(self, name: str) -> float:
        """Of a step of that contender."""
        if name.startswith("bare"):
            return self.bare(name == "bare graph")
        return self.trainer({"eager": False, "ours": None}[name])


def as_graph(step: Callable[..., None], example: tuple[Tensor, ...], optimizer: Any) -> Callable[..., None]:
    """Record the step as one does it by hand."""
    for group in optimizer.param_groups:
        group["capturable"] = True
    static = [t.clone() for t in example]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(*static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(*static)

    def replay(*batch: Tensor) -> None:
        for here, new in zip(static, batch, strict=True):
            here.copy_(new)
        graph.replay()

    return replay


def as_markdown(result: dict[str, Any]) -> str:
    """The table, for people."""
    env = result["environment"]
    lines = [
        f"# Training steps: the trainer beside bare loops, {env['device']}",
        "",
        in_words(env),
        f"Milliseconds per step, medians, the best of {result['rounds']} runs. AdamW, clipping, augmentation "
        "and images on the GPU. The trainer looks at every loss, watches angles every 10 steps and logs every 20.",
        "",
        "| | " + " | ".join(CONTENDERS.values()) + " | images/s | × bare | × bare graph |",
        "|---|" + "---:|" * (len(CONTENDERS) + 3),
    ]
    for row in result["table"]:
        ms = row["ms"]
        cells = [f"{ms[name]:.2f}" for name in CONTENDERS]
        cells += [f"{1e3 * row['batch'] / ms['ours']:,.0f}"]
        cells += [f"{ms['ours'] / ms['bare']:.2f}", f"{ms['ours'] / ms['bare graph']:.2f}"]
        lines.append(f"| {row['name']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def run(
    cases: Sequence[Case] = CASES, *, rounds: int = 2, out: Path | None = None, say: Say = print
) -> dict[str, Any]:
    """The whole benchmark; writes trainer-cuda.json and .md into `out`."""
    result: dict[str, Any] = {"environment": environment("cuda"), "rounds": rounds, "table": []}
    for case in cases:
        found: dict[str, float] = {}
        for _ in range(rounds):
            for name in CONTENDERS:
                with tempfile.TemporaryDirectory() as folder:
                    ms = Setup(case, Path(folder)).milliseconds(name)
                found[name] = min(found.get(name, ms), ms)
        say(f"{case.name}: " + ", ".join(f"{name} {ms:.2f}" for name, ms in found.items()))
        result["table"].append({"name": case.name, "batch": case.batch, "ms": found})
        store(result, as_markdown(result), "trainer-cuda", out, say)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command.flags("trainer", "The trainer's steps on a GPU, beside bare loops.", "", "--only lenet")
    parser.add_argument("--rounds", type=command.at_least(1), default=2, help="runs of each, the better counts")
    parser.add_argument("--only", default="", help="only the cases whose name contains this")
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("needs a CUDA device, and there is none.")
    with command.plain_errors(parser):
        result = run(
            [c for c in CASES if given.only in c.name], rounds=given.rounds, out=given.out, say=command.say
        )
    print(as_markdown(result))


if __name__ == "__main__":
    main()
