"""The dense backend's one node for plain heads: equal to the oracle, and to the operations that it stands for."""

import itertools
import math

import numpy as np
import pytest
import torch
from cases import cases
from conftest import ALL_MARGINS
from oracle import oracle

import hypermargin as hm
from hypermargin.backends import Dense
from hypermargin.margins import ArcFace, Combined, CosFace, NoMargin, SphereFace

PLAIN = [m for m in ALL_MARGINS if m.of_g() is not None and type(m.row_margin()) is hm.margins.RowMargin]
over_plain = pytest.mark.parametrize("margin", PLAIN, ids=str)
USUAL = "random", "parallel and opposite", "knots", "repeated classes", "two classes", "one row"


class Composed(Dense):
    """The definition: what is made of Dense has no node, so that nothing it overrides is passed over."""


def scales(rows, dtype):
    yield 10.0
    yield torch.tensor(10.0, dtype=dtype, requires_grad=True)
    yield torch.linspace(1.0, 20.0, rows, dtype=dtype).requires_grad_()
    yield torch.linspace(1.0, 20.0, rows, dtype=dtype)[:, None]


def run(x, W, y, margin, scale, *, by=None, **options):
    """The loss, and the gradients by features, weight and, if it is learned, scale."""
    leaves = [t.detach().clone().requires_grad_() for t in (x, W)]
    if isinstance(scale, torch.Tensor):
        scale = scale.detach().clone().requires_grad_(scale.requires_grad)
        leaves += [scale] if scale.requires_grad else []
    found = hm.margin_softmax(*leaves[:2], y, margin, scale=scale, **options)
    return found, torch.autograd.grad(found, leaves, None if by is None else by[: found.numel()].view_as(found))


def took_the_node(loss):
    return loss.grad_fn.name() == "_NodeBackward"


@over_plain
def test_the_node_equals_the_oracle(margin):
    for name, lam in itertools.product(USUAL, (0.0, 3.0)):
        x, W, y = cases()[name]
        losses, grads = run(x, W, y, margin, torch.tensor(10.0, dtype=x.dtype, requires_grad=True), lam=lam,
                            reduction="none", by=torch.ones(len(x), dtype=x.dtype))  # fmt: skip
        assert took_the_node(losses)
        right = oracle(x.numpy(), W.numpy(), y.tolist(), margin, s=10.0, unit_x=True, unit_w=True, lam=lam)
        np.testing.assert_array_less(abs(losses.detach().numpy() - right.losses), 1e-10 * right.losses + 1e-300)
        for of, grad in zip("xWs", grads, strict=True):
            off = abs(grad.numpy() - getattr(right, of).reshape(grad.shape)).astype(float)
            size = np.asarray(right.scale[of], float)
            size = size[:, None] if of != "s" else size.reshape(off.shape)
            assert (off <= 1e-9 * size + 1e-300).all(), f"d/d{of} in {name}: {off.max()} against {size}"


@over_plain
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_node_equals_the_composed_operations(margin, dtype):
    exact = dtype == torch.float64
    for name, reduction in itertools.product(USUAL, ("mean", "sum", "none")):
        x, W, y = cases(dtype)[name]
        if name == "parallel and opposite" and not exact:
            continue  # near the cone float32 leaves no direction of which two formulas could agree
        by = torch.linspace(-1.0, 2.0, len(x), dtype=dtype)
        for scale in scales(len(x), dtype):
            ours, grads = run(x, W, y, margin, scale, reduction=reduction, lam=0.5, by=by)
            right, others = run(x, W, y, margin, scale, reduction=reduction, lam=0.5, by=by, backend=Composed())
            assert took_the_node(ours)
            assert not took_the_node(right)
            torch.testing.assert_close(ours, right, **({"rtol": 1e-10, "atol": 1e-10} if exact else {}))
            for a, b in zip(grads, others, strict=True):
                assert a.shape == b.shape
                assert a.dtype == b.dtype
                torch.testing.assert_close(a, b, rtol=1e-9 if exact else 1e-4, atol=1e-9 if exact else 1e-3)


def test_unusual_batches_go_the_long_way():
    made = cases()
    for name in set(made) - set(USUAL):
        x, W, y = (t.clone().requires_grad_(t.is_floating_point()) for t in made[name])
        assert not took_the_node(hm.margin_softmax(x, W, y, ArcFace(), scale=10.0)), name
    x, W, y = made["random"]
    W = W.clone().requires_grad_()
    loss = hm.margin_softmax(x, W, y, ArcFace(), scale=10.0)
    assert took_the_node(loss)
    for options in (
        {"scale": 1000.0}, {"ignore_index": 2}, {"bias": W[:, 0]}, {"gradient": "straight"}, {"backend": "chunked"},
        {"label_smoothing": 0.1}, {"lam": torch.tensor(0.5)}, {"unit_features": False}, {"m": torch.tensor(0.5)},
    ):  # fmt: skip
        assert not took_the_node(hm.margin_softmax(x, W, y, ArcFace(), **({"scale": 10.0} | options))), options
    assert not took_the_node(
        hm.margin_softmax(x, W, y.index_fill(0, torch.tensor([1]), -100), ArcFace(), scale=10.0)
    )
    assert not took_the_node(hm.margin_softmax(x.float(), W, y, ArcFace(), scale=10.0))
    for none in (-1.0, math.nan):
        scale = torch.tensor(none)
        with pytest.raises(ValueError, match="scale must be positive"):
            hm.margin_softmax(x, W, y, ArcFace(), scale=scale)


@over_plain
def test_gradients_of_the_node_are_finite_in_float32(margin):
    for (x, W, y), scale in itertools.product(cases(torch.float32).values(), (0.1, 16.0, 64.0, 70.0)):
        loss, grads = run(x, W, y, margin, scale, reduction="none", by=torch.ones(len(x)))
        assert loss.isfinite().all()
        assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("margin", [NoMargin(), CosFace(0.35), ArcFace(0.5), SphereFace(1.7)], ids=str)
def test_float32_keeps_the_relative_precision_of_loss_and_gradient(margin):
    """Losses from 1e-18 to 1e2, at s = 64."""
    rng = torch.Generator().manual_seed(3)
    W = torch.randn(50, 128, generator=rng)
    away, y = torch.randn(400, 128, generator=rng), torch.arange(400) % 50
    u = torch.nn.functional.normalize(W)[y]
    t = torch.nn.functional.normalize(away - u * (u * away).sum(1, keepdim=True))
    theta = torch.linspace(0.01, 3.0, 400)[:, None]
    x, by = theta.cos() * u + theta.sin() * t, torch.ones(400)
    ours, grads = run(x, W, y, margin, 64.0, reduction="none", by=by)
    right, others = run(
        x.double(), W.double(), y, margin, 64.0, reduction="none", by=by.double(), backend=Composed()
    )
    assert took_the_node(ours)
    assert right.min() < 1e-14
    assert right.max() > 75
    assert ((ours - right).abs() <= 1e-4 * right).all()
    off, size = (grads[0] - others[0]).norm(dim=1), others[0].norm(dim=1)
    assert (off <= 1e-4 * size).all()


@pytest.mark.parametrize(
    "margin", [ArcFace(0.5), CosFace(0.35), SphereFace(1.7), Combined(1.35, 0.2, 0.1)], ids=str
)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_node_differentiates_twice(margin, reduction):
    x, W, y = cases()["random"]
    leaves = [x[:3].clone(), W.clone(), torch.tensor(6.0, dtype=x.dtype)]

    def loss(x, W, s):
        found = hm.margin_softmax(x, W, y[:3], margin, scale=s, lam=0.5, reduction=reduction)
        assert took_the_node(found)
        return found

    leaves = [t.requires_grad_() for t in leaves]
    torch.autograd.gradcheck(loss, leaves)
    torch.autograd.gradgradcheck(loss, leaves)


def test_what_is_frozen_gets_no_gradient_and_a_graph_can_be_used_twice():
    x, W, y = cases()["random"]
    both = run(x, W, y, ArcFace(), 10.0)[1]
    for learned in (0, 1):
        leaves = [x.clone(), W.clone()]
        leaves[learned].requires_grad_()
        loss = hm.margin_softmax(*leaves, y, ArcFace(), scale=10.0)
        loss.backward(retain_graph=True)
        assert leaves[1 - learned].grad is None
        assert torch.equal(leaves[learned].grad, both[learned])
        loss.backward()
        assert torch.equal(leaves[learned].grad, 2 * both[learned])
    with torch.no_grad():
        assert torch.equal(hm.margin_softmax(x, W, y, ArcFace(), scale=10.0), loss)


def test_autocast_changes_nothing_in_the_node():
    x, W, y = cases(torch.float32)["random"]
    plain, grads = run(x, W, y, ArcFace(), 10.0)
    with torch.autocast("cpu", torch.bfloat16):
        under, others = run(x, W, y, ArcFace(), 10.0)  # the backward too
    assert torch.equal(plain, under)
    assert all(map(torch.equal, grads, others))


def test_labels_of_any_integer_type_and_any_strides():
    x, W, y = cases()["random"]
    right, grads = run(x, W, y, ArcFace(), 10.0)
    for kind in (torch.int32, torch.uint8, torch.int16):
        assert torch.equal(run(x, W, y.to(kind), ArcFace(), 10.0)[0], right)
    ours, others = run(x.T.contiguous().T, W.T.contiguous().T, y, ArcFace(), 10.0)
    torch.testing.assert_close(ours, right)
    for a, b in zip(others, grads, strict=True):
        torch.testing.assert_close(a, b)
