"""Learning rate, groups of parameters, and the moving average."""

import copy
import io
import math
from itertools import pairwise

import pytest
import torch
from cases import needed
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hypermargin import create_head, list_heads
from hypermargin.training.optim import EMA, RATES, create_optimizer, rate, set_rate

over_schedules = pytest.mark.parametrize("schedule", RATES)
runs = st.integers(1, 200).flatmap(lambda total: st.tuples(st.just(total), st.integers(0, total)))
numbers = {"power": st.floats(0.3, 4), "gamma": st.floats(0, 0.99), "floor": st.floats(0, 0.99)}


@over_schedules
@settings(max_examples=40)
@given(run=runs, **numbers)
def test_rate_rises_in_the_warmup_and_falls_after_it(schedule, run, power, gamma, floor):
    total, warmup = run
    all_settings = {"total": total, "warmup": warmup, "schedule": schedule, "power": power, "gamma": gamma}
    line = [rate(step, floor=floor, **all_settings) for step in range(total + 3)]
    up, down = line[:warmup], line[warmup:total]
    assert up == pytest.approx([i / warmup for i in range(1, warmup + 1)])
    assert down == sorted(down, reverse=True)
    assert all(0 <= x <= 1 for x in line)
    if schedule != "step":
        assert line[warmup] == (1 if schedule == "constant" or warmup < total else floor)
        end = 1 if schedule == "constant" else floor
        assert line[total:] == [pytest.approx(end, abs=1e-12)] * 3
        assert min(line[warmup:]) >= end - 1e-12


@pytest.mark.parametrize(
    ("schedule", "steepest"), [("constant", 0.0), ("cosine", math.pi / 2), ("polynomial", 2.0)]
)
def test_rate_is_continuous(schedule, steepest):
    total = 1000
    line = [rate(step, total=total, warmup=200, schedule=schedule, floor=0.1) for step in range(total + 1)]
    jumps = [abs(a - b) for a, b in pairwise(line)]
    assert max(jumps[:200]) == pytest.approx(1 / 200)
    assert max(jumps[200:]) <= 0.9 * steepest / 800 + 1e-12
    assert (max(jumps[200:]) > 0.85 * 0.9 * steepest / 800) or steepest == 0


def test_rate_by_hand():
    assert [rate(i, total=4) for i in range(5)] == pytest.approx([1, (2 + 2**0.5) / 4, 0.5, (2 - 2**0.5) / 4, 0])
    assert rate(3, total=6, warmup=2, schedule="polynomial", power=3.0, floor=0.2) == pytest.approx(
        0.2 + 0.8 * 0.75**3
    )
    steps = [rate(i, total=100, schedule="step", milestones=(0.55, 0.8), gamma=0.5) for i in range(100)]
    assert steps == [1.0] * 55 + [0.5] * 25 + [0.25] * 20


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": -1}, "step must be at least 0; got -1"),
        ({"total": 0}, "total must be at least 1; got 0"),
        ({"warmup": 11}, r"warmup must be at most total \(10 steps\); got 11"),
        ({"schedule": "cosin"}, "schedule must be one of .* Did you mean 'cosine'"),
        ({"power": 0.0}, "power must be positive and finite; got 0"),
        ({"gamma": 1.5}, r"gamma must lie in \[0, 1\); got 1.5"),
        ({"floor": -0.1}, r"floor must lie in \[0, 1\); got -0.1"),
        ({"milestones": (0.0,)}, "milestones must be positive"),
        ({"milestones": (0.5, 30)}, r"milestones must lie in \[0, 1\); got 30. They are shares"),
    ],
)
def test_refused_rates(change, words):
    with pytest.raises(ValueError, match=words):
        rate(**{"step": 0, "total": 10, **change})


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.PReLU(4), nn.Flatten(), nn.Linear(16, 8))


def groups_of(optimizer):
    return {group["name"]: group for group in optimizer.param_groups}


HEADS = [(name, needed(name, 5)) for name in list_heads()] + [
    ("arcface", {"learn_margin": True, "learn_scale": True, "bias": True}),
    ("combined", {"learn_margin": True, "class_margins": torch.tensor([[1.0, 0.3, 0.2]]).repeat(5, 1)}),
]


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("model", [network, nn.Identity])
@pytest.mark.parametrize(("kind", "overrides"), HEADS)
def test_groups_are_complete_and_disjoint(name, model, kind, overrides):
    model, head = model(), create_head(kind, 8, 5, **overrides)
    optimizer = create_optimizer(
        model, head, name=name, lr=0.5, weight_decay=0.1, head_lr=2.0, head_weight_decay=0.3
    )
    members = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert len(members) == len(set(members))
    assert set(members) == {id(p) for module in (model, head) for p in module.parameters()}
    for label, group in groups_of(optimizer).items():
        assert group["params"]
        assert group["lr"] == group["base_lr"] == (2.0 if label.startswith("head") else 0.5)
        assert group["weight_decay"] == {"backbone weights": 0.1, "head weight": 0.3}.get(label, 0.0)
    assert [p is head.weight for p in groups_of(optimizer)["head weight"]["params"]] == [True]
    if list(model.parameters()):
        assert {p.dim() for p in groups_of(optimizer)["backbone weights"]["params"]} == {2, 4}
        assert len(groups_of(optimizer)["backbone vectors"]["params"]) == 5
    for factor in (0.5, 0.25):
        set_rate(optimizer, factor)
    assert all(group["lr"] == group["base_lr"] / 4 for group in optimizer.param_groups)


def test_groups_of_frozen_and_shared_parameters():
    model, head = network(), create_head("cosface", 8, 5)
    model[0].requires_grad_(False)
    model[4].weight.requires_grad_(False)
    found = groups_of(create_optimizer(model, head, name="sgd", lr=0.1, weight_decay=0.1))
    assert set(found) == {"backbone vectors", "head weight"}
    assert (found["head weight"]["lr"], found["head weight"]["weight_decay"]) == (0.1, 0.1)
    both = nn.ModuleList([nn.Linear(8, 8), head])
    found = groups_of(create_optimizer(both, head, name="sgd", lr=0.1, weight_decay=0.1))
    assert [len(group["params"]) for group in found.values()] == [1, 1, 1]
    assert found["head weight"]["params"][0] is head.weight


def test_settings_reach_the_optimiser():
    model, head = network(), create_head("softmax", 8, 5)
    sgd = create_optimizer(model, head, name="sgd", lr=0.1, weight_decay=0.0, momentum=0.8, nesterov=True)
    assert isinstance(sgd, torch.optim.SGD)
    assert all(g["momentum"] == 0.8 and g["nesterov"] for g in sgd.param_groups)
    adamw = create_optimizer(model, head, name="adamw", lr=0.1, weight_decay=0.0)
    assert isinstance(adamw, torch.optim.AdamW)
    set_rate(adamw, 0.5)
    other = create_optimizer(model, head, name="adamw", lr=0.1, weight_decay=0.0)
    other.load_state_dict(adamw.state_dict())
    assert [(g["name"], g["lr"], g["base_lr"]) for g in other.param_groups] == [
        (name, 0.05, 0.1) for name in ("backbone weights", "backbone vectors", "head weight", "head vectors")
    ]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", ["adamw", "sgd", "sampled adamw", "sampled sgd"])
def test_a_loaded_state_takes_the_layout_of_its_weights(name, half):
    """Of a channels_last convolution, read from a file where everything is rows; and the other way round."""
    torch.manual_seed(0)
    settings = {"name": name.removeprefix("sampled "), "sampled": name.startswith("sampled")}
    models, optimisers = [], []
    for layout in (torch.channels_last, torch.contiguous_format):
        torch.manual_seed(0)
        models.append(nn.Conv2d(3, 4, 3, bias=False).to(memory_format=layout))
        head = create_head("cosface", 8, 5)
        optimisers.append(create_optimizer(models[-1], head, lr=0.1, weight_decay=0.1, half=half, **settings))

    def step(seed):
        grad = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(seed))
        for model, optimizer in zip(models, optimisers, strict=True):
            model.weight.grad = torch.empty_like(model.weight).copy_(grad)
            optimizer.step()
        torch.testing.assert_close(models[0].weight, models[1].weight)

    step(1)
    states = [copy.deepcopy(optimizer.state_dict()) for optimizer in optimisers]
    for optimizer, state in zip(optimisers, reversed(states), strict=True):
        optimizer.load_state_dict(state)
    step(2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "adam"}, "name must be one of 'adamw', 'sgd'; got 'adam'. Did you mean 'adamw'"),
        ({"lr": 0.0}, "lr must be positive and finite; got 0"),
        ({"head_lr": math.inf}, "head_lr must be positive and finite; got inf"),
        ({"weight_decay": -1.0}, r"weight_decay must lie in \[0, inf\); got -1"),
        ({"head_weight_decay": -1.0}, r"head_weight_decay must lie in \[0, inf\); got -1"),
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\); got 1"),
        ({"momentum": 0.0, "nesterov": True}, "nesterov=True needs a momentum above 0"),
        ({"head": create_head("cosface", 2, 2).requires_grad_(False)}, "there is nothing to train"),
    ],
)
def test_refused_optimisers(change, words):
    wanted = {"model": nn.Identity(), "head": create_head("cosface", 2, 2), "name": "sgd", "lr": 0.1}
    with pytest.raises(ValueError, match=words):
        create_optimizer(**{**wanted, "weight_decay": 0.1, **change})


def wander(modules, generator):
    """One step of a pretended training: every parameter and every float buffer moves, counters count."""
    with torch.no_grad():
        for module in modules:
            for tensor in (*module.parameters(), *module.buffers()):
                if tensor.is_floating_point():
                    tensor += torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
                else:
                    tensor += 1


def state(modules):
    return {f"{i}.{k}": v.clone() for i, module in enumerate(modules) for k, v in module.state_dict().items()}


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.999])
def test_ema_is_the_average_written_by_hand(decay):
    modules = [network().double(), create_head("sphereface", 8, 5).double()]
    generator = torch.Generator().manual_seed(1)
    parameters = {f"{i}.{k}" for i, module in enumerate(modules) for k, _ in module.named_parameters()}
    ema, wanted = EMA(modules, decay), state(modules)
    for t in range(30):
        wander(modules, generator)
        ema.update()
        d = min(decay, (1 + t) / (10 + t))
        for name, value in state(modules).items():
            wanted[name] = d * wanted[name] + (1 - d) * value if name in parameters else value
    with ema.swapped():
        now = state(modules)
    assert now.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(now[name], value, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("fails", [False, True])
def test_swapped_gives_back_every_bit(fails):
    modules = [network(), create_head("normface", 8, 5)]
    generator = torch.Generator().manual_seed(2)
    ema = EMA(modules, 0.9)
    ema.update()
    wander(modules, generator)
    before, tensors = state(modules), [p.data_ptr() for m in modules for p in m.parameters()]
    try:
        with ema.swapped():
            assert not torch.equal(modules[0][0].weight, before["0.0.weight"])
            assert not torch.equal(modules[0][1].running_mean, before["0.1.running_mean"])
            wander(modules, generator)
            assert torch.is_grad_enabled()
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    for name, value in state(modules).items():
        assert value.numpy().tobytes() == before[name].numpy().tobytes(), name
    assert tensors == [p.data_ptr() for m in modules for p in m.parameters()]


def test_ema_goes_on_after_saving_to_the_bit():
    modules = [network(), create_head("normface", 8, 5)]
    generator = torch.Generator().manual_seed(3)
    ema = EMA(modules, 0.9)
    for _ in range(4):
        wander(modules, generator)
        ema.update()
    file = io.BytesIO()
    torch.save(ema.state_dict(), file)
    file.seek(0)
    twins = copy.deepcopy(modules)
    twin = EMA(twins, 0.9)
    twin.load_state_dict(torch.load(file, weights_only=True))
    for each, of in ((ema, modules), (twin, twins)):
        wander(of, torch.Generator().manual_seed(4))
        each.update()
    assert twin.updates == ema.updates == 5
    assert all(torch.equal(twin.mean[name], mean) for name, mean in ema.mean.items())


def test_ema_of_shared_or_no_parameters():
    head = create_head("cosface", 4, 3)
    ema = EMA([nn.Sequential(nn.Identity(), head), head], 0.9)
    start = head.weight.detach().clone()
    with torch.no_grad():
        head.weight += 1
    ema.update()
    with ema.swapped():
        torch.testing.assert_close(head.weight.detach(), start + 0.9)
    torch.testing.assert_close(head.weight.detach(), start + 1)
    EMA([nn.Identity()]).update()


def test_refused_averages():
    with pytest.raises(ValueError, match=r"decay must lie in \[0, 1\); got 1"):
        EMA([network()], 1.0)
    saved = EMA([nn.Linear(3, 2)]).state_dict()
    with pytest.raises(
        ValueError, match=r"0.weight is \(2, 3\) in it and \(2, 4\) here.*settings of the saved run"
    ):
        EMA([nn.Linear(4, 2)]).load_state_dict(saved)
    with pytest.raises(ValueError, match=r"0.bias is \(2,\) in it and missing here"):
        EMA([nn.Linear(3, 2, bias=False)]).load_state_dict(saved)
    with pytest.raises(ValueError, match=r"updates is missing in it and \(\) here"):
        EMA([nn.Linear(3, 2)]).load_state_dict({k: v for k, v in saved.items() if k != "updates"})
