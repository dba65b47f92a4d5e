"""Losses among samples and proxies, against their formulas written out on the whole matrix."""

import math

import pytest
import torch
import torch.nn.functional as F
from conftest import over_backends

import hypermargin as hm
from hypermargin.margins import ArcFace, CosFace


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def agree(ours, theirs, *leaves):
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    weights = torch.linspace(1, 2, ours.numel(), dtype=torch.float64).view_as(ours)
    mine, other = (torch.autograd.grad((loss * weights).sum(), leaves) for loss in (ours, theirs))
    torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


def clip(a, b, s, psi=lambda c: c, reduction="mean"):
    z = F.normalize(a) @ F.normalize(b).T
    y = torch.arange(len(a))
    z = s * torch.where(torch.eye(len(a)).bool(), psi(z), z)
    return (F.cross_entropy(z, y, reduction=reduction) + F.cross_entropy(z.T, y, reduction=reduction)) / 2


@over_backends
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_contrastive_is_clips_loss(backend, reduction):
    a, b = drawn(7, 4).requires_grad_(), (3 * drawn(7, 4, seed=1)).requires_grad_()
    log_s = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    ours = hm.contrastive(a, b, log_s.exp(), reduction=reduction, backend=backend)
    agree(ours, clip(a, b, log_s.exp(), reduction=reduction), a, b, log_s)


@over_backends
@pytest.mark.parametrize(
    ("margin", "psi"),
    [(CosFace(0.2), lambda c: c - 0.2), (ArcFace(0.3), lambda c: (c.acos() + 0.3).cos())],
    ids=["cosface", "arcface"],  # the name of a lambda has its address, another in every process of xdist
)
def test_contrastive_takes_a_margin(backend, margin, psi):
    a, b = drawn(5, 4), drawn(5, 4, seed=1)
    a, b = a.requires_grad_(), (b + 0.5 * a).detach().requires_grad_()
    assert F.cosine_similarity(a, b).abs().max() < 0.9  # not beyond π − m
    agree(hm.contrastive(a, b, 10.0, margin, backend=backend), clip(a, b, 10.0, psi), a, b)


@pytest.mark.parametrize("N", [0, 1, 2])
def test_few_pairs(N):
    a, b = drawn(N, 3).requires_grad_(), drawn(N, 3, seed=1).requires_grad_()
    loss = hm.contrastive(a, b, 10.0)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(float(clip(a, b, 10.0).detach()) if N else 0.0, abs=1e-12)
    assert a.grad.isfinite().all()
    assert b.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_for_equal_opposite_and_zero_rows(dtype):
    rows = torch.tensor([[1.0, 0, 0], [1, 0, 0], [-1, 0, 0], [0, 0, 0], [1e4, 0, 0], [0, 0, 1]], dtype=dtype)
    y = torch.arange(6) // 2
    for loss_of in (
        lambda a, b: hm.contrastive(a, b, 64.0),
        lambda a, b: hm.supervised_contrastive(a, y, 64.0) + hm.supervised_contrastive(b, y, 64.0),
        lambda a, b: hm.proxy_anchor(a, b, y),
    ):
        a, b = rows.clone().requires_grad_(), rows.flip(0).clone().requires_grad_()
        loss_of(a, b).backward()
        assert a.grad.isfinite().all()
        assert b.grad.isfinite().all()


def sup_con(x, y, s):
    """Of each row; 0 without positives."""
    z = s * F.normalize(x) @ F.normalize(x).T
    self = torch.eye(len(x)).bool()
    positive = (y[:, None] == y) & ~self
    rivals = z.masked_fill(self, -math.inf).logsumexp(1)
    mean = (z * positive).sum(1) / positive.sum(1).clamp(min=1)
    return torch.where(positive.any(1), rivals - mean, 0.0), positive.any(1)


@over_backends
def test_supervised_contrastive_is_its_formula(backend):
    x = (2 * drawn(11, 4)).requires_grad_()
    y = torch.tensor([3, 3, -7, 90, 3, 90, 5, -7, 90, 3, 6])  # any integers; 5 and 6 are alone
    s = torch.tensor(10.0, dtype=torch.float64, requires_grad=True)
    for reduction in ("none", "mean", "sum"):
        each, used = sup_con(x, y, s)
        assert used.sum() == 9
        theirs = {"none": each, "mean": each.sum() / 9, "sum": each.sum()}[reduction]
        agree(hm.supervised_contrastive(x, y, s, reduction=reduction, backend=backend), theirs, x, s)


def test_supervised_contrastive_as_published():
    """HobbitLong/SupContrast 66a8fe5, executed outside in float64 on these inputs, two views of four samples."""
    x = torch.cos(0.3 * torch.arange(40, dtype=torch.float64) ** 2).view(8, 5).requires_grad_()
    loss = hm.supervised_contrastive(x, torch.tensor([0, 1, 0, 2, 0, 1, 0, 2]), 10.0)
    loss.backward()
    found = torch.stack((loss.detach(), x.grad.norm(), x.grad[2, 1]))
    theirs = torch.tensor([6.22619006451, 5.506178645436, 0.1213459932675], dtype=torch.float64)
    torch.testing.assert_close(found, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("labels", [[], [4], [4, 5], [1, 2, 3, 4]])
def test_without_positives_the_loss_is_zero(labels):
    x = drawn(len(labels), 3).requires_grad_()
    loss = hm.supervised_contrastive(x, torch.tensor(labels, dtype=torch.int64), 10.0)
    loss.backward()
    assert float(loss.detach()) == 0
    assert not x.grad.any()


def test_two_views_alone_are_contrastive_without_the_other_rows_of_a_side():
    """With one positive each, L_i is the cross-entropy over all other rows: SimCLR's loss."""
    a, b = drawn(4, 3), drawn(4, 3, seed=1)
    z = 5 * F.normalize(torch.cat((a, b))) @ F.normalize(torch.cat((a, b))).T
    simclr = F.cross_entropy(z.masked_fill(torch.eye(8).bool(), -math.inf), (torch.arange(8) + 4) % 8)
    ours = hm.supervised_contrastive(torch.cat((a, b)), torch.arange(8) % 4, 5.0)
    torch.testing.assert_close(ours, simclr, rtol=1e-10, atol=1e-10)


def anchors(x, W, y, alpha, delta):
    c = F.normalize(x) @ F.normalize(W).T
    one = F.one_hot(y, len(W)).bool()
    drawn_in = ((-alpha * (c - delta)).exp() * one).sum(0).log1p()
    pushed = ((alpha * (c + delta)).exp() * ~one).sum(0).log1p()
    return drawn_in.sum() / one.any(0).sum() + pushed.sum() / len(W)


@pytest.mark.parametrize(("alpha", "delta"), [(32.0, 0.1), (4.0, 0.0), (10, -0.2)])
def test_proxy_anchor_is_its_formula(alpha, delta):
    x, W, y = drawn(9, 4).requires_grad_(), (2 * drawn(6, 4, seed=1)).requires_grad_(), torch.arange(9) % 4
    agree(hm.proxy_anchor(x, W, y, alpha, delta), anchors(x, W, y, alpha, delta), x, W)


def test_proxy_anchor_as_published():
    """tjddus9597/Proxy-Anchor-CVPR2020 51db570, executed outside in float64 on these inputs."""
    i = torch.arange(8 * 5, dtype=torch.float64)
    x = torch.cos(0.3 * i**2).view(8, 5).requires_grad_()
    W = torch.sin(0.7 * torch.arange(6 * 5, dtype=torch.float64) ** 2 + 1).view(6, 5).requires_grad_()
    loss = hm.proxy_anchor(x, W, torch.tensor([0, 1, 2, 3, 0, 1, 2, 0]))
    loss.backward()
    found = torch.stack((loss.detach(), x.grad.norm(), W.grad.norm(), x.grad[2, 1], W.grad[5, 3]))
    torch.testing.assert_close(found, torch.tensor(PUBLISHED, dtype=torch.float64), rtol=1e-10, atol=1e-10)


PUBLISHED = (28.15800093344, 11.90931972958, 9.542970142333, 0.1394385601581, 2.219124216811)


def test_rows_of_proxy_anchor_that_do_not_count():
    x, W, y = (
        drawn(6, 4).requires_grad_(),
        drawn(5, 4, seed=1).requires_grad_(),
        torch.tensor([0, 1, -100, 2, 0, -100]),
    )
    keep = y >= 0
    agree(hm.proxy_anchor(x, W, y), hm.proxy_anchor(x[keep], W, y[keep]), x, W)
    none = hm.proxy_anchor(x, W, torch.full((6,), -100))
    none.backward()
    assert float(none.detach()) == 0
    assert not x.grad.any()


def test_the_module_of_proxy_anchor():
    torch.manual_seed(0)
    module = hm.ProxyAnchor(4, 6, alpha=16.0, delta=0.05, dtype=torch.float64)
    x, y = drawn(8, 4), torch.arange(8) % 6
    torch.testing.assert_close(module(x, y), hm.proxy_anchor(x, module.weight, y, 16.0, 0.05))
    torch.testing.assert_close(module(x), F.normalize(x) @ F.normalize(module.weight).T)
    assert repr(module) == "ProxyAnchor(4, 6, alpha=16, delta=0.05)"
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    before = float(module(x, y).detach())
    for _ in range(20):
        optimizer.zero_grad()
        module(x, y).backward()
        optimizer.step()
    assert float(module(x, y).detach()) < before / 2
    assert list(module.state_dict()) == ["weight"]


A, Y = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        (lambda: hm.contrastive([1.0], A, 1.0), TypeError, r"a must be a tensor of shape \(N, d\); got list"),
        (lambda: hm.contrastive(A, A[:2], 1.0), ValueError, r"same shape \(N, d\).*got \(3, 2\) and \(2, 2\)"),
        (lambda: hm.contrastive(A, A.long(), 1.0), ValueError, r"b must be floating.*got torch.int64 \(3, 2\)"),
        (lambda: hm.contrastive(A, A, -1.0), ValueError, "scale must be"),
        (lambda: hm.contrastive(A, A, 1.0, 0.5), TypeError, "margin must be"),
        (lambda: hm.contrastive(A, A, 1.0, shard=hm.Shard()), RuntimeError, "needs a process group"),
        (lambda: hm.supervised_contrastive(A, Y[:2], 1.0), ValueError, r"labels must have shape \(3,\)"),
        (lambda: hm.supervised_contrastive(A, Y, torch.ones(3)), ValueError, r"one number for all.*got \(3,\)"),
        (lambda: hm.supervised_contrastive(A, Y, 1.0, reduction="all"), ValueError, "reduction must be"),
        (lambda: hm.proxy_anchor(A, A, Y, alpha=0.0), ValueError, "alpha must be"),
        (lambda: hm.proxy_anchor(A, A, Y, delta=3.0), ValueError, r"delta must"),
        (lambda: hm.proxy_anchor(A, A, Y + 7), ValueError, "labels"),
        (lambda: hm.ProxyAnchor(4, 0), ValueError, "classes must be"),
    ],
)  # fmt: skip
def test_errors(wrong, kind, words):
    with pytest.raises(kind, match=words):
        wrong()
