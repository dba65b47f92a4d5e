"""`train` on several processes: the result does not depend on how many there are, nor on when that changes."""

import contextlib
import copy
import hashlib
import json
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import team
import torch
from team import assert_close, final, network
from torch import nn

import hypermargin as hm
from hypermargin import files
from hypermargin.training import Config, checkpoint, dcp, load, loop, train
from hypermargin.training.evaluation import Parts, kept_promises
from hypermargin.training.ranks import Ranks, SyncedBatchNorm, least_rows, sync_batch_norm
from hypermargin.training.run import read_split

# Each holds something by class, or in common, that must find its way: momentum, averages, a bias, a learned s or m.
RUNS = {
    "arcface adamw averaged": {"head": "arcface", "ema": 0.9},
    "normface learned sgd accumulated": {"head": "normface", "optimizer": "sgd", "accumulate": 2, "clip": 0.5},
    "partial fc adamw": {"head": "cosface", "sample_rate": 0.5, "clip": 0.5, "set": {"bias": True}},
    "partial fc": {"head": "arcface", "optimizer": "sgd", "lr": 0.02, "sample_rate": 0.5},
    "softmax": {"head": "softmax", "set": {"bias": True}, "split": "sample"},
    "cosface learned m": {"head": "cosface", "set": {"learn_margin": True}},
    "kappaface averaged": {"head": "kappaface", "ema": 0.9},
    "vpl partial fc": {"head": "vpl", "sample_rate": 0.5, "set": {"after": 2.0}},
    "vs": {"head": "vs", "split": "sample"},
    "nearest of three averaged": {"head": "subcenter-arcface", "set": {"scale": 8.0}, "ema": 0.9},
    "soft-triple sampled sgd": {
        "head": "soft-triple",
        "optimizer": "sgd",
        "sample_rate": 0.5,
        "set": {"centers": 2, "together": 0.0},
    },
    "adacos balanced": {"head": "arcface", "set": {"scale": "adacos-dynamic"}, "sampling": "balanced"},
}
SLOW = (
    "normface learned sgd accumulated", "cosface learned m", "adacos balanced", "vs", "partial fc",
    "kappaface averaged", "nearest of three averaged",
)  # fmt: skip
over_runs = pytest.mark.parametrize(
    "settings",
    [pytest.param(s, id=name, marks=[pytest.mark.slow] if name in SLOW else []) for name, s in RUNS.items()],
)


def in_ranks(world, settings, folder, *arguments, **options):
    return team.ranks(world, "team", "run", settings, folder, *arguments, **options)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same run by one process, once."""
    done = {}

    def get(settings):
        key = json.dumps(settings, sort_keys=True)
        if key not in done:
            done[key] = tmp_path_factory.mktemp("alone") / "run"
            team.run(settings, done[key])
        return done[key]

    return get


@over_runs
def test_as_alone(settings, alone, tmp_path):
    """Stopped by a signal to one rank of four, and gone on with by two: as by one process without a break."""
    folder = tmp_path / "run"
    stopped = in_ranks(4, settings, folder, False, (2, 1))
    assert all(re.match(r"Interrupted: stopped at step \d+ of \d+, everything saved", s) for s in stopped), stopped
    metrics = in_ranks(2, settings, folder, True)
    assert metrics[0] == metrics[1]
    assert_close(alone(settings), folder)
    results = [json.loads((each / "result.json").read_text()) for each in (folder, alone(settings))]
    assert metrics[0]["test"] == pytest.approx(results[1]["metrics"]["test"], abs=0.02)
    assert results[0]["step"] == results[1]["step"]  # they choose alike
    assert results[0]["why"].split(",")[0] == results[1]["why"].split(",")[0]


@pytest.fixture(scope="module")
def by_four(tmp_path_factory):
    """A run of four ranks that was stopped in the middle, and its settings."""
    settings = RUNS["arcface adamw averaged"]
    folder = tmp_path_factory.mktemp("four") / "run"
    in_ranks(4, settings, folder, False, (0, 4))
    return folder, settings


def copy_of(folder, tmp_path):
    there = tmp_path / "copy"
    shutil.copytree(folder, there)
    return there


@pytest.mark.parametrize("world", [1, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_resumed_by_any_number(world, by_four, alone, tmp_path):
    folder, settings = copy_of(by_four[0], tmp_path), by_four[1]
    if world == 1:
        team.run(settings, folder, True)
    else:
        in_ranks(world, settings, folder, True)
    assert_close(alone(settings), folder)


def test_one_process_hands_over_to_three(alone, tmp_path):
    """The other way round: a checkpoint of one process, each rank taking its classes."""
    settings = RUNS["arcface adamw averaged"]
    folder = copy_of(alone(settings), tmp_path)
    for path in checkpoint.steps(folder / "checkpoints")[3:]:
        shutil.rmtree(path)
    in_ranks(3, settings, folder, True)
    assert_close(alone(settings), folder)


CONVOLUTIONS = {"head": "arcface", "model": "lenet++", "model_set": {"width": 4}, "ema": 0.9}


@pytest.fixture(scope="module")
def convolutions_by_three(tmp_path_factory):
    """Runs of three ranks that were stopped in the middle; channels_last in memory, rows in the files."""
    done = {}

    def get(optimizer):
        if optimizer not in done:
            done[optimizer] = tmp_path_factory.mktemp("three") / "run"
            in_ranks(3, {**CONVOLUTIONS, "optimizer": optimizer, "lr": 0.002}, done[optimizer], False, (2, 4))
        return done[optimizer]

    return get


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("sgd", marks=pytest.mark.slow)])
@pytest.mark.parametrize("world", [2, *(pytest.param(w, marks=pytest.mark.slow) for w in (1, 4))])
def test_moments_stay_with_their_weights(world, optimizer, convolutions_by_three, alone, tmp_path):
    settings = {**CONVOLUTIONS, "optimizer": optimizer, "lr": 0.002}
    folder = copy_of(convolutions_by_three(optimizer), tmp_path)
    assert checkpoint.load_last(folder / "checkpoints", print).step < final(alone(settings))[0].step
    if world == 1:
        team.run(settings, folder, True)
    else:
        in_ranks(world, settings, folder, True)
    assert_close(alone(settings), folder)


def test_killed(alone, tmp_path):
    """kill -9 of one rank: the others say so soon, and two go on from the last checkpoint to the same end."""
    settings = RUNS["arcface adamw averaged"]
    folder = tmp_path / "run"
    said = in_ranks(3, settings, folder, kill=(1, folder / "checkpoints" / "step-00000004"), timeout=20)
    assert said[1] is None
    for rank in (0, 2):
        assert re.match(rf"LostRankError: rank {rank} of 3 lost the others: one of them ended", said[rank]), said
    before = checkpoint.load_last(folder / "checkpoints", print).step
    assert 4 <= before < final(alone(settings))[0].step
    in_ranks(2, settings, folder, True)
    assert_close(alone(settings), folder)


def test_sigterm_to_all(alone, tmp_path):
    """As torchrun passes it on: one checkpoint, at the same step for all."""
    settings, folder = RUNS["arcface adamw averaged"], tmp_path / "run"
    said = in_ranks(3, settings, folder, False, (None, 3))
    assert all(re.match(r"Interrupted: stopped at step \d+ of \d+, everything saved", words) for words in said), (
        said
    )
    assert len(set(said)) == 1
    in_ranks(2, settings, folder, True)
    assert_close(alone(settings), folder)


def test_a_second_ctrl_c(alone, tmp_path):
    """The one that is told ends at once, without saving; the others say that they lost it."""
    settings, folder = RUNS["arcface adamw averaged"], tmp_path / "run"
    said = in_ranks(3, settings, folder, False, (1, 3, signal.SIGINT, signal.SIGINT))
    assert said[1] == "KeyboardInterrupt: "
    for rank in (0, 2):
        assert re.match(rf"LostRankError: rank {rank} of 3 lost the others: one of them ended", said[rank]), said
    assert checkpoint.load_last(folder / "checkpoints", print).step == 2
    in_ranks(2, settings, folder, True)
    assert_close(alone(settings), folder)


def dying(folder, who, operations, resume=True):
    """A rank that is killed, as by kill -9, at its n-th operation that writes, moves or removes files."""
    if torch.distributed.get_rank() == who:
        left = [operations]

        def counted(real):
            def operation(*args, **options):
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **options)

            return operation

        files.sync = checkpoint.sync = counted(files.sync)
        os.replace, shutil.rmtree = counted(os.replace), counted(shutil.rmtree)
        torch.save, dcp.write = counted(torch.save), counted(dcp.write)
    return team.run(RUNS["arcface adamw averaged"], folder, resume)


# Rank 1 before and after its part of the first checkpoint; rank 0 before it is moved into place and afterwards.
@pytest.mark.parametrize(
    ("who", "operations"),
    [(1, 1), (0, 14), *(pytest.param(who, n, marks=pytest.mark.slow) for who in (0, 1) for n in range(2, 26, 3))],
)
def test_killed_during_a_save(who, operations, alone, tmp_path):
    folder = tmp_path / "run"
    said = team.ranks(3, "test_ranks", "dying", folder, who, operations, timeout=20)
    for rank in {0, 1, 2} - {who}:
        if said[who] is None:
            assert re.match(rf"LostRankError: rank {rank} of 3 lost the others: one of them ended", said[rank]), (
                said
            )
    for path in checkpoint.steps(folder / "checkpoints"):
        checkpoint.check(path)  # each is whole
    in_ranks(2, RUNS["arcface adamw averaged"], folder, True)
    assert_close(alone(RUNS["arcface adamw averaged"]), folder)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads have names in Linux's /proc")
def test_nothing_holds_the_group(tmp_path):
    """A thread of gloo that is alive when the interpreter goes may abort a process that has done its work."""
    with contextlib.ExitStack() as stack:
        free = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in free:
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in free]
    said = team.ranks(3, "test_ranks", "let_go", tmp_path, ports, wait=180)
    for rank, (found, *left) in enumerate(said):
        assert [words.partition(":")[0] for words in found] == [
            "finished", "finished", "Interrupted", "KeyError" if rank == 1 else "LostRankError",
        ]  # fmt: skip
        assert left == [[], [], [], []]


def let_go(folder, ports):
    """Runs in a group of the caller's and in their own, finished, stopped, failed; gloo's threads after each."""
    found, left = [], []

    def ended(name, *arguments):
        os.environ["MASTER_PORT"] = str(ports[len(left) - 1])  # each meets anew
        error = None
        try:
            team.run({"head": "arcface", "epochs": 1}, folder / name, *arguments)
            found.append("finished")
        except BaseException as problem:
            error = problem  # kept until the threads are counted, as by a caller who does so
            found.append(f"{type(error).__name__}: {error}")
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
        left.append([name for name in names if "gloo" in name])

    ended("theirs")
    os.environ.update(MASTER_ADDR="127.0.0.1", WORLD_SIZE="3", RANK=str(team.RANK[0]))
    ended("own")
    ended("stopped", False, (None, 1))
    if team.RANK[0] == 1:

        def fail(*_):
            raise KeyError("a rank that fails")

        loop.Trainer._train_step = fail
    ended("failed")
    return found, *left


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_exit_codes_under_torchrun(fails, tmp_path):
    """Forty runs from Python, by three processes that take the time between two threads to the extreme."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", script]
    for turn in range(3 if fails else 40):
        done = command([*torchrun, tmp_path / f"run-{turn}", int(fails)])
        assert done.returncode == int(fails), (turn, done.stderr)
        assert ("a rank that fails at the end" in done.stderr) == fails
        assert "SIGABRT" not in done.stderr


SCRIPT = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(Path(team.__file__).parent)!r})
import team
sys.setswitchinterval(100)  # whoever waits for the interpreter waits until the end
team.run({{"head": "arcface", "epochs": 1}}, Path(sys.argv[1]))
if sys.argv[2] == "1" and os.environ["RANK"] == "2":
    raise RuntimeError("a rank that fails at the end")
"""


@pytest.mark.slow
def test_a_rank_that_never_answers(tmp_path):
    """Not dead, but not there: the timeout ends the wait."""
    said = team.ranks(2, "test_ranks", "absent", tmp_path / "run", timeout=2)
    assert re.match(
        r"LostRankError: rank 0 of 2 lost the others: one of them ended, or did not answer for 2 s", said[0]
    )


def absent(folder):
    if torch.distributed.get_rank() == 1:
        time.sleep(4)
        return None
    return team.run({"timeout": 2.0}, folder)


def test_the_checkpoint_is_torchs(by_four, tmp_path):
    """Anyone's tools for torch.distributed.checkpoint read it, and find what `load` finds."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    path = checkpoint.steps(by_four[0] / "checkpoints")[-1]
    dcp_to_torch_save(path, tmp_path / "whole.pt")
    theirs = torch.load(tmp_path / "whole.pt")
    ours = checkpoint.load(path)
    head = load(by_four[0], "last", network=network()).head
    flat = {key: value for key, value in theirs.items() if key.startswith(("head", "network"))}
    assert flat.keys() == ours.model.keys()
    assert all(torch.equal(value, ours.model[key]) for key, value in flat.items())
    assert torch.equal(theirs["ema.1.weight"], head.weight.detach())
    assert head.weight.shape == (head.classes, 6)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (self.path,))


@pytest.mark.parametrize("how", ["cut off", "changed", "missing", "a program", "a class", "a file elsewhere"])
def test_a_damaged_slice(how, by_four, tmp_path):
    """It is noticed, nothing is run, and the checkpoint before is used."""
    folder = copy_of(by_four[0], tmp_path)
    last, before = reversed(checkpoint.steps(folder / "checkpoints")[-2:])
    slice_, listed = last / "__2_0.distcp", last / ".metadata"
    if how == "cut off":
        slice_.write_bytes(slice_.read_bytes()[:-9])
    elif how == "changed":
        slice_.write_bytes(slice_.read_bytes()[:-9] + b"123456789")
    elif how == "missing":
        slice_.unlink()
    else:
        found = pickle.loads(listed.read_bytes())
        if how == "a file elsewhere":
            piece = next(iter(found.storage_data.values()))
            piece.relative_path = "../../../elsewhere"
        elif how == "a program":
            found.planner_data = Evil(str(tmp_path / "was here"))
        written = pickle.dumps(found, protocol=4)
        if how == "a class":  # first, a method of a class of torch's is replaced
            info = b"ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n"
            change = info + b"(N}(X\x06\x00\x00\x00__eq__" + info + b"utb0"
            written = written[:2] + change + written[2:].removeprefix(written[2:11])
        listed.write_bytes(written)
        manifest = json.loads((last / "manifest.json").read_text())
        digest = hashlib.sha256(listed.read_bytes()).hexdigest()
        manifest["files"][".metadata"] = {"bytes": listed.stat().st_size, "sha256": digest}
        (last / "manifest.json").write_text(json.dumps(manifest))
    said = []
    found = checkpoint.load_last(folder / "checkpoints", said.append)
    assert f"step-{found.step:08d}" == before.name
    assert len(said) == 1
    assert said[0].startswith(f"checkpoint {last}")
    assert not (tmp_path / "was here").exists()
    checkpoint.load(checkpoint.steps(by_four[0] / "checkpoints")[-1])  # torch's classes are as they were


def test_a_disk_that_is_full_for_one_rank(tmp_path):
    """No checkpoint is half of it; training goes on and says so in the end."""
    said = team.ranks(2, "test_ranks", "with_a_full_disk", tmp_path / "run")
    for words in said:
        assert re.match(r"CheckpointError: checkpoint .*step-\d+ could not be written: .*No space left", words), (
            said
        )
    assert [p.name for p in (tmp_path / "run" / "checkpoints").glob("*")] == []


def with_a_full_disk(folder):
    if torch.distributed.get_rank() == 1:

        def full(*_):
            raise OSError(28, "No space left on device")

        dcp.FileSystemWriter.write_data = full
    return team.run(RUNS["softmax"], folder)


def test_batch_normalisation_of_all_ranks():
    assert team.ranks(3, "test_ranks", "compare_batch_norm") == ["same"] * 3


def compare_batch_norm():
    """Three ranks, one without rows, against torch's layer on all rows; gradients and running statistics too."""
    rank, world = torch.distributed.get_rank(), 3
    for momentum, shape in ((0.1, (5,)), (None, (5, 3, 2))):
        torch.manual_seed(1)
        x, up = torch.randn(7, *shape, dtype=torch.float64), torch.randn(7, *shape, dtype=torch.float64)
        kind = nn.BatchNorm1d if len(shape) == 1 else nn.BatchNorm2d
        whole = kind(5, momentum=momentum).double()
        nn.init.normal_(whole.weight)
        own = SyncedBatchNorm.like(copy.deepcopy(whole))
        mine = [slice(0, 3), slice(3, 3), slice(3, 7)][rank]
        for _ in range(2):
            a, b = x.clone().requires_grad_(), x[mine].clone().requires_grad_()
            one, other = whole(a), own(b)
            torch.testing.assert_close(other, one[mine])
            (one * up).sum().backward()
            (other * up[mine]).sum().backward()
            torch.testing.assert_close(b.grad, a.grad[mine])
        for p in (own.weight, own.bias):
            torch.distributed.all_reduce(p.grad)
        torch.testing.assert_close(own.weight.grad, whole.weight.grad)
        torch.testing.assert_close(own.bias.grad, whole.bias.grad)
        for name, buffer in whole.named_buffers():
            torch.testing.assert_close(getattr(own, name), buffer)
        torch.testing.assert_close(own.eval()(x), whole.eval()(x))
        assert world == torch.distributed.get_world_size()
    return "same"


def test_the_command_under_torchrun(tmp_path, run):
    """As a user starts it: two processes, then one; what comes of it is a run as any other."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 6
    np.savez(
        tmp_path / "data.npz", samples=rng.normal(size=(6, 8))[labels] + rng.normal(size=(60, 8)), labels=labels
    )
    common = ["hypermargin", "train", "--out", tmp_path / "run"]
    settings = ["--data", tmp_path / "data.npz", "--epochs", "2", "--no-tensorboard", "--split", "sample"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    first = command([*torchrun, *common, *settings, "--shard-classes"])
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("test: ") == 1  # one speaks for all
    assert "shard_classes = true" in (tmp_path / "run" / "config.toml").read_text()
    code, out, err = run(*common[1:], "--resume")
    assert code == 0, err
    assert out == first.stdout
    assert hm.load(tmp_path / "run").predict_proba(np.zeros((3, 8), np.float32)).shape == (3, 6)


def test_an_error_of_one_is_told_once(tmp_path):
    """All ranks end; the message is that of the rank it happened on."""
    (tmp_path / "run.json").write_text("{}")
    said = team.ranks(2, "test_ranks", "told", tmp_path)
    assert "holds a run already. Add --resume" in said[0]
    assert said[1] == ""


def told(folder):
    from hypermargin.training.ranks import of_another

    try:
        return team.run({}, folder)
    except RuntimeError as error:
        return "" if of_another(error) else str(error)


def command(words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=300, check=False, env=environment
    )


@pytest.mark.gpu
def test_on_one_gpu(tmp_path):
    team.on_the_gpu(tmp_path)


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("sgd", marks=pytest.mark.slow)])
def test_float16(optimizer, tmp_path):
    """Where one rank's slice overflows, all leave the step out: they stay together, and learn."""
    said = in_ranks(2, {"precision": "float16", "optimizer": optimizer, "clip": 0.0, "epochs": 6}, tmp_path / "run")
    assert said[0] == said[1]
    losses = [json.loads(line).get("loss") for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = [loss for loss in losses if loss]
    assert losses[-1] < losses[0]


def test_other_data_on_one_rank(tmp_path):
    said = team.ranks(2, "test_ranks", "with_other_data", tmp_path / "run")
    assert all(words.startswith("RunError: blobs is not the same for all processes") for words in said), said


def with_other_data(folder):
    found = team.data()
    if torch.distributed.get_rank() == 1:
        found.labels[:2] = found.labels[:2][::-1].copy()
    return train(Config(**team.BASE), folder, data=found, network=network(), quiet=True).metrics


def test_another_folder_on_one_rank(tmp_path):
    """The same name on two machines that share no disk."""
    said = team.ranks(2, "test_ranks", "in_a_folder_of_its_own", tmp_path)
    assert all(words.startswith("RunError: run is not the same folder for all processes") for words in said), said


def in_a_folder_of_its_own(folder):
    there = folder / str(torch.distributed.get_rank())
    there.mkdir()
    os.chdir(there)
    return team.run({}, Path("run"))


class Activated(nn.BatchNorm1d):
    """As timm has them."""

    def forward(self, x):
        return torch.relu(super().forward(x))


def test_a_layer_derived_from_batch_normalisation_stays_what_it_is():
    network = nn.Sequential(nn.BatchNorm1d(3), nn.Sequential(Activated(3)))
    two, cpu = Ranks(0, 2), torch.device("cpu")
    made = sync_batch_norm(network, two, cpu)
    assert [type(layer) for layer in (made[0], made[1][0])] == [SyncedBatchNorm, Activated]
    assert least_rows(made, two) == 4  # it needs two rows on each rank
    assert least_rows(made[0], two) == 2


def test_alone_everything_is_said_to_oneself():
    one = Ranks()
    assert one.share(np.arange(5)).tolist() == [0, 1, 2, 3, 4]
    assert one.sums([1.0, 2.0]) == [1.0, 2.0]
    assert one.gathered("x") == ["x"]
    assert one.lead(lambda: 3) == one.together(lambda: 3) == 3
    assert not one.any(False)


def test_the_command_asks_for_a_folder(run, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, said = run("train")
    assert code == 2
    assert "several processes need --out" in said


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sample_rate": 0.0}, r"sample_rate must lie in \(0, 1\]"),
        ({"sample_rate": 2.0}, r"sample_rate must lie in \(0, 1\]"),
        ({"timeout": 0.0}, "timeout must be"),
    ],
)
def test_settings_that_cannot_be(settings, words):
    with pytest.raises(ValueError, match=words):
        Config(**settings)


@pytest.mark.slow
def test_centers_are_handed_over_from_three_to_one_and_back(alone, tmp_path):
    """Each slice of a checkpoint holds whole classes, however many rows torch would put there."""
    settings = RUNS["nearest of three averaged"]
    folder = tmp_path / "run"
    in_ranks(3, settings, folder, False, (0, 4))
    last, trained = final(folder)
    assert last.model["head.weight"].shape == trained.head.weight.shape == (3 * trained.head.classes, 6)
    other = copy_of(folder, tmp_path)
    team.run(settings, folder, True)
    in_ranks(2, settings, other, True)
    for each in (folder, other):
        assert_close(alone(settings), each)


def test_centers_are_not_taken_for_the_prototypes_of_classes(tmp_path):
    settings = {"head": "arcface", "set": {"centers": 2, "scale": 8.0}, "epochs": 1, "shard_classes": None}
    team.run(settings, tmp_path / "run")
    trained = load(tmp_path / "run", network=team.network())
    parts = Parts(
        trained, team.data(), read_split(tmp_path / "run" / "split.npz", len(team.data()), len(team.data().classes))
    )
    with pytest.raises(ValueError, match="2 centers per class, so no class has one prototype"):
        kept_promises(parts)
