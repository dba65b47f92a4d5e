"""Inputs on which margin losses go wrong: parallel, zero and repeated rows, knots, few classes, odd lengths."""

from __future__ import annotations

import math

import torch

from hypermargin import margins
from hypermargin.recipes import FAMILY

D = 6


def needed(name, classes):
    """What a head of that name must be told beside its size: how frequent its classes are, if it goes by that."""
    by_counts = name in FAMILY and FAMILY[name].by_counts
    return {"counts": [3 + 5 * (k % 4) for k in range(classes)]} if by_counts else {}


# A part of the loss of the others counts as constant, so that no fit is a minimum.
FITTED = [name for name in margins.names() if "finite slope" not in margins.get(name)().breaks]

# Target and rivals of these do not count as cosines, so the advisor's rule for s is not theirs.
UNADVISED = "circle", "sface", "p2sgrad"


def per_class(columns, head, scale=1.0):
    """One column per class from one per row of head.weight, cosines times `scale`: what its centers make of it."""
    columns, centers = columns.unflatten(1, (head.classes, -1)), head.settings.centers
    if centers.pool != "soft":
        return columns.amax(2)
    return (columns * (columns / (scale * centers.gamma)).softmax(2)).sum(2)


def _turned(w, towards, theta):
    """A vector at exactly the wanted angle from w, in the plane of w and `towards`."""
    u = w / w.norm()
    t = towards - u * (u @ towards)
    return math.cos(theta) * u + math.sin(theta) * t / t.norm()


def cases(dtype=torch.float64):
    """name → (features, weight, labels)."""
    rng = torch.Generator().manual_seed(7)

    def normal(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    x, W, y = normal(9, D), normal(5, D), torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3])
    out = {"random": (x, W, y)}
    parallel = torch.where((torch.arange(9) % 2 == 0)[:, None], 2.0, -4.0) * W[y]  # cos exactly ±1
    out["parallel and opposite"] = (parallel, W, y)
    angles = [math.pi / 4, math.pi / 2, 3 * math.pi / 4, math.pi / 1.7, math.pi / 3, 2 * math.pi / 3]
    angles += [math.pi - 0.5 - 1e-7, math.pi - 0.3, 1e-4]  # knots of m = 4, 1.7, 3; just short of π − m; nearly 0
    out["knots"] = (torch.stack([_turned(W[c], normal(D), a) for c, a in zip(y, angles, strict=True)]), W, y)
    zero_x, zero_W = x.clone(), W.clone()
    zero_x[::3] = 0.0
    zero_W[[1, 4]] = 0.0
    out["zero rows"] = (zero_x, zero_W, y)
    twins = W.clone()
    twins[3], twins[4] = twins[1], 2 * twins[0]
    out["repeated classes"] = (x, twins, y)
    out["one class"] = (x, W[:1], torch.zeros(9, dtype=torch.long))
    out["two classes"] = (x, W[:2], y % 2)
    out["no rows"] = (x[:0], W, y[:0])
    out["one row"] = (x[:1], W, y[:1])
    for name, nx, nw in (("tiny", 1e-20, 1e-20), ("huge", 1e20, 1e20), ("tiny and huge", 1e-20, 1e20)):
        out[f"{name} norms"] = (nx * x, nw * W, y)
    return {name: (a.to(dtype), b.to(dtype), c) for name, (a, b, c) in out.items()}
