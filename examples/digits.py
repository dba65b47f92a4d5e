"""Train every classic head of the family on scikit-learn's digits and print what each did to the angles.

1,797 images of 8×8 pixels, ten classes, 30 % held out. One small network for all, equal steps and seeds.
The normalised heads take s and m from the advisor: the papers' s = 30 to 64 is for 10,000 classes and more.
"""

from __future__ import annotations

import argparse
import statistics

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import hypermargin as hm
from hypermargin.family import FAMILY

DIM, BATCH = 16, 128
NOTES = (
    "own: mean angle of a test image to its own class weight; rival: to the nearest other one; gap: difference.",
    "am-softmax and cosface differ only in the paper's s, and both take the advisor's here.",
    "A margin buys gap; ten easy classes leave little accuracy to buy.",
)
# The classic ones; sphereface is the same as a-softmax.
HEADS = [name for name, recipe in FAMILY.items() if recipe.group == "classic" and name != "sphereface"]


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pixels in [−1, 1] and labels, for training and for testing."""
    pixels, labels = load_digits(return_X_y=True)
    split = train_test_split(pixels / 8 - 1, labels, test_size=0.3, stratify=labels, random_state=0)
    x, x_test, y, y_test = (torch.as_tensor(part) for part in split)
    return x.float(), y, x_test.float(), y_test


def make_head(name: str) -> hm.MarginHead:
    """Papers' heads, with the advisor's s (and its m, where ten classes leave no room for the paper's)."""
    if name in ("a-softmax", "l-softmax"):  # the papers anneal λ over thousands of steps; here 40 must do
        return hm.create_head(
            name, DIM, 10, schedule=hm.schedule.LambdaAnnealing(base=1000.0, gamma=5.0, floor=5.0)
        )
    head = hm.create_head(name, DIM, 10)
    if head.settings.unit_features:
        advice = hm.advise.recommend(10, DIM, margin=head.margin)
        head = hm.create_head(name, DIM, 10, margin=advice.margin, scale=advice.s)
    return head


def train(name: str, seed: int, epochs: int, x: Tensor, y: Tensor) -> tuple[nn.Module, hm.MarginHead]:
    """AdamW at one learning rate, nothing tuned to a head."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, DIM))
    head = make_head(name)
    optimizer = torch.optim.AdamW([*network.parameters(), *head.parameters()], lr=3e-3, weight_decay=0.05)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            head(network(x[rows]), y[rows]).backward()
            optimizer.step()
    return network.eval(), head.eval()


@torch.inference_mode()
def measure(network: nn.Module, head: hm.MarginHead, x: Tensor, y: Tensor) -> tuple[float, float, float, float]:
    """Accuracy in %, then degrees: to the own class, to the nearest other class, and the gap between them."""
    features = network(x)
    accuracy = 100 * (head.logits(features).argmax(1) == y).float().mean().item()
    angles = (F.normalize(features) @ F.normalize(head.weight).T).clamp(-1, 1).acos().rad2deg()
    own = angles.gather(1, y[:, None]).mean().item()
    rival = angles.scatter(1, y[:, None], 180.0).amin(1).mean().item()
    return accuracy, own, rival, rival - own


def row_of(name: str, head: hm.MarginHead, results: list[tuple[float, ...]]) -> list[str]:
    """A line of the table: settings, then means over the seeds."""
    m = head.margin.m
    numbers = "–" if m is None else ", ".join(f"{v:g}" for v in (m if isinstance(m, tuple) else (m,)))
    scale = f"{head.current_scale().item():.1f}" if head.settings.unit_features else "–"
    accuracy, own, rival, gap = (statistics.mean(column) for column in zip(*results, strict=True))
    spread = statistics.stdev(r[0] for r in results) if len(results) > 1 else 0.0
    return [name, scale, numbers, f"{accuracy:.1f} ± {spread:.1f}", f"{own:.1f}", f"{rival:.1f}", f"{gap:.1f}"]


def main() -> None:
    """Run all heads over all seeds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)  # the matrices are too small to share out
    x, y, x_test, y_test = load()
    console = Console()
    table = Table(title=f"digits, {options.epochs} epochs, test set, mean of {options.seeds} seeds")
    table.add_column("head", no_wrap=True)
    for column in ("s", "m", "accuracy %", "own °", "rival °", "gap °"):
        table.add_column(column, justify="right", no_wrap=True)
    bar = (TextColumn("{task.description:<18}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*bar, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(HEADS) * options.seeds)
        for name in HEADS:
            results = []
            for seed in range(options.seeds):
                progress.update(task, description=name)
                network, head = train(name, seed, options.epochs, x, y)
                results.append(measure(network, head, x_test, y_test))
                progress.advance(task)
            if not console.is_terminal:  # no bar there: a line a head
                console.print(f"trained {name}", soft_wrap=True)
            table.add_row(*row_of(name, head, results))
    console.print(table)
    for line in NOTES:
        console.print(line, soft_wrap=True)


if __name__ == "__main__":
    main()
