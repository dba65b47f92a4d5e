"""What must hold of the loss, for every margin and every backend, on inputs drawn by hypothesis."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import ALL_MARGINS, over_backends, over_margins
from hypothesis import given, settings
from hypothesis import strategies as st

import hypermargin as hm
from hypermargin import margins
from hypermargin.backends import Call, find_backend
from hypermargin.layout import ClassTable
from hypermargin.margins import AdaFace, ArcFace, Combined, CosFace, NoMargin, SphereFace
from hypermargin.numerics import unit
from hypermargin.rules import SOFTMAX, MVSoftmax

seeds = st.integers(0, 10**6)
sizes = st.tuples(st.integers(1, 7), st.integers(2, 9), st.integers(2, 6))  # N, C, d
few = settings(max_examples=6)  # with every margin and backend, where the sizes are given


def draw(seed, size=(5, 7, 4), dtype=torch.float64):
    N, C, d = size
    rng = torch.Generator().manual_seed(seed)
    x, W = torch.randn(N, d, generator=rng, dtype=dtype), torch.randn(C, d, generator=rng, dtype=dtype)
    return x, W, torch.randint(0, C, (N,), generator=rng)


def losses(x, W, y, margin, **options):
    return hm.margin_softmax(x, W, y, margin, reduction="none", **options)


def geometry(x, W, y, margin):
    """cosines, the target's cosine, ψ."""
    c = unit(x) @ unit(W).T
    c_y = c.gather(1, y[:, None]).squeeze(1)
    return c, c_y, margin.psi(c_y.clamp(-1, 1).acos())


def close(a, b, tol=1e-10):
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


@over_backends
@over_margins
@given(seeds, sizes, st.floats(0.1, 64))
def test_is_cross_entropy_of_the_margined_logits(margin, backend, seed, size, s):
    x, W, y = draw(seed, size)
    c, _, psi = geometry(x, W, y, margin)
    z = (s * c).scatter(1, y[:, None], s * psi[:, None])
    ours = losses(x, W, y, margin, scale=s, backend=backend)
    close(ours, F.cross_entropy(z, y, reduction="none"), 1e-9)
    close(ours, hm.margin_cross_entropy(c, y, margin, s, reduction="none"), 1e-9)
    smooth = losses(x, W, y, margin, scale=s, backend=backend, label_smoothing=0.2)
    close(smooth, F.cross_entropy(z, y, reduction="none", label_smoothing=0.2), 1e-9)
    close(smooth, hm.margin_cross_entropy(c, y, margin, s, reduction="none", label_smoothing=0.2), 1e-9)


@over_backends
@over_margins
@few
@given(seeds, st.floats(0.1, 30))
def test_the_loss_from_the_plain_loss(margin, backend, seed, s):
    """L = log(1 + (e^{L₀} − 1)e^δ), δ = s(cos θ_y − ψ), and so L₀ ≤ L ≤ L₀ + δ for δ ≥ 0."""
    x, W, y = draw(seed)
    _, c_y, psi = geometry(x, W, y, margin)
    plain = losses(x, W, y, NoMargin(), scale=s, backend=backend)
    ours = losses(x, W, y, margin, scale=s, backend=backend)
    delta = s * (c_y - psi)
    close(ours, torch.log1p(torch.expm1(plain) * delta.exp()), 1e-7)
    if "below cos" not in margin.breaks:
        assert (plain - 1e-9 <= ours).all()
        assert (ours <= plain + delta + 1e-9).all()


@over_backends
@over_margins
@few
@given(seeds, st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_normalised_sides_do_not_feel_length(margin, backend, seed, a, b):
    x, W, y = draw(seed)
    x, W = x.requires_grad_(), W.requires_grad_()
    options = {"scale": 8.0, "backend": backend, "reduction": "sum"}
    here = hm.margin_softmax(x, W, y, margin, **options)
    there = hm.margin_softmax(a * x.detach(), b * W.detach(), y, margin, **options)
    close(here.detach(), there, 1e-9)
    dx, dW = torch.autograd.grad(here, (x, W))
    assert (dx * x).sum(1).abs().max() < 1e-9  # orthogonal: a step changes the angle only
    assert (dW * W).sum(1).abs().max() < 1e-9
    xa = (a * x.detach()).requires_grad_()
    (dxa,) = torch.autograd.grad(hm.margin_softmax(xa, W.detach(), y, margin, **options), xa)
    close(a * dxa, dx, 1e-8)


@over_backends
@over_margins
@few
@given(seeds)
def test_order_and_rotation_do_not_matter(margin, backend, seed):
    x, W, y = draw(seed)
    for sides in ({}, {"unit_features": False, "unit_weight": False}):
        here = losses(x, W, y, margin, scale=5.0, backend=backend, **sides)
        rng = torch.Generator().manual_seed(seed + 1)
        rows, classes = torch.randperm(len(x), generator=rng), torch.randperm(len(W), generator=rng)
        close(losses(x[rows], W, y[rows], margin, scale=5.0, backend=backend, **sides), here[rows])
        close(losses(x, W[classes], classes.argsort()[y], margin, scale=5.0, backend=backend, **sides), here)
        Q, _ = torch.linalg.qr(torch.randn(4, 4, generator=rng, dtype=torch.float64))
        close(losses(x @ Q, W @ Q, y, margin, scale=5.0, backend=backend, **sides), here, 1e-8)


@over_backends
@over_margins
@few
@given(seeds, st.floats(0.5, 30))
def test_the_derivatives_by_m_and_s(margin, backend, seed, s):
    """dL/dm = −s(1−p_y)·dψ/dm and dL/ds = E_p[ĉ] − ψ, ĉ = cosines with ψ at y."""
    x, W, y = draw(seed)
    c, c_y, psi = geometry(x, W, y, margin)
    p = (s * c).scatter(1, y[:, None], s * psi[:, None]).softmax(1)
    p_y = p.gather(1, y[:, None]).squeeze(1)
    scale = torch.tensor(s, dtype=torch.float64, requires_grad=True)
    # A margin with a weight that counts as constant has no derivative by m.
    fixed = margin.m is None or "finite slope" in margin.breaks
    m = None if fixed else torch.tensor(margin.m, dtype=torch.float64, requires_grad=True)
    loss = losses(x, W, y, margin, scale=scale, m=m, backend=backend).sum()
    margined = c.scatter(1, y[:, None], psi[:, None])
    close(torch.autograd.grad(loss, scale, retain_graph=True)[0], ((p * margined).sum(1) - psi).sum(), 1e-7)
    if m is not None:
        theta = c_y.clamp(-1, 1).acos()
        (slope,) = torch.autograd.grad((margin.psi(theta, m) * (1 - p_y)).sum(), m)
        (ours,) = torch.autograd.grad(loss, m)
        close(ours, -s * slope, 1e-6)
        more = -1 if margin.name == "expface" else 1  # of which a smaller m is more margin
        assert (more * ours >= -1e-9).all()  # so a margin learned without a reward always shrinks


@over_backends
@over_margins
@few
@given(seeds)
def test_rows_to_ignore_change_nothing(margin, backend, seed):
    x, W, y = draw(seed)
    more = torch.cat((x, torch.full((2, 4), math.nan, dtype=x.dtype))).requires_grad_()
    labels = torch.cat((y, torch.full((2,), -100)))
    W = W.requires_grad_()
    for reduction in ("mean", "sum"):
        with_them = hm.margin_softmax(more, W, labels, margin, scale=5.0, reduction=reduction, backend=backend)
        without = hm.margin_softmax(x, W, y, margin, scale=5.0, reduction=reduction, backend=backend)
        close(with_them, without)
        dx, dW = torch.autograd.grad(with_them, (more, W))
        assert (dx[-2:] == 0).all()
        close(dW, torch.autograd.grad(without, W)[0])
    nobody = hm.margin_softmax(more, W, torch.full_like(labels, -100), margin, scale=5.0, backend=backend)
    assert nobody == 0
    assert (torch.autograd.grad(nobody, W)[0] == 0).all()


@over_backends
@over_margins
@few
@given(seeds, st.floats(0, 1))
def test_mixup_is_the_mixture_of_two_losses(margin, backend, seed, share):
    x, W, y = draw(seed)
    other = (y * 3 + 1) % len(W)
    other[0] = y[0]  # mixed with its own class
    for options in ({}, {"label_smoothing": 0.1}, {"bias": torch.linspace(-1, 1, len(W), dtype=x.dtype)}):
        apart = [losses(x, W, labels, margin, scale=4.0, backend=backend, **options) for labels in (y, other)]
        ours = losses(x, W, y, margin, scale=4.0, backend=backend, mix=(other, share), **options)
        close(ours, share * apart[0] + (1 - share) * apart[1])
        by_row = torch.full((len(x),), share, dtype=x.dtype)
        close(losses(x, W, y, margin, scale=4.0, backend=backend, mix=(other, by_row), **options), ours)


@over_backends
@over_margins
@few
@given(seeds, st.floats(0.5, 8))
def test_fewer_rivals_cost_less(margin, backend, seed, s):
    """Partial FC's loss over a subset of the classes is a lower bound."""
    x, W, y = draw(seed, (5, 9, 4))
    y = y % 4
    subset = losses(x, W[:6], y, margin, scale=s, backend=backend)
    assert (subset <= losses(x, W, y, margin, scale=s, backend=backend)).all()


@over_backends
@over_margins
@few
@given(seeds, st.floats(0.1, 64))
def test_two_classes_are_logistic_regression(margin, backend, seed, s):
    x, W, y = draw(seed, (6, 2, 4))
    c, _, psi = geometry(x, W, y, margin)
    other = c.gather(1, 1 - y[:, None]).squeeze(1)
    close(losses(x, W, y, margin, scale=s, backend=backend), F.softplus(s * (other - psi), threshold=1e9), 1e-8)


@over_backends
@over_margins
@few
@given(seeds)
def test_without_scale_nothing_is_known(margin, backend, seed):
    x, W, y = draw(seed)
    close(losses(x, W, y, margin, scale=1e-9, backend=backend), torch.full((5,), math.log(7), dtype=x.dtype), 1e-7)


@over_backends
@over_margins
@few
@given(seeds)
def test_margins_by_row_and_by_class(margin, backend, seed):
    x, W, y = draw(seed)
    if margin.m is None:
        return
    m = torch.tensor(margin.m, dtype=x.dtype)
    grow = 1 + torch.arange(len(W), dtype=x.dtype) / 20
    by_class = grow.reshape(-1, *[1] * m.dim()) * m
    ours = losses(x, W, y, margin, m=by_class, scale=5.0, backend=backend)
    by_row = losses(x, W, y, margin, m=by_class[y].unsqueeze(1), scale=5.0, backend=backend)
    close(ours, by_row)
    for i in range(len(x)):
        one = losses(x[i : i + 1], W, y[i : i + 1], margin, m=by_class[y[i]], scale=5.0, backend=backend)
        close(ours[i : i + 1], one)
    scale = torch.linspace(1, 9, len(x), dtype=x.dtype)
    apart = [
        losses(x[i : i + 1], W, y[i : i + 1], margin, scale=scale[i].item(), backend=backend) for i in range(5)
    ]
    close(losses(x, W, y, margin, scale=scale, backend=backend), torch.cat(apart))


# The second derivatives of a margin at other settings are slow; the first are the oracle's, in test_exact.py.
GRADCHECKS = [
    pytest.param(margin, how, marks=[pytest.mark.slow] if how == "exact" and k >= len(margins.names()) else [])
    for how in ("exact", "straight")
    for k, margin in enumerate(ALL_MARGINS)
    if how == "straight" or "finite slope" not in margin.breaks
]


@over_backends
@pytest.mark.parametrize(("margin", "gradient"), GRADCHECKS, ids=str)
def test_gradcheck(margin, backend, gradient):
    x, W, y = draw(1, (2, 4, 3))  # one class more than a block has
    b, s = torch.linspace(-1, 1, 4, dtype=x.dtype), torch.tensor(6.0, dtype=x.dtype)
    leaves = [t.requires_grad_() for t in (x, W, b, s)]
    mix = (torch.tensor([0, 1]), 0.3)

    def loss(x, W, b, s):
        return hm.margin_softmax(x, W, y, margin, bias=b, scale=s, label_smoothing=0.1, mix=mix, backend=backend)

    if gradient == "exact":
        torch.autograd.gradcheck(loss, leaves)
        torch.autograd.gradgradcheck(loss, leaves)
        by_func = torch.func.grad(loss, argnums=(0, 1, 2, 3))(*(t.detach() for t in leaves))
        for a, b in zip(by_func, torch.autograd.grad(loss(*leaves), leaves), strict=True):
            close(a, b)
    elif margin.m is not None and margin.m != margin.zero and not isinstance(margin, CosFace | AdaFace):
        # straight-through is by design not the derivative; only dψ/dcos = 1 makes both one
        straight = hm.margin_softmax(x, W, y, margin, scale=s, gradient="straight", backend=backend)
        exact = hm.margin_softmax(x, W, y, margin, scale=s, backend=backend)
        close(straight, exact)
        off = torch.autograd.grad(straight, x)[0] - torch.autograd.grad(exact, x)[0]
        assert off.abs().max() > 1e-3


@given(seeds)
def test_slope_one_makes_exact_and_straight_one(seed):
    x, W, y = draw(seed)
    x.requires_grad_()
    for margin in (CosFace(0.35), NoMargin()):
        grads = [
            torch.autograd.grad(hm.margin_softmax(x, W, y, margin, scale=8.0, gradient=how), x)[0]
            for how in ("exact", "straight")
        ]
        close(*grads)


@given(seeds, st.floats(0.5, 20))
def test_zero_sums(seed, s):
    """Σ_j dL/dz_j = 0 always; Σ_j dL/dcos_j = 0 only where ψ′ = 1."""
    x, W, y = draw(seed)
    c = (unit(x) @ unit(W).T).requires_grad_()
    for margin, zero in ((CosFace(0.3), True), (NoMargin(), True), (ArcFace(0.5), False)):
        (by_cos,) = torch.autograd.grad(hm.margin_cross_entropy(c, y, margin, s, reduction="sum"), c)
        assert (by_cos.sum(1).abs().max() < 1e-9) == zero
        (by_cos,) = torch.autograd.grad(
            hm.margin_cross_entropy(c, y, margin, s, reduction="sum", gradient="straight"), c
        )
        assert by_cos.sum(1).abs().max() < 1e-9
    b = torch.zeros(len(W), dtype=x.dtype, requires_grad=True)  # dL/db is dL/dz
    (by_z,) = torch.autograd.grad(hm.margin_softmax(x, W, y, ArcFace(), scale=s, bias=b), b)
    assert by_z.sum().abs() < 1e-12


@given(seeds, st.floats(0.5, 20))
def test_the_shares_of_the_rivals_do_not_depend_on_the_margin(seed, s):
    x, W, y = draw(seed)
    b = torch.zeros(len(x), len(W), dtype=x.dtype)
    c = unit(x) @ unit(W).T
    rival = torch.ones_like(b, dtype=torch.bool).scatter(1, y[:, None], False)
    shares = []
    for margin in (NoMargin(), CosFace(0.4), ArcFace(0.6), SphereFace(3.0)):
        leaf = c.clone().requires_grad_()
        (grad,) = torch.autograd.grad(hm.margin_cross_entropy(leaf, y, margin, s, reduction="sum"), leaf)
        p = grad[rival].reshape(len(x), -1)
        shares.append(p / p.sum(1, keepdim=True))
    for other in shares[1:]:
        close(other, shares[0], 1e-8)


@given(seeds, st.floats(0.5, 20))
def test_margined_probabilities_do_not_sum_to_one(seed, s):
    """p(c), computed with the margin on c, sums to at most 1 over c; without a margin to exactly 1."""
    x, W, _ = draw(seed)
    for margin in (CosFace(0.3), ArcFace(0.4), SphereFace(2.0), Combined()):
        each = [torch.exp(-losses(x, W, torch.full((5,), c), margin, scale=s)) for c in range(7)]
        assert (sum(each) < 1).all()
    head = hm.MarginHead(4, 7, ArcFace(), scale=s, dtype=torch.float64)
    close(head.predict_proba(x).sum(1), torch.ones(5, dtype=x.dtype))


@over_backends
@given(seeds, st.floats(0.2, 3))
def test_the_family_meets_at_zero_margin(backend, seed, s):
    x, W, y = draw(seed)
    free = {"unit_features": False, "unit_weight": False, "scale": s, "backend": backend}
    half = {"unit_features": False, "scale": s, "backend": backend}
    close(losses(x, W, y, SphereFace(1.0), **free), F.cross_entropy(s * x @ W.T, y, reduction="none"))
    close(losses(x, W, y, SphereFace(1.0), **half), F.cross_entropy(s * x @ unit(W).T, y, reduction="none"))
    for margin in (CosFace(0.0), ArcFace(0.0), Combined(1.0, 0.0, 0.0), SphereFace(1.0), NoMargin()):
        right = F.cross_entropy(s * unit(x) @ unit(W).T, y, reduction="none")
        close(losses(x, W, y, margin, scale=s, backend=backend), right)


@over_backends
@given(seeds, st.floats(1, 4))
def test_l_softmax_with_unit_rows_is_a_softmax_and_every_rival_keeps_its_own_length(backend, seed, m):
    x, W, y = draw(seed)
    here = losses(x, unit(W), y, SphereFace(m), unit_features=False, unit_weight=False, backend=backend)
    close(here, losses(x, W, y, SphereFace(m), unit_features=False, unit_weight=True, backend=backend))
    # written out: |W_y| for the target alone, |W_j| for rival j
    theta = (unit(x) @ unit(W).T).clamp(-1, 1).acos()
    z = x.norm(dim=1)[:, None] * W.norm(dim=1) * theta.cos()
    psi = SphereFace(m).psi(theta.gather(1, y[:, None]))
    z = z.scatter(1, y[:, None], x.norm(dim=1)[:, None] * W[y].norm(dim=1)[:, None] * psi)
    ours = losses(x, W, y, SphereFace(m), unit_features=False, unit_weight=False, backend=backend)
    close(ours, F.cross_entropy(z, y, reduction="none"), 1e-8)


@over_backends
@given(seeds, st.floats(-5, 5))
def test_bias(backend, seed, shift):
    x, W, y = draw(seed)
    b = torch.linspace(-1, 1, 7, dtype=x.dtype)
    free = {"unit_features": False, "unit_weight": False, "backend": backend}
    for margin in (NoMargin(), SphereFace(2.0)):
        here = losses(x, W, y, margin, bias=b, **free)
        close(here, losses(x, W, y, margin, bias=b + shift, **free), 1e-9)  # equal biases cancel
    x1, Wb = torch.cat((x, torch.ones(5, 1, dtype=x.dtype)), 1), torch.cat((W, b[:, None]), 1)
    close(losses(x, W, y, NoMargin(), bias=b, **free), losses(x1, Wb, y, NoMargin(), **free))
    # for a margin the augmented angle is another angle
    assert (
        losses(x, W, y, SphereFace(2.0), bias=b, **free) - losses(x1, Wb, y, SphereFace(2.0), **free)
    ).abs().max() > 1e-6


@given(seeds)
def test_softmax_calculus(seed):
    """Jacobian p_j(δ_ij − p_i); cross-entropy = KL + entropy; both seen through the head."""
    x, W, y = draw(seed)
    head = hm.MarginHead(4, 7, NoMargin(), unit_features=False, unit_weight=False, dtype=torch.float64)
    head.weight.data = W
    p = head.predict_proba(x)[0]
    J = torch.autograd.functional.jacobian(lambda z: z.softmax(0), head.logits(x)[0].detach())
    close(J, torch.diag(p) - torch.outer(p, p))
    eps = 0.1
    q = torch.full((5, 7), eps / 7, dtype=x.dtype).scatter(1, y[:, None], 1 - eps + eps / 7)
    ce = losses(x, W, y, NoMargin(), unit_features=False, unit_weight=False, label_smoothing=eps)
    entropy = -(q * q.log()).sum(1)
    kl = F.kl_div(head.predict_proba(x).log(), q, reduction="none").sum(1)
    close(ce, kl + entropy)


@over_backends
@given(seeds, st.integers(1, 8))
def test_slices_of_the_classes_combine(backend, seed, cut):
    """What a sharded head stands on: a label outside the slice contributes rivals only."""
    x, W, y = draw(seed, (6, 9, 4))
    b = torch.linspace(-1, 1, 9, dtype=x.dtype)
    labels = torch.stack((y, (y + 4) % 9), 1)
    for unit_weight, rule in (
        (True, SOFTMAX),
        (False, SOFTMAX),
        (True, MVSoftmax()),
        (True, hm.rules.SphereFace2()),
    ):
        at_rows = rule.at((3 * x).norm(dim=1, keepdim=True), torch.linspace(-0.4, 0.4, 6, dtype=x.dtype)[:, None])
        call = find_backend(backend).fitted(Call(6, 9, x.device, x.dtype, 4, rule))

        def found(start, stop, at_rows=at_rows, call=call, unit_weight=unit_weight):
            local = labels - start
            inside = (local >= 0) & (local < stop - start)
            table = ClassTable(W[start:stop], unit_weight, b[start:stop], local, inside)
            found = call(3 * x, table, at_rows, rival_sum=at_rows.rule.is_softmax, hardest=True)
            return found._replace(rows=found.rows.masked_fill(~inside[..., None], 0.0))

        whole, left, right = found(0, 9), found(0, cut), found(cut, 9)
        close(left.rows + right.rows, whole.rows)
        close(rule.aggregate.join(left.rivals, right.rivals), whole.rivals)
        close(torch.maximum(left.hardest, right.hardest), whole.hardest)
        if rule is SOFTMAX:
            close(left.rival_sum + right.rival_sum, whole.rival_sum)


@given(seeds, st.floats(0, 10))
def test_lambda_blends_in_the_plain_cosine(seed, lam):
    x, W, y = draw(seed)
    constant = losses(x, W, y, SphereFace(3.0, lam=lam), scale=4.0)
    close(losses(x, W, y, SphereFace(3.0), lam=lam, scale=4.0), constant)
    close(losses(x, W, y, SphereFace(3.0), lam=torch.tensor(lam, dtype=x.dtype), scale=4.0), constant)
    far = losses(x, W, y, SphereFace(3.0), lam=1e12, scale=4.0)
    close(far, losses(x, W, y, NoMargin(), scale=4.0), 1e-9)


def test_a_margin_of_your_own_gets_everything():
    @dataclasses.dataclass(frozen=True)
    class Bent(hm.margins.Margin):
        """ψ(θ) = cos θ − 0.1·θ²."""

        def psi(self, theta, m=None):
            return theta.cos() - 0.1 * theta**2

    hm.testing.check_margin(Bent())
    x, W, y = draw(0)
    theta = (unit(x) @ unit(W).T).gather(1, y[:, None]).acos()
    z = (6 * unit(x) @ unit(W).T).scatter(1, y[:, None], 6 * (theta.cos() - 0.1 * theta**2))
    close(losses(x, W, y, Bent(), scale=6.0), F.cross_entropy(z, y, reduction="none"))
    assert hm.MarginHead(4, 7, Bent(), scale=6.0)(x.float(), y).isfinite()
