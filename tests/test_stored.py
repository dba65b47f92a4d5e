"""What earlier versions wrote is read, means what it meant, and training goes on from it (tests/stored)."""

import copy
import dataclasses
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import team
import torch
import torch.distributed as dist
from sklearn.base import clone
from sklearn.datasets import load_iris
from typer.main import get_command

import hypermargin as hm
from hypermargin import evaluate, heads, schedule, training
from hypermargin.cli import app

STORED = Path(__file__).parent / "stored" / "0.1"
EXPECTED = json.loads((STORED / "expected.json").read_text())
X = torch.tensor(EXPECTED["inputs"]["features"], dtype=torch.float64)
Y = torch.tensor(EXPECTED["inputs"]["labels"])
CLASSES = 11
MARGINS = [0.1 + 0.02 * k for k in range(CLASSES)]
HEADS = {
    "arcface": ("arcface", {"scale": 16.0}),
    "softmax-bias": ("softmax", {"bias": True}),
    "normface-learned-scale": ("normface", {"learn_scale": True}),
    "cosface-class-margins-learned": ("cosface", {"scale": 16.0, "learn_margin": True, "class_margins": MARGINS}),
    "sphereface-lambda": ("sphereface", {"m": 3.0}),
    "arcface-adacos-dynamic": ("arcface", {"scale": "adacos-dynamic"}),
    "arcface-partial-fc": ("arcface", {"scale": 16.0, "sample": hm.PartialFC(0.5, seed=3)}),
    "arcface-warmup": ("arcface", {"scale": 16.0, "schedule": schedule.MarginWarmup(10, shape="cosine")}),
}
# Of numbers computed in float64 from sums of a few dozen terms: 64 roundings of 2⁻⁵², of logits up to 64.
EXACT = {"rtol": 64 * 2**-52, "atol": 64 * 2**-46}
# s and the schedules are float32 by design, so λ and the strength are: a few roundings of 2⁻²³.
NARROW = {"rtol": 8 * 2**-23, "atol": 8 * 2**-23}
# Of a float32 network of two layers, whose sums have up to 36 terms: 36 roundings a layer.
EMBEDDED = {"rtol": 0, "atol": 72 * 2**-23}
# Four steps of float32 by other kernels. A gradient's sums have up to 36 terms, so 36 roundings of its largest,
# which is below 1 here (a step is at most clip·lr = 5·0.05); each of the four steps adds its own.
TRAINED = {"rtol": 0, "atol": 4 * 36 * 2**-23}


def close(found, wanted, bound):
    torch.testing.assert_close(torch.as_tensor(found).double(), torch.tensor(wanted, dtype=torch.float64), **bound)


def check_numbers(head, wanted):
    """What 0.1's head said, in evaluation and at the next training step."""
    head = copy.deepcopy(head).double().eval()
    close(head.logits(X), wanted["logits"], EXACT)
    close(head.current_scale(), wanted["scale"], EXACT)
    close(torch.tensor(head.current_adjustment()), wanted["adjustment"], NARROW)
    scheduled = len(head.schedules) > 0
    loss_bound = {name: 64 * value for name, value in NARROW.items()} if scheduled else EXACT
    close(head(X, Y), wanted["loss"], loss_bound)
    head.train()
    close(head(X, Y), wanted["next_loss"], loss_bound)
    close(head.current_scale(), wanted["next_scale"], EXACT)


@pytest.mark.parametrize("name", HEADS)
def test_a_state_dict_of_0_1(name):
    family, settings = HEADS[name]
    head = hm.create_head(family, X.shape[1], CLASSES, **copy.deepcopy(settings))
    saved = torch.load(STORED / "heads" / f"{name}.pt", weights_only=True)
    assert head.state_dict().keys() == saved.keys()
    head.load_state_dict(saved)
    assert all(torch.equal(tensor, saved[key]) for key, tensor in head.state_dict().items())
    check_numbers(head, EXPECTED["heads"][name])


@pytest.mark.parametrize("file", ["head.safetensors", "head.pt", "rows.npy", "shards"])
def test_a_head_written_by_0_1(file):
    name = "cosface-class-margins-learned"
    saved = torch.load(STORED / "heads" / f"{name}.pt", weights_only=True)
    found = heads.read(STORED / "written" / file)
    assert torch.equal(found.weight, saved["weight"])
    if not file.startswith("head"):  # the formats of others hold the rows alone
        return
    head = heads.head_from(found, "cosface", learn_margin=True)
    check_numbers(head, EXPECTED["heads"][name])
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    heads.restore_optimizer(optimizer, head, found)
    theirs = torch.load(STORED / "written" / "optimizer.pt", weights_only=True)
    ours = optimizer.state_dict()["state"]
    assert ours.keys() == theirs.keys()
    for index, state in theirs.items():
        assert all(torch.equal(ours[index][key], value) for key, value in state.items())


def test_files_of_the_ranks_of_0_1_are_one_head():
    for pattern in ("rank-*.pt", "written-*.safetensors"):
        whole = heads.read(sorted((STORED / "sharded").glob(pattern)))
        head = heads.head_from(whole, "normface", learn_scale=True)
        assert head.classes == CLASSES
        # Alone it has the rows that both ranks had: each had given all of them.
        close(head.double().logits(X), EXPECTED["sharded"]["0"]["logits"], EXACT)
        close(head.current_scale(), EXPECTED["sharded"]["0"]["scale"], EXACT)


def stored_run(name, there):
    """A copy of a run, beside its data, as it was after the first of its two epochs; and its last checkpoint."""
    shutil.copy(STORED / "images.npz", there)
    shutil.copytree(STORED / name, there / name)
    last = sorted((there / name / "checkpoints").iterdir())[-1]
    last.rename(there / "last")
    return there / name


@pytest.mark.parametrize("name", ["alone", "ranks"])
@pytest.mark.parametrize("which", ["best", "last"])
def test_a_run_of_0_1_is_loaded(name, which):
    trained = hm.load(STORED / name, which)
    wanted = EXPECTED[name][which]
    config = dataclasses.asdict(trained.config)
    assert {key: config[key] for key in EXPECTED[name]["config"]} == EXPECTED[name]["config"]
    assert (trained.step, list(trained.classes)) == (wanted["step"], wanted["classes"])
    close(trained.head.current_scale(), wanted["scale"], EXACT)
    with np.load(STORED / "images.npz") as samples:
        images, labels = samples["images"], samples["labels"]
    embeddings = trained.embed(images)
    close(embeddings, wanted["embeddings"], EMBEDDED)
    names = [str(label) for label in labels]
    known = torch.tensor([trained.classes.index(n) if n in trained.classes else -100 for n in names])
    loss = copy.deepcopy(trained.head).double()(trained.features(images).double(), known)
    # The loss turns by at most s(1 + |ψ'|) for an angle; the features' error is EMBEDDED's.
    close(loss, wanted["loss"], {"rtol": 0, "atol": 4 * wanted["scale"] * EMBEDDED["atol"]})
    found = evaluate.verification(embeddings, labels)
    # Two pairs whose cosines differ by rounding may change places: one pair of either kind.
    close(found.eer, wanted["eer"], {"rtol": 0, "atol": 1 / found.genuine + 1 / found.impostor})
    close(found.auc, wanted["auc"], {"rtol": 0, "atol": 1 / found.genuine + 1 / found.impostor})
    assert evaluate.Thresholds.read(STORED / name).step == EXPECTED[name]["best"]["step"]


def resumed(folder):
    return training.train(training.Config(), folder, resume=True, quiet=True).step


def check_resumed(folder, name):
    """Weights, averages and the optimiser's state after the second epoch, as 0.1 had them."""
    trained = hm.load(folder, "last")
    wanted = hm.load(STORED / name, "last")
    assert trained.step == wanted.step == EXPECTED[name]["last"]["step"]
    for part in ("network", "head"):
        mine, theirs = getattr(trained, part).state_dict(), getattr(wanted, part).state_dict()
        assert mine.keys() == theirs.keys()
        for key, tensor in theirs.items():
            torch.testing.assert_close(mine[key], tensor, **TRAINED, msg=lambda m, k=key: f"{k}: {m}")
    logs = [(each / "log.jsonl").read_text().splitlines() for each in (folder, STORED / name)]
    for mine, theirs in zip(*logs, strict=True):
        mine, theirs = json.loads(mine), json.loads(theirs)
        assert mine["step"] == theirs["step"]
        if "loss" in theirs:
            # s(1 + |ψ'|) = 11 for an angle, and features are at least 1/4 long.
            close(mine["loss"], theirs["loss"], {"rtol": 0, "atol": 44 * TRAINED["atol"]})


def test_a_run_of_0_1_goes_on(tmp_path, monkeypatch):
    """The second of its epochs once more, from the checkpoint after the first: as 0.1 did it."""
    monkeypatch.chdir(tmp_path)
    folder = stored_run("alone", tmp_path)
    resumed(folder)
    check_resumed(folder, "alone")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.InconsistentVersionWarning")
def test_fitted_estimators_of_0_1_predict_and_show_their_weights():
    """0.1 showed coef_ also where lengths are divided out; today that is boundary_coef_."""
    features = load_iris().data
    features = (features - features.mean(0)) / features.std(0)
    models = pickle.loads((STORED / "estimators.pkl").read_bytes())
    for name, wanted in json.loads((STORED / "estimators.json").read_text()).items():
        model = models[name]
        np.testing.assert_allclose(
            model.decision_function(features[::7]), wanted["decisions"], rtol=1e-9, atol=1e-9
        )
        assert hasattr(model, "coef_") == (name == "free")
        if "coef" in wanted:
            np.testing.assert_allclose(model.boundary_coef_, wanted["coef"], rtol=1e-12)
            np.testing.assert_allclose(model.boundary_intercept_, wanted["intercept"], rtol=1e-12)
        again = clone(model).fit(features, load_iris().target)
        assert again.margin_.m == 0.2  # what 0.1's default was, in a model that has it
        np.testing.assert_allclose(again.decision_function(features[::7]), wanted["decisions"], atol=1e-3)


def on_two_ranks(there):
    """A rank's state_dict in its place; the two compute as 0.1's did, and go on with its run."""
    rank = dist.get_rank()
    head = hm.create_head("normface", X.shape[1], CLASSES, learn_scale=True, shard=hm.Shard(seed=4))
    head.load_state_dict(torch.load(STORED / "sharded" / f"rank-{rank}.pt", weights_only=True))
    check_numbers(head, EXPECTED["sharded"][str(rank)])
    resumed(there / "ranks")
    return "done"


def test_a_run_of_0_1_on_two_ranks_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = stored_run("ranks", tmp_path)
    assert team.ranks(2, "test_stored", "on_two_ranks", tmp_path) == ["done", "done"]
    check_resumed(folder, "ranks")


def test_one_process_goes_on_with_a_run_of_two_of_0_1(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = stored_run("ranks", tmp_path)
    resumed(folder)
    check_resumed(folder, "ranks")


def test_every_flag_of_0_1_is_still_taken():
    """All commands but bench, whose benchmarks have left the package."""

    def flags(command, path=()):
        subcommands = getattr(command, "commands", None)
        if subcommands:
            return {k: v for name, each in subcommands.items() for k, v in flags(each, (*path, name)).items()}
        return {" ".join(path): {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}}

    today = flags(get_command(app))
    for command, known in json.loads((STORED / "flags.json").read_text()).items():
        assert set(known) <= today[command], command
