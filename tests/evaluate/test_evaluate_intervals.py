"""Intervals over identities: against leaving out and drawing by hand, and against the true spread."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch

from hypermargin.evaluate import evaluate, from_scores, verification

FAR = (0.1, 0.01)
Z = NormalDist().inv_cdf(0.975)


def people(seed, identities=30, dim=12, most=7):
    """Clouds of different tightness, so that identities matter."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, most + 1, identities)
    sizes[:3] = 2
    y = np.repeat(np.arange(identities), sizes)
    width = rng.uniform(0.3, 1.1, identities)[y, None]
    return rng.standard_normal((identities, dim))[y] + width * rng.standard_normal((len(y), dim)), y


def all_pairs(x, y):
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    i, j = np.triu_indices(len(x), 1)
    return np.round((unit @ unit.T)[i, j] * 2**20) / 2**20, y[i] == y[j], y[i], y[j]


def values(found):
    return {"eer": found.eer, "auc": found.auc, "min_dcf": found.min_dcf, **found.tar}


def standard_errors(found, names=("eer", "auc", "min_dcf", *FAR)):
    """What an interval on the logit scale, or of percentiles, says of the standard error."""
    theta = values(found)
    low = np.array([found.intervals[n][0] for n in names])
    high = np.array([found.intervals[n][1] for n in names])
    theta = np.array([theta[n] for n in names])
    return (np.log(high / (1 - high)) - np.log(low / (1 - low))) / (2 * Z) * theta * (1 - theta)


def test_jackknife_is_leaving_everybody_out_once():
    """Few scores, so that each is an edge; AUC and minDCF then need no lines and agree exactly."""
    x, y = people(1, identities=12)
    x = np.where(x < 0, -1.0, 1.0)
    got = verification(x, y, far=FAR, confidence=0.95, method="jackknife", block=16)
    left = [verification(x[y != i], y[y != i], far=FAR) for i in np.unique(y)]
    n = len(left)
    for name in ("eer", "auc", "min_dcf"):
        theta = np.array([values(found)[name] for found in left])
        se = math.sqrt((n - 1) / n * ((theta - theta.mean()) ** 2).sum())
        center = values(got)[name]
        logit, reach = math.log(center / (1 - center)), Z * se / (center * (1 - center))
        wanted = [1 / (1 + math.exp(-(logit + sign * reach))) for sign in (-1, 1)]
        assert got.intervals[name] == pytest.approx(wanted, rel=1e-9), name


def test_edges_do_not_matter_much():
    """Thousands of distinct scores, some hundred edges: the numbers recomputed without each identity."""
    x, y = people(2, identities=40)
    got = verification(x, y, far=FAR, confidence=0.95, method="jackknife")
    left = [values(verification(x[y != i], y[y != i], far=FAR)) for i in np.unique(y)]
    for name, se in zip(("eer", "auc", "min_dcf", *FAR), standard_errors(got), strict=True):
        theta = np.array([found[name] for found in left])
        wanted = math.sqrt((len(left) - 1) * theta.var())
        assert se == pytest.approx(wanted, rel=0.05 if name in ("eer", "auc") else 0.25), name


@pytest.mark.parametrize("method", ["bootstrap", "jackknife"])
def test_given_pairs_are_all_pairs(method):
    x, y = people(3)
    scores, same, first, second = all_pairs(x, y)
    names = np.array([f"person {k:02}" for k in range(30)])
    ours = verification(x, y, far=FAR, confidence=0.9, method=method)
    given = from_scores(
        scores, same, far=FAR, identities=(names[first], names[second]), confidence=0.9, method=method
    )
    for name in ours.intervals:
        assert given.intervals[name] == pytest.approx(ours.intervals[name], abs=1e-12)


def test_bootstrap_is_drawing_identities():
    """An independent bootstrap, with samples copied instead of weighted, gives the same spread of AUC and EER."""
    x, y = people(4, identities=20)
    got = verification(x, y, far=FAR, confidence=0.95, method="bootstrap")
    scores, same, first, second = all_pairs(x, y)
    rng = np.random.default_rng(9)
    auc, eer = [], []
    for _ in range(400):
        w = np.bincount(rng.integers(0, 20, 20), minlength=20)
        copies = np.where(same, w[first], w[first] * w[second])
        drawn = from_scores(np.repeat(scores, copies), np.repeat(same, copies), far=FAR)
        auc.append(drawn.auc)
        eer.append(drawn.eer)
    for name, draws in (("auc", auc), ("eer", eer)):
        width = np.subtract(*np.quantile(draws, (0.975, 0.025)))
        assert got.intervals[name][1] - got.intervals[name][0] == pytest.approx(width, rel=0.15)


def test_pairs_without_identities_scatter_as_the_interval_says():
    same = np.arange(10000) < 800

    def draw(seed, **settings):
        scores = np.random.default_rng(seed).standard_normal(10000) + 2 * same
        return from_scores(scores, same, far=FAR, **settings)

    names = ("eer", "auc", "min_dcf", *FAR)
    truth = np.array([[values(draw(seed))[n] for n in names] for seed in range(300)]).std(0, ddof=1)
    said = np.mean([standard_errors(draw(seed, confidence=0.95)) for seed in range(400, 410)], axis=0)
    np.testing.assert_allclose(said, truth, rtol=0.2)
    # Pairs of two people whom nobody else is compared with: w_i·w_j is then too careful, by √3 at most.
    alone = np.arange(10000), np.where(same, np.arange(10000), np.arange(10000) + 10000)
    careful = standard_errors(draw(400, confidence=0.95, identities=alone))
    assert ((careful > 0.9 * said) & (careful < 2.5 * said)).all()


@pytest.mark.slow
def test_both_ways_agree_with_the_true_spread():
    """Many sets of other people from one world: the intervals of one set know how the numbers scatter."""
    sets = [verification(*people(seed, 60, most=5), far=FAR) for seed in range(100, 300)]
    names = ("eer", "auc", "min_dcf", *FAR)
    truth = np.array([[values(found)[n] for n in names] for found in sets]).std(0, ddof=1)
    said = {
        method: np.mean(
            [
                standard_errors(verification(*people(seed, 60, most=5), far=FAR, confidence=0.95, method=method))
                for seed in range(sets_of_people)
            ],
            axis=0,
        )
        for method, sets_of_people in (("jackknife", 30), ("bootstrap", 12))
    }
    for errors in said.values():
        np.testing.assert_allclose(errors, truth, rtol=0.3)
    np.testing.assert_allclose(said["jackknife"], said["bootstrap"], rtol=0.2)


def test_blocks_types_and_order_do_not_matter():
    x, y = people(6)
    wanted = verification(x, y, confidence=0.95, method="jackknife")
    order = np.random.default_rng(0).permutation(len(y))
    for block in (7, 50):
        got = verification(torch.tensor(x[order]), y[order], confidence=0.95, method="jackknife", block=block)
        assert got == wanted
    wider = verification(x, y, confidence=0.99, method="jackknife")
    for name, (low, high) in wanted.intervals.items():
        assert 0 <= wider.intervals[name][0] <= low <= values(wanted)[name] <= high <= wider.intervals[name][1] <= 1


@pytest.mark.parametrize("method", ["bootstrap", "jackknife"])
def test_no_error_seen_is_not_no_error(method):
    axes, y = torch.eye(10).repeat(3, 1), torch.arange(10).repeat(3)
    found = verification(axes, y, far=FAR, confidence=0.95, method=method)
    most = 1 - 0.05 ** (1 / 10)
    assert (found.eer, found.auc) == (0.0, 1.0)
    assert found.intervals["eer"] == pytest.approx((0.0, most))
    assert found.intervals["min_dcf"] == pytest.approx((0.0, most))
    assert found.intervals["auc"] == found.intervals[0.1] == pytest.approx((1 - most, 1.0))


def test_two_identities_are_too_few_for_some():
    x, y = torch.eye(4), torch.tensor([0, 0, 1, 1])
    with pytest.raises(ValueError, match="too few identities"):
        verification(x, y, confidence=0.95, method="jackknife")
    low, high = verification(x, y, confidence=0.95).intervals["eer"]
    assert 0 <= low <= high <= 1


def test_refused():
    x, y = people(0)
    scores, same, first, second = all_pairs(x, y)
    for compute, words in (
        (lambda: verification(x, y, confidence=1.0), r"confidence must lie in \[0, 1\)"),
        (lambda: verification(x, y, confidence=0.9, method="boot"), "method must be one of.*Did you mean"),
        (lambda: from_scores(scores, same, confidence=0.9, method="jackknife"), "Give identities"),
        (lambda: from_scores(scores, same, confidence=0.9, identities=(first, second[1:])), "two arrays of shape"),
        (lambda: from_scores(scores, ~same, confidence=0.9, identities=(first, second)), "pair 0 is otherwise"),
        (
            lambda: verification(np.ones((1100, 2)), np.arange(1100) // 2, confidence=0.9, method="bootstrap"),
            "takes 500,000 pairs at most; got 604,450",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            compute()


def test_no_confidence_is_none_or_nought():
    """The command's --confidence 0 and the library's None are one thing, in every function that takes it."""
    x, y = people(0, 12)
    scores, same, *_ = all_pairs(x, y)
    for made in (
        lambda confidence: verification(x, y, confidence=confidence),
        lambda confidence: from_scores(scores, same, confidence=confidence),
        lambda confidence: evaluate(x, y, confidence=confidence).verification,
    ):
        assert made(0) == made(0.0) == made(None)
        assert made(0).intervals is None
        for bad in (1, -0.1, 95):
            with pytest.raises(
                ValueError, match=rf"confidence must lie in \[0, 1\).*got {bad}.*0 or None: no interv"
            ):
                made(bad)
    assert evaluate(x, y, confidence=0).confidence is None
