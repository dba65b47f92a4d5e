"""A run's settings before it trains, and what its log says: each fault found, and good ones left alone."""

import json
import math

import pytest
import torch

from hypermargin.diagnose.logs import diagnose_run
from hypermargin.diagnose.settings import diagnose_config, first_loss, plan, report
from hypermargin.margins import ArcFace, NoMargin
from hypermargin.training.config import Config

HEAD = {"data": "digits", "dim": 128}


def codes(classes=1000, **settings):
    return {each.code: each.level for each in report(plan(Config(**(HEAD | settings)), classes), "x").findings}


@pytest.mark.parametrize(
    "head", ["arcface", "cosface", "normface", "softmax", "sphereface", "adaface", "magface", "circle", "ldam"]
)
@pytest.mark.parametrize("classes", [10, 1000, 100_000])
def test_what_is_left_to_the_advisor_is_not_objected_to(head, classes):
    assert not {code for code, level in codes(classes, head=head).items() if level == "wrong"}


@pytest.mark.parametrize(
    ("classes", "settings", "code", "level"),
    [
        (100_000, {"set": {"scale": 4.0, "m": 0.5}}, "scale-too-small", "wrong"),
        (10, {"set": {"scale": 64.0, "m": 0.5}}, "scale-too-large", "doubtful"),
        (1000, {"head": "cosface", "dim": 4, "set": {"scale": 30.0, "m": 0.9}}, "margin-infeasible", "wrong"),
        (50, {"dim": 3, "set": {"scale": 30.0, "m": 0.4}}, "margin-too-large", "doubtful"),
        (50, {"dim": 2, "head": "normface"}, "crowded", "doubtful"),
        (50_000, {"set": {"scale": 64.0, "m": 0.5}}, "no-warm-up", "note"),
        (1000, {"optimizer": "sgd", "weight_decay": 0.05}, "decay-too-large", "doubtful"),
        (1000, {"weight_decay": 5e-4}, "decay-too-small", "note"),
        (1000, {"head": "softmax", "weight_decay": 0.0}, "nothing-holds-lengths", "doubtful"),
        (1000, {"head": "softmax", "precision": "float16"}, "float16-lengths", "doubtful"),
        (1000, {"sample_rate": 0.1}, "sampling-few", "note"),
        (1000, {"lr": 0.1}, "lr-of-sgd", "doubtful"),
        (1000, {"lr": 2e-4, "optimizer": "sgd"}, "lr-of-adamw", "note"),
        (1000, {"batch": 4}, "batch-of-few", "note"),
        (1000, {"head": "magface", "set": {"scale": 64.0, "lambda_g": 5.0}}, "lambda-g", "doubtful"),
    ],
)
def test_a_setting_that_will_not_do_is_found(classes, settings, code, level):
    assert codes(classes, **settings)[code] == level


def test_a_file_of_settings_is_read_and_its_classes_are_counted(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('data = "digits"\nhead = "arcface"\n[set]\nscale = 100\nm = 0.5\n')
    found = diagnose_config(path)
    assert dict(found.facts)["size"] == "10 classes in 128 dimensions"
    assert [each.code for each in found.findings] == ["scale-too-large", "no-warm-up"]
    assert json.dumps(found.plain(), allow_nan=False)
    with pytest.raises(ValueError, match=r"there is no file"):
        diagnose_config(tmp_path / "none.toml")


def test_the_loss_at_the_beginning_is_ln_c_and_the_margin():
    assert first_loss(1000, 30.0, NoMargin()) == pytest.approx(math.log(1000))
    assert first_loss(1216, 13.9, ArcFace(0.5)) == pytest.approx(math.log(1215) + 13.9 * math.sin(0.5), rel=1e-4)


class Run:
    """A run's folder as text: settings, classes and a log, without training."""

    def __init__(self, folder, classes=100, **settings):
        self.folder, self.lines = folder, []
        config = Config(**({"data": "digits", "dim": 64, "set": {"scale": 20.0, "m": 0.3}} | settings))
        (folder / "config.toml").write_text(config.to_toml())
        about = {
            "format": 1,
            "shape": [1, 8, 8],
            "classes": [str(k) for k in range(classes)],
            "open_set": False,
            "scaling": {"mean": 0.0, "std": 1.0},
            "data": {"name": "digits", "samples": 9, "classes": classes, "fingerprint": "", "left_out": []},
            "network": None,
            "versions": {},
        }
        (folder / "run.json").write_text(json.dumps(about))

    def log(self, kind="train", **columns):
        length = max(len(v) for v in columns.values() if isinstance(v, list))
        for k in range(length):
            line = {name: v[k] if isinstance(v, list) else v for name, v in columns.items()}
            self.lines.append(json.dumps({"kind": kind, "step": 10 * (k + 1), "epoch": k + 1, **line}))
        (self.folder / "log.jsonl").write_text("\n".join(self.lines) + "\n")
        return {each.code: each for each in diagnose_run(self.folder).findings}


GOOD = {
    "loss": [10.0, 6.0, 2.0, 0.5],
    "accuracy": [0.01, 0.4, 0.8, 0.95],
    "angle": [89.0, 60.0, 40.0, 25.0],
    "rival_angle": [70.0, 70.0, 75.0, 80.0],
    "past_fold": 0.0,
    "norm_p10": 5.0,
    "norm_p50": [6.0, 7.0, 8.0, 9.0],
    "norm_p90": 12.0,
    "length_angle": 0.0,
}
IN_ANY = {"rows-unread"}  # there is no checkpoint


def test_a_run_that_goes_well_is_left_alone(tmp_path):
    assert Run(tmp_path).log(**GOOD).keys() == IN_ANY


FAULTS = {
    "stuck": ({}, {"loss": [10.5, 10.4, 10.4, 10.4], "accuracy": 0.01}),
    "angles-still": ({}, {"angle": [88.0, 88.0, 88.5, 88.2]}),
    "margin-not-met": (
        {"set": {"scale": 20.0, "m": 0.5}},
        {"angle": [89.0, 80.0, 70.0, 62.0], "rival_angle": [70.0] * 4},
    ),
    "past-the-fold": ({}, {"past_fold": [0.3, 0.2, 0.2, 0.15]}),
    "lengths-run-away": ({}, {"norm_p50": [1.0, 10.0, 50.0, 200.0]}),
    "lengths-vanish": ({}, {"norm_p50": [1.0, 0.1, 0.01, 0.001]}),
    "lengths-against-angles": ({"head": "adaface", "set": {"scale": 20.0, "m": 0.3}}, {"length_angle": [0.3] * 4}),
    "lengths-outside": ({"head": "magface", "set": {"scale": 20.0, "l_a": 50.0, "u_a": 110.0}}, {}),
    "lambda-high": ({"head": "sphereface", "set": {}}, {}),
    "still-warming-up": ({"schedule": ["warmup:steps=1000"]}, {}),
    "scale-too-large": ({"set": {"scale": 400.0, "m": 0.3}}, {}),
    "diverged": ({}, {"loss": [10.0, None, None, None]}),
}


@pytest.mark.parametrize("code", FAULTS)
def test_what_the_log_says_is_found(tmp_path, code):
    settings, columns = FAULTS[code]
    found = Run(tmp_path, **settings).log(**(GOOD | columns))
    assert code in found
    assert found[code].level in ("doubtful", "wrong")


def test_a_run_that_broke_down_before_its_first_line_is_no_error(tmp_path):
    Run(tmp_path)
    (tmp_path / "diverged-step-00000005.pt").write_bytes(b"")
    found = diagnose_run(tmp_path)
    assert [(each.code, each.level) for each in found.findings] == [("diverged", "wrong")]
    assert "diverged-step-00000005.pt" in found.findings[0].said


def test_a_margin_that_is_not_there_yet_is_not_asked_for(tmp_path):
    """λ = 1000 at first: that 75 % of the samples lie past the fold of the whole margin is no fault of m."""
    columns = {"past_fold": 0.75, "angle": [89.0, 70.0, 60.0, 52.0], "rival_angle": [75.0] * 4}
    found = Run(tmp_path, head="sphereface", set={}).log(**(GOOD | columns))
    assert found.keys() & {"lambda-high", "past-the-fold", "margin-not-met"} == {"lambda-high"}


@pytest.mark.parametrize(("lr", "words"), [(1e-9, "A larger --lr: 1e-09"), (5.0, "A lower --lr: 5 is")])
def test_a_run_that_is_stuck_is_told_the_learning_rate_to_try(tmp_path, lr, words):
    found = Run(tmp_path).log(**(GOOD | FAULTS["stuck"][1] | {"lr": [lr] * 4}))
    assert found["stuck"].remedy.startswith(words)


def test_a_validation_part_that_was_best_long_ago(tmp_path):
    run = Run(tmp_path)
    run.log(**GOOD)
    found = run.log("validation", eer=[0.2, 0.05, 0.06, 0.08, 0.1, 0.12])
    assert "epoch 2 of 6" in found["best-long-ago"].said


def test_lines_that_are_none_and_folders_that_are_none(tmp_path):
    run = Run(tmp_path)
    run.lines = ["not json", '{"kind": 3', '{"kind": [], "step": 1, "epoch": 1}', '{"kind": "train", "loss": 1}']
    assert "4 lines" in run.log(**GOOD)["lines-unread"].said
    (tmp_path / "log.jsonl").write_text("")
    with pytest.raises(ValueError, match="has no line of training yet"):
        diagnose_run(tmp_path)
    with pytest.raises(ValueError, match=r"run must be the folder of a run; .*elsewhere has no config.toml"):
        diagnose_run(tmp_path / "elsewhere")


def test_a_real_run_and_its_class_rows(tmp_path, monkeypatch):
    """The log of a short run is read; rows that are dead or share a place are found."""
    from hypermargin import heads
    from hypermargin.heads.weights import Weights
    from hypermargin.training import train

    folder = tmp_path / "run"
    train(Config(data="digits", head="arcface", dim=16, epochs=2, log=5, tensorboard=False), folder, quiet=True)
    found = diagnose_run(folder)
    assert "rows-unread" not in {each.code for each in found.findings}
    assert not [each for each in found.findings if each.level == "wrong"]

    rows = torch.randn(10, 16, generator=torch.Generator().manual_seed(0))
    rows[3] *= 1e-5
    rows[7] = rows[2] * 2
    monkeypatch.setattr(heads, "read", lambda *_, **__: Weights(rows))
    by = {each.code: each.said for each in diagnose_run(folder).findings}
    assert by["dead-centers"].startswith("1 of 10")
    assert by["classes-together"].startswith("2 classes")
