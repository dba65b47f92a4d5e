"""Epochs, batches and what follows from them, where nobody gave them."""

import json
import re

import numpy as np
import pytest

from hypermargin.compare import Plan
from hypermargin.data import from_arrays
from hypermargin.training import Config, train
from hypermargin.training.budget import Budget, decide
from hypermargin.training.config import from_dict, read_toml

BEFORE = {"epochs": 20, "batch": 128, "lr_warmup": 0.5, "log": 50, "evaluate": 1}  # 0.1's, for all


def steps(budget, images):
    return budget.epochs * -(-images // budget.batch)


@pytest.mark.parametrize(
    ("images", "identities"), [(40, 5), (240, 24), (240, 80), (600, 200), (1300, 10), (5000, 60), (9000, 3000)]
)
def test_small_sets_get_some_hundred_steps(images, identities):
    config, sentence = decide(Config(), images, identities)
    budget = Budget.of(config)
    assert 300 <= steps(budget, images) <= 6000
    assert budget.epochs >= 20
    assert 16 <= budget.batch <= 128
    assert f"batches of {budget.batch}, {budget.epochs} epochs, {steps(budget, images):,} steps" in sentence
    assert budget.epochs * images / identities >= 150 or budget.epochs == 200
    assert steps(budget, images) / budget.log >= 5


# Omniglot and the built-in glyphs among them.
@pytest.mark.parametrize(("images", "identities"), [(19280, 964), (9721, 1216), (60_000, 10), (1_000_000, 20_000)])
def test_large_sets_get_what_they_got_before(images, identities):
    config, _ = decide(Config(), images, identities)
    assert {name: getattr(config, name) for name in BEFORE} | {"log": 50} == BEFORE


@pytest.mark.parametrize(("images", "identities"), [(5_800_000, 85_000), (17_000_000, 360_000), (10**9, 10**6)])
def test_millions_of_images_get_fewer_epochs(images, identities):
    budget = Budget.of(decide(Config(), images, identities)[0])
    assert 4 <= budget.epochs < 10
    assert budget.log > 50


def test_what_is_given_is_kept_and_the_rest_follows():
    given = Config(**BEFORE)
    assert decide(given, 240, 24) == (given, "")
    config, sentence = decide(Config(epochs=3), 240, 24)
    assert (config.epochs, config.batch) == (3, 16)
    assert "epochs as given" in sentence
    config, sentence = decide(Config(batch=60), 240, 24)
    assert (config.epochs, config.batch) == (125, 60)
    assert "batches of 60 as given" in sentence
    assert decide(Config(batch=60, accumulate=4), 240, 24)[0].epochs == 200  # an epoch is one step
    assert decide(Config(lr_warmup=0.0, log=7, evaluate=0), 240, 24)[0].log == 7


def test_a_run_says_what_was_chosen_and_writes_it_down(tmp_path, capfd):
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 12
    samples = (rng.normal(size=(12, 8))[labels] + 0.1 * rng.normal(size=(120, 8))).astype(np.float32)
    data = from_arrays(samples, labels, open_set=False)
    result = train(Config(threads=1, tensorboard=False), tmp_path, data=data)
    said = capfd.readouterr().err
    saved = from_dict(read_toml(tmp_path / "config.toml"))
    assert re.search(rf"batches of {saved.batch}, {saved.epochs} epochs, [\d,]+ steps; with few samples", said)
    assert Budget.of(saved)
    again = train(Config(threads=1, tensorboard=False), tmp_path, data=data, resume=True)
    assert again == result
    with pytest.raises(ValueError, match=rf"started, with epochs = {saved.epochs}; got 3"):
        train(Config(epochs=3), tmp_path, data=data, resume=True)


def test_a_comparison_of_0_1_goes_on_with_its_budget(tmp_path):
    plan = {"settings": {"data": "digits", "epochs": 5}, "heads": ["softmax"], "seeds": 2, "plane": 0}
    (tmp_path / "plan.json").write_text(json.dumps({"format": 1, **plan}))
    configs = [run.config for run in Plan.read(tmp_path).runs(tmp_path)]
    assert all((c.epochs, c.batch, c.lr_warmup, c.log) == (5, 128, 0.5, 50) for c in configs)
    Plan(plan["settings"], ("softmax",)).save(tmp_path)
    assert Plan.read(tmp_path).runs(tmp_path)[0].config.batch is None
