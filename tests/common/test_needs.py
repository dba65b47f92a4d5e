"""Packages that are missing: every message says which to install, by a name that an index knows."""

import re
import sys
from pathlib import Path

import pytest

import hypermargin
from hypermargin.common.needs import absent, not_installed
from hypermargin.diagnose.loading import load
from hypermargin.training.models import create_model


def test_the_sentence_names_all_that_is_missing():
    assert not_installed("pictures need", "matplotlib") == (
        "pictures need matplotlib, which is not installed. Run: pip install matplotlib"
    )
    assert not_installed("ONNX needs", "onnx", "onnxscript") == (
        "ONNX needs onnx and onnxscript, which are not installed. Run: pip install onnx onnxscript"
    )
    assert not_installed("it needs", "a", "b", "c").startswith("it needs a, b and c, which are not installed.")


def test_packages_are_found_by_the_names_an_index_has(monkeypatch):
    assert absent("numpy", "pillow", "scikit-learn", "no-such-package") == ["no-such-package"]
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert absent("numpy", "pillow") == ["pillow"]


def test_what_a_users_module_imports_is_told_from_the_module_itself(tmp_path, monkeypatch):
    (tmp_path / "nets_of_mine.py").write_text("import no_such_backbone\n")
    monkeypatch.syspath_prepend(tmp_path)
    what = "'nets_of_mine' imports what is not installed \\(No module named 'no_such_backbone'\\).$"
    with pytest.raises(ValueError, match=f"^model 'nets_of_mine:build': {what}"):
        create_model("nets_of_mine:build", (5,), 2)
    with pytest.raises(ValueError, match=f"^criterion 'nets_of_mine:Loss': {what}"):
        load("nets_of_mine:Loss", {}, dim=None, classes=None, trust=True)
    with pytest.raises(ValueError, match=r"cannot import 'no_such_nets' .*\. It must be a module in the current"):
        load("no_such_nets:Loss", {}, dim=None, classes=None, trust=True)


def test_only_packages_that_an_index_has_are_to_be_installed(monkeypatch):
    for name in ("pytorch_metric_learning", "pytorch_metric_learning.losses"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=r"Run: pip install pytorch-metric-learning\.$"):
        load("pytorch_metric_learning:ArcFaceLoss", {}, dim=None, classes=None, trust=False)
    monkeypatch.setitem(sys.modules, "wespeaker", None)  # pip finds none
    with pytest.raises(ValueError, match=r"It must be a module in the current directory or on PYTHONPATH\.$"):
        load("wespeaker:ArcMarginProduct", {}, dim=None, classes=None, trust=False)


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
