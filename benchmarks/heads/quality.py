"""What blur and noise do: to the length of a feature, to the gradient a sample gets, and to the errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.heads.loop import Run, Spec
from benchmarks.heads.plan import best
from hypermargin.evaluate import verification

HEADS = "softmax", "modified-softmax", "normface", "arcface"  # the first two see the length, the last two do not
BLURS = 0.0, 0.5, 1.0, 1.5, 2.0  # deviation of a Gaussian, in pixels
NOISES = 0.1, 0.2, 0.4  # deviation, as a share of the range


def plan(results: list[dict[str, Any]]) -> list[Spec]:
    """One run a head, at its best setting on Omniglot."""
    chosen = [best(results, "omniglot", head) for head in HEADS]
    return [replace(s, study="quality", stage="final", seed=7) for s in chosen if s]


def blurred(images: Tensor, deviation: float) -> Tensor:
    """(N, H, W) bytes, by a Gaussian; the edge is repeated."""
    if deviation == 0:
        return images
    reach = int(3 * deviation) + 1
    bell = torch.exp(-(torch.arange(-reach, reach + 1, device=images.device).float() ** 2) / (2 * deviation**2))
    bell /= bell.sum()
    x = F.pad(images.float()[:, None], (reach,) * 4, mode="replicate")
    x = F.conv2d(F.conv2d(x, bell.reshape(1, 1, 1, -1)), bell.reshape(1, 1, -1, 1))
    return x[:, 0].round().clamp(0, 255).to(torch.uint8)


def noisy(images: Tensor, deviation: float) -> Tensor:
    """(N, H, W) bytes with Gaussian noise."""
    own = torch.Generator(images.device).manual_seed(0)
    noise = 255 * deviation * torch.randn(images.shape, generator=own, device=images.device)
    return (images + noise).round().clamp(0, 255).to(torch.uint8)


def measure(run: Run) -> dict[str, Any]:
    """By kind and strength: norm and EER on test images, accuracy and gradient by feature on training images."""
    found = [{"kind": "blur", "strength": s, **_look(run, partial(blurred, deviation=s))} for s in BLURS]
    found += [{"kind": "noise", "strength": s, **_look(run, partial(noisy, deviation=s))} for s in NOISES]
    return {"quality": found}


def _look(run: Run, worsen: Callable[[Tensor], Tensor]) -> dict[str, float]:
    test, train = run.task.test, run.task.train
    features = run.features(worsen(test.images))
    norms = features.norm(dim=1)
    pairs = verification(features, test.labels, far=(1e-3,), block=4096)
    some = torch.randperm(len(train.labels), generator=torch.Generator().manual_seed(0))[:4096]
    some = some.to(train.labels.device)
    own = run.features(worsen(train.images[some])).requires_grad_()
    lengths = own.detach().norm(dim=1)
    run.head.reduction = "sum"
    loss = run.head.train()(own, train.labels[some])
    run.head.reduction = "mean"
    (slope,) = torch.autograd.grad(loss, own)
    right = (run.head.logits(own.detach()).argmax(1) == train.labels[some]).float().mean()
    return {
        "norm": float(norms.mean()),
        "eer": pairs.eer,
        "tar": pairs.tar[1e-3],
        "train_norm": float(lengths.mean()),
        "train_accuracy": float(right),
        "loss": float(loss.detach()) / len(some),
        "gradient": float(slope.norm(dim=1).mean()),
        # Turning is what a gradient does to the direction: the length of its part at right angles, times |x|.
        "turn": float((_across(slope, own.detach()) * lengths).mean()),
    }


def _across(slope: Tensor, x: Tensor) -> Tensor:
    direction = F.normalize(x)
    return (slope - (slope * direction).sum(1, keepdim=True) * direction).norm(dim=1)
