"""A run of the study, and what it is measured by: pairs in unseen and in seen typefaces, angles, gradients."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.heads.loop import Run, angles, rank1
from benchmarks.many.data import Data, Many
from benchmarks.many.ladder import NAMES, Rung
from benchmarks.many.plan import Spec
from hypermargin import MarginHead, create_head
from hypermargin.evaluate import verification
from hypermargin.recipes import FAMILY
from hypermargin.training import create_model
from hypermargin.training.optim import create_optimizer

__all__ = ["Data", "StudyRun"]

FAR = 1e-3, 1e-4, 1e-5, 1e-6
LEAST_FALSE = 10  # a FAR counts if at least so many impostor pairs are beyond it
CONFIDENCE = 0.95  # of the intervals over identities
SAMPLE = 8192  # training images that are looked at
MOST_SEEN = 20_000  # images in seen typefaces: their pairs grow with the square
GROUPS = {"few": (1, 3), "some": (4, 8), "many": (9, 20)}


class StudyRun(Run):
    """A run on drawn characters."""

    spec: Spec
    task: Many

    def __init__(self, spec: Spec, task: Many) -> None:
        batch = min(spec.batch, len(task.train.labels))
        each = len(task.train.labels) // batch
        epochs = max(spec.epochs, math.ceil(spec.least_steps / each))
        # The spec that is stored says what was asked for, `epochs` of the result what that came to.
        self.epochs = epochs
        super().__init__(replace(spec, epochs=epochs), task)
        self.spec = spec
        self.norms = torch.zeros(self.total, device=task.train.images.device)

    def make_network(self, shape: tuple[int, ...]) -> nn.Module:
        """A residual network, or a small one for trying things out."""
        options = {"width": self.spec.width} if self.spec.model == "lenet++" else {}
        return create_model(self.spec.model, shape, self.spec.dim, **options)

    def augmentation(self) -> str:
        """Turned, sheared, zoomed and moved."""
        return "affine"

    def make_optimizer(self) -> torch.optim.Optimizer:
        """AdamW, with a weight decay of their own for the class weights."""
        s = self.spec
        return create_optimizer(
            self.network,
            self.head,
            name="adamw",
            lr=s.lr,
            weight_decay=s.weight_decay,
            head_weight_decay=s.head_decay,
        )

    def make_head(self, overrides: dict[str, Any]) -> MarginHead:
        """The head: a rung of the ladder, or one of the family, with the counts of the classes if it wants them.

        Dense for all: every head has it, and nothing is compiled.
        """
        name, dim, classes = self.spec.head, self.spec.dim, int(self.spec.identities or 0)
        if name in NAMES:
            return Rung(name, dim, classes, **overrides)
        name = name.removesuffix("-learned")
        if FAMILY[name].by_counts is not None:
            overrides["counts"] = torch.bincount(self.task.train.labels, minlength=classes).cpu()
        return create_head(name, dim, classes, backend="dense", **overrides)

    def watch(self, features: Tensor, labels: Tensor) -> None:
        """Note the norm of the whole gradient, before clipping."""
        self.norms.index_copy_(0, self.at, self.norm.detach().reshape(1).float())

    def watched(self) -> dict[str, Any]:
        """The gradient's norm at the start, at the end and at its largest; loss at tenths of the way."""
        norms, losses = self.norms.cpu(), self.losses.cpu()
        few = max(1, self.total // 20)
        return {
            "epochs": self.epochs,
            "gradient": [float(norms[:few].mean()), float(norms[-few:].mean()), float(norms.max())],
            "clipped": float((norms > 5.0).float().mean()),
            "losses": [float(part.mean()) for part in torch.chunk(losses, 10)],
        }

    @torch.no_grad()
    def measure(self, images: Tensor | None = None) -> dict[str, Any]:
        """Pairs of the test's identities in unseen typefaces; the same of seen ones as "seen"."""
        final = self.spec.stage == "final"
        found = self.verify(self.task.test.images if images is None else images, self.task.test.labels, final)
        if final and len(self.task.seen.labels):
            rows = torch.randperm(len(self.task.seen.labels), generator=torch.Generator().manual_seed(0))[
                :MOST_SEEN
            ]
            rows = rows.to(self.task.seen.labels.device)
            found["seen"] = self.verify(self.task.seen.images[rows], self.task.seen.labels[rows], False)
        return found

    def verify(self, images: Tensor, labels: Tensor, sure: bool) -> dict[str, Any]:
        """EER, TAR at FARs that enough pairs support, rank-1, angles."""
        features = self.features(images)
        if float(features.std(0).max()) < 1e-6 or bool((features == 0).all(1).any()):
            return {"eer": 0.5, "rank1": 0.0, "collapsed": True, **{f"tar{f:g}": 0.0 for f in FAR}}
        counts = torch.bincount(labels).double()
        impostors = (len(labels) ** 2 - float(counts.square().sum())) / 2
        far = [f for f in FAR if f * impostors >= LEAST_FALSE]
        pairs = verification(features, labels, far=far, confidence=CONFIDENCE if sure else None, block=4096)
        found: dict[str, Any] = {"eer": pairs.eer, **{f"tar{f:g}": v for f, v in pairs.tar.items()}}
        if pairs.intervals is not None:
            names = {name: name if isinstance(name, str) else f"tar{name:g}" for name in pairs.intervals}
            found["intervals"] = {names[name]: list(span) for name, span in pairs.intervals.items()}
        return {**found, "rank1": rank1(features, labels), **angles(features, labels), "images": len(labels)}

    @torch.no_grad()
    def measure_train(self) -> dict[str, float]:
        """Angles within and between training identities, as samples see them, and what a long tail left out."""
        part = self.task.train
        rows = torch.randperm(len(part.labels), generator=torch.Generator().manual_seed(0))[:SAMPLE]
        rows = rows.to(part.labels.device)
        features, labels = self.features(part.images[rows]), part.labels[rows]
        found = {"norm": float(features.norm(dim=1).mean()), "accuracy": self.share_right(features, labels)}
        w = nn.functional.normalize(self.head.weight.float())
        own, rival = list[Tensor](), list[Tensor]()
        for at in range(0, len(rows), 1024):
            cosines = nn.functional.normalize(features[at : at + 1024]) @ w.T
            y = labels[at : at + 1024, None]
            own.append(cosines.gather(1, y)[:, 0])
            rival.append(cosines.scatter(1, y, -2.0).amax(1))
        for name, cosine in (("own_prototype", torch.cat(own)), ("rival_prototype", torch.cat(rival))):
            found[name] = float(cosine.clamp(-1, 1).acos().mean()) * 180 / math.pi
        between = torch.cat([_nearest(w, at) for at in range(0, len(w), 1024)])
        found["nearest_prototype"] = float(between.clamp(-1, 1).acos().mean()) * 180 / math.pi
        if self.head.settings.unit_features:
            found["scale"] = float(self.head.current_scale())
        if len(self.task.left_out.labels):
            counts = torch.bincount(part.labels, minlength=int(self.spec.identities or 0))
            left = self.features(self.task.left_out.images)
            for name, (least, most) in GROUPS.items():
                mine = (counts[self.task.left_out.labels] >= least) & (counts[self.task.left_out.labels] <= most)
                if bool(mine.any()):
                    found[f"left_out_{name}"] = self.share_right(left[mine], self.task.left_out.labels[mine])
        return found

    def share_right(self, features: Tensor, labels: Tensor) -> float:
        """The share of features whose highest logit, without margin or offset, is that of their class."""
        parts = range(0, len(features), 1024)
        right = [
            (self.head.logits(features[at : at + 1024]).argmax(1) == labels[at : at + 1024]).float() for at in parts
        ]
        return float(torch.cat(right).mean())


def _nearest(w: Tensor, at: int) -> Tensor:
    """The highest cosine of some class vectors with others."""
    cosines = w[at : at + 1024] @ w.T
    rows = torch.arange(len(cosines), device=w.device)
    cosines[rows, rows + at] = -2.0
    return cosines.amax(1)
