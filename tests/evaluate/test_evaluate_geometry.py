"""Geometry and the whole report against loops in float64, scipy and worked examples."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from hypermargin.evaluate import evaluate, geometry, verification
from hypermargin.evaluate.geometry import spearman
from hypermargin.margins import ArcFace, CosFace

seeds = st.integers(0, 2**32 - 1)


def sample(seed, n=45, classes=8, dim=6, width=0.6):
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((classes, dim))
    y = np.concatenate([[0, 0, classes - 1], rng.integers(0, classes - 1, n - 3)])
    x = (W[y] + width * rng.standard_normal((n, dim))) * rng.uniform(0.5, 2, (n, 1))
    return x, y, W


def angle(u, v):
    u, v = u / np.linalg.norm(u), v / np.linalg.norm(v)
    return 2 * math.atan2(np.linalg.norm(u - v), np.linalg.norm(u + v))


@settings(max_examples=15)
@given(seed=seeds, width=st.sampled_from([0.1, 0.6]))
def test_geometry_by_loops(seed, width):
    x, y, _ = sample(seed, width=width)
    got = geometry(x, y)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    several = [c for c in np.unique(y) if (y == c).sum() > 1]
    centers = {c: unit[y == c].mean(0) for c in np.unique(y)}
    own = [angle(unit[i], centers[y[i]]) for i in range(len(y)) if y[i] in several]
    other = [min(angle(unit[i], centers[c]) for c in centers if c != y[i]) for i in range(len(y))]
    assert got.own_centre.mean == pytest.approx(np.mean(own), abs=1e-9)
    assert got.own_centre.high == pytest.approx(np.quantile(own, 0.95), abs=1e-9)
    assert got.other_centre.mean == pytest.approx(np.mean(other), abs=1e-7)
    pairs = [(i, j) for j in range(len(y)) for i in range(j)]
    intra = [angle(unit[i], unit[j]) for i, j in pairs if y[i] == y[j]]
    inter = [angle(unit[i], unit[j]) for i, j in pairs if y[i] != y[j]]
    assert (got.intra, got.inter) == pytest.approx((np.mean(intra), np.mean(inter)), abs=1e-4)
    squared = np.array([((unit[i] - unit[j]) ** 2).sum() for i, j in pairs])
    same = np.array([y[i] == y[j] for i, j in pairs])
    assert got.alignment == pytest.approx(squared[same].mean(), abs=1e-5)
    assert got.uniformity == pytest.approx(np.log(np.exp(-2 * squared).mean()), abs=1e-5)
    promise = [
        max(angle(unit[i], unit[j]) for i in np.flatnonzero(y == c) for j in np.flatnonzero(y == c) if i != j)
        < min(angle(unit[i], unit[j]) for i in np.flatnonzero(y == c) for j in np.flatnonzero(y != c))
        for c in several
    ]
    assert got.separated == pytest.approx(np.mean(promise))


@settings(max_examples=10)
@given(seed=seeds)
def test_norms_by_loops(seed):
    x, y, _ = sample(seed)
    got = geometry(x, y).norms
    norms = np.linalg.norm(x, axis=1)
    unit = x / norms[:, None]
    means = np.array([norms[y == c].mean() for c in np.unique(y)])
    within = np.concatenate([norms[y == c] - norms[y == c].mean() for c in np.unique(y)])
    assert got.mean == pytest.approx(norms.mean())
    assert (got.within, got.between) == pytest.approx((within.std() / norms.mean(), means.std() / norms.mean()))
    several = np.flatnonzero([(y == c).sum() > 1 for c in y])
    own = [round(math.cos(angle(unit[i], unit[y == y[i]].mean(0))) * 2**20) for i in several]
    assert got.correlation == pytest.approx(spearmanr(norms[several], own).statistic, abs=1e-9)
    scores = {i: np.mean([unit[i] @ unit[j] for j in np.flatnonzero(y == y[i]) if j != i]) for i in several}
    parts = np.array_split(sorted(several, key=lambda i: norms[i]), 5)
    for (norm, score), part in zip(got.genuine, parts, strict=True):
        assert (norm, score) == pytest.approx((norms[part].mean(), np.mean([scores[i] for i in part])), abs=1e-9)


@settings(max_examples=60)
@given(seed=seeds, size=st.integers(2, 40), decimals=st.sampled_from([0, 1, 9]))
def test_rank_correlation_is_scipys(seed, size, decimals):
    a, b = np.round(np.random.default_rng(seed).standard_normal((2, size)), decimals)
    if len(set(a)) == 1 or len(set(b)) == 1:
        assert math.isnan(spearman(a, b))
    else:
        assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)


@settings(max_examples=15)
@given(seed=seeds, margin=st.sampled_from([CosFace(0.2), ArcFace(0.3)]))
def test_prototypes_by_loops(seed, margin):
    x, y, W = sample(seed)
    got = geometry(x, y, prototypes=W, margin=margin).prototypes
    own = np.array([angle(x[i], W[y[i]]) for i in range(len(y))])
    rival = np.array([min(angle(x[i], W[j]) for j in range(len(W)) if j != y[i]) for i in range(len(y))])
    shift = own + 0.3 if isinstance(margin, ArcFace) else None
    psi = np.cos(own) - 0.2 if shift is None else np.where(shift < math.pi, np.cos(shift), -np.cos(shift) - 2)
    assert got.met == pytest.approx((psi >= np.cos(rival)).mean())
    assert got.accuracy == pytest.approx((own < rival).mean())
    assert (got.own.mean, got.rival.median) == pytest.approx((own.mean(), np.median(rival)), abs=1e-7)
    for c, mean, worst in zip(got.classes, got.margin, got.worst, strict=True):
        gap = (rival - own)[y == c]
        assert (mean, worst) == pytest.approx((gap.mean(), gap.min()), abs=1e-7)
    between = {(a, b): angle(W[a], W[b]) for b in range(len(W)) for a in range(b)}
    a, b, closest = got.closest[0]
    here = {pair: v for pair, v in between.items() if set(pair) & set(y)}
    assert (a, b) == min(here, key=here.get)
    assert closest == pytest.approx(here[a, b], abs=1e-9)
    angles = [v for _, _, v in got.closest]
    assert angles == sorted(angles)
    assert len({(a, b) for a, b, _ in got.closest}) == len(got.closest)


def test_prototypes_in_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    W, y = rng.standard_normal((9000, 4)), rng.integers(0, 9000, 700)
    y[:2] = 8999
    x = W[y] + 0.01 * rng.standard_normal((700, 4))
    got = geometry(x, y, prototypes=torch.tensor(W), margin=CosFace(0.0)).prototypes
    c = (x / np.linalg.norm(x, axis=1, keepdims=True)) @ (W / np.linalg.norm(W, axis=1, keepdims=True)).T
    own = c[np.arange(700), y].copy()
    c[np.arange(700), y] = -2
    assert got.met == pytest.approx((own >= c.max(1)).mean())
    assert got.rival.mean == pytest.approx(np.arccos(c.max(1)).mean(), abs=1e-7)


def test_neural_collapse_is_seen():
    """A simplex of classes, every sample on its center: the best there is."""
    simplex = np.eye(5) - 0.2
    y = np.arange(5).repeat(4)
    got = geometry(3 * simplex[y], y, prototypes=simplex, margin=CosFace(1.2))
    assert got.own_centre.mean == pytest.approx(0, abs=1e-7)
    assert got.intra == pytest.approx(0, abs=1e-6)
    assert got.inter == pytest.approx(math.acos(-0.25), abs=1e-5)
    assert got.prototypes.own.mean == pytest.approx(0, abs=1e-7)
    assert (got.separated, got.alignment, got.prototypes.met) == (1.0, pytest.approx(0, abs=1e-6), 1.0)
    assert got.prototypes.margin == pytest.approx(math.acos(-0.25))
    assert geometry(simplex[y], y, prototypes=simplex, margin=CosFace(1.3)).prototypes.met == 0.0
    assert math.isnan(got.norms.correlation)  # nothing to correlate


def test_the_report_gathers_and_is_plain():
    x, y, W = sample(3, n=200)
    whole = evaluate(x, y, prototypes=W, margin=CosFace(0.1))
    assert whole.verification == verification(x, y, confidence=0.95)
    assert whole.geometry == geometry(x, y, prototypes=W, margin=CosFace(0.1))
    found = json.loads(json.dumps(whole.to_dict(), allow_nan=False))
    assert found["verification"]["eer"] == whole.verification.eer
    assert found["verification"]["tar"]["0.001"] == whole.verification.tar[1e-3]
    assert found["verification"]["intervals"]["auc"] == list(whole.verification.intervals["auc"])
    assert found["identification"]["rank"] == {str(k): v for k, v in whole.identification.rank.items()}
    assert found["geometry"]["prototypes"]["worst"] == whole.geometry.prototypes.worst.min()
    rows = whole.rows()
    assert all(len(row) == 4 and all(isinstance(cell, str) for cell in row) for row in rows)
    by_name = {name: (value, interval) for _, name, value, interval in rows}
    assert f"{100 * whole.verification.eer:.2f} %" in by_name["EER"][0]
    assert "…" in by_name["EER"][1]
    assert "too few pairs" in by_name["TAR at FAR 1e-06"][0]
    assert by_name["TAR at FAR 1e-06"][1] == ""
    assert "too few" not in by_name["TAR at FAR 0.01"][0]
    plain = evaluate(x, y, confidence=None)
    assert plain.verification.intervals is None
    assert {interval for *_, interval in plain.rows()} == {""}
    assert json.dumps(plain.to_dict(), allow_nan=False)


def test_shares_are_written_with_the_digits_they_need():
    from hypermargin.evaluate.report import _number

    written = {0.5: "50.00 %", 1.0: "100.00 %", 0.0: "0.00 %", 0.00034: "0.0340 %", 0.99966: "99.9660 %"}
    for share, text in written.items():
        assert float(_number(share).split()[0]) == pytest.approx(100 * share, rel=1e-9), text


ok, ids = torch.eye(4), torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize("compute", [geometry, evaluate])
def test_refused(compute):
    zero, nan = ok.clone(), ok.clone()
    zero[1], nan[2, 2] = 0, math.nan
    for make, error, words in (
        (lambda: compute(zero, ids), ValueError, "features must not be zero.*row 1"),
        (lambda: compute(nan, ids), ValueError, "features must be finite; got NaN at row 2"),
        (lambda: compute(ok, ids * 0), ValueError, "no impostor pairs"),
        (lambda: compute(ok, torch.arange(4)), ValueError, "no genuine pairs"),
        (lambda: compute(ok[:1], ids[:1]), ValueError, "features must have at least 2 rows"),
        (lambda: compute(ok[:2], torch.tensor([3, 3])), ValueError, "no impostor pairs"),
        (lambda: compute(ok, ids, margin=CosFace()), ValueError, "margin needs prototypes"),
        (lambda: compute(ok, ids, prototypes=ok, margin=0.3), TypeError, "margin must be a Margin such as CosFace"),
        (lambda: compute(ok, ids + 3, prototypes=ok), ValueError, r"labels must lie in \[0, 4\).*got 4"),
        (lambda: compute(ok, ids - 1, prototypes=ok), ValueError, r"labels must lie in \[0, 4\).*got -1"),
        (lambda: compute(ok, ids, prototypes=ok[:, :3]), ValueError, r"prototypes must have shape \(classes, 4\)"),
        (lambda: compute(ok, np.array(list("aabb")), prototypes=ok), TypeError, "labels must be whole numbers"),
    ):
        with pytest.raises(error, match=words):
            make()


def test_identical_embeddings_have_a_geometry():
    whole = evaluate(torch.ones(12, 3), torch.arange(12) // 3)
    assert (whole.verification.eer, whole.verification.auc) == (0.5, 0.5)
    assert whole.identification.rank[1] == 0.0
    assert whole.geometry.separated == 0.0
    assert whole.geometry.uniformity == pytest.approx(0, abs=1e-5)
    assert json.dumps(whole.to_dict(), allow_nan=False)
    assert whole.rows()
