"""Advice for the losses after ArcFace: margins that fit, and reasons for their own numbers."""

import math

import pytest
from cases import UNADVISED

import hypermargin as hm
from hypermargin.advise import band_width, recommend
from hypermargin.margins import SphereFace2

NAMED = [n for n, r in hm.recipes.FAMILY.items() if r.group != "classic" and r.unit_features and n not in UNADVISED]


@pytest.mark.parametrize("name", NAMED)
def test_no_band_is_wider_than_the_classes_it_leaves(name):
    for classes, dim in ((30, 2), (1000, 4), (1000, 128)):
        advice = recommend(classes, dim, margin=name)
        assert advice.width <= advice.centre_angle / 2 * (1 + 1e-6)
        assert advice.s > 0
    papers = hm.recipes.FAMILY[name].margin  # where there is room, the paper's
    if name == "kappaface":  # 0.8 is more than half of a right angle
        assert advice.margin.m == pytest.approx(advice.centre_angle / 2)
    else:
        assert advice.margin.m == papers.m
    assert type(advice.margin) is type(papers)


@pytest.mark.parametrize("name", UNADVISED)
def test_where_the_rule_does_not_reach_it_says_so(name):
    for ask in (
        lambda: recommend(1000, 128, margin=name),
        lambda: hm.create_head(name, 128, 1000, scale="advised"),
    ):
        with pytest.raises(ValueError, match=rf"no s can be advised for {name}: .*Give a number"):
            ask()
    with pytest.raises(ValueError, match=r"scale must be given.* Use a number"):
        hm.create_head(name, 128, 1000, scale=None)


def test_the_band_of_sphereface2():
    """On the boundary g(cos θ1) − m = g(cos θ2) + m; its rivals carry the margin as well."""
    margin, theta12 = SphereFace2(m=0.3, t=3.0), 1.4
    b = (theta12 - band_width(margin, theta12)) / 2
    g = lambda theta: 2 * ((1 + math.cos(theta)) / 2) ** 3 - 1  # noqa: E731
    assert g(b) - 0.3 == pytest.approx(g(theta12 - b) + 0.3, abs=1e-9)
    for name in ("sphereface2", "uniface", "li-arcface", "mv-arcface"):  # which are not softmax with a margin alone
        assert math.isnan(recommend(1000, 128, margin=name).floor)


def test_the_band_where_rivals_count_for_more():
    """Li-ArcFace: θ1 + m = θ2; two margins: θ1 + m = θ2 − m; SphereFace-R, version 2: mθ1 = θ2."""
    for name, width in (
        ("li-arcface", lambda advice: advice.m),
        ("double-margin", lambda advice: 2 * advice.m),
        ("sphereface-r", lambda advice: 0.2 * advice.centre_angle),
    ):
        for classes, dim in ((30, 2), (1000, 128)):
            advice = recommend(classes, dim, margin=name)
            assert advice.width == pytest.approx(width(advice), abs=1e-7)
    assert recommend(1000, 128, margin="double-margin").m == 0.2
    assert band_width(hm.margins.LiArcFace(0.4), 1.3) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("adaface", "take some 459 steps"),
        ("magface", "1.5 times that"),
        ("elasticface-cos", "14 % of m"),
        ("sphereface2", "a guess here"),
        ("ldam", "one with 16 times the samples gets half"),
        ("mv-arcface", "e^(s·t) = 9.97 times"),
        ("subcenter-arcface", "3,000 instead of 1,000"),
        ("kappaface", "0.268 if it is the most frequent and 0.499 if it is rare"),
        ("dyn-arcface", "k1 and k2 are a guess"),
        ("adaptiveface", "margin_reward = 2.33 is the paper's λ = 70 at s = 30"),
        ("vpl", "from a batch of 5 on"),
        ("curricularface", "takes some 459 steps"),
        ("uniface", "begins at b/s = ln(10C)/s = 0.6"),
        ("inter-topk", "k = 5 and m_prime = 0.06 are those of speaker recipes"),
        ("npcface", "e^(s·a)"),
        ("arcnegface", "alpha = 1.2 and sigma = 2"),
        ("filter", "above = 0.4 is insightface's"),
        ("sphereface-r", "count as 0.5"),
    ],
)
def test_own_numbers_have_reasons(run, name, words):
    assert words in " ".join(recommend(1000, 128, margin=name).reasons)
    code, out, _ = run("advise", "--classes", 1000, "--dim", 128, "--margin", name)
    assert code == 0
    assert words.split(" = ")[0] in " ".join(out.split())


def test_the_margin_of_dyn_arcface_grows_to_half_of_what_there_is():
    for classes, dim in ((30, 2), (1000, 4), (1000, 128), (100_000, 512)):
        advice = recommend(classes, dim, margin="dyn-arcface")
        k1, k2 = advice.margin.k1, advice.margin.k2
        assert k1 < advice.centre_angle
        assert advice.m + k2 * (advice.centre_angle - k1) <= advice.centre_angle / 2 * (1 + 1e-9)
    given = recommend(1000, 128, margin="dyn-arcface", numbers={"k1": 0.3, "k2": 0.7}).margin
    assert (given.k1, given.k2, given.m) == (0.3, 0.7, 0.5)


def test_what_has_no_scale_says_so():
    with pytest.raises(ValueError, match="vs keeps the lengths of the features"):
        recommend(1000, 128, margin="vs")
    with pytest.raises(ValueError, match="logit-adjustment keeps the lengths of the features"):
        recommend(1000, 128, margin="logit-adjustment")
    with pytest.raises(ValueError, match="numbers are for a margin given by name"):
        recommend(1000, 128, margin=SphereFace2(), numbers={"m": 0.1})
