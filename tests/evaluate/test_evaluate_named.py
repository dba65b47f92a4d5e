"""Embeddings by name on lists of pairs, and scores in text files, against numbers made by hand."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hypermargin.data import DataError
from hypermargin.evaluate import from_scores, kfold, read_scores, score_named

NAMES = [f"lfw/{who}/{who}_{k:04d}.jpg" for who in ("Ann_A", "Bob", "Cy") for k in (1, 2, 3)]
X = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
LFW = "2\t2\n" + "".join(
    f"{a}\t1\t2\n{b}\t1\t3\n{a}\t1\t{b}\t2\n{b}\t3\t{c}\t1\n"
    for a, b, c in (("Ann_A", "Bob", "Cy"), ("Bob", "Cy", "Ann_A"))
)
ROWS = [(0, 1), (3, 5), (0, 4), (5, 6), (3, 4), (6, 8), (3, 7), (8, 0)]
SAME = [True, True, False, False] * 2


def cosines(rows):
    return [float(X[i] @ X[j] / np.linalg.norm(X[i]) / np.linalg.norm(X[j])) for i, j in rows]


def refused(*words):
    return pytest.raises(ValueError, match="(?s)" + ".*".join(map(re.escape, words)))


def write(path, text):
    path.write_text(text)
    return path


def test_lfw(tmp_path):
    found = score_named(X, NAMES, write(tmp_path / "pairs.txt", LFW))
    assert found.scores == pytest.approx(cosines(ROWS), abs=1e-6)
    assert found.same.tolist() == SAME
    assert found.fold.tolist() == [0] * 4 + [1] * 4
    first, second = found.identities
    assert (first[2], second[2]) == ("Ann_A", "Bob")
    accuracies = kfold(found.scores, found.same, found.fold).accuracies
    for fold in (0, 1):  # the threshold of the other fold, by trying all
        here, there = slice(4 * fold, 4 * fold + 4), slice(4 - 4 * fold, 8 - 4 * fold)
        levels = [*sorted(found.scores[there])[::-1], 2]
        best = max(levels, key=lambda t: (((found.scores[there] >= t) == found.same[there]).sum(), t))
        assert accuracies[fold] == ((found.scores[here] >= best) == found.same[here]).mean()


def test_euclidean_is_minus_the_distance_as_it_is(tmp_path):
    path = write(tmp_path / "pairs.txt", LFW)
    found = score_named(X, NAMES, path, metric="euclidean")
    assert found.scores == pytest.approx([-np.linalg.norm(X[i] - X[j]) for i, j in ROWS])
    assert score_named(X, np.array(NAMES), str(path), metric="cosine").scores == pytest.approx(
        cosines(ROWS), abs=1e-6
    )
    with refused("metric must be one of 'cosine', 'euclidean'; got 'l2'"):
        score_named(X, NAMES, path, metric="l2")


@pytest.mark.parametrize(
    "names",
    [
        [name.removesuffix(".jpg") for name in NAMES],
        [name.removeprefix("lfw/") for name in NAMES],
        [f"/home/me/{name}".replace(".jpg", ".PNG") for name in NAMES],
        [name.replace("/", "\\") for name in NAMES],
        [name.split("/")[-1] for name in NAMES],  # LFW's names say whose they are without their folders
        [f"./flat/{name.split('/')[-1]}" for name in NAMES],
    ],
    ids=lambda names: names[0],
)
def test_names_as_people_have_them(tmp_path, names):
    found = score_named(X, names, write(tmp_path / "pairs.txt", LFW))
    assert found.scores == pytest.approx(cosines(ROWS), abs=1e-6)


def test_other_lists_and_longer_names(tmp_path):
    rows, names = [(0, 1), (0, 4)], [f"id{k // 3}/v/{k}.wav" for k in range(9)]
    for text in (
        "1 id0/v/0.wav id0/v/1.wav\n0 id0/v/0.wav id1/v/4.wav\n",
        "id0/v/0 id0/v/1 target\nid0/v/0 id1/v/4 nontarget\n",
        "/data/wav/id0/v/0.flac /data/wav/id0/v/1.flac 1\n/data/wav/id0/v/0.flac /data/wav/id1/v/4.flac 0\n",
    ):
        found = score_named(X, names, write(tmp_path / "trials.txt", text))
        assert found.scores == pytest.approx(cosines(rows), abs=1e-6)
        assert (found.same.tolist(), found.identities, found.fold) == ([True, False], None, None)


def test_names_that_are_not_there_are_shown_beside_those_that_are(tmp_path):
    path = write(tmp_path / "pairs.txt", LFW)
    with pytest.raises(DataError) as error:
        score_named(X[3:], NAMES[3:], path)
    for part in (
        f"{path}: 2 of its 8 names are not among those of the 6 embeddings",
        "'Ann_A/Ann_A_0001' (line 2)",
        "look like 'lfw/Bob/Bob_0001.jpg' and 'lfw/Bob/Bob_0002.jpg'",
    ):
        assert part in str(error.value)
    rest = "Bob/Bob_0001\n0 Cy/Cy_0001 Bob/Bob_0001\n"
    twice = [*NAMES[:8], NAMES[0].replace("lfw", "copy")]
    with refused("1 of its", "could each be several of the embeddings", "Ann_A/Ann_A_0001"):
        score_named(X, twice, write(tmp_path / "one.txt", f"1 Ann_A/Ann_A_0001 {rest}"))
    exact = write(tmp_path / "two.txt", f"1 lfw/Ann_A/Ann_A_0001.jpg {rest}")
    assert score_named(X, twice, exact).scores == pytest.approx(cosines([(0, 3), (6, 3)]), abs=1e-6)
    with refused("'a/1.jpg' and 'b/1.jpg' would both be the embedding '1.jpg'", "with their folders"):
        score_named(X[:2], ["1.jpg", "2.jpg"], write(tmp_path / "c.txt", "1 a/1.jpg a/2.jpg\n0 b/1.jpg a/2.jpg\n"))


def test_what_cannot_be_judged_is_refused(tmp_path):
    with refused("there are no impostor pairs in it", "all 2 are genuine"):
        score_named(X, NAMES, write(tmp_path / "a.txt", "Bob\t1\t2\nBob\t1\t3\n"))
    with refused("there are no genuine pairs in it"):
        score_named(X, NAMES, write(tmp_path / "a.txt", "0 Bob/Bob_0001 Cy/Cy_0001\n"))
    with refused("names must be one per row of the embeddings, 9; got 8"):
        score_named(X, NAMES[:8], write(tmp_path / "a.txt", LFW))
    bad = X.copy()
    bad[4] = 0
    with refused("embeddings must be finite, and not zero", "at row 4 (lfw/Bob/Bob_0002.jpg)"):
        score_named(bad, NAMES, tmp_path / "a.txt")
    assert len(score_named(bad, NAMES, tmp_path / "a.txt", metric="euclidean").scores) == 8
    with refused("line 2: expected `name 1 2`"):
        score_named(X, NAMES, write(tmp_path / "a.txt", "Bob\t1\t2\nBob\tx\t3\nBob 1 Cy 1\n"))


# --- scores in text files

TRIALS = "u1 u2 target\nu1 u3 nontarget\nu2 u3 nontarget\n"


@pytest.mark.parametrize(
    "text",
    [
        "score,label\n.9,1\n.2,0\n.1,0\n",
        ".9,1\n.2,0\n.1,0\n",
        "1 .9\n0 .2\n0 .1\n",
        ".9\ttarget\n.2\tnontarget\n.1\timpostor\n",
        "same;score;fold\ntrue;.9;1\nfalse;.2;1\nfalse;.1;2\n",
    ],
)
def test_scores_with_their_answers(tmp_path, text):
    found = read_scores(write(tmp_path / "scores.csv", text))
    assert (found.scores.tolist(), found.same.tolist()) == ([0.9, 0.2, 0.1], [True, False, False])
    assert (None if found.fold is None else found.fold.tolist()) == ([0, 0, 1] if "fold" in text else None)
    assert from_scores(found.scores, found.same).auc == 1


@pytest.mark.parametrize(
    "text",
    [
        "u2 u3 .1\nu1 u2 .9\nu3 u1 .2\nu9 u1 .5\n",
        ".1 u2 u3\n.9 u1 u2\n.2 u1 u3\n",
        "a,b,score\nu2.wav,u3.wav,.1\nu1,u2,.9\nu1,u3,.2\n",
    ],
)
def test_scores_and_trials_meet_by_name(tmp_path, text):
    trials = write(tmp_path / "trials", TRIALS)
    found = read_scores(write(tmp_path / "scores", text), trials)
    assert (found.scores.tolist(), found.same.tolist()) == ([0.9, 0.2, 0.1], [True, False, False])


def test_names_that_are_numbers(tmp_path):
    """Then all three columns are numbers, and the trials say which is the score."""
    trials = write(tmp_path / "trials", "1 7 8\n0 7 9\n")
    for text in ("7 8 1\n7 9 0.5\n", "1 7 8\n.5 7 9\n"):
        found = read_scores(write(tmp_path / "scores", text), trials)
        assert (found.scores.tolist(), found.same.tolist()) == ([1, 0.5], [True, False])


def test_scores_refusals(tmp_path):
    trials = write(tmp_path / "trials", TRIALS)
    for text, pairs, words in (
        ("", None, "it is empty. Expected: two columns"),
        ("score,same\n", None, "no scores below its first line"),
        ("0 1\n1 0\n", None, "either of its two columns may be the label"),
        (".5 .6\n.7 .8\n", None, "neither of its two columns is a label"),
        ("score,x\n1,2\n", None, "names the columns score, x. Expected"),
        ("score,same\n1,2\n", None, "the label must be 1 or 0, target or nontarget; got '2'"),
        ("score,same\nx,1\n", None, "the score must be a number; got 'x' for pair 0"),
        (".5 1\n.5\n", None, "line 2 has 1 columns, the first has 2"),
        (".5 1\n.6 0\n", trials, "it has the answers itself; leave the pairs of"),
        ("u1 u2 .9\n", None, "but not which pairs are the same. Give that as pairs"),
        ("u1 u2 .9\n", trials, "2 of its 3 pairs have no score in"),
        ("u1 u2 .9\nu1 u2 .8\n", trials, "u1 u2 has two scores, 0.9 and 0.8"),
        ("u1 u2 u3\n", trials, "its first line is 'u1 u2 u3'. Expected"),
        ("u1 u2 .9\n", write(tmp_path / "one", "u1 u2 target\n"), "no impostor pairs in it"),
    ):
        with refused(words):
            read_scores(write(tmp_path / "scores", text), pairs)
    with refused("cannot be read"):
        read_scores(tmp_path / "none")
