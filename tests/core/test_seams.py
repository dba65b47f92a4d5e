"""The six slots, each filled with something real and held against a formula written out independently here."""

import copy
import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import over_backends

import hypermargin as hm
from hypermargin import rules
from hypermargin.margins import AdaFace, ArcFace, CosFace, NoMargin, SphereFace2
from hypermargin.rules import MVSoftmax
from hypermargin.terms import RingLoss


def draw(N=6, C=7, d=4, K=1, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x, W = (torch.randn(n, d, generator=rng, dtype=torch.float64) for n in (N, C * K))
    return 3 * x, W, torch.randint(0, C, (N,), generator=rng)


def cosines(x, W):
    return F.normalize(x) @ F.normalize(W).T


def agree(ours, theirs, *leaves):
    """The loss and every gradient, to float64's rounding over a few dozen terms."""
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    for a, b in zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def mv_softmax(x, W, y, psi, s, t, kind):
    """Wang et al. 2020, equations 8 and 9, on the whole matrix."""
    c = cosines(x, W)
    target = psi(c.gather(1, y[:, None]).squeeze(1))
    hard = c > target.detach()[:, None]
    raised = (t + 1) * c + t if kind == "adaptive" else c + t
    z = s * torch.where(hard, raised, c)
    return F.cross_entropy(z.scatter(1, y[:, None], s * target[:, None]), y)


@over_backends
@pytest.mark.parametrize("kind", ["adaptive", "fixed"])
@pytest.mark.parametrize("margin", [CosFace(0.35), ArcFace(0.5, beyond="none")], ids=["MV-AM", "MV-Arc"])
def test_mv_softmax_is_its_formula(backend, kind, margin):
    for seed in range(4):
        x, W, y = draw(9, 12, 5, seed=seed)
        leaves = x.requires_grad_(), W.requires_grad_()
        s = torch.tensor(16.0, dtype=torch.float64, requires_grad=True)
        ours = hm.margin_softmax(*leaves, y, margin, scale=s, rule=MVSoftmax(0.2, kind), backend=backend)
        psi = (lambda c: c - 0.35) if isinstance(margin, CosFace) else (lambda c: (c.acos() + 0.5).cos())
        agree(ours, mv_softmax(x, W, y, psi, s, 0.2, kind), *leaves, s)


@over_backends
def test_mv_softmax_without_a_difference_is_the_margin_and_with_one_is_more(backend):
    x, W, y = draw(20, 30)
    plain = hm.margin_softmax(x, W, y, CosFace(), scale=16.0, reduction="none", backend=backend)
    losses = [
        hm.margin_softmax(x, W, y, CosFace(), scale=16.0, rule=MVSoftmax(t), reduction="none", backend=backend)
        for t in (0.0, 0.1, 0.4)
    ]
    torch.testing.assert_close(losses[0], plain)
    assert (losses[1] >= losses[0]).all()
    assert (losses[2] >= losses[1]).all()
    assert (losses[2] > losses[1]).any()


def sphereface2(x, W, y, s, b, m=0.4, t=3.0, positive=0.7, weight=50.0):
    """Wen et al. 2022, equation 7 with its margin, as C questions per row."""
    c = cosines(x, W)
    g = 2 * ((c + 1) / 2) ** t - 1
    own = F.one_hot(y, len(W)).bool()
    yes = torch.log1p(torch.exp(-(s * (g - m) + b))) * own
    no = torch.log1p(torch.exp(s * (g + m) + b)) * ~own
    return (weight / s.detach() * (positive * yes + (1 - positive) * no).sum(1)).mean()


@over_backends
@pytest.mark.parametrize("t", [1.0, 3.0, 2.5])
def test_sphereface2_is_its_formula(backend, t):
    x, W, y = draw(9, 12, 5)
    leaves = x.requires_grad_(), W.requires_grad_()
    s, b = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (20.0, -3.0))
    margin, rule = SphereFace2(0.4, t), rules.SphereFace2(0.4, t)
    ours = hm.margin_softmax(*leaves, y, margin, scale=s, bias=b, rule=rule, backend=backend)
    agree(ours, sphereface2(x, W, y, s, b, t=t), *leaves, s, b)


@over_backends
def test_sphereface2_is_finite_where_its_formula_overflows_and_has_one_class(backend):
    for s, classes in ((1e4, 7), (20.0, 1)):
        x, W, y = draw(C=classes)
        leaves = x.requires_grad_(), W.requires_grad_()
        loss = hm.margin_softmax(
            *leaves, y, SphereFace2(), scale=s, bias=torch.tensor(1.0), rule=rules.SphereFace2(), backend=backend
        )
        assert loss.isfinite()
        assert all(g.isfinite().all() for g in torch.autograd.grad(loss, leaves))


def test_the_shared_bias_begins_where_its_gradient_is_zero():
    """At cosines of 0, for few and many classes: dL/db = −positive·σ(−T) + (1 − positive)(C − 1)·σ(ρ) = 0."""
    for classes, s in ((2, 8.0), (10, 30.0), (10_000, 64.0), (10**6, 40.0)):
        rule = rules.SphereFace2()
        b, zero = rule.first_bias(classes, s), 2 * 0.5**3 - 1
        log_yes = math.log(0.7) - math.log1p(math.exp(s * (zero - 0.4) + b))
        log_no = math.log(0.3 * (classes - 1)) - math.log1p(math.exp(-(s * (zero + 0.4) + b)))
        assert math.isclose(log_yes, log_no, abs_tol=1e-9)
    head = hm.MarginHead(4, 10, SphereFace2(), scale=30.0, rule=rules.SphereFace2(), bias="shared")
    assert head.bias.shape == ()
    assert math.isclose(head.bias.item(), rules.SphereFace2().first_bias(10, 30.0), rel_tol=1e-6)


def adaface(x, W, y, mean, deviation, m=0.4, h=0.333, s=64.0):
    """Kim et al. 2022, algorithm 1, at given statistics."""
    norm = x.norm(dim=1, keepdim=True).clamp(1e-3, 100).detach()
    q = (h * (norm - mean) / (deviation + 1e-3)).clamp(-1, 1)
    c = cosines(x, W)
    theta = c.gather(1, y[:, None]).acos()
    target = (theta - m * q).clamp(1e-3, math.pi - 1e-3).cos() - m * (1 + q)
    return F.cross_entropy((s * c).scatter(1, y[:, None], s * target), y)


@over_backends
def test_adaface_is_its_formula_and_its_statistics_move_before_use(backend):
    head = hm.MarginHead(4, 7, AdaFace(momentum=0.1), scale=64.0, backend=backend, dtype=torch.float64)
    mean, deviation = 20.0, 100.0
    for step in range(3):
        x, _, y = draw(seed=step)
        x = (x * torch.linspace(0.1, 30, 6)[:, None]).requires_grad_()
        norm = x.detach().norm(dim=1).clamp(1e-3, 100)
        mean, deviation = 0.9 * mean + 0.1 * norm.mean(), 0.9 * deviation + 0.1 * norm.std()
        agree(head(x, y), adaface(x, head.weight, y, mean, deviation), x, head.weight)
        state = head.state_dict()
        # The buffers are float32, as a checkpoint keeps them.
        torch.testing.assert_close(state["row_margin.mean"].item(), float(mean), rtol=1e-6, atol=0)
        mean, deviation = state["row_margin.mean"].double(), state["row_margin.deviation"].double()


def test_adaface_keeps_its_state_when_it_should():
    head = hm.MarginHead(4, 7, AdaFace(), scale=64.0)
    before = copy.deepcopy(head.state_dict())
    x, _, y = draw()
    x = x.float()

    def moved():
        return not torch.equal(head.state_dict()["row_margin.mean"], before["row_margin.mean"])

    head(x[:1], y[:1]).backward()  # one row has no deviation
    assert head(x[:1], y[:1]).isfinite()
    head.eval()(x, y)
    head.train()
    with pytest.raises(ValueError, match="must lie in"):
        head(x, y + 100)
    head(x[:0], y[:0])
    assert not moved()
    head(x, y)
    assert moved()
    again = hm.MarginHead(4, 7, AdaFace(), scale=64.0)
    again.load_state_dict(head.state_dict())
    torch.testing.assert_close(again(x, y), head(x, y), rtol=0, atol=0)
    ignored = torch.cat((y, torch.full((3,), -100)))
    more = torch.cat((x, torch.full((3, 4), math.nan)))
    torch.testing.assert_close(again(more, ignored), head(x, y))


def test_adaface_without_quality_is_cosface_and_takes_a_warm_up():
    x, W, y = draw(20)
    row_margin = AdaFace(h=0.0).row_margin()
    ours = hm.margin_softmax(x, W, y, AdaFace(h=0.0), scale=16.0, row_margin=row_margin)
    torch.testing.assert_close(ours, hm.margin_softmax(x, W, y, CosFace(0.4), scale=16.0), rtol=1e-5, atol=0)
    warm = hm.MarginHead(4, 7, AdaFace(), scale=16.0, schedule=hm.schedule.MarginWarmup(10))
    plain = hm.MarginHead(4, 7, NoMargin(), scale=16.0)
    plain.load_state_dict({"weight": warm.weight.detach(), "scale": warm.scale})
    assert warm(x.float(), y) > plain(x.float(), y)
    warm.eval()
    assert warm.schedules[0].step == 1


def sub_centers(x, W, y, K, s, m):
    """All centers of other classes are rivals, the nearest of its own is the target."""
    c = cosines(x, W).unflatten(1, (-1, K))
    nearest = c.gather(1, y[:, None, None].expand(-1, 1, K)).squeeze(1).max(1).values
    target = s * (nearest.acos() + m).cos()
    others = (s * c).masked_fill(F.one_hot(y, c.shape[1]).bool()[:, :, None], -torch.inf).flatten(1)
    return F.cross_entropy(torch.cat((target[:, None], others), 1), torch.zeros_like(y))


@over_backends
def test_sub_centers_are_their_formula(backend):
    for K in (1, 2, 3):
        x, W, y = draw(9, 5, 6, K)
        leaves = x.requires_grad_(), W.requires_grad_()
        ours = hm.margin_softmax(*leaves, y, ArcFace(0.3), scale=8.0, centers=K, backend=backend)
        agree(ours, sub_centers(x, W, y, K, 8.0, 0.3), *leaves)
        with_bias = torch.linspace(-1, 1, 5, dtype=torch.float64)
        order = torch.randperm(K).repeat(5) + K * torch.arange(5).repeat_interleave(K)
        a = hm.margin_softmax(x, W, y, ArcFace(0.3), scale=8.0, centers=K, bias=with_bias, backend=backend)
        b = hm.margin_softmax(x, W[order], y, ArcFace(0.3), scale=8.0, centers=K, bias=with_bias, backend=backend)
        torch.testing.assert_close(a, b)


@over_backends
def test_a_head_with_centers(backend):
    head = hm.MarginHead(6, 5, ArcFace(0.3), scale=8.0, centers=3, backend=backend, dtype=torch.float64)
    x, _, y = draw(9, 5, 6)
    assert head.weight.shape == (15, 6)
    logits = 8 * cosines(x, head.weight).unflatten(1, (-1, 3)).amax(-1)
    torch.testing.assert_close(head(x), logits)
    found = head.scores(x, y)
    torch.testing.assert_close(found.target, logits.gather(1, y[:, None]))
    others = (8 * cosines(x, head.weight)).unflatten(1, (-1, 3))
    others = others.masked_fill(F.one_hot(y, 5).bool()[:, :, None], -torch.inf).flatten(1)
    torch.testing.assert_close(found.rivals, others.logsumexp(1))
    torch.testing.assert_close(found.hardest, others.amax(1))
    mixed = head(x, y, mix=(y.flip(0), 0.3))
    same = 0.3 * head(x, y) + 0.7 * head(x, y.flip(0))
    torch.testing.assert_close(mixed, same)
    by_class = hm.MarginHead(6, 5, ArcFace(), scale=8.0, centers=3, class_margins=[0.3] * 5, backend=backend)
    by_class.double().weight.data.copy_(head.weight.data)
    torch.testing.assert_close(by_class(x, y), head(x, y), rtol=1e-6, atol=0)


@over_backends
def test_offsets_are_logit_adjustment_and_are_left_out_of_the_logits(backend):
    counts = torch.tensor([100.0, 10.0, 1.0, 50.0, 5.0, 5.0, 2.0])
    offsets = (counts / counts.sum()).log()
    x, _, y = draw()
    for bias in (False, True, "shared"):
        options = {"scale": 8.0, "backend": backend, "dtype": torch.float64, "bias": bias}
        head = hm.MarginHead(4, 7, NoMargin(), class_offsets=offsets, **options)
        if bias:
            head.bias.data.normal_()
        b = 0 if head.bias is None else head.bias
        z = 8 * cosines(x, head.weight) + b
        torch.testing.assert_close(head(x), z)
        torch.testing.assert_close(head(x, y), F.cross_entropy(z + offsets.double(), y))
        assert "offsets" in head.state_dict()


@over_backends
def test_a_row_term_is_added_to_its_row(backend):
    term = RingLoss(weight=0.5, radius=2.0)
    head = hm.MarginHead(
        4, 7, CosFace(), scale=8.0, row_terms=[term], reduction="none", backend=backend, dtype=torch.float64
    )
    x, _, y = draw()
    x, y = x.requires_grad_(), torch.cat((y[:-1], torch.tensor([-100])))
    plain = hm.margin_softmax(x, head.weight, y, CosFace(), scale=8.0, reduction="none", backend=backend)
    extra = 0.25 * (x.norm(dim=1) - term.radius) ** 2 * (y >= 0)
    torch.testing.assert_close(head(x, y), plain + extra)
    agree(head(x, y).sum(), (plain + extra).sum(), x, head.weight, term.radius)
    assert "row_terms.0.radius" in head.state_dict()


@over_backends
def test_rules_go_with_mixup_where_they_have_no_threshold(backend):
    x, W, y = draw()
    other = y.flip(0)
    other[0] = y[0]
    options = {"scale": 8.0, "bias": torch.tensor(-1.0).double(), "rule": rules.SphereFace2(), "backend": backend}
    mixed = hm.margin_softmax(x, W, y, SphereFace2(), mix=(other, 0.3), **options)
    one, two = (hm.margin_softmax(x, W, labels, SphereFace2(), **options) for labels in (y, other))
    torch.testing.assert_close(mixed, 0.3 * one + 0.7 * two)
    with pytest.raises(ValueError, match="has a threshold per row, and mix gives a row two targets"):
        hm.margin_softmax(x, W, y, CosFace(), scale=8.0, rule=MVSoftmax(), mix=(other, 0.3), backend=backend)


@over_backends
def test_second_derivatives_of_rules(backend):
    x, W, y = draw(3, 4, 3)
    for margin, rule in ((CosFace(), MVSoftmax()), (SphereFace2(), rules.SphereFace2())):
        options = {"scale": 4.0, "rule": rule, "backend": backend}

        def loss(x, W, margin=margin, options=options):
            return hm.margin_softmax(x, W, y, margin, **options)

        leaves = x.clone().requires_grad_(), W.clone().requires_grad_()
        assert torch.autograd.gradcheck(loss, leaves)
        assert torch.autograd.gradgradcheck(loss, leaves)


def test_a_rule_is_a_value_and_the_registry_finds_it():
    for name in rules.names():
        rule = rules.get(name)()
        hm.testing.check_rule(rule)
        assert eval(repr(rule), vars(rules)) == rule
        assert rules._base.from_text(rules._base.to_text(rule)) == rule
    with pytest.raises(ValueError, match="Did you mean 'mv-softmax'"):
        rules.get("mv-softmacs")
    with pytest.raises(ValueError, match=r"MVSoftmax\(t=…\) must lie in \[0, inf\)"):
        MVSoftmax(t=-1.0)


def test_files_keep_what_the_slots_hold(tmp_path):
    """Statistics, row terms, offsets and a shared bias go through `heads.write` and `heads.read`."""
    offsets = torch.linspace(-1, 1, 7)
    heads = {
        "adaface": hm.MarginHead(4, 7, AdaFace(), scale=8.0, class_offsets=offsets, bias="shared"),
        "ring": hm.MarginHead(4, 7, CosFace(), scale=8.0, row_terms=[RingLoss()]),
    }
    x, _, y = draw()
    for name, head in heads.items():
        head(x.float(), y)
        hm.heads.write(head, tmp_path / f"{name}.safetensors")
        found = hm.heads.read(tmp_path / f"{name}.safetensors")
        assert found.entries().keys() == head.state_dict().keys()
        assert all(torch.equal(found.entries()[key], value) for key, value in head.state_dict().items())
    head = heads["adaface"]
    again = hm.heads.head_from(hm.heads.read(tmp_path / "adaface.safetensors"), "arcface", margin=AdaFace())
    again.eval(), head.eval()
    torch.testing.assert_close(again(x.float(), y), head(x.float(), y))
    ids = hm.heads.remove_classes(head, [2])
    assert torch.equal(head.offsets, offsets[ids >= 0])
    hm.heads.add_classes(head, 1)
    assert head.offsets[-1] == 0


def test_a_rule_that_is_written_anew_is_computed_anew():
    def written(factor):
        @rules.register("tried in a notebook")
        @dataclasses.dataclass(frozen=True)
        class Tried(rules.Rule):
            def rho(self, cosine, threshold):
                return factor * cosine

            def slope(self, cosine, threshold):
                return factor * torch.ones_like(cosine)

        return Tried()

    x, W, y = draw()
    try:
        for factor in (1.0, 2.0):
            rule = written(factor)
            losses = [
                hm.margin_softmax(x, W, y, ArcFace(), scale=8.0, rule=rule, backend=b) for b in ("dense", "chunked")
            ]
            torch.testing.assert_close(*losses)
    finally:
        del rules._base.RULES.entries["tried in a notebook"]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_does_not_stay_in_adafaces_statistics(bad):
    x, _, y = draw()
    head = hm.MarginHead(4, 7, AdaFace(momentum=0.5), scale=8.0, check=False, reduction="none", dtype=torch.float64)
    without = copy.deepcopy(head)
    x[2], y_without = bad, y.index_fill(0, torch.tensor([2]), -100)
    loss, right = head(x, y), without(x, y_without)
    others = torch.arange(len(y)) != 2
    torch.testing.assert_close(loss[others], right[others])
    assert torch.equal(head.row_margin.mean, without.row_margin.mean)
    assert torch.equal(head.row_margin.deviation, without.row_margin.deviation)


def test_a_weight_has_as_many_rows_per_class_as_it_has_centers():
    x, W, y = draw(C=7)
    with pytest.raises(ValueError, match=r"weight must have 2 rows per class, as centers=2 says; got 7 rows"):
        hm.margin_softmax(x, W, y.clamp(max=2), ArcFace(), scale=8.0, centers=2)


@pytest.mark.parametrize("rule", ["mv-softmax", MVSoftmax, None], ids=str)
def test_create_head_says_what_a_rule_is(rule):
    with pytest.raises(TypeError, match=r"rule must be a Rule such as rules.MVSoftmax"):
        hm.create_head("arcface", 4, 7, rule=rule)


def test_a_head_made_without_memory_begins_as_any_other():
    options = {"scale": 8.0, "row_terms": [RingLoss(radius=3.0)], "schedule": hm.schedule.MarginWarmup(5)}
    head = hm.MarginHead(4, 7, AdaFace(), device="meta", **copy.deepcopy(options)).to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*head.parameters(), *head.buffers()):
            tensor.fill_(77)
    head.reset_parameters()
    fresh = hm.MarginHead(4, 7, AdaFace(), **copy.deepcopy(options)).state_dict()
    assert {k: t.item() for k, t in head.state_dict().items() if k != "weight"} == {
        k: t.item() for k, t in fresh.items() if k != "weight"
    }


def test_parts_that_are_given_keep_their_state():
    warm = hm.schedule.MarginWarmup(5)
    warm.step.fill_(3)
    assert hm.MarginHead(4, 7, ArcFace(), scale=8.0, schedule=warm).schedules[0].step == 3


@over_backends
def test_a_rule_has_a_gradient_at_the_shortest_features(backend):
    x, W, y = (t.float() if t.is_floating_point() else t for t in draw())
    x = (x * 1e-40).requires_grad_()
    loss = hm.margin_softmax(x, W, y, CosFace(), unit_features=False, rule=MVSoftmax(), backend=backend)
    assert torch.autograd.grad(loss, x)[0].isfinite().all()


def test_a_backend_is_chosen_for_all_centers_of_the_busiest_rank():
    seen = []

    class Noting(hm.backends.Dense):
        def fitted(self, call):
            seen.append(call.classes)
            return self

    x, W, y = draw(6, 7, 4, K=3)
    hm.margin_softmax(x, W, y, ArcFace(), scale=8.0, centers=3, backend=Noting())
    assert seen == [21]
    layout = hm.parallel.Sharded(7, rank=0, world=2)
    assert layout.busiest(4) == 4  # 4 and 3 classes: both ranks choose for 4
    assert hm.parallel.Sharded(7, rank=1, world=2).busiest(3) == 4
