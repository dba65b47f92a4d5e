"""MarginHead and the family: inference, scales, learned margins, schedules, state that survives a checkpoint."""

import copy
import dataclasses
import inspect
import io
import itertools
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from cases import needed, per_class
from hypothesis import given
from hypothesis import strategies as st

import hypermargin as hm
from hypermargin import schedule as sch
from hypermargin.centers import Centers
from hypermargin.margins import ArcFace, Combined, CosFace, NoMargin, SphereFace
from hypermargin.settings import STATE, HeadOverrides, setting_names

HEADS = hm.list_heads()
over_heads = pytest.mark.parametrize("name", HEADS)
STATEFUL = [
    ("cosface", {"learn_margin": True, "learn_scale": True}),
    ("arcface", {"class_margins": torch.linspace(0.1, 0.6, 5)}),
    ("normface", {"scale": "adacos-dynamic"}),
    ("combined", {"schedule": sch.MarginWarmup(10)}),
    ("l-softmax", {"schedule": [sch.LambdaAnnealing(), sch.Alternation(2, 1)]}),
]


def batch(seed=0, n=16, d=8, classes=5, dtype=torch.float32):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=rng, dtype=dtype), torch.randint(0, classes, (n,), generator=rng)


def make(name, **overrides):
    torch.manual_seed(1)
    return hm.create_head(name, 8, 5, **(needed(name, 5) | overrides))


# ── the family ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_papers_defaults():
    classic = [name for name in HEADS if hm.recipes.FAMILY[name].group == "classic"]
    heads = {name: make(name) for name in classic}
    expected = (
        "softmax l-softmax modified-softmax a-softmax sphereface normface am-softmax cosface arcface combined"
    )
    assert set(expected.split()) == set(classic)
    assert heads["softmax"].bias is not None
    assert all(heads[name].bias is None for name in classic if name != "softmax")
    sides = {name: (h.settings.unit_weight, h.settings.unit_features) for name, h in heads.items()}
    assert sides["softmax"] == sides["l-softmax"] == (False, False)
    assert sides["modified-softmax"] == sides["a-softmax"] == sides["sphereface"] == (True, False)
    assert all(sides[n] == (True, True) for n in ("normface", "am-softmax", "cosface", "arcface", "combined"))
    assert [heads[n].scale.item() for n in ("am-softmax", "cosface", "arcface", "combined")] == [30, 64, 64, 64]
    assert heads["arcface"].margin == ArcFace(0.5)
    assert heads["am-softmax"].margin == heads["cosface"].margin == CosFace(0.35)
    assert heads["combined"].margin == Combined(1.0, 0.3, 0.2)
    assert heads["a-softmax"].margin == heads["l-softmax"].margin == SphereFace(4.0)
    assert isinstance(heads["normface"].scale, torch.nn.Parameter)
    assert "base=1000, gamma=0.12, power=1, floor=5" in repr(heads["a-softmax"])
    assert "base=1000, gamma=2.5e-05, power=35, floor=0" in repr(heads["l-softmax"])
    assert heads["softmax"].weight.shape == (5, 8)


def test_overrides_reach_the_margin_and_the_head():
    head = make("combined", m1=1.2, m3=0.1, beyond="none", scale=9.0, label_smoothing=0.1, gradient="straight")
    assert head.margin == Combined(1.2, 0.3, 0.1, beyond="none")
    assert (head.scale.item(), head.settings.label_smoothing, head.settings.gradient) == (9.0, 0.1, "straight")
    assert len(make("a-softmax").schedules) == 1
    constant = make("a-softmax", lam=5.0)
    assert len(constant.schedules) == 0
    assert constant.margin == SphereFace(4.0, lam=5.0)
    assert len(make("a-softmax", lam=0).schedules) == 0
    assert make("arcface", margin=CosFace(0.2), m=0.1).margin == CosFace(0.1)
    assert make("softmax", bias=False).bias is None


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("arcfase", {}, r"unknown head 'arcfase'.*Did you mean 'arcface'\?"),
        ("arcface", {"scal": 3.0}, r"arcface has no setting 'scal'.*Did you mean 'scale'\?"),
        ("arcface", {"beyound": "flat"}, r"Did you mean 'beyond'\?"),
        ("arcface", {"lam": 3.0}, "arcface has no setting 'lam'"),
        ("softmax", {"m": 0.3}, "softmax has no setting 'm'"),
        ("arcface", {"m1": 2.0}, "has no setting 'm1'"),
        ("arcface", {"margin": "cosface"}, "margin must be a Margin"),
    ],
)
def test_unknown_names_name_the_closest(name, overrides, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(name, **overrides)


# ── inference ───────────────────────────────────────────────────────────────────────────────────────────────────


@over_heads
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_inference_sees_no_label_and_no_margin(name, dtype):
    head = make(name).to(dtype).eval()
    x, _ = batch(dtype=dtype)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        logits, p = head(x), head.predict_proba(x)
    assert logits.dtype == p.dtype == torch.promote_types(dtype, torch.float32)
    wide, W = x.double(), head.weight.double()
    right = (
        head.scale.double()
        * (F.normalize(wide) if head.settings.unit_features else wide)
        @ (F.normalize(W) if head.settings.unit_weight else W).T
    )
    right = per_class(right, head, head.settings.first_scale)
    torch.testing.assert_close(
        logits.double(), right if head.bias is None else right + head.bias, rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(p.sum(1), torch.ones(16, dtype=p.dtype))
    assert torch.equal(p.argmax(1), logits.argmax(1))
    assert head.weight.dtype == dtype  # never re-cast


@over_heads
def test_watching_scores(name):
    head = make(name)
    x, y = batch()
    y[3] = -100
    found = head.scores(x, y)
    counted = torch.arange(16) != 3
    cos = per_class(F.normalize(x) @ F.normalize(head.weight).T, head).gather(1, y.clamp(min=0)[:, None])
    torch.testing.assert_close(found.angle[counted], cos.clamp(-1, 1).acos()[counted], rtol=1e-4, atol=1e-4)
    assert found.angle[3].isnan()
    rivals = head(x).detach().scatter(1, y.clamp(min=0)[:, None], -math.inf)
    torch.testing.assert_close(found.hardest[counted], rivals.amax(1)[counted], rtol=1e-4, atol=1e-4)
    assert not found.angle.requires_grad


# ── scale ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_learned_scale_stops_at_its_floor_and_can_leave_it():
    head = make("arcface", scale=5.0, learn_scale=True)
    assert math.isclose(head.settings.least_scale, hm.advise.smallest_scale(5))
    x, y = batch()
    optimizer = torch.optim.SGD([head.scale], lr=1.0)
    for _ in range(5):  # with a margin of 0.5 on random features a free s shrinks
        optimizer.zero_grad()
        head(x, y).backward()
        optimizer.step()
    assert head.scale.item() < head.settings.least_scale
    torch.testing.assert_close(head.current_scale().item(), head.settings.least_scale)
    stuck = head.scale.item()
    optimizer.zero_grad()
    head(x, y).backward()
    assert head.scale.grad == 0  # outwards: stopped
    optimizer.zero_grad()
    (-head(x, y)).backward()
    assert head.scale.grad < 0  # inwards: free
    optimizer.step()
    assert head.scale.item() > stuck
    assert make("normface").settings.scale_floor == 0.01


def test_fixed_adacos():
    for classes in (1, 2, 3, 10, 1000):
        head = hm.create_head("normface", 8, classes, scale="adacos")
        expected = max(1.0, math.sqrt(2) * math.log(classes - 1)) if classes > 1 else 1.0
        assert math.isclose(head.scale.item(), expected, rel_tol=1e-6)


def test_dynamic_adacos_is_the_papers_formula_and_moves_in_training_only():
    head = make("normface", scale="adacos-dynamic")
    x, y = batch(3)
    before = head.scale.item()
    head.eval()(x, y)
    assert head.scale.item() == before
    head.train()(x, y)
    c = (F.normalize(x) @ F.normalize(head.weight).T).detach().double()
    rival = torch.ones_like(c, dtype=torch.bool).scatter(1, y[:, None], False)
    B = (before * c).exp().mul(rival).sum(1).mean()
    median = c.gather(1, y[:, None]).acos().median()
    right = max(1.0, (B.log() / torch.cos(median.clamp(max=math.pi / 4))).item())
    assert math.isclose(head.scale.item(), right, rel_tol=1e-5)
    # the loss of that step used the new s
    same = hm.margin_softmax(x, head.weight, y, NoMargin(), scale=right)
    again = make("normface", scale="adacos-dynamic")
    torch.testing.assert_close(again(x, y), same)
    # and in evaluation the stored s is used as it is
    fixed = hm.margin_softmax(x, head.weight, y, NoMargin(), scale=head.scale.clone())
    torch.testing.assert_close(head.eval()(x, y), fixed)


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_dynamic_adacos_survives_few_classes_and_empty_batches(classes):
    head = hm.create_head("normface", 8, classes, scale="adacos-dynamic")
    x, y = batch(classes=classes)
    for labels in (y, torch.full_like(y, -100), y):
        assert head(x, labels).isfinite()
        assert head.scale.isfinite()
        assert head.scale >= 1
    assert head(x[:0], y[:0]) == 0
    assert head.scale.isfinite()


# ── learned and class-wise margins ──────────────────────────────────────────────────────────────────────────────


def descend(head, x, y, steps=60, lr=0.05):
    """Move m alone."""
    optimizer = torch.optim.SGD([head.m], lr=lr)
    path = [head.current_margins().mean().item()]
    for _ in range(steps):
        optimizer.zero_grad()
        head(x, y).backward()
        optimizer.step()
        path.append(head.current_margins().mean().item())
    return path


@pytest.mark.parametrize("margin", [CosFace(0.35), ArcFace(0.5), SphereFace(2.0)], ids=str)
def test_without_a_reward_a_learned_margin_always_shrinks(margin):
    head = hm.MarginHead(8, 5, margin, scale=8.0, learn_margin=True, margin_reward=0.0)
    path = descend(head, *batch())
    assert all(b <= a for a, b in itertools.pairwise(path))
    assert path[-1] < path[0]
    assert path[-1] >= margin.zero  # and stops where there is no margin left


def test_with_reward_cosface_settles_where_the_mean_violation_equals_it():
    torch.manual_seed(0)
    x, y = batch()
    head = hm.MarginHead(8, 5, CosFace(0.2), scale=8.0, learn_margin=True, margin_reward=0.6)
    head.weight.data = torch.stack([x[y == c].mean(0) for c in range(5)])
    path = descend(head, x, y, steps=500, lr=0.05)
    violation = 1 - torch.exp(-hm.margin_softmax(x, head.weight, y, CosFace(path[-1]), scale=8.0, reduction="none"))
    assert 0 < path[-1] < 2
    assert math.isclose(violation.mean().item(), 0.6, abs_tol=1e-3)


def test_the_reward_is_part_of_the_training_loss_alone():
    head = make("cosface", learn_margin=True, scale=8.0, margin_reward=0.3)
    x, y = batch()
    bare = hm.margin_softmax(x, head.weight, y, CosFace(0.35), scale=8.0)
    torch.testing.assert_close(head(x, y), bare - 0.3 * 8.0 * 0.35)
    torch.testing.assert_close(head.eval()(x, y), bare)


def test_class_margins():
    m = torch.linspace(0.1, 0.6, 5)
    x, y = batch()
    head = make("arcface", class_margins=m, scale=8.0)
    each = [
        hm.margin_softmax(x[i : i + 1], head.weight, y[i : i + 1], ArcFace(m[y[i]].item()), scale=8.0)
        for i in range(16)
    ]
    torch.testing.assert_close(head(x, y), torch.stack(each).mean())
    learned = make("arcface", class_margins=m, scale=8.0, learn_margin=True)
    learned(x, y).backward()
    assert learned.m.grad.shape == (5,)
    with pytest.raises(ValueError, match=r"class_margins must have shape \(5,\)"):
        make("arcface", class_margins=m[:3])
    with pytest.raises(ValueError, match=r"class_margins must lie in .* for class 4"):
        make("arcface", class_margins=torch.tensor([0.1, 0.2, 0.3, 0.4, 3.5]))
    with pytest.raises(ValueError, match="NoMargin has none"):
        make("softmax", learn_margin=True)
    with pytest.raises(ValueError, match="gives m no gradient"):
        make("arcface", learn_margin=True, gradient="straight")


# ── schedules ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_lambda_annealing_counts_training_steps_from_one():
    head = make("a-softmax")
    x, y = batch()
    (annealing,) = head.schedules
    for it in (1, 2, 3):
        lam = 1000 / (1 + 0.12 * it)
        right = hm.margin_softmax(x, head.weight, y, SphereFace(4.0), lam=lam, unit_features=False)
        torch.testing.assert_close(head(x, y), right)
        assert annealing.step == it
        torch.testing.assert_close(
            head.eval()(x, y), right
        )  # validation uses the λ of the last step, and does not count
        head.train()
        assert annealing.step == it
    annealing.step.fill_(10**6)
    assert annealing(True).lam == 5.0


@given(st.integers(1, 200), st.sampled_from(["linear", "cosine", "exponential"]))
def test_margin_warm_up(it, shape):
    at = sch.MarginWarmup(100, start=20, shape=shape).at(torch.tensor(float(it))).strength.item()
    t = min(max((it - 20) / 100, 0), 1)
    right = {"linear": t, "cosine": math.sin(math.pi * t / 2) ** 2, "exponential": (1 - 1e-3**t) / (1 - 1e-3)}[
        shape
    ]
    assert math.isclose(at, right, abs_tol=1e-6)


@pytest.mark.parametrize("margin", [ArcFace(0.5), SphereFace(3.0), Combined(1.2, 0.3, 0.2)], ids=str)
def test_warm_up_starts_at_no_margin_and_ends_at_the_full_one(margin):
    head = hm.MarginHead(8, 5, margin, scale=8.0, schedule=sch.MarginWarmup(4, start=1))
    x, y = batch()
    plain = hm.margin_softmax(x, head.weight, y, NoMargin(), scale=8.0)
    full = hm.margin_softmax(x, head.weight, y, margin, scale=8.0)
    steps = [head(x, y) for _ in range(6)]
    assert steps == sorted(steps)
    torch.testing.assert_close(steps[0], plain)
    torch.testing.assert_close(steps[4], full)
    torch.testing.assert_close(steps[5], full)


def test_alternation_of_angle_and_magnitude():
    head = make("l-softmax", schedule=sch.Alternation(2, 1, penalty=0.5))
    x, y = batch()
    free = {"unit_features": False, "unit_weight": False}
    margined = hm.margin_softmax(x, head.weight, y, SphereFace(4.0), **free)
    plain = hm.margin_softmax(x, head.weight, y, NoMargin(), **free)
    magnitude = plain + 0.5 * head.weight.square().sum(1).mean()
    for right in (margined, margined, magnitude, margined, margined, magnitude):
        torch.testing.assert_close(head(x, y), right)
    with pytest.raises(ValueError, match=r"penalises \|W\|"):
        make("arcface", schedule=sch.Alternation(2, 1))


def test_the_optimiser_can_drive_the_schedule():
    head = make("a-softmax")
    x, y = batch()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    head.schedules[0].drive(optimizer)
    for _ in range(3):  # three batches accumulated to one step
        head(x, y).backward()
    assert head.schedules[0].step == 0
    optimizer.step()
    assert head.schedules[0].step == 1


def test_the_head_learns_under_every_schedule():
    x, y = batch()
    for name, options in STATEFUL:
        head = make(name, **copy.deepcopy(options))
        optimizer = torch.optim.SGD(head.parameters(), lr=0.05)
        losses = []
        for _ in range(30):
            optimizer.zero_grad()
            loss = head(x, y)
            loss.backward()
            optimizer.step()
            losses.append(head.eval()(x, y).item())
            head.train()
        assert losses[-1] < losses[5], name


# ── state ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("name", "options"), STATEFUL + [(name, {}) for name in HEADS], ids=str)
def test_state_survives_copy_pickle_and_checkpoint(name, options):
    x, y = batch()
    head = make(name, **copy.deepcopy(options))
    for _ in range(3):
        head(x, y).backward()
    file = io.BytesIO()
    torch.save(head.state_dict(), file)
    file.seek(0)
    fresh = make(name, **copy.deepcopy(options))
    torch.nn.init.zeros_(fresh.weight)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    twins = [copy.deepcopy(head), pickle.loads(pickle.dumps(head)), fresh]
    right = [head(x, y).item() for _ in range(3)]
    for twin in twins:
        assert [twin(x, y).item() for _ in range(3)] == right


@pytest.mark.parametrize(("name", "options"), STATEFUL, ids=str)
def test_a_refused_batch_leaves_no_trace(name, options):
    x, y = batch()
    head = make(name, **copy.deepcopy(options))
    before = copy.deepcopy(head.state_dict())
    y[0] = 5
    with pytest.raises(ValueError, match="labels must lie in"):
        head(x, y)
    x[3, 2] = math.nan
    with pytest.raises(ValueError, match="row 3"):
        head(x, y.clamp(max=4))
    assert all(torch.equal(v, before[k]) for k, v in head.state_dict().items())


def test_the_head_is_a_module_like_others():
    head = make("cosface", device="cpu", dtype=torch.float64)
    assert head.weight.dtype == torch.float64
    assert [n for n, _ in head.named_parameters()] == ["weight"]
    assert set(head.state_dict()) == {"weight", "scale"}
    x, y = batch()
    per_sample = torch.func.vmap(
        torch.func.grad(lambda w, xi, yi: hm.margin_softmax(xi[None], w, yi[None], ArcFace(), scale=4.0)),
        (None, 0, 0),
    )(head.weight.detach().float(), x, y)
    (whole,) = torch.autograd.grad(hm.margin_softmax(x, head.weight.float(), y, ArcFace(), scale=4.0), head.weight)
    torch.testing.assert_close(per_sample.mean(0), whole.float())
    frozen = head.requires_grad_(False)
    x.requires_grad_()
    frozen(x, y).backward()
    assert x.grad.abs().sum() > 0


def test_editors_know_every_override():
    """Typed overrides are MarginHead's arguments and the fields of margins, rules, views and centers, no more."""
    parts = [kind.get(name) for kind in (hm.margins, hm.rules, hm.views) for name in kind.names()]
    fields = {field.name for part in parts for field in dataclasses.fields(part)}
    by_counts = {"counts", "tau", "version"}  # counts become an argument by class, the version another name
    own = {"D"}  # Piecewise's function
    of_centers = {field.name for field in dataclasses.fields(Centers)} - {"count"}  # which is `centers`
    assert (
        set(HeadOverrides.__annotations__) == {"margin", *setting_names(), *fields} - own | by_counts | of_centers
    )
    arguments = {p.name for p in inspect.signature(hm.MarginHead).parameters.values()} - {"unknown"}
    settled = {field.name for field in dataclasses.fields(hm.HeadSettings)}
    assert arguments == settled | set(STATE)


def test_settings_are_a_value():
    head = hm.create_head("arcface", 8, 5, scale=16.0)
    assert head.settings == hm.create_head("arcface", 8, 5, scale=16.0).settings
    assert head.settings != hm.create_head("arcface", 8, 5, scale=17.0).settings
    assert pickle.loads(pickle.dumps(head.settings)) == head.settings
    with pytest.raises(dataclasses.FrozenInstanceError):
        head.settings.classes = 7
    with pytest.raises(ValueError, match="must lie in"):
        dataclasses.replace(head.settings, label_smoothing=2.0)


def test_overrides_of_margin_and_rule_go_to_both():
    rule = hm.rules.SphereFace2()
    head = hm.create_head("arcface", 8, 5, margin=hm.margins.SphereFace2(), rule=rule, m=0.2, t=2.0, bias="shared")
    assert head.settings.margin == hm.margins.SphereFace2(0.2, 2.0)
    assert head.settings.rule == hm.rules.SphereFace2(0.2, 2.0)


def test_the_advised_scale_is_the_advisors():
    for classes, dim in ((2, 8), (10, 16), (1000, 128), (100_000, 512)):
        for margin in (ArcFace(0.3), CosFace(0.1), NoMargin()):
            head = hm.MarginHead(dim, classes, margin, scale="advised", device="meta")
            assert head.settings.first_scale == hm.advise.recommend(classes, dim, margin=margin).s
    x, W, y = torch.randn(3, 8), torch.randn(5, 8), torch.tensor([0, 1, 2])
    s = hm.advise.recommend(5, 8, margin=CosFace(0.1)).s
    same = [hm.margin_softmax(x, W, y, CosFace(0.1), scale=scale) for scale in ("advised", s)]
    assert torch.equal(*same)
    assert hm.MarginHead(8, 1, ArcFace(), scale="advised").scale == 1


def test_a_learned_scale_may_begin_at_a_whole_number():
    head = make("normface", scale=64)
    assert head.current_scale().item() == 64.0
    assert head.scale.requires_grad


def test_the_error_of_an_unknown_setting_comes_back_from_another_process():
    with pytest.raises(TypeError) as caught:
        hm.create_head("arcface", 8, 5, scal=64)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (type(caught.value), str(caught.value))
