"""Processes that read ahead end with the work, with an error, with their parent; what they take along is said."""

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from formats import encoded, noise, write_faces

from hypermargin.data import DataError, read_folder, read_records
from hypermargin.data import workers as module
from hypermargin.data.base import Bad
from hypermargin.data.images import MAX_PIXELS
from hypermargin.data.loader import decode_once
from hypermargin.data.workers import read

FORK = multiprocessing.get_context("fork")
ROWS = 60


class Numbers:
    """Sample k is the number k. `broken` says what happens at which row instead."""

    shape = (2, 2)

    def __init__(self, broken=None):
        self.broken = broken or {}

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        if row in self.broken:
            self.broken[row]()
        return np.full(self.shape, row, np.uint8)

    def where(self, row):
        return f"number {row}"


def groups(size=4):
    return np.split(np.arange(ROWS), range(size, ROWS, size))


def collected(source, workers, size=4):
    samples, rows, bad = zip(*read(source, groups(size), workers), strict=True)
    return (
        np.concatenate(samples)[:, 0, 0].tolist(),
        np.concatenate(rows).tolist(),
        [b for found in bad for b in found],
    )


def raising(error):
    def work():
        raise error

    return work


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def gone(pid):
    """Whether a process has ended; one that nobody waited for counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_groups_come_in_order_and_bad_samples_as_data(workers):
    source = Numbers({5: raising(DataError("number 5: bent.")), 40: raising(MemoryError())})
    values, rows, bad = collected(source, workers)
    assert values == rows == [k for k in range(ROWS) if k not in (5, 40)]
    assert bad == [Bad("number 5", "bent."), Bad("number 40", "there is not enough memory to read it.")]
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("error", [KeyError("mine"), SystemExit(3)], ids=["exception", "exit"])
def test_another_error_is_raised(workers, error):
    kind = type(error) if workers == 0 or isinstance(error, Exception) else RuntimeError
    with pytest.raises(kind, match=r"mine|3") as caught:
        collected(Numbers({30: raising(error)}), workers)
    assert not workers or "In a process that reads samples:\nTraceback" in caught.value.__notes__[0]
    assert multiprocessing.active_children() == []


def test_a_reader_killed_now_and_then_costs_nothing(tmp_path):
    def once():
        try:
            (tmp_path / "there").touch(exist_ok=False)
        except FileExistsError:
            return
        killed()

    values, rows, bad = collected(Numbers({17: once}), 2)
    assert values == rows == list(range(ROWS))
    assert bad == []


def test_a_sample_that_kills_its_reader_is_a_bad_one():
    values, _, bad = collected(Numbers({17: killed, 33: lambda: os._exit(7)}), 2)
    assert values == [k for k in range(ROWS) if k not in (17, 33)]
    assert bad == [
        Bad("number 17", "reading it ended 3 processes, the last with signal SIGKILL. Is the memory full?"),
        Bad("number 33", "reading it ended 3 processes, the last with exit code 7."),
    ]


def test_readers_that_end_at_once_are_an_error(monkeypatch):
    monkeypatch.setattr(module.torch, "set_num_threads", lambda _: os._exit(9))
    with pytest.raises(DataError, match=r"end at once, with exit code 9\. With workers=0 \(--workers 0\)"):
        collected(Numbers(), 2)
    monkeypatch.setattr(module.os, "fork", raising(BlockingIOError(11, "Resource temporarily unavailable")))
    with pytest.raises(DataError, match=r"no process can be started to read samples .*Give fewer workers"):
        collected(Numbers(), 2)
    assert multiprocessing.active_children() == []


def test_left_early_and_closed():
    reading = read(Numbers({50: lambda: time.sleep(600)}), groups(), 2)
    next(reading)
    pids = [child.pid for child in multiprocessing.active_children()]
    reading.close()
    assert len(pids) == 2
    assert all(map(gone, pids))


def left_open(how):
    """What a program does that neither closes what it reads with nor looks after its errors."""
    reading = read(Numbers({30: lambda: time.sleep(600)}), groups(), 2)  # stuck, and deaf to SIGTERM
    next(reading)
    if how == "error":
        raise RuntimeError("my own mistake")


@pytest.mark.parametrize("how", ["error", "end"])
def test_a_program_ends_with_readers_left(how):
    child = FORK.Process(target=left_open, args=(how,))
    child.start()
    child.join(30)
    assert child.exitcode == (1 if how == "error" else 0)


def parent(pipe, stuck):
    reading = read(Numbers({30: lambda: time.sleep(600)} if stuck else {}), groups(), 2)
    next(reading)
    pipe.send([child.pid for child in multiprocessing.active_children()])
    time.sleep(600)


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at /proc")
@pytest.mark.parametrize("stuck", [False, True])
def test_readers_end_with_a_parent_that_was_killed(stuck):
    ours, theirs = FORK.Pipe()
    child = FORK.Process(target=parent, args=(theirs, stuck))
    child.start()
    pids = ours.recv()
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert len(pids) == 2
    until(lambda: all(map(gone, pids)))


@pytest.mark.slow
def test_readers_killed_at_random(capsys):
    """Many kills, at any moment: what is read is the same to the last sample, and nothing is left behind."""
    rng, kills = random.Random(0), 0
    source = Numbers({k: lambda: time.sleep(0.002) for k in range(0, ROWS, 3)})
    while kills < 300:
        reading, values = read(source, groups(3), 3), []
        for found in reading:
            values += found.samples[:, 0, 0].tolist()
            children = multiprocessing.active_children()
            if rng.random() < 0.3 and children:
                time.sleep(rng.random() * 0.01)
                rng.choice(children).kill()
                kills += 1
        assert values == list(range(ROWS))
    assert multiprocessing.active_children() == []
    with capsys.disabled():
        print(f"\nreaders killed: {kills}")


# Sizes, before anything is read


@pytest.fixture
def photos(tmp_path):
    from PIL import Image

    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (8, 8), 100).save(tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("workers", [0, 2])
def test_a_huge_file_among_images(photos, monkeypatch, workers):
    monkeypatch.setattr("hypermargin.data.loader.BLOCK", 1)
    huge = photos / "b" / "1.png"
    os.truncate(huge, 20 * 2**30)  # sparse: it takes no room
    data = read_folder(photos)
    words = rf"{huge}: the file has 21,474,836,480 bytes; of an image at most {4 * MAX_PIXELS:,} are read"
    with pytest.raises(DataError, match=words + ".*set HYPERMARGIN_MAX_PIXELS to more"):
        decode_once(data, workers=workers)
    found = decode_once(data, workers=workers, on_bad="skip")
    assert len(found) == 3
    assert [bad.where for bad in found.bad] == [str(huge)]


def test_the_limit_of_pixels_can_be_raised_and_lowered(photos, monkeypatch):
    data = read_folder(photos)
    monkeypatch.setenv("HYPERMARGIN_MAX_PIXELS", "60")
    with pytest.raises(DataError, match="8×8 pixels; at most 60 are read"):
        decode_once(data)
    monkeypatch.setenv("HYPERMARGIN_MAX_PIXELS", "64")
    assert len(decode_once(data)) == 4
    monkeypatch.setenv("HYPERMARGIN_MAX_PIXELS", "many")
    with pytest.raises(ValueError, match="HYPERMARGIN_MAX_PIXELS must be a number of pixels, from 1; got 'many'"):
        decode_once(data)


def cut_and_read(path, pipe):
    data = read_records(path)
    assert data.samples[9].shape == (40, 40)
    os.truncate(path, 4096)
    try:
        data.samples[9]
    except DataError as error:
        pipe.send(str(error))


def test_a_record_file_that_is_cut_off_while_it_is_mapped(tmp_path):
    """In a process of its own: on a page that is gone the system ends it, by SIGBUS."""
    path = write_faces(tmp_path / "train.rec", [0, 1] * 5, [encoded(noise(40, 40, seed=k)) for k in range(10)])
    ours, theirs = FORK.Pipe()
    child = FORK.Process(target=cut_and_read, args=(path, theirs))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert "train.rec, key 10" in (words := ours.recv())
    assert "the file has 4096 bytes now, and had" in words
