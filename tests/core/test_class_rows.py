"""Margins by class that move, and views of the class rows: against formulas written out on the whole matrix."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import over_backends

import hypermargin as hm
from hypermargin.backends import Chunked
from hypermargin.layout import WHOLE
from hypermargin.margins import ArcFace, CosFace, DynArcFace, KappaFace
from hypermargin.margins.adaptiveface import first_margins
from hypermargin.views import VariationalPrototypes, VectorScaling, Viewed

N, C, D = 9, 7, 5
COUNTS = [100, 1, 10_000, 0, 30, 7, 7]


def batch(seed=0, rows=N, classes=C, dim=D):
    rng = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(rows, dim, generator=rng, dtype=torch.float64)
    return x.requires_grad_(), torch.randint(0, classes, (rows,), generator=rng)


def made(name, classes=C, seed=0, dim=D, **overrides):
    """A head of that name, in float64 with all its state."""
    head = hm.create_head(name, dim, classes, **overrides).double()
    with torch.no_grad():
        rng = torch.Generator().manual_seed(100 + seed)
        head.weight.copy_(torch.randn(head.weight.shape, generator=rng, dtype=torch.float64))
    return head


def cosines(x, W):
    return F.normalize(x) @ F.normalize(W).T


def agree(ours, theirs, *leaves):
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    for a, b in zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def angular(x, W, y, m, s=64.0):
    """Cross-entropy with cos(θ + m) in the target's place, m one per row."""
    c = cosines(x, W)
    target = (c.gather(1, y[:, None]).acos() + m[:, None]).cos()
    return F.cross_entropy((s * c).scatter(1, y[:, None], s * target), y)


def step(head, x, y):
    """A step of training, without changing the weight."""
    head.train()
    return head(x, y)


# KappaFace


def kappa_weights(features, labels, counts, classes, gamma=0.7, temperature=0.4):
    """Oinar et al. 2022, equations 5 to 9, by loops."""
    d = features.shape[1]
    kappa = {}
    for c in range(classes):
        mine = F.normalize(features[labels == c])
        if len(mine):
            r = float(mine.sum(0).norm()) / len(mine)
            kappa[c] = math.inf if len(mine) == 1 else r * (d - r**2) / (1 - r**2)
    largest = max((k for k in kappa.values() if k < math.inf), default=0.0)
    values = torch.tensor([min(k, largest) for k in kappa.values()], dtype=torch.float64)
    off = values - values.mean()
    differ = len(values) > 1 and float(values.max() - values.min()) > 1e-12 * largest
    normed = off / values.std() if differ else torch.zeros_like(off)
    found = torch.ones(classes, dtype=torch.float64)
    for c, k in zip(kappa, normed, strict=True):
        rare = (1 + math.cos(math.pi * counts[c] / (1.05 * max(counts)))) / 2
        found[c] = gamma * (1 - torch.sigmoid(temperature * k)) + (1 - gamma) * rare
    return found


@over_backends
def test_kappaface(backend):
    head = made("kappaface", counts=COUNTS, beyond="none", backend=backend)
    w, seen, labels = torch.ones(C, dtype=torch.float64), [], []
    for epoch in range(3):
        for k in range(4):
            x, y = batch(10 * epoch + k)
            y = torch.where(y == 3, 2, y)  # a class that is never seen keeps its weight
            agree(step(head, x, y), angular(x, head.weight, y, 0.8 * w[y]), x, head.weight)
            seen.append(x.detach())
            labels.append(y)
        head.end_epoch()
        now = kappa_weights(torch.cat(seen), torch.cat(labels), COUNTS, C)
        w[torch.arange(C) != 3] = now[torch.arange(C) != 3]
        torch.testing.assert_close(head.row_margin.weights, w, rtol=1e-10, atol=1e-10)
        assert w.std() > 0.01
        seen, labels = [], []
    torch.testing.assert_close(head.eval()(x, y), angular(x, head.weight, y, 0.8 * w[y]))


def test_a_class_seen_once_has_the_largest_finite_concentration():
    head = made("kappaface", counts=[5] * C)
    x, _ = batch(rows=8)
    y = torch.tensor([0, 0, 0, 1, 1, 1, 2, 3])
    step(head, x, y)
    head.end_epoch()
    wanted = kappa_weights(x.detach(), y, [5] * C, C)
    torch.testing.assert_close(head.row_margin.weights, wanted, rtol=1e-10, atol=1e-10)
    assert head.row_margin.weights[2] == head.row_margin.weights[3]
    for rows, labels in (  # one class, one row, rows that are equal: all as concentrated, so nothing to compare
        (x[:3], y[:3]), (x[:1], y[:1]), (x[:1].expand(6, -1), torch.tensor([0, 0, 0, 1, 1, 1])),
        (x[:5], torch.tensor([0, 0, 1, 2, 3])),
    ):  # fmt: skip
        head = made("kappaface", counts=[5] * C)
        step(head, rows, labels)
        head.end_epoch()
        half = 0.35 + 0.15 * (1 + math.cos(math.pi / 1.05))
        torch.testing.assert_close(head.row_margin.weights[labels], torch.full((len(labels),), half).double())


def test_kappaface_counts_rows_that_count_and_the_samples_of_an_epoch_where_it_was_not_told():
    head = hm.MarginHead(D, C, KappaFace(), scale=64.0, check=False, reduction="none").double()
    x, y = batch()
    y[0], y[1:4] = -100, 6
    with torch.no_grad():
        x[1], x[2] = math.nan, 0.0
    step(head, x, y)
    kept = torch.ones(N).bool()
    kept[:3] = False
    counts = torch.bincount(y[kept], minlength=C).double()
    assert torch.equal(head.row_margin.seen, counts)
    sums = torch.zeros(C, D).double().index_add_(0, y[kept], F.normalize(x.detach()[kept]))
    torch.testing.assert_close(head.row_margin.sums, sums)
    head.end_epoch()
    wanted = kappa_weights(x.detach()[kept], y[kept], counts.tolist(), C)
    torch.testing.assert_close(head.row_margin.weights, wanted)
    assert not head.row_margin.seen.any()
    before = copy.deepcopy(head.state_dict())
    head.end_epoch()  # nothing was seen since
    assert all(torch.equal(value, before[key]) for key, value in head.state_dict().items())


# Dyn-ArcFace


def dynamic(W, y, m=0.5, k1=1.2, k2=0.5, centers=1):
    """The formula of X2-Softmax's repository for every row; with centers, for the nearest pair."""
    c = cosines(W, W)
    own = torch.arange(len(W)) // centers
    c = c.masked_fill(own[:, None] == own[None, :], -2.0).amax(1).unflatten(0, (-1, centers)).amax(1)
    theta = c.clamp(-1, 1).acos().detach()[y]
    return (theta - k1).relu() * k2 + m + 0.03 * m / (1 + ((theta - k1).abs() * 20) ** 1.1)


@over_backends
def test_dyn_arcface(backend):
    for k1 in (0.4, 1.2):
        head = made("dyn-arcface", beyond="none", backend=backend, k1=k1)
        x, y = batch()
        agree(step(head, x, y), angular(x, head.weight, y, dynamic(head.weight, y, k1=k1)), x, head.weight)
    both = head(x, y, mix=(y.flip(0), 0.3))
    torch.testing.assert_close(both, 0.3 * head(x, y) + 0.7 * head(x, y.flip(0)))
    plain = hm.margin_softmax(x, head.weight, y, DynArcFace(), scale=64.0)
    torch.testing.assert_close(plain, hm.margin_softmax(x, head.weight, y, ArcFace(0.5), scale=64.0))


def test_dyn_arcface_with_centers_and_a_warm_up_and_alone():
    head = made("dyn-arcface", centers=2, beyond="none", reduction="none")
    x, y = batch()
    c = cosines(x, head.weight).unflatten(1, (C, 2))
    own = c.gather(1, y[:, None, None].expand(-1, 1, 2)).squeeze(1).amax(1)
    T = 64 * (own.acos() + dynamic(head.weight, y, centers=2)).cos()
    R = (64 * c).masked_fill(F.one_hot(y, C).bool()[:, :, None], -torch.inf).flatten(1).logsumexp(1)
    torch.testing.assert_close(step(head, x, y), F.softplus(R - T), rtol=1e-10, atol=1e-10)
    warm = made("dyn-arcface", schedule=hm.schedule.MarginWarmup(10), beyond="none")
    for at in range(1, 12):  # all of it grows from nothing, k2's part too
        wanted = angular(x, warm.weight, y, min(at / 10, 1) * dynamic(warm.weight, y))
        torch.testing.assert_close(step(warm, x, y), wanted)
    lonely = made("dyn-arcface", classes=1)
    assert step(lonely, x, torch.zeros_like(y)) == 0


# AdaptiveFace


@over_backends
def test_adaptiveface_is_its_papers_loss_but_for_a_constant(backend):
    head = made("adaptiveface", backend=backend)
    x, y = batch()
    m = head.m
    c = cosines(x, head.weight)
    z = 30 * (c - m[y][:, None] * F.one_hot(y, C))
    agree(step(head, x, y) + 70, F.cross_entropy(z, y) + 70 * (1 - m.mean()), x, head.weight, m)
    assert not torch.equal(head.m, head.m[:1].expand(C))
    out = made("adaptiveface", class_margins=[0.0, 0.5, 0.9, 0.1, 0.1, 0.2, 0.3])
    out.m.data[1], out.m.data[2] = 1.3, -0.2
    assert torch.equal(out.current_margins(), out.m.clamp(0, 1))  # as the code clamps them before use


def test_first_margins_are_even_and_the_same_for_every_number_of_classes():
    m = first_margins(KappaFace(0.35), 100_000)
    assert m.min() >= 0.3
    assert m.max() <= 0.4
    assert abs(float(m.mean()) - 0.35) < 5 * 0.1 / math.sqrt(12 * len(m))
    assert len(m.unique()) > 0.9 * len(m)
    assert torch.equal(first_margins(KappaFace(0.35), 10), m[:10])


def test_margins_that_are_learned_run_to_an_end():
    """The reward of a class is λ/C whether it is in the batch or not: against s·share·(1 − p), which is less."""
    for reward, end in ((70 / 30, 1.0), (0.0, 0.0)):
        head = made("adaptiveface", margin_reward=reward)
        x, _ = batch()
        optimizer = torch.optim.SGD([head.m], lr=0.01)
        for _ in range(200):
            optimizer.zero_grad()
            step(head, x, torch.arange(N) % C).backward()
            optimizer.step()
        inside = head.current_margins()
        assert (inside > 0.99).all() if end else (inside < 0.01).all()


# Vector scaling


def vs(z, y, counts, gamma=0.3, tau=1.0):
    """Kini et al. 2021, equation 2: logits of all classes, the bias among them."""
    n = torch.tensor(counts, dtype=torch.float64).clamp(min=1)
    factor = ((n / n.max()) ** gamma).float().double()
    return F.cross_entropy(z * factor + (tau * (n / n.sum()).log()).float().double(), y)


@over_backends
def test_vs(backend):
    x, y = batch()
    head = made("vs", counts=COUNTS, backend=backend)
    head.bias.data.normal_(generator=torch.Generator().manual_seed(0))
    z = x @ head.weight.T + head.bias
    agree(step(head, x, y), vs(z, y, COUNTS), x, head.weight, head.bias)
    torch.testing.assert_close(head(x), z)  # absent at inference
    assert torch.equal(head.eval()(x, y), head.train()(x, y))
    other = made("vs", counts=COUNTS, gamma=0.1, tau=2.0, bias=False, backend=backend)
    agree(step(other, x, y), vs(x @ other.weight.T, y, COUNTS, 0.1, 2.0), x, other.weight)


@over_backends
def test_vs_of_cosines_with_a_margin_centers_and_a_learned_scale(backend):
    x, y = batch()
    options = {"scale": 8.0, "view": VectorScaling(), "class_counts": COUNTS, "backend": backend}
    head = hm.MarginHead(D, C, ArcFace(0.3, "none"), **options, learn_scale=True, bias=True).double()
    c = cosines(x, head.weight)
    s = head.scale.double()
    target = s * (c.gather(1, y[:, None]).acos() + 0.3).cos()
    z = (s * c).scatter(1, y[:, None], target) + head.bias
    agree(step(head, x, y), vs(z, y, COUNTS), x, head.weight, head.scale, head.bias)
    torch.testing.assert_close(head(x), s * c + head.bias)
    found = head.scores(x, y, cosines=True)
    torch.testing.assert_close(found.target, c.gather(1, y[:, None]))
    centers = hm.MarginHead(D, C, CosFace(0.0), **options, centers=2).double()
    c = cosines(x, centers.weight).unflatten(1, (C, 2))
    n = torch.tensor(COUNTS).double().clamp(min=1)
    z = 8 * c * ((n / n.max()) ** 0.3)[:, None] + (n / n.sum()).log()[:, None]
    others = z.masked_fill(F.one_hot(y, C).bool()[:, :, None], -torch.inf).flatten(1)
    own = z.amax(2).gather(1, y[:, None])
    wanted = F.cross_entropy(torch.cat((own, others), 1), torch.zeros_like(y))
    torch.testing.assert_close(step(centers, x, y), wanted, rtol=1e-6, atol=1e-6)  # factors are float32


def test_vs_without_its_numbers_is_softmax():
    x, y = batch()
    head = made("vs", counts=COUNTS, gamma=0.0, tau=0.0)
    torch.testing.assert_close(step(head, x, y), F.cross_entropy(x @ head.weight.T + head.bias, y))
    head = made("vs", counts=COUNTS, gamma=0.0, tau=1.5)
    adjusted = made("logit-adjustment", counts=COUNTS, tau=1.5)
    torch.testing.assert_close(step(head, x, y), step(adjusted, x, y))


# Variational prototypes


def prototypes(x, W, y, last, ago, step, share=0.15, within=200, after=8000, m=0.5, s=64.0):
    """Deng et al. 2021: w̃ = norm((1 − λ)ŵ + λq); `step` counts from 1, a class was seen `ago` steps before."""
    mixed = F.normalize(W)
    if step > after:
        lam = torch.tensor(
            [share if q is not None and a <= within else 0.0 for q, a in zip(last, ago, strict=True)]
        )
        q = torch.stack([torch.zeros(W.shape[1]).double() if q is None else q for q in last])
        mixed = F.normalize((1 - lam[:, None].double()) * mixed + lam[:, None].double() * q)
    return angular(x, mixed, y, torch.full((len(y),), m).double(), s)


@over_backends
def test_vpl(backend):
    numbers = {"share": 0.25, "within": 2, "after": 3}
    head = made("vpl", beyond="none", backend=backend, **{k: float(v) for k, v in numbers.items()})
    last, seen = [None] * C, [-100] * C
    moved = False
    for at in range(1, 9):
        x, y = batch(at, rows=5)
        wanted = prototypes(x, head.weight, y, last, [at - t for t in seen], at, **numbers)
        plain = angular(x, head.weight, y, torch.full((5,), 0.5).double())
        moved |= bool((wanted - plain).abs() > 1e-3)
        if at <= 3:
            torch.testing.assert_close(wanted, plain)
        agree(step(head, x, y), wanted, x, head.weight)
        torch.testing.assert_close(head.eval()(x, y), plain)
        for row, label in zip(F.normalize(x.detach()), y.tolist(), strict=True):  # the last row of a class stays
            last[label], seen[label] = row, at
        for c in range(C):
            assert (head.view_state.ago[c] == 2.0**24) == (last[c] is None)
            if last[c] is not None:
                torch.testing.assert_close(head.view_state.last[c], last[c])
                assert head.view_state.ago[c] == at - seen[c]
    assert moved
    torch.testing.assert_close(head(x), 64 * cosines(x, head.weight))


def test_vpl_remembers_rows_that_count():
    head = hm.create_head("vpl", D, C, check=False, reduction="none").double()
    x, y = batch()
    y[:] = torch.tensor([0, 0, 1, 2, 3, 3, 4, 4, -100])
    with torch.no_grad():
        x[1], x[2], x[4] = math.nan, 0.0, 1e200
    step(head, x, y)
    assert head.view_state.last.isfinite().all()
    assert (head.view_state.ago == 0).tolist() == [True, False, True, True, True, False, False]
    for c, row in ((0, 0), (2, 3), (3, 5), (4, 7)):
        torch.testing.assert_close(head.view_state.last[c], F.normalize(x.detach()[row], dim=0))


# All of them

HEADS = [
    ("kappaface", {"counts": COUNTS}),
    ("dyn-arcface", {}),
    ("adaptiveface", {}),
    ("vs", {"counts": COUNTS}),
    ("vpl", {"after": 1.0, "within": 3.0}),
    ("arcface", {"view": VectorScaling(), "class_counts": COUNTS}),
    ("mv-arcface", {"view": VariationalPrototypes(after=0.0)}),
]
over_heads = pytest.mark.parametrize(
    ("name", "options"), HEADS, ids=lambda each: each if isinstance(each, str) else ""
)


@over_heads
def test_state_moves_in_training_alone_and_goes_on_after_a_resume(name, options):
    head = made(name, **options)
    fresh = copy.deepcopy(head.state_dict())
    x, y = batch()
    head.eval()(x, y)
    head.train()
    with pytest.raises(ValueError, match="must lie in"):
        head(x, y + 100)
    state = head.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in fresh.items())
    for k in range(3):
        step(head, *batch(k))
    head.end_epoch()
    step(head, *batch(3))
    again = made(name, seed=5, **options)
    again.load_state_dict(head.state_dict())
    for k in range(4, 8):
        ours, theirs = step(head, *batch(k)), step(again, *batch(k))
        assert torch.equal(ours, theirs)
    for each in (head, again):
        each.end_epoch()
    assert torch.equal(step(head, x, y), step(again, x, y))
    for key, value in head.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key
    head.reset_parameters()
    for key, value in head.state_dict().items():
        assert key in ("weight",) or torch.equal(value, fresh[key]), key


@over_heads
@pytest.mark.parametrize("backend", ["dense", Chunked(chunk=2)], ids=str)
def test_hostile_batches(name, options, backend):
    for classes, scale, length in ((1, 8.0, 1.0), (2, 64.0, 1e4), (7, 64.0, 0.0), (7, 30.0, 1e-20)):
        counts = {"counts": COUNTS[:classes]} if "counts" in options else {}
        counts |= {"class_counts": COUNTS[:classes]} if "class_counts" in options else {}
        head = made(name, classes, **{**options, **counts}, scale=scale, backend=backend)
        for rows in (4, 1, 0):
            for _ in range(3):
                x, y = batch(rows=rows, classes=classes)
                x = (length * x.detach()).requires_grad_()
                if rows > 1 and length:
                    x.data[0], x.data[1] = head.weight[y[0]].detach(), -head.weight[y[1]].detach()
                loss = step(head, x, y)
                loss.backward()
                assert loss.isfinite()
                assert x.grad.isfinite().all()
                assert all(p.grad is None or p.grad.isfinite().all() for p in head.parameters())
        head.end_epoch()
        assert all(value.isfinite().all() for value in head.state_dict().values())


@over_heads
def test_second_derivatives(name, options):
    head = made(name, scale=4.0, backend=Chunked(chunk=2), **options)
    for k in range(3):
        step(head, *batch(k))
    head.end_epoch()
    x, y = batch(8, rows=4)

    def loss(x, W):
        one = copy.deepcopy(head)
        return torch.func.functional_call(one, {"weight": W}, (x, y))

    smooth = name not in ("dyn-arcface", "mv-arcface")  # there a part of the loss has no gradient
    leaves = x.detach().requires_grad_(), head.weight.detach().clone().requires_grad_()
    if smooth:
        assert torch.autograd.gradcheck(loss, leaves)
        assert torch.autograd.gradgradcheck(loss, leaves)
    else:
        (g,) = torch.autograd.grad(loss(*leaves), leaves[0], create_graph=True)
        assert all(each.isfinite().all() for each in torch.autograd.grad(g.square().sum(), leaves))


@over_heads
def test_with_partial_fc(name, options):
    """Against the whole loss over the classes that were drawn; the gradient of the rest is not there."""
    head = made(name, sample=hm.PartialFC(0.6), scale=8.0, backend="dense", **options)
    for k in range(3):
        step(head, *batch(k))
    head.end_epoch()
    x, y = batch(9, rows=4)
    drawn = hm.parallel.partial_fc.draw(head.settings.sample, head.sampled_steps, range(C), C, y[:, None]).rows
    assert len(drawn) < C
    state = copy.deepcopy(head.state_dict())
    one = made(name, len(drawn), scale=8.0, **_cut(options, drawn))
    for key, value in state.items():
        if key in one.state_dict():
            by_class = key in head.by_class()
            one.state_dict()[key].copy_(value[drawn] if by_class else value)
    loss = step(head, x, y)
    place = torch.full((C,), -1).scatter(0, drawn, torch.arange(len(drawn)))
    extra = 0
    if name == "adaptiveface":  # the reward is about all classes
        extra = 8 * 70 / 30 * (head.m.mean() - one.m.mean()).detach()
    torch.testing.assert_close(loss, step(one, x, place[y]) - extra, rtol=1e-10, atol=1e-10)
    loss.backward()
    assert head.weight.grad.is_sparse
    assert head.weight.grad.coalesce().indices()[0].tolist() == drawn.tolist()
    corrected = made(name, sample=hm.PartialFC(0.6, correct=True), scale=8.0, **options)
    assert step(corrected, x, y).isfinite()


def _cut(options, drawn):
    return {k: [v[i] for i in drawn] if k in ("counts", "class_counts") else v for k, v in options.items()}


def test_partial_fcs_correction_is_not_scaled():
    """vs of logits, each class counted as often as it stands for: log times outside of the factor."""
    sample = hm.PartialFC(0.5, correct=True)
    head = made("vs", counts=COUNTS, sample=sample)
    head.bias.data.normal_(generator=torch.Generator().manual_seed(0))
    x, y = batch(rows=3)
    drawn = hm.parallel.partial_fc.draw(sample, head.sampled_steps, range(C), C, y[:, None])
    z = (x @ head.weight.T + head.bias) * head.view_state.factors + head.view_state.offsets
    z = (z[:, drawn.rows] + drawn.log_times).scatter(
        1, torch.searchsorted(drawn.rows, y)[:, None], z.gather(1, y[:, None])
    )
    wanted = F.cross_entropy(z, torch.searchsorted(drawn.rows, y))
    torch.testing.assert_close(step(head, x, y), wanted, rtol=1e-10, atol=1e-10)


@over_heads
def test_under_autocast(name, options):
    head = hm.create_head(name, D, C, **options)
    x, y = batch()
    x = x.detach().float()
    for _ in range(3):
        plain = copy.deepcopy(head)
        with torch.autocast("cpu", torch.bfloat16):
            loss = step(head, x.bfloat16(), y)
        wanted = step(plain, x.bfloat16().float(), y)
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss, wanted, rtol=3e-2, atol=3e-2)
        for key, value in head.state_dict().items():
            torch.testing.assert_close(value, plain.state_dict()[key], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: hm.create_head("kappaface", 4, 3), TypeError, "kappaface needs counts="),
        (lambda: hm.create_head("vs", 4, 3), TypeError, "vs needs counts="),
        (lambda: hm.create_head("vs", 4, 3, counts=[1, 2]), ValueError, r"counts must have shape \(3,\)"),
        (lambda: hm.MarginHead(4, 3, CosFace(), scale=8.0, view=VectorScaling()), TypeError, "give class_counts"),
        (lambda: hm.create_head("arcface", 4, 3, view="vpl"), TypeError, "view must be"),
        (
            lambda: hm.create_head("sphereface2", 4, 3, view=VectorScaling(), class_counts=[1, 2, 3]),
            ValueError, "needs softmax's rule",
        ),
        (lambda: hm.create_head("softmax", 4, 3, view=VariationalPrototypes()), ValueError, "unit_weight=True"),
        (lambda: hm.create_head("vpl", 4, 3, centers=2), ValueError, "needs centers=1"),
        (lambda: hm.create_head("vpl", 4, 3, share=0.7), ValueError, r"share=…\) must lie in \[0, 0.5\)"),
        (lambda: hm.create_head("sphereface-r", 4, 3, version=3), ValueError, "version must be one of 0, 1, 2"),
        (lambda: hm.create_head("sphereface-r", 4, 3, version=True), ValueError, "got True"),
        (lambda: hm.create_head("arcface", 4, 3, version=1), TypeError, "arcface has no setting 'version'"),
        (lambda: hm.views.get("vlp"), ValueError, "Did you mean 'vpl'"),
    ],
)  # fmt: skip
def test_words(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_without_a_head():
    """Views and sources of margins are objects that the function takes too."""
    x, y = batch()
    W = made("arcface").weight
    state = VectorScaling().state()
    state.hold(range(C), D, torch.tensor(COUNTS).double())
    ours = hm.margin_softmax(x, W, y, CosFace(), scale=8.0, layout=Viewed(WHOLE, state.double()))
    z = 8 * (cosines(x, W) - 0.35 * F.one_hot(y, C).double())
    agree(ours, vs(z, y, COUNTS), x, W)
    source = KappaFace().row_margin()
    plain = hm.margin_softmax(x, W, y, KappaFace(), scale=8.0, row_margin=source)
    torch.testing.assert_close(plain, hm.margin_softmax(x, W, y, ArcFace(0.8), scale=8.0))
    dyn = DynArcFace(beyond="none")
    agree(
        hm.margin_softmax(x, W, y, dyn, scale=64.0, row_margin=dyn.row_margin()),
        angular(x, W, y, dynamic(W, y)), x, W,
    )  # fmt: skip


def test_versions_of_sphereface_r_are_one_name():
    for version in (0, 1, 2):
        by_version = hm.create_head("sphereface-r", 4, 3, version=version, m=1.7)
        by_name = hm.create_head(f"sphereface-r-v{version}", 4, 3, m=1.7)
        assert by_version.settings == by_name.settings
    assert hm.create_head("sphereface-r", 4, 3).settings == hm.create_head("sphereface-r-v2", 4, 3).settings


def test_a_view_of_your_own():
    """A subclass says what the rows are, and every layout and backend takes it."""

    class Turned(hm.views.View):
        def state(self):
            return TurnedRows()

    class TurnedRows(hm.views.ViewState):
        def forward(self, table, batch):
            return table._replace(weight=-table.weight)

    x, y = batch()
    head = hm.MarginHead(D, C, CosFace(), scale=8.0, view=Turned()).double()
    wanted = hm.margin_softmax(x, -head.weight, y, CosFace(), scale=8.0)
    torch.testing.assert_close(step(head, x, y), wanted)
    with pytest.raises(ValueError, match="changes the class rows themselves"):
        hm.FusedSGD(head.float(), lr=0.1)
