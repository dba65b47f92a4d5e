"""The losses after ArcFace as `create_head` makes them, against their formulas written out on the whole matrix."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import over_backends

import hypermargin as hm
from hypermargin.counts import margins_from_counts, offsets_from_counts
from hypermargin.margins import ArcFace, CosFace, ElasticArcFace, ElasticCosFace, MagFace, SphereFace
from hypermargin.margins.elasticface import normal

N, C, D = 8, 7, 5


def made(name, seed=0, length=3.0, **overrides):
    """A head of that name in float64, and a batch whose features have about that length."""
    rng = torch.Generator().manual_seed(seed)
    head = hm.create_head(name, D, C, dtype=torch.float64, **overrides)
    with torch.no_grad():
        head.weight.copy_(torch.randn(C, D, generator=rng, dtype=torch.float64))
    x = length / math.sqrt(D) * torch.randn(N, D, generator=rng, dtype=torch.float64)
    return head, x.requires_grad_(), torch.randint(0, C, (N,), generator=rng)


def margined(head, x, y, psi, s):
    """Cross-entropy with ψ(θ) in the place of the target's cosine."""
    c = F.normalize(x) @ F.normalize(head.weight).T
    theta = c.gather(1, y[:, None]).squeeze(1).acos()
    return F.cross_entropy((s * c).scatter(1, y[:, None], s * psi(theta)[:, None]), y)


def agree(ours, theirs, *leaves):
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    for a, b in zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


@over_backends
@pytest.mark.parametrize("length", [5.0, 60.0, 300.0])
def test_magface(backend, length):
    """Meng et al., equations 5 and 8: the margin and the term both see the clipped length, with its gradient."""
    head, x, y = made("magface", length=length, backend=backend, beyond="easy")
    a = x.norm(dim=1).clamp(10, 110)
    m = 0.45 + 0.35 * (a - 10) / 100
    theirs = margined(head, x, y, lambda t: torch.where(t < math.pi / 2, (t + m).cos(), t.cos()), 64.0)
    agree(head(x, y), theirs + 35 * (a / 110**2 + 1 / a).mean(), x, head.weight)


def test_magface_draws_short_features_up_from_its_bound_on():
    """λ_g ≥ s·K·u_a²·l_a²/(u_a² − l_a²) = 22.6: there the term outweighs the margin at the shortest length."""
    bound = 64 * 0.35 / 100 * 110**2 * 10**2 / (110**2 - 10**2)
    assert abs(bound - 22.6) < 0.05
    for lambda_g, draws_up in ((bound, True), (0.0, False)):
        head, x, y = made("magface", lambda_g=lambda_g)
        x = (10.0001 * F.normalize(x.detach())).requires_grad_()
        head(x, y).backward()
        radial = (x.grad * x).sum(1)
        assert (radial < 1e-4).all() if draws_up else (radial > -1e-12).all()


@pytest.mark.parametrize(
    ("name", "kind"), [("elasticface-arc", ElasticArcFace), ("elasticface-cos", ElasticCosFace)]
)
def test_elasticface(name, kind):
    m, sigma = kind().m, 0.05
    psi = (lambda t, m: (t + m).cos()) if kind is ElasticArcFace else (lambda t, m: t.cos() - m)
    options = {"beyond": "none"} if kind is ElasticArcFace else {}
    for pairing in ("none", "paper", "published"):
        head, x, y = made(name, pairing=pairing, **options)
        for step in range(3):
            drawn = m + sigma * normal(torch.tensor(step), 0, x[:, :1]).squeeze(1)
            cosine = (F.normalize(x) * F.normalize(head.weight)[y]).sum(1)
            if pairing != "none":
                order = cosine.argsort(descending=True)
                drawn = drawn.sort().values[order.argsort() if pairing == "paper" else order]
            agree(head(x, y), margined(head, x, y, lambda t, d=drawn: psi(t, d), 64.0), x, head.weight)
        if pairing == "paper":
            assert (drawn[cosine.argsort()].diff() <= 0).all()  # the largest margin to the smallest cosine
        plain = ArcFace(m, "none") if kind is ElasticArcFace else CosFace(m)
        calm = hm.margin_softmax(x, head.weight, y, plain, scale=64.0)
        torch.testing.assert_close(head.eval()(x, y), calm)


def test_elastic_margins_are_normal_and_go_on_after_a_resume():
    z = torch.cat([normal(torch.tensor(step), 0, torch.empty(500, 1)) for step in range(40)]).squeeze(1)
    assert abs(z.mean()) < 4 / math.sqrt(len(z))
    assert abs(z.std() - 1) < 4 / math.sqrt(2 * len(z))
    assert len(z.unique()) > 0.999 * len(z)
    head, x, y = made("elasticface-arc")
    head(x, y)
    other = copy.deepcopy(head)
    other.load_state_dict(head.state_dict())
    assert torch.equal(head(x, y), other(x, y))
    assert head.state_dict()["row_margin.step"] == 2


def test_shapes_of_psi():
    head, x, y = made("x2-softmax")
    agree(head(x, y), margined(head, x, y, lambda t: -0.9 * t**2 + 0.65, 64.0), x, head.weight)
    head, x, y = made("expface")
    psi = lambda t: (math.pi * (t / math.pi) ** 0.7).cos()  # noqa: E731
    agree(head(x, y), margined(head, x, y, psi, 64.0), x, head.weight)
    x = x.detach().requires_grad_()
    ours = hm.margin_softmax(x, head.weight, y, SphereFace(1.5, beyond="flat"), scale=30.0)
    agree(ours, margined(head, x, y, lambda t: (1.5 * t).clamp(max=math.pi).cos(), 30.0), x, head.weight)


COUNTS = [100, 1, 10_000, 0, 30, 7, 7]


def test_by_counts():
    n = torch.tensor(COUNTS, dtype=torch.float64).clamp(min=1)
    t = n**-0.25
    torch.testing.assert_close(margins_from_counts(COUNTS, "ldam").double(), 0.5 * t / t.max(), rtol=1e-6, atol=0)
    dynamic = margins_from_counts(COUNTS, low=0.05, high=0.5).double()
    torch.testing.assert_close(dynamic, 0.05 + 0.45 * (t - t.min()) / (t.max() - t.min()), rtol=1e-6, atol=1e-7)
    assert torch.equal(margins_from_counts(COUNTS, "landmark"), margins_from_counts(COUNTS, "power"))
    happywhale = margins_from_counts(COUNTS, "absolute", low=0.05, high=0.32126, power=0.364399).double()
    torch.testing.assert_close(happywhale, 0.27126 * n**-0.364399 + 0.05, rtol=1e-6, atol=1e-7)
    for rule, even in (("power", 0.5), ("ldam", 0.5), ("absolute", 0.05 + 0.45 * 5**-0.25)):
        assert margins_from_counts([5, 5, 5], rule).tolist() == pytest.approx([even] * 3)
        assert margins_from_counts([1, 0], rule).tolist() == [0.5, 0.5]  # none counts as one
    head, x, y = made("ldam", counts=COUNTS)
    m = (0.5 * t / t.max()).float().double()[y]
    agree(head(x, y), margined(head, x, y, lambda a: a.cos() - m, 30.0), x, head.weight)
    for name, tau, given in (("balanced-softmax", 1.0, {}), ("logit-adjustment", 2.0, {"tau": 2.0})):
        head, x, y = made(name, counts=COUNTS, **given)
        prior = (tau * (n / n.sum()).log()).float().double()
        z = x @ head.weight.T + head.bias
        agree(head(x, y), F.cross_entropy(z + prior, y), x, head.weight, head.bias)
        torch.testing.assert_close(head(x), z)  # absent at inference
    torch.testing.assert_close(offsets_from_counts([1, 1, 2]).exp(), torch.tensor([0.25, 0.25, 0.5]))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: hm.create_head("ldam", 4, 3), TypeError, "ldam needs counts=, the number of training samples"),
        (lambda: hm.create_head("ldam", 4, 3, counts=[1, 2]), ValueError, r"counts must have shape \(3,\)"),
        (lambda: hm.create_head("ldam", 4, 3, counts=[0, 0, 0]), ValueError, "not all 0"),
        (lambda: hm.create_head("ldam", 4, 3, counts=[1, 2, math.nan]), ValueError, "finite, not negative"),
        (lambda: hm.create_head("ldam", 4, 3, counts="many"), TypeError, "counts must be numbers"),
        (lambda: hm.create_head("arcface", 4, 3, counts=[1, 2, 3]), TypeError, "margins_from_counts"),
        (lambda: hm.create_head("ldam", 4, 3, counts=[1, 2, 3], tau=2.0), TypeError, "ldam has no tau"),
        (lambda: hm.create_head("adaface", 4, 3, t_alpha=0.1), TypeError, "It is called momentum here"),
        (lambda: hm.create_head("sphereface2", 4, 3, lam=0.8), TypeError, "It is called positive here"),
        (lambda: hm.create_head("arcface", 4, 3, t_alpha=0.1), TypeError, "no setting 't_alpha'. It takes"),
        (
            lambda: hm.create_head("balanced-softmax", 4, 3, counts=[1, 2, 3], class_offsets=[0.0] * 3),
            TypeError, "balanced-softmax makes class_offsets of its counts; give one of the two",
        ),
        (lambda: hm.create_head("expface", 4, 3, learn_margin=True), ValueError, "a smaller one is more margin"),
        (lambda: MagFace(l_a=50.0, u_a=20.0), ValueError, "l_a=…. must be below u_a"),
        (lambda: margins_from_counts([1, 2], "linear"), ValueError, "rule must be one of"),
    ],
)  # fmt: skip
def test_words(call, error, words):
    with pytest.raises(error, match=words):
        call()
