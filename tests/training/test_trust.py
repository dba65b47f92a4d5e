"""What a run from a stranger may do: nothing that its settings name is imported, unless it is trusted."""

import json
import os
import shutil
import sys
import textwrap

import numpy as np
import pytest
import torch

import hypermargin as hm
from hypermargin.compare import Plan, compare
from hypermargin.data import from_arrays
from hypermargin.training import Config, RunError, load, train, trust
from hypermargin.training.config import read_config

CODE = """
    import pathlib
    from torch import nn

    pathlib.Path(__file__).with_suffix(".ran").touch()

    def make(shape, dim, **options):
        return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], dim))
"""
HOSTILE = {
    "checkpoint_path": "/tmp/weights.pt",
    "pretrained_cfg": {"file": "/tmp/weights.pt", "custom_load": True},
    "pretrained_cfg_overlay": {"url": "http://example.com/weights.pt"},
    "pretrained_strict": False,
    "cache_dir": "/tmp",
    "file": "weights.pt",
    "url": "http://example.com/weights.pt",
    "hf_hub_id": "somebody/weights",
    "state_dict": {"a": 1},
    "custom_load": True,
    "features_only": True,
    "feature_cfg": {"feature_cls": "hook"},
    "kwargs_filter": ["x"],
    "act_layer": "os.system",
    "norm_layer": "batchnorm2d",
    "block": "BasicBlock",
    "global_pool": "http://example.com",
    "drop_rate": "/tmp/weights.pt",
    "embed_dim": 10**9,
    "depths": [[1, 2], ["/tmp/weights.pt"]],
}
HARMLESS = {
    "pretrained": True, "drop_rate": 0.1, "global_pool": "avg", "img_size": [8, 12], "depths": [2, 2, 6, 2],
    "qkv_bias": False, "act_layer": "gelu",
}  # fmt: skip


def data():
    rng = np.random.default_rng(0)
    labels = np.arange(48) % 4
    images = (rng.normal(size=(4, 6, 6))[labels] * 50 + 128).clip(0, 255).astype(np.uint8)
    return from_arrays(images, labels, open_set=False)


@pytest.fixture
def code(tmp_path, monkeypatch):
    """A module that leaves a file when it is imported; returns that file."""
    name = f"code_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(CODE))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield tmp_path / f"{name}.ran"
    sys.modules.pop(name, None)


def settings(code, **more):
    base = {"dim": 4, "epochs": 1, "batch": 16, "log": 2, "tensorboard": False, "threads": 1, "workers": 0}
    return {**base, "model": f"{code.stem}:make", "augment": "none", **more}


def forget(code):
    """As if nothing had been imported yet."""
    sys.modules.pop(code.stem, None)
    code.unlink(missing_ok=True)


def begun(code, folder):
    np.savez(folder.parent / "data.npz", images=data().samples, labels=data().labels)
    train(Config(**settings(code, data=str(folder.parent / "data.npz"), split="sample")), folder, quiet=True)
    forget(code)


# Resuming


def test_resuming_ones_own_run_asks_for_nothing(code, tmp_path, run):
    begun(code, tmp_path / "run")
    key = tmp_path / "state" / "hypermargin" / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(key.read_bytes()) == trust.KEY_BYTES
    assert run("train", "--out", tmp_path / "run", "--resume", "--quiet")[0] == 0
    assert code.exists()


@pytest.mark.parametrize("how", ["no proof", "another user", "another's proof", "other options", "damaged", "0.1"])
def test_resuming_a_strangers_run_asks_for_trust(code, tmp_path, run, monkeypatch, how):
    folder = tmp_path / "run"
    begun(code, folder)
    proof = folder / trust.NAME
    if how in ("no proof", "0.1"):
        proof.unlink()
    elif how == "another user":
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of another"))
    elif how == "another's proof":
        found = json.loads(proof.read_text())
        proof.write_text(json.dumps({**found, "id": found["id"][::-1]}))
    elif how == "other options":  # the proof is real, and for other options
        with (folder / "config.toml").open("a") as file:
            file.write('\n[model_set]\nfile = "weights.pt"\n')
    else:
        proof.write_text('{"id": 3, "proof": ["x"]}')
    if how == "0.1":
        assert read_config(folder).model.endswith(":make")
    code_, _, err = run("train", "--out", folder, "--resume")
    assert code_ == 1
    assert "names code of its own for the network" in err
    assert "--trust" in err
    assert "Traceback" not in err
    with pytest.raises(RunError, match="add --trust"):
        train(Config(), folder, resume=True, quiet=True)
    assert not code.exists()
    if how != "other options":
        assert run("train", "--out", folder, "--resume", "--trust", "--quiet")[0] == 0
        assert code.exists()


def test_naming_the_same_code_again_is_trust(code, tmp_path, run, monkeypatch):
    begun(code, tmp_path / "run")
    (tmp_path / "run" / trust.NAME).unlink()
    assert run("train", "--out", tmp_path / "run", "--resume", "--model", "other:make")[0] != 0
    assert not code.exists()
    again = ("train", "--out", tmp_path / "run", "--resume", "--quiet", "--model", f"{code.stem}:make")
    assert run(*again)[0] == 0
    assert code.exists()


def test_where_no_state_can_be_kept_it_is_said(code, tmp_path, capsys, monkeypatch):
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "taken"))
    train(Config(**settings(code)), tmp_path / "run", data=data())
    assert "cannot be written, so --resume will need --trust" in capsys.readouterr().err
    assert not (tmp_path / "run" / trust.NAME).exists()
    with pytest.raises(RunError, match="add --trust"):
        train(Config(), tmp_path / "run", resume=True, data=data(), quiet=True)


def test_runs_without_code_leave_no_key(code, tmp_path):
    train(Config(**settings(code, model="mlp")), tmp_path / "run", data=data(), quiet=True)
    assert not (tmp_path / "state").exists()
    assert not (tmp_path / "run" / trust.NAME).exists()


def test_a_relative_state_directory_counts_for_nothing(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    assert trust.state_directory().is_absolute()
    assert trust.state_directory().parts[-3:] == (".local", "state", "hypermargin")


@pytest.mark.parametrize("command", ["evaluate", "verify", "embed", "export", "head info"])
def test_no_command_runs_what_a_run_names(code, tmp_path, run, command):
    begun(code, tmp_path / "run")
    (tmp_path / "a.png").touch()
    more = {"verify": [tmp_path / "a.png"] * 2, "embed": [tmp_path / "a.png", "-o", tmp_path / "e.npz"]}
    status, _, err = run(*command.split(), tmp_path / "run", *more.get(command, []))
    assert status != 0
    assert "names code of its own" in err
    assert not code.exists()


# timm


def stranger(tmp_path, options, model="timm:resnet18"):
    """A run whose settings name a network of timm with these options."""
    train(Config(**{**settings(tmp_path), "model": "mlp"}), tmp_path / "run", data=data(), quiet=True)
    config = read_config(tmp_path / "run")
    changed = Config(**{**config.__dict__, "model": model, "model_set": options})
    (tmp_path / "run" / "config.toml").write_text(changed.to_toml())
    return tmp_path / "run"


class Tripwire:
    """In place of timm: importing anything of it is what must not happen."""

    def __getattr__(self, name):
        raise AssertionError(f"timm.{name} was used")


def test_options_of_timm_that_name_files_urls_or_code_are_refused(tmp_path, monkeypatch):
    folder = stranger(tmp_path, {})
    monkeypatch.setitem(sys.modules, "timm", Tripwire())
    for name, value in HOSTILE.items():
        config = read_config(folder)
        changed = Config(**{**config.__dict__, "model_set": {"drop_rate": 0.1, name: value}})
        (folder / "config.toml").write_text(changed.to_toml())
        with pytest.raises(RunError, match=f"names the option '{name}' = .*add --trust"):
            load(folder)
        with pytest.raises(RunError, match=f"names the option '{name}' = .*add --trust"):
            train(Config(), folder, resume=True, data=data(), quiet=True)


@pytest.mark.parametrize("name", HARMLESS)
def test_options_of_timm_that_are_numbers_and_known_words_are_not(name):
    assert trust.code_in("timm:vit", {name: HARMLESS[name]}) is None


def test_a_checkpoint_path_is_never_unpickled(tmp_path, monkeypatch):
    """What timm up to 1.0.22 does with `checkpoint_path`, by a stand-in: torch.load with weights_only=False."""

    class Shell:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    torch.save({"state_dict": Shell()}, tmp_path / "weights.pt")

    class Timm:
        __version__ = "1.0.22"

        @staticmethod
        def list_models():
            return ["resnet18"]

        @staticmethod
        def create_model(name, *, checkpoint_path="", num_classes=0, **_):
            if checkpoint_path:
                torch.load(checkpoint_path, weights_only=False)
            return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, num_classes))

    monkeypatch.setitem(sys.modules, "timm", Timm)
    folder = stranger(tmp_path, {"checkpoint_path": str(tmp_path / "weights.pt")})
    with pytest.raises(RunError, match="checkpoint_path"):
        load(folder)
    assert not (tmp_path / "executed").exists()
    with pytest.raises(RunError):  # the weights are those of an mlp
        load(folder, trust=True)
    assert (tmp_path / "executed").exists()


def test_loading_fetches_no_weights(tmp_path, monkeypatch):
    asked = []

    class Timm:
        __version__ = "1.0"

        @staticmethod
        def list_models():
            return ["flat"]

        @staticmethod
        def create_model(name, *, num_classes=0, pretrained=False, **_):
            asked.append(pretrained)
            return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, num_classes))

    monkeypatch.setitem(sys.modules, "timm", Timm)
    config = Config(**{**settings(tmp_path), "model": "timm:flat", "model_set": {"pretrained": True}})
    train(config, tmp_path / "run", data=data(), quiet=True)
    assert asked == [True]
    assert hm.load(tmp_path / "run").embed(data().samples[:2]).shape == (2, 4)
    assert asked == [True, False]


# Comparisons


def test_a_comparison_from_a_stranger_asks_for_trust(code, tmp_path, run, monkeypatch):
    folder = tmp_path / "comparison"
    folder.mkdir()
    plan = Plan({"model": f"{code.stem}:make", "data": "digits", "epochs": 1}, ("softmax",), seeds=1, plane=0)
    plan.save(folder)
    status, _, err = run("compare", "--out", folder, "--resume")
    assert status == 1
    assert "names code of its own" in err
    with pytest.raises(RunError, match="add --trust"):
        compare(Plan({"data": "digits", "epochs": 1}, ("softmax",), seeds=1, plane=0), folder, resume=True)
    assert not code.exists()
    assert not (folder / "runs").exists()


def test_a_finished_run_in_a_comparison_is_not_trusted_for_that(code, tmp_path):
    """Whose result is there is not trained again, and so its code has not been named by the comparison."""
    from hypermargin.compare.worker import work

    folder = tmp_path / "run"
    begun(code, folder)
    (folder / trust.NAME).unlink()
    job = {"config": {"model": "mlp"}, "plane": False, "trust": False}
    (folder / "job.json").write_text(json.dumps(job))
    assert (folder / "result.json").exists()
    assert work(folder) == 1
    assert "add --trust" in json.loads((folder / "failed.json").read_text())["error"]
    assert not code.exists()
    shutil.rmtree(folder)


# Pictures


def test_pictures_of_a_strangers_run_take_trust(code, tmp_path, run):
    begun(code, tmp_path / "run")
    for name, *more in (["features"], ["angles", "--no-history"], ["weights", "--counts"]):
        arguments = "plot", name, *more, "--run", tmp_path / "run", "--out", tmp_path / f"{name}.svg"
        code_, _, err = run(*arguments)
        assert code_ == 2, name
        assert "If you know it, add --trust." in err
        assert not code.exists()
        assert run(*arguments, "--trust")[0] == 0, name
        assert code.exists()
        forget(code)


def test_every_command_that_loads_a_run_takes_trust(run):
    from hypermargin.plots import pictures

    learned = [f"plot {name}" for name, each in pictures().items() if each.learned]
    assert len(learned) >= 9
    for command in ("train", "compare", "evaluate", "embed", "verify", "export", "head clean", *learned):
        assert "--trust" in run(*command.split(), "--help")[1], command


def test_the_history_of_the_angles_can_be_left_out(code, tmp_path):
    from hypermargin import plots

    np.savez(tmp_path / "data.npz", images=data().samples, labels=data().labels)
    two = settings(code, data=str(tmp_path / "data.npz"), split="sample", epochs=2)
    train(Config(**two), tmp_path / "run", quiet=True)
    for history, kind in ((True, "AnglesOverTraining"), (False, "AnglesDisplay")):
        picture = plots.make("angles", run=str(tmp_path / "run"), history=history, trust=True)
        assert type(picture).__name__ == kind
