"""What strikes one process: signals, a full disk, a clock that goes back, images that change, two resumes at once.

The law: nothing that was whole before is lost, the error is in words, and a resume ends as the undisturbed run.
tests/training/test_resume.py has the kills, and tests/data/test_workers.py those of the processes that read.
"""

import contextlib
import itertools
import os
import random
import resource
import signal
import sys
import time

import pytest
from PIL import Image
from test_resume import BASE, RUNS, assert_same_run, data, in_child, network, run, undisturbed  # noqa: F401

from hypermargin import files
from hypermargin.data import DataError, read_folder
from hypermargin.training import Config, Interrupted, RunError, checkpoint, train
from hypermargin.training import loop as loop_module

ADAMW = RUNS["arcface adamw"]


@contextlib.contextmanager
def full_disk(most):
    """No file can grow beyond `most` bytes: another error than that of a full disk, which comes as that does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def at_step(monkeypatch, number, work):
    """Do something before the n-th step."""
    real, steps = loop_module.Trainer._train_step, itertools.count(1)

    def step(self, *batches):
        if next(steps) == number:
            work()
        return real(self, *batches)

    monkeypatch.setattr(loop_module.Trainer, "_train_step", step)


def at_sync(monkeypatch, number, work):
    """Do something at the n-th file that a checkpoint makes certain."""
    real, syncs = files.sync, itertools.count(1)

    def sync(path):
        if next(syncs) == number:
            work()
        real(path)

    monkeypatch.setattr(checkpoint, "sync", sync)


def signalled(*numbers):
    for number in numbers:
        os.kill(os.getpid(), number)


def gone_on(folder, expected, settings=ADAMW):
    run(settings, folder, resume=True)
    # A run stopped between checkpoints has one that the other has not.
    assert_same_run(expected, folder, kept=False)
    assert not list((folder / "checkpoints").glob(".writing-*"))


def test_a_second_interrupt_ends_at_once(tmp_path, undisturbed, monkeypatch):  # noqa: F811
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        at_step(patch, 8, lambda: signalled(signal.SIGINT, signal.SIGINT))
        with pytest.raises(KeyboardInterrupt) as caught:
            run(ADAMW, folder)
    assert not isinstance(caught.value, Interrupted)
    gone_on(folder, undisturbed(ADAMW))


@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGINT] * 2, [signal.SIGTERM] * 3])
def test_a_signal_during_a_save(tmp_path, undisturbed, monkeypatch, numbers):  # noqa: F811
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        at_sync(patch, 7, lambda: signalled(*numbers))
        with pytest.raises(KeyboardInterrupt) as caught:
            run(ADAMW, folder)
    assert isinstance(caught.value, Interrupted) == (numbers != [signal.SIGINT] * 2)
    for path in checkpoint.steps(folder / "checkpoints"):
        checkpoint.check(path)
    gone_on(folder, undisturbed(ADAMW))


@pytest.mark.slow
def test_signals_at_every_file_of_a_run(tmp_path, undisturbed, monkeypatch, capsys):  # noqa: F811
    """A save has five of these moments; twenty saves or so, one signal or two at each."""
    expected, struck = undisturbed(ADAMW), 0
    for numbers in ([signal.SIGTERM], [signal.SIGINT] * 2):
        for moment in range(1, 200):
            folder = tmp_path / f"{len(numbers)}-{moment}"
            with monkeypatch.context() as patch:
                at_sync(patch, moment, lambda: signalled(*numbers))  # noqa: B023
                try:
                    run(ADAMW, folder)
                    stopped = False
                except KeyboardInterrupt:
                    stopped = True
            struck += stopped
            if not stopped and moment > 100:
                break
            gone_on(folder, expected)
    with capsys.disabled():
        print(f"\nstopped by signals during a save: {struck}")
    assert struck > 50


def test_a_clock_that_goes_back(tmp_path, undisturbed, monkeypatch):  # noqa: F811
    clock = itertools.count(2_000_000_000, -3600)
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: float(next(clock)))
        at_step(patch, 6, lambda: signalled(signal.SIGTERM))
        with pytest.raises(Interrupted):
            run(ADAMW, folder)
        for path in folder.rglob("*"):  # and what was written is older than the world
            os.utime(path, (0, 0))
        gone_on(folder, undisturbed(ADAMW))


def resumed(settings, folder):
    try:
        run(settings, folder, resume=True)
    except RunError as error:
        sys.exit(3 if "is in use: another process trains there" in str(error) else 4)


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_two_resumes_at_once(tmp_path, undisturbed, monkeypatch, times):  # noqa: F811
    expected = undisturbed(ADAMW)
    for k in range(times):
        folder = tmp_path / str(k)
        with monkeypatch.context() as patch:
            at_step(patch, 3 + k % 8, lambda: signalled(signal.SIGTERM))
            with pytest.raises(Interrupted):
                run(ADAMW, folder)
        children = [in_child(resumed, ADAMW, folder) for _ in range(3)]
        for child in children:
            child.join(120)
        codes = [child.exitcode for child in children]
        assert 0 in codes
        assert set(codes) <= {0, 3}  # one that comes when the other is done finds nothing to do
        assert_same_run(expected, folder, kept=False)


# A full disk


def on_a_full_disk(settings, folder, most):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with full_disk(most):
        try:
            train(Config(**{**BASE, **settings}), folder, resume=True, data=data(), network=network(), quiet=True)
        except OSError as error:  # CheckpointError too
            told = str(error)  # of a checkpoint, torch's and safetensors' words for it stand in ours
            sys.exit(
                3 if str(folder) in told and ("File too large" in told or "could not be written" in told) else 4
            )


LIMITS = [0, 1000, 1300, 6000]


@pytest.mark.parametrize(
    "limits", [LIMITS, pytest.param([*range(0, 12_000, 400)], marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_a_full_disk_in_every_writer_of_a_run(tmp_path, undisturbed, limits, capsys):  # noqa: F811
    """Files may be this long and no longer: config, split, log, events, checkpoint, thresholds, result."""
    settings = {**ADAMW, "tensorboard": True}
    __import__("torch.utils.tensorboard")  # once, for all the forks
    expected, codes = undisturbed(ADAMW), []
    for most in limits:
        folder = tmp_path / str(most)
        child = in_child(on_a_full_disk, settings, folder, most)
        child.join(120)
        codes.append(child.exitcode)
        assert child.exitcode in (0, 3), most
        kept = checkpoint.steps(folder / "checkpoints")
        for path in kept:
            checkpoint.check(path)
        train(Config(**{**BASE, **settings}), folder, resume=True, data=data(), network=network(), quiet=True)
        assert_same_run(expected, folder, kept=False) if not most else None
        assert checkpoint.load_last(folder / "checkpoints", pytest.fail).step
    assert 3 in codes
    with capsys.disabled():
        print(f"\nfull disks: {len(codes)}, of them ended by an error: {codes.count(3)}")


def test_a_full_disk_keeps_what_was_there(tmp_path):
    path = tmp_path / "a.json"
    with full_disk(100):
        with pytest.raises(OSError, match=r"File too large: .*a\.json could not be written\.$"):
            files.write_text(path, "x" * 200)
        assert not list(tmp_path.iterdir())
        files.write_text(path, "whole")
        with pytest.raises(OSError, match=r"a\.json could not be written\. What was there before is kept"):
            files.write_text(path, "x" * 200)
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    assert path.read_text() == "whole"


# Images that change while a run is under way


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    found = data()
    for row, (image, label) in enumerate(zip(found.samples, found.labels, strict=True)):
        (folder / str(label)).mkdir(exist_ok=True)
        Image.fromarray(image).save(folder / str(label) / f"{row}.png")
    return folder


def photographed(photos, folder, **settings):
    config = Config(**{**BASE, **ADAMW, **settings})
    return train(config, folder, resume=True, data=read_folder(photos), network=network(), quiet=True)


CHANGES = {
    "deleted": os.unlink,
    "cut off": lambda path: os.truncate(path, 20),
    "emptied": lambda path: os.truncate(path, 0),
    "grown": lambda path: os.truncate(path, 20 * 2**30),
    "replaced": lambda path: path.write_text("no image"),
}


@pytest.mark.parametrize(
    ("change", "workers"),
    [
        pytest.param(each, n, marks=[pytest.mark.slow] if n and each not in ("deleted", "cut off") else [])
        for each in CHANGES for n in (0, 2)
    ],
)  # fmt: skip
def test_an_image_that_changes(tmp_path, photos, monkeypatch, change, workers):
    """Read every epoch, it ends the run in words; put back, the run goes on. Read once, it is not missed."""
    path = random.Random(change).choice(sorted(photos.rglob("*.png")))
    whole = path.read_bytes()
    expected = photos.parent / "expected"
    if not expected.exists():
        photographed(photos, expected)
    with monkeypatch.context() as patch:
        at_step(patch, 3, lambda: CHANGES[change](path))
        try:
            with pytest.raises(DataError, match=f"{path}"):
                photographed(photos, tmp_path / "lazy", memory=0.0, workers=workers)
        finally:
            path.write_bytes(whole)
    photographed(photos, tmp_path / "lazy", memory=0.0, workers=workers)
    assert_same_run(expected, tmp_path / "lazy", kept=False)
    if workers:
        with monkeypatch.context() as patch:
            at_step(patch, 3, lambda: CHANGES[change](path))
            try:
                photographed(photos, tmp_path / "once")
            finally:
                path.write_bytes(whole)
        assert_same_run(expected, tmp_path / "once", kept=False)


class BrokenError(Exception):
    pass


def failing(folder, photos):
    """A mistake in the network of somebody, while processes read ahead."""
    own = network()
    calls = itertools.count()

    def forward(module, inputs):
        if next(calls) == 4:
            raise BrokenError

    own.register_forward_pre_hook(forward)
    config = Config(**{**BASE, "memory": 0.0, "workers": 2})
    train(config, folder, data=read_folder(photos), network=own, quiet=True)


def test_an_error_in_the_network_ends_the_run(tmp_path, photos):
    child = in_child(failing, tmp_path / "run", photos)
    child.join(60)
    assert child.exitcode == 1  # None: it hangs
