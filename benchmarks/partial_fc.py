"""Partial FC against all classes: what a sample of the rivals does to log Σ exp z, loss, gradient and training.

10,000 classes in 64 dimensions on generated features, a unit center for each class plus noise; ArcFace, s = 32,
m = 0.3. The features stay as they are, only the head learns.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import command
from benchmarks.record import Say, environment, in_words, store
from hypermargin import MarginHead, PartialFC, SampledSGD
from hypermargin.margins import ArcFace, Margin, NoMargin

CLASSES, DIM, ROWS, SCALE, NOISE = 10_000, 64, 512, 32.0, 0.6
RATES = (0.3, 0.1, 0.03)
LR, MOMENTUM = 20.0, 0.9
SEEDS = (1, 2, 3)
TEST = 10**6  # batches from this number on are for testing


class Problem:
    """Features with labels, batch by batch."""

    def __init__(self, classes: int = CLASSES) -> None:
        self.classes = classes
        rng = torch.Generator().manual_seed(0)
        self.centers = torch.nn.functional.normalize(torch.randn(classes, DIM, generator=rng), dim=1)

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """The same for the same number."""
        rng = torch.Generator().manual_seed(number)
        y = torch.randint(0, self.classes, (ROWS,), generator=rng)
        return self.centers[y] + NOISE * DIM**-0.5 * torch.randn(ROWS, DIM, generator=rng), y

    def head(self, margin: Margin, sample: PartialFC | None = None, *, seed: int = 1, **options: Any) -> MarginHead:
        """Random weights of that seed."""
        torch.manual_seed(seed)
        return MarginHead(DIM, self.classes, margin, scale=SCALE, sample=sample, **options)

    def train(self, sample: PartialFC, steps: int, seed: int) -> MarginHead:
        """The same batches and first weights for every sample."""
        head = self.head(ArcFace(0.3), sample, seed=seed)
        optimizer = SampledSGD(head.parameters(), LR, momentum=MOMENTUM)
        for step in range(steps):
            optimizer.zero_grad()
            head(*self.batch(step + 10_000 * seed)).backward()
            optimizer.step()
        return head

    @torch.no_grad()
    def tested(self, head: MarginHead) -> tuple[float, float]:
        """The loss against all classes and rank-1, on new rows."""
        head.eval()
        rows = [self.batch(TEST + number) for number in range(8)]
        losses = [float(head(x, y)) for x, y in rows]
        right = [float((head(x).argmax(1) == y).float().mean()) for x, y in rows]
        return statistics.mean(losses), statistics.mean(right)

    def estimate(self, weight: Tensor, rate: float, correct: bool, draws: int) -> dict[str, float]:
        """How far samples are off, in float64: R, the loss, and dX of one draw and of the mean of all."""
        x, y = self.batch(TEST - 1)
        x = x.double()
        sample = PartialFC(rate, correct=correct)
        wide: dict[str, Any] = {"dtype": torch.float64}
        plain = self.head(NoMargin(), sample, reduction="none", **wide)
        sampled, full = self.head(ArcFace(0.3), sample, **wide), self.head(ArcFace(0.3), **wide)
        for head in (plain, sampled, full):
            head.weight.data.copy_(weight)
        found = plain.scores(x, y)
        with torch.no_grad():  # without a margin the loss is log(1 + exp(R − T)): R comes back from it
            R = torch.stack([found.target[:, 0] + torch.expm1(plain(x, y)).log() for _ in range(draws)])
        leaf = x.clone().requires_grad_()
        right = full(leaf, y)
        (by_x,) = torch.autograd.grad(right, leaf)
        losses, grads = [], []
        for _ in range(draws):
            loss = sampled(leaf, y)
            grads.append(torch.autograd.grad(loss, leaf)[0])
            losses.append(float(loss.detach()))
        every = torch.stack(grads)
        return {
            "bias": float((R - found.rivals).mean()),
            "spread": float(R.std(0).mean()),
            "gap": statistics.mean(losses) - float(right.detach()),
            "loss": float(right.detach()),
            "one": float((every - by_x).flatten(1).norm(dim=1).mean() / by_x.norm()),
            "mean": float((every.mean(0) - by_x).norm() / by_x.norm()),
        }


def as_markdown(result: dict[str, Any]) -> str:
    """Both tables, for people."""
    lines = [
        "# Partial FC, corrected and not, against all classes",
        "",
        in_words(result["environment"]),
        f"{result['classes']:,} classes, d = {DIM}, batches of {ROWS} rows, ArcFace s = {SCALE:g}, m = 0.3, "
        "generated features, only the head learns. "
        f"The first table: {result['draws']} samples for one batch, in float64. R is log Σ exp z over the rivals; "
        "errors of dX are relative, of one sample and of the mean of all. "
        f"Trained: after {result['steps']} steps with all classes. "
        f"The second: {result['steps']} steps of SampledSGD (lr {LR:g}, momentum {MOMENTUM:g}, not tuned), tested "
        f"against all classes on new rows; mean and range of {len(SEEDS)} seeds.",
        "",
        "| weights | rate | corrected | R − R of all (spread) | loss − loss of all (that loss) | error of dX, one "
        "sample | mean of all |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for row in result["estimates"]:
        lines.append(
            f"| {row['weights']} | {row['rate']:g} | {'yes' if row['correct'] else 'no'} | "
            f"{row['bias']:+.2f} ({row['spread']:.2f}) | {row['gap']:+.3f} ({row['loss']:.3f}) | "
            f"{row['one']:.2f} | {row['mean']:.2f} |"
        )
    lines += ["", "| rate | corrected | loss of all classes | rank-1 |", "|---:|---|---:|---:|"]
    for row in result["trained"]:
        word = "" if row["rate"] == 1 else "yes" if row["correct"] else "no"
        lines.append(f"| {row['rate']:g} | {word} | {_range(row['losses'], 3)} | {_range(row['right'], 4)} |")
    return "\n".join(lines) + "\n"


def _range(values: list[float], digits: int) -> str:
    mean, low, high = (f"{f(values):.{digits}f}" for f in (statistics.mean, min, max))
    return f"{mean} ({low} to {high})"


def run(
    out: Path | None = None, say: Say = print, *, classes: int = CLASSES, steps: int = 200, draws: int = 30
) -> dict[str, Any]:
    """The whole benchmark, some minutes on two cores; writes partial-fc.json and .md into `out`."""
    problem = Problem(classes)
    result: dict[str, Any] = {"environment": environment("cpu"), "classes": classes, "steps": steps, "draws": draws}
    weights = {
        "first": problem.head(ArcFace(0.3)).weight.detach(),
        "trained": problem.train(PartialFC(1.0), steps, 1).weight.detach(),
    }
    result["estimates"] = []
    for name, weight in weights.items():
        for rate in RATES:
            for correct in (False, True):
                say(f"{name} weights, rate {rate:g}, {'corrected' if correct else 'as published'}")
                found = problem.estimate(weight.double(), rate, correct, draws)
                result["estimates"].append({"weights": name, "rate": rate, "correct": correct, **found})
    result["trained"] = []
    for rate, correct in ((1.0, False), *((rate, correct) for rate in RATES for correct in (False, True))):
        say(f"training at rate {rate:g}{', corrected' if correct else ''}")
        made = (problem.train(PartialFC(rate, correct=correct, seed=seed), steps, seed) for seed in SEEDS)
        losses, right = zip(*(problem.tested(head) for head in made), strict=True)
        result["trained"].append({"rate": rate, "correct": correct, "losses": losses, "right": right})
    store(result, as_markdown(result), "partial-fc", out, say)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command.flags(
        "partial_fc",
        "A sample of the classes against all of them: two minutes on two cores.",
        "",
        "--classes 3000 --steps 20 --draws 5 --out results",
    )
    several = command.at_least(1)
    parser.add_argument("--classes", type=command.at_least(2), default=CLASSES, help="classes, C")
    parser.add_argument("--steps", type=several, default=200, help="steps of training")
    parser.add_argument("--draws", type=several, default=30, help="samples of the classes for one batch")
    given = parser.parse_args(arguments)
    with command.plain_errors(parser):
        result = run(given.out, command.say, classes=given.classes, steps=given.steps, draws=given.draws)
    print(as_markdown(result))


if __name__ == "__main__":
    main()
