"""The pairs behind a threshold, and what deserves a look, against counting all pairs by hand."""

import numpy as np
import pytest

from hypermargin.evaluate import look_first, verification, worst_pairs
from hypermargin.evaluate.pairs import GRID, samples
from hypermargin.evaluate.worst import BINS


def clusters(identities=12, each=9, dim=12, noise=0.35, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(identities), each))
    return rng.normal(size=(identities, dim))[y] + noise * rng.normal(size=(len(y), dim)), y


def by_hand(x, y):
    """Every pair i < j: its rows, its rounded score, and whether it is genuine."""
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    i, j = np.triu_indices(len(y), 1)
    return np.stack((i, j), 1), np.round((unit @ unit.T)[i, j] * GRID) / GRID, y[i] == y[j]


@pytest.mark.parametrize("most", [1, 25, 400])
def test_the_worst_pairs_are_all_there(most):
    x, y = clusters(noise=0.9)
    rows, scores, same = by_hand(x, y)
    found = worst_pairs(samples(x, y), verification(x, y).curve, most)
    got = {tuple(sorted(pair)) for pair in zip(found.first.tolist(), found.second.tolist(), strict=True)}
    assert len(got) == len(found.score)
    wrong, lost = ~same & (scores >= found.highest), same & (scores <= found.lowest)
    assert {tuple(pair) for pair in rows[wrong | lost].tolist()} <= got
    for mask in (wrong, lost):  # no more than asked for, and one score more would be too many
        assert mask.sum() <= most
    below = scores[~same & (scores < found.highest)].max()
    assert (~same & (scores >= below)).sum() > most
    assert (np.diff(found.score) <= 0).all()
    known = {tuple(pair): (score, kind) for pair, score, kind in zip(rows.tolist(), scores, same, strict=True)}
    for a, b, score, genuine in zip(found.first, found.second, found.score, found.genuine, strict=True):
        # One rounding of 2⁻²⁰ apart: a product in another order may fall on the other side of a half.
        assert known[tuple(sorted((int(a), int(b))))] == (pytest.approx(score, abs=1.01 / GRID), genuine)
    assert 0 < len(got) - (wrong | lost).sum() <= 2 * 4 * BINS


def test_where_all_scores_tie_there_is_no_worst():
    x, y = np.ones((30, 4)), np.repeat(np.arange(3), 10)
    found = worst_pairs(samples(x, y), verification(x, y).curve, 20)
    assert (found.highest, found.lowest) == (np.inf, -np.inf)
    assert (found.score == 1).all()


def test_nothing_deserves_a_look_in_clean_classes():
    x, y = clusters(noise=0.05)
    found = look_first(x, y, 0.7)
    assert found.found == (0, 0, 0)


def test_duplicates_mislabelled_samples_and_split_classes_are_found():
    rng = np.random.default_rng(1)
    x, y = clusters(noise=0.05)
    names = np.array([f"p{k:02d}" for k in y])
    moved = int(np.flatnonzero(y == 3)[2])
    names[moved] = "p04"  # somebody of p03 under p04
    names[np.flatnonzero(y == 7)[:4]] = "p99"  # p07 twice
    names[y == 9] = "p08"  # p08 and p09 under one name
    order = rng.permutation(len(y))
    found = look_first(x[order], names[order], 0.7)
    assert [{each.first, each.second} for each in found.duplicates] == [{"p07", "p99"}]
    assert [(order[each.row], each.label, each.other) for each in found.mislabelled] == [(moved, "p04", "p03")]
    assert [(each.label, sorted(each.sizes)) for each in found.split] == [("p08", [9, 9])]
    assert found.found == (1, 1, 1)
    (split,) = found.split
    assert {int(y[order[row]]) for row in split.rows} == {8, 9}


def test_at_most_so_many_are_listed():
    x, y = clusters(identities=20, each=4, noise=0.02)
    found = look_first(x, np.arange(len(y)) % 40 + 100 * y, 0.7, most=3)
    assert len(found.duplicates) == 3
    assert found.found[0] > 3
    with pytest.raises(ValueError, match="most must be at least 1; got 0"):
        look_first(x, y, 0.7, most=0)
