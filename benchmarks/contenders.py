"""One training step (loss, gradient by features, gradient by weight) of every implementation beside ours.

Each is given the same features, class weights and labels, and does ArcFace s = 64, m = 0.5; those marked so cannot
do a margin and compute the plain normalised loss. A peer that is not installed is listed as absent, not dropped.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hypermargin import margin_softmax
from hypermargin.backends.fused import Triton, why_not
from hypermargin.margins import ArcFace, SphereFace

SCALE, M = 64.0, 0.5


@dataclass
class Problem:
    """A batch and the class weights."""

    rows: int
    classes: int
    dim: int
    device: str = "cpu"
    precision: str = "float32"
    dtype: torch.dtype = torch.float32
    x: Tensor = field(init=False)
    W: Tensor = field(init=False)
    y: Tensor = field(init=False)

    def __post_init__(self) -> None:
        rng = torch.Generator(device=self.device).manual_seed(0)
        options: dict[str, Any] = {"generator": rng, "device": self.device, "dtype": self.dtype}
        self.x = torch.randn(self.rows, self.dim, **options).requires_grad_()
        self.W = (torch.randn(self.classes, self.dim, **options) * self.dim**-0.5).requires_grad_()
        self.y = torch.randint(0, self.classes, (self.rows,), generator=rng, device=self.device)

    def autocast(self) -> torch.autocast:
        """The precision that was asked for."""
        reduced = self.precision != "float32"
        return torch.autocast(self.device, getattr(torch, self.precision) if reduced else None, enabled=reduced)


Loss = Callable[[], Tensor]


@dataclass(frozen=True)
class Contender:
    """A row of the table."""

    name: str
    build: Callable[[Problem], Loss]  # a function that computes the loss; its gradients go to p.x and p.W
    package: str = ""  # to be imported
    cuda: bool = False  # needs a GPU
    margin: bool = True
    torch_name: str = ""  # torch.nn.functional.<this> must exist
    fused: bool = False  # needs Triton and a GPU that it serves
    graph: bool = False  # the whole step is replayed as a CUDA graph

    def absent(self, device: str) -> str:
        """Why it cannot run here; empty if it can."""
        reason = why_not(torch.device(device)) if self.fused else ""
        if reason:
            return str(reason)
        if self.cuda and device != "cuda":
            return "needs a GPU"
        if self.package and importlib.util.find_spec(self.package) is None:
            return "not installed"
        if self.torch_name and not hasattr(F, self.torch_name):
            return f"not in torch {torch.__version__}"
        return ""


def _ours(backend: str) -> Callable[[Problem], Loss]:
    def build(p: Problem) -> Loss:
        return lambda: margin_softmax(p.x, p.W, p.y, ArcFace(M), scale=SCALE, backend=backend, check=False)

    return build


def fused(settings: Triton) -> Callable[[Problem], Loss]:
    """Ours by the fused backend."""

    def build(p: Problem) -> Loss:
        return lambda: margin_softmax(p.x, p.W, p.y, ArcFace(M), scale=SCALE, backend=settings, check=False)

    return build


def _compiled_whole(build: Callable[[Problem], Loss]) -> Callable[[Problem], Loss]:
    # Each size is compiled for itself: what is kept depends on it, and a graph has one size anyway.
    return lambda p: torch.compile(build(p), fullgraph=True, dynamic=False)


def _ours_free(p: Problem) -> Loss:
    def loss() -> Tensor:
        return margin_softmax(
            p.x,
            p.W,
            p.y,
            SphereFace(4.0),
            lam=5.0,
            unit_features=False,
            unit_weight=False,
            backend="chunked",
            check=False,
        )

    return loss


def textbook(x: Tensor, W: Tensor, y: Tensor) -> Tensor:
    """The forty lines people copy, at their best: no one-hot, margin on the gathered target."""
    cosines = F.linear(F.normalize(x), F.normalize(W))
    target = cosines.gather(1, y[:, None])
    sine = (1 - target * target).clamp(min=0).sqrt()
    margined = target * math.cos(M) - sine * math.sin(M)
    margined = torch.where(target > math.cos(math.pi - M), margined, target - M * math.sin(M))
    return F.cross_entropy(SCALE * cosines.scatter(1, y[:, None], margined.to(cosines.dtype)), y)


def _textbook(p: Problem) -> Loss:
    return lambda: textbook(p.x, p.W, p.y)


def _compiled(build: Callable[[Problem], Loss]) -> Callable[[Problem], Loss]:
    return lambda p: torch.compile(build(p))


def _metric_learning(p: Problem) -> Loss:
    from pytorch_metric_learning.losses import ArcFaceLoss

    loss = ArcFaceLoss(p.classes, p.dim, margin=math.degrees(M), scale=SCALE).to(p.device)
    loss.W = torch.nn.Parameter(p.W.detach().T.contiguous())
    p.W = loss.W  # its own, transposed: the gradient goes there
    return lambda: loss(p.x, p.y)


def _partial_fc(rate: float) -> Callable[[Problem], Loss]:
    """The formula of Partial FC (An et al. 2022, arXiv:2203.15565): the batch's classes and random others."""

    def build(p: Problem) -> Loss:
        keep = int(rate * p.classes)

        def loss() -> Tensor:
            if rate >= 1:
                return textbook(p.x, p.W, p.y)
            score = torch.rand(p.classes, device=p.device).index_fill(0, p.y, 2.0)
            index = score.topk(max(keep, p.rows)).indices.sort().values
            return textbook(p.x, p.W[index], torch.searchsorted(index, p.y))

        return loss

    return build


def _normalised(p: Problem) -> tuple[Tensor, Tensor]:
    return SCALE * F.normalize(p.x), F.normalize(p.W)


def _cut_cross_entropy(p: Problem) -> Loss:
    from cut_cross_entropy import linear_cross_entropy

    def loss() -> Tensor:
        e, c = _normalised(p)
        result: Tensor = linear_cross_entropy(e.bfloat16(), c.bfloat16(), p.y)
        return result

    return loss


def _liger(p: Problem) -> Loss:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    module = LigerFusedLinearCrossEntropyLoss()

    def loss() -> Tensor:
        e, c = _normalised(p)
        kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else p.dtype
        result: Tensor = module(c.to(kind), e.to(kind), p.y)
        return result

    return loss


def _liger_cute(p: Problem) -> Loss:
    """Liger's kernels in CuTe DSL for Hopper, which are in the released liger-kernel 0.8.5.

    Of its two this is the one that takes any number of classes: the other needs a multiple of 256. They need
    nvidia-cutlass-dsl 4.6 and apache-tvm-ffi beside it; the former's compiler is a wheel of 88 MB.
    """
    from liger_kernel.ops.cutedsl.ops.fused_scaled_cross_entropy_sm90 import (
        LigerFusedScaledCrossEntropySM90Function,
    )

    def loss() -> Tensor:
        e, c = _normalised(p)
        each: Tensor = LigerFusedScaledCrossEntropySM90Function.apply(e.bfloat16(), c.bfloat16(), p.y)
        return each.mean()

    return loss


def _torch_linear_cross_entropy(p: Problem) -> Loss:
    def loss() -> Tensor:
        e, c = _normalised(p)
        result: Tensor = F.linear_cross_entropy(e, c, p.y)
        return result

    return loss


def floor(p: Problem) -> Callable[[], None]:
    """The three matrix products that every exact step needs, and nothing else."""
    kind = p.dtype if p.precision == "float32" else getattr(torch, p.precision)
    x, W = p.x.detach().to(kind), p.W.detach().to(kind)

    def run() -> None:
        z = x @ W.T
        z @ W
        z.T @ x

    return run


_KEPT, _WITHIN = fused(Triton(memory=16384)), fused(Triton(memory=480))
_HALF = fused(Triton(memory=0, operands="float16"))
_TRITON: dict[str, Any] = {"cuda": True, "fused": True}
CONTENDERS = [
    Contender("hypermargin triton, exp z kept", _KEPT, **_TRITON),
    Contender("hypermargin triton, within 480 MB", _WITHIN, **_TRITON),
    Contender("hypermargin triton, float16 operands", _HALF, **_TRITON),
    Contender("hypermargin triton, exp z kept, as a CUDA graph", _KEPT, graph=True, **_TRITON),
    Contender("hypermargin triton, within 480 MB, as a CUDA graph", _WITHIN, graph=True, **_TRITON),
    Contender(
        "hypermargin triton, exp z kept, torch.compile and CUDA graph",
        _compiled_whole(_KEPT),
        graph=True,
        **_TRITON,
    ),
    Contender("hypermargin chunked", _ours("chunked")),
    Contender("hypermargin dense", _ours("dense")),
    Contender("torch.compile of hypermargin dense", _compiled(_ours("dense"))),
    Contender("textbook, eager", _textbook),
    Contender("torch.compile of the textbook", _compiled(_textbook)),
    Contender("pytorch-metric-learning", _metric_learning, package="pytorch_metric_learning"),
    Contender("Partial FC formula, all classes", _partial_fc(1.0)),
    Contender("Partial FC formula, 10 % of the classes", _partial_fc(0.1)),
    Contender("cut-cross-entropy (no margin)", _cut_cross_entropy, "cut_cross_entropy", cuda=True, margin=False),
    Contender("liger (no margin)", _liger, "liger_kernel", cuda=True, margin=False),
    Contender("liger, CuTe (no margin)", _liger_cute, "cutlass", cuda=True, margin=False),
    Contender(
        "torch linear_cross_entropy (no margin)",
        _torch_linear_cross_entropy,
        margin=False,
        torch_name="linear_cross_entropy",
    ),
    Contender("hypermargin chunked, free norms (L-Softmax)", _ours_free, margin=False),
]
