"""What a rival counts as: every head that changes it, against its formula written out on the whole matrix."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import over_backends

import hypermargin as hm
from hypermargin import rules
from hypermargin.backends import Chunked

N, C, D = 9, 12, 5


def made(name, seed=0, classes=C, rows=N, **overrides):
    """A head of that name in float64, and a batch for it."""
    rng = torch.Generator().manual_seed(seed)
    head = hm.create_head(name, D, classes, dtype=torch.float64, **overrides)
    with torch.no_grad():
        head.weight.copy_(torch.randn(head.weight.shape, generator=rng, dtype=torch.float64))
    x = 3 * torch.randn(rows, D, generator=rng, dtype=torch.float64)
    return head, x.requires_grad_(), torch.randint(0, classes, (rows,), generator=rng)


def cosines(head, x):
    return F.normalize(x) @ F.normalize(head.weight).T


def own(c, y):
    return c.gather(1, y[:, None])


def angle(c):
    """Away from ±1."""
    return c.acos()


def softmax(rivals, target, y):
    """Cross-entropy with these logits, the target's put in its place."""
    return F.cross_entropy(rivals.scatter(1, y[:, None], target), y)


def others(c, y):
    return ~F.one_hot(y, c.shape[1]).bool()


def curricularface(head, x, y, t, s=64.0, m=0.5, guarded=False):
    """Huang et al. 2020 as its code has it: its own target past π − m, cos(θ + m) as the threshold."""
    c = cosines(head, x)
    theta = angle(own(c, y))
    target = torch.where(theta + m <= math.pi, (theta + m).cos(), theta.cos() - m * math.sin(m))
    threshold = (target if guarded else (theta + m).cos()).detach()
    return softmax(s * torch.where(c > threshold, c * (t + c), c), s * target, y)


def agree(ours, theirs, *leaves):
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    grads = [torch.autograd.grad(loss, leaves, allow_unused=True) for loss in (ours, theirs)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@over_backends
@pytest.mark.parametrize("compared", ["bare", "margined"])
def test_curricularface(backend, compared):
    head, x, y = made("curricularface", beyond="linear", compared=compared, backend=backend)
    t = 0.0
    for step in range(3):
        _, x, y = made("curricularface", seed=step, beyond="linear")
        t = 0.01 * own(cosines(head, x), y).mean().item() + 0.99 * t
        agree(head(x, y), curricularface(head, x, y, t, guarded=compared == "margined"), x, head.weight)
        torch.testing.assert_close(head.rule_state.t.item(), t, rtol=1e-6, atol=1e-9)
        t = head.rule_state.t.double().item()  # the buffer is float32, as a checkpoint keeps it


def test_t_moves_in_training_alone_and_goes_on_after_a_resume():
    head, x, y = made("curricularface", momentum=0.5)
    head.eval()(x, y)
    assert head.rule_state.t == 0
    head.train()
    with pytest.raises(ValueError, match="must lie in"):
        head(x, y + 100)
    head(x[:0], y[:0])
    head(x, torch.full_like(y, -100))
    assert head.rule_state.t == 0
    head(x, y)
    moved = head.rule_state.t.item()
    assert moved != 0
    again, _, _ = made("curricularface", momentum=0.5)
    again.load_state_dict(head.state_dict())
    assert torch.equal(again(x, y), head(x, y))
    again.reset_parameters()
    assert again.rule_state.t == 0


def test_a_row_that_is_not_finite_does_not_stay_in_t():
    head, x, y = made("curricularface", momentum=0.5, check=False, reduction="none")
    without = copy.deepcopy(head)
    x = x.detach()
    x[2] = math.nan
    head(x, y), without(x, y.index_fill(0, torch.tensor([2]), -100))
    assert torch.equal(head.rule_state.t, without.rule_state.t)
    assert head.rule_state.t.isfinite()


def in_one(cosine_loss):
    """A formula of cosines and labels, as one of a head and a batch."""
    return lambda head, x, y: cosine_loss(cosines(head, x), y)


def circle(c, y, s=256.0, m=0.25):
    """Sun et al. 2020, equation 6, with one positive and the rivals of a row."""
    target = s * (1 + m - own(c, y)).clamp(min=0).detach() * (own(c, y) - (1 - m))
    return softmax(s * (c + m).clamp(min=0).detach() * (c - m), target, y)


def arcnegface(c, y, s=64.0, m=0.5):
    """As in FaceX-Zoo: beyond π − m the target is c − m·sin m."""
    theta = angle(own(c, y))
    psi = torch.where(theta + m <= math.pi, (theta + m).cos(), theta.cos() - m * math.sin(m))
    w = (1.2 * torch.exp(-((c - psi) ** 2) / 2)).detach()
    return softmax(s * (w * c + w - 1), s * psi, y)


def npcface(c, y, s=64.0):
    """As in FaceX-Zoo: m_i = 0.4 + 0.2·(mean hard cosine), easy margin."""
    theta = angle(own(c, y))
    hard = (c > (theta + 0.5).cos()) & others(c, y)
    mean = (c * hard).sum(1) / hard.sum(1).clamp(min=1)
    m = (0.4 + 0.2 * mean).detach()[:, None]
    psi = torch.where(theta < math.pi / 2, (theta + m).cos(), theta.cos())
    return softmax(s * torch.where(hard, 1.1 * c + 0.2, c), s * psi, y)


def inter_topk(c, y, s=32.0, m=0.2, k=5, m_prime=0.06):
    """As in WeSpeaker: the k largest rivals by topk and scatter; beyond π − m the target is c − (1 − cos m)."""
    theta = angle(own(c, y))
    psi = torch.where(theta + m <= math.pi, (theta + m).cos(), theta.cos() - (1 - math.cos(m)))
    nearest = c.masked_fill(~others(c, y), -2.0).topk(min(k, c.shape[1] - 1)).indices
    near = torch.zeros_like(c).scatter(1, nearest, 1.0).bool()
    rivals = torch.where(near, c * math.cos(m_prime) + (1 - c**2).sqrt() * math.sin(m_prime), c)
    return softmax(s * rivals, s * psi, y)


def li_arcface(c, y, s=64.0, m=0.45):
    theta = angle(c)
    return softmax(s * (math.pi - 2 * theta) / math.pi, s * (math.pi - 2 * (own(theta, y) + m)) / math.pi, y)


def sphereface_r(c, y, s=30.0, m=1.5, straight=False):
    rivals = (angle(c) / m).cos()
    rivals = c + (rivals - c).detach() if straight else rivals
    return softmax(s * rivals, s * own(c, y), y)


def double_margin(c, y, s=32.0, m=0.2):
    return softmax(s * (angle(c) - m).cos(), s * (angle(own(c, y)) + m).cos(), y)


def filtered(c, y, s=64.0, m=0.4):
    return softmax(s * torch.where(c > 0.4, 0.0, c), s * (own(c, y) - m), y)


def sphereface2_a(head, x, y, s=32.0, m=0.15, t=3.0, positive=0.7):
    """As in WeSpeaker: without 1/s; beyond π − m the target is c − (1 − cos m)."""
    c = cosines(head, x)
    theta = angle(own(c, y))
    target = torch.where(theta + m <= math.pi, (theta + m).cos(), theta.cos() - (1 - math.cos(m)))
    near = c * math.cos(m) + (1 - c**2).sqrt() * math.sin(m)
    g = lambda z: 2 * ((z + 1) / 2) ** t - 1  # noqa: E731
    yes = F.softplus(-(s * g(target) + head.bias)).squeeze(1)
    no = (F.softplus(s * g(near) + head.bias) * others(c, y)).sum(1)
    return (positive * yes + (1 - positive) * no).mean()


def uniface(head, x, y, s=64.0, m=0.4):
    """Zhou et al. 2023, equations 10 and 12; b is minus the bias, one for all or one per class."""
    c, b = cosines(head, x), -head.bias.expand(C)
    yes = F.softplus(-(s * (own(c, y).squeeze(1) - m) - b[y]))
    return (yes + (F.softplus(s * c - b) * others(c, y)).sum(1)).mean()


def sface(c, y, s=64.0, k=80.0, a=0.8, b=1.23):
    theta = angle(c)
    w, v = (k * (own(theta, y) - a)).sigmoid().detach(), (k * (b - theta)).sigmoid().detach()
    return (-s * w * own(c, y) + s * (v * c * others(c, y)).sum(1, keepdim=True)).mean()


def p2sgrad(c, y):
    return (c - F.one_hot(y, c.shape[1])).square().sum(1).mean() / 2


FORMULAS = {
    "sphereface2": (sphereface2_a, {"variant": "A", "m": 0.15, "scale": 32.0, "weight": 32.0}),
    "uniface": (uniface, {}),
    "uniface-bce": (uniface, {}),
    "sface": (in_one(sface), {}),
    "p2sgrad": (in_one(p2sgrad), {}),
    "circle": (in_one(circle), {}),
    "arcnegface": (in_one(arcnegface), {"beyond": "linear"}),
    "npcface": (in_one(npcface), {"beyond": "easy"}),
    "inter-topk": (in_one(inter_topk), {"beyond": "continuous"}),
    "li-arcface": (in_one(li_arcface), {}),
    "sphereface-r-v2": (in_one(sphereface_r), {}),
    "double-margin": (in_one(double_margin), {"beyond": "none"}),
    "filter": (in_one(filtered), {}),
}


@over_backends
@pytest.mark.parametrize("name", FORMULAS)
def test_formulas(backend, name):
    formula, overrides = FORMULAS[name]
    for seed in range(4):
        head, x, y = made(name, seed, backend=backend, **overrides)
        leaves = [x, head.weight] if head.bias is None else [x, head.weight, head.bias]
        agree(head(x, y), formula(head, x, y), *leaves)


@over_backends
def test_variants(backend):
    """Of a rule and its numbers, each against the same formula."""
    for name, overrides, formula in (
        ("circle", {"m": 0.4, "scale": 80.0}, lambda c, y: circle(c, y, 80.0, 0.4)),
        ("inter-topk", {"k": 1, "m_prime": 0.3}, lambda c, y: inter_topk(c, y, k=1, m_prime=0.3)),
        ("inter-topk", {"k": 50}, lambda c, y: inter_topk(c, y, k=50)),
        ("sphereface-r-v2", {"derivative": "straight", "m": 2.0},
         lambda c, y: sphereface_r(c, y, m=2.0, straight=True)),
        ("double-margin", {"kind": "cosine", "margin": hm.margins.CosFace(0.2)},
         lambda c, y: softmax(32 * (c + 0.2), 32 * (own(c, y) - 0.2), y)),
    ):  # fmt: skip
        overrides = {"beyond": "continuous"} | overrides if name == "inter-topk" else overrides
        head, x, y = made(name, backend=backend, **overrides)
        agree(head(x, y), in_one(formula)(head, x, y), x, head.weight)


def test_a_second_margin_in_the_cosine_is_cosface_with_both():
    head, x, y = made("double-margin", kind="cosine", margin=hm.margins.CosFace(0.2))
    both = hm.margin_softmax(x, head.weight, y, hm.margins.CosFace(0.4), scale=32.0)
    torch.testing.assert_close(head(x, y), both)


@over_backends
def test_the_nearest_classes_are_counted_by_their_nearest_center(backend):
    head, x, y = made("inter-topk", centers=3, k=2, backend=backend)
    c = cosines(head, x)
    by_class = c.unflatten(1, (-1, 3)).amax(-1).masked_fill(~others(c[:, ::3], y), -2.0)
    limit = by_class.topk(2).values[:, 1:]
    mine = F.one_hot(y, C).bool().repeat_interleave(3, 1)
    near = (c >= limit) & ~mine
    rivals = torch.where(near, (angle(c) - 0.06).cos(), c).masked_fill(mine, -torch.inf)
    target = (angle(c.masked_fill(~mine, -2.0).amax(1)) + 0.2).cos()
    loss = F.cross_entropy(32 * torch.cat((target[:, None], rivals), 1), torch.zeros_like(y))
    agree(head(x, y), loss, x, head.weight)


def test_classes_as_near_as_the_kth_count_too():
    head, x, y = made("inter-topk", k=1)
    with torch.no_grad():
        head.weight[1:4] = head.weight[1]
    y = torch.zeros_like(y)
    x = head.weight[1:2].detach() + 0.01 * x
    one, three = head(x, y), made("inter-topk", k=3)[0]
    three.weight.data.copy_(head.weight.data)
    torch.testing.assert_close(one, three(x, y))


HEADS = ["curricularface", *FORMULAS]


@pytest.mark.parametrize("name", HEADS)
def test_hostile_input(name):
    """One and two classes, one row, rows on and opposite to their class and to another, zero rows, large logits."""
    for classes, rows, scale in ((1, 3, None), (2, 1, None), (C, N, 1e4), (C, N, None), (C, 0, None)):
        found = []
        for backend in ("dense", Chunked(chunk=3)):
            head, x, y = made(
                name, classes=classes, rows=rows, backend=backend, **({"scale": scale} if scale else {})
            )
            with torch.no_grad():
                w = head.weight[:: head.settings.centers.count]
                if rows == N:
                    x[0], x[1], x[2] = w[y[0]], -2 * w[y[1]], 0.0
                    x[3], x[4] = w[(y[3] + 1) % C], -w[(y[4] + 1) % C]
                    head.weight[-1] = 0.0
            loss = head(x, y)
            grads = torch.autograd.grad(loss, (x, head.weight), allow_unused=True)
            assert loss.isfinite()
            assert all(g is None or g.isfinite().all() for g in grads)
            found.append([loss, *(g for g in grads if g is not None)])
        for dense, chunked in zip(*found, strict=True):
            torch.testing.assert_close(
                chunked, dense, rtol=1e-9, atol=1e-9 * (1 + dense.abs().max().item() if rows else 1)
            )


@pytest.mark.parametrize("name", HEADS)
def test_with_a_sample_of_the_classes(name):
    """The loss over the classes that were drawn."""
    for backend in ("dense", Chunked(chunk=3)):
        head, x, y = made(name, classes=40, sample=hm.PartialFC(0.5, seed=3), backend=backend)
        whole, _, _ = made(name, classes=40, backend=backend)
        whole.load_state_dict({k: v for k, v in head.state_dict().items() if k != "sampled_steps"})
        loss = head(x, y)
        loss.backward()
        drawn = head.weight.grad.coalesce().indices()[0]
        K = head.settings.centers.count
        part, _, _ = made(name, classes=len(drawn) // K, backend=backend)
        if part.bias is not None:
            part.bias.data.copy_(head.bias.data if not head.bias.dim() else head.bias.data[drawn[::K] // K])
        part.weight.data.copy_(head.weight.data[drawn])
        torch.testing.assert_close(loss, part(x, torch.searchsorted(drawn[::K] // K, y)))


@pytest.mark.parametrize("name", HEADS)
def test_second_derivatives_are_those_of_dense(name):
    """Which is plain autograd: a weight that counts as constant does so twice."""
    found = []
    for backend in ("dense", Chunked(chunk=3)):
        head, x, y = made(name, classes=4, rows=3, backend=backend, **({} if name == "p2sgrad" else {"scale": 4.0}))
        leaves = (x, head.weight)
        grads = torch.autograd.grad(head.eval()(x, y), leaves, create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in grads), leaves))
    for dense, chunked in zip(*found, strict=True):
        torch.testing.assert_close(chunked, dense, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_uniface_begins_with_the_threshold_of_the_classes_of_a_step(rate):
    head = hm.create_head("uniface", D, 400, sample=hm.PartialFC(rate))
    torch.testing.assert_close(head.bias.item(), -math.log(10 * 400 * rate), rtol=1e-6, atol=0)


def test_sphereface2_begins_where_its_gradient_is_zero_also_with_a_margin_on_the_angle():
    """At cosines of 0: dL/db = −positive·σ(−T) + (1 − positive)(C − 1)·σ(ρ) = 0."""
    for classes, s in ((2, 8.0), (1000, 32.0)):
        b = rules.SphereFace2(0.15, variant="A").first_bias(classes, s)
        g = lambda c: 2 * ((c + 1) / 2) ** 3 - 1  # noqa: E731
        log_yes = math.log(0.7) - math.log1p(math.exp(s * g(-math.sin(0.15)) + b))
        log_no = math.log(0.3 * (classes - 1)) - math.log1p(math.exp(-(s * g(math.sin(0.15)) + b)))
        assert math.isclose(log_yes, log_no, abs_tol=1e-9)


def test_no_matrix_of_rows_and_classes_is_made_for_p2sgrad():
    class Refusing(hm.backends.Dense):
        def __call__(self, *_, **__):
            raise AssertionError("it was asked for the N×C work")

        def fitted(self, call):
            return self

    head, x, y = made("p2sgrad", backend=Refusing())
    assert head(x, y).isfinite()
    head, x, y = made("p2sgrad", bias=True)  # which enters every rival
    head.bias.data.normal_()
    extra = head.bias.sum() - 2 * head.bias[y].mean()
    torch.testing.assert_close(head(x, y), p2sgrad(cosines(head, x), y) + extra)


def test_the_labels_of_a_mixture_are_left_out_once():
    head, x, y = made("p2sgrad", reduction="none")
    other = y.roll(1)
    other[:3] = y[:3]
    dense, _, _ = made("p2sgrad", reduction="none", bias=True, backend="dense")
    dense.load_state_dict(head.state_dict() | {"bias": torch.zeros(C)})
    torch.testing.assert_close(head(x, y, mix=(other, 0.3)), dense(x, y, mix=(other, 0.3)))


def test_files_keep_t(tmp_path):
    head, x, y = made("curricularface", momentum=0.5)
    head(x, y)
    hm.heads.write(head, tmp_path / "head.safetensors")
    found = hm.heads.read(tmp_path / "head.safetensors")
    assert torch.equal(found.entries()["rule_state.t"], head.rule_state.t)
    t = head.rule_state.t.clone()
    hm.heads.remove_classes(head, [2])
    assert torch.equal(head.rule_state.t, t)


def test_every_rule_keeps_the_laws():
    for name in rules.names():
        hm.testing.check_rule(rules.get(name)())
    hm.testing.check_rule(rules.SphereFaceR(derivative="straight"))
    hm.testing.check_rule(rules.SphereFace2(derivative="straight"))
    hm.testing.check_rule(rules.SphereFace2(variant="A", derivative="straight"))
    hm.testing.check_rule(rules.MVSoftmax(compared="bare"))
    hm.testing.check_backend(Chunked(chunk=4))


def test_a_weight_without_gradient_must_be_declared():
    class Undeclared(rules.Circle):
        detached = False

    with pytest.raises(hm.testing.LawBroken, match="If a factor of ρ counts as constant, say detached = True"):
        hm.testing.check_rule(Undeclared())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rules.InterTopK(k=2.5), r"InterTopK\(k=…\) must be a whole number; got 2.5"),
        (lambda: hm.create_head("curricularface", D, C, label_smoothing=0.1), "is about softmax's logits"),
        (lambda: hm.create_head("circle", D, C, learn_margin=True), "a smaller one is more margin in Circle"),
        (lambda: hm.create_head("npcface", D, C, unit_weight=False), "needs unit_weight=True"),
        (lambda: mixed("inter-topk"), "has a threshold per row, and mix gives a row two targets"),
        (lambda: mixed("arcnegface"), "has a threshold per row, and mix gives a row two targets"),
    ],
)
def test_what_does_not_go_together(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def mixed(name):
    head, x, y = made(name)
    return head(x, y, mix=(y.flip(0), 0.3))
