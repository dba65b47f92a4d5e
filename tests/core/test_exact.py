"""Loss and gradients: equal to the 80-bit oracle, float32 close to float64, finite in every dtype."""

import itertools
import math

import numpy as np
import pytest
import torch
from cases import cases
from conftest import ALL_MARGINS, over_all_variants, over_backends
from oracle import oracle

import hypermargin as hm
from hypermargin import margins
from hypermargin.margins import ArcFace, CosFace, NoMargin, Piecewise, SphereFace

SIDES = list(itertools.product((True, False), repeat=2))
over_sides = pytest.mark.parametrize(("unit_x", "unit_w"), SIDES, ids=["both", "x", "W", "free"])


def gradients(x, W, y, margin, *, scale, bias=None, m=None, **options):
    """Losses, and the gradients of their sum by features, weight, bias, scale and m."""
    leaves = {"x": x, "W": W, "s": torch.as_tensor(scale, dtype=torch.promote_types(x.dtype, torch.float32))}
    if bias is not None:
        leaves["b"] = bias
    if margin.m is not None:
        leaves["m"] = torch.as_tensor(margin.m if m is None else m, dtype=leaves["s"].dtype)
    leaves = {k: v.detach().clone().requires_grad_() for k, v in leaves.items()}
    losses = hm.margin_softmax(
        leaves["x"], leaves["W"], y, margin, scale=leaves["s"], bias=leaves.get("b"), m=leaves.get("m"),
        reduction="none", **options,
    )  # fmt: skip
    grads = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
    zeros = (torch.zeros_like(v) if g is None else g for g, v in zip(grads, leaves.values(), strict=True))
    return losses.detach(), dict(zip(leaves, zeros, strict=True))


def assert_equals_oracle(x, W, y, margin, sides, *, scale=10.0, straight=False, lam=0.0, backend="auto", tol=1e-10):
    bias = torch.linspace(-0.5, 0.7, len(W), dtype=x.dtype)
    unit_x, unit_w = sides
    ours, grads = gradients(
        x, W, y, margin, scale=scale, bias=bias, lam=lam, unit_features=unit_x, unit_weight=unit_w,
        gradient="straight" if straight else "exact", backend=backend,
    )  # fmt: skip
    right = oracle(
        x.numpy(), W.numpy(), y.tolist(), margin, s=scale, b=bias.numpy(), lam=lam, unit_x=unit_x, unit_w=unit_w,
        straight=straight,
    )  # fmt: skip
    np.testing.assert_array_less(abs(ours.numpy() - right.losses), tol * right.losses + 1e-300)
    for name, grad in grads.items():
        off = abs(grad.numpy() - getattr(right, name).reshape(grad.shape)).astype(float)
        size = np.asarray(right.scale[name], float)
        size = size[:, None] if name in "xW" else size.reshape(off.shape)
        assert (off <= tol * size + 1e-300).all(), f"d/d{name}: {off.max()} against {size}"


def cases_for(margin, *names):
    """Piecewise has a kink at its knot, so its slope there has two values: leave the knots out."""
    found = cases()
    names = names or tuple(found)
    return [found[name] for name in names if not (name == "knots" and isinstance(margin, Piecewise))]


@over_backends
@over_sides
@over_all_variants
def test_loss_and_gradients_equal_the_oracle(margin, unit_x, unit_w, backend):
    for x, W, y in cases_for(margin):
        assert_equals_oracle(x, W, y, margin, (unit_x, unit_w), backend=backend)


@over_sides
@over_all_variants
def test_straight_gradient_and_lambda_equal_the_oracle(margin, unit_x, unit_w):
    for x, W, y in cases_for(margin, "random", "knots", "zero rows", "two classes"):
        assert_equals_oracle(x, W, y, margin, (unit_x, unit_w), straight=True)
        assert_equals_oracle(x, W, y, margin, (unit_x, unit_w), lam=3.0)


@over_backends
@pytest.mark.parametrize("margin", [NoMargin(), CosFace(0.35), ArcFace(0.5), SphereFace(1.7)], ids=str)
def test_float32_keeps_the_relative_precision_of_the_loss(margin, backend):
    """At s = 64, from 1e-18, where cross_entropy returns 0, to 1e2."""
    rng = torch.Generator().manual_seed(3)
    d, C = 128, 50
    W = torch.randn(C, d, generator=rng)
    away = torch.randn(400, d, generator=rng)
    y = torch.arange(400) % C
    u = W[y] / W[y].norm(dim=1, keepdim=True)
    t = away - u * (u * away).sum(1, keepdim=True)
    theta = torch.linspace(1e-3, 3.0, 400)[:, None]
    x = theta.cos() * u + theta.sin() * t / t.norm(dim=1, keepdim=True)
    ours, _ = gradients(x, W, y, margin, scale=64.0, backend=backend)
    right, _ = gradients(x.double(), W.double(), y, margin, scale=64.0, backend="dense")
    assert right.min() < 1e-14
    assert right.max() > 75
    assert ((ours - right).abs() <= 1e-4 * right).all()


def test_float32_loss_of_1e_18():
    x, W, y = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.3527, 0.9357334]]), torch.tensor([0])
    ours = hm.margin_softmax(x, W, y, NoMargin(), scale=64.0)
    right = hm.margin_softmax(x.double(), W.double(), y, NoMargin(), scale=64.0)
    assert 5e-19 < right < 2e-18
    assert abs(ours - right) < 1e-4 * right


FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
# Autocast is to bfloat16; inputs of float64 it leaves alone, and of float16 there are none where bfloat16 is used.
UNUSUAL = (torch.float64, torch.float16)
DTYPES = [
    pytest.param(dtype, autocast, marks=[pytest.mark.slow] if autocast and dtype in UNUSUAL else [])
    for dtype in FLOATS
    for autocast in (False, True)
]


@pytest.mark.parametrize(("dtype", "autocast"), DTYPES, ids=str)
@over_backends
def test_every_gradient_is_finite_in_every_dtype(dtype, autocast, backend):
    some = [*(margins.get(name)() for name in margins.names()), SphereFace(1.7)]
    for margin, (unit_x, unit_w) in itertools.product(some, SIDES):
        for name, (x, W, y) in cases().items():
            x, W = x.to(dtype), W.to(dtype)
            if not (x.isfinite().all() and W.isfinite().all()):
                continue  # 1e20 is not a number of this dtype
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                losses, grads = gradients(
                    x, W, y, margin, scale=64.0, unit_features=unit_x, unit_weight=unit_w, backend=backend
                )
            assert losses.isfinite().all(), (margin, name)
            assert losses.dtype == torch.promote_types(dtype, torch.float32)
            for leaf, grad in grads.items():
                assert grad.isfinite().all(), (margin, name, leaf)
            assert grads["x"].dtype == grads["W"].dtype == dtype


def test_a_gradient_too_large_for_its_dtype_saturates():
    x = torch.tensor([[3e-5, 4e-5]], dtype=torch.float16)
    W, y = torch.eye(2, dtype=torch.float16), torch.tensor([0])
    _, grads = gradients(x, W, y, CosFace(0.35), scale=64.0)
    assert grads["x"].abs().max() == torch.finfo(torch.float16).max
    _, grads = gradients(torch.tensor([[3e-45, 1e-44]]), W.float(), y, CosFace(0.35), scale=64.0)
    assert grads["x"].abs().max() == torch.finfo(torch.float32).max


def test_a_zero_initialised_classifier_learns():
    """|W_y| and the angle have no gradient at W = 0, the product has: it must be cross-entropy's."""
    x, y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64), torch.arange(8) % 3
    W = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    for margin in ALL_MARGINS:
        loss = hm.margin_softmax(x, W, y, margin, unit_features=False, unit_weight=False)
        right = torch.nn.functional.cross_entropy(x @ W.T, y)
        (ours,), (theirs,) = torch.autograd.grad(loss, W), torch.autograd.grad(right, W)
        assert math.isclose(loss.item(), math.log(3))
        torch.testing.assert_close(ours, theirs)


@over_backends
def test_a_second_run_gives_the_same_bits(backend):
    rng = torch.Generator().manual_seed(0)
    x, W = torch.randn(4096, 16, generator=rng), torch.randn(40, 16, generator=rng)
    y = torch.randint(0, 40, (4096,), generator=rng)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # with one, everything is repeatable
    try:
        first = gradients(x, W, y, ArcFace(), scale=16.0, backend=backend)[1]
        for _ in range(6):  # where W[y] is summed by autograd, every one of them differs
            again = gradients(x, W, y, ArcFace(), scale=16.0, backend=backend)[1]
            assert all(torch.equal(first[k], again[k]) for k in first)
    finally:
        torch.set_num_threads(threads)
