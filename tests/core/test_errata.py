"""The mistakes of docs/errata.md, each written out beside what is right."""

import math

import pytest
import torch
import torch.nn.functional as F

from hypermargin import MarginHead, create_head, margin_cross_entropy, margin_softmax
from hypermargin.advise import adacos_scale, loss_floor, smallest_scale
from hypermargin.margins import ArcFace, Combined, CosFace, NoMargin, Piecewise, SphereFace

THETA = torch.linspace(0.0, math.pi, 20_001, dtype=torch.float64)
GRID = math.pi / 20_000


def make(N=6, C=5, d=4, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N, d, generator=generator, dtype=torch.float64)
    W = torch.randn(C, d, generator=generator, dtype=torch.float64)
    return x.to(dtype), W.to(dtype), torch.randint(C, (N,), generator=generator)


def cosines(N=4000, C=200, seed=0):
    """Cosines as a trained network gives them: the target often far ahead of the rivals."""
    generator = torch.Generator().manual_seed(seed)
    c = 0.6 * torch.rand(N, C, generator=generator, dtype=torch.float64) - 0.3
    y = torch.randint(C, (N,), generator=generator)
    target = 1.1 * torch.rand(N, 1, generator=generator, dtype=torch.float64) - 0.1
    return c.scatter(1, y[:, None], target).float(), y


def gradient(function, at):
    at = at.detach().clone().requires_grad_()
    function(at).sum().backward()
    return at.grad


def simplex(C):
    """C unit rows, all at the cosine −1/(C−1) to each other."""
    return F.normalize(torch.eye(C, dtype=torch.float64) - 1 / C)


# ψ


@pytest.mark.parametrize("m", [2, 3, 4])
def test_D_starts_at_minus_one(m):
    start = math.pi / m
    beyond = start < THETA

    def printed(theta):
        return math.cos(start) - (theta - start)

    def right(theta):
        return -1 - (theta - start)

    jump = Piecewise(m=m, D=printed).psi(THETA).diff().max()
    torch.testing.assert_close(jump, torch.tensor(1 + math.cos(start)).double(), atol=2 * GRID, rtol=0)
    psi = Piecewise(m=m, D=right).psi(THETA)
    assert psi.diff().max() <= 0
    assert psi.diff().abs().max() < 2 * m * GRID
    # the published ψ of L-Softmax agrees: its second piece starts at −1
    assert abs(float(SphereFace(m=m).psi(THETA[beyond][:1])) + 1) < 1e-6


def test_cos_three_theta_is_a_cubic():
    c = THETA.cos()
    torch.testing.assert_close(4 * c**3 - 3 * c, (3 * THETA).cos())
    squared = 4 * c**2 - 3 * c
    assert (squared - (3 * THETA).cos()).abs().max() > 7
    assert squared.max() > 1.5, "a cosine stays within [−1, 1]"
    first = math.pi / 3 > THETA
    torch.testing.assert_close(SphereFace(m=3).psi(THETA)[first], (4 * c**3 - 3 * c)[first])
    torch.testing.assert_close(SphereFace(m=3).psi_of_cosine(c)[first], (4 * c**3 - 3 * c)[first])


@pytest.mark.parametrize("m", [1.35, 2.0, 4.0])
def test_bare_cos_m_theta_turns_back_up(m):
    bare, carried = SphereFace(m=m, beyond="none").psi(THETA), SphereFace(m=m).psi(THETA)
    torch.testing.assert_close(bare, (m * THETA).cos())
    past = math.pi / m < THETA[:-1]
    assert (bare.diff()[past] > 0).any()
    assert (bare > THETA.cos() + 1e-3).any(), "beyond its turn the margin is a reward"
    assert (carried.diff() < 1e-12).all()
    assert (carried <= THETA.cos() + 1e-12).all()


def test_linear_fallback_jumps():
    m = 0.5
    drop = math.cos(m) + m * math.sin(m) - 1
    steps = ArcFace(m=m, beyond="linear").psi(THETA).diff()
    assert abs(float(-steps.min()) - drop) < 2 * GRID
    assert drop > 0.117
    for beyond in ("continuous", "smooth"):
        assert ArcFace(m=m, beyond=beyond).psi(THETA).diff().abs().max() < 2 * GRID


def test_easy_margin_jumps_up():
    m, right_angle = 0.5, torch.tensor([math.pi / 2 - 1e-9, math.pi / 2 + 1e-9], dtype=torch.float64)
    low, high = ArcFace(m=m, beyond="easy").psi(right_angle).tolist()
    assert abs(high - low - math.sin(m)) < 1e-6
    assert low < -0.47
    assert abs(high) < 1e-6
    # so turning the wrong way, past 90°, is rewarded
    loss = [
        float(margin_cross_entropy(c[None], torch.tensor([0]), ArcFace(m=m, beyond="easy"), 16.0))
        for c in torch.tensor([[0.01, 0.0], [-0.01, 0.0]], dtype=torch.float64)
    ]
    assert loss[0] > loss[1] + 5
    smooth = ArcFace(m=m).psi(THETA)
    assert (smooth.diff() < 0).all()


def test_combined_keeps_all_three():
    m1, m2, m3 = 1.0, 0.3, 0.2

    def dropping(theta):  # the branches of the common port: ArcFace, else CosFace, else an error
        if m1 == 1.0 and m3 == 0.0:
            return (theta + m2).cos()
        return theta.cos() - m3

    torch.testing.assert_close(dropping(THETA), CosFace(m=m3).psi(THETA))
    inside = math.pi - m2 > THETA
    psi = Combined(m1=m1, m2=m2, m3=m3).psi(THETA)
    torch.testing.assert_close(psi[inside], ((THETA + m2).cos() - m3)[inside])
    assert (dropping(THETA) - psi).max() > 0.29
    assert (Combined(m1=1.2, m2=m2, m3=m3).psi(THETA)[1:] < psi[1:]).all(), "m1 counts too"


# the logits


def test_each_rival_has_its_own_norm():
    x, W, y = make()
    cos = F.normalize(x) @ F.normalize(W).T
    own = x.norm(dim=1, keepdim=True) * W.norm(dim=1) * cos
    target_for_all = x.norm(dim=1, keepdim=True) * W[y].norm(dim=1, keepdim=True) * cos
    loss = margin_softmax(x, W, y, NoMargin(), unit_features=False, unit_weight=False)
    torch.testing.assert_close(own, x @ W.T)
    torch.testing.assert_close(loss, F.cross_entropy(own, y))
    assert abs(loss - F.cross_entropy(target_for_all, y)) > 0.1
    # with a margin too: only the target's own term changes
    margined = own.scatter(1, y[:, None], (x.norm(dim=1) * W[y].norm(dim=1) * _psi2(cos, y))[:, None])
    loss = margin_softmax(x, W, y, SphereFace(m=2), unit_features=False, unit_weight=False)
    torch.testing.assert_close(loss, F.cross_entropy(margined, y))


def _psi2(cos, y):
    """ψ of L-Softmax with m = 2, from its definition."""
    c = cos.gather(1, y[:, None])[:, 0]
    return torch.where(c > 0, 2 * c**2 - 1, -(2 * c**2 - 1) - 2)


def test_a_margin_on_every_class_is_none():
    x, W, y = make()
    s, m = 16.0, 0.35
    cos = F.normalize(x) @ F.normalize(W).T
    plain = margin_softmax(x, W, y, NoMargin(), scale=s)
    torch.testing.assert_close(F.cross_entropy(s * (cos - m), y), plain)
    assert margin_softmax(x, W, y, CosFace(m=m), scale=s) > plain + 1


def test_margined_probabilities_are_not_predictions():
    x, W, _ = make()
    head = MarginHead(4, 5, CosFace(m=0.35), scale=8.0, reduction="none", dtype=torch.float64)
    head.weight.data.copy_(W)
    as_target = torch.stack([(-head(x, torch.full((6,), j))).exp() for j in range(5)], 1)
    assert (as_target.sum(1) < 0.9).all()

    def margined(label):  # what a head that returns its training logits hands out
        z = head.logits(x) - 8.0 * 0.35 * F.one_hot(torch.tensor(label), 5)
        return z.softmax(1)

    torch.testing.assert_close(margined(0).sum(1), torch.ones(6).double())
    assert (margined(0)[:, 0] < margined(1)[:, 0]).all(), "the answer depends on the label that was asked about"
    assert (margined(0).argmax(1) != head.logits(x).argmax(1)).any()
    torch.testing.assert_close(head.predict_proba(x), (8.0 * F.normalize(x) @ F.normalize(W).T).softmax(1))
    torch.testing.assert_close(head.predict_proba(x).sum(1), torch.ones(6).double())


# gradients


def test_straight_gradient_is_not_that_of_psi():
    x, W, y = make()
    margin, step = ArcFace(m=0.5), 1e-6
    generator = torch.Generator().manual_seed(1)
    along = torch.randn(x.shape, generator=generator, dtype=torch.float64)

    def loss(at, gradient="exact"):
        return margin_softmax(at, W, y, margin, scale=4.0, gradient=gradient)

    slope = (loss(x + step * along) - loss(x - step * along)) / (2 * step)
    exact, straight = (gradient(lambda a, k=kind: loss(a, k), x) for kind in ("exact", "straight"))
    assert float(loss(x)) == pytest.approx(float(loss(x, "straight")), rel=1e-12), "the value is the same"
    assert abs((exact * along).sum() - slope) < 1e-7
    assert abs((straight * along).sum() - slope) > 0.02
    assert (straight - exact).norm() > 0.1 * exact.norm()

    # The two differ by dψ/dcos = sin(θ + m)/sin θ in the target's entry, and nowhere else.
    c = (F.normalize(x) @ F.normalize(W).T).detach()
    of = {
        kind: gradient(lambda a, k=kind: margin_cross_entropy(a, y, margin, 4.0, gradient=k), c)
        for kind in ("exact", "straight")
    }
    theta = c.gather(1, y[:, None]).acos()
    factor = torch.ones_like(c).scatter(1, y[:, None], (theta + 0.5).sin().abs() / theta.sin())
    torch.testing.assert_close(of["exact"], of["straight"] * factor)


@pytest.mark.parametrize("form", ["acos", "sqrt"])
def test_clamp_does_not_stop_nan(form):
    m = 0.5

    def psi(c):
        if form == "acos":
            return (c.acos() + m).cos()
        return c * math.cos(m) - (1 - c * c).sqrt() * math.sin(m)

    for one in (1.0, -1.0):
        at = torch.tensor([one])
        assert not gradient(lambda c: psi(c.clamp(-1, 1)), at).isfinite().all()
        # Clamping at 1 − ε is finite, and stops learning for every angle under √(2ε): 2.56° for ε = 1e-3.
        assert gradient(lambda c: psi(c.clamp(-1 + 1e-3, 1 - 1e-3)), at) == 0
    near = torch.tensor([math.cos(math.radians(2.5))])
    assert gradient(lambda c: psi(c.clamp(-1 + 1e-3, 1 - 1e-3)), near) == 0
    assert gradient(ArcFace(m=m).psi_of_cosine, near) > 5


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("margin", [ArcFace(), CosFace(), SphereFace(m=4), SphereFace(m=1.7), Combined()])
def test_gradient_is_finite_on_the_center(margin, sign):
    _, W, y = make(dtype=torch.float32)
    x = sign * W[y]
    of_x = gradient(lambda a: margin_softmax(a, W, y, margin, scale=64.0), x)
    of_W = gradient(lambda a: margin_softmax(x, a, y, margin, scale=64.0), W)
    assert of_x.isfinite().all()
    assert of_W.isfinite().all()
    c = (F.normalize(x) @ F.normalize(W).T).scatter(1, y[:, None], sign)
    assert gradient(lambda a: margin_cross_entropy(a, y, margin, 64.0), c).isfinite().all()


def test_target_gradient_is_minus_the_rivals():
    s, y = 64.0, torch.tensor([0])
    for gap, lost in ((15.0, 0.01), (18.0, 1.0)):
        true = -1 / (1 + math.exp(gap))
        z = torch.tensor([[gap, 0.0]])
        usual = float(gradient(lambda a: F.cross_entropy(a, y), z)[0, 0])
        assert abs(usual / true - 1) >= lost, "p_y − 1 in float32"
        ours = gradient(lambda a: margin_cross_entropy(a, y, NoMargin(), s), z / s)[0] / s
        assert abs(float(ours[0]) / true - 1) < 1e-5
        assert abs(float(ours.sum())) <= 1e-6 * abs(true)
    # the loss itself
    z = torch.tensor([[20.0, 0.0]])
    assert float(F.cross_entropy(z, y)) == 0
    assert abs(float(margin_cross_entropy(z / s, y, NoMargin(), s)) / math.log1p(math.exp(-20)) - 1) < 1e-5


# sums


def sparse_trick(c, y, s, m):
    """AM-Softmax by taking the target's own term out of the sum again: log Z + log(1 − exp(s·c_y − log Z))."""
    plain = s * c.gather(1, y[:, None])
    log_z = torch.logsumexp(torch.cat((s * c, plain - s * m), 1), 1, keepdim=True)
    log_z = log_z + torch.log(1 - torch.exp(plain - log_z))
    return (log_z - (plain - s * m))[:, 0]


@pytest.mark.parametrize(("s", "m", "symptom"), [(30.0, 0.35, "negative"), (30.0, 0.5, "inf"), (64.0, 0.35, "inf")])
def test_sparse_trick_loses_the_loss(s, m, symptom):
    c, y = cosines()
    trick = sparse_trick(c, y, s, m)
    bad = trick < 0 if symptom == "negative" else ~trick.isfinite()
    assert bad.sum() > 100
    true = margin_cross_entropy(c.double(), y, CosFace(m=m), s, reduction="none")
    margined = (s * (c.double() - m * F.one_hot(y, 200).double())).detach()
    torch.testing.assert_close(true, F.cross_entropy(margined, y, reduction="none"), rtol=1e-9, atol=1e-12)
    ours = margin_cross_entropy(c, y, CosFace(m=m), s, reduction="none")
    assert (ours > 0).all()
    assert ((ours.double() - true).abs() / true).max() < 2e-5
    # in float64 the trick is the same algebra
    torch.testing.assert_close(
        sparse_trick(c.double(), y, 10.0, 0.2),
        margin_cross_entropy(c.double(), y, CosFace(m=0.2), 10.0, reduction="none"),
    )


# settings


def probability(theta, C, s):
    """p_y of a sample at θ from its own class and at right angles to all others."""
    c = torch.zeros(1, C, dtype=torch.float64)
    c[0, 0] = math.cos(theta)
    return math.exp(-float(margin_cross_entropy(c, torch.tensor([0]), NoMargin(), s)))


def test_adacos_keeps_an_angle_and_needs_a_floor():
    C, quarter = 1001, math.pi / 4
    assert probability(quarter, C, adacos_scale(C)) == pytest.approx(0.5)
    # π/4 is a choice. Any other φ gives a scale of its own, and the same sample another probability.
    for phi, p in ((math.pi / 6, 0.22), (math.pi / 3, 0.95)):
        s = math.log(C - 1) / math.cos(phi)
        assert probability(phi, C, s) == pytest.approx(0.5)
        assert probability(quarter, C, s) == pytest.approx(p, abs=0.01)
    # two classes: √2·ln(C−1) = 0, a loss that does not depend on anything
    assert math.sqrt(2) * math.log(2 - 1) == 0
    assert adacos_scale(2) >= 1


def test_learned_scale_ends_at_its_floor():
    """Where every sample is on the wrong side, s only falls; what it becomes is the floor somebody chose."""
    x, W, _ = make(C=5)
    farthest = (F.normalize(x) @ F.normalize(W).T).argmin(1)
    for floor in (0.01, smallest_scale(5, 0.9)):
        head = create_head("normface", 4, 5, scale=10.0, scale_floor=floor, dtype=torch.float64)
        head.weight.data.copy_(W)
        optimizer = torch.optim.SGD([head.scale], lr=5.0)
        for _ in range(40):
            optimizer.zero_grad()
            head(x, farthest).backward()
            optimizer.step()
        assert float(head.current_scale().detach()) == pytest.approx(floor)
    # and s decides how far the loss can fall at all
    centers, y = simplex(10), torch.arange(10)
    for s in (0.01, smallest_scale(10, 0.9)):
        reached = float(margin_softmax(centers, centers, y, NoMargin(), scale=s))
        assert reached == pytest.approx(loss_floor(10, s))
    assert loss_floor(10, 0.01) > 2.29
    assert loss_floor(10, smallest_scale(10, 0.9)) == pytest.approx(-math.log(0.9))


def test_p2sgrad_has_a_step_size():
    """∂L/∂c_j = c_j − 1[j = y] fixes the direction. As a mean squared error it is divided by N·C/2."""
    c, y = cosines(N=8, C=200)
    aim = F.one_hot(y, 200).float()
    torch.testing.assert_close(gradient(lambda a: (a - aim).square() / 2, c), c - aim)
    torch.testing.assert_close(gradient(lambda a: F.mse_loss(a, aim), c), (c - aim) / 800)


def test_scale_bound_of_cosface_is_without_the_margin():
    C, P, m = 10, 0.9, 0.35
    centers, y = simplex(C), torch.arange(C)
    printed = (C - 1) / C * math.log((C - 1) * P / (1 - P))

    def seen(s, margin):
        return float((-margin_softmax(centers, centers, y, margin, scale=s)).exp())

    assert seen(printed, NoMargin()) == pytest.approx(P)
    assert seen(printed, CosFace(m=m)) == pytest.approx(0.69, abs=0.005)
    assert seen(smallest_scale(C, P, m), CosFace(m=m)) == pytest.approx(P)
    assert smallest_scale(C, P) == pytest.approx(printed)
