"""timm's own models, in `train` and in the example."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

timm = pytest.importorskip("timm", reason="needs timm: make test-integrations")
import runpy  # noqa: E402

from PIL import Image  # noqa: E402

from hypermargin.data import from_arrays  # noqa: E402
from hypermargin.training import Config, load, train  # noqa: E402
from hypermargin.training.models import create_model  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "with_timm.py"


def pictures(count, side=32):
    """Pictures of which each of five classes has a bright stripe of its own."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 5
    images = rng.integers(0, 80, (count, side, side, 3))
    for image, label in zip(images, labels, strict=True):
        image[:, 6 * label : 6 * label + 6] += 150
    return images.astype(np.uint8), labels


@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224", "mobilenetv3_small_050", "convnext_atto"])
def test_models_take_the_size_of_the_samples(name):
    network = create_model(f"timm:{name}", (3, 48, 32), 16).eval()
    assert network(torch.zeros(2, 3, 48, 32)).shape == (2, 16)


def test_the_trainer_trains_and_loads_one(tmp_path):
    images, labels = pictures(60)
    config = Config(
        model="timm:resnet10t", dim=16, epochs=1, batch=20, split="sample", augment="none", tensorboard=False,
        workers=0,
    )  # fmt: skip
    train(config, tmp_path / "run", data=from_arrays(images, labels, name="stripes"), quiet=True)
    loaded = load(tmp_path / "run", "last")
    assert "timm" in type(loaded.network).__module__


def test_the_example_learns(tmp_path, monkeypatch, capsys):
    images, labels = pictures(100)
    for k, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = tmp_path / ("val" if k % 4 == 0 else "train") / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{k}.png")
    flags = "--model resnet10t --img-size 32 --batch-size 25 --epochs 2 --workers 0 --mixup 0.2"
    flags += f" --out {tmp_path}/net.pt"
    monkeypatch.setattr(sys, "argv", ["with_timm.py", str(tmp_path), *flags.split()])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out
    assert said.count("epoch") == 2
    state = torch.load(tmp_path / "net.pt", weights_only=True)
    assert state["head.weight"].shape == (5, 512)
