"""Verification and identification against scikit-learn and against brute force."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from hypermargin.evaluate import from_scores, identification, verification

FAR = (0.0, 1e-3, 1e-2, 0.1, 0.3, 0.9)
seeds = st.integers(0, 2**32 - 1)


def oracle(scores, same, far=FAR):
    """(EER, threshold, AUC, TAR) by trying every threshold."""
    points = [(0.0, 0.0, math.inf)]
    for t in sorted(set(scores.tolist()), reverse=True):
        accepted = scores >= t
        points.append((accepted[~same].mean(), accepted[same].mean(), t))
    false, true = np.array(points)[:, :2].T
    eer = np.interp(0.0, false - (1 - true), false)
    threshold = max(t for f, h, t in points if f - (1 - h) >= -1e-12)
    larger = (scores[same][:, None] > scores[~same]).mean() + (scores[same][:, None] == scores[~same]).mean() / 2
    return eer, threshold, larger, {f: max(h for a, h, _ in points if a <= f) for f in far}


def pairs_of(x, y):
    """Every pair's cosine on the documented grid, one at a time in float64, and whether it is genuine."""
    scores, same = [], []
    for j in range(len(x)):
        for i in range(j):
            cosine = math.fsum(x[i] * x[j]) / math.sqrt(math.fsum(x[i] ** 2) * math.fsum(x[j] ** 2))
            scores.append(round(cosine * 2**20) / 2**20)
            same.append(y[i] == y[j])
    return np.array(scores), np.array(same)


def ranks(x, y, k):
    """Leave-one-out by sorting; in a tie strangers stand first."""
    hits = []
    for i in range(len(x)):
        if (y == y[i]).sum() == 1:
            continue
        others = [j for j in range(len(x)) if j != i]
        score = {j: round(float(x[i] @ x[j] / np.linalg.norm(x[i]) / np.linalg.norm(x[j])) * 2**20) for j in others}
        others.sort(key=lambda j: (-score[j], y[j] == y[i]))
        hits.append(any(y[j] == y[i] for j in others[:k]))
    return np.mean(hits)


def sample(seed, signs, n=40, identities=7, dim=16):
    """Clouds, one of a single sample. Signs ±1 make every cosine exact in any order of summation, and many tie."""
    rng = np.random.default_rng(seed)
    y = np.concatenate([[0, 0, identities - 1], rng.integers(0, identities - 1, n - 3)])
    x = rng.standard_normal((n, dim)) + rng.standard_normal((identities, dim))[y]
    return (np.where(x < 0, -1.0, 1.0) if signs else x), y


@settings(max_examples=200)
@given(seed=seeds, size=st.integers(2, 200), decimals=st.sampled_from([0, 1, 2, 9]), apart=st.floats(-1, 4))
def test_given_scores_agree_with_scikit_learn(seed, size, decimals, apart):
    rng = np.random.default_rng(seed)
    same = rng.random(size) < 0.4
    same[:2] = True, False
    scores = np.round(rng.standard_normal(size) + apart * same, decimals)
    got = from_scores(scores, same, far=FAR)
    false, true, thresholds = roc_curve(same, scores, drop_intermediate=False)
    assert got.auc == pytest.approx(roc_auc_score(same, scores), abs=1e-12)
    assert got.eer == pytest.approx(np.interp(0.0, false + true - 1, false), abs=1e-12)
    assert got.threshold == thresholds[np.argmax(false + true - 1 >= -1e-12)]
    assert got.tar == pytest.approx({f: true[false <= f].max() for f in FAR}, abs=1e-12)
    assert (got.genuine, got.impostor) == (same.sum(), (~same).sum())


@settings(max_examples=12)
@given(seed=seeds, signs=st.booleans())
def test_embeddings_agree_with_brute_force(seed, signs):
    x, y = sample(seed, signs)
    scores, same = pairs_of(x, y)
    got = verification(x, y, far=FAR)
    eer, threshold, auc, tar = oracle(scores, same)
    assert (got.eer, got.threshold, got.auc) == pytest.approx((eer, threshold, auc), abs=1e-12)
    assert got.tar == pytest.approx(tar, abs=1e-12)
    assert got == from_scores(scores, same, far=FAR)
    assert identification(x, y, (1, 2, 5, 100)).rank == pytest.approx(
        {k: ranks(x, y, k) for k in (1, 2, 5, 100)}, abs=1e-12
    )


@pytest.mark.parametrize("signs", [True, False])
@pytest.mark.parametrize("block", [1, 2, 3, 7, 39, 40, 41])
def test_blocks_do_not_matter(signs, block):
    x, y = sample(3, signs)
    assert verification(x, y, block=block) == verification(x, y)
    assert identification(x, y, block=block) == identification(x, y)


@settings(max_examples=15)
@given(seed=seeds, signs=st.booleans())
def test_order_names_and_lengths_do_not_matter(seed, signs):
    x, y = sample(seed, signs)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(x))
    longer = x * 2.0 ** rng.integers(-30, 30, (len(x), 1))
    names = np.array(list("gabfced"))[y]
    for compute in (lambda *a: verification(*a, far=FAR, block=16), identification):
        wanted = compute(x, y)
        assert compute(x[order], y[order]) == wanted
        assert compute(longer, names) == wanted


def test_rotation_changes_nothing_but_rounding():
    x, y = sample(5, False, n=150)
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((16, 16)))[0]
    before, after = verification(x.astype("f4"), y), verification((x @ turn).astype("f4"), y)
    assert (after.eer, after.auc, after.threshold) == pytest.approx(
        (before.eer, before.auc, before.threshold), abs=1e-4
    )
    assert after.tar == pytest.approx(before.tar, abs=1e-3)
    assert identification((x @ turn).astype("f4"), y) == identification(x.astype("f4"), y)


@pytest.mark.parametrize("signs", [True, False])
def test_tar_grows_with_far_and_rank_with_k(signs):
    x, y = sample(8, signs)
    tar = list(verification(x, y, far=np.linspace(0, 0.999, 300)).tar.values())
    assert tar == sorted(tar)
    assert tar[0] < tar[-1] <= 1
    rank = list(identification(x, y, range(1, 41)).rank.values())
    assert rank == sorted(rank)
    assert rank[-1] == 1


@pytest.mark.parametrize("dim", [3, 17, 128, 512])
def test_collapsed_embeddings_are_a_coin_toss(dim):
    x = torch.randn(1, dim, generator=torch.Generator().manual_seed(dim)).repeat(700, 1)
    y = torch.arange(700) % 9
    got = verification(x, y, block=100)
    assert (got.eer, got.auc, got.threshold) == (0.5, 0.5, 1.0)
    assert set(got.tar.values()) == {0.0}
    assert identification(x, y, (1, 622, 623)).rank == {1: 0.0, 622: 0.0, 623: pytest.approx(7 * 78 / 700)}


def test_the_ends():
    axes = torch.eye(4).repeat(3, 1)
    y = torch.arange(4).repeat(3)
    best = verification(axes, y, far=(0.0,))
    assert (best.eer, best.auc, best.threshold, best.tar) == (0.0, 1.0, 1.0, {0.0: 1.0})
    assert (best.genuine, best.impostor) == (12, 54)
    assert identification(axes, y, (1,)).rank == {1: 1.0}
    worst = from_scores([0.1, 0.9], [True, False])
    assert (worst.eer, worst.auc) == (1.0, 0.0)
    opposite = verification(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]), [0, 0, 1])
    assert (opposite.eer, opposite.auc) == (1.0, 0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64])
def test_kinds_of_input(dtype):
    cloud, y = sample(2, False)
    plain = verification(cloud.astype("f4"), y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert verification(cloud.astype("f4"), y) == plain
    x, y = sample(2, True)
    wanted = verification(x, y), identification(x, y)
    typed = torch.tensor(x, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (verification(typed, torch.tensor(y)), identification(typed, torch.tensor(y))) == wanted
    scores = torch.tensor([0.5, 0.25, 0.5], dtype=torch.bfloat16)
    assert from_scores(scores, torch.tensor([1, 0, 0])).auc == 0.75
    # The squares of these leave float32's range; the input stays as it is.
    far_out = (torch.tensor(x).float() * torch.tensor([[1e30], [1e-30]]).repeat(20, 1)).requires_grad_()
    assert verification(far_out, y) == wanted[0]


ok, ids = torch.eye(4), torch.tensor([0, 0, 1, 1])
zero, nan, inf = ok.clone(), ok.clone(), ok.clone()
zero[2], nan[1, 0], inf[3, 2] = 0, math.nan, math.inf


@pytest.mark.parametrize("compute", [verification, identification])
@pytest.mark.parametrize(
    ("x", "y", "error", "words"),
    [
        (zero, ids, ValueError, r"embeddings must not be zero.*zeros at row 2 \(1 such rows\).*leave them out"),
        (nan, ids, ValueError, r"embeddings must be finite; got NaN at row 1"),
        (inf, ids, ValueError, r"embeddings must be finite; got inf at row 3"),
        (ok[:1], ids[:1], ValueError, r"embeddings must have at least 2 rows, to make a pair; got 1"),
        (ok[0], ids, ValueError, r"embeddings must have shape \(rows, dim\); got \(4,\)"),
        (ok, ids[:3], ValueError, r"labels must have shape \(4,\), one per row of embeddings; got \(3,\)"),
        (ok, ids.float(), TypeError, r"labels must be whole numbers or names; got float32"),
        (
            ok,
            torch.arange(4),
            ValueError,
            r"there (are no genuine pairs|is no query).* one identity with two samples",
        ),
    ],
)
def test_refused_embeddings(compute, x, y, error, words):
    with pytest.raises(error, match=words):
        compute(x, y)


@pytest.mark.parametrize(
    ("compute", "words"),
    [
        (lambda: verification(ok, ids * 0), r"there are no impostor pairs.*at least two identities"),
        (lambda: verification(ok, ids, far=(0.1, 1.5)), r"far must lie in \[0, 1\); got 1.5"),
        (lambda: verification(ok, ids, block=0), "block must be at least 1; got 0"),
        (lambda: identification(ok, ids, (0,)), "k must be at least 1; got 0"),
        (lambda: identification(ok, ids, block=0), "block must be at least 1; got 0"),
        (lambda: from_scores([0.1, 0.2], [1, 1]), "there are no impostor pairs"),
        (lambda: from_scores([0.1, 0.2], [0, 0]), "there are no genuine pairs"),
        (lambda: from_scores([], []), "there are no genuine pairs"),
        (lambda: from_scores([0.1, math.nan, math.inf], [1, 0, 0]), r"got nan for pair 1 \(2 such pairs\)"),
        (lambda: from_scores([0.1, 0.2], [1, 2]), "same must be true or false"),
        (lambda: from_scores([0.1, 0.2], [1]), r"one shape \(pairs,\); got \(2,\) and \(1,\)"),
        (lambda: from_scores([0.1, 0.2], [1, 0], far=(-1.0,)), r"far must lie in \[0, 1\); got -1"),
    ],
)
def test_refused_settings(compute, words):
    with pytest.raises(ValueError, match=words):
        compute()
