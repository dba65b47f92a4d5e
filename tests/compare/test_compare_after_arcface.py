"""Losses after ArcFace side by side: runs, numbers and report of heads with state, counts and several centers."""

import re

import numpy as np
import pytest

from hypermargin.compare import Plan, compare


@pytest.mark.slow
def test_losses_after_arcface_are_compared(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), [60, 50, 40, 30, 20, 20])
    images = rng.normal(size=(6, 6, 6))[labels] * 50 + 128 + rng.normal(size=(len(labels), 6, 6)) * 20
    np.savez(tmp_path / "d.npz", samples=images.clip(0, 255).astype(np.uint8), labels=labels)
    settings = {
        "data": str(tmp_path / "d.npz"), "split": "sample", "epochs": 2, "batch": 32, "model": "mlp",
        "model_set": {"widths": [16]}, "dim": 8, "log": 3, "workers": 0,
    }  # fmt: skip
    heads = (
        "adaface:h=0.2", "ldam", "subcenter-arcface:centers=2", "kappaface", "dyn-arcface", "adaptiveface", "vs",
        "vpl:after=2", "sphereface-r:version=1",
    )  # fmt: skip
    done = compare(Plan(settings, heads, seeds=1, plane=0), tmp_path / "out", jobs=1)
    report = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    for head in heads:
        assert head in report
    assert not list((tmp_path / "out").rglob("failed.json"))
    assert done is not None


def test_class_margins_of_a_comparison_are_for_every_head():
    Plan({"class_margins": "ldam"}, ("arcface", "adaface"))
    with pytest.raises(ValueError, match=re.escape("class_margins needs a head whose margin has one m; softmax")):
        Plan({"class_margins": "ldam"}, ("arcface", "softmax"))
