"""The trainer: its settings, what it watches, how it stops, what is loaded from it, and the command."""

import json
import math
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import fields

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cases import UNADVISED, needed, per_class
from torch import nn

import hypermargin as hm
from hypermargin import cli
from hypermargin.cli import train as train_command
from hypermargin.cli._flags import setting_flags
from hypermargin.data import Data, DataError, from_arrays
from hypermargin.recipes import FAMILY
from hypermargin.training import Config, DivergedError, RunError, load, train, watch
from hypermargin.training.build import build_head, resolve, resolve_head
from hypermargin.training.config import KINDS, from_dict, given_in, read_toml, resumed

SMALL = {"dim": 8, "epochs": 4, "batch": 32, "watch": 2, "log": 4, "model": "mlp", "model_set": {"widths": [32]}}
QUICK = {**SMALL, "tensorboard": False, "threads": 1, "workers": 0, "augment": "none"}


def blobs(classes=10, per=24, *, open_set=False, noise=20.0, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(classes, 6, 6)) * 50 + 128
    labels = np.arange(classes * per) % classes
    images = (centers[labels] + rng.normal(size=(len(labels), 6, 6)) * noise).clip(0, 255).astype(np.uint8)
    return from_arrays(images, labels, name="blobs", open_set=open_set)


def records(folder, kind):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


BY_OFFSETS = ("balanced-softmax", "logit-adjustment", "vs")

# Settings


@pytest.mark.parametrize("head", hm.list_heads())
@pytest.mark.parametrize("model", ["lenet++", "mlp"])
def test_defaults_follow_the_head(head, model):
    images = from_arrays(np.zeros((8, 8, 8), np.uint8), np.arange(8) % 4, name="zeros")
    free = head in ("softmax", "l-softmax", "modified-softmax", "a-softmax", "sphereface") or head in BY_OFFSETS
    config = resolve(Config(head=head, model=model, dim=8), images)
    assert config.weight_decay == (3.0 if free and model == "lenet++" else 0.05)
    assert resolve(Config(head=head, model=model, weight_decay=0.1), images).weight_decay == 0.1
    assert resolve(Config(head=head, model=model, optimizer="sgd"), images).weight_decay == 5e-4
    lam = [s.at(torch.tensor(2000.0)).lam.item() for s in build_head(resolve_head(config, 4)[0], 4).schedules]
    assert lam == ([5.0] if head in ("l-softmax", "a-softmax", "sphereface") else [])
    papers = resolve_head(resolve(Config(head=head, settings="paper"), images), 4)[0]
    lam = [s.at(torch.tensor(2000.0)).lam.item() for s in build_head(papers, 4).schedules]
    if head == "l-softmax":
        assert lam[0] > 100


def test_settings_survive_toml():
    config = Config(
        data='odd "name"\\ü.npz',
        set={"m": 0.4, "scale": 32, "beyond": "flat"},
        verify=["a.bin", "b"],
        lr=1e-4,
        size=7,
    )
    assert from_dict(tomllib.loads(config.to_toml())) == config
    assert from_dict(tomllib.loads(Config().to_toml())) == Config()


def test_examples_of_the_help_name_real_flags():
    flags = {p.name for p in setting_flags()} | {"config", "out", "resume", "quiet", "live"}
    ours = re.sub(r"torchrun .* -m ", "", train_command.ABOUT)
    used = set(re.findall(r"--([a-z-]+)", ours))
    assert len(used) > 10
    assert {name.replace("-", "_") for name in used} <= flags


def test_every_setting_has_words_and_a_flag(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = run("train", "--help")[1]
    for field in fields(Config):
        assert field.metadata["help"]
        assert re.search(rf"--{field.name.replace('_', '-')}\b", shown), field.name


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"epoch": 3}, ValueError, "unknown setting 'epoch'. Did you mean 'epochs'?"),
        ({"epochs": -1}, ValueError, "epochs must be at least 0; got -1"),
        ({"batch": 0}, ValueError, "batch must be at least 1; got 0"),
        ({"epochs": "ten"}, TypeError, "epochs must be of type int; got 'ten' (str)"),
        ({"lr": True}, TypeError, "lr must be of type float; got True (bool)"),
        ({"lr": -1.0}, ValueError, "lr must be positive"),
        ({"optimizer": "adam"}, ValueError, "must be one of 'adamw', 'sgd'; got 'adam'. Did you mean 'adamw'?"),
        ({"ema": 1.0}, ValueError, "ema must lie in [0, 1); got 1"),
        ({"lr_milestones": [30.0]}, ValueError, "They are shares of the run, not epochs"),
        ({"set": [1]}, TypeError, "set must be of type dict; got [1] (list)"),
        ({"precision": "fp16"}, ValueError, "precision must be one of"),
    ],
)  # fmt: skip
def test_bad_settings(settings, error, message):
    with pytest.raises(error, match=re.escape(message)):
        from_dict(settings)


def test_toml_errors(tmp_path):
    path = tmp_path / "c.toml"
    with pytest.raises(ValueError, match="there is no file"):
        read_toml(path)
    path.write_text("epochs = = 3")
    with pytest.raises(ValueError, match="is not TOML"):
        read_toml(path)


def test_what_a_resumed_run_may_change():
    saved = Config(epochs=3, set={"m": 0.4, "scale": 9.0}, workers=2)
    assert resumed(saved, {}) == saved
    assert resumed(saved, {"epochs": 3, "set": {"m": 0.4}}) == saved
    assert resumed(saved, {"workers": 0}).workers == 0
    for changed in ({"epochs": 4}, {"set": {"m": 0.5}}):
        with pytest.raises(ValueError, match="--resume goes on with the run as it was started"):
            resumed(saved, changed)
    assert given_in(Config(epochs=7)) == {"epochs": 7}
    assert set(KINDS) == {f.name for f in fields(Config)}


@pytest.mark.parametrize("name", hm.list_heads())
def test_the_head_as_resolved_is_the_head_of_the_saved_settings(name):
    config, reasons = resolve_head(Config(head=name, dim=16), 50)
    head = build_head(config, 50)
    again = build_head(from_dict(tomllib.loads(config.to_toml())), 50)
    assert str(head) == str(again)
    if name in UNADVISED:
        assert head.scale.item() == FAMILY[name].scale or reasons
    elif head.settings.unit_features:
        advice = hm.advise.recommend(50, 16, margin=head.margin)
        assert head.scale.item() == pytest.approx(advice.s)
        assert reasons
    else:
        assert config.set == {}
    paper = build_head(resolve_head(Config(head=name, dim=16, settings="paper"), 50)[0], 50)
    assert str(paper) == str(hm.create_head(name, 16, 50, check=False, **needed(name, 50)))


def test_overrides_of_the_head():
    config, _ = resolve_head(Config(head="arcface", dim=16, set={"m": 0.2}), 50)
    assert config.set["m"] == 0.2
    assert config.set["scale"] == hm.advise.recommend(50, 16, margin=hm.margins.ArcFace(0.2)).s
    kept, reasons = resolve_head(Config(head="arcface", dim=16, set={"m": 0.2, "scale": 30.0}), 50)
    assert (kept.set, reasons) == ({"m": 0.2, "scale": 30.0}, ())
    head = build_head(Config(head="a-softmax", schedule=["lambda:base=9,gamma=0.5,floor=1", "warmup:steps=3"]), 5)
    assert [type(s).__name__ for s in head.schedules] == ["LambdaAnnealing", "MarginWarmup"]
    assert len(build_head(Config(head="a-softmax", schedule=["none"]), 5).schedules) == 0
    for schedule, message in (
        (["warmup:stepz=3"], "warmup has no 'stepz'. Did you mean 'steps'"),
        (["warm"], "Did you mean 'warmup'"),
        (["paper", "none"], "stands alone"),
    ):
        with pytest.raises(ValueError, match=message):
            build_head(Config(schedule=schedule), 5)
    with pytest.raises(ValueError, match="Did you mean 'arcface'"):
        resolve_head(Config(head="arcfase"), 5)
    with pytest.raises(TypeError, match="no setting 'mm'"):
        build_head(Config(set={"mm": 1}), 5)


# Learning


@pytest.mark.parametrize("name", [n for n in hm.list_heads() if n != "sphereface"])
def test_every_head_learns(tmp_path, name):
    result = train(Config(**QUICK, head=name, lr=0.01), tmp_path / "run", data=blobs(), quiet=True)
    assert result.metrics["test"]["accuracy"] > 0.9
    first, *_, last = records(tmp_path / "run", "train")
    assert last["loss"] < first["loss"] or name == "l-softmax"  # its λ falls, so the margin grows under way
    assert set(first) >= {"loss", "accuracy", "angle", "rival_angle", "norm_p10", "norm_p50", "norm_p90", "lr"}


def test_open_set(tmp_path):
    data = blobs(40, 12, open_set=True)
    result = train(Config(**{**QUICK, "epochs": 12}, lr=0.01), tmp_path / "run", data=data, quiet=True)
    test = result.metrics["test"]
    assert test["eer"] < 0.1
    assert test["rank1"] > 0.8
    assert json.loads((tmp_path / "run" / "result.json").read_text())["metrics"] == {"test": test}


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgd", "lr": 0.1, "lr_schedule": "step"},
        {"precision": "bfloat16"},
        {"ema": 0.9},
        {"sampling": "balanced", "lr_schedule": "polynomial"},
        {"sampling": "identities", "per_identity": 4, "lr_schedule": "constant"},
        {"clip": 0.0, "head_lr": 0.05, "head_weight_decay": 0.0},
        {"augment": "shift=0.05,rotate=3"},
        {"schedule": ["warmup:steps=10"]},
        {"set": {"learn_scale": True}},
        {"split": "none", "validation": 0.0},
    ],
    ids=str,
)
def test_options_learn_too(tmp_path, settings):
    config = Config(**{**QUICK, "lr": 0.01, "epochs": 5, **settings})
    result = train(config, tmp_path / "run", data=blobs(), quiet=True)
    if settings.get("split") == "none":
        assert result.metrics == {}
        assert records(tmp_path / "run", "train")[-1]["accuracy"] > 0.9
    else:
        assert result.metrics["test"]["accuracy"] > 0.9


@pytest.mark.slow
def test_compiled(tmp_path):
    result = train(Config(**QUICK, lr=0.01, compile=True), tmp_path / "run", data=blobs(), quiet=True)
    assert result.metrics["test"]["accuracy"] > 0.9


def test_accumulated_batches_are_one_large_batch(tmp_path):
    weights = []
    for batch, accumulate in ((24, 1), (8, 3), (6, 4)):
        folder = tmp_path / f"{batch}"
        config = Config(**{**QUICK, "batch": batch, "epochs": 1, "validation": 0.0}, accumulate=accumulate)
        train(config, folder, data=blobs(per=25), quiet=True)
        weights.append(load(folder).head.weight)
    for other in weights[1:]:
        torch.testing.assert_close(other, weights[0], rtol=2e-4, atol=2e-5)


def test_the_same_seed_gives_the_same_run_and_another_another(tmp_path):
    heads = []
    for k, seed in enumerate((0, 0, 1)):
        torch.rand(k + 1)  # what happened before must not matter
        train(Config(**{**QUICK, "epochs": 1}, seed=seed), tmp_path / str(k), data=blobs(), quiet=True)
        heads.append(load(tmp_path / str(k)).head.weight)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_global_switches_are_left_as_they_were(tmp_path):
    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    train(Config(**{**QUICK, "epochs": 1, "threads": 2}), tmp_path / "run", data=blobs(), quiet=True)
    assert (torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()) == before


def test_head_alone_on_ready_made_embeddings(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 6
    vectors = rng.normal(size=(6, 20))[labels] + 0.3 * rng.normal(size=(300, 20))
    np.savez(tmp_path / "e.npz", embeddings=vectors, labels=labels)
    settings = {"head": "cosface", "split": "sample", "epochs": 5, "lr": 0.02, "batch": 16, "threads": 1}
    config = Config(data=str(tmp_path / "e.npz"), **settings)
    result = train(config, tmp_path / "run", quiet=True)
    assert result.metrics["test"]["accuracy"] > 0.97
    trained = load(tmp_path / "run")
    assert (trained.config.model, trained.config.dim) == ("none", 20)
    assert torch.equal(trained.features(vectors.astype(np.float32)), torch.from_numpy(vectors).float())


# Watching


@pytest.mark.parametrize("name", hm.list_heads())
def test_what_is_watched(name):
    torch.manual_seed(0)
    head = hm.create_head(name, 7, 11, **needed(name, 11))
    nn.init.normal_(head.weight)
    if head.bias is not None:
        nn.init.normal_(head.bias)
    x, y = 3 * torch.randn(50, 7), torch.randint(0, 11, (50,))
    seen = watch.numbers(watch.look(head, x, y))
    angles = per_class(F.normalize(x) @ F.normalize(head.weight.detach()).T, head).acos()
    own = angles.gather(1, y[:, None])[:, 0]
    rival = angles.scatter(1, y[:, None], 9.0).amin(1)
    assert seen["accuracy"] == pytest.approx(float((head.logits(x).argmax(1) == y).float().mean()))
    assert seen["angle"] == pytest.approx(math.degrees(own.mean()), rel=1e-4)
    assert seen["rival_angle"] == pytest.approx(math.degrees(rival.mean()), rel=1e-4)
    norms = x.norm(dim=1)
    both = float(np.corrcoef(norms, own)[0, 1])
    assert seen["length_angle"] == pytest.approx(both, abs=1e-4)
    for name_, q in watch.QUANTILES.items():
        expected = torch.quantile(norms, q, interpolation="nearest")
        assert seen[name_] == pytest.approx(float(expected), rel=1e-6)
    m = head.margin.m
    u = dict.fromkeys(("arcface", "elasticface-arc", "npcface", "kappaface", "dyn-arcface"), lambda: own + m)
    u |= {"sphereface": lambda: m * own, "combined": lambda: m[0] * own + m[1]}
    if head.margin.name in u:
        assert seen["past_fold"] == pytest.approx(float((u[head.margin.name]() > math.pi).float().mean()))
    else:
        assert "past_fold" not in seen


def test_logged_loss_is_the_mean_over_rows(tmp_path):
    """One step per line, so that the lines can be checked against the head at the start."""
    data = blobs()
    config = Config(**{**QUICK, "epochs": 1, "log": 1, "batch": 1000, "validation": 0.0, "lr_warmup": 0.0})
    train(config, tmp_path / "run", data=data, quiet=True)
    (line,) = records(tmp_path / "run", "train")
    torch.manual_seed(0)
    network = hm.training.create_model("mlp", (1, 6, 6), 8, widths=[32])
    resolved = from_dict(read_toml(tmp_path / "run" / "config.toml"))
    head = build_head(resolved, 10)
    with np.load(tmp_path / "run" / "split.npz") as parts:
        rows = parts["train"]
    x = torch.from_numpy(data.samples[rows]).float()[:, None] / 127.5 - 1
    loss = head(network(x), torch.from_numpy(data.labels[rows]))
    assert line["loss"] == pytest.approx(loss.item(), rel=1e-5)


# Stopping


class Blow(nn.Module):
    """A network that overflows, or whose weights do."""

    def __init__(self, how):
        super().__init__()
        self.how, self.layer, self.calls = how, nn.Linear(36, 8), 0

    def forward(self, x):
        self.calls += self.training  # the trainer tries a network once before
        out = self.layer(x.flatten(1))
        if self.how == "features" and self.calls > 3:
            out = out * torch.where(torch.arange(len(x)) == 5, math.inf, 1.0)[:, None]
        return out


@pytest.mark.parametrize(
    ("how", "settings", "message"),
    [
        ("features", {}, "The features of these rows are not finite while input and weights are"),
        ("weights", {"lr": 1e38, "clip": 0.0, "optimizer": "sgd"}, "last update was too large|update before this"),
        ("head", {"set": {"scale": 3e38}}, "so the head overflowed: the scale or"),
    ],
)  # fmt: skip
def test_a_loss_that_is_not_finite(tmp_path, how, settings, message):
    network = Blow(how)
    config = Config(**{**QUICK, "checkpoint": 1, "epochs": 2, **settings})
    with pytest.raises(DivergedError, match=message) as caught:
        train(config, tmp_path / "run", data=blobs(), network=network, quiet=True)
    assert re.search(r"(at|after) step \d+", str(caught.value))
    kept = "There was no checkpoint yet" if how == "head" else "The last good checkpoint is kept: step-000000"
    assert kept in str(caught.value)
    if how == "features":
        assert "at step 4 (epoch 1), in 1 of 32 rows (blobs, sample " in str(caught.value)
        (path,) = (tmp_path / "run").glob("diverged-*.pt")
        batch = torch.load(path, weights_only=True)
        assert batch["bad"] == [5]
        assert batch["samples"].shape == (32, 6, 6)
        trained = load(tmp_path / "run", network=Blow("no"))
        assert trained.step == 3
        assert all(p.isfinite().all() for p in trained.network.parameters())


def test_nan_in_the_data_is_found_in_the_data(tmp_path):
    """from_arrays refuses it; a Data built by hand reaches the loop."""
    good = blobs()
    samples = good.samples.astype(np.float32)
    samples[7] = math.nan
    data = Data("mine", samples, good.labels, good.classes, open_set=False)
    config = Config(**{**QUICK, "split": "none"})
    with pytest.raises(DivergedError, match=r"NaN or inf themselves: look at the data"):
        train(config, tmp_path / "run", data=data, quiet=True)


# Loading


def test_load(tmp_path):
    data = blobs()
    train(Config(**QUICK, lr=0.01), tmp_path / "run", data=data, quiet=True)
    trained = load(tmp_path / "run")
    assert trained.classes == data.classes
    assert not trained.network.training
    x = data.samples[:50]
    embedded = trained.embed(x, batch=7)
    torch.testing.assert_close(embedded.norm(dim=1), torch.ones(50))
    assert (trained.predict_proba(x).argmax(1).numpy() == data.labels[:50]).mean() > 0.9
    assert trained.embed(x[:0]).shape == (0, 8)
    with pytest.raises(ValueError, match=r"samples must have shape \(N, 6, 6\); got \(5, 7, 6\)"):
        trained.embed(np.zeros((5, 7, 6), np.uint8))
    with pytest.raises(RunError, match=r"is not a run: run\.json is missing"):
        load(tmp_path)
    with pytest.raises(ValueError, match="which must be one of"):
        load(tmp_path / "run", "first")


def test_load_takes_averaged_weights_and_the_best(tmp_path):
    train(Config(**QUICK, ema=0.99, lr=0.01, keep=1), tmp_path / "run", data=blobs(), quiet=True)
    last, best = load(tmp_path / "run", "last"), load(tmp_path / "run")
    raw = hm.training.checkpoint.load_last(tmp_path / "run" / "checkpoints", pytest.fail)
    assert not torch.equal(last.head.weight, raw.model["head.weight"])
    torch.testing.assert_close(last.head.weight, raw.training["ema"]["1.weight"])
    assert best.step == raw.state["best"]["step"]
    scores = {line["step"]: line["accuracy"] for line in records(tmp_path / "run", "validation")}
    assert scores[best.step] == max(scores.values())


def test_start_from_another_run(tmp_path):
    train(Config(**{**QUICK, "epochs": 1}), tmp_path / "one", data=blobs(), quiet=True)
    config = Config(**{**QUICK, "epochs": 1, "lr": 1e-12, "weight_decay": 0.0}, init=str(tmp_path / "one"))
    train(config, tmp_path / "two", data=blobs(classes=14), quiet=True)
    one, two = load(tmp_path / "one"), load(tmp_path / "two")
    for a, b in zip(one.network.parameters(), two.network.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert two.head.classes == 14
    with pytest.raises(ValueError, match=r"the network of .* does not fit: \d tensors differ, first"):
        train(
            Config(**{**QUICK, "dim": 5}, init=str(tmp_path / "one")), tmp_path / "three", data=blobs(), quiet=True
        )


# The command


@pytest.fixture
def here(monkeypatch, capsys):
    """The same in this process, which saves the start-up: exit code, stdout, stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["hypermargin", "train", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return call


@pytest.fixture
def npz(tmp_path):
    data = blobs()
    np.savez(tmp_path / "blobs.npz", images=data.samples, labels=data.labels)
    return tmp_path / "blobs.npz"


ARGUMENTS = (
    "--model", "mlp", "--model-set", "widths=[16]", "--dim", 8, "--epochs", 2, "--log", 5, "--split", "sample",
    "--head", "cosface", "--set", "m=0.2", "--lr", 0.01, "--threads", 1, "--batch", 16,
)  # fmt: skip


def test_the_command_without_a_terminal(tmp_path, npz, here):
    code, out, err = here("--data", npz, *ARGUMENTS, "--out", tmp_path / "run")
    assert code == 0, err
    assert re.search(r"^test: loss \d\.\d+  acc [\d.]+%  \(step \d+: .* on the validation part.*\)$", out, re.M)
    assert f"run: {tmp_path / 'run'}" in out
    assert "\x1b" not in err + out
    assert re.search(r"epoch 1  step 5/\d+  loss .* acc .* own .*° .* rival .*° .* \|x\| .*/s .* left", err)
    saved = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (saved["head"], saved["set"]["m"], saved["model_set"]) == ("cosface", 0.2, {"widths": [16]})
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    code, _, err = here("--data", npz, *ARGUMENTS, "--out", tmp_path / "run")
    assert code == 1
    assert err.startswith("hypermargin: error: ")
    assert "Add --resume" in err
    assert here("--data", npz, *ARGUMENTS, "--out", tmp_path / "run", "--resume")[:2] == (0, out)
    code, _, err = here("--out", tmp_path / "run", "--resume", "--lr", 0.5)
    assert code == 2
    assert "with --lr = 0.01; got 0.5" in err


def test_the_command_in_a_terminal(tmp_path, npz):
    """A bar with the numbers, and Ctrl-C."""
    arguments = ["--data", npz, *ARGUMENTS, "--epochs", 4000, "--out", tmp_path / "run"]
    program = [sys.executable, "-m", "hypermargin.cli", "train", *map(str, arguments)]
    master, slave = pty.openpty()
    child = subprocess.Popen(
        program, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm", "COLUMNS": "150"}
    )
    os.close(slave)
    seen, told = "", 0
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if select.select([master], [], [], 0.5)[0]:
            try:
                chunk = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            seen += chunk.decode(errors="replace")
        if not told and "own" in seen and "rival" in seen:
            child.send_signal(signal.SIGINT)
            told = 1
    code = child.wait(20)
    os.close(master)
    assert code == 130, seen[-2000:]
    assert "\x1b[" in seen  # the bar is redrawn
    assert "stopped at step" in seen
    assert f"hypermargin train --out {tmp_path / 'run'} --resume" in re.sub(r"\s+", " ", seen)


def test_no_epochs_measure_what_is_there(tmp_path, npz, here):
    """From a trained network without a step; from a random one too, in words."""
    assert here("--data", npz, "--out", tmp_path / "first", *ARGUMENTS, "--quiet")[0] == 0
    none = (*ARGUMENTS, "--epochs", 0, "--data", npz)
    code, out, err = here("--out", tmp_path / "again", "--init", tmp_path / "first", "--init-head", *none)
    assert code == 0
    assert "no step was taken" in " ".join((out + err).split())
    assert "nothing is trained" not in err
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("first", "again")]
    assert results[1]["step"] == 0
    assert results[1]["metrics"]["test"]["accuracy"] == pytest.approx(results[0]["metrics"]["test"]["accuracy"])
    code, _, err = here("--out", tmp_path / "random", *none)
    assert code == 0
    assert "nothing is trained: epochs = 0" in " ".join(err.split())


def test_config_file_then_flags(tmp_path, npz, here):
    (tmp_path / "run.toml").write_text(f'data = "{npz}"\nmodel = "mlp"\nepochs = 1\ndim = 8\n[set]\nm = 0.1\n')
    code, out, err = here(
        "--config", tmp_path / "run.toml", "--dim", 6, "--set", "scale=7", "--out", tmp_path / "r", "--quiet"
    )
    assert (code, err) == (0, "")
    assert "run: " in out
    saved = tomllib.loads((tmp_path / "r" / "config.toml").read_text())
    assert (saved["dim"], saved["epochs"], saved["set"]) == (6, 1, {"m": 0.1, "scale": 7})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere"], "'nowhere' is neither"),
        (["--head", "arcfase", "--data", "digits"], "Did you mean 'arcface'"),
        (["--set", "m", "--data", "digits"], "--set takes name=value"),
        (["--set", "m=9", "--data", "digits"], "--set m must lie in"),
        (["--model", "lenet", "--data", "digits"], "Did you mean 'lenet++'"),
        (["--epochs", "-1", "--data", "digits"], "epochs must be at least 0"),
        (["--config", "none.toml"], "there is no file none.toml"),
        (["--nonsense"], "No such option"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, here, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = here(*arguments)
    assert code == 2
    assert message in err
    assert err.splitlines()[-1].startswith("hypermargin: error: ")


# On torch and numpy alone

BARE = """
import sys
for name in ("rich", "typer", "tensorboard", "safetensors", "PIL", "matplotlib", "sklearn", "fontTools"):
    sys.modules[name] = None
import hypermargin as hm
from hypermargin.training import Config, train
settings = dict(data=sys.argv[1], model="mlp", split="sample", dim=8, epochs=4, batch=16, threads=1)
result = train(Config(**settings), sys.argv[2])
assert result.metrics["test"]["accuracy"] > 0.5
trained = hm.load(sys.argv[2])
again = train(Config(**settings), sys.argv[2], resume=True, quiet=True)
assert again.metrics == result.metrics
try:
    hm.data.open_data("digits")
except hm.data.DataError as error:
    print(error)
"""


def test_torch_and_numpy_are_enough(tmp_path, npz):
    done = subprocess.run(
        [sys.executable, "-c", BARE, str(npz), str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "they need tensorboard, which is not installed. Run: pip install tensorboard" in done.stderr
    assert "model.safetensors needs safetensors, which is not installed." in done.stderr
    assert (next((tmp_path / "run" / "checkpoints").iterdir()) / "model.pt").exists()
    assert "needs scikit-learn, which is not installed. Run: pip install scikit-learn" in done.stdout


def test_code_named_by_a_run_is_not_run_unasked(tmp_path, monkeypatch):
    (tmp_path / "mynet.py").write_text(
        "import pathlib\nfrom torch import nn\npathlib.Path('imported').touch()\n"
        "def build(shape, dim):\n    return nn.Sequential(nn.Flatten(), nn.Linear(36, dim))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    config = Config(**{**QUICK, "model": "mynet:build", "model_set": {}, "epochs": 1})
    train(config, tmp_path / "run", data=blobs(), quiet=True)
    (tmp_path / "imported").unlink()
    monkeypatch.delitem(sys.modules, "mynet")
    with pytest.raises(RunError, match=r"names code of its own for the network, model = 'mynet:build'"):
        load(tmp_path / "run")
    assert not (tmp_path / "imported").exists()
    assert load(tmp_path / "run", trust=True).embed(blobs().samples[:2]).shape == (2, 8)


def test_a_network_of_your_own(tmp_path):
    """Its dimension is found by trying; vectors need no images."""
    vectors = from_arrays(np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 3, open_set=False)
    config = Config(**{**QUICK, "model": None, "model_set": {}, "epochs": 1})
    train(config, tmp_path / "run", data=vectors, network=nn.Linear(5, 7), quiet=True)
    trained = load(tmp_path / "run", network=nn.Linear(5, 7))
    assert (trained.config.model, trained.config.dim) == ("own", 7)
    with pytest.raises(ValueError, match=r"network must turn \(N, 5\) into \(N, dim\); got \(2, 5, 1\) for N = 2"):
        train(config, tmp_path / "other", data=vectors, network=nn.Unflatten(1, (5, 1)), quiet=True)


def test_pairs_are_scored(tmp_path):
    """A folder of images, LFW's pairs beside it; an unreadable image costs its pairs, not the run."""
    from PIL import Image

    data = blobs(6, 8)
    for row, label in enumerate(data.labels):
        folder = tmp_path / "images" / f"p{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.samples[row]).save(folder / f"p{label}_{row // 6 + 1:04d}.png")
    same = [f"p{k}\t{a}\t{b}" for k in range(6) for a, b in ((1, 2), (3, 4))]
    different = [f"p{k}\t{n}\tp{(k + 1) % 6}\t{n}" for k in range(6) for n in (1, 5)]
    (tmp_path / "pairs.txt").write_text("\n".join(["12", *same, *different]))
    settings = {**QUICK, "epochs": 8, "lr": 0.01, "batch": 8, "split": "none", "on_bad": "skip"}
    config = Config(**settings, data=str(tmp_path / "images"), verify=[str(tmp_path / "pairs.txt")])
    found = train(config, tmp_path / "run", quiet=True).metrics["pairs.txt"]
    assert found["eer"] < 0.2
    assert found["auc"] > 0.8
    (tmp_path / "images" / "p0" / "p0_0001.png").write_bytes(b"broken")
    again = train(config, tmp_path / "again", quiet=True).metrics["pairs.txt"]
    assert again["auc"] > 0.8
    (tmp_path / "pairs.txt").write_text("nonsense")
    with pytest.raises(DataError, match=r"pairs\.txt, line 1: expected"):  # before training, not after
        train(config, tmp_path / "third", quiet=True)
    assert not (tmp_path / "third" / "run.json").exists()


def test_a_folder_that_cannot_be_written(tmp_path, npz, here):
    (tmp_path / "file").write_text("")
    code, _, err = here("--data", npz, *ARGUMENTS, "--out", tmp_path / "file" / "run")
    assert code == 1
    assert err.startswith("hypermargin: error: ")
    assert "Not a directory" in err
