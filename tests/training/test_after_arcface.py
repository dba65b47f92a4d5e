"""The losses after ArcFace in a run: counted classes, their own numbers, state that resumes, lengths and angles."""

import json
import re

import numpy as np
import onnxruntime
import pytest
import torch
from cases import UNADVISED

import hypermargin as hm
from hypermargin.advise.usual import draw
from hypermargin.counts import margins_from_counts, offsets_from_counts
from hypermargin.data import from_arrays
from hypermargin.deploy import export
from hypermargin.margins import AdaFace, ArcFace, MagFace
from hypermargin.training import Config, ending, load, train, watch
from hypermargin.training.build import build_head, resolve_head
from hypermargin.training.evaluation import lengths_against_angles, open_parts
from hypermargin.training.loop import Trainer
from hypermargin.training.quality import are_images, measure
from hypermargin.training.start import start_head_from

QUICK = {
    "dim": 8, "epochs": 2, "batch": 32, "watch": 1, "log": 2, "model": "mlp", "model_set": {"widths": [16]},
    "tensorboard": False, "threads": 1, "workers": 0, "augment": "none", "split": "sample",
}  # fmt: skip
SIZES = [80, 40, 20, 10]
AFTER = [name for name, recipe in hm.recipes.FAMILY.items() if recipe.group != "classic"]


def uneven():
    """Classes of 80, 40, 20 and 10 samples."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), SIZES)
    images = rng.normal(size=(4, 6, 6))[labels] * 50 + 128 + rng.normal(size=(len(labels), 6, 6)) * 20
    return from_arrays(images.clip(0, 255).astype(np.uint8), labels, name="uneven")


def trained_on(folder):
    """How many training samples each class had, from the files of the run."""
    with np.load(folder / "split.npz") as parts:
        return np.bincount(np.repeat(np.arange(4), SIZES)[parts["train"]], minlength=4).tolist()


@pytest.mark.parametrize("name", AFTER)
def test_a_run_of_each(tmp_path, name):
    """Trained, loaded, and the loss of the loaded head is finite, its state that of the last step."""
    train(Config(**QUICK, head=name), tmp_path / "run", data=uneven(), quiet=True)
    trained = load(tmp_path / "run")
    assert trained.predict_proba(uneven().samples[:5]).shape == (5, 4)
    steps = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])["step"]
    counts = trained_on(tmp_path / "run")
    if name.startswith("elasticface"):
        assert trained.head.row_margin.step == trained.step <= steps
    if name == "adaface":
        assert trained.head.row_margin.deviation < 100
    if name == "ldam":
        wanted = margins_from_counts(counts, "ldam", high=trained.head.margin.m)
        torch.testing.assert_close(trained.head.m, wanted)
    if name in ("balanced-softmax", "logit-adjustment"):
        torch.testing.assert_close(trained.head.offsets, offsets_from_counts(counts))
    if name == "kappaface":
        assert not trained.head.row_margin.seen.any()
        assert trained.head.row_margin.samples.tolist() == counts
        weights = trained.head.row_margin.weights
        assert (weights != 1).all()  # an epoch has ended
        assert weights.argmin() == 0  # the most frequent class
    if name == "vs":
        torch.testing.assert_close(trained.head.view_state.offsets, offsets_from_counts(counts))
    if name == "vpl":
        assert trained.head.view_state.step == trained.step
        assert (trained.head.view_state.ago < trained.step).all()


def low_ones(counts):
    return margins_from_counts(counts, low=0.02, high=0.2)


class CutError(Exception):
    """A run that is cut off."""


@pytest.mark.parametrize("name", ["adaface", "elasticface-arc", "kappaface", "vpl", "vs", "adaptiveface"])
@pytest.mark.parametrize("at", [3, 4, 7])
def test_resumed_to_the_bit(tmp_path, name, at, monkeypatch):
    """Cut off in the first epoch, at its end, and in the second."""
    config = Config(**QUICK, head=name, checkpoint=3, ema=0.9, set={"after": 2.0} if name == "vpl" else {})
    train(config, tmp_path / "whole", data=uneven(), quiet=True)
    step = Trainer._train_step

    def until(self, *given):
        if self.step == at:
            raise CutError
        step(self, *given)

    monkeypatch.setattr(Trainer, "_train_step", until)
    with pytest.raises(CutError):
        train(config, tmp_path / "cut", data=uneven(), quiet=True)
    monkeypatch.undo()
    train(config, tmp_path / "cut", data=uneven(), resume=True, quiet=True)
    whole, cut = (load(tmp_path / folder, "last").head.state_dict() for folder in ("whole", "cut"))
    assert set(whole) == set(cut)
    assert any(key == "m" or key.startswith(("row_margin.", "view_state.")) for key in whole)
    for key, value in whole.items():
        assert torch.equal(value, cut[key]), key


def test_exported_with_its_state_and_offsets_absent(tmp_path):
    for name in ("adaface", "logit-adjustment", "kappaface", "vs", "vpl"):
        train(Config(**QUICK, head=name), tmp_path / name, data=uneven(), quiet=True)
        trained = load(tmp_path / name)
        export(trained, tmp_path / f"{name}.onnx", with_head=True)
        session = onnxruntime.InferenceSession(str(tmp_path / f"{name}.onnx"), providers=["CPUExecutionProvider"])
        raw = uneven().samples[::20]
        found = dict(zip([o.name for o in session.get_outputs()], session.run(None, {"samples": raw}), strict=True))
        np.testing.assert_allclose(found["probability"], trained.predict_proba(raw).numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "margins"),
    [
        ({"class_margins": "ldam", "set": {"m": 0.4}}, lambda n: margins_from_counts(n, "ldam", high=0.4)),
        ({"class_margins": "ldam:high=0.3,power=1"}, lambda n: margins_from_counts(n, "ldam", high=0.3, power=1.0)),
        ({"class_margins": "power", "set": {"m": 0.4}}, lambda n: margins_from_counts(n, low=0.04, high=0.4)),
        (
            {"class_margins": "power:high=2", "head": "sphereface", "set": {"m": 3.0}},
            lambda n: margins_from_counts(n, low=1.1, high=2.0),
        ),
        ({"class_margins": "landmark:low=0.02,high=0.2", "head": "arcface"}, low_ones),
        (
            {"class_margins": "absolute:low=0.1,high=0.4,power=0.5"},
            lambda n: margins_from_counts(n, "absolute", low=0.1, high=0.4, power=0.5),
        ),
        ({"class_margins": "power:high=0.2", "head": "adaface"}, low_ones),
        ({"class_margins": "power:high=0.2", "head": "ldam"}, low_ones),
    ],
    ids=lambda each: str(each) if isinstance(each, dict) else "",
)  # fmt: skip
def test_margins_by_class(tmp_path, capsys, settings, margins):
    train(Config(**{**QUICK, "epochs": 1}, **settings), tmp_path / "run", data=uneven())
    counts = trained_on(tmp_path / "run")
    head = load(tmp_path / "run").head
    torch.testing.assert_close(head.m, margins(counts))
    said = " ".join(capsys.readouterr().err.split())
    ends = f"{float(head.m[0]):.4g} for {counts[0]} samples, {float(head.m[3]):.4g} for {counts[3]} samples"
    assert f"m by class ({settings['class_margins']}): {ends}" in said


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"class_margins": "lada"}, "Did you mean 'ldam'"),
        ({"class_margins": "ldam:low=0.1"}, "ldam has no 'low'; it takes high, power"),
        ({"class_margins": "power:low=0.5,high=0.2"}, "high must"),
        ({"class_margins": "power:high=4"}, "class_margins must lie in"),
        ({"class_margins": "power:power=x"}, "power must be a number; got 'x'"),
        ({"class_margins": "ldam", "head": "normface"}, "normface has no m"),
        ({"class_margins": "ldam", "head": "combined"}, "combined has 3 numbers"),
        ({"class_margins": "ldam", "head": "sphereface"}, "Take power:low=1.1,high=1.5"),
        ({"class_margins": "ldam", "head": "expface"}, "a smaller m of expface is a larger margin"),
        ({"class_margins": "ldam", "set": {"class_margins": [0.1, 0.2]}}, "Leave one of the two out"),
        ({"head": "ldam", "set": {"counts": [1, 2]}}, "They are counted in the training part"),
        ({"head": "ldam", "set": {"tau": 2.0}}, "ldam has no tau"),
        ({"head": "vs", "set": {"class_counts": [1, 2]}}, "They are counted in the training part"),
        ({"head": "arcface", "set": {"view": "vpl"}}, "A view belongs to a head"),
        ({"head": "vs", "set": {"gamma": -1.0}}, "gamma=…) must lie in"),
        ({"head": "logit-adjustment", "set": {"tau": -1.0}}, "tau must"),
        ({"head": "magface", "set": {"l_a": 200.0}}, "l_a=…) must be below u_a"),
        ({"head": "elasticface-arc", "set": {"pairing": "some"}}, "pairing"),
    ],
    ids=str,
)
def test_refused_in_words(settings, words):
    with pytest.raises((ValueError, TypeError), match=re.escape(words)):
        Config(**settings)


def test_numbers_that_the_advisor_does_not_choose_are_told(tmp_path, capsys):
    """Four centers in two dimensions are too near for SFace, whose target at its center is no 1."""
    for head, told in (("sface", True), ("curricularface", False)):
        train(Config(**{**QUICK, "dim": 2}, head=head), tmp_path / head, data=uneven())
        said = " ".join(capsys.readouterr().err.split())
        assert (f"s and the margin are {head}'s own: the advisor's rule is not for this loss" in said) == told


def test_a_view_that_begins_after_the_end_is_told_and_versions_are_numbers_of_a_head(tmp_path, capsys):
    train(Config(**QUICK, head="vpl"), tmp_path / "vpl", data=uneven())
    said = " ".join(capsys.readouterr().err.split())
    assert "as they are until step 8000, and this run has" in said
    train(Config(**QUICK, head="vpl", set={"after": 3.0}), tmp_path / "early", data=uneven())
    assert "as they are until step" not in " ".join(capsys.readouterr().err.split())
    for version, margin in ((0, "sphereface"), (1, "sphereface"), (2, "none")):
        config = Config(**{**QUICK, "epochs": 1}, head="sphereface-r", set={"version": version})
        train(config, tmp_path / str(version), data=uneven(), quiet=True)
        head = load(tmp_path / str(version)).head
        assert (head.margin.name, head.settings.rule.name) == (
            margin,
            "sphereface-r" if version == 2 else "softmax",
        )
    with pytest.raises(ValueError, match="version must be one of 0, 1, 2"):
        Config(head="sphereface-r", set={"version": 5})


def test_the_averaged_head_has_the_margins_of_the_last_epoch(tmp_path):
    train(Config(**QUICK, head="kappaface", ema=0.9), tmp_path / "run", data=uneven(), quiet=True)
    averaged = load(tmp_path / "run", "last").head.row_margin
    assert not averaged.seen.any()
    assert (averaged.weights != 1).all()


def test_counts_that_a_head_goes_by_are_told(tmp_path, capsys):
    for head in ("kappaface", "vs", "adaptiveface"):
        train(Config(**{**QUICK, "epochs": 1}, head=head, sampling="balanced"), tmp_path / head, data=uneven())
        counts = trained_on(tmp_path / head)
        said = " ".join(capsys.readouterr().err.split())
        told = f"samples by class, which {head} goes by: {min(counts)} to {max(counts)}"
        assert (told in said) == (head != "adaptiveface")
        assert ("rare ones are favoured twice" in said) == (head != "adaptiveface")
        assert "m by class" not in said


def test_even_sampling_beside_counts_is_told(tmp_path, capsys):
    config = Config(**{**QUICK, "epochs": 1}, head="balanced-softmax", sampling="balanced")
    train(config, tmp_path / "run", data=uneven())
    assert "rare ones are favoured twice" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", AFTER)
def test_what_the_advisor_decides_is_written_down(name):
    if name in UNADVISED:  # it keeps its paper's numbers where the rule has none
        assert (
            build_head(resolve_head(Config(head=name, dim=2), 30)[0], 30).margin == hm.recipes.FAMILY[name].margin
        )
        return
    config, reasons = resolve_head(Config(head=name, dim=128), 1000)
    head = build_head(config, 1000)
    if not head.settings.unit_features:
        assert (config.set, reasons) == ({}, ())
        return
    advice = hm.advise.recommend(1000, 128, margin=name)
    assert (head.margin, head.scale.item()) == (advice.margin, pytest.approx(advice.s))
    assert reasons == advice.reasons
    for field in hm.margins.number_fields(type(head.margin)):
        mine, _ = resolve_head(Config(head=name, dim=128, set={field.name: getattr(head.margin, field.name)}), 1000)
        assert build_head(mine, 1000).margin == head.margin  # what was given is what was advised
        break
    assert resolve_head(Config(head=name, dim=2), 30)[0].set["scale"] > 0  # a picture's two dimensions do as well


def test_magfaces_lengths_and_term():
    """Lengths go with √d, and λ_g is as far above its bound as the paper's: 35 to 22.6."""
    for classes, dim in ((1000, 128), (100_000, 512)):
        advice = hm.advise.recommend(classes, dim, margin="magface")
        margin = advice.margin
        assert margin.l_a == pytest.approx(10 * (dim / 512) ** 0.5, rel=1e-2)
        assert margin.u_a == pytest.approx(110 * (dim / 512) ** 0.5, rel=1e-2)
        assert margin.lambda_g / draw(margin, advice.s) == pytest.approx(35 / 22.59, rel=1e-2)
    given = hm.advise.recommend(1000, 128, margin="magface", numbers={"l_a": 20.0, "lambda_g": 5.0}).margin
    assert (given.l_a, given.u_a, given.lambda_g) == (20.0, 110.0, 5.0)
    with pytest.raises(ValueError, match="Did you mean 'l_a'"):
        hm.advise.recommend(1000, 128, margin="magface", numbers={"la": 20.0})


def test_length_angle(tmp_path, run):
    """Made by hand: features that are the longer the farther they lie, and the other way round."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 4
    axes, side = np.eye(8), rng.choice([-1, 1], 120)[:, None]
    for sign, warned in ((1, True), (-1, False)):
        angle = rng.uniform(0.05, 0.5, 120)
        turned = np.cos(angle)[:, None] * axes[labels] + np.sin(angle)[:, None] * side * axes[4 + labels]
        samples = (2 + sign * 3 * angle)[:, None] * turned
        folder = tmp_path / str(sign)
        np.savez(tmp_path / f"{sign}.npz", embeddings=samples.astype(np.float32), labels=labels)
        data = str(tmp_path / f"{sign}.npz")
        settings = {**QUICK, "data": data, "model": None, "model_set": {}, "epochs": 20, "batch": 8, "lr": 0.1}
        train(Config(**settings, head="adaface"), folder, quiet=True)
        parts = open_parts(folder, load(folder))
        found = lengths_against_angles(parts, quality=2 + sign * 3 * angle)
        assert found.angle * sign > 0.3
        assert found.quality == pytest.approx(1.0)
        assert (found.doubt is not None) == warned
        code, out, err = run("evaluate", folder)
        assert code == 0
        assert "correlation with the angle to the own class" in out
        assert ("AdaFace takes long features for the good ones" in " ".join(err.split())) == warned
    assert watch.doubt_of_lengths(ArcFace(), 0.9) is None
    assert watch.doubt_of_lengths(AdaFace(h=0.0), 0.9) is None
    assert "l_a and u_a" in watch.doubt_of_lengths(MagFace(), 0.9)
    one = torch.ones(5)
    assert watch.correlation(one, torch.arange(5.0)) == 0


def test_fine_tuning_with_a_large_margin(tmp_path):
    """As docs/training.md says: network and class vectors of a run, m raised at once, few epochs, a low rate."""
    first = tmp_path / "first"
    train(Config(**QUICK, set={"m": 0.2, "scale": 8.0}), first, data=uneven(), quiet=True)
    small = {**QUICK, "epochs": 1, "lr": 1e-5, "init": str(first), "set": {"m": 0.5, "scale": 8.0}}
    train(Config(**small, init_head=True), tmp_path / "fine", data=uneven(), quiet=True)
    train(Config(**small), tmp_path / "new", data=uneven(), quiet=True)
    before, fine, new = (load(tmp_path / name) for name in ("first", "fine", "new"))
    assert fine.head.margin == ArcFace(0.5)
    for a, b in zip(before.network.parameters(), fine.network.parameters(), strict=True):
        assert (a - b).abs().max() < 1e-3
    assert (before.head.weight - fine.head.weight).abs().max() < 1e-3
    assert (before.head.weight - new.head.weight).abs().max() > 1e-2
    for settings, words in (
        ({**small, "seed": 1}, None),
        ({**small, "dim": 9, "init": str(first)}, "does not fit"),
        ({**small, "set": {"centers": 2}}, "Use the same dim and centers"),
    ):
        folder = tmp_path / str(settings)[-20:].replace("/", "-")
        if words is None:
            train(Config(**settings, init_head=True), folder, data=uneven(), quiet=True)  # a closed set's classes
            continue
        with pytest.raises(ValueError, match=words):
            train(Config(**settings, init_head=True), folder, data=uneven(), quiet=True)
    with pytest.raises(ValueError, match="init_head needs init"):
        Config(init_head=True)
    with pytest.raises(ValueError, match="trained on other classes"):
        start_head_from(new.head, first, ("a", "b"))


def test_sharpness_and_contrast_by_hand():
    flat = torch.full((1, 5, 5), 128, dtype=torch.uint8)
    checks = (torch.arange(25).view(1, 5, 5) % 2 * 255).to(torch.uint8)
    found = measure(torch.cat((flat, checks)))
    assert found[0].tolist() == [0, 0]
    # A checkerboard's Laplacian is ±4 inside, five of one sign and four of the other; it holds 12 ones in 25.
    assert found[1, 0] == pytest.approx(16 * (1 - (1 / 9) ** 2))
    assert found[1, 1] == pytest.approx((12 / 25 * 13 / 25) ** 0.5)
    in_color = checks.unsqueeze(-1).expand(-1, -1, -1, 3)
    torch.testing.assert_close(measure(in_color)[0], found[1])
    assert are_images(checks)
    assert not are_images(checks.float())
    assert not are_images(checks[:, :2])
    assert not are_images(checks.flatten(1))


def test_lengths_against_what_images_show(tmp_path, run):
    """Images that differ in contrast; the correlation is that of the ranks."""
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 4
    faint = rng.uniform(0.1, 1.0, 80)[:, None, None]
    images = 128 + faint * (rng.normal(size=(4, 6, 6))[labels] * 30 + rng.normal(size=(80, 6, 6)) * 5)
    data = tmp_path / "images.npz"
    np.savez(data, images=images.clip(0, 255).astype(np.uint8), labels=labels)
    folder = tmp_path / "run"
    train(Config(**QUICK, data=str(data), head="adaface"), folder, quiet=True)
    parts = open_parts(folder, load(folder))
    found = lengths_against_angles(parts)
    norms, seen = parts.features("train")[0].norm(dim=1), parts.images("train")["contrast"]
    ranks = [t.argsort().argsort().double() for t in (norms, seen)]
    assert found.images["contrast"] == pytest.approx(float(torch.corrcoef(torch.stack(ranks))[0, 1]), abs=0.02)
    code, out, _ = run("evaluate", folder)
    assert code == 0
    assert "rank correlation with the image's sharpness" in out
    written = json.loads((folder / "evaluation" / "evaluation.json").read_text())["length_angle"]
    assert set(written["images"]["train"]) == {"sharpness", "contrast"}
    assert any(part != "train" for part in written["images"])

    against = {"sharpness": -0.3, "contrast": 0.2}
    assert watch.doubt_of_images(AdaFace(), against) == (
        "AdaFace takes long features for good images, and here they go with less sharpness (-0.30)."
    )
    assert "sharpness (-0.30) and contrast (-0.20)" in watch.doubt_of_images(
        MagFace(), against | {"contrast": -0.2}
    )
    assert watch.doubt_of_images(AdaFace(), {"sharpness": -0.05}) is None
    assert watch.doubt_of_images(AdaFace(h=0.0), against) is None
    assert watch.doubt_of_images(ArcFace(), against) is None
    assert watch.doubt_of_images(AdaFace(), {}) is None


@pytest.mark.parametrize(("head", "warned"), [("adaface", True), ("arcface", False)])
def test_train_warns_where_long_features_are_those_of_poor_images(tmp_path, monkeypatch, capsys, head, warned):
    against = {"sharpness": -0.4, "contrast": 0.1}
    monkeypatch.setattr(ending, "lengths_against_images", lambda parts, part: against)
    train(Config(**QUICK, head=head), tmp_path / "run", data=uneven())
    said = " ".join("".join(capsys.readouterr()).split())
    assert ("AdaFace takes long features for good images, and here they go with less sharpness" in said) == warned
    assert (tmp_path / "run" / "thresholds.json").exists()
