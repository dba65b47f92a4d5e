"""Several centers per class: every pool against its formula written out on the whole matrix."""

import math

import pytest
import torch
import torch.nn.functional as F
from cases import cases
from conftest import over_backends
from row_by_row import RowByRow

import hypermargin as hm
from hypermargin import rules
from hypermargin.backends import PLAIN, Auto, Call, Chunked, Dense, Triton
from hypermargin.centers import Centers
from hypermargin.layout import ClassTable
from hypermargin.margins import ArcFace, CosFace, NoMargin

N, C, K, D = 9, 7, 3, 5
POOLS = ["sum", "max", "soft"]
over_pools = pytest.mark.parametrize("pool", POOLS)


def draw(n=N, classes=C, k=K, d=D, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x, W = (torch.randn(rows, d, generator=rng, dtype=torch.float64) for rows in (n, classes * k))
    y = torch.randint(0, classes, (n,), generator=rng)
    return (3 * x).requires_grad_(), W.requires_grad_(), y


def by_center(x, W, k=K):
    return (F.normalize(x) @ F.normalize(W).T).unflatten(1, (-1, k))


def of_class(c, pool, gamma=0.1):
    """The cosine of each class, (N, C), from those of its centers."""
    return c.amax(2) if pool == "max" else (c * (c / gamma).softmax(2)).sum(2)


def written_out(x, W, y, s, psi, pool, rho=lambda c, psi_y: c, bias=0.0, k=K):
    """Cross-entropy over classes, each with one cosine."""
    c = of_class(by_center(x, W, k), pool)
    own = psi(c.gather(1, y[:, None]))
    return F.cross_entropy((s * rho(c, own.detach())).scatter(1, y[:, None], s * own) + bias, y)


def agree(ours, theirs, *leaves):
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    for a, b in zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@over_backends
@pytest.mark.parametrize("pool", ["max", "soft"])
def test_a_class_is_one_rival(backend, pool):
    """With a learned scale and a bias, so that every gradient there is is compared."""
    for seed, (n, classes, k) in enumerate([(N, C, K), (1, 2, 2), (4, 12, 5), (3, 1, 4)]):
        x, W, y = draw(n, classes, k, seed=seed)
        s = torch.tensor(9.0, dtype=torch.float64, requires_grad=True)
        b = torch.linspace(-1, 1, classes, dtype=torch.float64).requires_grad_()
        for margin, psi in (
            (CosFace(0.2), lambda c: c - 0.2),
            (ArcFace(0.3, beyond="none"), lambda c: (c.acos() + 0.3).cos()),
        ):
            ours = hm.margin_softmax(x, W, y, margin, scale=s, bias=b, centers=Centers(k, pool), backend=backend)
            agree(ours, written_out(x, W, y, s, psi, pool, bias=b, k=k), x, W, s, b)


def mv(c, psi):
    return torch.where(c > psi, 1.2 * c + 0.2, c)


@over_backends
@pytest.mark.parametrize("pool", ["max", "soft"])
def test_rules_see_the_cosine_of_the_class(backend, pool):
    """A threshold, a ρ that bends, one question per class, and a plain sum."""
    x, W, y = draw()
    s = torch.tensor(9.0, dtype=torch.float64, requires_grad=True)
    centers = {"scale": s, "centers": Centers(K, pool), "backend": backend}
    ours = hm.margin_softmax(x, W, y, CosFace(0.2), rule=rules.MVSoftmax(0.2), **centers)
    agree(ours, written_out(x, W, y, s, lambda c: c - 0.2, pool, mv), x, W, s)
    others = ~F.one_hot(y, C).bool()

    def again():
        c = of_class(by_center(x, W), pool)
        return c, c.gather(1, y[:, None]).squeeze(1)

    c, own = again()
    circle = rules.Circle(m=0.25)
    ours = hm.margin_softmax(x, W, y, CosFace(0.2), rule=circle, **centers)
    rho = (c.detach() + 0.25).clamp(min=0) * (c - 0.25)
    agree(ours, F.cross_entropy(s * rho.scatter(1, y[:, None], (own - 0.2)[:, None]), y), x, W, s)
    ours = hm.margin_softmax(x, W, y, CosFace(0.4), rule=rules.UniFace(), **centers)
    c, own = again()
    loss = F.softplus(-s * (own - 0.4)) + (F.softplus(s * c) * others).sum(1)
    agree(ours, loss.mean(), x, W, s)
    ours = hm.margin_softmax(x, W, y, hm.margins.P2SGrad(), rule=rules.P2SGrad(), **{**centers, "scale": 1.0})
    c, own = again()
    agree(ours, ((1 - own).square() / 2 + (c.square() * others).sum(1) / 2).mean(), x, W)


@over_backends
def test_inter_top_k_is_that_of_speaker_recipes(backend):
    """WeSpeaker: the k nearest classes by their nearest center, cos(θ − m′); the margin continued past π."""
    for seed in range(4):
        x, W, y = draw(6, 12, seed=seed)
        c = by_center(x, W).amax(2)
        masked = c.masked_fill(F.one_hot(y, 12).bool(), -2.0)
        near = torch.zeros_like(c).scatter(1, masked.topk(5, 1).indices, 1.0).bool()
        z = torch.where(near, (c.acos() - 0.06).cos(), c)
        own = c.gather(1, y[:, None])
        psi = torch.where(own > math.cos(math.pi - 0.2), (own.acos() + 0.2).cos(), own - (1 - math.cos(0.2)))
        loss = F.cross_entropy(32.0 * z.scatter(1, y[:, None], psi), y)
        head = hm.create_head("inter-topk", D, 12, centers=3, pool="max", beyond="continuous", backend=backend)
        head.double()
        ours = hm.margin_softmax(
            x, W, y, head.margin, scale=32.0, rule=head.settings.rule, centers=head.settings.centers,
            backend=backend,
        )  # fmt: skip
        agree(ours, loss, x, W)


@over_backends
@over_pools
def test_one_center_is_none(backend, pool):
    x, W, y = draw(k=1)
    for rule in (rules.SOFTMAX, rules.MVSoftmax()):
        one = hm.margin_softmax(
            x, W, y, ArcFace(0.3), scale=8.0, rule=rule, centers=Centers(1, pool), backend=backend
        )
        none = hm.margin_softmax(x, W, y, ArcFace(0.3), scale=8.0, rule=rule, backend=backend)
        assert torch.equal(one, none)


@over_backends
@over_pools
def test_the_order_of_centers_is_no_matter(backend, pool):
    x, W, y = draw()
    order = torch.arange(C * K).view(C, K)[:, [2, 0, 1]].flatten()
    losses = []
    for rows in (W, W[order]):
        settings = {"scale": 8.0, "centers": Centers(K, pool), "backend": backend}
        loss = hm.margin_softmax(x, rows, y, ArcFace(0.3), **settings)
        losses.append((loss, *torch.autograd.grad(loss, (x, W))))
    for a, b in zip(*losses, strict=True):
        torch.testing.assert_close(a, b)


def test_all_centers_weigh_more_than_the_nearest_but_by_ln_k():
    for seed in range(20):
        x, W, y = draw(seed=seed)
        by_pool = [
            hm.margin_softmax(x, W, y, NoMargin(), scale=6.0, centers=Centers(K, pool), reduction="none")
            for pool in ("sum", "max")
        ]
        more = by_pool[0] - by_pool[1]
        assert more.min() >= 0
        assert more.max() <= math.log(K)
    x, W, y = draw(k=1)
    same = W.detach().repeat_interleave(K, 0)
    summed, nearest = (
        hm.margin_softmax(x, same, y, NoMargin(), scale=6.0, centers=Centers(K, pool)) for pool in ("sum", "max")
    )
    assert summed - nearest > 0.5 * math.log(K)  # nearly reached where all centers are one


def test_a_sharp_mean_is_the_nearest():
    x, W, y = draw()
    nearest = hm.margin_softmax(x, W, y, ArcFace(0.3), scale=8.0, centers=Centers(K, "max"))
    sharp = hm.margin_softmax(x, W, y, ArcFace(0.3), scale=8.0, centers=Centers(K, "soft", gamma=1e-3))
    torch.testing.assert_close(sharp, nearest, rtol=1e-3, atol=1e-3)


@over_backends
def test_of_equally_near_centers_the_first_learns(backend):
    """Rows of zeros are as near as any, and so are equal ones."""
    x, W, y = draw()
    with torch.no_grad():
        W[1::K] = W[::K]
        W[2::K] = W[::K]
    loss = hm.margin_softmax(x, W, y, ArcFace(0.3), scale=8.0, centers=Centers(K, "max"), backend=backend)
    (dW,) = torch.autograd.grad(loss, W)
    assert dW[::K].abs().sum(1).min() > 0
    assert not dW[1::K].any()
    assert not dW[2::K].any()


@over_pools
def test_hostile_rows(pool):
    """Rows on and opposite to a center, zero rows, a class of zeros, a dead center, few classes, large logits."""
    for name, (x, W, y) in cases().items():
        more = torch.randn(W.shape, generator=torch.Generator().manual_seed(1), dtype=W.dtype)
        stacked = torch.stack((W, more, -W, 0 * W), 1).flatten(0, 1)
        for scale, rule in ((8.0, rules.SOFTMAX), (1e4, rules.SOFTMAX), (8.0, rules.MVSoftmax())):
            found = []
            for backend in (Dense(), Chunked(chunk=3)):
                leaves = x.clone().requires_grad_(), stacked.clone().requires_grad_()
                loss = hm.margin_softmax(
                    *leaves, y, ArcFace(0.5), scale=scale, rule=rule, centers=Centers(4, pool), backend=backend
                )
                grads = torch.autograd.grad(loss, leaves)
                assert loss.isfinite(), name
                assert all(g.isfinite().all() for g in grads), name
                found.append((loss, *grads))
            if "norms" in name or name in ("repeated classes", "parallel and opposite"):
                torch.testing.assert_close(found[0][0], found[1][0])  # which of equal centers learns is rounding's
                continue
            for dense, chunked in zip(*found, strict=True):
                size = dense.abs().max().item() if dense.numel() else 1.0
                torch.testing.assert_close(chunked, dense, rtol=1e-8, atol=1e-9 * (1 + size), msg=name)


def test_a_center_that_is_never_the_nearest_stays_as_it_is():
    head = hm.create_head("subcenter-arcface", D, C, centers=2, scale=8.0, dtype=torch.float64)
    x, _, y = draw()
    with torch.no_grad():
        head.weight[1::2] = -F.normalize(x.detach().sum(0), dim=0)
        head.weight[::2] = F.normalize(x.detach()[:C] + 9 * F.normalize(x.detach().sum(0), dim=0))
        x = x.detach().sum(0) + 0.01 * x
    dead = head.weight[1::2].detach().clone()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        head(x, y).backward()
        optimizer.step()
    assert torch.equal(head.weight[1::2], dead)
    assert head.weight.isfinite().all()


def both_ways(pool, rule, take):
    """What `take` makes of the loss and its leaves, with the dense and the chunked backend."""
    found = []
    for backend in (Dense(), Chunked(chunk=4)):
        x, W, y = draw(4, 4)
        s = torch.tensor(4.0, dtype=torch.float64, requires_grad=True)
        leaves = x, W, s
        loss = hm.margin_softmax(
            x, W, y, CosFace(0.2), scale=s, rule=rule, centers=Centers(K, pool), backend=backend,
            bias=torch.linspace(-1, 1, 4, dtype=torch.float64),
        )  # fmt: skip
        found.append(take(loss, leaves))
    return found


@over_pools
def test_second_derivatives(pool):
    def second(loss, leaves):
        grads = torch.autograd.grad(loss, leaves, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in grads), leaves)

    for rule in (rules.SOFTMAX, rules.MVSoftmax(), rules.UniFace(), rules.LiArcFace()):
        for dense, chunked in zip(*both_ways(pool, rule, second), strict=True):
            torch.testing.assert_close(chunked, dense, rtol=1e-8, atol=1e-9)


@over_pools
def test_every_rule(pool):
    for name in rules.names():
        found = both_ways(pool, rules.get(name)(), lambda loss, leaves: (loss, *torch.autograd.grad(loss, leaves)))
        for dense, chunked in zip(*found, strict=True):
            torch.testing.assert_close(chunked, dense, rtol=1e-9, atol=1e-10, msg=name)


@over_pools
def test_float32_is_right_and_keeps_no_logits(pool):
    x, W, y = draw(16, 300, seed=2)
    settings = {"scale": 16.0, "centers": Centers(K, pool)}
    exact = hm.margin_softmax(x, W, y, ArcFace(0.3), **settings)
    low = x.detach().float().requires_grad_(), W.detach().float().requires_grad_()
    for backend in (Dense(), Chunked(chunk=64)):
        loss = hm.margin_softmax(*low, y, ArcFace(0.3), backend=backend, **settings)
        torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=1e-5)
        for a, b in zip(
            torch.autograd.grad(loss, low), torch.autograd.grad(exact, (x, W), retain_graph=True), strict=True
        ):
            torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-5)


@over_backends
@over_pools
def test_mixed_labels(backend, pool):
    head = hm.MarginHead(D, C, ArcFace(0.3), scale=8.0, centers=Centers(K, pool), backend=backend).double()
    x, _, y = draw()
    mixed = head(x, y, mix=(y.flip(0), 0.3))
    torch.testing.assert_close(mixed, 0.3 * head(x, y) + 0.7 * head(x, y.flip(0)))


@over_pools
def test_with_a_sample_of_the_classes(pool):
    """The loss over the classes that were drawn; only their rows have a gradient."""
    for backend in ("dense", Chunked(chunk=4)):
        head = hm.MarginHead(
            D, 40, ArcFace(0.3), scale=8.0, centers=Centers(K, pool), sample=hm.PartialFC(0.4, seed=3),
            backend=backend,
        ).double()  # fmt: skip
        x, _, y = draw(classes=40)
        loss = head(x, y)
        loss.backward()
        drawn = head.weight.grad.coalesce().indices()[0]
        classes = drawn[::K] // K
        assert len(classes) == 16
        assert torch.equal(drawn, (classes[:, None] * K + torch.arange(K)).flatten())
        part = hm.margin_softmax(
            x, head.weight[drawn], torch.searchsorted(classes, y), ArcFace(0.3), scale=8.0,
            centers=Centers(K, pool),
        )  # fmt: skip
        torch.testing.assert_close(loss, part)


@over_backends
@over_pools
def test_logits_and_scores(backend, pool):
    centers = Centers(K, pool)
    head = hm.MarginHead(D, C, ArcFace(0.3), scale=8.0, bias=True, centers=centers, backend=backend).double()
    with torch.no_grad():
        head.bias.copy_(torch.linspace(-1, 1, C))
    x, _, y = draw()
    c = by_center(x, head.weight)
    logits = 8 * of_class(c, "max" if pool == "sum" else pool) + head.bias
    torch.testing.assert_close(head(x), logits)
    found = head.scores(x, y)
    torch.testing.assert_close(found.target, logits.gather(1, y[:, None]))
    torch.testing.assert_close(found.hardest, logits.scatter(1, y[:, None], -math.inf).amax(1))
    rivals = 8 * c + head.bias[:, None] if pool == "sum" else logits[..., None]
    off = F.one_hot(y, C).bool()[..., None]
    torch.testing.assert_close(found.rivals, rivals.masked_fill(off, -math.inf).flatten(1).logsumexp(1))
    assert torch.equal((found.target[:, 0] > found.hardest), head(x).argmax(1) == y)


@pytest.mark.parametrize("pool", ["max", "soft"])
def test_npcface_counts_classes(pool):
    """The mean of the hard rivals is over classes, and not over their centers."""
    x, W, y = draw()
    rule, margin = rules.NPCFace(), hm.margins.NPCFace()
    c = of_class(by_center(x, W), pool).detach()
    own = c.gather(1, y[:, None])
    hard = (c > (own.acos() + 0.5).cos()) & ~F.one_hot(y, C).bool()
    mean = (c * hard).sum(1, keepdim=True) / hard.sum(1, keepdim=True).clamp(min=1)
    m = 0.4 + 0.2 * mean
    ours = hm.margin_softmax(
        x, W, y, margin, scale=8.0, rule=rule, row_margin=margin.row_margin(), centers=Centers(K, pool)
    )
    given = hm.margin_softmax(x, W, y, ArcFace(0.4), m=m, scale=8.0, rule=rule, centers=Centers(K, pool))
    torch.testing.assert_close(ours, given)


def soft_triple(x, W, y, k, s=20.0, gamma=0.1, delta=0.01, tau=0.2):
    """Qian et al. 2019, equations 7 and 9, with its code's 1e-5; x is unit already there."""
    c = by_center(x, W, k)
    S = (c * (c / gamma).softmax(2)).sum(2)
    loss = F.cross_entropy(s * (S - delta * F.one_hot(y, S.shape[1]).double()), y)
    w = F.normalize(W).unflatten(0, (-1, k))
    total = 0.0
    for j in range(len(w)):
        for first in range(k):
            for second in range(first + 1, k):
                total = total + (2 + 1e-5 - 2 * w[j, first] @ w[j, second]).sqrt()
    return loss + tau * total / (len(w) * k * (k - 1))


@over_backends
def test_soft_triple_with_its_regulariser(backend):
    for k, overrides in ((10, {}), (3, {"gamma": 0.3, "together": 0.7})):
        head = hm.create_head("soft-triple", D, C, centers=k, backend=backend, dtype=torch.float64, **overrides)
        x, _, y = draw()
        others = {"gamma": overrides.get("gamma", 0.1), "tau": overrides.get("together", 0.2)}
        agree(head(x, y), soft_triple(x, head.weight, y, k, **others), x, head.weight)
        agree(head.eval()(x, y), soft_triple(x, head.weight, y, k, **{**others, "tau": 0.0}), x, head.weight)


def test_centers_that_are_one_have_a_finite_gradient():
    head = hm.create_head("soft-triple", D, C, centers=3)
    with torch.no_grad():
        head.weight.copy_(head.weight[::3].repeat_interleave(3, 0))
        head.weight[0] = 0.0
    x, _, y = draw()
    head(x.float(), y).backward()
    assert head.weight.grad.isfinite().all()


def test_they_are_drawn_together():
    head = hm.MarginHead(
        D, C, NoMargin(), scale=1.0, centers=Centers(3, "soft", together=50.0), dtype=torch.float64
    )
    x, _, y = draw()
    before = head.settings.centers.distance(head.weight, C).item()
    optimizer = torch.optim.SGD([head.weight], lr=0.01)
    for _ in range(50):
        optimizer.zero_grad()
        head(x.detach(), y).backward()
        optimizer.step()
    assert head.settings.centers.distance(head.weight, C).item() < 0.5 * before


@pytest.mark.slow  # two of them are among the slots of test_compile.py
def test_compiled():
    for name, backend, overrides in (
        ("subcenter-arcface", "chunked", {}), ("soft-triple", "dense", {"centers": 3}),
        ("inter-topk", "dense", {"centers": 2, "pool": "max"}),
        ("mv-arcface", "chunked", {"centers": 2, "pool": "soft"}),
    ):  # fmt: skip
        head = hm.create_head(name, D, C, backend=backend, dtype=torch.float64, check=False, **overrides)
        x, _, y = draw()
        right = head(x, y)
        compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
        agree(compiled(x, y), right, x, head.weight)
        torch.testing.assert_close(torch.compile(head.logits, backend="aot_eager")(x), head.logits(x))


def test_the_fused_kernels_know_one_pool_and_auto_takes_another():
    call = Call(8, 2000, torch.device("cpu"), centers=Centers(3, "max"))
    with pytest.raises(ValueError, match=r'backend="triton" cannot run here: .*'):
        Triton().fitted(call)
    assert not isinstance(Auto().fitted(call), Triton)
    table = ClassTable(draw()[1], True, None, draw()[2][:, None] * K + torch.arange(K), centers=Centers(K, "max"))
    torch.testing.assert_close(
        Auto()(draw()[0], table, PLAIN).rivals, Chunked(chunk=4)(draw()[0], table, PLAIN).rivals
    )


def test_the_reason_of_the_fused_kernels(monkeypatch):
    monkeypatch.setattr("hypermargin.backends.fused.why_not", lambda device: "")
    with pytest.raises(
        ValueError, match=r"every center of a class as a rival, and centers=Centers\(3, pool=\"max\"\)"
    ):
        Triton().fitted(Call(8, 20, torch.device("cpu"), centers=Centers(3, "max")))
    Triton().fitted(Call(8, 20, torch.device("cpu"), centers=Centers(3)))
    with pytest.raises(ValueError, match="every center of a class as a rival"):
        hm.explain_backend(8, 20, "triton", centers=Centers(3, "max"))


def test_what_is_wrong_is_said():
    x, W, y = draw()
    for wrong, kind, words in (
        ({"centers": Centers(K, "soft"), "unit_weight": False}, ValueError, "it needs unit_weight=True"),
        ({"centers": Centers(K, "max"), "label_smoothing": 0.1}, ValueError, "needs centers=1"),
        ({"centers": 2.5}, TypeError, "centers must be a whole number; got 2.5"),
        ({"centers": "max"}, TypeError, "centers must be a whole number"),
        ({"centers": 4}, ValueError, "weight must have 4 rows per class"),
    ):
        with pytest.raises(kind, match=words):
            hm.margin_softmax(x, W, y, ArcFace(), scale=8.0, **wrong)
    with pytest.raises(ValueError, match="pool must be one of 'sum', 'max', 'soft'; got 'mean'"):
        Centers(3, "mean")
    with pytest.raises(ValueError, match="gamma must lie in"):
        Centers(3, "soft", gamma=0.0)
    with pytest.raises(ValueError, match="together must lie in"):
        Centers(3, together=-1.0)
    with pytest.raises(ValueError, match=r"together=0\.2 is about all classes"):
        hm.create_head("soft-triple", D, C, sample=hm.PartialFC(0.5))


def test_settings_by_name():
    head = hm.create_head("subcenter-arcface", D, C)
    assert head.settings.centers == Centers(3, "max")
    assert hm.create_head("subcenter-arcface", D, C, centers=2).settings.centers == Centers(2, "max")
    assert hm.create_head("subcenter-arcface", D, C, pool="sum").settings.centers == Centers(3)
    assert hm.create_head("subcenter-arcface", D, C, centers=Centers(4)).settings.centers == Centers(4)
    assert hm.create_head("arcface", D, C, centers=4, pool="soft", gamma=0.3).settings.centers.gamma == 0.3
    assert hm.MarginHead(D, C, ArcFace(), scale=8.0, centers=2).settings.centers == Centers(2)
    with pytest.raises(TypeError, match=r"gamma.*scale"):
        hm.create_head("arcface", D, C, gamma=64.0)
    with pytest.raises(TypeError, match="count"):
        hm.create_head("arcface", D, C, count=3)
    assert 'centers=Centers(3, pool="max")' in repr(head)


def test_a_backend_of_ones_own_is_not_asked_for_what_it_does_not_know():
    x, W, y = draw()
    with pytest.raises(ValueError, match=r"RowByRow.* counts every center .* knows_pools = True in your backend"):
        hm.margin_softmax(x, W, y, ArcFace(), scale=8.0, centers=Centers(K, "max"), backend=RowByRow())
    every = {"scale": 8.0, "centers": K}
    right = hm.margin_softmax(x, W, y, ArcFace(), **every)
    torch.testing.assert_close(hm.margin_softmax(x, W, y, ArcFace(), backend=RowByRow(), **every), right)


def test_lengths_at_the_end_of_float32():
    """1/(γ|f|) would be infinite."""
    for size in (1.5e-38, 1e-30, 1e30):
        x, W, y = draw()
        x, W = (size * F.normalize(x.detach())).float().requires_grad_(), W.detach().float().requires_grad_()
        found = []
        for backend in (Dense(), Chunked(chunk=6)):
            settings = {"unit_features": False, "centers": Centers(K, "soft"), "backend": backend}
            loss = hm.margin_softmax(x, W, y, NoMargin(), scale=1.0, **settings)
            grads = torch.autograd.grad(loss, (x, W))
            assert loss.isfinite()
            assert all(g.isfinite().all() for g in grads), size
            found.append(loss)
        torch.testing.assert_close(*found)
