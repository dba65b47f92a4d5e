"""A damaged checkpoint is never replaced by another in silence: refused, or said wherever its answer goes."""

import json
import re
import shutil

import numpy as np
import pytest
from command import here
from PIL import Image
from safetensors import safe_open
from test_killers import full_disk

import hypermargin
from hypermargin.data import digits
from hypermargin.training import CheckpointError, Config, checkpoint, train
from hypermargin.training import run as run_module

SETTINGS = Config(
    data="digits", model="mlp", dim=8, epochs=3, batch=128, workers=0, threads=1, tensorboard=False, keep=3
)
IN_PLACE = re.compile(r"is damaged: model\.safetensors is not what was written\. Step \d+ is used in its place")


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def steps(folder):
    return [int(path.name[5:]) for path in checkpoint.steps(folder / "checkpoints")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run whose best checkpoint is its last, and two images."""
    folder = tmp_path_factory.mktemp("older")
    train(SETTINGS, folder / "run", quiet=True)
    for path in checkpoint.steps(folder / "run" / "checkpoints"):  # as if the last had been the best
        state = json.loads((path / "state.json").read_text())
        state["best"] = {"step": steps(folder / "run")[-1], "metric": "accuracy", "value": 0.9}
        saved = checkpoint.load(path)
        shutil.rmtree(path)
        state.pop("step")
        checkpoint.save(
            path.parent, checkpoint.Checkpoint(saved.step, saved.model, saved.training, state), keep=9, best=None
        )
    for k in (0, 1):
        Image.fromarray(digits().samples[k]).save(folder / f"{k}.png")
    return folder


@pytest.fixture
def damaged(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "here")
    folder = tmp_path / "here"
    flip(checkpoint.steps(folder / "run" / "checkpoints")[-1] / "model.safetensors")
    return folder


def commands(folder):
    """Each with a file that it writes, and how to read in it what was passed over."""
    run, one, two = folder / "run", folder / "0.png", folder / "1.png"

    def of_npz(path):
        return json.loads(str(np.load(path)["about"]))["network"]["passed_over"]

    def of_weights(path):
        with safe_open(path, "pt") as file:
            return json.loads(file.metadata()["hypermargin"])["passed_over"]

    def of_report(path):
        return json.loads(path.read_text())["run"]["passed_over"]

    weights = folder / "w.safetensors"
    return {
        "embed": (("embed", run, one, "-o", folder / "e.npz", "--workers", 0), folder / "e.npz", of_npz),
        "export": (("export", run, "--format", "safetensors", "-o", weights), weights, of_weights),
        "evaluate": (("evaluate", run, "--out", folder / "ev"), folder / "ev" / "evaluation.json", of_report),
        "verify": (("verify", run, one, two, "--threshold", "0.4", "--json"), None, None),
        "head info": (("head", "info", run), None, None),
        "head import": (("head", "import", run, "-o", folder / "h.safetensors"), None, None),
    }


NAMES = ["embed", "export", "evaluate", "verify", "head info", "head import"]


@pytest.mark.parametrize("name", NAMES)
def test_commands_refuse_unless_allowed(damaged, name):
    command, written, passed_over = commands(damaged)[name]
    code, out, err = here(*command)
    assert code in (1, 2)
    assert "is damaged: model.safetensors is not what was written" in err
    assert "--allow-older" in err
    assert written is None or not written.exists()
    code, out, err = here(*command, "--allow-older")
    assert code == 0
    assert IN_PLACE.search(err)
    if written:
        assert IN_PLACE.search(passed_over(written)[0])
    if name == "verify":
        assert IN_PLACE.search(json.loads(out)["passed_over"][0])
    if name == "evaluate":  # the thresholds of the weights that were asked for stay
        known = json.loads((damaged / "run" / "thresholds.json").read_text())
        assert known["step"] != json.loads(written.read_text())["run"]["step"]
        assert "not the checkpoint asked for" in out


@pytest.mark.parametrize("which", ["best", "last"])
def test_load_refuses_unless_allowed(whole, damaged, which):
    assert hypermargin.load(whole / "run", which).passed_over == ()
    with pytest.raises(CheckpointError, match=r"is damaged: .* Step \d+ is whole\. To use that, add --allow-older"):
        hypermargin.load(damaged / "run", which)
    found = hypermargin.load(damaged / "run", which, allow_older=True)
    assert found.step == steps(damaged / "run")[-2]
    assert len(found.passed_over) == 1
    assert IN_PLACE.search(found.passed_over[0])


def test_the_best_does_not_need_the_last(whole, tmp_path):
    """If another checkpoint is damaged than the one asked for, there is nothing to say."""
    folder = tmp_path / "run"
    shutil.copytree(whole / "run", folder)
    first, _, last = steps(folder)
    path = folder / "checkpoints" / f"step-{last:08d}"
    saved = checkpoint.load(path)
    state = {**saved.state, "best": {"step": first, "metric": "accuracy", "value": 0.9}}
    state.pop("step")
    checkpoint.save(path.parent, checkpoint.Checkpoint(last, saved.model, saved.training, state), keep=9, best=None)
    flip(path / "training.pt")
    found = hypermargin.load(folder)
    assert (found.step, found.passed_over) == (first, ())
    flip(path / "state.json")  # now nobody knows which is the best
    with pytest.raises(CheckpointError, match=r"is damaged: state\.json"):
        hypermargin.load(folder)


def test_a_run_whose_best_breaks_says_so_in_its_result(tmp_path, monkeypatch, capsys):
    real = run_module.checkpoint.load

    def load(path, *args, **kwargs):
        if (path / "damage").exists():
            raise CheckpointError(f"checkpoint {path} is damaged: so says the test")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(checkpoint, "load", load)
    monkeypatch.setattr(checkpoint, "best_of", lambda folder: _first(folder))

    def _first(folder):
        (checkpoint.steps(folder)[0] / "damage").touch()
        return int(checkpoint.steps(folder)[0].name[5:])

    train(SETTINGS, tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert "is damaged: so says the test." in result["passed_over"][0]
    assert result["step"] == steps(tmp_path / "run")[-1]
    assert "is used in its place" in capsys.readouterr().err


WRITERS = {
    "embed": ("embed", "run", "0.png", "--workers", 0, "--force", "-o", "a.npz"),
    "embed alone": ("embed", "run", "0.png", "--workers", 0, "--force", "-o", "a.npy"),
    "export": ("export", "run", "--format", "safetensors", "--force", "-o", "a.safetensors"),
    "head": ("head", "import", "run", "--force", "-o", "a.safetensors"),
    "head as pt": ("head", "import", "run", "--force", "-o", "a.pt"),
    "head as npy": ("head", "import", "run", "--force", "-o", "a.npy"),
    "data": ("data", "digits", "--out", "a.npz"),
    "data's picture": ("data", "digits", "--picture", "a.png"),
    "evaluation": ("evaluate", "run", "--out", "."),
    "picture": ("plot", "psi", "--out", "a.svg"),
    "drawing": ("plot", "psi", "--out", "a.png"),
    "page": ("plot", "explorer", "--out", "a.html"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_in_every_other_writer(whole, tmp_path, monkeypatch, name):
    """What was there before is whole, the error is in words, and nothing half-written is left."""
    command = WRITERS[name]
    shutil.copytree(whole, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    target = tmp_path / "here" / ("evaluation.json" if name == "evaluation" else command[-1])
    target.write_bytes(b"whole")
    before = sorted(path.name for path in target.parent.iterdir())
    with full_disk(60):
        code, _, err = here(*command)
    assert code in (1, 2), err
    assert "File too large" in err
    assert target.read_bytes() == b"whole"
    assert sorted(path.name for path in target.parent.iterdir()) == before
    assert here(*command)[0] == 0
    assert target.read_bytes() != b"whole"
