"""The benchmark of resizing: Pillow's and torch's antialiased bilinear are one, and others are not."""

import json

import numpy as np
import pytest
from PIL import Image

from benchmarks import resize
from hypermargin.training import Config, train


def test_ways_to_resize(tmp_path, bench):
    settings = {"model_set": {"width": 4}, "tensorboard": False, "threads": 1, "workers": 0}
    train(Config(data="digits", epochs=1, dim=8, **settings), tmp_path / "run", quiet=True)
    (tmp_path / "photos").mkdir()
    rng = np.random.default_rng(0)
    for k in range(5):
        Image.fromarray(rng.integers(0, 256, (40, 30), dtype=np.uint8)).save(tmp_path / "photos" / f"{k}.png")
    code, printed, _ = bench(
        resize, tmp_path / "run", tmp_path / "photos", "--name", "noise", "--out", tmp_path / "out"
    )
    assert code == 0
    result = json.loads((tmp_path / "out" / "resize-noise.json").read_text())
    assert (tmp_path / "out" / "resize-noise.md").read_text() == printed.removesuffix("\n")
    rows = result["rows"]
    assert rows[resize.RIGHT]["least"] == pytest.approx(1, abs=1e-6)
    same, *_, nearest = (rows[way] for way in list(resize.WAYS)[1:])
    assert 1 - nearest["mean"] > 10 * (1 - same["mean"])
    assert (result["images"], result["sizes"]) == (5, [[30, 40], [30, 40]])
    code, _, complaint = bench(resize, tmp_path / "run", tmp_path / "out", "--name", "none")
    assert code == 2
    assert "there are no images in" in complaint
