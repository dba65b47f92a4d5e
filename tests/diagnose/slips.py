"""Slips in losses of one's own, and what is around a loss: a weight, a focal loss, smoothed labels."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from hypermargin.margins import ArcFace, Circle, CosFace
from tests.diagnose.case import Case
from tests.diagnose.published import CLASSES, DIM, Rows, own, put

S, M = 30.0, 0.35


def cosface(cosines, labels, m=M):
    return S * put(cosines, labels, own(cosines, labels) - m)


class Slip(Rows):
    """CosFace of features by a function of its cosines and labels."""

    def __init__(self, of):
        super().__init__(S, M)
        self.of = of

    def forward(self, x, y):
        return self.of(self.cosines(x), y)


def softmax_twice(cosines, labels):
    return F.cross_entropy(cosface(cosines, labels).softmax(1), labels)


def no_logarithm(cosines, labels):
    return F.nll_loss(cosface(cosines, labels).softmax(1), labels)


def raw_logits(cosines, labels):
    return F.nll_loss(cosface(cosines, labels), labels)


def no_scale(cosines, labels):
    return F.cross_entropy(cosface(cosines, labels) / S, labels)


def added(cosines, labels):
    return F.cross_entropy(cosface(cosines, labels, -M), labels)


def turned(cosines, labels, m=0.5):
    theta = own(cosines, labels).clamp(-1 + 1e-7, 1 - 1e-7).acos()
    return F.cross_entropy(S * put(cosines, labels, (theta + m).cos()), labels)


def target_without_scale(cosines, labels):
    return F.cross_entropy(put(S * cosines, labels, own(cosines, labels)), labels)


class LinearTwice(nn.Module):
    """Softmax twice, of lengths that are free."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(DIM, CLASSES)

    def forward(self, x, y):
        return F.cross_entropy(self.layer(x).softmax(1), y)


class OtherAxis(Rows):
    """Normalises by what it is told to."""

    def __init__(self, features, rows):
        super().__init__(S, M)
        self.features, self.by_rows = features, rows

    def forward(self, x, y):
        return F.cross_entropy(cosface(self.features(x) @ self.by_rows(self.weight).T, y), y)


def whole(x):
    return x / x.norm()


def across(x):
    return F.normalize(x, dim=0)


class Smoothed(Slip):
    def __init__(self):
        super().__init__(lambda c, y: F.cross_entropy(cosface(c, y), y, label_smoothing=0.1))


class Focal(Slip):
    def __init__(self):
        super().__init__(self.focal)

    @staticmethod
    def focal(cosines, labels):
        losses = F.cross_entropy(cosface(cosines, labels), labels, reduction="none")
        return ((1 - (-losses).exp()) ** 2 * losses).mean()


def circle(cosines, labels, m=0.25, gamma=256.0):
    same = F.one_hot(labels, cosines.shape[1]).bool()
    near, far = (1 + m - cosines).clamp(min=0).detach(), (cosines + m).clamp(min=0).detach()
    return F.cross_entropy(gamma * torch.where(same, near * (cosines - 1 + m), far * (cosines - m)), labels)


def mv_arc(cosines, labels, s=32.0, m=0.35, t=0.2):
    """With easy_margin, compared with cos(θ + m) as it stands."""
    c = own(cosines, labels)
    bare = c * math.cos(m) - (1 - c * c).sqrt() * math.sin(m)
    raised = torch.where(cosines > bare[:, None], (1 + t) * cosines + t, cosines)
    return F.cross_entropy(s * put(raised, labels, torch.where(c > 0, bare, c)), labels)


class WithDropout(Rows):
    def __init__(self):
        super().__init__(S, M)
        self.drop = nn.Dropout(0.3)

    def forward(self, x, y):
        return F.cross_entropy(cosface(self.cosines(self.drop(x)), y), y)


class InLists(Rows):
    """Counts its steps in a dict, which says how large the margin is."""

    def __init__(self):
        super().__init__(S, M)
        self.progress = {"steps": 0}

    def forward(self, x, y):
        self.progress["steps"] += 1
        return F.cross_entropy(cosface(self.cosines(x), y, min(M, 0.01 * self.progress["steps"])), y)


NAN, COSFACE = {"nan-at-the-ends"}, (CosFace(M), S)
NONE = (None, None, None)
SLIPS = (
    Case("softmax before cross-entropy", lambda: Slip(softmax_twice), *NONE, {"softmax-twice"}, proved=False),
    Case("softmax before cross-entropy, lengths free", LinearTwice, *NONE, {"softmax-twice"}, proved=False),
    Case("NLLLoss of probabilities", lambda: Slip(no_logarithm), *NONE, {"softmax-missing"}, proved=False),
    Case("NLLLoss of logits", lambda: Slip(raw_logits), *NONE, {"softmax-missing"}, proved=False),
    Case("CosFace without s", lambda: Slip(no_scale), CosFace(M), 1.0, wrong={"scale-too-small"}),
    Case("CosFace, m added", lambda: Slip(added), None, S, wrong={"margin-sign", "rewards"}, proved=False),
    Case(
        "ArcFace, m subtracted",
        lambda: Slip(lambda c, y: turned(c, y, -0.5)),
        None,
        S,
        wrong={"margin-sign", "rewards", "turns-back"},
        proved=False,
    ),
    Case(
        "ArcFace, m = 28.6 in radians",
        lambda: Slip(lambda c, y: turned(c, y, 28.6)),
        None,
        S,
        wrong={"degrees", "backwards", "turns-back"},
        doubtful={"rewards"},
        proved=False,
    ),
    Case(
        "CosFace, s on the rivals alone",
        lambda: Slip(target_without_scale),
        None,
        S,
        wrong={"scales-differ"},
        doubtful={"rewards"},
        proved=False,
    ),
    Case(
        "features normalised by the whole batch",
        lambda: OtherAxis(whole, F.normalize),
        CosFace(0.494975),
        21.2132,
        wrong={"depends-on-size"},
        doubtful={"not-the-same"},
        proved=False,
    ),
    Case(
        "features normalised over the batch",
        lambda: OtherAxis(across, F.normalize),
        CosFace(0.494975),
        21.2132,
        "other",
        {"depends-on-size", "wrong-axis"},
        {"wrong-gradient"},
        proved=False,
    ),
    Case(
        "class rows normalised over the classes",
        lambda: OtherAxis(F.normalize, across),
        *NONE,
        {"wrong-axis"},
        proved=False,
    ),
    Case(
        "class rows divided by one length of all",
        lambda: OtherAxis(F.normalize, whole),
        CosFace(0.926013),
        11.3389,
        wrong={"rows-together"},
        doubtful={"not-the-same"},
        proved=False,
    ),
    Case("CosFace, labels smoothed", Smoothed, *COSFACE, notes={"smoothed"}),
    Case("CosFace, a focal loss", Focal, *COSFACE, notes={"focal"}, proved=False),
    Case(
        "CosFace, ten times",
        lambda: Slip(lambda c, y: 10 * F.cross_entropy(cosface(c, y), y)),
        *COSFACE,
        notes={"weighted"},
        proved=False,
    ),
    Case("CosFace after dropout", WithDropout, *COSFACE, notes={"dropout"}),
    Case(
        "CosFace, its state in a dict",
        InLists,
        CosFace(0.01),
        S,
        doubtful={"state-lost", "moves-in-eval"},
        notes={"moves-with-steps"},
    ),
    Case("circle loss", lambda: Slip(circle), Circle(0.25), 256.0, notes={"rivals-by-rule"}),
    Case(
        "MV-Arc-Softmax, easy_margin",
        lambda: Slip(mv_arc),
        ArcFace(0.35, "easy"),
        32.0,
        wrong=NAN,
        notes={"rivals-by-rule"},
    ),
)
