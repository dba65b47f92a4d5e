"""Recorded steps. Without a GPU a recording is the step itself; the graph is tested in core/test_cuda.py."""

import dataclasses
import json
import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from hypermargin.data import from_arrays
from hypermargin.training import Config, DivergedError, Interrupted, checkpoint, load, recorded, train
from hypermargin.training import loop as loop_module

BASE = {
    "dim": 6, "epochs": 3, "batch": 16, "watch": 2, "log": 3, "augment": "rotate=10,shift=0.1,flip", "threads": 1,
    "workers": 0, "tensorboard": False, "checkpoint": 2, "split": "sample",
}  # fmt: skip
RUNS = {
    "adamw, averages": {"ema": 0.9},
    "sgd, warm-up": {"optimizer": "sgd", "lr": 0.05, "schedule": ["warmup:steps=9"]},
    "learned s": {"head": "normface", "lr_schedule": "step"},
    "bfloat16": {"precision": "bfloat16", "model": "mlp", "model_set": {"widths": []}},
}


def data():
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(7, 8, 8)) * 50 + 128
    labels = np.arange(7 * 18) % 7
    images = (centers[labels] + rng.normal(size=(len(labels), 8, 8)) * 25).clip(0, 255).astype(np.uint8)
    return from_arrays(images, labels)


@pytest.fixture
def on_the_cpu(monkeypatch):
    """Replay by calling again; count the replays."""
    calls = []

    def record(body, pool):
        def replay():
            calls.append(1)
            return body()

        body()  # a recording runs Python's part of the step
        return replay

    monkeypatch.setattr(recorded, "record", record)
    monkeypatch.setattr(recorded, "warm_up", lambda body, device: [body() for _ in range(3)])
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(loop_module, "why_not", lambda *_, **__: None)
    return calls


def weights(folder):
    trained = load(folder, "last")
    return {**trained.network.state_dict(), **{f"head.{k}": v for k, v in trained.head.state_dict().items()}}


def log(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("images_per_s", "time")} for line in lines]


@pytest.mark.parametrize("name", RUNS)
def test_a_recorded_run_is_the_same_run(tmp_path, request, name):
    config = Config(**{**BASE, **RUNS[name]})
    train(config, tmp_path / "eager", data=data(), quiet=True)
    calls = request.getfixturevalue("on_the_cpu")
    train(config, tmp_path / "recorded", data=data(), quiet=True)
    assert len(calls) > 10  # the last batch of an epoch is smaller, and stays eager
    eager, replayed = weights(tmp_path / "eager"), weights(tmp_path / "recorded")
    for key, value in eager.items():  # rates are float32 in the one and float64 in the other
        torch.testing.assert_close(replayed[key], value, rtol=2e-3, atol=2e-5)
    for one, other in zip(log(tmp_path / "eager"), log(tmp_path / "recorded"), strict=True):
        assert one.keys() == other.keys()
        assert one["step"] == other["step"]
        assert other.get("loss") == pytest.approx(one.get("loss"), rel=1e-3)
    states = [checkpoint.load_last(tmp_path / kind / "checkpoints", print) for kind in ("eager", "recorded")]
    groups = [state.training["optimizer"]["param_groups"] for state in states]
    assert groups[0] == groups[1]  # whoever resumes need not know how the steps were taken


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("stop_at", [3, 8])
def test_a_recorded_run_that_was_stopped_ends_the_same(tmp_path, monkeypatch, on_the_cpu, name, stop_at):
    config = Config(**{**BASE, **RUNS[name]})
    train(config, tmp_path / "whole", data=data(), quiet=True)
    step = loop_module.Trainer._train_step

    def stopped(self, *arguments):
        step(self, *arguments)
        if self.step == stop_at:
            self._settle()
            self.step += 1
            self.position += 1
            raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(loop_module.Trainer, "_train_step", stopped)
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run", data=data(), quiet=True)
    train(config, tmp_path / "run", resume=True, data=data(), quiet=True)
    whole, run = weights(tmp_path / "whole"), weights(tmp_path / "run")
    assert all(torch.equal(whole[key], run[key]) for key in whole)
    assert log(tmp_path / "whole") == log(tmp_path / "run")


class Blow(nn.Module):
    """A network whose features overflow at one of its training calls, by a buffer, as a recording needs."""

    def __init__(self, at):
        super().__init__()
        self.layer, self.at = nn.Linear(64, 6), at
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        out = self.layer(x.flatten(1))
        if self.training:
            self.calls += 1
            out = torch.where(self.calls == self.at, math.inf, 1.0) * out
        return out


def test_nan_does_not_reach_a_weight(tmp_path, on_the_cpu, monkeypatch):
    """Found some steps later, it is reported where it was, and the weights are those of the step before."""
    seen = {}
    diverged = loop_module.diverged

    def look(self, step, *rest):
        seen[step] = self.step, [p.clone() for p in self.network.parameters()]
        return diverged(self, step, *rest)

    settle = loop_module.Trainer._settle
    monkeypatch.setattr(loop_module, "diverged", look)
    # As on a GPU that is five steps behind.
    monkeypatch.setattr(
        loop_module.Trainer, "_settle", lambda self, wait=True: settle(self) if wait or self.step % 6 == 5 else None
    )
    config = Config(**{**BASE, "checkpoint": 0, "augment": "none", "log": 50})
    with pytest.raises(DivergedError, match=r"at step 3 \(epoch 1\)"):
        train(config, tmp_path / "run", data=data(), network=Blow(at=3), quiet=True)
    ((step, (found_at, after)),) = seen.items()
    assert step == 2
    assert found_at > step
    assert all(p.isfinite().all() for p in after)
    assert not list((tmp_path / "run" / "checkpoints").glob("step-*"))


class Frozen(nn.Module):
    """A network that asks Python for a random number, which a recording would freeze."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 6)

    def forward(self, x):
        return self.layer(x.flatten(1)) * (1 + 0.1 * random.random())


def test_what_a_recording_would_freeze_is_not_recorded(tmp_path, on_the_cpu, capsys):
    config = Config(**{**BASE, "epochs": 1})
    train(config, tmp_path / "run", data=data(), network=Frozen())
    assert not on_the_cpu
    assert "recording failed, the network draws random numbers on the CPU" in capsys.readouterr().err
    with pytest.raises(ValueError, match="cuda_graphs: this step cannot be recorded: the network draws"):
        train(
            dataclasses.replace(config, cuda_graphs=True),
            tmp_path / "asked",
            data=data(),
            network=Frozen(),
            quiet=True,
        )


def test_cuda_graphs_where_there_are_none(tmp_path):
    with pytest.raises(ValueError, match="cuda_graphs: the steps cannot be recorded: device is cpu"):
        train(Config(**BASE, cuda_graphs=True), tmp_path / "run", data=data(), quiet=True)
