"""The data of a run are found again: from another directory, after they have moved, by runs of before."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from formats import encoded, noise, write
from torch import nn

import hypermargin as hm
from hypermargin.training import Config, RunError, train
from hypermargin.training.config import from_dict, read_toml, resumed
from hypermargin.training.evaluation import open_parts

QUICK = {"epochs": 1, "dim": 4, "model": "mlp", "batch": 8, "threads": 1, "workers": 0, "tensorboard": False}
# Images are read from their files anew, so that where they lie is what tells data from others.
QUICK |= {"memory": 0.0, "model_set": {"widths": [8]}}
PIXELS = noise(40, 8, 8)
LIST = "1 p0/1.png p0/2.png\n0 p0/1.png p1/1.png\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with photos/ and pairs.txt, and a run that was started in it with relative paths."""
    for k, pixels in enumerate(PIXELS):
        write(tmp_path / "here" / "photos" / f"p{k // 5}" / f"{k % 5}.png", encoded(pixels))
    write(tmp_path / "here" / "pairs.txt", LIST.encode())
    monkeypatch.chdir(tmp_path / "here")
    config = Config(data="photos/", verify=["pairs.txt"], split="identity", **QUICK)
    train(config, "run", quiet=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def test_a_run_is_used_from_another_directory(place, run):
    folder = place / "here" / "run"
    for arguments in (
        ("evaluate", folder, "--confidence", 0),
        (
            "evaluate",
            folder,
            "--confidence",
            0,
            "--pairs",
            place / "here" / "pairs.txt",
            "--images",
            place / "here" / "photos",
        ),
        ("train", "--out", folder, "--resume", "--quiet"),
        ("train", "--out", folder, "--resume", "--quiet", "--data", "../here/photos"),
        ("train", "--config", folder / "config.toml", "--out", "again", "--quiet", "--init", "../here/run"),
    ):
        code, _, err = run(*arguments)
        assert code == 0, err
    saved = read_toml(folder / "config.toml")
    assert (saved["data"], saved["verify"]) == (str(place / "here" / "photos"), [str(place / "here" / "pairs.txt")])


def test_data_that_have_moved(place, run):
    folder, moved = place / "here" / "run", place / "there"
    shutil.move(place / "here" / "photos", moved)
    for arguments in (("evaluate", folder), ("train", "--out", folder, "--resume", "--quiet")):
        code, _, err = run(*arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert (
            f"there is no {place / 'here' / 'photos'} now. If they have moved, give their new place as --data"
            in err
        )
    code, out, err = run("evaluate", folder, "--data", "../there", "--confidence", 0, "--out", "found")
    assert code == 0, err
    assert f"../there holds the data that {folder} was trained on: its test part is evaluated" in err
    assert "verification: the test part" in out
    other = shutil.copytree(moved, place / "other")
    shutil.rmtree(other / "p7")
    code, out, err = run("evaluate", folder, "--data", other, "--confidence", 0, "--out", "other-found")
    assert code == 0, err
    assert "verification: these data" in out
    code, _, err = run("train", "--out", folder, "--resume", "--quiet", "--data", other)
    assert code == 1
    assert "was started on other data" in err
    code, _, err = run("train", "--out", folder, "--resume", "--quiet", "--data", moved)
    assert code == 0, err
    assert read_toml(folder / "config.toml")["data"] == str(moved)
    assert run("evaluate", folder, "--confidence", 0)[0] == 0  # found there from now on


def test_runs_of_before_hold_relative_paths(place, monkeypatch):
    """They are looked for from the current directory; and two levels of folders were one identity, always."""
    folder = place / "here" / "run"
    text = (folder / "config.toml").read_text().replace(str(place / "here") + "/", "")
    (folder / "config.toml").write_text(text)
    with pytest.raises(ValueError, match=r"the data of the run were photos, and there is no .*elsewhere/photos"):
        open_parts(folder, hm.load(folder))
    monkeypatch.chdir(place / "here")
    assert len(open_parts(folder, hm.load(folder)).data) == len(PIXELS)
    saved = from_dict(read_toml(folder / "config.toml"))
    assert resumed(saved, {"data": str(place / "here" / "photos")}) == saved
    for person in sorted((place / "here" / "photos").iterdir()):
        for k, image in enumerate(sorted(person.iterdir())):
            (person / f"day{k % 2}").mkdir(exist_ok=True)
            image.rename(person / f"day{k % 2}" / image.name)
    with pytest.raises(RunError, match="other labels or pixels"):  # not: which folder is the identity?
        open_parts(folder, hm.load(folder))


def test_names_of_built_in_data_stay_names(tmp_path, monkeypatch):
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert hm.training.paths.absolutes({"data": "digits", "init": None, "verify": []}) == {
        "data": "digits", "verify": [], "init": None,
    }  # fmt: skip
    for name in ("glyphs:han", "glyphs:han+hangul", "mnist", "cifar10"):
        assert hm.training.paths.absolutes({"data": name}) == {"data": name}
        assert not hm.training.paths.gone(name)
    assert hm.training.paths.absolutes({"data": "glyphs:han:digits"}) == {
        "data": f"glyphs:han:{tmp_path / 'digits'}"
    }
    assert hm.training.paths.gone("glyphs:han:/nowhere")
    assert hm.training.paths.absolutes({"data": "glyphs:digits"}) == {"data": f"glyphs:{tmp_path / 'digits'}"}
    assert hm.training.paths.absolutes({"data": "nothing"}) == {"data": "nothing"}


@pytest.mark.parametrize("before", ["", "model.", "module.backbone."])
@pytest.mark.parametrize("ending", ["pt", "pth", "ckpt", "safetensors"])
def test_a_network_starts_from_a_file(tmp_path, before, ending):
    if ending == "safetensors":
        pytest.importorskip("safetensors")
    network = hm.training.create_model("mlp", (1, 8, 8), 4, widths=[8])
    tensors = {before + name: value for name, value in network.state_dict().items()} | {
        "loss.weight": torch.ones(3, 4)
    }
    path = tmp_path / f"net.{ending}"
    if ending == "safetensors":
        hm.common.tensor_files.write_safetensors(path, tensors)
    else:
        torch.save({"epoch": 3, "state_dict": tensors} if ending == "ckpt" else tensors, path)
    images, labels = np.stack(list(PIXELS)), np.arange(40) // 5
    data = hm.data.from_arrays(images, labels, name="mine")
    settings = QUICK | {"lr": 1e-12, "weight_decay": 0.0, "memory": 4.0}
    train(Config(data="mine", init=str(path), **settings), tmp_path / "run", data=data, quiet=True)
    found = hm.load(tmp_path / "run").network.state_dict()
    for name, value in network.state_dict().items():
        assert torch.allclose(found[name], value, atol=1e-6)
    if not before and ending == "ckpt":
        torch.save(nn.Linear(3, 3).state_dict(), path)
        with pytest.raises(ValueError, match=r"init: the network of .*net.ckpt does not fit"):
            train(Config(data="mine", init=str(path), **settings), tmp_path / "other", data=data, quiet=True)
