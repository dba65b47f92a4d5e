"""`hypermargin evaluate`, run as a user runs it, against scikit-learn and counting by hand."""

import csv
import json
import os
import pickle
import re
import sys

import numpy as np
import pytest
import torch
from command import here
from PIL import Image
from sklearn.metrics import roc_auc_score

import hypermargin as hm
from hypermargin.cli import _tables
from hypermargin.data import from_arrays
from hypermargin.evaluate import Thresholds
from hypermargin.evaluate.files import read
from hypermargin.margins import ArcFace, CosFace
from hypermargin.training import Config, RunError, train
from hypermargin.training import evaluation as measured

QUICK = {"epochs": 2, "dim": 8, "model": "mlp", "batch": 16, "threads": 1, "workers": 0, "tensorboard": False}
PICTURES = {"roc.png", "det.png", "scores.png", "norms.png"}
NUMBERS = {"evaluation.json", "roc.csv", "report.html", "look-first.csv"}
FILES = PICTURES | NUMBERS


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """faces.npz of 12 identities, a run on it, and the same images as files with pairs.txt and pairs.csv."""
    folder = tmp_path_factory.mktemp("evaluate")
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(12), 6)
    images = np.clip(rng.integers(0, 256, (12, 12, 12))[y] + rng.normal(0, 40, (72, 12, 12)), 0, 255).astype(
        np.uint8
    )
    names = np.array([f"p{k:02d}" for k in y])
    np.savez(folder / "faces.npz", images=images, labels=names)
    config = Config(data=str(folder / "faces.npz"), split="identity", **QUICK)
    train(config, folder / "run", quiet=True)
    for k, image in enumerate(images):
        path = folder / "lfw" / names[k] / f"{names[k]}_{k % 6 + 1:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    lines = ["2\t6"]
    for fold in range(2):
        people = range(6 * fold, 6 * fold + 6)
        lines += [f"p{k:02d}\t1\t2" for k in people]
        lines += [f"p{k:02d}\t3\tp{(k + 5) % 12:02d}\t4" for k in people]
    (folder / "pairs.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def evaluated(place):
    """The command on the run, with pairs."""
    code, out, err = here("evaluate", place / "run", "--pairs", place / "pairs.txt", "--images", place / "lfw")
    assert code == 0, err
    return out, json.loads((place / "run" / "evaluation" / "evaluation.json").read_text())


def arrays(seed=0, identities=30, each=4):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(identities), each)
    x = rng.normal(size=(identities, 8))[y] + 0.7 * rng.normal(size=(len(y), 8))
    return x.astype(np.float32), y


def all_pairs(x, y):
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    i, j = np.triu_indices(len(y), 1)
    return (unit.astype(np.float64) @ unit.T.astype(np.float64))[i, j], y[i] == y[j]


def features_by_hand(place, part):
    trained = hm.load(place / "run")
    with np.load(place / "run" / "split.npz") as saved, np.load(place / "faces.npz") as data:
        rows = saved[part]
        return trained.features(data["images"][rows]).numpy(), data["labels"][rows]


def is_png(path):
    with Image.open(path) as image:
        image.load()
        return image.format == "PNG" and image.size == (960, 660)


# A run


def test_training_saves_thresholds_that_verify_uses(place, run):
    """Chosen on the validation identities, with the weights that `load` gives."""
    chosen = Thresholds.read(place / "run")
    x, y = features_by_hand(place, "validation")
    scores, same = all_pairs(x, y)
    assert (chosen.part, chosen.identities, chosen.step) == ("validation", len(set(y)), hm.load(place / "run").step)
    assert (chosen.genuine, chosen.impostor) == (same.sum(), (~same).sum())
    assert set(chosen.far) == {0.1}  # 36 impostor pairs cannot show 1 %
    assert (scores[~same] >= chosen.far[0.1] - 1e-6).mean() <= 0.1
    lower = np.sort(scores[scores < chosen.far[0.1] - 2e-6])[-1]
    assert (scores[~same] >= lower).mean() > 0.1 or (scores[~same] >= lower - 2e-6).mean() > 0.1
    a, b = (place / "lfw" / "p00" / f"p00_000{k}.png" for k in (1, 2))
    code, out, err = run("verify", place / "run", a, b)
    assert (code, err) == (0, "")
    assert f"threshold    cosine {chosen.eer:.4f}" in out
    assert f"{chosen.impostor} impostor pairs of the validation part" in out


def test_a_run_is_evaluated_on_its_test_part(place, evaluated):
    out, found = evaluated
    assert "\x1b" not in out  # no colours where there is no terminal
    x, y = features_by_hand(place, "test")
    scores, same = all_pairs(x, y)
    assert f"the test part, {len(y)} samples of {len(set(y))} identities" in out
    v = found["verification"]
    assert (v["genuine"], v["impostor"]) == (same.sum(), (~same).sum())
    assert v["auc"] == pytest.approx(roc_auc_score(same, scores), abs=1e-4)
    assert v["confidence"] == 0.95
    assert v["intervals"]["eer"][0] <= v["eer"] <= v["intervals"]["eer"][1]
    assert found["identification"]["queries"] == len(y)
    assert found["open_set"]["unknown"] > 0
    assert found["geometry"]["samples"] == len(y)
    assert found["run"]["step"] == hm.load(place / "run").step
    assert set(found["versions"]) == {"hypermargin", "torch", "numpy"}
    assert {path.name for path in (place / "run" / "evaluation").iterdir()} == FILES
    assert all(is_png(place / "run" / "evaluation" / name) for name in PICTURES)


def test_thresholds_of_the_validation_part_are_measured_on_the_test_part(place, evaluated):
    out, found = evaluated
    scores, same = all_pairs(*features_by_hand(place, "test"))
    assert found["thresholds"]["chosen_on"] == "validation"
    assert "chosen on the validation part (36 impostor pairs), measured on the test part" in out
    for point in found["thresholds"]["points"]:
        assert point["far"] == pytest.approx((scores[~same] >= point["cosine"]).mean(), abs=0.01)
        assert point["tar"] == pytest.approx((scores[same] >= point["cosine"]).mean(), abs=0.02)
        assert np.cos(np.radians(point["angle_degrees"])) == pytest.approx(point["cosine"])
        assert point["squared_l2"] == pytest.approx(2 - 2 * point["cosine"])
        assert f"{point['cosine']:.4f}  {point['angle_degrees']:.1f}°" in out


def test_whether_training_kept_its_promise(place, evaluated):
    """Counted in numpy: ψ(θ_y) ≥ cos θ_j for all j, and the widest angle within below the narrowest without."""
    _, found = evaluated
    x, y = features_by_hand(place, "train")
    trained = hm.load(place / "run")
    weight = trained.head.weight.detach().numpy()
    x, weight = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (x, weight))
    own = np.array([trained.classes.index(name) for name in y])
    cosines = x @ weight.T
    target = cosines[np.arange(len(y)), own]
    rivals = np.where(np.arange(len(weight)) == own[:, None], -2, cosines).max(1)
    kept = np.cos(np.minimum(np.pi, np.arccos(target) + trained.head.margin.m)) >= rivals
    assert found["training"]["met"] == pytest.approx(kept.mean())
    assert found["training"]["nearer_to_own"] == pytest.approx((target > rivals).mean())
    near = x @ x.T
    apart = [near[own == k][:, own == k].min() > near[own == k][:, own != k].max() for k in set(own)]
    assert found["training"]["separated"] == pytest.approx(np.mean(apart))
    assert found["training"]["samples"] == found["training"]["of"] == len(y)


def test_pairs_with_their_own_folds(place, evaluated):
    out, found = evaluated
    trained = hm.load(place / "run")
    assert "accuracy over its 2 folds" in out
    scores, same = [], []
    for line in (place / "pairs.txt").read_text().splitlines()[1:]:
        cells = line.split("\t")
        one = cells[:2]
        two = cells[2:] if len(cells) == 4 else [cells[0], cells[2]]
        images = [
            np.asarray(Image.open(place / "lfw" / name / f"{name}_{int(k):04d}.png")) for name, k in (one, two)
        ]
        a, b = trained.embed(np.stack(images)).double().numpy()
        scores.append(a @ b)
        same.append(len(cells) == 3)
    scores, same = np.array(scores), np.array(same)
    result = found["pairs"]["pairs.txt"]
    assert result["verification"]["auc"] == pytest.approx(roc_auc_score(same, scores))
    accuracies = []
    for test in (slice(0, 12), slice(12, 24)):
        other = np.ones(24, bool)
        other[test] = False
        limits = np.append(np.sort(scores[other]), 2)[::-1]
        best = max(limits, key=lambda t: ((scores[other] >= t) == same[other]).mean())
        accuracies.append(((scores[test] >= best - 1e-7) == same[test]).mean())
    assert result["folds"]["accuracies"] == pytest.approx(accuracies)
    assert result["folds"]["error"] == pytest.approx(np.std(accuracies, ddof=1) / np.sqrt(2))


@pytest.mark.slow
def test_other_data_and_other_parts(place, run, tmp_path):
    code, out, err = run("evaluate", place / "run", "--data", place / "lfw", "--out", tmp_path, "--confidence", 0)
    assert code == 0, err
    assert "these data, 72 samples of 12 identities" in out
    assert "measured on these data" in out
    assert "interval" not in out
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert found["verification"]["intervals"] is None
    before = (place / "run" / "thresholds.json").read_bytes()
    code, out, err = run("evaluate", place / "run", "--part", "train", "--out", tmp_path, "--confidence", 0)
    assert code == 0, err
    for words in ("classification", "prototypes", "samples that meet the margin", "was the promise kept?"):
        assert words in out
    assert (place / "run" / "thresholds.json").read_bytes() == before
    (place / "run" / "thresholds.json").unlink()
    code, out, err = run("evaluate", place / "run", "--most", 12, "--out", tmp_path, "--confidence", 0)
    assert code == 0, err
    assert "of the test part's 24 samples 12 are taken, in whole identities" in err
    assert "12 samples of 2 identities" in out
    assert not (place / "run" / "thresholds.json").exists()  # a quick look must not decide what `verify` uses
    (place / "run" / "thresholds.json").write_bytes(before)


def test_a_closed_set(tmp_path, run):
    rng = np.random.default_rng(1)
    y = np.repeat(np.arange(3), 20)
    x = (rng.normal(size=(3, 6))[y] + 0.8 * rng.normal(size=(60, 6))).astype(np.float32)
    np.savez(tmp_path / "flowers.npz", features=x, labels=np.array(["iris", "lily", "rose"])[y])
    config = Config(data=str(tmp_path / "flowers.npz"), split="sample", **{**QUICK, "model": "none"})
    train(config, tmp_path / "run", quiet=True)
    assert Thresholds.read(tmp_path / "run").part == "validation"
    code, out, err = run("evaluate", tmp_path / "run")
    assert code == 0, err
    found = json.loads((tmp_path / "run" / "evaluation" / "evaluation.json").read_text())
    trained = hm.load(tmp_path / "run")
    with np.load(tmp_path / "run" / "split.npz") as saved:
        rows = saved["test"]
    p = trained.predict_proba(x[rows]).double().numpy()
    taken = p.argmax(1)
    assert found["classification"]["accuracy"] == pytest.approx((taken == y[rows]).mean())
    assert found["classification"]["loss"] == pytest.approx(
        -np.log(p[np.arange(len(rows)), y[rows]]).mean(), rel=1e-4
    )
    confused = {(a, b): n for a, b, n in found["classification"]["confused"]}
    names = "iris", "lily", "rose"
    for a in range(3):
        for b in range(3):
            count = int(((y[rows] == a) & (taken == b)).sum())
            assert a == b or confused.get((names[a], names[b]), 0) == count
    assert found["geometry"]["prototypes"]["accuracy"] == pytest.approx(found["classification"]["accuracy"])
    assert "accuracy" in out


def test_a_finished_training_outlives_its_thresholds(tmp_path, capsys):
    """A test part without pairs, and a disk that refuses the file."""
    x, y = arrays(identities=8, each=2)
    data = from_arrays(x, y, open_set=True)
    config = Config(data="mine", split="none", **{**QUICK, "model": "none"})
    train(config, tmp_path / "none", data=data)
    assert not (tmp_path / "none" / "thresholds.json").exists()
    assert "no thresholds saved: the run gives no thresholds: it has neither" in capsys.readouterr().err
    config = Config(data="mine", split="identity", **{**QUICK, "model": "none"})
    (tmp_path / "full" / "thresholds.json").mkdir(parents=True)
    train(config, tmp_path / "full", data=data)
    assert "no thresholds saved" in capsys.readouterr().err
    assert (tmp_path / "full" / "result.json").exists()


def test_learned_margins_are_the_ones_looked_at():
    assert measured.margin_of(hm.create_head("arcface", 4, 3)) == ArcFace(0.5)
    learned = hm.create_head("cosface", 4, 3, learn_margin=True)
    with torch.no_grad():
        learned.m.fill_(0.125)
    assert measured.margin_of(learned) == CosFace(0.125)
    own = hm.create_head("cosface", 4, 3, class_margins=[0.1, 0.2, 0.3])
    assert measured.margin_of(own) is None
    three = hm.create_head("combined", 4, 3, learn_margin=True)
    with torch.no_grad():
        three.m.copy_(torch.tensor([1.0, 0.25, 0.125]))
    assert measured.margin_of(three).m == (1.0, 0.25, 0.125)
    assert measured.margin_of(hm.create_head("normface", 4, 3)).m is None


def test_changed_data_are_refused(place, tmp_path):
    trained = hm.load(place / "run")
    with np.load(place / "faces.npz") as data:
        other = from_arrays(data["images"][:, ::-1].copy(), data["labels"])
    with pytest.raises(RunError, match=r"other labels or pixels\. Do this"):
        measured.check_same(place / "run", trained.about, other, "Do this.")


def test_pairs_with_people_of_the_training_set_are_counted(place, run, tmp_path):
    known = set(hm.load(place / "run").classes)
    lines = [line.split() for line in (place / "pairs.txt").read_text().splitlines()[1:]]
    pairs = sum(bool({line[0], line[2]} & known) for line in lines)
    code, _, err = run(
        "evaluate", place / "run", "--pairs", place / "pairs.txt", "--images", place / "lfw", "--out", tmp_path
    )
    assert code == 0, err
    assert 0 < pairs < len(lines)
    assert f"pairs.txt: {pairs} pairs hold one of {len(known)} people of the training set: " in err
    assert "compared by name: a class of the training set, a folder in the list" in err
    found = json.loads((tmp_path / "evaluation.json").read_text())["pairs"]["pairs.txt"]
    assert found["of_the_training_set"] == {"pairs": pairs, "people": sorted(known)}


def test_pairs_of_one_kind_are_refused_before_anything_is_embedded(place, run, tmp_path, monkeypatch):
    monkeypatch.setattr(hm.training.Trained, "features", None)
    (tmp_path / "p.txt").write_text("p00\t1\t2\np01\t1\t2\n")
    code, _, err = run("evaluate", place / "run", "--pairs", tmp_path / "p.txt", "--images", place / "lfw")
    assert (code, err.count("\n")) == (2, 1)
    assert "p.txt: there are no impostor pairs in it, so there is no error rate: all 2 are genuine" in err
    config = Config(
        data=str(place / "faces.npz"), verify=[str(tmp_path / "p.txt")], verify_images=str(place / "lfw"), **QUICK
    )
    with pytest.raises(ValueError, match="no impostor pairs"):
        train(config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "checkpoints").exists()


# Files


def test_named_embeddings_on_lfw_s_pairs(place, tmp_path, run):
    """What `embed` writes, by name, gives the numbers that the run itself gives on the same images."""
    assert run("embed", place / "run", place / "lfw", "-o", tmp_path / "named.npz")[0] == 0
    pairs = ("--pairs", place / "pairs.txt")
    code, out, err = run("evaluate", tmp_path / "named.npz", *pairs, "--out", tmp_path / "a")
    assert (code, err) == (0, "")
    assert "pairs.txt, intervals over identities" in out
    assert "accuracy over its 2 folds" in out
    assert run("evaluate", place / "run", *pairs, "--images", place / "lfw", "--out", tmp_path / "b")[0] == 0
    one, two = (json.loads((tmp_path / k / "evaluation.json").read_text())["pairs"]["pairs.txt"] for k in "ab")
    assert one["verification"]["auc"] == pytest.approx(two["verification"]["auc"])
    assert one["folds"]["accuracies"] == pytest.approx(two["folds"]["accuracies"])
    code, out, err = run(
        "evaluate", tmp_path / "named.npz", *pairs, "--metric", "euclidean", "--out", tmp_path / "c"
    )
    assert code == 0, err
    unit = json.loads((tmp_path / "c" / "evaluation.json").read_text())["pairs"]["pairs.txt"]
    assert unit["verification"]["auc"] == pytest.approx(one["verification"]["auc"])  # they are of unit length
    assert re.search(r" at distance \d\.\d", out)
    with np.load(tmp_path / "named.npz") as found:
        np.save(tmp_path / "x.npy", found["embeddings"])
        np.save(tmp_path / "names.npy", found["names"])
    code, again, _ = run("evaluate", tmp_path / "x.npy", tmp_path / "names.npy", *pairs, "--confidence", 0)
    assert code == 0
    assert f"{100 * one['folds']['accuracy']:.2f} ±" in again


def test_scores_as_text(tmp_path, run):
    (tmp_path / "trials").write_text("a b target\na c nontarget\nb c nontarget\n")
    (tmp_path / "scores").write_text("a b 2.5\na c 1.5\nb c -3\n")
    code, out, err = run("evaluate", tmp_path / "scores", "--pairs", tmp_path / "trials", "--confidence", 0)
    assert code == 0, err
    assert "1 genuine, 2 impostor" in " ".join(out.split())
    (tmp_path / "scores.csv").write_text(
        "distance_like,label\n".replace("distance_like", "score") + "1,0\n2,0\n.5,1\n"
    )
    code, out, err = run("evaluate", tmp_path / "scores.csv", "--confidence", 0)
    assert code == 0
    assert "Are these distances?" in err


def test_two_npy_files(run, tmp_path):
    x, y = arrays()
    np.save(tmp_path / "embeddings.npy", x)
    np.save(tmp_path / "labels.npy", np.array([f"name {k}" for k in y]))
    out_folder = tmp_path / "deep" / "out"
    code, out, err = run("evaluate", tmp_path / "embeddings.npy", tmp_path / "labels.npy", "--out", out_folder)
    assert (code, err) == (0, "")
    assert "thresholds that rest on few pairs" in out
    assert "6 of 6,960 impostor pairs of 30 identities: the true rate may be 0.032 % to 0.19 %" in " ".join(
        out.split()
    )
    assert {path.name for path in out_folder.iterdir()} == FILES
    assert all(is_png(out_folder / name) for name in PICTURES)
    found = json.loads((out_folder / "evaluation.json").read_text())
    scores, same = all_pairs(x, y)
    assert found["verification"]["auc"] == pytest.approx(roc_auc_score(same, scores), abs=1e-5)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert f"pairs {same.sum()} genuine, {(~same).sum():,} impostor" in lines
    assert "chosen for cosine angle squared L2 FAR TAR" in lines
    with (out_folder / "roc.csv").open() as file:
        points = [{name: float(cell) for name, cell in row.items()} for row in csv.DictReader(file)]
    assert 100 < len(points) <= 2000
    for point in points[::50]:
        assert point["far"] == pytest.approx((scores[~same] >= point["threshold"]).mean(), abs=2e-4)
        assert point["tar"] == pytest.approx((scores[same] >= point["threshold"]).mean(), abs=6e-3)
    for f, tar in found["verification"]["tar"].items():
        assert max(p["tar"] for p in points if p["far"] <= float(f)) == tar


def test_embeddings_of_hypermargin_embed(place, tmp_path, run):
    """Unit embeddings with their norms: the lengths are those of the features."""
    assert run("embed", place / "run", place / "faces.npz", "-o", tmp_path / "out.npz")[0] == 0
    code, out, err = run("evaluate", tmp_path / "out.npz", "--confidence", "0")
    assert code == 0
    assert "add --out FOLDER" in err
    with np.load(place / "faces.npz") as data:
        features = hm.load(place / "run").features(data["images"]).numpy()
    again, labels = read(tmp_path / "out.npz")
    assert np.allclose(again, features, rtol=1e-5)
    assert len(labels) == 72
    assert f"mean {np.linalg.norm(features, axis=1).mean():.4g}" in " ".join(out.split())


def test_unit_embeddings_have_no_picture_of_lengths(tmp_path, run):
    x, y = arrays()
    np.savez(tmp_path / "unit.npz", embeddings=x / np.linalg.norm(x, axis=1, keepdims=True), labels=y)
    code, out, _ = run("evaluate", tmp_path / "unit.npz", "--out", tmp_path / "out", "--confidence", 0)
    assert code == 0
    assert "all have one length" in out
    assert not (tmp_path / "out" / "norms.png").exists()


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ">f4", np.int16])
def test_any_numbers_and_any_labels(tmp_path, run, dtype):
    x, y = arrays()
    np.save(tmp_path / "x.npy", np.asfortranarray((100 * x).astype(dtype)))
    for labels in (y.astype(np.uint8), y.astype("S3"), -y):
        np.save(tmp_path / "y.npy", labels)
        code, out, err = run("evaluate", tmp_path / "x.npy", tmp_path / "y.npy", "--confidence", 0)
        assert code == 0, err
        assert "120 samples of 30 identities" in out


def test_scores(tmp_path, run):
    x, y = arrays()
    scores, same = all_pairs(x, y)
    i, j = np.triu_indices(len(y), 1)
    fold = np.random.default_rng(0).integers(0, 5, len(same))
    np.savez(tmp_path / "scores.npz", scores=10 * scores, same=same, first=y[i], second=y[j], fold=fold)
    code, out, err = run("evaluate", tmp_path / "scores.npz", "--out", tmp_path / "out", "--confidence", 0.9)
    assert (code, err) == (0, "")
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert found["verification"]["auc"] == pytest.approx(roc_auc_score(same, scores))
    assert "intervals over identities" in out
    assert "90 % interval" in out
    assert "accuracy over its 5 folds" in out
    assert " at score " in out
    assert "cosine" not in out
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES - {"norms.png", "look-first.csv"}
    np.savez(tmp_path / "bare.npz", scores=scores, same=same.astype(int))
    code, out, err = run("evaluate", tmp_path / "bare.npz")
    assert code == 0
    assert "intervals over pairs" in out
    assert "ten contiguous folds" in out


def test_without_matplotlib_there_are_numbers(tmp_path, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    x, y = arrays()
    np.savez(tmp_path / "x.npz", embeddings=x, labels=y)
    code, out, err = run("evaluate", tmp_path / "x.npz", "--out", tmp_path / "out", "--confidence", 0)
    assert code == 0
    assert err == "pictures need matplotlib, which is not installed. Run: pip install matplotlib\n"
    assert {path.name for path in (tmp_path / "out").iterdir()} == NUMBERS
    assert "written      evaluation.json, roc.csv, report.html, look-first.csv in" in out


def test_what_cannot_be_written_is_still_shown(tmp_path, run):
    x, y = arrays()
    np.savez(tmp_path / "x.npz", embeddings=x, labels=y)
    (tmp_path / "out" / "roc.csv").mkdir(parents=True)
    code, out, err = run("evaluate", tmp_path / "x.npz", "--out", tmp_path / "out", "--confidence", 0)
    assert (code, err.count("\n")) == (2, 1)
    assert "cannot be written" in err
    assert "rank-1" in out


# Bad input


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


def test_bad_input_is_one_line(place, tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y = arrays()
    np.save("x.npy", x)
    np.save("y.npy", y)
    np.save("short.npy", y[:-1])
    np.save("float.npy", y / 2)
    np.save("words.npy", np.full(x.shape, "a"))
    np.save("one.npy", np.zeros(len(y), int))
    np.save("object.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    (tmp_path / "pickle.npy").write_bytes(pickle.dumps(Bomb()))
    nan = x.copy()
    nan[3, 1] = np.nan
    np.save("nan.npy", nan)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:200])
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and then nothing")
    (tmp_path / "empty.npy").write_bytes(b"")
    np.savez("other.npz", a=x, b=y)
    np.savez("half.npz", scores=np.arange(3.0))
    np.savez("wrong.npz", scores=np.arange(3.0), same=np.array([0, 1, 2]))
    np.savez("who.npz", scores=np.arange(4.0), same=np.array([0, 1, 0, 1]), first=[1, 2, 3, 4], second=[2, 2, 4, 5])
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    evaluate_run = ["evaluate", place / "run"]
    for arguments, words in (
        (["x.npy"], "x.npy: labels are missing. Give them as a second .npy file"),
        (["y.npy", "x.npy"], "Swap the two files"),
        (["x.npy", "other.npz"], "give two .npy files, or one .npz file"),
        (["x.npy", "short.npy"], "labels must have shape (120,)"),
        (["x.npy", "float.npy"], "labels must be whole numbers or names; got float64"),
        (["x.npy", "one.npy"], "no impostor pairs"),
        (["words.npy", "y.npy"], "must be numbers; got <U1"),
        (["nan.npy", "y.npy"], "got NaN at row 3"),
        (["object.npy", "y.npy"], "holds Python objects, which are not read"),
        (["pickle.npy", "y.npy"], "holds Python objects, which are not read"),
        (["cut.npy", "y.npy"], "cut.npy: not a readable .npy file"),
        (["empty.npy", "y.npy"], "empty.npy: not a readable .npy file"),
        (["cut.npz"], "cut.npz: not a readable .npz file"),
        (["nothing.npz"], "nothing.npz: there is no such file"),
        (["file"], "file: it is empty. Expected: two columns, score and label"),
        (["other.npz"], "it holds a (120, 8), b (120,)"),
        (["half.npz"], "scores need an array same"),
        (["wrong.npz"], "same must be true or false"),
        (["who.npz"], "identities must be equal where same is true"),
        (["x.npy", "y.npy", "--data", "digits"], "are for a run's folder"),
        (["x.npy", "--pairs", "no.txt"], "there is no file no.txt"),
        (["x.npy", "y.npy", "--pairs", "file"], "names must be strings"),
        (["file", "y.npy"], "Give a list of pairs as --pairs y.npy"),
        (["file", "--pairs", "file", "--pairs", "file"], "scores belong to one list of pairs; got 2"),
        (["x.npy", "y.npy", "--confidence", "2"], "confidence must lie in [0, 1)"),
        (["x.npy", "y.npy", "--device", "gpu"], "device must be one of"),
        (["x.npy", "y.npy", "--confidence", "0", "--out", "file"], "--out must be a folder; file is a file"),
        (["folder"], "folder is not a run"),
        ([*evaluate_run[1:], "y.npy"], "a run has its own"),
        ([*evaluate_run[1:], "--part", "tests"], "Did you mean 'test'?"),
        ([*evaluate_run[1:], "--pairs", "no.txt"], "there is no file no.txt"),
        ([*evaluate_run[1:], "--images", "no"], "--images: there is no folder no"),
        ([*evaluate_run[1:], "--data", "nonsense"], "'nonsense' is neither"),
    ):
        code, out, err = run("evaluate", *arguments)
        assert (code, err.count("\n")) == (2, 1), (arguments, out, err)
        assert words in err, (words, err)
    assert not (tmp_path / "exploded").exists()


def test_tables_in_a_terminal(monkeypatch, capsys):
    """The same cells; brackets in names are not markup."""
    from rich.console import Console

    sections = [_tables.Section("a title [1]", ("", "value"), [("name [bold]", "1")])]
    _tables.show(sections)
    plain = capsys.readouterr().out
    assert plain == "a title [1]\n               value\n  name [bold]  1\n\n"
    monkeypatch.setattr(_tables, "Console", lambda **options: Console(force_terminal=True, width=80, **options))
    _tables.show(sections)
    rich = capsys.readouterr().out
    assert "\x1b" in rich
    assert "name [bold]" in rich
