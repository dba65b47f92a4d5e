"""The life of a head: what is kept is kept to the bit, what follows follows, and bad input changes nothing."""

import copy
import dataclasses
import io
import math
import pickle
import struct

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import hypermargin as hm
from hypermargin import MarginHead, create_head, heads
from hypermargin.advise import adacos_scale, smallest_scale
from hypermargin.common.tensor_files import read_state
from hypermargin.heads.insightface import insightface_range
from hypermargin.heads.look import lengths
from hypermargin.heads.reading import read_one
from hypermargin.margins import ArcFace, Combined, CosFace, NoMargin, SphereFace
from hypermargin.terms import RingLoss

pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # the peer's own, from numpy 2
C, D, N = 7, 5, 16
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "bare sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
}
over_optimizers = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
over_formats = pytest.mark.parametrize(
    ("name", "format"),
    [
        ("head.pt", None), ("head.pth", "hypermargin"), ("head.safetensors", None), ("head.npy", None),
        ("head.pt", "linear"), ("head.pt", "metric-learning"), ("", "insightface"),
    ],
)  # fmt: skip


def whole(classes=C, dim=D, seed=0, **settings):
    """A head with a bias and a learned margin by class."""
    torch.manual_seed(seed)
    margins = torch.linspace(0.1, 0.4, classes)
    settings = {"bias": True, "class_margins": margins, "learn_margin": True} | settings
    head = MarginHead(dim, classes, ArcFace(0.5), scale=8.0, backend="dense", **settings)
    if head.bias is not None:
        nn.init.normal_(head.bias)
    return head


def batch(classes=C, dim=D, seed=1):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(N, dim, generator=g), torch.randint(classes, (N,), generator=g)


def steps(head, optimizer, count=3, classes=None):
    for k in range(count):
        x, y = batch(classes or head.classes, head.dim, seed=k)
        optimizer.zero_grad()
        head(x, y).backward()
        optimizer.step()


def rows(head):
    return {
        name: getattr(head, name).detach().clone()
        for name in ("weight", "bias", "m")
        if getattr(head, name) is not None
    }


def same(a, b):
    """To the bit, the sign of 0 included."""
    return a.keys() == b.keys() and all(
        torch.equal(a[k], b[k]) and torch.equal(a[k].signbit(), b[k].signbit()) for k in a
    )


def state_of(optimizer, parameter):
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in optimizer.state[parameter].items()}


# ------------------------------------------------------------------------------------------------ laws


def test_there_and_back():
    head = whole()
    head.weight.data[2, 1] = -0.0
    before = rows(head)
    ids = heads.add_classes(head, 4, seed=3)
    assert ids.tolist() == list(range(C))
    assert head.classes == C + 4
    ids = heads.remove_classes(head, range(C, C + 4))
    assert ids.tolist() == [*range(C), -1, -1, -1, -1]
    assert same(rows(head), before)

    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    assert torch.equal(heads.reorder_classes(head, order), order)
    assert torch.equal(head.weight[order], before["weight"])
    assert not same(rows(head), before)
    heads.reorder_classes(head, order.argsort())
    assert same(rows(head), before)
    heads.reorder_classes(head, {0: 4, 4: 0})
    heads.reorder_classes(head, {4: 0, 0: 4})
    assert same(rows(head), before)


@pytest.mark.parametrize("change", ["remove", "merge", "reorder", "add"])
def test_kept_classes_are_kept_to_the_bit(change):
    head = whole()
    before, x = rows(head), batch()[0]
    logits = head.logits(x).detach()
    ids = {
        "remove": lambda: heads.remove_classes(head, [5, 0]),
        "merge": lambda: heads.merge_classes(head, [[6, 1], [2, 4]]),
        "reorder": lambda: heads.reorder_classes(head, [6, 5, 4, 3, 2, 1, 0]),
        "add": lambda: heads.add_classes(head, 9, seed=0),
    }[change]()
    counts = torch.bincount(ids[ids >= 0], minlength=head.classes)
    alone = [k for k in range(C) if ids[k] >= 0 and counts[ids[k]] == 1]
    assert len(alone) >= 3
    after = rows(head)
    for name in before:
        assert after[name].shape == (head.classes, *before[name].shape[1:])
        assert torch.equal(after[name][ids[alone]], before[name][alone])
    # Of the same rows, but by a product of another shape, which adds up in another order: D terms of at most s = 8,
    # and their two lengths, in float32.
    torch.testing.assert_close(head.logits(x)[:, ids[alone]], logits[:, alone], rtol=0, atol=8 * (3 * D) * 2**-23)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"bias": False, "class_margins": None, "learn_margin": False},
        {"unit_weight": False, "learn_scale": True},
    ],
)
def test_the_loss_is_that_of_a_head_made_so(settings):
    head = whole(**settings)
    heads.remove_classes(head, [1])
    heads.add_classes(head, 3, seed=5)
    heads.merge_classes(head, [[0, 8]])
    made = whole(head.classes, **(settings | {"class_margins": None} if head.m is None else settings))
    made.load_state_dict(head.state_dict())
    x, y = batch(head.classes)
    for h in (head, made):
        h.loss = h(x, y)
        h.loss.backward()
    assert torch.equal(head.loss, made.loss)
    for (name, p), q in zip(head.named_parameters(), made.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad), name
    assert head.settings.least_scale == made.settings.least_scale


SETTINGS = {
    "plain": {}, "by class": {"class_margins": True}, "learned": {"learn_margin": True},
    "learned by class": {"class_margins": True, "learn_margin": True, "learn_scale": True, "bias": True},
    "scheduled": {"schedule": True, "bias": True}, "half": {"dtype": torch.bfloat16, "scale": "adacos"},
    "sampled": {"sample": hm.PartialFC(0.5), "scale": "adacos-dynamic"},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse invariant")
@pytest.mark.parametrize("margin", [hm.margins.get(name)() for name in hm.margins.names()], ids=str)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_whole_life(margin, settings, tmp_path):
    """Every change in turn, with a training step after each, down to one class, into a file and back."""
    settings = {"scale": 8.0} | settings
    if settings.get("schedule"):
        settings["schedule"] = hm.schedule.MarginWarmup(5)
    if margin.m is None and ("class_margins" in settings or "learn_margin" in settings):
        pytest.skip("no m")
    if "learn_margin" in settings and margin.rises_with_m():
        pytest.skip("a smaller m is more margin, which a reward would take away")
    if "class_margins" in settings:
        settings["class_margins"] = torch.tensor([margin.m] * C)
    torch.manual_seed(0)
    head = MarginHead(D, C, margin, backend="dense", **settings)
    kind = hm.SampledSGD if "sample" in settings else torch.optim.SGD
    optimizer = kind(head.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(6, D).to(head.weight)

    def step():
        optimizer.zero_grad()
        loss = head(x, torch.arange(6) % head.classes)
        loss.backward()
        optimizer.step()
        assert loss.isfinite()
        state = optimizer.state[head.weight]["momentum_buffer"]
        assert state.shape == head.weight.shape == (head.classes, D)

    for change in (
        lambda: heads.add_classes(head, 3, optimizer=optimizer),
        lambda: heads.remove_classes(head, [0, 4], optimizer=optimizer),
        lambda: heads.merge_classes(head, [[0, 1], [5, 3, 4]], optimizer=optimizer),
        lambda: heads.reorder_classes(head, list(range(head.classes))[::-1], optimizer=optimizer),
        lambda: heads.add_classes(head, embeddings=x, labels=torch.arange(6) % 3, optimizer=optimizer),
    ):
        step()
        change()
    step()
    assert head.classes == 8
    joined = heads.join(heads.split(head, 3))
    heads.write(head, tmp_path / "head.safetensors")
    found = heads.read(tmp_path / "head.safetensors")
    keys = {"class_margins", "scale", "dtype"}
    again = heads.head_from(
        found, "arcface", margin=margin, backend="dense", **{k: v for k, v in settings.items() if k not in keys}
    )
    for each in (head, joined, again):
        each.eval()
        assert torch.equal(each(x, torch.arange(6)), head(x, torch.arange(6)))
    heads.remove_classes(head, range(1, 8), optimizer=optimizer)
    head.train()
    step()


@over_optimizers
@pytest.mark.parametrize("change", ["remove", "merge", "reorder", "add"])
def test_the_optimiser_follows(make, change):
    """The step after a change is that of a new optimiser which is handed the same state."""
    head = whole()
    network = nn.Linear(D, D)
    optimizer = make([{"params": network.parameters(), "lr": 0.5}, {"params": head.parameters()}])
    steps(head, optimizer)
    old, states = rows(head), {n: state_of(optimizer, getattr(head, n)) for n in ("weight", "bias", "m")}
    ids = {
        "remove": lambda: heads.remove_classes(head, [5, 0], optimizer=optimizer),
        "merge": lambda: heads.merge_classes(head, [[6, 1]], optimizer=optimizer),
        "reorder": lambda: heads.reorder_classes(head, [6, 5, 4, 3, 2, 1, 0], optimizer=optimizer),
        "add": lambda: heads.add_classes(head, 2, seed=0, optimizer=optimizer),
    }[change]()
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert [id(p) for p in held] == [*map(id, network.parameters()), *map(id, head.parameters())]
    assert not set(optimizer.state) - set(held)
    assert optimizer.param_groups[0]["lr"] == 0.5

    alone = torch.tensor([k for k in range(C) if ids[k] >= 0 and (ids == ids[k]).sum() == 1])
    for name, before in states.items():
        after = optimizer.state[getattr(head, name)]
        assert after.keys() == before.keys()
        for key, value in before.items():
            if not isinstance(value, torch.Tensor) or value.dim() == 0:
                assert after[key] == value
                continue
            assert value.abs().sum() > 0
            assert torch.equal(after[key][ids[alone]], value[alone])
            if change == "add":
                assert not after[key][C:].any()
            if change == "merge":
                torch.testing.assert_close(after[key][1], (value[1] + value[6]) / 2)
    assert torch.equal(head.weight[ids[alone]], old["weight"][alone])

    twin = copy.deepcopy(head)
    fresh = make([{"params": copy.deepcopy(network).parameters(), "lr": 0.5}, {"params": twin.parameters()}])
    fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    steps(head, optimizer, 1)
    steps(twin, fresh, 1)
    assert same(rows(head), rows(twin))
    assert not torch.equal(head.weight[ids[alone]], old["weight"][alone])


def test_training_goes_on_as_if_the_removed_class_had_never_been():
    """Class 6 has no samples and, with these rows, no influence: a head without it makes the same steps."""
    torch.manual_seed(0)
    head = MarginHead(D, C, NoMargin(), bias=True, unit_features=False, unit_weight=False, backend="dense")
    head.bias.data[-1] = -1e4
    other = copy.deepcopy(head)
    heads.remove_classes(other, [C - 1])
    optimizers = [torch.optim.SGD(h.parameters(), lr=0.1, momentum=0.9) for h in (head, other)]
    for h, o in zip((head, other), optimizers, strict=True):
        steps(h, o, 2, classes=C - 1)
    heads.remove_classes(head, [C - 1], optimizer=optimizers[0])
    for h, o in zip((head, other), optimizers, strict=True):
        steps(h, o, 2)
    torch.testing.assert_close(head.weight, other.weight, rtol=1e-6, atol=1e-7)


def test_fused_sgd_follows_by_itself():
    head = MarginHead(D, C, ArcFace(), scale=8.0)
    optimizer = hm.FusedSGD(head, lr=0.1, momentum=0.9)
    old = head.weight
    momentum = torch.randn(C, D)
    optimizer.state[old]["momentum_buffer"] = momentum
    others = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(ValueError, match=r"optimizer \(SGD\) does not hold head.weight"):
        heads.remove_classes(head, [2], optimizer=others)
    assert head.weight is old
    ids = heads.remove_classes(head, [2])
    assert head.fused_optimizer is optimizer
    assert optimizer.param_groups[0]["params"] == [head.weight]
    assert list(optimizer.state) == [head.weight]
    assert torch.equal(optimizer.begin()["momentum"], momentum[ids >= 0])
    plain = copy.deepcopy(head)
    plain.training_backend = None
    plain.settings = dataclasses.replace(plain.settings, backend="dense")
    sgd = torch.optim.SGD([plain.weight], lr=0.1, momentum=0.9)
    sgd.state[plain.weight]["momentum_buffer"] = optimizer.begin()["momentum"].clone()
    steps(plain, sgd, 2)
    steps(head, optimizer, 2)
    torch.testing.assert_close(head.weight, plain.weight)
    parts = heads.split(head, 2)
    assert [part.fused_optimizer for part in parts] == [None, None]
    assert head.fused_optimizer is optimizer


def test_schedules_and_hooks_stay():
    head = create_head("a-softmax", D, C)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    head.schedules[0].drive(optimizer)
    steps(head, optimizer, 2)
    heads.add_classes(head, 1, optimizer=optimizer)
    steps(head, optimizer, 3)
    assert int(head.schedules[0].step) == 5


def test_a_new_class_begins_as_the_optimiser_would():
    head = whole()
    optimizer = torch.optim.Adagrad(head.parameters(), lr=0.1, initial_accumulator_value=0.5)
    steps(head, optimizer, 1)
    heads.add_classes(head, 1, optimizer=optimizer)
    assert (optimizer.state[head.weight]["sum"][C] == 0.5).all()


def test_no_optimiser_is_left_with_the_old_rows():
    head = whole()
    rest = torch.optim.SGD([head.bias, head.m], lr=0.1)
    weight = torch.optim.SGD([head.weight], lr=0.1)
    before = rows(head)
    with pytest.raises(ValueError, match=r"optimizer \(SGD\) does not hold head.weight. Give the one that does as"):
        heads.remove_classes(head, [0], optimizer=rest)
    with pytest.raises(TypeError, match="optimizer must be a Optimizer such as"):
        heads.remove_classes(head, [0], optimizer=[rest, "sgd"])
    assert same(rows(head), before)
    heads.remove_classes(head, [0], optimizer=[rest, weight])
    assert [id(p) for p in (*weight.param_groups[0]["params"], *rest.param_groups[0]["params"])] == [
        id(p) for p in (head.weight, head.bias, head.m)
    ]
    head.weight.requires_grad_(False)
    heads.remove_classes(head, [0], optimizer=rest)  # nothing trains the weight


def test_state_that_does_not_go_by_class_is_refused():
    head = whole()
    optimizer = torch.optim.Adafactor(head.parameters(), lr=0.1)
    steps(head, optimizer)
    before, keys = rows(head), list(optimizer.state)
    with pytest.raises(
        ValueError, match=r"the state 'row_var' of Adafactor does not go by class.*without optimizer="
    ):
        heads.add_classes(head, 1, optimizer=optimizer)
    assert same(rows(head), before)
    assert head.classes == C
    assert [id(p) for p in optimizer.state] == [id(p) for p in keys]


def test_requires_grad_and_device_stay():
    head = whole(dtype=torch.float64)
    head.weight.requires_grad_(False)
    heads.add_classes(head, 1)
    assert (head.weight.dtype, head.weight.requires_grad, head.bias.requires_grad) == (torch.float64, False, True)
    assert isinstance(head.m, nn.Parameter)
    fixed = whole(learn_margin=False)
    heads.remove_classes(fixed, [0])
    assert not isinstance(fixed.m, nn.Parameter)
    assert fixed.state_dict()["m"].shape == (C - 1,)
    torch.save(fixed.state_dict(), io.BytesIO())


def test_scales_that_depend_on_the_number_of_classes():
    head = MarginHead(D, 100, CosFace(), scale="adacos")
    heads.remove_classes(head, range(60))
    assert float(head.scale) == pytest.approx(adacos_scale(40))
    learned = MarginHead(D, 100, CosFace(), scale=30.0, learn_scale=True)
    heads.add_classes(learned, 100)
    assert learned.settings.least_scale == smallest_scale(200)
    assert learned.scale.item() == 30
    own = MarginHead(D, 100, CosFace(), scale=30.0, learn_scale=True, scale_floor=2.5)
    heads.add_classes(own, 100)
    assert own.settings.least_scale == 2.5
    assert [float(p.scale) for p in heads.split(head, 3)] == pytest.approx([adacos_scale(40)] * 3)


# ------------------------------------------------------------------------------------------------ new rows


def test_random_rows_are_like_a_fresh_heads():
    one, two, three = (create_head("cosface", 64, 10) for _ in range(3))
    heads.add_classes(one, 2000, seed=4)
    heads.add_classes(two, 2000, seed=4)
    heads.add_classes(three, 2000, seed=5)
    assert torch.equal(one.weight[10:], two.weight[10:])
    assert not torch.equal(one.weight[10:], three.weight[10:])
    assert one.weight[10:].std().item() == pytest.approx(64**-0.5, rel=0.01)
    torch.manual_seed(9)
    fresh = create_head("cosface", 64, 10)
    torch.manual_seed(9)
    heads.add_classes(two, 10)
    assert torch.equal(two.weight[-10:], fresh.weight)
    biased = whole()
    heads.add_classes(biased, 2)
    assert not biased.bias[C:].any()
    assert biased.m[C:].tolist() == [0.5, 0.5]
    heads.add_classes(biased, 2, m=0.25)
    assert biased.m[-2:].tolist() == [0.25, 0.25]
    heads.add_classes(biased, 2, m=[0.1, 0.2])
    torch.testing.assert_close(biased.m[-2:], torch.tensor([0.1, 0.2]))
    three = MarginHead(D, 3, Combined(), scale=8.0, class_margins=torch.tensor([[1.0, 0.3, 0.2]] * 3))
    heads.add_classes(three, 1, m=(1.0, 0.1, 0.0))
    torch.testing.assert_close(three.m[3], torch.tensor([1.0, 0.1, 0.0]))
    heads.add_classes(three, 2)
    assert three.m[-2:].tolist() == [pytest.approx([1.0, 0.3, 0.2])] * 2
    with pytest.raises(ValueError, match=r"m must be 3 numbers, or of shape \(2, 3\)"):
        heads.add_classes(three, 2, m=0.5)  # m1 = m2 = m3 is nobody's wish


def test_rows_from_embeddings_are_mean_directions():
    head = create_head("cosface", D, C)
    head.weight.data *= torch.arange(1, C + 1)[:, None]
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, D, generator=g), torch.randint(3, (40,), generator=g) * 10 + 5
    heads.add_classes(head, embeddings=x, labels=y)
    assert head.classes == C + 3
    length = head.weight[:C].norm(dim=1).mean()
    for k, label in enumerate((5, 15, 25)):
        mean = nn.functional.normalize(x[y == label]).mean(0)
        torch.testing.assert_close(head.weight[C + k], length * mean / mean.norm())
    long = copy.deepcopy(head)
    heads.add_classes(long, embeddings=x * torch.rand(40, 1, generator=g).add(0.1), labels=y)
    torch.testing.assert_close(nn.functional.normalize(long.weight[-3:]), nn.functional.normalize(head.weight[-3:]))


def test_merging():
    head = whole()
    row = {name: tensor[2].clone() for name, tensor in rows(head).items()}
    for name in row:
        getattr(head, name).data[5] = row[name]
    ids = heads.merge_classes(head, [[5, 2]])
    assert ids.tolist() == [0, 1, 2, 3, 4, 2, 5]
    for name in row:
        assert torch.equal(getattr(head, name)[2], row[name])

    head = whole(dtype=torch.float64)
    before, counts = rows(head), [1, 2, 3, 4, 5, 6, 7]
    ids = heads.merge_classes(head, [(6, 0, 3), (1, 5)], counts=counts)
    assert ids.tolist() == [0, 1, 2, 0, 3, 1, 0]
    share = torch.tensor([7, 1, 4], dtype=torch.float64)[:, None] / 12
    some = before["weight"][[6, 0, 3]]
    direction = nn.functional.normalize((nn.functional.normalize(some) * share).sum(0), dim=0)
    torch.testing.assert_close(head.weight[0], direction * (some.norm(dim=1, keepdim=True) * share).sum())
    torch.testing.assert_close(head.bias[1], (2 * before["bias"][1] + 6 * before["bias"][5]) / 8)
    torch.testing.assert_close(head.m[1], (2 * before["m"][1] + 6 * before["m"][5]) / 8)
    wide = heads.Weights(torch.randn(1, 50, dtype=torch.float64).repeat(3, 1), bias=torch.full((3,), 0.1).double())
    row, bias = wide.weight[0].clone(), wide.bias[0].clone()
    heads.merge_classes(wide, [(0, 1, 2)])
    assert torch.equal(wide.weight[0], row)
    assert torch.equal(wide.bias[0], bias)
    equal = whole()
    heads.merge_classes(equal, [(0, 1)])
    expected = nn.functional.normalize(nn.functional.normalize(whole().weight[:2]).mean(0), dim=0)
    torch.testing.assert_close(nn.functional.normalize(equal.weight[0], dim=0), expected)
    length = whole().weight[:2].norm(dim=1).mean()
    torch.testing.assert_close(equal.weight[0].norm(), length)


def test_names():
    now, wanted = ["ann", "bob", "eve"], ["eve", "ann", "bob"]
    ids = heads.by_name(now, wanted)
    assert ids.tolist() == [1, 2, 0]
    assert [wanted[k] for k in ids] == now
    with pytest.raises(ValueError, match=r"'dan' is in wanted only; both must have the same names \(2 differ\)"):
        heads.by_name(now, ["dan", "ann", "bob"])
    with pytest.raises(ValueError, match="wanted must name a class once; got 'ann' twice"):
        heads.by_name(now, ["ann", "ann", "bob"])


# ------------------------------------------------------------------------------------------------ shards


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("classes", [5, 7, 12])
def test_shards_join_to_the_whole(world, classes):
    head = whole(classes)
    parts = heads.split(head, world)
    # as DTensor's Shard(0), and so torch.chunk, which leaves out the empty ones
    chunks = [len(chunk) for chunk in head.weight.chunk(world)]
    assert [part.classes for part in parts] == chunks + [0] * (world - len(chunks))
    joined = heads.join(parts)
    assert same(rows(joined), rows(head))
    assert str(joined) == str(head)
    x, y = batch(classes)
    assert torch.equal(joined(x, y), head(x, y))
    parts[0].weight.data += 1
    assert same(rows(joined), rows(head))
    weights = heads.weights_of(head)
    assert torch.equal(heads.join(heads.split(weights, world)).weight, head.weight)


@pytest.mark.parametrize(("classes", "world"), [(5, 1), (7, 3), (12, 5), (9, 4)])
def test_insightface_cuts_its_own_way(classes, world):
    """As it is written in PartialFC_V2; our own slices are others."""
    ranges = [insightface_range(classes, rank, world) for rank in range(world)]
    assert [k for of in ranges for k in of] == list(range(classes))
    assert [len(of) for of in ranges] == [classes // world + int(r < classes % world) for r in range(world)]
    assert [of.start for of in ranges] == [classes // world * r + min(r, classes % world) for r in range(world)]
    assert not hasattr(heads, "shard_range")


def test_a_slice_without_classes(tmp_path):
    """Of 5 classes in four slices of 2 the last is empty: it can be joined, but not written."""
    parts = heads.split(heads.weights_of(whole(5)), 4)
    assert [part.classes for part in parts] == [2, 2, 1, 0]
    with pytest.raises(ValueError, match=r"target holds no class, so there is nothing to write"):
        heads.write(parts[3], tmp_path / "part.pt")
    # A rank of a sharded head says which classes it holds, so that its file is missed when it is not there.
    rest = {"scale": torch.tensor(8.0), "classes_held": torch.tensor([5, 5, 5, 3, 4])}
    heads.write(heads.Weights(torch.empty(0, D), rest=rest), tmp_path / "rank.safetensors")
    assert read_one(tmp_path / "rank.safetensors").classes == 0


def test_only_parts_of_one_head_are_joined():
    other = whole()
    other.scale.fill_(9.0)
    with pytest.raises(ValueError, match=r"part 1 has scale 9.0, the first 8.0. Only parts of one head"):
        heads.join([whole(), other])
    with pytest.raises(ValueError, match="part 1 has dim 6, the first 5"):
        heads.join([whole(), whole(dim=6)])
    with pytest.raises(ValueError, match="part 1 has bias False, the first True"):
        heads.join([whole(), whole(bias=False)])
    with pytest.raises(ValueError, match=r"world must be at most the number of classes, 7; got 8"):
        heads.split(whole(), 8)
    for settings, words in [
        ({"dtype": torch.float64}, "part 1 has a weight of torch.float64, the first of torch.float32"),
        ({"margin_reward": 0.5}, "part 1 has margin_reward 0.5, the first 0.1"),
        ({"schedule": hm.schedule.MarginWarmup(5)}, "part 1 has schedules.0.step 0, the first None"),
    ]:
        with pytest.raises(ValueError, match=words):
            heads.join([whole(), whole(**settings)])
    one, other = (whole(class_margins=None) for _ in range(2))
    other.m.data.fill_(0.25)
    with pytest.raises(ValueError, match=r"part 1 has m 0.25, the first 0.5"):
        heads.join([one, other])
    with pytest.raises(ValueError, match=r"part 1 has scale 16.0, the first 8.0"):
        heads.join([heads.Weights(torch.ones(2, 2), rest={"scale": torch.tensor(s)}) for s in (8.0, 16.0)])
    assert heads.join(part for part in heads.split(whole(), 3)).classes == C
    piece = whole()
    piece.settings = dataclasses.replace(piece.settings, classes=20)
    with pytest.raises(ValueError, match="head is sharded and holds 7 of 20 classes"):
        heads.remove_classes(piece, [0])


@pytest.mark.filterwarnings("ignore:Sparse invariant")
def test_sampling_knows_the_new_classes():
    torch.manual_seed(0)
    head = MarginHead(D, C, CosFace(), scale=8.0, sample=hm.PartialFC(0.5))
    optimizer = hm.SampledSGD(head.parameters(), lr=0.1, momentum=0.9)
    steps(head, optimizer)
    heads.add_classes(head, 20, optimizer=optimizer)
    heads.remove_classes(head, [0], optimizer=optimizer)
    made = MarginHead(D, C + 19, CosFace(), scale=8.0, sample=hm.PartialFC(0.5))
    made.load_state_dict(head.state_dict())
    x, y = batch(C + 19)
    assert torch.equal(head(x, y), made(x, y))
    assert head.settings == made.settings
    steps(head, optimizer)
    assert [part.classes for part in heads.split(head, 4)] == [7, 7, 7, 5]


@pytest.mark.filterwarnings("ignore:Sparse invariant")
@pytest.mark.parametrize("change", ["remove", "merge", "add"])
def test_every_class_keeps_its_count_of_steps(change, tmp_path):
    """SampledAdamW's moments and steps move along, new classes begin at 0, and a file brings them back."""
    torch.manual_seed(0)
    head = MarginHead(D, C, CosFace(), scale=8.0, bias=True, sample=hm.PartialFC(0.3))
    optimizer = hm.SampledAdamW(head.parameters(), lr=0.1)
    for k in range(4):
        steps(head, optimizer, 1, classes=2 + k)
    old = {name: state_of(optimizer, getattr(head, name)) for name in ("weight", "bias")}
    assert len(set(old["weight"]["step"].tolist())) > 1
    ids = {
        "remove": lambda: heads.remove_classes(head, [4], optimizer=optimizer),
        "merge": lambda: heads.merge_classes(head, [[6, 1]], optimizer=optimizer),
        "add": lambda: heads.add_classes(head, 2, seed=0, optimizer=optimizer),
    }[change]()
    alone = torch.tensor([k for k in range(C) if ids[k] >= 0 and (ids == ids[k]).sum() == 1])
    for name, before in old.items():
        after = optimizer.state[getattr(head, name)]
        assert {key: value.shape[0] for key, value in after.items()} == dict.fromkeys(before, head.classes)
        for key, value in before.items():
            assert torch.equal(after[key][ids[alone]], value[alone])
            if change == "merge":
                torch.testing.assert_close(after[key][1], (value[1] + value[6]) / 2)
            if change == "add":
                assert not after[key][C:].any()
    heads.write(heads.weights_of(head, optimizer), tmp_path / "head.safetensors")
    found = heads.read(tmp_path / "head.safetensors")
    assert found.state["optimizer.weight.step"].shape == (head.classes,)
    twin = heads.head_from(found, "cosface", sample=hm.PartialFC(0.3))
    fresh = hm.SampledAdamW(twin.parameters(), lr=0.1)
    heads.restore_optimizer(fresh, twin, found)
    for each, its in ((head, optimizer), (twin, fresh)):
        steps(each, its, 2)
    assert same(rows(head), rows(twin))
    wrong = dataclasses.replace(found, state=dict(found.state), rest=dict(found.rest))
    wrong.rest["optimizer.weight.step"] = wrong.state.pop("optimizer.weight.step")[1:]
    with pytest.raises(ValueError, match=r"optimizer.weight.step has shape \("):
        heads.restore_optimizer(fresh, twin, wrong)


def test_slices_of_a_sharded_head_join(tmp_path):
    """Files as its ranks save them; they say what they hold, so names and order do not matter."""
    whole_state = create_head("arcface", D, 10).state_dict()
    cuts = [(0, 4), (4, 8), (8, 10), (10, 10)]
    for rank, (start, stop) in enumerate(cuts):
        state = dict(whole_state, weight=whole_state["weight"][start:stop].clone())
        state["classes_held"] = torch.tensor([start, stop, 10, rank, 4])
        torch.save(state, tmp_path / f"{'cabd'[rank]}.pt")
    paths = sorted(tmp_path.glob("*.pt"))
    found = heads.read(paths)
    assert torch.equal(found.weight, whole_state["weight"])
    assert torch.equal(heads.head_from(found, "arcface").weight, whole_state["weight"])
    with pytest.raises(
        ValueError,
        match=r"a.pt holds the classes 4:8 of 10 \(rank 1 of 4\), where class 0 of 10, of 4 ranks, should follow",
    ):
        heads.read(paths[:2])
    with pytest.raises(ValueError, match="the classes 4:10 are missing"):
        heads.read(paths[2])
    for changed, words in [
        ({"scale": torch.tensor(8.0)}, "do not belong together: part 2 has scale 8.0, the first 64.0"),
        ({"classes_held": torch.tensor([8, 10, 10, 2, 5])}, r"rank 2 of 5\), where class 8 of 10, of 4 ranks"),
    ]:
        good = torch.load(paths[1], weights_only=True)
        torch.save(good | changed, paths[1])
        with pytest.raises(ValueError, match=words):
            heads.read(paths)
        torch.save(good, paths[1])
    with pytest.raises(ValueError, match=r"these are the classes 0:4 of 10 \(rank 0 of 4\). Write them with"):
        heads.remove_classes(read_one(paths[2]), [0])
    heads.write(heads.Weights(torch.randn(2, D)), tmp_path / "e.npy")
    with pytest.raises(ValueError, match=r"e.npy does not say which classes it holds"):
        heads.read([*paths, tmp_path / "e.npy"])


class as_rank:  # noqa: N801
    """A process group that talks to nobody, to make the head of one rank of several."""

    def __init__(self, rank, world):
        self.settings = {"rank": rank, "world_size": world}

    def __enter__(self):
        torch.distributed.init_process_group("fake", store=FakeStore(), **self.settings)

    def __exit__(self, *_):
        torch.distributed.destroy_process_group()


@over_optimizers
def test_four_slices_to_one_to_three_with_their_optimisers(tmp_path, make):
    """Rank by rank, through files; the head that went this way makes the step of the one that stayed."""
    head = whole(learn_scale=True)
    optimizer = make(head.parameters())
    steps(head, optimizer)
    found = heads.weights_of(head, optimizer)
    assert bool(found.state) is bool(optimizer.state[head.weight])
    settings = {"learn_margin": True, "learn_scale": True, "backend": "dense"}
    for world in (4, 3):
        paths = [tmp_path / f"{world}-{rank}.safetensors" for rank in range(world)]
        for rank, path in enumerate(paths):
            with as_rank(rank, world):
                mine = heads.head_from(found, "arcface", shard=hm.Shard(), **settings)
                own = make(mine.parameters())
                if optimizer.state[head.weight]:
                    heads.restore_optimizer(own, mine, found)
                held = mine.layout.held(mine.classes)
                start, stop = held.start, held.stop
                for name in ("weight", "bias", "m"):
                    assert torch.equal(getattr(mine, name), getattr(head, name)[start:stop])
                    for key, value in optimizer.state[getattr(head, name)].items():
                        expected = value[start:stop] if value.dim() else value
                        assert torch.equal(own.state[getattr(mine, name)][key], expected)
                heads.write(heads.weights_of(mine, own), path)
                with pytest.raises(ValueError, match="head is sharded and holds"):
                    heads.remove_classes(mine, [0])
                for away in (heads.to_linear, heads.to_metric_learning):
                    with pytest.raises(ValueError, match="head is sharded and holds"):
                        away(mine)
                with pytest.raises(ValueError, match=rf"these are the classes {start}:{stop} of 7"):
                    heads.write(heads.weights_of(mine), tmp_path / "x.npy", rows_only=True)
        found = heads.read(paths[::-1])
    again = heads.head_from(found, "arcface", **settings)
    fresh = make(again.parameters())
    if optimizer.state[head.weight]:
        heads.restore_optimizer(fresh, again, found)
    for each, its in ((head, optimizer), (again, fresh)):
        ids = heads.merge_classes(each, [[1, 4]], optimizer=its)
        steps(each, its, 2)
    assert same(rows(head), rows(again))
    # Weights carry their state through a change as a head's optimiser does.
    heads.merge_classes(found, [[1, 4]])
    assert ids.tolist() == [0, 1, 2, 3, 1, 4, 5]
    for name, tensor in found.state.items():
        assert len(tensor) == C - 1, name


def test_state_goes_where_it_belongs():
    head = whole()
    optimizer = OPTIMIZERS["sgd"](head.parameters())
    steps(head, optimizer)
    found = heads.weights_of(head, optimizer)
    assert heads.split(found, 2)[1].state["optimizer.bias.momentum_buffer"].shape == (3,)
    for one, other, weights, words in [
        (optimizer, head, heads.weights_of(head), "weights hold no optimiser state"),
        (OPTIMIZERS["sgd"]([head.weight]), head, found, "but optimizer does not hold head.(bias|m)"),
        (optimizer, head, heads.split(found, 2)[0], r"momentum_buffer has shape \(4, 5\), head.weight \(7, 5\)"),
    ]:
        before = {name: state_of(optimizer, p) for name, p in head.named_parameters()}
        with pytest.raises(ValueError, match=words):
            heads.restore_optimizer(one, other, weights)
        assert all(same(state_of(optimizer, p), before[name]) for name, p in head.named_parameters())
    with pytest.raises(ValueError, match=r"optimizer \(SGD\) does not hold head.weight"):
        heads.weights_of(head, OPTIMIZERS["sgd"]([head.bias]))
    # Two optimisers, as with FusedSGD, which has the weight alone.
    two = [OPTIMIZERS["sgd"]([head.weight]), OPTIMIZERS["adam"]([head.bias, head.m])]
    heads.restore_optimizer([optimizer], head, found)
    for each, other in ((two[0], head.weight), (two[1], head.bias)):
        each.state[other]["momentum_buffer"] = torch.ones_like(other)
    assert set(heads.weights_of(head, two).state) == {
        "optimizer.weight.momentum_buffer", "optimizer.bias.momentum_buffer"
    }  # fmt: skip
    heads.restore_optimizer(two, head, found)
    assert torch.equal(two[1].state[head.m]["momentum_buffer"], optimizer.state[head.m]["momentum_buffer"])
    assert two[1].state[head.m]["momentum_buffer"] is not found.state["optimizer.m.momentum_buffer"]


# ------------------------------------------------------------------------------------------------ others' heads


def test_insightface_computes_the_same(tmp_path):
    """PartialFC_V2 and CombinedMarginLoss as their forward reads, on three shards put side by side."""
    torch.manual_seed(0)
    shards = [torch.randn(len(insightface_range(10, rank, 3)), D, requires_grad=True) for rank in range(3)]
    for rank, weight in enumerate(shards):
        torch.save({"weight": weight.detach()}, tmp_path / f"softmax_fc_gpu_{rank}.pt")
    settings = {"m": 0.5, "scale": 64.0, "beyond": "none", "gradient": "straight"}
    head = heads.head_from(heads.read(tmp_path, classes=10), "arcface", **settings)
    x, y = batch(10)
    theirs, ours = x.clone().requires_grad_(), x.clone().requires_grad_()
    logits = nn.functional.linear(nn.functional.normalize(theirs), nn.functional.normalize(torch.cat(shards)))
    logits = logits.clamp(-1, 1)
    torch.testing.assert_close(head.logits(x) / 64, logits, rtol=0, atol=1e-6)
    with torch.no_grad():
        target = logits[torch.arange(N), y].arccos()
        logits.arccos_()
        logits[torch.arange(N), y] = target + 0.5
        logits.cos_()
    loss = nn.functional.cross_entropy(logits * 64, y)
    torch.testing.assert_close(head(ours, y), loss, rtol=1e-6, atol=1e-5)
    head(ours, y).backward()
    loss.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(head.weight.grad, torch.cat([w.grad for w in shards]), rtol=1e-4, atol=1e-5)
    (tmp_path / "back").mkdir()
    heads.write(head, tmp_path / "back", format="insightface", shards=4)
    for rank in range(4):
        of = insightface_range(10, rank, 4)
        module = nn.Linear(D, len(of), bias=False)  # theirs has the same one parameter
        module.load_state_dict(torch.load(tmp_path / "back" / f"softmax_fc_gpu_{rank}.pt", weights_only=True))
        assert torch.equal(module.weight, head.weight[of.start : of.stop])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "loss",
    [
        lambda: losses.ArcFaceLoss(C, D, margin=28.6, scale=16),
        lambda: losses.ArcFaceLoss(C, D, margin=70, scale=8),
        lambda: losses.CosFaceLoss(C, D, margin=0.35, scale=16),
        lambda: losses.NormalizedSoftmaxLoss(C, D, temperature=0.07),
        lambda: losses.SphereFaceLoss(C, D, margin=4, scale=1),
        lambda: losses.LargeMarginSoftmaxLoss(C, D, margin=3, scale=1),
    ],
    ids=["arcface", "arcface 70°", "cosface", "normface", "sphereface", "l-softmax"],
)
def test_metric_learning(loss, dtype):
    torch.manual_seed(0)
    theirs = loss().to(dtype)
    head = heads.from_metric_learning(theirs)
    x = (2 * torch.randn(200, D)).to(dtype)
    y = torch.randint(C, (200,))
    x[:20] = -theirs.W.T[y[:20]].detach() + 0.03 * x[:20]
    torch.testing.assert_close(head(x, y), theirs(x, y), rtol=1e-5, atol=1e-5)
    cosines = theirs.get_logits(x) if hasattr(theirs, "get_logits") else theirs.get_cosine(x) * theirs.scale
    if head.settings.unit_weight and head.settings.unit_features:
        torch.testing.assert_close(head.logits(x), cosines, rtol=1e-6, atol=1e-6 * float(head.scale))
    if isinstance(head.margin, ArcFace):
        assert head.margin.beyond == "linear"
        assert math.degrees(head.margin.m) == pytest.approx(28.6 if head.margin.m < 1 else 70)
        assert float(head.scores(x, y).angle.max()) > math.pi - head.margin.m  # the branch past π is used
    assert torch.equal(head.weight, theirs.W.T)
    back = heads.to_metric_learning(head)
    assert type(back) is type(theirs)
    assert torch.equal(back.W, theirs.W)
    torch.testing.assert_close(back(x, y), theirs(x, y), rtol=1e-6, atol=1e-7)  # s is float32 in a head
    again = heads.from_metric_learning(back)
    assert (again.margin, float(again.scale)) == (head.margin, float(head.scale))


def test_metric_learning_refuses_what_it_cannot_do():
    with pytest.raises(TypeError, match=r"loss must be one of ArcFaceLoss, .*; got TripletMarginLoss"):
        heads.from_metric_learning(losses.TripletMarginLoss())
    from pytorch_metric_learning.distances import DotProductSimilarity

    odd = losses.NormalizedSoftmaxLoss(C, D, distance=DotProductSimilarity(normalize_embeddings=False))
    with pytest.raises(ValueError, match="only its own DotProductSimilarity"):
        heads.from_metric_learning(odd)
    for head, words in [
        (create_head("arcface", D, C), r'beyond="linear", yours is \'smooth\''),
        (create_head("softmax", D, C), "unit_features=False and unit_weight=False with NoMargin"),
        (create_head("combined", D, C), "its margin is Combined"),
        (create_head("a-softmax", D, C), "no schedules"),
        (create_head("cosface", D, C, gradient="straight"), 'its gradient is "exact"'),
        (MarginHead(D, C, SphereFace(1.5), unit_features=False), "its m is a whole number"),
        (
            create_head("cosface", D, C, reduction="sum"),
            "its loss is the mean over the rows, yours has reduction='sum'",
        ),
        (create_head("cosface", D, C, sample=hm.PartialFC(0.5)), "it uses all classes at every step"),
        (create_head("cosface", D, C, scale="adacos-dynamic"), "it uses all classes at every step, and one scale"),
    ]:
        with pytest.raises(ValueError, match=words):
            heads.to_metric_learning(head)


@pytest.mark.parametrize("bias", [True, False])
def test_linear(bias):
    torch.manual_seed(0)
    linear = nn.Linear(D, C, bias=bias)
    head = heads.from_linear(linear)
    x, y = batch()
    torch.testing.assert_close(head.logits(x), linear(x))
    torch.testing.assert_close(head(x, y), nn.functional.cross_entropy(linear(x), y))
    back = heads.to_linear(head)
    assert torch.equal(back.weight, linear.weight)
    assert (back.bias is None) is not bias
    assert bias is False or torch.equal(back.bias, linear.bias)
    free = create_head("modified-softmax", D, C, scale=3.0)
    torch.testing.assert_close(heads.to_linear(free)(x), free.logits(x))
    with pytest.raises(ValueError, match=r"unit_features=True, and an nn.Linear does not normalise"):
        heads.to_linear(create_head("arcface", D, C))


# ------------------------------------------------------------------------------------------------ files


@over_formats
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_there_and_back_by_file(tmp_path, name, format, dtype):
    weights = heads.Weights(torch.randn(C, D).to(dtype))
    if format is None and not name.endswith("npy"):
        weights = heads.weights_of(whole(dtype=dtype))
    heads.write(weights, tmp_path / name, format=format)
    back = heads.read(tmp_path / name)
    assert same(back.entries(), weights.entries())
    assert back.weight.dtype == dtype
    if format:
        assert back.format in (format, "linear")
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(ValueError, match="is there already"):
        heads.write(weights, tmp_path / name, format=format)
    heads.write(heads.Weights(weights.weight * 2), tmp_path / name, format=format, replace=True)
    assert torch.equal(heads.read(tmp_path / name).weight, weights.weight * 2)


def test_a_head_comes_back_from_its_file(tmp_path):
    torch.manual_seed(0)
    head = create_head("a-softmax", D, C)
    steps(head, torch.optim.SGD(head.parameters(), lr=0.1))
    heads.write(head, tmp_path / "head.safetensors")
    back = heads.head_from(heads.read(tmp_path / "head.safetensors"), "a-softmax")
    x, y = batch()
    assert torch.equal(back(x, y), head(x, y))
    assert int(back.schedules[0].step) == 4

    one = whole()
    heads.write(one, tmp_path / "one.pt")
    back = heads.head_from(heads.read(tmp_path / "one.pt"), "arcface", learn_margin=True, backend="dense")
    assert same(rows(back), rows(one))
    assert torch.equal(back(x, y), one(x, y))
    plain = heads.head_from(heads.Weights(one.weight.detach()), "softmax")
    assert plain.bias is None
    said = heads.head_from(heads.read(tmp_path / "one.pt"), "arcface", class_margins=[0.3] * C, scale=5.0)
    assert (said.m.tolist(), float(said.scale)) == (pytest.approx([0.3] * C), 5)
    with pytest.raises(ValueError, match=r"the weights hold schedules.0.step of shape .*, and arcface has none"):
        heads.head_from(heads.read(tmp_path / "head.safetensors"), "arcface")


def test_what_others_write(tmp_path):
    """Files as their libraries write them, by the code in the sources named in heads/insightface.py."""
    W = torch.randn(10, D)
    ranges = [insightface_range(10, r, 3) for r in range(3)]

    def shards(folder, pattern, content):
        (tmp_path / folder).mkdir()
        for rank, of in enumerate(ranges):
            torch.save(content(W[of.start : of.stop]), tmp_path / folder / pattern.format(rank))
        found = heads.read(tmp_path / folder)
        assert torch.equal(found.weight, W)
        assert found.format == "insightface"

    shards("v2", "softmax_fc_gpu_{}.pt", lambda w: nn.Linear(1, 1).state_dict().__class__(weight=w))
    shards("adamw", "softmax_fc_gpu_{}.pt", lambda w: {"weight_activated": w})
    shards("old", "rank_{}_softmax_weight.pt", lambda w: w)
    model, schedule = nn.Linear(3, 3), {"base_lr": 0.1, "last_epoch": 3, "_last_lr": [0.1]}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    all_states = {"epoch": 1, "global_step": 2, "state_dict_backbone": model.state_dict()}
    all_states |= {"state_optimizer": optimizer.state_dict(), "state_lr_scheduler": schedule}
    shards("resume", "checkpoint_gpu_{}.pt", lambda w: all_states | {"state_dict_softmax_fc": {"weight": w}})
    torch.save(torch.zeros(4, D), tmp_path / "old" / "rank_0_softmax_weight_mom.pt")  # lies beside, and is not read
    assert torch.equal(heads.read(tmp_path / "old").weight, W)
    torch.save({"weight": W, "weight_activated": W[:2], "weight_exp_avg": W}, tmp_path / "sampled.pt")
    assert torch.equal(heads.read(tmp_path / "sampled.pt").weight, W)

    theirs = losses.ArcFaceLoss(10, D)
    torch.save(theirs.state_dict(), tmp_path / "loss.pt")
    found = heads.read(tmp_path / "loss.pt")
    assert (found.format, found.weight.tolist()) == ("metric-learning", theirs.W.T.tolist())
    heads.write(found, tmp_path / "back.pt", format="metric-learning")
    theirs.load_state_dict(torch.load(tmp_path / "back.pt", weights_only=True))

    model = nn.Sequential(nn.Linear(4, D), nn.Linear(D, 10))
    torch.save({"state_dict": model.state_dict(), "epoch": 3}, tmp_path / "model.pt")
    found = heads.read(tmp_path / "model.pt", prefix="state_dict.1.")
    assert torch.equal(found.bias, model[1].bias)
    heads.write(found, tmp_path / "fc.pt", format="linear")
    model[1].load_state_dict(torch.load(tmp_path / "fc.pt", weights_only=True))
    with pytest.raises(ValueError, match=r"there is no weight. It has 0., 1.; name one as prefix"):
        heads.read(tmp_path / "model.pt")
    torch.save({f"module.{k}": v for k, v in theirs.state_dict().items()}, tmp_path / "ddp.pt")
    assert heads.read(tmp_path / "ddp.pt").format == "metric-learning"


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
def test_insightface_shards_are_small_files(tmp_path, world):
    W = torch.randn(501, 16)
    paths = [each.path for each in heads.write(heads.Weights(W), tmp_path, format="insightface", shards=world)]
    assert [p.name for p in paths] == [f"softmax_fc_gpu_{r}.pt" for r in range(world)]
    for rank, path in enumerate(paths):
        content = torch.load(path, weights_only=True)
        assert list(content) == ["weight"]
        assert len(content["weight"]) == 501 // world + int(rank < 501 % world)
        assert path.stat().st_size < content["weight"].numel() * 4 + 5000  # a view would save the whole
    assert torch.equal(heads.read(tmp_path).weight, W)
    assert torch.equal(heads.read(paths[::-1], classes=501).weight, W)


def test_a_program_and_a_whole_module_are_refused_in_our_words(tmp_path):
    """Torch's own advise to switch off what protects."""
    network = nn.Sequential(nn.Linear(4, D))
    torch.jit.script(network).save(str(tmp_path / "script.pt"))
    torch.save(network, tmp_path / "whole.pth")
    torch.save(network, tmp_path / "old.ckpt", _use_new_zipfile_serialization=False)
    for name, words in (
        ("script.pt", "it is a TorchScript program, which is not read"),
        ("whole.pth", "holds Python objects such as torch.nn.modules.container.Sequential"),
        ("old.ckpt", "holds Python objects such as torch.nn.modules.container.Sequential"),
    ):
        for read in (heads.read, read_state):
            with pytest.raises(ValueError, match=f"{name}: .*{words}.*torch.save") as error:
                read(tmp_path / name)
            assert "weights_only" not in str(error.value)


def test_a_lightning_checkpoint(tmp_path):
    state = {"model.0.weight": torch.randn(D, 4), "head.weight": torch.randn(10, D)}
    content = {"epoch": 3, "pytorch-lightning_version": "2.4.0", "hyper_parameters": {"lr": 0.1}, "callbacks": {}}
    content |= {"optimizer_states": [{"state": {0: {"exp_avg": torch.randn(3)}}}], "state_dict": state}
    torch.save(content, tmp_path / "last.ckpt")
    assert torch.equal(heads.read(tmp_path / "last.ckpt").weight, state["head.weight"])
    for prefix in ("model.0.", "state_dict.model.0."):
        assert torch.equal(heads.read(tmp_path / "last.ckpt", prefix=prefix).weight, state["model.0.weight"])
    assert read_state(tmp_path / "last.ckpt").keys() == state.keys()


class Bad:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_malicious_file_is_not_run(tmp_path):
    mark = tmp_path / "mark"
    torch.save({"weight": torch.randn(3, 3), "x": Bad(mark)}, tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Bad(mark)))
    np.save(tmp_path / "c.npy", np.array([Bad(mark)], dtype=object), allow_pickle=True)
    torch.save(nn.Linear(3, 3), tmp_path / "d.pt")  # a module, not a state_dict
    for name in "a.pt", "b.pt", "c.npy", "d.pt":
        with pytest.raises(ValueError, match=f"{name}: it is damaged, or holds Python objects"):
            heads.read(tmp_path / name)
    assert not mark.exists()
    pickle.loads((tmp_path / "b.pt").read_bytes()).close()
    assert mark.exists()  # it would have worked


@pytest.mark.parametrize("ending", [".pt", ".safetensors", ".npy"])
def test_damaged_files(tmp_path, ending):
    path = tmp_path / f"head{ending}"
    heads.write(heads.Weights(torch.randn(50, 8)), path)
    good = path.read_bytes()
    for bad in (b"", b"\x00" * 10, good[:10], good[: len(good) // 2], good[:-1], b"hello world" * 9):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=rf"head{ending}: (not a readable|it is damaged)"):
            heads.read(path)
    if ending == ".npy":  # a header that promises 8 TB
        path.write_bytes(good.replace(b"(50, 8), }         ", b"(999999999999, 8),}"))
        with pytest.raises(ValueError, match="not a readable"):
            heads.read(path)
    if ending == ".safetensors":
        path.write_bytes(struct.pack("<Q", 2**60) + good[8:])
        with pytest.raises(ValueError, match="not a readable"):
            heads.read(path)


@pytest.mark.filterwarnings("ignore:Sparse invariant")
def test_files_that_are_not_heads(tmp_path):
    endless = {}
    endless["more"] = endless
    for content, words in [
        ({"weight": torch.randn(3)}, r"weight must have shape \(classes, dim\), at least \(1, 1\); got \(3,\)"),
        ({"weight": torch.ones(3, 3).long()}, "weight must be of a floating dtype .*; got torch.int64"),
        ({"weight": torch.randn(0, 4)}, r"got \(0, 4\)"),
        ({"weight": torch.randn(3, 4), "bias": torch.ones(4)}, r"bias must have one row per class, 3; got \(4,\)"),
        (
            {"weight": torch.randn(3, 4), "running_mean": torch.ones(3)},
            "it holds running_mean. If the head is a layer",
        ),
        ({"weight": torch.randn(3, 4), "scale": torch.tensor(1.0), "m": torch.ones(3)}, "m of 3 numbers may be"),
        ({"weight": torch.randn(3, 4).to_sparse()}, "weight must be a plain tensor with values"),
        ({"weight": torch.randn(3, 4, device="meta")}, "weight must be a plain tensor with values"),
        ({"weight": torch.ones(3, 4).to(torch.float8_e4m3fn)}, "weight must be of a floating dtype"),
        (
            {"weight": torch.randn(3, 4), "bias": torch.ones(3, 2)},
            r"bias must have one row per class, 3; got \(3, 2\)",
        ),
        ({"weight": torch.randn(3, 4), "bias": torch.ones(3).long()}, "bias must be of a floating dtype"),
        ({"weight": torch.randn(3, 4), "m": torch.ones(3, 2, 2)}, "m must have one row per class"),
        ({"weight": torch.randn(3, 4), "classes_held": torch.tensor([0, 4, 9, 0, 3])}, "classes_held must be"),
        ({"weight": torch.randn(3, 4), "classes_held": torch.tensor([0, 3])}, "classes_held must be first, end"),
        (endless, "its dictionaries hold one another without end"),
        ({"epoch": 3}, "there is no weight"),
        ([torch.ones(2, 2)], "expected tensors by name; got list"),
    ]:
        torch.save(content, tmp_path / "head.pt")
        with pytest.raises(ValueError, match=f"head.pt: .*{words}"):
            heads.read(tmp_path / "head.pt")
    torch.save({"weight": torch.randn(3, 4), "bias": torch.ones(3)}, tmp_path / "softmax_fc_gpu_0.pt")
    with pytest.raises(ValueError, match=r"softmax_fc_gpu_0.pt: besides the weight it holds bias"):
        heads.read(tmp_path)
    (tmp_path / "softmax_fc_gpu_0.pt").unlink()
    for path, words in [
        ("none.pt", "there is no such file"),
        ("", "is a folder without softmax_fc_gpu"),
        ("x.txt", "expected a file ending in"),
    ]:
        (tmp_path / "x.txt").touch()
        with pytest.raises(ValueError, match=words):
            heads.read(tmp_path / path)


def test_shards_that_are_missing_or_do_not_fit(tmp_path):
    paths = [
        each.path
        for each in heads.write(heads.Weights(torch.randn(10, D)), tmp_path, format="insightface", shards=4)
    ]
    with pytest.raises(ValueError, match=r"the shards of the ranks 1, 3 are missing; given are 0, 2"):
        heads.read([paths[0], paths[2]])
    with pytest.raises(ValueError, match="ranks 1, 2, 3 are missing"):
        heads.read(paths[0])
    with pytest.raises(ValueError, match="rank 0 is given twice"):
        heads.read([paths[0], paths[0]])
    (tmp_path / "far").mkdir()
    torch.save({}, tmp_path / "far" / "softmax_fc_gpu_99999999999.pt")  # naming all that are missing takes for ever
    with pytest.raises(ValueError, match="there is no rank 99999999999"):
        heads.read(tmp_path / "far")
    paths[3].rename(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"holds 8 classes, not 10. Is a shard missing"):
        heads.read(tmp_path, classes=10)
    (tmp_path / "gone").rename(paths[3])
    paths[1].rename(tmp_path / "gone")
    with pytest.raises(ValueError, match="the shards of the ranks 1 are missing; given are 0, 2, 3"):
        heads.read(tmp_path)
    paths[0].rename(paths[1])
    (tmp_path / "gone").rename(paths[0])
    heads.read(tmp_path)  # of equal size: nobody can know
    paths[1].rename(tmp_path / "gone")
    paths[3].rename(paths[1])
    (tmp_path / "gone").rename(paths[3])
    with pytest.raises(ValueError, match=r"softmax_fc_gpu_1.pt holds 2 classes; of 10 in 4 shards, rank 1 has 3"):
        heads.read(tmp_path)
    torch.save({"weight": torch.randn(2, 9)}, paths[3])
    torch.save({"weight": torch.randn(3, D)}, paths[1])
    with pytest.raises(ValueError, match=r"do not belong together: part 3 has a weight of \(9,\) a class"):
        heads.read(tmp_path)


def test_nothing_is_written_that_is_not_right(tmp_path):
    W = torch.randn(4, 3)
    W[2, 1] = math.nan
    for path, format in [("a.pt", None), ("a.npy", None), ("", "insightface")]:
        with pytest.raises(
            ValueError, match=r"weight would be NaN or inf for 1 classes \(2, as they would be written\). Remove"
        ):
            heads.write(heads.Weights(W), tmp_path / path, format=format)
    good = heads.Weights(torch.randn(4, 3), bias=torch.zeros(4))
    for arguments, words in [
        (("a.npy",), "the format npy cannot hold bias"),
        (("", "insightface"), "the format insightface cannot hold bias"),
        (("a.txt",), "path must end in .pt"),
        (("a.npy", "linear"), "path must end in .pt or .pth"),
        (("no/a.pt",), "there is no folder"),
        (("no", "insightface", 1, True), "insightface's files need a folder"),
        (("", "insightface", 5, True), "shards must be at most the number of classes, 4; got 5"),
        (("a.pt", "linear", 2), "shards is for the format insightface"),
        (("a.pt", "onnx"), "format must be one of"),
    ]:
        path, format, shards, rows_only = (*arguments, *(None, 1, False)[len(arguments) - 1 :])
        with pytest.raises(ValueError, match=words):
            heads.write(good, tmp_path / path, format=format, shards=shards, rows_only=rows_only)
    assert not list(tmp_path.iterdir())
    heads.write(good, tmp_path / "a.npy", rows_only=True)
    heads.write(good, tmp_path, format="insightface", shards=3, rows_only=True)
    with pytest.raises(ValueError, match=r"softmax_fc_gpu_2.pt is there, of more shards than 2"):
        heads.write(good, tmp_path, format="insightface", shards=2, rows_only=True, replace=True)
    torch.save({}, tmp_path / "softmax_fc_gpu_9.pt")
    with pytest.raises(ValueError, match=r"softmax_fc_gpu_9.pt is there, of more shards than 3"):
        heads.write(good, tmp_path, format="insightface", shards=3, rows_only=True, replace=True)
    with pytest.raises(ValueError, match=r"scale is NaN or inf"):
        heads.write(heads.Weights(torch.ones(2, 2), rest={"scale": torch.tensor(math.inf)}), tmp_path / "b.pt")
    assert heads.write(good, tmp_path / "b.pt", dry_run=True)[0].entries.keys() == {"weight", "bias"}
    assert not (tmp_path / "b.pt").exists()


def test_links_stay(tmp_path):
    for name in ("there.pt", "not_yet.pt"):
        (tmp_path / f"link_{name}").symlink_to(tmp_path / name)
    heads.write(heads.Weights(torch.ones(3, 2)), tmp_path / "there.pt")
    for name in ("there.pt", "not_yet.pt"):
        heads.write(heads.Weights(torch.ones(4, 2)), tmp_path / f"link_{name}", replace=True)
        assert (tmp_path / f"link_{name}").is_symlink()
        assert heads.read(tmp_path / name).classes == 4


@pytest.mark.parametrize("name", ["big.pt", "big.safetensors", "big.npy"])
def test_a_full_disk_leaves_what_was_there(tmp_path, name):
    resource = pytest.importorskip("resource")
    heads.write(heads.Weights(torch.ones(3, 2)), tmp_path / name)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match=rf"{name} cannot be written \("):
            heads.write(heads.Weights(torch.ones(50_000, 8)), tmp_path / name, replace=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert heads.read(tmp_path / name).classes == 3


# ------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: heads.remove_classes(h, [7]), r"ids must lie in \[0, 7\); got 7. Classes start at 0."),
        (lambda h: heads.remove_classes(h, [-1]), r"ids must lie in \[0, 7\); got -1"),
        (lambda h: heads.remove_classes(h, [1, 2, 1]), "ids must name a class once; got 1 twice"),
        (lambda h: heads.remove_classes(h, range(7)), "ids name all 7 classes; a head needs at least one"),
        (lambda h: heads.merge_classes(h, [[1]]), r"groups must have at least two classes each; got \[1\]"),
        (lambda h: heads.merge_classes(h, []), "groups is empty"),
        (lambda h: heads.merge_classes(h, [[1, 2], [2, 3]]), "groups must name a class once; got 2 twice"),
        (lambda h: heads.merge_classes(h, [[1, 9]]), r"groups must lie in \[0, 7\); got 9"),
        (lambda h: heads.merge_classes(h, [[1, 2]], counts=[1, 2]), "counts must be 7 numbers of at least 0"),
        (lambda h: heads.merge_classes(h, [[1, 2]], counts=[1, 0, 0, 1, 1, 1, 1]), r"counts of .* \[1, 2\]"),
        (lambda h: heads.reorder_classes(h, [0, 1, 2]), "a place for each of 7 classes; got 3"),
        (lambda h: heads.reorder_classes(h, [0, 1, 2, 3, 4, 5, 5]), "new_ids must name a class once; got 5"),
        (lambda h: heads.reorder_classes(h, {0: 3}), "new_ids must name a class once; got 3"),
        (lambda h: heads.reorder_classes(h, {9: 3}), r"new_ids must lie in \[0, 7\); got 9"),
        (lambda h: heads.add_classes(h), "count is missing"),
        (lambda h: heads.add_classes(h, 0), "count must be at least 1; got 0"),
        (lambda h: heads.add_classes(h, 2, m=4.0), r"m must lie in \[0.0, 3.14"),
        (lambda h: heads.add_classes(h, 3, m=(0.1, 0.2)), r"m must be a number, or of shape \(3,\), a number"),
        (lambda h: heads.add_classes(h, embeddings=torch.ones(2, 5)), "embeddings and labels belong together"),
        (lambda h: means(h, torch.ones(2, 6)), r"embeddings must have shape \(N, 5\), the dim of the head"),
        (lambda h: means(h, torch.ones(0, 5)), "embeddings must have at least one row"),
        (lambda h: means(h, torch.full((2, 5), math.nan)), "embeddings must be finite; got NaN at row 0"),
        (lambda h: means(h, torch.zeros(2, 5)), "embeddings of label 3 are 0 or cancel out"),
        (lambda h: means(h, torch.ones(2, 5), label=-100), "labels must be at least 0; got -100 at row 0"),
        (lambda h: means(h, torch.tensor([[1.0] * 5, [-1.0] * 5])), "embeddings of label 3 are 0 or cancel out"),
        (lambda h: heads.merge_classes(h, [[1, 2]], counts="many"), "counts must be 7 numbers"),
        (lambda h: means(h, torch.ones(2, 5), count=4), "count is 4, but labels name 1 classes"),
        (lambda h: heads.merge_classes(h, [[0, 1]], optimizer=torch.optim.SGD([h.scale], lr=1)), "does not hold"),
    ],
)  # fmt: skip
def test_errors_change_nothing(change, words):
    head = whole()
    before, kept = rows(head), [id(p) for p in head.parameters()]
    with pytest.raises(ValueError, match=words):
        change(head)
    assert same(rows(head), before)
    assert [id(p) for p in head.parameters()] == kept


def means(head, x, count=None, label=3):
    heads.add_classes(head, count, embeddings=x, labels=torch.full((len(x),), label))


@pytest.mark.parametrize("bad", [[torch.tensor(1.7)], [torch.tensor(True)], [1.0], np.array([True] * C), ["a"]])
def test_ids_are_whole_numbers(bad):
    for change in (heads.remove_classes, lambda h, ids: heads.merge_classes(h, [[0, 2], ids])):
        with pytest.raises(TypeError, match=r"(ids|groups) must be class ids; got"):
            change(whole(), bad)
    with pytest.raises(TypeError, match="new_ids must be class ids; got"):
        heads.reorder_classes(whole(), dict.fromkeys(range(len(bad)), bad[0]))


def test_ids_as_others_hold_them():
    order = [1, 0, *range(2, C)]
    for ids in ({torch.tensor(0): 1, 1: np.int64(0)}, np.array(order), torch.tensor(order), order):
        assert heads.reorder_classes(whole(), ids).tolist() == order
    for change in (heads.remove_classes, heads.merge_classes, heads.reorder_classes):
        for ids in (3, torch.tensor(3)):
            with pytest.raises(TypeError, match="must be a list of"):
                change(whole(), ids)
    with pytest.raises(TypeError, match=r"groups must be a list of class ids; got 1. Put it in brackets"):
        heads.merge_classes(whole(), [1, 2])
    assert heads.remove_classes(whole(), []).tolist() == list(range(C))


def test_more_errors():
    head = whole()
    with pytest.raises(TypeError, match=r"expected a MarginHead or heads.Weights; got Linear. heads.from_linear"):
        heads.remove_classes(nn.Linear(2, 2), [0])
    with pytest.raises(TypeError, match="embeddings must be a Tensor such as"):
        heads.add_classes(head, embeddings=np.ones((2, D)), labels=torch.ones(2).long())
    with pytest.raises(TypeError, match="labels must be integer class ids"):
        heads.add_classes(head, embeddings=torch.ones(2, D), labels=torch.ones(2))
    head.weight.data[1] = -2 * head.weight.data[0]
    with pytest.raises(ValueError, match=r"classes \[0, 1\] point in opposite directions"):
        heads.merge_classes(head, [[0, 1], [2, 3]])
    half = heads.Weights(torch.randn(2, 50, dtype=torch.bfloat16))
    half.weight[1] = -1.7 * half.weight[0]  # opposite but for bfloat16's rounding
    with pytest.raises(ValueError, match="opposite directions"):
        heads.merge_classes(half, [[0, 1]])
    head.weight.data[1] = math.nan
    with pytest.raises(ValueError, match=r"classes \[1, 2\] hold NaN or inf"):
        heads.merge_classes(head, [[1, 2]])
    with pytest.raises(ValueError, match="the old rows have a mean length of nan"):
        means(head, torch.ones(2, D))
    weights = heads.weights_of(whole())
    with pytest.raises(ValueError, match="these weights have margins by class: give m"):
        heads.add_classes(weights, 2)
    with pytest.raises(ValueError, match="optimizer belongs to a head"):
        heads.remove_classes(weights, [1], optimizer=torch.optim.SGD(head.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="m is for heads with a margin by class"):
        heads.add_classes(create_head("arcface", D, C), 2, m=0.1)


# ------------------------------------------------------------------------------------------------ looking


def test_nearest_pairs_are_those_of_the_whole_matrix():
    torch.manual_seed(0)
    W = torch.randn(50, 4)
    W[7] = 3 * W[31] + 0.01
    W[3] = 0
    W[20] = math.nan
    u = nn.functional.normalize(W.double())
    cosines = (u @ u.T).triu(1)
    cosines[torch.ones(50, 50).tril() == 1] = -math.inf
    cosines[[3, 20]] = cosines[:, [3, 20]] = -math.inf
    best = cosines.flatten().topk(12)
    expected = [(int(k) // 50, int(k) % 50) for k in best.indices]
    for block in (7, 16, 50, 1000):
        pairs = heads.nearest_pairs(W, 12, block=block)
        assert [pair[:2] for pair in pairs] == expected
        torch.testing.assert_close(torch.tensor([p.cosine for p in pairs]), best.values.float())
        above = heads.nearest_pairs(W, above=0.9, block=block)
        assert {p[:2] for p in above} == {tuple(p) for p in (cosines >= 0.9).nonzero().tolist()}
    assert expected[0] == (7, 31)
    equal = torch.randn(8, 512).repeat(2, 1) * torch.arange(1, 17)[:, None]
    assert [pair[:2] for pair in sorted(heads.nearest_pairs(equal, above=1))] == [(k, k + 8) for k in range(8)]
    far = heads.nearest_pairs(torch.eye(9), 36, block=2)
    assert len({pair[:2] for pair in far}) == 36
    assert {pair.cosine for pair in far} == {0.0}
    assert heads.nearest_pairs(W, 0) == []
    assert heads.nearest_pairs(W[:1]) == []
    assert len(heads.nearest_pairs(W[:3], 5)) == 3
    torch.testing.assert_close(lengths(W[:10]), W[:10].double().norm(dim=1))
    with pytest.raises(ValueError, match="above must be a cosine"):
        heads.nearest_pairs(W, above=1.5)


def test_groups_of_pairs():
    pairs = [(1, 5, 0.9), (7, 3, 0.9), (5, 9, 0.9), (2, 3, 0.9)]
    assert heads.groups_of(pairs) == [[1, 5, 9], [2, 3, 7]]
    assert heads.groups_of([]) == []


def test_the_optimiser_of_a_row_term_comes_back():
    head = create_head("arcface", D, C, scale=8.0, row_terms=[RingLoss()])
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    head(torch.randn(N, D), torch.arange(N) % C).backward()
    optimizer.step()
    weights = heads.weights_of(head, optimizer)
    again = heads.head_from(weights, "arcface", row_terms=[RingLoss()])
    other = torch.optim.SGD(again.parameters(), lr=0.1, momentum=0.9)
    heads.restore_optimizer(other, again, weights)
    for mine, theirs in zip(again.parameters(), head.parameters(), strict=True):
        ours, right = other.state[mine]["momentum_buffer"], optimizer.state[theirs]["momentum_buffer"]
        assert torch.equal(ours, right)


def test_offsets_that_are_given_go_before_those_of_the_file():
    weights = heads.weights_of(create_head("arcface", D, C, class_offsets=[1.0] * C))
    assert torch.equal(heads.head_from(weights, "arcface").offsets, torch.ones(C))
    assert torch.equal(heads.head_from(weights, "arcface", class_offsets=[2.0] * C).offsets, torch.full((C,), 2.0))


def test_a_shared_bias_goes_to_a_linear_layer(tmp_path):
    head = MarginHead(D, C, NoMargin(), bias="shared", unit_features=False, unit_weight=False)
    head.bias.data.fill_(0.5)
    heads.write(head, tmp_path / "linear.pt", format="linear")
    linear = nn.Linear(D, C)
    linear.load_state_dict(torch.load(tmp_path / "linear.pt", weights_only=True))
    x = torch.randn(N, D)
    torch.testing.assert_close(linear(x), head(x))


def test_a_head_whose_classes_have_changed_can_be_reset():
    head = MarginHead(D, C, CosFace(), scale="adacos", class_margins=[0.1] * C, class_offsets=[1.0] * C)
    heads.add_classes(head, 2, m=0.2)
    head.m.data.zero_()
    head.reset_parameters()
    torch.testing.assert_close(head.m, torch.tensor([0.1] * C + [0.2] * 2))
    assert head.offsets.tolist() == [1.0] * C + [0.0] * 2
    assert head.scale.item() == pytest.approx(adacos_scale(C + 2))
    for part in (*heads.split(head, 2), heads.join(heads.split(head, 2))):
        part.reset_parameters()


def test_parts_have_the_scale_of_the_whole_below_its_floor_too():
    head = MarginHead(D, 40, ArcFace(), scale=3.0, learn_scale=True)
    parts = heads.split(head, 4)
    assert {part.current_scale().item() for part in parts} == {head.current_scale().item()}
    assert heads.join(parts).settings == head.settings
