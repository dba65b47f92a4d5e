"""The ladder from the hinge to AM-Softmax: its order, its limits, its gradients."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from hypermargin.hinge import hidden_margin, lse_hinge, max_hinge, softplus_hinge, sum_hinge

RUNGS = {
    "sum": lambda c, y, m, **kw: sum_hinge(c, y, m=m, **kw),
    "max": lambda c, y, m, **kw: max_hinge(c, y, m=m, **kw),
    "lse": lambda c, y, m, **kw: lse_hinge(c, y, m=m, s=7.0, **kw),
    "softplus": lambda c, y, m, **kw: softplus_hinge(c, y, m=m, s=7.0, **kw),
}
fixed = settings(derandomize=True, max_examples=60, deadline=None, database=None)
ladder = given(
    seed=st.integers(0, 10_000),
    C=st.integers(2, 40),
    m=st.floats(0.0, 1.5),
    s=st.floats(0.1, 200.0),
    spread=st.floats(0.01, 3.0),
)


def make(seed=0, N=6, C=9, spread=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    scores = spread * torch.randn(N, C, generator=generator, dtype=torch.float64)
    return scores.to(dtype), torch.randint(C, (N,), generator=generator)


def gradient(rung, scores, labels, m, **kw):
    scores = scores.clone().requires_grad_()
    rung(scores, labels, m=m, reduction="sum", **kw).backward()
    return scores.grad


def without_target(scores, labels):
    """The rivals' columns, row by row: the plain definition to compare with."""
    keep = torch.ones_like(scores, dtype=torch.bool).scatter(1, labels[:, None], False)
    return scores[keep].view(len(scores), -1)


@fixed
@ladder
def test_the_rungs_are_ordered(seed, C, m, s, spread):
    c, y = make(seed, C=C, spread=spread)
    S = sum_hinge(c, y, m=m, reduction="none")
    H = max_hinge(c, y, m=m, reduction="none")
    H_s = lse_hinge(c, y, m=m, s=s, reduction="none")
    L = softplus_hinge(c, y, m=m, s=s, reduction="none")
    tiny = 1e-12
    for lower, upper in [(H, S), (S, (C - 1) * H), (H, H_s), (H_s, L / s), (L / s, H + math.log(C) / s)]:
        assert (lower <= upper + tiny).all()


def test_values_by_hand():
    c, y = torch.tensor([[0.5, 0.4, 0.2, -0.9]]), torch.tensor([0])  # v = 0.2, 0.0, −1.1 for m = 0.3
    assert sum_hinge(c, y, m=0.35).item() == pytest.approx(0.25 + 0.05)
    assert max_hinge(c, y, m=0.35).item() == pytest.approx(0.25)
    total = math.exp(10 * 0.25) + math.exp(10 * 0.05) + math.exp(-10 * 1.05)
    assert lse_hinge(c, y, m=0.35, s=10.0).item() == pytest.approx(math.log(total) / 10)
    assert softplus_hinge(c, y, m=0.35, s=10.0).item() == pytest.approx(math.log1p(total))
    assert max_hinge(c, y, m=0.05).item() == 0.0


def test_both_bounds_are_reached():
    # One violator: S = H. All rivals level: S = (C−1)·H, and L/s = H + ln(C)/s when v = 0.
    one, y = torch.tensor([[0.0, 1.0, -9.0]]), torch.tensor([0])
    assert sum_hinge(one, y, m=0.5) == max_hinge(one, y, m=0.5) == 1.5
    level = torch.zeros(1, 5, dtype=torch.float64)
    assert sum_hinge(level, y, m=0.5) == 4 * max_hinge(level, y, m=0.5)
    assert softplus_hinge(level, y, m=0.0, s=8.0).item() == pytest.approx(math.log(5), rel=1e-14)


def test_large_scale_gives_the_max_hinge():
    c, y = make(3)
    H = max_hinge(c, y, m=0.4, reduction="none")
    gaps = [(softplus_hinge(c, y, m=0.4, s=s, reduction="none") / s - H).max().item() for s in (1e1, 1e3, 1e5)]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 3e-5
    assert gaps[0] > 1e-2  # and at a small scale it is something else


@fixed
@ladder
def test_softplus_hinge_is_cross_entropy_of_margined_scores(seed, C, m, s, spread):
    c, y = make(seed, C=C, spread=spread)
    z = s * (c - m * F.one_hot(y, C).to(c.dtype))
    loss = softplus_hinge(c, y, m=m, s=s, reduction="none")
    torch.testing.assert_close(loss, F.cross_entropy(z, y, reduction="none"), rtol=1e-11, atol=1e-11)


def test_keeps_digits_where_cross_entropy_returns_zero():
    c, y = torch.tensor([[1.0, -0.2, -0.3]]), torch.tensor([0])
    exact = softplus_hinge(c.double(), y, m=0.1, s=30.0).item()
    assert F.cross_entropy(30 * (c - torch.tensor([[0.1, 0, 0]])), y).item() == 0.0
    assert softplus_hinge(c, y, m=0.1, s=30.0).item() == pytest.approx(exact, rel=1e-5)
    assert exact > 0


@fixed
@ladder
def test_gradient_norms(seed, C, m, s, spread):
    """Why the sum hinge explodes with C and the others do not: the L1 norm of the gradient, row by row."""
    c, y = make(seed, C=C, spread=spread)
    violators = (without_target(m + c - c.gather(1, y[:, None]), y) > 0).sum(1)
    torch.testing.assert_close(gradient(sum_hinge, c, y, m).abs().sum(1), 2.0 * violators.double())
    torch.testing.assert_close(gradient(max_hinge, c, y, m).abs().sum(1), 2.0 * (violators > 0).double())
    by_lse = gradient(lse_hinge, c, y, m, s=s).abs().sum(1)
    assert (by_lse <= 2 + 1e-12).all()
    assert (by_lse[violators > 0] > 2 - 1e-9).all()
    z = s * (c - m * F.one_hot(y, C).to(c.dtype))
    q = 1 - z.softmax(1).gather(1, y[:, None]).squeeze(1)
    torch.testing.assert_close(
        gradient(softplus_hinge, c, y, m, s=s).abs().sum(1), 2 * s * q, rtol=1e-6, atol=1e-11
    )


def test_sum_hinge_gradient_grows_with_the_classes():
    norms = []
    for C in (10, 1000):
        c, y = torch.zeros(1, C, dtype=torch.float64), torch.tensor([0])
        norms.append(gradient(sum_hinge, c, y, 0.5).abs().sum().item())
        assert gradient(max_hinge, c, y, 0.5).abs().sum().item() == pytest.approx(2.0)
        assert gradient(softplus_hinge, c, y, 0.5, s=1.0).abs().sum().item() <= 2.0
    assert norms == [18.0, 1998.0]


def test_plain_softmax_gradient():
    z, y = make(5)
    p_y = z.softmax(1).gather(1, y[:, None]).squeeze(1)
    torch.testing.assert_close(gradient(softplus_hinge, z, y, 0.0, s=1.0).abs().sum(1), 2 * (1 - p_y))


def test_derivative_of_lse_is_softmax_over_the_rivals():
    c, y = make(7, spread=0.2)
    s, m = 4.0, 5.0  # a margin so large that every row violates it
    g = gradient(lse_hinge, c, y, m, s=s)
    torch.testing.assert_close(without_target(g, y), (s * without_target(c, y)).softmax(1))
    torch.testing.assert_close(g.gather(1, y[:, None]), -torch.ones(len(c), 1, dtype=c.dtype))


@fixed
@ladder
def test_hidden_margin(seed, C, m, s, spread):
    c, y = make(seed, C=C, spread=spread)
    hidden = hidden_margin(c, y, s=s)
    assert (hidden >= 0).all()
    assert (hidden <= math.log(C - 1) / s + 1e-12).all()
    rivals = without_target(c, y)
    torch.testing.assert_close(hidden, (s * rivals).logsumexp(1) / s - rivals.amax(1), rtol=1e-9, atol=1e-11)
    # It acts like that much more m: where the hinge is active, H_s(m) = H(m + hidden).
    for row in range(len(c)):
        more = max_hinge(c[row : row + 1], y[row : row + 1], m=m + hidden[row].item()).item()
        assert lse_hinge(c[row : row + 1], y[row : row + 1], m=m, s=s).item() == pytest.approx(more, abs=1e-9)


def test_hidden_margin_reaches_its_bounds():
    y = torch.tensor([0])
    assert hidden_margin(torch.zeros(1, 9, dtype=torch.float64), y, s=4.0).item() == pytest.approx(math.log(8) / 4)
    assert hidden_margin(torch.tensor([[0.0, 1.0, -999.0]]), y, s=4.0).item() == 0.0
    assert hidden_margin(torch.zeros(1, 2), y, s=4.0).item() == 0.0


@pytest.mark.parametrize("rung", RUNGS)
def test_gradcheck(rung):
    c, y = make(11, N=3, C=5)
    assert torch.autograd.gradcheck(lambda c: RUNGS[rung](c, y, 0.3), (c.requires_grad_(),))


@pytest.mark.parametrize("rung", RUNGS)
def test_one_class_costs_nothing(rung):
    c = torch.randn(4, 1, requires_grad=True)
    loss = RUNGS[rung](c, torch.zeros(4, dtype=torch.long), 0.5)
    loss.backward()
    assert loss.item() == 0.0
    assert (c.grad == 0).all()
    assert (hidden_margin(c, torch.zeros(4, dtype=torch.long), s=2.0) == 0).all()


@pytest.mark.parametrize("rung", RUNGS)
def test_reductions_and_empty_batch(rung):
    c, y = make(13)
    rows = RUNGS[rung](c, y, 0.3, reduction="none")
    assert rows.shape == y.shape
    torch.testing.assert_close(RUNGS[rung](c, y, 0.3, reduction="sum"), rows.sum())
    torch.testing.assert_close(RUNGS[rung](c, y, 0.3), rows.mean())
    assert RUNGS[rung](c[:0], y[:0], 0.3).item() == 0.0


@pytest.mark.parametrize("rung", RUNGS)
def test_half_precision_is_computed_in_float32(rung):
    c, y = make(17, dtype=torch.bfloat16)
    loss = RUNGS[rung](c.requires_grad_(), y, 0.3)
    loss.backward()
    torch.testing.assert_close(loss, RUNGS[rung](c.detach().float(), y, 0.3))
    assert c.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("rung", RUNGS)
def test_huge_scores_stay_finite(rung):
    c = torch.tensor([[1e30, -1e30, 3.0], [-1e30, 1e30, 3.0]], requires_grad=True)
    loss = RUNGS[rung](c, torch.tensor([0, 0]), 0.3)
    loss.backward()
    assert loss.isfinite()
    assert c.grad.isfinite().all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"scores": torch.zeros(3)},
            ValueError,
            r"scores must be a floating .* got .* shape \(3,\)",
        ),
        ({"scores": torch.zeros(3, 0)}, ValueError, "C ≥ 1"),
        ({"scores": torch.zeros(3, 4, dtype=torch.long)}, ValueError, "floating"),
        (
            {"labels": torch.zeros(3)},
            TypeError,
            "labels must be integer .* got torch.float32. Convert with",
        ),
        ({"labels": torch.zeros(3, dtype=torch.bool)}, TypeError, "labels must be integer"),
        ({"labels": torch.zeros(2, dtype=torch.long)}, ValueError, r"labels must have shape \(3,\).* got \(2,\)"),
        (
            {"labels": torch.tensor([0, 4, 1])},
            ValueError,
            r"labels must lie in \[0, 4\); got 4 at row 1",
        ),
        ({"labels": torch.tensor([0, 1, -1])}, ValueError, "got -1 at row 2"),
        ({"m": math.nan}, ValueError, "m must be a finite number; got nan"),
        ({"s": 0.0}, ValueError, "s must be positive and finite; got 0"),
        ({"s": math.inf}, ValueError, "s must be positive and finite; got inf"),
        ({"reduction": "avg"}, ValueError, "reduction must be one of 'mean', 'sum', 'none'; got 'avg'"),
    ],
)
def test_errors_name_the_argument(change, error, message):
    good = {"scores": torch.zeros(3, 4), "labels": torch.zeros(3, dtype=torch.long), "m": 0.1, "s": 1.0}
    with pytest.raises(error, match=message):
        softplus_hinge(**{**good, **change})
