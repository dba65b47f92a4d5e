"""A run that is killed, cut off or interrupted ends where an undisturbed one ends, to the bit."""

import contextlib
import dataclasses
import json
import multiprocessing
import os
import random
import shutil
import signal
import time

import numpy as np
import pytest
import torch
from torch import nn

from hypermargin import files
from hypermargin.data import from_arrays
from hypermargin.training import CheckpointError, Config, Interrupted, RunError, checkpoint, load, train
from hypermargin.training import loop as loop_module
from hypermargin.training.run import locked

FORK = multiprocessing.get_context("fork")
BASE = {
    "dim": 6, "epochs": 3, "batch": 16, "watch": 2, "log": 3, "checkpoint": 2, "keep": 2,
    "augment": "rotate=10,shift=0.1,flip", "tensorboard": False, "threads": 1, "workers": 0,
}  # fmt: skip
# Each holds something that must survive: schedules, momentum, averages, a learned scale, an automatic one.
RUNS = {
    "arcface adamw": {"head": "arcface", "ema": 0.9},
    "a-softmax sgd": {"head": "a-softmax", "optimizer": "sgd", "lr": 0.02, "momentum": 0.9, "lr_schedule": "step"},
    "cosface warmup": {"head": "cosface", "schedule": ["warmup:steps=9,shape=cosine"], "accumulate": 3},
    "normface learned": {"head": "normface", "sampling": "balanced", "lr_schedule": "polynomial"},
    "partial fc": {"head": "arcface", "sample_rate": 0.4, "accumulate": 2, "clip": 0.1},
    "read by workers": {"head": "am-softmax", "memory": 0.0, "workers": 2, "epochs": 2},
    "arcface adacos": {"head": "arcface", "set": {"scale": "adacos-dynamic"}, "sampling": "identities"},
}


class Lazy:
    """Samples that are read when asked for."""

    def __init__(self, samples):
        self.samples, self.shape = samples, samples.shape[1:]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, row):
        return self.samples[row]

    def where(self, row):
        return f"sample {row}"


def data(lazy=False):
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(14, 6, 6)) * 50 + 128
    labels = np.arange(14 * 9) % 14
    images = (centers[labels] + rng.normal(size=(len(labels), 6, 6)) * 25).clip(0, 255).astype(np.uint8)
    found = from_arrays(images, labels, name="blobs")
    return dataclasses.replace(found, samples=Lazy(images)) if lazy else found


def network():
    """With dropout and batch statistics: random state and buffers count."""
    torch.manual_seed(7)
    layers = (nn.Flatten(), nn.Linear(36, 24), nn.BatchNorm1d(24), nn.PReLU(), nn.Dropout(0.2), nn.Linear(24, 6))
    return nn.Sequential(*layers)


def config_of(settings):
    return Config(**{**BASE, **settings})


def run(settings, folder, resume=False):
    source = data(lazy="memory" in settings)
    return train(config_of(settings), folder, resume=resume, data=source, network=network(), quiet=True)


def everything(folder):
    """What a run leaves behind, but for times."""
    last = checkpoint.load_last(folder / "checkpoints", pytest.fail)
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for line in log:
        line.pop("images_per_s", None)
    result = json.loads((folder / "result.json").read_text())
    return last, log, result


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def assert_same_run(one, other, *, kept=True):
    (a, log_a, result_a), (b, log_b, result_b) = everything(one), everything(other)
    assert (a.step, a.state) == (b.step, b.state)
    assert same(a.model, b.model)
    assert same(a.training, b.training)
    assert log_a == log_b
    assert result_a == result_b
    if not kept:
        return
    names = [[p.name for p in checkpoint.steps(folder / "checkpoints")] for folder in (one, other)]
    assert names[0] == names[1]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    done = {}

    def get(settings):
        key = json.dumps(settings, sort_keys=True)
        if key not in done:
            done[key] = tmp_path_factory.mktemp("undisturbed") / "run"
            run(settings, done[key])
        return done[key]

    return get


def in_child(work, *arguments):
    """Run in a forked process, so that it can be killed."""
    child = FORK.Process(target=work, args=arguments)
    child.start()
    return child


def run_in_child(settings, folder, die_at_file=None):
    """`die_at_file`: kill −9 at the n-th operation that makes files certain or moves them."""
    os.setpgid(0, 0)
    if die_at_file is not None:
        left = [die_at_file]

        def counted(real):
            def operation(*args, **kwargs):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)

            return operation

        files.sync = checkpoint.sync = counted(files.sync)
        os.replace = counted(os.replace)
        shutil.rmtree = counted(shutil.rmtree)
        torch.save = counted(torch.save)
    run(settings, folder, resume=True)


@pytest.mark.parametrize(
    "settings",
    [pytest.param(s, id=n, marks=[pytest.mark.slow] if n == "read by workers" else []) for n, s in RUNS.items()],
)
def test_killed_while_files_are_written(tmp_path, undisturbed, settings):
    """One kill −9 after another, each a few file operations after the resume, until the run gets through."""
    expected = undisturbed(settings)  # first: it imports for all the forks
    folder, kills = tmp_path / "run", 0
    rng = random.Random(0)
    while True:
        child = in_child(run_in_child, settings, folder, rng.randint(2, 22))
        child.join(60)
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        kills += 1
        assert kills < 200
    assert kills >= 2
    assert_same_run(expected, folder)


# Between the files too, which the test above does not reach; what is in them it has proved for every setting.
@pytest.mark.parametrize("name", ["arcface adamw", "read by workers"])
def test_killed_at_any_time(tmp_path, undisturbed, name):
    settings = RUNS[name]
    expected = undisturbed(settings)
    folder, killed = tmp_path / "run", []
    rng = random.Random(1)
    while True:
        child = in_child(run_in_child, settings, folder)
        # Time to get at least a step further than the last checkpoint, else this never ends on a busy machine.
        child.join(rng.uniform(0.05, 0.4) * (1 + len(killed) / 8))
        if child.exitcode is not None:
            break
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        killed.append(child.pid)
    for pid in killed:  # a worker of torch's that is orphaned before it has looked for its parent waits for ever
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    assert child.exitcode == 0
    assert_same_run(expected, folder)


def truncated(path):
    os.truncate(path, path.stat().st_size // 2)


def flipped(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def empty(path):
    os.truncate(path, 0)


DAMAGES = truncated, flipped, empty, os.unlink


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, damage) for name in ("training.pt", "manifest.json") for damage in DAMAGES),
        ("model.safetensors", flipped),
        ("state.json", truncated),
    ],
)
def test_a_damaged_checkpoint_is_passed_over(tmp_path, undisturbed, capfd, damage, name):
    settings = RUNS["arcface adamw"]
    folder = tmp_path / "run"
    shutil.copytree(undisturbed(settings), folder)
    last = checkpoint.steps(folder / "checkpoints")[-1]
    damage(last / name)
    train(config_of(settings), folder, resume=True, data=data(), network=network())
    said = capfd.readouterr().err
    assert f"{last} is" in said
    assert "Going back to the one before" in said
    assert_same_run(undisturbed(settings), folder)


def test_all_checkpoints_damaged(tmp_path, undisturbed):
    folder = tmp_path / "run"
    shutil.copytree(undisturbed(RUNS["arcface adamw"]), folder)
    for path in checkpoint.steps(folder / "checkpoints"):
        truncated(path / "training.pt")
    with pytest.raises(CheckpointError, match=r"none of the \d checkpoints in .* can be read"):
        run(RUNS["arcface adamw"], folder, resume=True)
    with pytest.raises(CheckpointError, match="none of the"):
        load(folder, network=network())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_by_signal(tmp_path, undisturbed, monkeypatch, number):
    settings, folder = RUNS["a-softmax sgd"], tmp_path / "run"
    steps = []
    real = loop_module.Trainer._train_step

    def step(self, *batches):
        steps.append(self.step)
        if len(steps) == 5:
            os.kill(os.getpid(), number)
        return real(self, *batches)

    monkeypatch.setattr(loop_module.Trainer, "_train_step", step)
    handlers = signal.getsignal(number)
    with pytest.raises(Interrupted, match=r"stopped at step 5 of \d+, everything saved in"):
        run(settings, folder)
    assert signal.getsignal(number) is handlers
    assert checkpoint.load_last(folder / "checkpoints", pytest.fail).step == 5
    run(settings, folder, resume=True)
    a, b = everything(undisturbed(settings)), everything(folder)
    assert same(a[0].model, b[0].model)
    assert a[1:] == b[1:]


def test_stopped_while_the_disk_is_full(tmp_path, monkeypatch):
    """It must not say that everything is saved."""
    real = loop_module.Trainer._train_step

    def step(self, *batches):
        os.kill(os.getpid(), signal.SIGINT)
        return real(self, *batches)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loop_module.Trainer, "_train_step", step)
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointError, match=r"could not be written: .*No space left on device"):
        run(RUNS["arcface adamw"], tmp_path / "run")


def test_a_full_disk_costs_no_checkpoint(tmp_path, undisturbed, capfd, monkeypatch):
    """Writing fails for a while in mid-run: earlier checkpoints stay, training goes on, the result is the same."""
    settings, folder = RUNS["arcface adamw"], tmp_path / "run"
    real, count = torch.save, [0]

    def full(obj, path, *rest):
        count[0] += 1
        if 3 <= count[0] <= 5:
            with open(path, "wb") as file:
                file.write(b"some")
            raise RuntimeError("PytorchStreamWriter failed writing file data/0: No space left on device")
        return real(obj, path, *rest)

    monkeypatch.setattr(torch, "save", full)
    train(config_of(settings), folder, data=data(), network=network())
    said = capfd.readouterr().err
    assert said.count("could not be written: PytorchStreamWriter failed") == 3
    assert "Training goes on; the next checkpoint is tried again" in said
    assert_same_run(undisturbed(settings), folder, kept=False)
    assert not list((folder / "checkpoints").glob(".writing-*"))


def test_a_disk_that_stays_full_ends_in_an_error(tmp_path, monkeypatch):
    settings, folder = {**RUNS["arcface adamw"], "checkpoint": 0}, tmp_path / "run"
    real, count = torch.save, [0]

    def full(*args):
        count[0] += 1
        if count[0] > 1:
            raise OSError(28, "No space left on device")
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            run(settings, folder)
    assert len(checkpoint.steps(folder / "checkpoints")) == 1
    run(settings, folder, resume=True)  # there is room again


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounting a small file system needs root"
)
def test_a_really_full_file_system(tmp_path, capfd):
    small = tmp_path / "small"
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=120k tmpfs {small} 2>/dev/null") != 0:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        with pytest.raises((CheckpointError, OSError), match="No space left"):
            train(Config(**{**BASE, "epochs": 2, "keep": 9}), small / "run", data=data(), network=network())
        whole = checkpoint.steps(small / "run" / "checkpoints")
        assert whole  # some were written before it was full, and are whole
        for path in whole:
            checkpoint.check(path)
        assert "could not be written" in capfd.readouterr().err
    finally:
        os.system(f"umount -l {small}")


# What --resume refuses


def test_resume_refuses_another_run(tmp_path, undisturbed):
    settings = RUNS["arcface adamw"]
    folder = tmp_path / "run"
    shutil.copytree(undisturbed(settings), folder)
    with pytest.raises(RunError, match=r"holds a run already\. Add --resume"):
        run(settings, folder)
    with pytest.raises(ValueError, match="as it was started, with batch = 16; got 32"):
        run({**settings, "batch": 32}, folder, resume=True)
    other = data()
    other.samples[0] += 1
    with pytest.raises(RunError, match="was started on other data than blobs holds now"):
        train(config_of(settings), folder, resume=True, data=other, network=network(), quiet=True)
    run({**settings, "keep": 1}, folder, resume=True)  # a free setting may change
    with pytest.raises(RunError, match=r"network of your own \(torch.nn.modules.container.Sequential\)"):
        load(folder)


def test_only_one_process_trains_in_a_folder(tmp_path):
    settings, folder = {**RUNS["arcface adamw"], "epochs": 400}, tmp_path / "run"
    child = in_child(run_in_child, settings, folder)
    try:
        for _ in range(200):
            time.sleep(0.05)
            if (folder / "run.json").exists():
                break
        with pytest.raises(RunError, match="is in use: another process trains there"):
            run(settings, folder, resume=True)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.join()
    with locked(folder):  # the lock went with the process
        pass
