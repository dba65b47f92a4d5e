"""Which checkpoint is tested, how that survives, and what is said where the network is not trained."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from hypermargin.common.student import two_sided
from hypermargin.data import from_arrays
from hypermargin.evaluate import verification
from hypermargin.training import Config, checkpoint, load, train
from hypermargin.training import loop as loop_module
from hypermargin.training.best import Choice, clearly_worse
from hypermargin.training.look import Look, compare_identities

CLASSES = 24


def open_look(eer, without=(), known=0.9, apart=80.0):
    return Look({"eer": eer}, 30, known, tuple(without), apart, 0.4)


def closed_look(accuracy, samples=100):
    return Look({"accuracy": accuracy, "loss": 1.0}, samples, 0.9)


def blobs(identities=12, each=6, spread=40.0, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(identities, 6, 6)) * spread + 128
    labels = np.arange(identities * each) % identities
    images = (centers[labels] + rng.normal(size=(len(labels), 6, 6)) * 25).clip(0, 255).astype(np.uint8)
    return from_arrays(images, labels, name="blobs")


# Few enough pairs that every score is an edge, so that nothing but float32's rounding (6e-8 a product) is left.
def test_numbers_without_each_identity_are_those_of_the_others():
    rng = np.random.default_rng(0)
    labels = torch.arange(20) % 5
    x = torch.from_numpy(rng.normal(size=(5, 8))[labels] + rng.normal(size=(20, 8))).float()
    look = compare_identities(x, labels, 0.9)
    wanted = [verification(x[labels != each], labels[labels != each]).eer for each in range(5)]
    assert look.without == pytest.approx(wanted, abs=1e-9)
    unit = nn.functional.normalize(x)
    angles = (unit @ unit.T).clamp(-1, 1).acos().rad2deg()[labels[:, None] < labels[None]]
    assert look.apart == pytest.approx(float(angles.median()), abs=0.5)
    assert look.values["eer"] == verification(x, labels).eer
    assert look.interval["eer_low"] < look.values["eer"] < look.interval["eer_high"]


def test_two_identities_leave_no_pairs_and_nothing_is_clearly_worse():
    labels = torch.arange(8) % 2
    look = compare_identities(torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), labels, 0.9)
    assert look.without == (None, None)
    assert look.interval == {}
    assert not clearly_worse(open_look(0.5, look.without), open_look(0.0, look.without))


def test_where_all_identities_say_the_same_there_is_no_doubt():
    assert clearly_worse(open_look(0.5, [0.5] * 4), open_look(0.0, [0.0] * 4))


def test_clearly_worse_is_the_paired_jackknife():
    """Against the formula written out: the same identities are hard for both, so that differences are sure."""
    rng = np.random.default_rng(1)
    hard = rng.normal(0, 0.02, 12)
    own, other = 0.14 + hard + rng.normal(0, 1e-4, 12), 0.10 + hard + rng.normal(0, 1e-4, 12)
    worse, better = open_look(0.14, own), open_look(0.10, other)
    d = own - other
    t = 0.04 / math.sqrt(11 / 12 * ((d - d.mean()) ** 2).sum())
    assert two_sided(t, 11) < 0.1
    assert clearly_worse(worse, better)
    assert not clearly_worse(better, worse)
    alone = 0.04 / math.sqrt(11 / 12 * ((own - own.mean()) ** 2).sum())  # without pairing it would be in doubt
    assert two_sided(alone, 11) > 0.1
    assert not clearly_worse(worse, open_look(0.10))


def test_accuracies_are_compared_as_shares_of_so_many_samples():
    assert not clearly_worse(closed_look(0.88), closed_look(0.93))  # se = .041
    assert clearly_worse(closed_look(0.88, 1000), closed_look(0.93, 1000))  # se = .013
    assert clearly_worse(closed_look(0.0), closed_look(1.0))  # where p(1 − p) is 0
    low, high = closed_look(0.9).interval.values()
    assert (low, high) == pytest.approx((0.8256, 0.9448), abs=1e-4)  # Wilson's, from a table


def test_equal_networks_are_seldom_called_worse():
    """Of pairs of sets of the same quality: one in twenty, each way; 40 trials have a standard error of 3.4 %."""
    rng, called = np.random.default_rng(3), 0
    labels = torch.arange(60) % 12
    for _ in range(20):
        centers = rng.normal(size=(12, 6))
        looks = [
            compare_identities(torch.from_numpy(centers[labels] + rng.normal(size=(60, 6))).float(), labels, 0.9)
            for _ in range(2)
        ]
        called += clearly_worse(*looks) + clearly_worse(*looks[::-1])
    assert called / 40 < 0.05 + 3 * 0.034


def chosen(*looks, classes=CLASSES):
    choice = Choice(classes)
    for step, look in enumerate(looks, 1):
        choice.consider(step, look)
    return choice


UNSURE = (0.08, 0.13, 0.21)  # the EER without each of three identities, of anything about 0.14
SURE = np.linspace(-1e-4, 1e-4, 9)


def test_the_latest_wins_unless_it_is_clearly_worse():
    hair = chosen(open_look(0.135, UNSURE), open_look(0.14, UNSURE[::-1]))
    assert (hair.step, hair.leader) == (2, 1)
    assert hair.why.startswith("the latest that is not clearly worse")
    assert "EER 14.00%, than step 1, EER 13.50%" in hair.why
    worse = chosen(open_look(0.10, 0.10 + SURE), open_look(0.14, 0.14 + SURE[::-1]))
    assert (worse.step, worse.leader) == (1, 1)
    assert worse.why == "best on the validation part, EER 10.00%; later steps are clearly worse, or not trained"


def test_small_losses_do_not_add_up():
    """Each is within the noise of the one before, but the last is far from the best."""
    rng = np.random.default_rng(0)
    looks = [open_look(0.10 + 0.004 * k, 0.10 + 0.004 * k + rng.normal(0, 2e-3, 9)) for k in range(12)]
    assert not any(clearly_worse(b, a) for a, b in pairwise(looks))
    assert clearly_worse(looks[-1], looks[0])
    choice = chosen(*looks)
    assert choice.leader == 1
    assert 1 < choice.step < 12


def test_an_untrained_network_wins_only_against_others():
    """As on 40 people with 10 images each: step 6 led by half a point, its impostors 1.5° apart, 4 % known."""
    untrained = open_look(0.09, 0.09 + SURE, known=0.04, apart=1.5)
    trained = open_look(0.14, 0.14 + SURE[::-1])
    assert clearly_worse(trained, untrained)
    choice = chosen(untrained, trained)
    assert (choice.step, choice.leader, choice.doubts) == (2, 2, [])
    assert chosen(trained, untrained).step == 1
    alone = chosen(untrained)
    assert alone.step == 1
    assert "4.0% of the training samples are nearest their own class (guessing gives 4.2%)" in alone.doubts[0]
    assert "half of the impostor pairs are within 1.5°, threshold cosine 0.4000" in alone.doubts[1]


def test_the_choice_goes_through_json_and_goes_on_alike():
    looks = [open_look(e, UNSURE) for e in (0.2, 0.1, 0.12, 0.11)]
    looks[2] = open_look(0.12, (0.1, None, 0.2))
    whole, cut = chosen(*looks), chosen(*looks[:3])
    again = Choice(CLASSES)
    again.restore(json.loads(json.dumps(cut.state())))
    assert again == cut
    again.consider(4, looks[3])
    assert again == whole
    assert again.state() == whole.state()


def test_the_choice_of_a_run_of_0_1_goes_on():
    choice = Choice(CLASSES)
    choice.restore({"step": 6, "metric": "eer", "value": 0.135})
    choice.consider(12, open_look(0.14, UNSURE))
    assert choice.step == 12
    choice = Choice(CLASSES)
    choice.restore({"step": 6, "metric": "accuracy", "value": 0.95})
    choice.consider(12, closed_look(0.60))
    assert (choice.step, choice.leader) == (6, 6)


# A run

SETTINGS = {"dim": 6, "batch": 16, "workers": 0, "threads": 1, "tensorboard": False, "model": "mlp",
            "model_set": {"widths": [24]}}  # fmt: skip


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def log_of(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_network_that_is_not_trained_is_not_passed_off_as_one(tmp_path, capfd):
    result = train(Config(**SETTINGS, epochs=1, lr=1e-9), tmp_path, data=blobs())
    assert len(result.warnings) == 1
    assert "hardly trained" in result.warnings[0]
    assert result_of(tmp_path)["warnings"] == list(result.warnings)
    assert f"warning: {result.warnings[0]}" in capfd.readouterr().err


def test_what_was_tested_is_said(tmp_path, capfd):
    result = train(Config(**SETTINGS, epochs=12, lr=0.02), tmp_path, data=blobs())
    assert result.warnings == ()
    found, test = result_of(tmp_path), log_of(tmp_path)[-1]
    assert test["kind"] == "test"
    assert test["tested"] == found["step"] == found["best"]["step"] == result.step
    assert test["why"] == found["why"] == found["best"]["why"] == result.why
    assert f"test of step {result.step}" in (err := capfd.readouterr().err)
    assert result.why in err
    looks = [line for line in log_of(tmp_path) if line["kind"] == "validation"]
    assert looks[0]["known"] < looks[-1]["known"]


@pytest.mark.parametrize("split", ["identity", "sample"])
def test_resumed_it_chooses_as_if_it_had_not_stopped(tmp_path, monkeypatch, split):
    """Stopped after every epoch; what a look saw is in the checkpoint, so that nothing is looked at anew."""
    config = Config(**SETTINGS, epochs=6, lr=0.02, split=split, validation=0.4)
    data = blobs(identities=20)
    train(config, tmp_path / "whole", data=data, quiet=True)
    real = loop_module.Trainer._save

    def save(self, monitor):
        real(self, monitor)
        if self.position == 0 and self.epoch < 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop_module.Trainer, "_save", save)
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "cut", data=data, quiet=True, resume=True)
    train(config, tmp_path / "cut", data=data, quiet=True, resume=True)
    assert result_of(tmp_path / "cut") == result_of(tmp_path / "whole")
    states = [checkpoint.load_last(tmp_path / n / "checkpoints", pytest.fail).state for n in ("cut", "whole")]
    assert states[0] == states[1]
    assert {"look", "leader", "last"} <= states[0]["best"].keys()


# No step


def test_without_a_step_a_pretrained_network_is_measured(tmp_path):
    train(Config(**SETTINGS, epochs=12, lr=0.02), tmp_path / "first", data=blobs())
    config = Config(**SETTINGS, epochs=0, init=str(tmp_path / "first"))
    result = train(config, tmp_path / "again", data=blobs(), quiet=True)
    assert (result.step, result.warnings) == (0, ())
    assert result.metrics == {"test": result_of(tmp_path / "first")["metrics"]["test"]}
    one, other = load(tmp_path / "first"), load(tmp_path / "again")
    images = torch.zeros(2, 6, 6, dtype=torch.uint8)
    assert torch.equal(one.embed(images), other.embed(images))
    assert (tmp_path / "again" / "thresholds.json").exists()
    lines = log_of(tmp_path / "again")
    assert train(config, tmp_path / "again", data=blobs(), quiet=True, resume=True) == result
    assert log_of(tmp_path / "again") == lines


def test_without_a_step_a_random_network_is_called_random(tmp_path, capfd):
    result = train(Config(**SETTINGS, epochs=0), tmp_path, data=blobs())
    assert "starts at random. Give --init RUN" in result.warnings[0]
    assert result.warnings[0] in capfd.readouterr().err
    assert (tmp_path / "checkpoints" / "step-00000000").exists()


def test_without_a_step_embeddings_are_measured_as_they_are(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 12
    samples = (rng.normal(size=(12, 8))[labels] + 0.1 * rng.normal(size=(60, 8))).astype(np.float32)
    result = train(Config(epochs=0, threads=1), tmp_path, data=from_arrays(samples, labels), quiet=True)
    assert result.warnings == ()
    assert result.metrics["test"]["eer"] < 0.05
