"""The examples, run on data small enough for a test."""

import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from formats import write_mnist

from hypermargin.data import read_idx

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def here(monkeypatch, capsys):
    """Run an example in this process, which saves the start-up: what it prints to stdout."""

    def call(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return call


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    """MNIST's four files: class k has bright rows from 2k on, under noise. 640 images to train, 200 to test."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 840).astype(np.uint8)
    row = np.arange(28)[None, :, None]
    first = 2 * labels[:, None, None]
    bright = 160 * ((row >= first) & (row < first + 5))
    images = (bright + rng.integers(0, 96, (840, 28, 28))).astype(np.uint8)
    return write_mnist(tmp_path_factory.mktemp("mnist"), images, labels, tests=200, ending=".gz")


def test_fashion_mnist(mnist, here):
    out = here("fashion_mnist.py", mnist, "--epochs", 2)
    *epochs, last = out.splitlines()
    assert [line.split()[:3] for line in epochs] == [
        [way, "epoch", str(k)] for way in ("free", "projected") for k in (1, 2)
    ]
    losses = [float(found) for found in re.findall(r"loss ([\d.]+)", out)]
    assert losses[1] < losses[0]
    assert losses[3] < losses[2]
    found = re.fullmatch(r"test accuracy: W free ([\d.]+)%, W projected ([\d.]+)%", last)
    assert min(map(float, found.groups())) > 30  # chance is 10


def test_fashion_mnist_does_what_it_says(mnist, capsys):
    """The seed decides everything; the projection is done."""
    example = SimpleNamespace(**runpy.run_path(str(EXAMPLES / "fashion_mnist.py")))
    data = read_idx(mnist)
    heads, printed = [], []
    create_head = example.hm.create_head
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(example.hm, "create_head", lambda *a: heads.append(create_head(*a)) or heads[-1])
        for way, seed in (("free", 0), ("free", 0), ("free", 1), ("projected", 0)):
            example.train(data, way, 1, seed)
            printed.append(capsys.readouterr().out.removeprefix(way))
    free, again, other, projected = (head.weight.detach() for head in heads)
    assert printed[0] == printed[1]
    assert (free == again).all()
    assert not (free == other).any()
    assert projected.norm(dim=1).allclose(projected.new_ones(10), atol=1e-6)
    assert not free.norm(dim=1).allclose(free.new_ones(10), atol=1e-3)
    pixels, labels = example.load(data, example.TRAIN)
    assert (pixels.shape, pixels.min() >= 0, pixels.max() > 0.9, pixels.max() <= 1) == (
        (640, 784),
        True,
        True,
        True,
    )
    assert labels.shape == (640,)


def test_fashion_mnist_without_its_files(tmp_path, here, capsys):
    with pytest.raises(SystemExit) as end:
        here("fashion_mnist.py", tmp_path / "nowhere")
    assert end.value.code == 2
    assert f"{tmp_path / 'nowhere'}: there is no train-images-idx3-ubyte, plain or .gz" in capsys.readouterr().err


def test_digits(here):
    out = here("digits.py", "--epochs", 1, "--seeds", 1)
    accuracies = [float(found) for found in re.findall(r"([\d.]+) ± 0\.0", out)]
    assert len(accuracies) == 9  # heads
    assert max(accuracies) > 50  # chance is 10
