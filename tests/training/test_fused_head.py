"""head_optimizer = fused-sgd: FusedSGD in the trainer, in Triton's interpreter where there is no GPU."""

import copy
import os

if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
import torch
from torch import nn

from hypermargin.backends.fused import why_not
from hypermargin.data import from_arrays
from hypermargin.head import MarginHead
from hypermargin.margins import ArcFace
from hypermargin.training import Config, Interrupted, checkpoint, load, train
from hypermargin.training import learner as learner_module
from hypermargin.training import loop as loop_module
from hypermargin.training.optim import create_optimizer, set_rate

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
interpreted = pytest.mark.skipif(bool(why_not(torch.device(DEVICE))), reason=why_not(torch.device(DEVICE)))
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's numpy, at log 0
BASE = {
    "dim": 4, "epochs": 2, "batch": 16, "watch": 4, "log": 2, "checkpoint": 2, "augment": "none", "workers": 0,
    "tensorboard": False, "split": "sample", "validation": 0.0, "test": 0.5, "threads": 1, "device": DEVICE,
    "head_optimizer": "fused-sgd",
}  # fmt: skip


def data():
    rng = np.random.default_rng(0)
    labels = np.arange(64) % 5
    images = (rng.normal(size=(5, 4, 4))[labels] * 50 + 128 + rng.normal(size=(64, 4, 4)) * 20).clip(0, 255)
    return from_arrays(images.astype(np.uint8), labels)


def network():
    torch.manual_seed(7)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.PReLU(), nn.Linear(8, 4))


def run(folder, resume=False, **settings):
    return train(Config(**{**BASE, **settings}), folder, resume=resume, data=data(), network=network(), quiet=True)


def last(folder):
    return checkpoint.load_last(folder / "checkpoints", print)


@interpreted
def test_a_run_is_that_of_sgd(tmp_path, monkeypatch, capsys):
    """The same weights, average and momentum to rounding; only the length of the gradient may not be used."""
    alike = {"optimizer": "sgd", "lr": 0.05, "clip": 0.0, "ema": 0.9, "schedule": ["warmup:steps=3"]}
    run(tmp_path / "fused", **alike)
    run(tmp_path / "plain", **alike, head_optimizer=None)
    fused, plain = last(tmp_path / "fused"), last(tmp_path / "plain")
    assert fused.step == plain.step == 6
    for name, value in plain.model.items():
        torch.testing.assert_close(fused.model[name], value, rtol=1e-4, atol=1e-5, msg=name)
    for name, value in plain.training["ema"].items():
        torch.testing.assert_close(fused.training["ema"][name], value, rtol=1e-4, atol=1e-5, msg=name)
    theirs, ours = (saved.training["optimizer"] for saved in (plain, fused))
    number = {
        kind: next(g["params"][0] for g in state["param_groups"] if g["name"] == "head weight")
        for kind, state in (("plain", theirs), ("fused", ours))
    }
    torch.testing.assert_close(
        ours["state"][number["fused"]]["momentum_buffer"],
        theirs["state"][number["plain"]]["momentum_buffer"], rtol=1e-3, atol=1e-5,
    )  # fmt: skip
    assert load(tmp_path / "fused", network=network()).head.fused_optimizer is None


@interpreted
def test_a_stopped_run_ends_the_same(tmp_path, monkeypatch, capsys):
    """Beside AdamW, whose rates are not for SGD, with clipping of all the rest; it says so."""
    config = Config(**BASE)
    train(config, tmp_path / "whole", data=data(), network=network())
    said = capsys.readouterr().err
    assert "head by triton" in said
    assert "class weights: changed within the backward by FusedSGD; clip = 5 is for all other gradients" in said
    step = loop_module.Trainer._train_step

    def stopped(self, *arguments):
        if self.step == 5:
            raise Interrupted
        step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop_module.Trainer, "_train_step", stopped)
        with pytest.raises(Interrupted):
            run(tmp_path / "run")
    assert last(tmp_path / "run").step == 4
    run(tmp_path / "run", resume=True)
    whole, again = last(tmp_path / "whole"), last(tmp_path / "run")
    assert all(torch.equal(whole.model[name], again.model[name]) for name in whole.model)
    groups = {group["name"]: group for group in whole.training["optimizer"]["param_groups"]}
    assert groups["head weight"]["base_lr"] == 0.1
    assert groups["head weight"]["weight_decay"] == 5e-4
    assert groups["backbone weights"]["base_lr"] == 0.002
    start = MarginHead(4, 5, ArcFace(), scale=1.0).weight
    assert not torch.equal(whole.model["head.weight"], start)


@interpreted
def test_the_head_alone(tmp_path):
    """No other optimiser is needed where nothing else is trained."""
    rng = np.random.default_rng(0)
    labels = np.arange(64) % 5
    vectors = (rng.normal(size=(5, 4))[labels] + 0.1 * rng.normal(size=(64, 4))).astype(np.float32)
    config = Config(**{**BASE, "optimizer": "sgd", "lr": 2.0, "clip": 0.0})
    found = train(config, tmp_path / "run", data=from_arrays(vectors, labels), quiet=True)
    assert found.metrics["test"]["accuracy"] > 0.9


def test_one_rate_and_one_state_for_both():
    model, head = network(), MarginHead(4, 5, ArcFace(), scale=8.0, bias=True)
    settings = {"name": "adamw", "lr": 0.01, "weight_decay": 0.1, "head_lr": 0.3, "head_optimizer": "fused-sgd"}
    optimizer = create_optimizer(model, head, **settings)
    assert [g["name"] for g in optimizer.param_groups] == [
        "backbone weights", "backbone vectors", "head vectors", "head weight",
    ]  # fmt: skip
    set_rate(optimizer, 0.5)
    assert head.fused_optimizer.param_groups[0]["lr"] == 0.15
    head.fused_optimizer.state[head.weight]["momentum_buffer"] = torch.ones(5, 4)
    model(torch.ones(2, 4, 4)).sum().backward()
    optimizer.step()
    again, other = network(), MarginHead(4, 5, ArcFace(), scale=8.0, bias=True)
    copied = create_optimizer(again, other, **settings)
    copied.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert copied.state[other.weight]["momentum_buffer"].tolist() == torch.ones(5, 4).tolist()
    assert other.fused_optimizer.param_groups[0] is copied.param_groups[-1]
    set_rate(copied, 0.25)
    assert other.fused_optimizer.param_groups[0]["lr"] == pytest.approx(0.075)
    again.load_state_dict(model.state_dict())
    for module, each in ((model, optimizer), (again, copied)):
        set_rate(each, 1.0)
        each.zero_grad()
        module(torch.ones(2, 4, 4)).sum().backward()
        each.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    frozen = MarginHead(4, 5, ArcFace(), scale=8.0).requires_grad_(False)
    with pytest.raises(ValueError, match=r"needs a head.weight with requires_grad=True"):
        create_optimizer(network(), frozen, **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sample_rate": 0.5}, "is for all classes, and sample_rate = 0.5. Leave head_optimizer out"),
        ({"accumulate": 2}, "changes the class weights at every batch, and accumulate = 2 .* Set accumulate = 1"),
        ({"precision": "float16"}, "steps before the scaler of precision = float16 .* Set precision = bfloat16"),
        ({"set": {"backend": "dense"}}, "is part of the backend triton, and set has backend = 'dense'"),
        ({"schedule": ["alternate:angle_steps=1,magnitude_steps=1"], "head": "a-softmax",
          "set": {"unit_weight": False}}, "schedule has a penalty on the class weights"),
        ({"head": "vpl"}, "changes the class rows themselves, and vpl has others in its loss"),
        ({"head_optimizer": "sgd"}, "head_optimizer must be one of 'fused-sgd'; got 'sgd'"),
    ],
)  # fmt: skip
@interpreted
def test_refused_before_training(tmp_path, settings, words):
    with pytest.raises(ValueError, match=words):
        run(tmp_path / "run", **settings)
    assert not (tmp_path / "run" / "config.toml").exists()


def test_refused_where_triton_cannot_run(tmp_path, monkeypatch):
    monkeypatch.setattr("hypermargin.training.fused_head.why_not", lambda device: "it runs on NVIDIA GPUs")
    with pytest.raises(ValueError, match="fused-sgd is part of the backend triton, which cannot run on device = "):
        run(tmp_path / "run")


@interpreted
def test_refused_by_several_processes(tmp_path, monkeypatch):
    check = learner_module.check_fused
    monkeypatch.setattr(
        learner_module, "check_fused", lambda config, head, device, _: check(config, head, device, 2)
    )
    with pytest.raises(ValueError, match=r"trains in one process, and there are 2. Leave head_optimizer out"):
        run(tmp_path / "run")
