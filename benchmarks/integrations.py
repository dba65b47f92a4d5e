"""A training step of our heads inside other libraries, beside the losses those libraries have.

    python -m benchmarks.integrations --out benchmarks/results

What is not installed is left out and named; `make test-integrations` makes an environment that has all.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.measure import interleaved
from benchmarks.memory import peak_beyond
from benchmarks.record import Say, in_words, store, surroundings, threads_set
from hypermargin import create_head

LossOf = Callable[[Tensor, Tensor], Tensor]
STEM = "integrations-cpu"


@dataclass(frozen=True)
class Pair:
    """A loss of another library, and what takes its place."""

    name: str
    package: str
    theirs: str
    ours: str


@dataclass(frozen=True)
class Row:
    """One pair at one size: least times, the median ratio of processor times and their middle half, peak memory."""

    name: str
    package: str
    classes: int
    theirs_ms: float
    ours_ms: float
    ratio: float  # ours / theirs
    low: float
    high: float
    theirs_mb: float
    ours_mb: float
    error: float | None  # of the loss, relative; None where theirs is another loss


PAIRS = [
    Pair("pytorch-metric-learning, ArcFaceLoss", "pytorch-metric-learning", "pml_arcface", "our_pml_arcface"),
    Pair("pytorch-metric-learning, SubCenterArcFaceLoss", "pytorch-metric-learning", "pml_sub", "our_pml_sub"),
    Pair("transformers, AMSoftmaxLoss of x-vectors", "transformers", "xvector", "our_xvector"),
    Pair("SpeechBrain, its classifier, our Loss", "speechbrain", "speechbrain", "our_speechbrain_loss"),
    Pair("SpeechBrain, our Classifier and ClassifierLoss", "speechbrain", "speechbrain", "our_speechbrain"),
    Pair("Lightning, HeadMonitor at every step / without", "lightning", "bare", "watched"),
    Pair("torch, nn.Linear and cross-entropy (timm and others)", "torch", "linear", "our_arcface"),
]


def make(name: str, dim: int, classes: int) -> LossOf:
    """Make a loss of embeddings and labels, with its class weights."""
    torch.manual_seed(0)
    made: LossOf = globals()[f"_{name}"](dim, classes)
    return made


def _pml_arcface(dim: int, classes: int) -> LossOf:
    from pytorch_metric_learning.losses import ArcFaceLoss

    return ArcFaceLoss(classes, dim)  # type: ignore[no-any-return]


def _our_pml_arcface(dim: int, classes: int) -> LossOf:
    from hypermargin.integrations.metric_learning import ArcFaceLoss

    return ArcFaceLoss(classes, dim)


def _pml_sub(dim: int, classes: int) -> LossOf:
    from pytorch_metric_learning.losses import SubCenterArcFaceLoss

    return SubCenterArcFaceLoss(num_classes=classes, embedding_size=dim)  # type: ignore[no-any-return]


def _our_pml_sub(dim: int, classes: int) -> LossOf:
    from hypermargin.integrations.metric_learning import SubCenterArcFaceLoss

    return SubCenterArcFaceLoss(classes, dim)


def _xvector(dim: int, classes: int) -> LossOf:
    from transformers.models.wav2vec2.modeling_wav2vec2 import AMSoftmaxLoss

    return AMSoftmaxLoss(dim, classes)  # type: ignore[no-any-return]


def _our_xvector(dim: int, classes: int) -> LossOf:
    head = create_head("am-softmax", dim, classes, scale=30.0, m=0.4)
    with torch.no_grad():
        torch.manual_seed(0)
        head.weight.copy_(torch.randn(dim, classes).T)
    return head


def _speechbrain(dim: int, classes: int) -> LossOf:
    from speechbrain.lobes.models.ECAPA_TDNN import Classifier
    from speechbrain.nnet.losses import AdditiveAngularMargin, LogSoftmaxWrapper

    classifier = Classifier(dim, out_neurons=classes)
    cost = LogSoftmaxWrapper(AdditiveAngularMargin(margin=0.2, scale=30))
    return lambda x, y: cost(classifier(x[:, None]), y[:, None])


def _our_speechbrain_loss(dim: int, classes: int) -> LossOf:
    from speechbrain.lobes.models.ECAPA_TDNN import Classifier

    from hypermargin.integrations.speaker import Loss

    classifier, cost = Classifier(dim, out_neurons=classes), Loss("arcface", 30.0, m=0.2, beyond="linear")
    return lambda x, y: cost(classifier(x[:, None]), y[:, None])


def _our_speechbrain(dim: int, classes: int) -> LossOf:
    from hypermargin.integrations.speaker import Classifier, ClassifierLoss

    classifier = Classifier(dim, classes, "arcface", m=0.2, scale=30.0, beyond="linear")
    torch.manual_seed(0)
    nn.init.xavier_uniform_(classifier.head.weight)
    cost = ClassifierLoss(classifier)
    return lambda x, y: cost(classifier(x[:, None]), y[:, None])


def _our_arcface(dim: int, classes: int) -> LossOf:
    return create_head("arcface", dim, classes)


_bare = _our_arcface


def _watched(dim: int, classes: int) -> LossOf:
    from hypermargin.training import watch

    head = create_head("arcface", dim, classes)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        watch.numbers(watch.look(head, x, y))
        return head(x, y)  # type: ignore[no-any-return]

    return loss


def _linear(dim: int, classes: int) -> LossOf:
    layer = nn.Linear(dim, classes)
    return lambda x, y: nn.functional.cross_entropy(layer(x), y)


def stepper(name: str, rows: int, dim: int, classes: int) -> tuple[Callable[[], None], list[float]]:
    """Return a whole step, loss and gradients of embeddings and weights, and the list of its losses."""
    loss_of, losses = make(name, dim, classes), list[float]()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, dim, generator=generator).requires_grad_()
    y = torch.randint(classes, (rows,), generator=generator)
    cells = [loss_of, *(cell.cell_contents for cell in getattr(loss_of, "__closure__", None) or ())]
    modules = [getattr(each, "classifier", each) for each in cells]
    weights = [p for each in modules if isinstance(each, nn.Module) for p in each.parameters()]

    def step() -> None:
        for tensor in (x, *weights):
            tensor.grad = None
        value = loss_of(x, y)
        value.backward()  # type: ignore[no-untyped-call]
        losses.append(float(value.detach()))

    assert weights, name
    return step, losses


def with_processor_times(step: Callable[[], None]) -> tuple[Callable[[], None], list[float]]:
    """Return the step and the processor seconds of its calls, which other work on the machine does not count in."""
    times: list[float] = []

    def timed() -> None:
        start = time.process_time()
        step()
        times.append(time.process_time() - start)

    return timed, times


def peak_memory(name: str, rows: int, dim: int, classes: int, threads: int) -> int:
    """Return the most memory alive during a step beyond what was alive before it, gradients included."""
    torch.set_num_threads(threads)
    step, _ = stepper(name, rows, dim, classes)
    step()  # touches
    gradients = 4 * dim * classes * (3 if "sub" in name else 1)  # those of the first step, which were there before
    return peak_beyond(step) + gradients


FRESH = multiprocessing.get_context("forkserver")  # the libraries are imported once, and every child begins there
FRESH.set_forkserver_preload(
    ["benchmarks.measure", "pytorch_metric_learning.losses", "speechbrain.lobes.models.ECAPA_TDNN",
     "speechbrain.nnet.losses", "transformers.models.wav2vec2.modeling_wav2vec2"]
)  # fmt: skip


def peak_of(name: str, rows: int, dim: int, classes: int, threads: int) -> int:
    """Return `peak_memory` of a process in which nothing ran before."""
    with FRESH.Pool(1) as pool:
        return pool.apply(peak_memory, (name, rows, dim, classes, threads))


def measured(pair: Pair, rows: int, dim: int, classes: int, rounds: int, threads: int) -> Row:
    """Time both in turn, and the memory of each in a fresh process."""
    theirs, their_losses = stepper(pair.theirs, rows, dim, classes)
    ours, our_losses = stepper(pair.ours, rows, dim, classes)
    (theirs, their_work), (ours, our_work) = with_processor_times(theirs), with_processor_times(ours)
    times = interleaved({"theirs": theirs, "ours": ours}, rounds, "cpu")
    ratios = [o / t for o, t in zip(our_work[1:], their_work[1:], strict=True)]  # the first is for first touches
    quarters = statistics.quantiles(ratios, n=4)
    error = abs(our_losses[0] - their_losses[0]) / abs(their_losses[0])
    del theirs, ours
    peaks = [peak_of(name, rows, dim, classes, threads) for name in (pair.theirs, pair.ours)]
    return Row(
        pair.name, f"{pair.package} {version(pair.package)}", classes, 1e3 * min(times["theirs"]),
        1e3 * min(times["ours"]), statistics.median(ratios), quarters[0], quarters[2], peaks[0] / 1e6,
        peaks[1] / 1e6, None if pair.package == "torch" else error,
    )  # fmt: skip


def table(rows: list[Row]) -> str:
    """Return the rows as Markdown."""
    lines = [
        "| beside | classes | theirs, ms | ours, ms | ours/theirs (middle half) | theirs, MB | ours, MB | "
        "loss off by |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for r in rows:
        error = "another loss" if r.error is None else f"{r.error:.0e}"
        lines.append(
            f"| {r.name} | {r.classes:,} | {r.theirs_ms:.1f} | {r.ours_ms:.1f} | **{r.ratio:.2f}** ({r.low:.2f} to "
            f"{r.high:.2f}) | {r.theirs_mb:,.0f} | {r.ours_mb:,.0f} | {error} |"
        )
    return "\n".join(lines)


def run(
    rows: int = 128, dim: int = 256, classes: tuple[int, ...] = (1000, 100_000), rounds: int = 7, threads: int = 2,
    out: Path | None = None, say: Say = print,
) -> list[Row]:  # fmt: skip
    """Measure all pairs whose package is installed, print the table and store it."""
    found: list[Row] = []
    with threads_set(threads):
        where = surroundings() | {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "not set")}
        for pair in PAIRS:
            try:
                version(pair.package)
            except importlib.metadata.PackageNotFoundError:
                say(f"left out, {pair.package} is not installed: {pair.name}")
                continue
            for each in classes:
                found.append(measured(pair, rows, dim, each, rounds if each > 10_000 else 10 * rounds, threads))
                say(table(found[-1:]).splitlines()[-1])
                written(found, where, rows, dim, out)  # as far as it is, since all of it takes long
    return found


def written(found: list[Row], where: dict[str, str], rows: int, dim: int, out: Path | None) -> None:
    """Store the rows, with the versions of the packages."""
    versions = ", ".join(dict.fromkeys(row.package for row in found))
    text = (
        f"# Heads inside other libraries, {rows} rows of {dim} dimensions, {where['device']}\n\n"
        f"{in_words(where)} {versions}.\n\n"
        "One step: the loss, and its gradients by embeddings and class weights, in float32. Both step in turn.\n"
        "Milliseconds are the least that passed. Ratios are of processor time, in which other work on the machine\n"
        "does not count: the median over the rounds, and their middle half. Memory is the peak within a step\n"
        "beyond what was there before, gradients included, in a process of its own.\n\n"
    )
    result = {"environment": where, "rows": rows, "dim": dim, "pairs": [asdict(row) for row in found]}
    store(result, f"{text}{table(found)}\n", STEM, out, lambda _: None)


def main() -> None:
    """Read the flags, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--classes", type=int, nargs="+", default=[1000, 100_000])
    parser.add_argument("--rounds", type=int, default=7, help="at more than 10,000 classes; else ten times as many")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder for JSON and Markdown")
    flags = parser.parse_args()
    run(flags.rows, flags.dim, tuple(flags.classes), flags.rounds, flags.threads, flags.out)


if __name__ == "__main__":
    main()
