"""The curve, k-fold accuracy and units against scikit-learn, brute force and published arithmetic."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.model_selection import KFold

from hypermargin.evaluate import Thresholds, from_scores, kfold, units
from hypermargin.evaluate.thresholds import clopper_pearson

seeds = st.integers(0, 2**32 - 1)


def given_scores(seed, size, decimals, apart):
    rng = np.random.default_rng(seed)
    same = rng.random(size) < 0.4
    same[:2] = True, False
    return np.round(rng.standard_normal(size) + apart * same, decimals), same


cases = {
    "seed": seeds,
    "size": st.integers(2, 150),
    "decimals": st.sampled_from([0, 1, 2, 9]),
    "apart": st.sampled_from([-1, 0, 1, 4]),
}


@settings(max_examples=100)
@given(**cases)
def test_the_curve_is_scikit_learns(seed, size, decimals, apart):
    scores, same = given_scores(seed, size, decimals, apart)
    curve = from_scores(scores, same).curve
    far, tar, thresholds = roc_curve(same, scores, drop_intermediate=False)
    np.testing.assert_allclose(curve.far, far, atol=1e-12)
    np.testing.assert_allclose(curve.tar, tar, atol=1e-12)
    np.testing.assert_array_equal(curve.scores, thresholds[1:])
    assert curve.auc == pytest.approx(roc_auc_score(same, scores), abs=1e-12)


@settings(max_examples=100)
@given(**cases)
def test_operating_points_by_trying_every_threshold(seed, size, decimals, apart):
    scores, same = given_scores(seed, size, decimals, apart)
    curve = from_scores(scores, same).curve
    rates = {t: ((scores >= t)[~same].mean(), (scores >= t)[same].mean()) for t in set(scores.tolist())}
    for t in [*rates, -9.0, 9.0, 0.123]:
        assert curve.at(t) == pytest.approx(rates.get(t, ((scores >= t)[~same].mean(), (scores >= t)[same].mean())))
    for f in (0.0, 1e-6, 0.1, 1 / 3, 0.5, 0.99, *(far for far, _ in rates.values() if far < 1)):
        allowed = [t for t, (far, _) in rates.items() if far <= f]
        assert curve.tar_at(f) == pytest.approx(max([0.0, *(rates[t][1] for t in allowed)]), abs=1e-12)
        if allowed:
            assert curve.threshold_at(f) == min(allowed)
        else:
            assert scores.max() < curve.threshold_at(f) < scores.max() + 1e-9
        reached = curve.at(curve.threshold_at(f))
        assert reached[0] <= f
        assert reached[1] == curve.tar_at(f)
        assert curve.supports(f) == (f * (~same).sum() >= 1 - 1e-9)


@settings(max_examples=60)
@given(**cases, p=st.sampled_from([0.001, 0.01, 0.5, 0.9]), c=st.sampled_from([1.0, 10.0]))
def test_detection_cost_by_trying_every_threshold(seed, size, decimals, apart, p, c):
    scores, same = given_scores(seed, size, decimals, apart)
    curve = from_scores(scores, same).curve

    def cost(t):
        accepted = scores >= t
        return (c * p * (~accepted)[same].mean() + (1 - p) * accepted[~same].mean()) / min(c * p, 1 - p)

    value, threshold = curve.min_dcf(p, c)
    assert value == pytest.approx(min(cost(t) for t in [math.inf, *scores]), abs=1e-12)
    assert cost(threshold) == pytest.approx(value, abs=1e-12)
    assert value <= 1 + 1e-12
    assert all(cost(t) > value - 1e-12 for t in scores if t > threshold)


def test_detection_cost_worked_by_hand():
    # Speaker recognition's usual costs: at 0.8 a miss of 1/2 and no false alarm; at 0.4 none and 1/4.
    curve = from_scores([0.8, 0.4, 0.6, 0.2, 0.1, 0.0], [1, 1, 0, 0, 0, 0]).curve
    assert curve.min_dcf(0.01) == (pytest.approx(0.5), 0.8)
    assert curve.min_dcf(0.5) == (pytest.approx(0.25), 0.4)
    assert curve.min_dcf(0.01, c_miss=10, c_fa=1) == (pytest.approx(0.5), 0.8)


def test_histogram_holds_every_pair():
    scores, same = given_scores(1, 5000, 3, 2)
    edges, genuine, impostor = from_scores(scores, same).curve.histogram(50)
    np.testing.assert_array_equal(genuine, np.histogram(scores[same], edges)[0])
    np.testing.assert_array_equal(impostor, np.histogram(scores[~same], edges)[0])
    assert (genuine.sum(), impostor.sum()) == (same.sum(), (~same).sum())


def test_far_that_the_pairs_cannot_show():
    scores, same = given_scores(3, 3000, 9, 2)
    found = from_scores(scores, same)
    impostors = (~same).sum()
    assert found.supported == tuple(f for f in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6) if f * impostors >= 1)
    assert 1e-4 not in found.supported
    without = (scores[same] > scores[~same].max()).mean()
    assert found.tar[1e-4] == found.tar[1e-6] == pytest.approx(without)
    assert found.thresholds[1e-6] == scores[scores > scores[~same].max()].min()


def published_folds(scores, same, parts):
    """Huang et al.'s protocol, as in the public evaluation scripts: loops over folds and thresholds."""
    accuracies, chosen = [], []
    for k in range(len(parts)):
        rest = np.concatenate([part for j, part in enumerate(parts) if j != k])
        best, threshold = -1.0, None
        for t in sorted({math.nextafter(scores[rest].max(), math.inf), *scores[rest]}, reverse=True):
            accuracy = sum((scores[i] >= t) == same[i] for i in rest) / len(rest)
            if accuracy > best + 1e-12:
                best, threshold = accuracy, t
        accuracies.append(sum((scores[i] >= threshold) == same[i] for i in parts[k]) / len(parts[k]))
        chosen.append(threshold)
    mean = sum(accuracies) / len(accuracies)
    spread = math.sqrt(sum((a - mean) ** 2 for a in accuracies) / (len(accuracies) - 1))
    return mean, spread / math.sqrt(len(accuracies)), accuracies, chosen


@settings(max_examples=25)
@given(seed=seeds, size=st.integers(12, 60), decimals=st.sampled_from([1, 9]), folds=st.integers(2, 10))
def test_folds_are_the_published_arithmetic(seed, size, decimals, folds):
    scores, same = given_scores(seed, size, decimals, 1)
    parts = [test for _, test in KFold(folds, shuffle=False).split(scores)]
    mean, error, accuracies, thresholds = published_folds(scores, same, parts)
    got = kfold(scores, same, folds)
    assert (got.accuracy, got.error) == pytest.approx((mean, error), abs=1e-12)
    assert got.accuracies == pytest.approx(accuracies)
    assert got.thresholds == pytest.approx(thresholds)
    ids = np.empty(size, "U2")
    for k, part in enumerate(parts):
        ids[part] = "abcdefghij"[k]
    order = np.random.default_rng(seed).permutation(size)
    shuffled = kfold(torch.tensor(scores[order]), same[order], ids[order])
    assert shuffled.accuracies == pytest.approx(accuracies)


def test_folds_refused():
    for folds, words in ((1, "at least 2"), (5, "at most the number of pairs, 4"), ([0, 1], r"shape \(4,\)")):
        with pytest.raises(ValueError, match=words):
            kfold([1, 2, 3, 4], [1, 0, 1, 0], folds)
    with pytest.raises(ValueError, match="at least 2 different"):
        kfold([1, 2], [1, 0], np.zeros(2, int))


def test_units_are_those_of_unit_vectors():
    rng = np.random.default_rng(0)
    x, y = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in rng.standard_normal((2, 500, 3)))
    c = (x * y).sum(1)
    d = np.linalg.norm(x - y, axis=1)
    angle = np.arctan2(np.linalg.norm(np.cross(x, y), axis=1), c)
    np.testing.assert_allclose(units.cosine_to_angle(c), angle, atol=1e-7)
    np.testing.assert_allclose(units.cosine_to_distance(c), d, atol=1e-7)
    np.testing.assert_allclose(units.cosine_to_squared_distance(c), d**2, atol=1e-12)
    np.testing.assert_allclose(units.distance_to_cosine(d), c, atol=1e-12)
    np.testing.assert_allclose(units.squared_distance_to_cosine(d**2), c, atol=1e-12)
    np.testing.assert_allclose(units.angle_to_cosine(angle), c, atol=1e-12)
    assert units.cosine_to_angle(1 + 1e-7) == 0
    for convert, bad in ((units.cosine_to_angle, 1.1), (units.distance_to_cosine, 2.5), (units.angle_to_cosine, 4)):
        for value in (bad, math.nan):
            with pytest.raises(ValueError, match="must lie in"):
                convert(value)


def test_thresholds_survive_the_disk(tmp_path):
    assert Thresholds.read(tmp_path) is None
    kept = Thresholds(0.3, {0.1: 0.2, 1e-3: 0.41}, "test", 12, 300, 4000, 77)
    kept.save(tmp_path)
    assert Thresholds.read(tmp_path) == kept
    assert (kept.at(), kept.at(0.001)) == (0.3, 0.41)
    with pytest.raises(ValueError, match=r"far must be one that was measured \(0.1, 0.001\); got 0.5"):
        kept.at(0.5)
    (tmp_path / "thresholds.json").write_text("{}")
    with pytest.raises(ValueError, match="is damaged"):
        Thresholds.read(tmp_path)


def test_clopper_and_pearson_are_scipys():
    for seen, of in ((0, 10), (2, 21274), (10, 10), (1, 1), (30, 400), (9_999, 50_000), (500, 600)):
        low, high = clopper_pearson(seen, of)
        assert low == pytest.approx(0 if seen == 0 else beta.ppf(0.025, seen, of - seen + 1), rel=1e-6)
        assert high == pytest.approx(1 if seen == of else beta.ppf(0.975, seen + 1, of - seen), rel=1e-6)
    low, high = clopper_pearson(20_000, 10**8)  # beyond the sums: the normal one
    assert (low, high) == pytest.approx(
        (beta.ppf(0.025, 20_000, 10**8 - 20_000 + 1), beta.ppf(0.975, 20_001, 10**8 - 20_000)), rel=1e-4
    )


def test_what_a_threshold_rests_on(tmp_path):
    """21 people with ten images each: the FAR of 1e-4 rests on two pairs, and was .23 % among others."""
    known = Thresholds(0.3, {0.01: 0.4, 1e-3: 0.45, 1e-4: 0.5}, "validation", 21, 945, 21_000, 5)
    few = known.support(1e-4)
    assert (few.accepted, few.impostor, few.identities, few.enough) == (2, 21_000, 21, False)
    assert few.high < 0.0023 < few.at_most == pytest.approx(beta.ppf(0.975, 3, 208))  # of 210 twos
    assert few.words() == (
        "the threshold for FAR 0.0001 rests on 2 of 21,000 impostor pairs of 21 identities: the true rate may be "
        "0.0012 % to 0.034 %, up to 3.4 % if the pairs of two people go together (95 %), and more among other "
        "people. Take a FAR of 0.0005 or more, or measure thresholds on some 46 identities."
    )
    assert known.support(1e-3).accepted == 21
    assert known.support(1e-3).enough
    known.save(tmp_path)
    written = json.loads((tmp_path / "thresholds.json").read_text())["support"]
    assert [each["enough"] for each in written.values()] == [True, True, False]
    assert written["0.0001"]["at_most"] == few.at_most
    assert Thresholds.read(tmp_path) == known
    unknown = Thresholds(0.3, {0.01: 0.4}, "", 0, 50, 500, 0).support(0.01)  # scores, whoever's
    assert unknown.at_most == unknown.high
    assert "impostor pairs: the true rate" in unknown.words()
