"""What a reader sees of a comparison: heads told apart, the same axes, numbers that are those of the table."""

import itertools

import numpy as np
import pytest

from hypermargin.compare.report.pictures import _psi_rows
from hypermargin.compare.report.tables import SHAPES, margin_in_words
from hypermargin.plots.comparison import HeadsDetDisplay, HeadsNumberDisplay, HeadsRocDisplay
from hypermargin.plots.norms import NormsDisplay
from hypermargin.plots.style import DARK, LIGHT, framed, new_axes, stroke_of
from hypermargin.recipes import FAMILY


@pytest.mark.parametrize("look", [LIGHT, DARK])
def test_sixteen_heads_have_sixteen_looks(look):
    lines = [stroke_of(k, look) for k in range(16)]
    for one, other in itertools.combinations(lines, 2):
        assert (one["linestyle"], one.get("marker")) != (other["linestyle"], other.get("marker"))
    assert len({(line["color"], line["linestyle"], line.get("marker")) for line in lines}) == 16
    assert all("marker" not in line or line["marker"] in SHAPES for line in lines)


def drawn(display):
    ax = new_axes(display.size)
    display.plot(ax)
    return {line.get_label().split(":")[0]: line for line in ax.lines if not line.get_label().startswith("_")}


def test_a_head_looks_the_same_in_every_picture():
    heads = list(FAMILY)[:9]
    places = {head: k for k, head in enumerate(heads)}
    far = np.geomspace(1e-3, 1, 50)
    seeds = {head: [(far, far ** (0.1 + 0.02 * k), 1000)] for k, head in enumerate(heads)}
    roc = HeadsRocDisplay.of(seeds, places)
    det = HeadsDetDisplay(roc, dict.fromkeys(heads, (0.1, "10.00 %")))
    few = HeadsRocDisplay.of({head: seeds[head] for head in heads[5:]}, places)
    for head, line in drawn(roc).items():
        same = [drawn(each)[head] for each in (det, few) if head in drawn(each)]
        assert same
        for other in same:
            assert other.get_color() == line.get_color()
            assert other.get_linestyle() == line.get_linestyle()
            assert other.get_marker() == line.get_marker()


def test_the_best_head_is_on_top():
    values = {"a": [0.1, 0.2], "b": [0.5, 0.6], "c": [0.3, 0.3]}
    for better, order in ((1, ["a", "c", "b"]), (-1, ["b", "c", "a"])):
        ax = new_axes()
        HeadsNumberDisplay(values, "EER", better).plot(ax)
        assert [label.get_text() for label in ax.get_yticklabels()] == order


def test_pictures_side_by_side_share_their_axes():
    rng = np.random.default_rng(0)
    made = {str(k): NormsDisplay(rng.uniform(k, 2 * k, 50), rng.uniform(0, 1, 50), 0.5) for k in (1, 3)}
    limits = {(each.xlim, each.ylim) for each in framed(made).values()}
    assert len(limits) == 1
    ((xlim, _),) = limits
    assert xlim[0] < 1.1
    assert xlim[1] > 5.5
    for each in framed(made).values():
        assert each.plot().ax_.get_xlim() == xlim
        assert not each.ax_.get_title(loc="left")  # the page has it


def test_l_softmax_is_not_called_sphereface():
    about = {"head": {"margin": "sphereface", "numbers": {"m": 4.0, "lam": 5.0, "beyond": "smooth"}}}
    assert "phere" not in margin_in_words(about)
    assert "m = 4" in margin_in_words(about)
    rows = _psi_rows({"l-softmax": about, "a-softmax": about}, {"l-softmax": 0, "a-softmax": 1})
    assert [list(row.displays[""].curves) for row in rows] == [["l-softmax, a-softmax"]] * 2
