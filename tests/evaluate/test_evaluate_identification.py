"""Who is it: average precision against scikit-learn, neighbours and the open set against loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from hypermargin.evaluate import half_enrolled, identification, open_set

seeds = st.integers(0, 2**32 - 1)


def sample(seed, signs, n=40, identities=9, dim=16):
    rng = np.random.default_rng(seed)
    y = np.concatenate([[0, 0, identities - 1], rng.integers(0, identities - 1, n - 3)])
    x = rng.standard_normal((n, dim)) + rng.standard_normal((identities, dim))[y]
    return (np.where(x < 0, -1.0, 1.0) if signs else x), y


def cosines(a, b):
    a, b = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (a, b))
    return np.round(a @ b.T * 2**20) / 2**20


@settings(max_examples=30)
@given(seed=seeds, signs=st.booleans(), block=st.sampled_from([None, 1, 7, 64]))
def test_average_precision_is_scikit_learns(seed, signs, block):
    x, y = sample(seed, signs)
    c = cosines(x, x)
    precisions = []
    for i in range(len(x)):
        others = np.arange(len(x)) != i
        if (y[others] == y[i]).any():
            precisions.append(average_precision_score(y[others] == y[i], c[i, others]))
    got = identification(x, y, block=block)
    assert got.map == pytest.approx(np.mean(precisions), abs=1e-12)
    assert got.queries == len(precisions)


@settings(max_examples=20)
@given(seed=seeds, signs=st.booleans())
def test_nearest_and_farthest_by_looking(seed, signs):
    x, y = sample(seed, signs)
    c = cosines(x, x)
    got = identification(x, y, (1, 3))
    for i in range(len(x)):
        own = [c[i, j] for j in range(len(x)) if y[j] == y[i] and j != i]
        strangers = [c[i, j] for j in range(len(x)) if y[j] != y[i]]
        wanted = (max(own), min(own)) if own else (math.nan, math.nan)
        assert (got.own_nearest[i], got.own_farthest[i]) == pytest.approx(wanted, abs=1e-12, nan_ok=True)
        assert got.stranger[i] == pytest.approx(max(strangers), abs=1e-12)
    asks = np.isfinite(got.own_nearest)
    assert got.rank[1] == np.mean(got.own_nearest[asks] > got.stranger[asks])


def test_unequal_classes_and_one_class():
    rng = np.random.default_rng(0)
    y = np.concatenate([np.zeros(300, int), np.arange(1, 60).repeat(2), [99]])
    x = rng.standard_normal((len(y), 8)) + 2 * rng.standard_normal((100, 8))[y]
    c = cosines(x, x)
    precisions = [average_precision_score(np.delete(y == y[i], i), np.delete(c[i], i)) for i in range(len(y) - 1)]
    assert identification(x, y).queries == len(y) - 1
    whole = identification(x, y, block=13)
    assert whole == identification(x, y, block=500)
    assert np.mean(precisions) == pytest.approx(whole.map, abs=1e-12)
    alone = identification(x[:50], y[:50])
    assert (alone.rank[1], alone.map) == (1.0, 1.0)
    assert np.isnan(alone.stranger).all()


@settings(max_examples=25)
@given(seed=seeds, signs=st.booleans(), block=st.sampled_from([None, 1, 5]))
def test_the_open_set_by_looking(seed, signs, block):
    rng = np.random.default_rng(seed)
    x, y = sample(seed, signs, n=60)
    gallery, probes = (np.sort(part) for part in np.split(rng.permutation(60), [12]))
    known = np.isin(y[probes], y[gallery])
    if known.all() or not known.any():
        return
    got = open_set(x[gallery], y[gallery], x[probes], y[probes], (0.0, 0.1, 0.5), block=block)
    c = cosines(x[probes], x[gallery])
    best = c.max(1)
    right = np.array(
        [all(y[gallery][j] == y[p] for j in np.flatnonzero(c[i] == best[i])) for i, p in enumerate(probes)]
    )
    assert got.rank1 == pytest.approx(right[known].mean())
    assert (got.known, got.unknown) == (known.sum(), (~known).sum())
    for f, tpir in got.tpir.items():
        rates = [(right & (best >= t))[known].mean() for t in [*best, math.inf] if (best >= t)[~known].mean() <= f]
        assert tpir == pytest.approx(max(rates), abs=1e-12)
        t = got.thresholds[f]
        assert (best >= t)[~known].mean() <= f
        assert (right & (best >= t))[known].mean() == pytest.approx(tpir)


def test_half_enrolled():
    y = np.array(["d", "a", "b", "a", "c", "b", "d", "d", "e", "c", "a"])
    seen = set()
    for seed in range(30):
        gallery, probes = half_enrolled(y, seed)
        assert sorted([*gallery, *probes]) == list(range(len(y)))
        assert len(set(y[gallery])) == len(gallery) == 2
        assert "e" not in y[gallery]
        assert set(y[gallery]) <= set(y[probes])
        seen |= set(gallery.tolist())
    assert seen == set(range(len(y))) - {8}
    assert [*map(list, half_enrolled(torch.tensor([4, 4, 9]), 1))] in ([[0], [1, 2]], [[1], [0, 2]])
    for labels in ([1, 2, 3], [1, 1]):
        with pytest.raises(ValueError, match="two identities or more, one of them with two samples"):
            half_enrolled(np.array(labels))


def test_refused_open_sets():
    x, y = torch.eye(4), torch.arange(4)
    for compute, words in (
        (lambda: open_set(x, y, x, y), "no unknown probes. Give some of identities outside"),
        (lambda: open_set(x, y, x, y + 9), "no known probes. Give some of identities inside"),
        (lambda: open_set(x, y, torch.ones(2, 3), y[:2]), "probes must have 4 columns like gallery; got 3"),
        (lambda: open_set(x * 0, y, x, y), "gallery must not be zero"),
        (lambda: open_set(x, y, x, y, (1.0,)), r"fpir must lie in \[0, 1\)"),
    ):
        with pytest.raises(ValueError, match=words):
            compute()
