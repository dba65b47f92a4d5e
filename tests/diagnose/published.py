"""Losses as others wrote them, from their formulas: what the doctor has to recognise, and where it must not accuse.

Each is a small class or function of torch's own operations, with the source it is after. None is anybody's code.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

DIM, CLASSES = 16, 7


class Rows(nn.Module):
    """A module with class rows of its own, (C, d)."""

    def __init__(self, s=64.0, m=0.5, classes=CLASSES, dim=DIM):
        super().__init__()
        self.s, self.m = s, m
        self.weight = nn.Parameter(torch.randn(classes, dim))

    def cosines(self, x):
        return F.linear(F.normalize(x), F.normalize(self.weight))


def put(z, y, target):
    """Logits with the target's column replaced."""
    return z.scatter(1, y[:, None], target[:, None])


def own(z, y):
    return z.gather(1, y[:, None])[:, 0]


def angle(c):
    return c.clamp(-1, 1).acos()


# The six ArcFaces, each a function of cosines and labels that returns its logits


def arcface_psi(c, m, beyond):
    sine = (1 - c * c).clamp(min=0).sqrt()
    turned = c * math.cos(m) - sine * math.sin(m)
    inside = c > math.cos(math.pi - m)
    match beyond:
        case "none":
            return turned
        case "linear":
            return torch.where(inside, turned, c - m * math.sin(m))
        case "continuous":
            return torch.where(inside, turned, c - (1 - math.cos(m)))
        case "flat":
            return torch.where(inside, turned, torch.full_like(c, -1.0))
        case "easy":
            return torch.where(c > 0, turned, c)
        case "smooth":
            return torch.where(inside, turned, -turned - 2)


def arcface(beyond, *, gradient="exact", m=0.5, s=64.0):
    def logits(cosines, labels):
        c = own(cosines, labels)
        psi = arcface_psi(c, m, beyond)
        if gradient == "straight":
            psi = c + (psi - c).detach()
        return s * put(cosines, labels, psi)

    return logits


# deepinsight/insightface, recognition/arcface_torch


class InsightfaceHead(nn.Module):
    """losses.py since December 2022: angles under no_grad, in place on the logits."""

    def __init__(self, s=64.0, m=0.5):
        super().__init__()
        self.s, self.m = s, m

    def forward(self, logits, labels):
        rows = torch.where(labels != -1)[0]
        with torch.no_grad():
            target = logits[rows, labels[rows]].arccos() + self.m
            logits.arccos_()
            logits[rows, labels[rows]] = target
            logits.cos_()
        return logits * self.s


class InsightfaceCombined(nn.Module):
    """CombinedMarginLoss: ArcFace if m3 is 0, CosFace if m3 is above 0, whatever m1 and m2 are."""

    def __init__(self, s=64.0, m1=1.0, m2=0.3, m3=0.2):
        super().__init__()
        self.s, self.m1, self.m2, self.m3 = s, m1, m2, m3

    def forward(self, logits, labels):
        if self.m3 > 0:
            return self.s * put(logits, labels, own(logits, labels) - self.m3)
        return self.s * put(logits, labels, (own(logits, labels).arccos() + self.m2).cos())


class InsightfaceOld(Rows):
    """Before: c − m sin m past π − m, by the square root."""

    def forward(self, x, y):
        cosines = self.cosines(x)
        c = own(cosines, y)
        sine = (1.0 - c**2).sqrt()
        turned = c * math.cos(self.m) - sine * math.sin(self.m)
        turned = torch.where(c > math.cos(math.pi - self.m), turned, c - self.m * math.sin(self.m))
        return self.s * put(cosines, y, turned)


# ydwen/opensphere: the weight is normalised in place, and ψ − c is detached


class OpenSphere(Rows):
    def forward(self, x, y):
        with torch.no_grad():
            self.weight.data = F.normalize(self.weight.data)
        z = F.normalize(x) @ self.weight.T
        with torch.no_grad():
            theta = own(z, y).clamp(-1, 1).acos()
            lift = (theta + self.m).clamp(max=3.14159).cos() - own(z, y)
        return F.cross_entropy(self.s * put(z, y, own(z, y) + lift), y)


# wenet-e2e/wespeaker


class WeSpeakerArc(Rows):
    def __init__(self, s=32.0, m=0.2, easy=False):
        super().__init__(s, m)
        self.easy = easy

    def forward(self, x, y):
        cosines = self.cosines(x)
        c = own(cosines, y)
        turned = c * math.cos(self.m) - (1 - c**2).sqrt() * math.sin(self.m)
        if self.easy:
            turned = torch.where(c > 0, turned, c)
        else:
            turned = torch.where(c > math.cos(math.pi - self.m), turned, c - (1 - math.cos(self.m)))
        return self.s * put(cosines, y, turned)


class WeSpeakerSphere(Rows):
    """λ falls with a counter that is a plain attribute."""

    def __init__(self, m=4):
        super().__init__(1.0, m)
        self.iter = 0

    def forward(self, x, y):
        self.iter += 1
        lam = max(5.0, 1000 / (1 + 0.12 * self.iter))
        cosines = self.cosines(x)
        c = own(cosines, y)
        k = (self.m * angle(c.detach()) / math.pi).floor()
        psi = (-1) ** k * (8 * c**4 - 8 * c**2 + 1) - 2 * k
        return x.norm(dim=1, keepdim=True) * put(cosines, y, c + (psi - c) / (1 + lam))


# 4uiiurz1/pytorch-adacos: bare cos 1.35θ


class AdaCosSphere(Rows):
    def __init__(self, s=30.0, m=1.35):
        super().__init__(s, m)

    def forward(self, x, y):
        cosines = self.cosines(x)
        theta = own(cosines, y).clamp(-1 + 1e-7, 1 - 1e-7).acos()
        return self.s * put(cosines, y, (self.m * theta).cos())


# bojone/margin-softmax: the target is taken out of the sum again


def sparse_am(cosines, labels, s=30.0, m=0.5):
    c = own(cosines, labels)
    T = s * (c - m)
    log_Z = torch.cat((s * cosines, T[:, None]), 1).logsumexp(1)
    return (log_Z + torch.log(1 - torch.exp(s * c - log_Z)) - T).mean()


# NVIDIA/NeMo: a loop that rebinds its variable normalises nothing


class NeMo(nn.Module):
    def __init__(self, s=30.0, m=0.2):
        super().__init__()
        self.s, self.m = s, m
        self.layer = nn.Linear(DIM, CLASSES, bias=False)

    def forward(self, x, y):
        for W in self.layer.parameters():
            W = F.normalize(W, p=2, dim=1)
        c = self.layer(F.normalize(x))
        target = self.s * (own(c, y).clamp(-1 + 1e-7, 1 - 1e-7).acos() + self.m).cos()
        return F.cross_entropy(put(self.s * c, y, target), y)


# fdbtrs/ElasticFace


class ElasticArc(Rows):
    def __init__(self, s=64.0, m=0.5, sigma=0.05, plus=""):
        super().__init__(s, m)
        self.sigma, self.plus = sigma, plus

    def margins(self, c):
        margin = torch.normal(mean=self.m, std=self.sigma, size=c.shape, dtype=c.dtype)
        if not self.plus:
            return margin
        order = c.detach().argsort(descending=True)
        if self.plus == "paper":
            return margin.sort()[0][order.argsort()]
        return margin.sort()[0][order]

    def forward(self, x, y):
        cosines = self.cosines(x).clamp(-1, 1)
        c = own(cosines, y)
        return self.s * put(cosines, y, (c.acos() + self.margins(c)).cos())


class ElasticCos(ElasticArc):
    def __init__(self, s=64.0, m=0.35, sigma=0.05, plus=""):
        super().__init__(s, m, sigma, plus)

    def forward(self, x, y):
        cosines = self.cosines(x).clamp(-1, 1)
        c = own(cosines, y)
        return self.s * put(cosines, y, c - self.margins(c))


# A margin on every class


def cosface_on_all(cosines, labels, s=64.0, m=0.35):
    return F.cross_entropy(s * (cosines - m), labels)


def cosface_on_all_logits(cosines, labels, s=64.0, m=0.35):
    return s * (cosines - m)


def arcface_on_all(cosines, labels, s=64.0, m=0.5):
    return F.cross_entropy(s * (cosines.clamp(-0.9999999, 0.9999999).acos() + m).cos(), labels)


# Margins by the length of the feature


class MagFace(Rows):
    def forward(self, x, y):
        length = x.norm(dim=1).clamp(10, 110)
        m = 0.45 + (0.8 - 0.45) / (110 - 10) * (length - 10)
        cosines = self.cosines(x)
        c = own(cosines, y)
        turned = c * m.cos() - (1 - c**2).clamp(min=0).sqrt() * m.sin()
        loss = F.cross_entropy(self.s * put(cosines, y, torch.where(c > 0, turned, c)), y)
        return loss + 35 * (length / 110**2 + 1 / length).mean()


class AdaFace(Rows):
    def __init__(self, s=64.0, m=0.4, h=0.333, momentum=0.01):
        super().__init__(s, m)
        self.h, self.momentum = h, momentum
        self.register_buffer("mean", torch.tensor(20.0))
        self.register_buffer("std", torch.tensor(100.0))

    def forward(self, x, y):
        length = x.detach().norm(dim=1).clamp(1e-3, 100)
        self.mean = self.momentum * length.mean() + (1 - self.momentum) * self.mean
        self.std = self.momentum * length.std() + (1 - self.momentum) * self.std
        q = (self.h * (length - self.mean) / (self.std + 1e-3)).clamp(-1, 1)
        cosines = self.cosines(x).clamp(-1 + 1e-3, 1 - 1e-3)
        theta = (own(cosines, y).acos() - self.m * q).clamp(1e-3, math.pi - 1e-3)
        return self.s * put(cosines, y, theta.cos() - self.m * (1 + q))


# Rules on rivals


class Curricular(Rows):
    def __init__(self, s=64.0, m=0.5):
        super().__init__(s, m)
        self.register_buffer("t", torch.zeros(1))

    def forward(self, x, y):
        cosines = self.cosines(x).clamp(-1, 1)
        c = own(cosines, y)
        psi = arcface_psi(c, self.m, "linear")
        with torch.no_grad():
            self.t = 0.01 * c.mean() + 0.99 * self.t
        hard = cosines > (c * math.cos(self.m) - (1 - c * c).sqrt() * math.sin(self.m))[:, None]
        cosines = torch.where(hard, cosines * (self.t + cosines), cosines)
        return F.cross_entropy(self.s * put(cosines, y, psi), y)


class MVSoftmax(Rows):
    def __init__(self, s=32.0, m=0.35, t=0.2):
        super().__init__(s, m)
        self.t = t

    def forward(self, x, y):
        cosines = self.cosines(x)
        psi = own(cosines, y) - self.m
        cosines = torch.where(cosines > psi[:, None], (1 + self.t) * cosines + self.t, cosines)
        return F.cross_entropy(self.s * put(cosines, y, psi), y)


def airface(cosines, labels, s=64.0, m=0.45):
    """Li-ArcFace: every class linear in its angle."""
    theta = cosines.clamp(-0.9999999, 0.9999999).acos()
    return s * put(1 - 2 * theta / math.pi, labels, 1 - 2 * (own(theta, labels) + m) / math.pi)


def airface_with_plain_rivals(cosines, labels, s=64.0, m=0.45):
    """Keras_insightface's: the rivals are left as they are."""
    theta = own(cosines, labels).clamp(-0.9999999, 0.9999999).acos()
    return s * put(cosines, labels, 1 - 2 * (theta + m) / math.pi)


# No softmax


class P2SGrad(Rows):
    def forward(self, x, y):
        return F.mse_loss(self.cosines(x), F.one_hot(y, CLASSES).to(x.dtype))


class SphereFace2(Rows):
    def forward(self, x, y):
        g = 2 * ((self.cosines(x) + 1) / 2) ** 3 - 1
        same = F.one_hot(y, CLASSES).bool()
        z = torch.where(same, 32.0 * (g - 0.2), -32.0 * (g + 0.2))
        weight = torch.where(same, 0.7, 0.3)
        return (weight * F.softplus(-z)).sum(1).mean()


# Others


class Clamped(Rows):
    """Cosines clamped at 1 − 1e-3, as in several ports."""

    def forward(self, x, y):
        cosines = self.cosines(x).clamp(-1 + 1e-3, 1 - 1e-3)
        return self.s * put(cosines, y, (own(cosines, y).acos() + self.m).cos())


def crossed_norms(features, weight, labels):
    """Every rival with the target's own length: of a slip in tutorials."""
    cosines = F.normalize(features) @ F.normalize(weight).T
    length = features.norm(dim=1, keepdim=True) * weight[labels].norm(dim=1, keepdim=True)
    c = own(cosines, labels)
    psi = torch.where(c > 0, 2 * c**2 - 1, -(2 * c**2 - 1) - 2)
    return F.cross_entropy(length * put(cosines, labels, psi), labels)


def l_softmax_of_caffe(features, weight, labels):
    """m = 2 by signs, lengths as they are."""
    z = features @ weight.T
    length = features.norm(dim=1) * weight[labels].norm(dim=1)
    c = own(z, labels) / length
    return F.cross_entropy(put(z, labels, length * (2 * c.sign() * c**2 - 1)), labels)


class SpeechBrain(nn.Module):
    """Cosines and one-hot labels in, logits out."""

    def __init__(self, s=30.0, m=0.2):
        super().__init__()
        self.s, self.m = s, m

    def forward(self, outputs, targets):
        sine = (1.0 - outputs**2).sqrt()
        turned = outputs * math.cos(self.m) - sine * math.sin(self.m)
        turned = torch.where(outputs > math.cos(math.pi - self.m), turned, outputs - self.m * math.sin(self.m))
        return self.s * (targets * turned + (1.0 - targets) * outputs)


class Probabilities(Rows):
    """A layer that returns the softmax of its training logits."""

    def __init__(self):
        super().__init__(30.0, 0.35)

    def forward(self, x, y):
        z = self.cosines(x)
        return (self.s * put(z, y, own(z, y) - self.m)).softmax(1)


class BothBack(Rows):
    """Loss and logits, together."""

    def __init__(self):
        super().__init__(30.0, 0.35)

    def forward(self, x, y):
        cosines = self.cosines(x)
        z = self.s * put(cosines, y, own(cosines, y) - self.m)
        return F.cross_entropy(z, y), z


class InDegrees(Rows):
    """Wants m in degrees, and is given 0.5."""

    def forward(self, x, y):
        cosines = self.cosines(x)
        theta = own(cosines, y).clamp(-1 + 1e-7, 1 - 1e-7).acos()
        return self.s * put(cosines, y, (theta + math.radians(self.m)).cos())


class Detached(Rows):
    """The target's logit is made under no_grad, and put in: no gradient for the target."""

    def forward(self, x, y):
        cosines = self.cosines(x)
        with torch.no_grad():
            psi = (own(cosines, y).clamp(-1, 1).acos() + self.m).cos()
        return self.s * put(cosines, y, psi)


class ByClass(Rows):
    """LDAM: rarer classes have larger margins."""

    def __init__(self):
        super().__init__(30.0)
        self.register_buffer("margins", torch.linspace(0.2, 0.5, CLASSES))

    def forward(self, x, y):
        z = self.cosines(x)
        return F.cross_entropy(self.s * put(z, y, own(z, y) - self.margins[y].to(z.dtype)), y)


class EvalMoves(Rows):
    """AdaCos' scale, a plain attribute that moves whenever labels are passed."""

    def __init__(self):
        super().__init__(math.sqrt(2) * math.log(CLASSES - 1))

    def forward(self, x, y):
        cosines = self.cosines(x).clamp(-1 + 1e-7, 1 - 1e-7)
        theta = cosines.acos()
        with torch.no_grad():
            others = (self.s * cosines).scatter(1, y[:, None], -math.inf)
            self.s = float(others.exp().sum() / len(x))
            self.s = math.log(self.s) / math.cos(min(math.pi / 4, float(own(theta, y).median())))
        return self.s * cosines
