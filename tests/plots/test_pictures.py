"""Laws for every picture of the catalogue: it can be drawn, read, saved, and its labels do not collide."""

import functools
import itertools
import re
from dataclasses import astuple

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from hypermargin import plots
from hypermargin.plots import style

DRAWN = {name: picture for name, picture in plots.pictures().items() if not picture.learned}
over_pictures = pytest.mark.parametrize("name", DRAWN)
QUICK = ("psi", "boundary-circle", "caps", "pipeline")  # axes, a circle, panels, and no axes at all
SOME = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in DRAWN]


def drawn(display, dark=False):
    """The figure, laid out as it will be in the file."""
    figure = display.plot(style.new_axes(display.size, dark=dark)).ax_.get_figure(root=True)
    figure.draw_without_rendering()
    return figure


def texts(figure):
    """Every text that is seen, with the box it takes."""
    unseen = _unseen(figure)
    return [
        (text, text.get_window_extent())
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text not in unseen
    ]


def _unseen(figure):
    """Ticks outside the limits or left over from an earlier layout, and all of a frame that is off."""
    found = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            drawn = axis._update_ticks() if axes.axison else []
            for tick in (*axis.majorTicks, *axis.minorTicks):
                if tick not in drawn:
                    found |= {tick.label1, tick.label2}
            if not axes.axison:
                found |= {axis.label, axis.offsetText}
    return found


def collisions(seen):
    pairs = itertools.combinations(seen, 2)
    return [
        (a.get_text(), b.get_text()) for (a, box), (b, other) in pairs if box.padded(-1).overlaps(other.padded(-1))
    ]


@functools.cache
def made(name):
    return plots.make(name)


@over_pictures
def test_labels_do_not_collide_and_stay_inside(name):
    figure = drawn(made(name))
    seen = texts(figure)
    assert seen, "a picture without a word explains nothing"
    assert collisions(seen) == []
    frame = figure.bbox.padded(1)
    outside = [t.get_text() for t, box in seen if not (frame.contains(*box.min) and frame.contains(*box.max))]
    assert outside == []
    assert colours(figure) <= set(astuple(style.LIGHT)), "else it would stay black when an SVG turns dark"
    dark = made(name).plot(style.new_axes(made(name).size, dark=True)).ax_.get_figure(root=True)
    assert colours(dark) <= set(astuple(style.DARK))


def colours(figure):
    """Of all words."""
    unseen = _unseen(figure)
    found = [text for text in figure.findobj(Text) if text.get_text().strip() and text not in unseen]
    return {to_hex(text.get_color()) for text in found}


@pytest.mark.parametrize("name", SOME)
def test_a_picture_becomes_a_vector_file(name, tmp_path):
    path = tmp_path / f"{name}.svg"
    made(name).save(path)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<?xml")
    assert "prefers-color-scheme: dark" in text
    assert not re.search(
        r"<image|https?://(?!www\.w3\.org|purl\.org|creativecommons\.org|matplotlib\.org)", text
    ), "vector, and nothing fetched"


@pytest.mark.parametrize("name", SOME)
def test_a_picture_is_the_same_file_every_time(name):
    assert made(name).svg() == plots.make(name).svg()


@pytest.mark.parametrize("name", ["width", "boundary-circle"])  # one pair of axes, and panels
def test_the_ending_chooses_the_format(name, tmp_path):
    for ending, start in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        made(name).save(tmp_path / f"{name}.{ending}")
        assert (tmp_path / f"{name}.{ending}").read_bytes().startswith(start)


@over_pictures
def test_a_picture_fits_axes_of_yours(name):
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    display = made(name)
    display.plot(left)
    assert display.figure_ is figure
    drawn_on = [*left.lines, *left.patches, *left.collections, *left.texts]
    assert drawn_on or len(figure.axes) > 2, "neither on the axes nor in panels in their place"
    assert not right.has_data()


def test_a_notebook_shows_a_picture_by_itself():
    """Where a Display is the last line of a cell, Jupyter asks for this."""
    shown = plots.make("width")._repr_png_()
    assert shown.startswith(b"\x89PNG\r\n")
    assert len(shown) < 100_000  # it is kept in the notebook, as text
