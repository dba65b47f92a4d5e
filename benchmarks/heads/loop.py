"""One training run whose every step is the same work on the device, so that CUDA can replay it as a graph.

The recipe is the trainer's: network, head, AdamW groups, clipping, cosine rate with half an epoch of warm-up. Data,
order and augmentation live on the device, so a small network's step takes a millisecond, a tenth of what launching
its kernels one by one takes. Several runs are replayed in turn on streams of their own and share the GPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.heads.tasks import AUGMENT, Task, network
from hypermargin import MarginHead, create_head
from hypermargin.common.text import first_line
from hypermargin.data import Augment, Scaling
from hypermargin.data.augment import DRAWS
from hypermargin.evaluate import verification
from hypermargin.schedule import LambdaAnnealing
from hypermargin.training.optim import create_optimizer, rate

CLIP = 5.0
SMOOTH = 50  # steps the recorded loss and accuracy are averaged over


@dataclass(frozen=True)
class Spec:
    """All that decides a run."""

    study: str
    task: str
    stage: str  # "select" or "final"
    head: str
    set: dict[str, Any] = field(default_factory=dict)
    lam_floor: float | None = None  # λ annealed from 1000 to here, as A-Softmax does; None: the head's own `lam`
    lr: float = 0.002
    weight_decay: float = 0.05
    epochs: int = 30
    batch: int = 128
    seed: int = 0
    identities: int | None = None  # train on so many only
    width: int = 32
    dim: int = 128
    precision: str = "float32"  # or "bfloat16", by autocast

    @property
    def key(self) -> str:
        """A text that is the same for the same run."""
        return repr(sorted(asdict(self).items()))


class Run:
    """Network, head and optimiser of a spec, and the step that trains them."""

    def __init__(self, spec: Spec, task: Task) -> None:
        self.spec, self.task = spec, task
        device = task.train.images.device
        torch.manual_seed(spec.seed)
        self.network = self.make_network(images_shape(task.train.images)).to(device).train()
        overrides: dict[str, Any] = {"check": False, **spec.set}
        if spec.lam_floor is not None:
            overrides["schedule"] = LambdaAnnealing(floor=spec.lam_floor)
        self.head = self.make_head(overrides).to(device).train()
        self.optimizer = self.make_optimizer()
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.augment, self.scaling = Augment.parse(self.augmentation()), Scaling()

        # Everything a step needs, for all steps, looked up by the counter `at`.
        count, batch = len(task.train.labels), min(spec.batch, len(task.train.labels))
        each = count // batch
        self.total = spec.epochs * each
        own = torch.Generator().manual_seed(spec.seed)
        orders = [torch.randperm(count, generator=own)[: each * batch] for _ in range(spec.epochs)]
        self.order = torch.cat(orders).reshape(self.total, batch).to(device)
        self.draws = torch.rand(self.total, batch, DRAWS, generator=own).to(device)
        self.factors = torch.tensor(self.make_factors(each), device=device)
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        self.losses = torch.full((self.total,), math.nan, device=device)
        self.right = torch.zeros(self.total, device=device)
        for group in self.optimizer.param_groups:
            group["base"] = group["lr"]
            if device.type == "cuda":
                group["lr"], group["capturable"] = torch.tensor(float(group["lr"]), device=device), True
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        if self.stream is not None:  # what was made above must be there before the first step
            self.stream.wait_stream(torch.cuda.current_stream())
        self.graph: torch.cuda.CUDAGraph | None = None
        self.graphs, self.why_not = True, ""  # record a step; why that failed
        self.done = 0
        self.started = time.monotonic()

    def make_network(self, shape: tuple[int, ...]) -> torch.nn.Module:
        """The network of the task."""
        return network(self.spec.task, shape, self.spec.dim, self.spec.width)

    def augmentation(self) -> str:
        """What is done to training images, in the words of `hypermargin.data.Augment`."""
        return AUGMENT[self.spec.task]

    def make_optimizer(self) -> torch.optim.Optimizer:
        """AdamW."""
        lr, decay = self.spec.lr, self.spec.weight_decay
        return create_optimizer(self.network, self.head, name="adamw", lr=lr, weight_decay=decay)

    def make_factors(self, each: int) -> list[float]:
        """The learning rate of every step as a share of the spec's: half an epoch of warm-up, then a cosine."""
        warmup = round(0.5 * each)
        return [rate(k, total=self.total, warmup=warmup, schedule="cosine") for k in range(self.total)]

    def make_head(self, overrides: dict[str, Any]) -> MarginHead:
        """The head of the spec."""
        return create_head(self.spec.head, self.spec.dim, self.task.train.classes, **overrides)

    def _step(self) -> None:
        rows = self.order.index_select(0, self.at)[0]
        images = self.augment.apply(
            self.scaling(self.task.train.images.index_select(0, rows)), self.draws.index_select(0, self.at)[0]
        )
        labels = self.task.train.labels.index_select(0, rows)
        factor = self.factors.index_select(0, self.at)[0]
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].copy_(group["base"] * factor)
            else:
                group["lr"] = group["base"] * float(factor)
        self.optimizer.zero_grad(set_to_none=True)
        features = self._forward(images)
        loss = self.head(features, labels)
        loss.backward()
        self.norm = torch.nn.utils.clip_grad_norm_(self.parameters, CLIP)
        self.optimizer.step()
        with torch.no_grad():
            self.losses.index_copy_(0, self.at, loss.detach().reshape(1).float())
            self.watch(features.detach(), labels)
            self.at += 1

    def watch(self, features: Tensor, labels: Tensor) -> None:
        """What is noted of a step besides its loss: the accuracy."""
        right = (self.head.logits(features).argmax(1) == labels).float().mean()
        self.right.index_copy_(0, self.at, right.reshape(1))

    def _forward(self, images: Tensor) -> Tensor:
        found: Tensor
        if self.spec.precision == "float32":
            found = self.network(images)
            return found
        # A graph must hold the casts of the weights, so they may not be kept from one call to the next.
        with torch.autocast(images.device.type, getattr(torch, self.spec.precision), cache_enabled=False):
            found = self.network(images)
            return found

    def advance(self) -> None:
        """One step. On CUDA the first few run as they are, then one is captured, and the rest are its replays."""
        with torch.cuda.stream(self.stream) if self.stream else nullcontext():
            if self.graph is not None:
                self.graph.replay()
            elif self.stream is None or self.done < 3 or not self.graphs:
                self._step()
            else:
                self._record(self.stream)
                if self.graph is not None:
                    self.graph.replay()
                else:
                    self._step()
        self.done += 1

    def _record(self, stream: torch.cuda.Stream) -> None:
        """Capture a step. One that cannot be captured is launched kernel by kernel, ten times as slow."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._step()
        except RuntimeError as error:
            self.graphs, self.why_not = False, first_line(error)
        else:
            self.graph = graph

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Of images as they are, in evaluation mode."""
        self.network.eval()
        found = torch.cat([self._forward(self.scaling(part)) for part in torch.split(images, 2048)])
        self.network.train()
        return found.float()

    def result(self) -> dict[str, Any]:
        """Everything measured, once all steps are done."""
        if self.stream:
            self.stream.synchronize()
        spent = time.monotonic() - self.started
        losses = self.losses.cpu()
        curve = {
            "first_loss": float(losses[:SMOOTH].mean()),
            "last_loss": float(losses[-SMOOTH:].mean()),
            **self.watched(),
        }
        broken = not bool(losses.isfinite().all()) or not all(bool(p.isfinite().all()) for p in self.parameters)
        found = {"spec": asdict(self.spec), "seconds": spent, "steps": self.total, "broken": broken, **curve}
        return found if broken else {**found, "test": self.measure(), "train": self.measure_train()}

    def watched(self) -> dict[str, Any]:
        """What `watch` has noted, over the whole run."""
        right = self.right.cpu()
        return {
            "train_accuracy": float(right[-SMOOTH:].mean()),
            "steps_to_50": _first(right, 0.5),
            "steps_to_90": _first(right, 0.9),
        }

    @torch.no_grad()
    def measure(self, images: Tensor | None = None) -> dict[str, float]:
        """On the test part, or on other images of the same identities."""
        features = self.features(self.task.test.images if images is None else images)
        labels = self.task.test.labels
        if not self.task.open_set:
            self.head.eval()
            logits = self.head.logits(features)
            loss = F.cross_entropy(logits, labels)
            return {"accuracy": float((logits.argmax(1) == labels).float().mean()), "loss": float(loss)} | angles(
                features, labels
            )
        if float(features.std(0).max()) < 1e-6 or bool((features == 0).all(1).any()):
            return {"eer": 0.5, "tar": 0.0, "auc": 0.5, "rank1": 0.0}  # collapsed: no direction to compare
        pairs = verification(features, labels, far=(1e-1, 1e-2, 1e-3, 1e-4), block=4096)
        tar = {f"tar{f:g}": v for f, v in pairs.tar.items()}
        return {"eer": pairs.eer, "auc": pairs.auc, "threshold": pairs.threshold, **tar} | {
            "rank1": rank1(features, labels),
            **angles(features, labels),
        }

    @torch.no_grad()
    def measure_train(self) -> dict[str, float]:
        """Some training samples without augmentation: accuracy, angles, norms."""
        part = self.task.train
        some = torch.randperm(len(part.labels), generator=torch.Generator().manual_seed(0))[:8192]
        some = some.to(part.labels.device)
        features, labels = self.features(part.images[some]), part.labels[some]
        logits = self.head.logits(features)
        norms = features.norm(dim=1)
        scale = {"scale": float(self.head.current_scale())} if self.head.settings.unit_features else {}
        W = F.normalize(self.head.weight.float())
        cosines = F.normalize(features) @ W.T
        own = cosines.gather(1, labels[:, None])[:, 0]
        rival = cosines.scatter(1, labels[:, None], -2.0).amax(1)
        return {
            "accuracy": float((logits.argmax(1) == labels).float().mean()),
            "own_prototype": _degrees(own),
            "rival_prototype": _degrees(rival),
            "norm": float(norms.mean()),
            "norm_spread": float(norms.std() / norms.mean()),
            **scale,
        }


def images_shape(images: Tensor) -> tuple[int, ...]:
    """(channels, height, width) of images (N, H, W) or (N, H, W, 3)."""
    return (images.shape[3], *images.shape[1:3]) if images.dim() == 4 else (1, *images.shape[1:])


def _degrees(cosines: Tensor) -> float:
    return float(cosines.clamp(-1, 1).acos().mean()) * 180 / math.pi


def angles(features: Tensor, labels: Tensor) -> dict[str, float]:
    """Mean angle of a sample to its own center and to the nearest other one, in degrees."""
    x = F.normalize(features)
    centers = F.normalize(torch.zeros(int(labels.max()) + 1, x.shape[1], device=x.device).index_add_(0, labels, x))
    cosines = x @ centers.T
    own = cosines.gather(1, labels[:, None])[:, 0]
    other = cosines.scatter(1, labels[:, None], -2.0).amax(1)
    return {"intra": _degrees(own), "inter": _degrees(other)}


def rank1(features: Tensor, labels: Tensor) -> float:
    """Share of samples whose nearest other sample is of the same identity."""
    x = F.normalize(features)
    hits = 0
    for at in range(0, len(x), 4096):
        rows = torch.arange(at, min(at + 4096, len(x)), device=x.device)
        cosines = (x[rows] @ x.T).scatter_(1, rows[:, None], -2.0)
        hits += int((labels[cosines.argmax(1)] == labels[rows]).sum())
    return hits / len(x)


def _first(right: Tensor, level: float) -> int | None:
    """Steps until the mean accuracy of SMOOTH steps reaches a level."""
    reached = (right.unfold(0, min(SMOOTH, len(right)), 1).mean(1) >= level).nonzero()
    return int(reached[0]) + SMOOTH if len(reached) else None


def race(
    specs: Sequence[Spec], task_of: Callable[[Spec], Task], *, at_once: int, seconds: float = math.inf
) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Train all, some at once; each is handed out when it is done. After `seconds` no new one is begun."""
    end = time.monotonic() + seconds
    waiting, active = list(specs), list[Run]()
    while active or (waiting and time.monotonic() < end):
        while waiting and len(active) < at_once and time.monotonic() < end:
            spec = waiting.pop(0)
            active.append(Run(spec, task_of(spec)))
        for _ in range(100):
            for run in active:
                if run.done < run.total:
                    run.advance()
        for run in [run for run in active if run.done >= run.total]:
            active.remove(run)
            yield run, run.result()
