"""The mistakes of docs/errata.md about the losses after ArcFace, and what those that are not built would be."""

import math

import pytest
import torch
import torch.nn.functional as F

from hypermargin import create_head, margin_softmax
from hypermargin.margins import CosFace
from hypermargin.margins.elasticface import normal


def drawn(N, d, seed=0):
    return torch.randn(N, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def corr(a, b):
    return float(torch.corrcoef(torch.stack((a.flatten(), b.flatten())))[0, 1])


# weights


def test_a_loop_that_rebinds_its_variable_normalises_nothing():
    d = 192
    layer = torch.nn.Linear(d, 500, bias=False, dtype=torch.float64)
    before = layer.weight.detach().clone()
    for W in layer.parameters():
        W = F.normalize(W)
    assert torch.equal(layer.weight, before)

    # U(±1/√d) has rows of length 1/√3: a feature on its center is taken to be 54.7° away.
    centers = F.normalize(layer.weight.detach())
    on_center = (centers * layer.weight.detach()).sum(1)
    assert on_center.mean() == pytest.approx(3**-0.5, abs=0.01)
    assert math.degrees(math.acos(3**-0.5)) == pytest.approx(54.7, abs=0.05)

    # Once a row is longer than 2, a feature 60° away counts as on its center, where the clamp takes its gradient.
    w = torch.tensor([2.1, 0.0], dtype=torch.float64)
    x = torch.tensor([0.5, 0.75**0.5], dtype=torch.float64, requires_grad=True)
    ((w @ x).clamp(-1 + 1e-7, 1 - 1e-7).acos() + 0.2).cos().backward()
    assert x.grad.abs().max() == 0


def test_a_weight_normalised_in_place_keeps_a_radial_gradient():
    x, w, y = drawn(64, 32), F.normalize(drawn(50, 32, seed=1)), torch.arange(64) % 50
    raw, ours = w.clone().requires_grad_(), w.clone().requires_grad_()
    F.cross_entropy(30 * F.normalize(x) @ raw.T - 30 * 0.35 * F.one_hot(y, 50), y).backward()
    margin_softmax(x, ours, y, CosFace(0.35), scale=30.0).backward()
    torch.testing.assert_close(ours.grad, raw.grad - (raw.grad * w).sum(1, keepdim=True) * w)
    radial = (raw.grad * w).sum(1).norm() / raw.grad.norm()
    assert radial == pytest.approx(0.45, abs=0.01)
    assert (ours.grad * w).sum(1).abs().max() < 1e-15


# margins of rows


def test_elasticfaces_plus_pairs_margins_at_random():
    as_coded, as_meant = [], []
    for step in range(200):
        cosine = drawn(128, 1, seed=step)[:, 0].tanh()
        margins = normal(torch.tensor(step), 0, cosine[:, None])[:, 0].sort().values
        order = cosine.argsort(descending=True)
        as_coded.append(corr(margins[order], cosine))  # the permutation
        as_meant.append(corr(margins[order.argsort()], cosine))  # its inverse
    assert abs(sum(as_coded) / 200) < 0.02
    assert sum(as_meant) / 200 == pytest.approx(-0.96, abs=0.01)


def test_adaface_without_a_running_mean_grades_an_image_by_its_neighbours():
    """The same feature of length 22, in 200 batches of 8 with lengths N(20, 4²): its q with momentum 1 and 0.01."""
    spread = {}
    for momentum in (1.0, 0.01):
        head = create_head("adaface", 2, 3, momentum=momentum, dtype=torch.float64).double()
        head.row_margin.mean.fill_(20.0)
        head.row_margin.deviation.fill_(4.0)
        q = []
        for step in range(200):
            lengths = 20 + 4 * drawn(8, 1, seed=step)
            lengths[0] = 22
            head(lengths * torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.zeros(8, dtype=torch.int64))
            mean, deviation = head.row_margin.mean, head.row_margin.deviation
            q.append(float(0.333 * (22 - mean) / (deviation + 1e-3)))
        spread[momentum] = float(torch.tensor(q).std())
    assert spread[1.0] == pytest.approx(0.136, abs=0.01)
    assert spread[0.01] == pytest.approx(0.01, abs=0.005)


def test_magfaces_default_weight_is_below_its_own_bound():
    s, K, l_a, u_a = 64.0, 0.35 / 100, 10.0, 110.0
    bound = s * K * u_a**2 * l_a**2 / (u_a**2 - l_a**2)
    assert bound == pytest.approx(22.59, abs=0.005)
    # A row just above the shortest length, where cos(θ + m) is steepest and p_y is 0.
    theta = math.pi / 2 - 0.45
    W = torch.tensor([[1.0, 0.0], [math.cos(theta), math.sin(theta)]], dtype=torch.float64)
    for lambda_g, longer in ((20.0, False), (bound + 0.1, True), (35.0, True)):
        head = create_head("magface", 2, 2, lambda_g=lambda_g, dtype=torch.float64)
        head.weight.data.copy_(W)
        x = (10.001 * W[1:]).requires_grad_()
        head(x, torch.tensor([0])).backward()
        assert ((x.grad * x.detach()).sum() < 0) == longer  # descent makes it longer


# rivals


def test_curricularfaces_t_is_all_but_the_last_batch_as_printed():
    cosine = 0.3
    as_coded, as_printed = 0.01 * cosine, 0.99 * cosine
    assert (as_coded, as_printed) == (pytest.approx(0.003), pytest.approx(0.297))
    t, steps = 0.0, 0
    while t < 0.95 * cosine:
        t, steps = 0.01 * cosine + 0.99 * t, steps + 1
    assert steps == 299  # as printed it takes one
    head = create_head("curricularface", 2, 2, dtype=torch.float64).double()
    head.weight.data.copy_(torch.eye(2))
    head(torch.tensor([[cosine, (1 - cosine**2) ** 0.5]], dtype=torch.float64), torch.tensor([0]))
    assert float(head.rule_state.t) == pytest.approx(as_coded)


def test_airface_with_plain_rivals_has_a_second_margin():
    theta = torch.linspace(0, math.pi, 100_001, dtype=torch.float64)
    hidden = theta.cos() - (1 - 2 * theta / math.pi)
    assert hidden.max() == pytest.approx(0.2105, abs=1e-4)
    assert hidden.min() == pytest.approx(-0.2105, abs=1e-4)
    assert (hidden[theta < math.pi / 2] > -1e-15).all()
    assert (hidden[theta > math.pi / 2] < 1e-15).all()


# terms


def test_cr_fiqas_ratio_is_unbounded():
    c = torch.tensor([[0.7, -0.2, -0.1]], dtype=torch.float64)
    as_coded = c.clone()
    as_coded[0, 0] = -1e-12
    ratio = c[0, 0] / as_coded.max()
    assert ratio == pytest.approx(-7e11)
    quality = torch.tensor(0.5, dtype=torch.float64)
    assert 10 * F.smooth_l1_loss(ratio, quality, beta=0.5) > 1e12
    assert c[0, 0] / (1 + 1e-9 + c[0, 1:].max()) == pytest.approx(0.7 / 0.9)


def test_topofrs_probability_is_an_integer():
    labels = torch.tensor([3, 1])
    probability = torch.ones_like(labels)
    probability[0], probability[1] = 0.97, 0.2
    assert probability.tolist() == [0, 0]
    assert (1 - probability).tolist() == [1, 1]  # meant: 0.03 and 0.8
    # And its mixture is fitted to entropies of which every other one is negated, by the number of the row.
    entropy = torch.full((6,), 0.4)
    entropy[2 * torch.arange(3)] *= -1
    assert entropy.tolist() == pytest.approx([-0.4, 0.4] * 3)
    assert float(entropy.std()) > 0.4  # of six equal numbers


# what is not built


def test_arm_as_released_is_not_arm_as_written():
    """An easy rival, one below the target, adds e⁰ to the target's e⁰ as written, and e⁰ to its e^T as released."""
    s, C, T = 30.0, 1000, 30.0 * (0.8 - 0.2)
    rivals = torch.zeros(C - 1, dtype=torch.float64, requires_grad=True)  # at right angles: all easy
    written = torch.log1p((s * rivals - T).clamp(min=0).exp().sum())
    assert float(written.detach()) == pytest.approx(math.log(C))  # 6.91, however good the row is
    assert torch.autograd.grad(written, rivals)[0].abs().max() == 0
    released = F.softplus(torch.zeros(C - 1, dtype=torch.float64).logsumexp(0) - T)
    assert math.exp(-T) == pytest.approx(1.5e-8, rel=0.02)  # the weight of an easy rival, instead of 1
    assert released == pytest.approx(1.5e-5, rel=0.02)


def test_hams_distance_is_that_of_one_curvature_and_is_cut_off():
    def distance(x, w, eps=1e-5):
        ratio = 2 * (x - w).square().sum() / ((1 - x.square().sum()) * (1 - w.square().sum())).clamp(min=eps)
        return torch.acosh((1 + ratio).clamp(min=1 + eps))

    def projected(x, curvature, eps=1e-5):
        return x * min(1.0, (1 - eps) / curvature**0.5 / float(x.norm()))

    x, w = torch.tensor([0.3, 0.1], dtype=torch.float64), torch.tensor([-0.2, 0.4], dtype=torch.float64)
    true = {c: 2 / c**0.5 * math.atanh(c**0.5 * float(mobius(x, w, c))) for c in (1.0, 4.0)}
    found = {c: float(distance(projected(x, c), projected(w, c))) for c in (1.0, 4.0)}
    assert found[1.0] == found[4.0] == pytest.approx(true[1.0])
    assert true == {1.0: pytest.approx(1.28, abs=0.01), 4.0: pytest.approx(1.93, abs=0.01)}
    # Opposite features of length ≥ 1 lie 24.4 apart; the guard makes it 14.3.
    edge = projected(torch.tensor([22.0, 0.0], dtype=torch.float64), 1.0)
    assert distance(edge, -edge, eps=0.0) == pytest.approx(24.4, abs=0.05)
    assert distance(edge, -edge) == pytest.approx(14.3, abs=0.05)
    assert 512 * 17_982 * 256 * 4 > 9e9  # bytes of its x − w: 512 rows, 17,982 classes, 256 dimensions


def mobius(x, w, c):
    """|(−x) ⊕ w| in the ball of curvature c."""
    xy, x2, y2 = -(x @ w), x @ x, w @ w
    return (-(1 + 2 * c * xy + c * y2) * x + (1 - c * x2) * w).norm() / (1 + 2 * c * xy + c**2 * x2 * y2)


def test_cifps_rows_depend_on_each_other():
    """The quantile is over the cosines of the whole batch, so no row's loss is known before all have been seen."""

    def targets(c, y, m=0.35):
        N, C = c.shape
        own = c.gather(1, y[:, None])
        rivals = c.scatter(1, y[:, None], -2.0)
        above = rivals > own
        k = math.ceil((N * (C - 1) - int(above.sum())) / (C - 1))
        limit = rivals.masked_fill(above, -4.0).flatten().topk(k).values[-1]
        taken = ~above & (rivals > limit)
        mean = (rivals.square() * taken).sum(1, keepdim=True) / taken.sum(1, keepdim=True).clamp(min=1)
        return own - m - (1 + own) * mean

    c, y = 0.3 * drawn(64, 100).tanh(), torch.arange(64)
    c[y, y] = 0.6
    others = c.clone()
    others[1:] *= 1.2  # the first row is as it was
    others[y, y] = 0.6
    change = 64 * float(targets(others, y)[0] - targets(c, y)[0])
    assert change == pytest.approx(9.1, abs=0.05)  # of its logit, s = 64: the whole term
    assert 1024 * 1_000_000 * 4 > 4e9  # bytes of the cosines whose quantile it is


def test_qamfaces_logits_leave_the_range_of_exp():
    s, m = 6.0, 0.5

    def logit(theta):
        return s * (2 * math.pi - theta) ** 2

    assert logit(0.0) == pytest.approx(237, abs=0.2)
    assert torch.tensor(logit(0.0), dtype=torch.float32).exp() == math.inf
    assert logit(0.0) - logit(math.pi) == pytest.approx(178, abs=0.5)  # as s = 89 gives between cos 0 and cos π
    worth = [logit(theta) - logit(theta + m) for theta in (0.0, math.pi / 2, math.pi - m)]
    assert worth == pytest.approx([36.2, 26.8, 20.4], abs=0.1)  # the margin is worth less where more is asked
    # The slope by the cosine, 2s(2π − θ)/sin θ, is infinite at θ = 0 for every class, and the target's with it.
    assert 2 * s * (2 * math.pi - 0.01) / math.sin(0.01) > 7000
