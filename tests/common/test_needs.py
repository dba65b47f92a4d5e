"""Packages that are missing: every message says which to install, by a name that an index knows."""

import re
import sys
from pathlib import Path

import pytest

import hypermargin
from hypermargin.common.needs import absent, not_installed


def test_the_sentence_names_all_that_is_missing():
    assert not_installed("pictures need", "matplotlib") == (
        "pictures need matplotlib, which is not installed. Run: pip install matplotlib"
    )
    assert not_installed("ONNX needs", "onnx", "onnxscript") == (
        "ONNX needs onnx and onnxscript, which are not installed. Run: pip install onnx onnxscript"
    )


def test_packages_are_found_by_the_names_an_index_has(monkeypatch):
    assert absent("numpy", "pillow", "scikit-learn", "no-such-package") == ["no-such-package"]
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert absent("numpy", "pillow") == ["pillow"]


def test_no_message_sends_people_to_an_index_for_this_package():
    """It is on none. In the documents, pip gets the folder of the clone, '.[plot]', or a file."""
    root = Path(hypermargin.__file__).parent
    for path in root.rglob("*.py"):
        assert not re.search(r"pip install '?hypermargin", path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("which", ["best", "last"])
def test_loading_a_run_names_the_package_that_reads_it(tmp_path, monkeypatch, which):
    import numpy as np

    from hypermargin.data import from_arrays
    from hypermargin.training import Config, train

    rng = np.random.default_rng(0)
    data = from_arrays(rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3, open_set=False)
    settings = {"model": "none", "dim": 4, "epochs": 1, "batch": 16, "tensorboard": False, "device": "cpu"}
    train(Config(**settings), tmp_path / "run", data=data, quiet=True)
    assert hypermargin.load(tmp_path / "run", which).step
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ModuleNotFoundError, match=r"which is not installed. Run: pip install safetensors$"):
        hypermargin.load(tmp_path / "run", which)
