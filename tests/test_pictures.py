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


def collisions(figure):
    pairs = itertools.combinations(texts(figure), 2)
    return [
        (a.get_text(), b.get_text()) for (a, box), (b, other) in pairs if box.padded(-1).overlaps(other.padded(-1))
    ]


@functools.cache
def made(name):
    return plots.make(name)


@over_pictures
def test_labels_do_not_collide_and_stay_inside(name):
    figure = drawn(made(name))
    assert texts(figure), "a picture without a word explains nothing"
    assert collisions(figure) == []
    frame = figure.bbox.padded(1)
    outside = [
        t.get_text() for t, box in texts(figure) if not (frame.contains(*box.min) and frame.contains(*box.max))
    ]
    assert outside == []
    assert colours(figure) <= set(astuple(style.LIGHT)), "else it would stay black when an SVG turns dark"
    assert colours(drawn(made(name), dark=True)) <= set(astuple(style.DARK))


def colours(figure):
    """Of all words."""
    return {to_hex(text.get_color()) for text, _ in texts(figure)}


@over_pictures
def test_a_picture_becomes_files(name, tmp_path):
    display = made(name)
    for ending, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        path = tmp_path / f"{name}.{ending}"
        display.save(path)
        assert path.read_bytes().startswith(start)
    text = (tmp_path / f"{name}.svg").read_text()
    assert text == display.svg(), "the same picture must be the same file"
    assert "prefers-color-scheme: dark" in text
    assert not re.search(
        r"<image|https?://(?!www\.w3\.org|purl\.org|creativecommons\.org|matplotlib\.org)", text
    ), "vector, and nothing fetched"


@over_pictures
def test_a_picture_fits_axes_of_yours(name):
    figure = Figure(figsize=(20, 9), layout="constrained")
    left, right = figure.subplots(1, 2)
    display = made(name)
    display.plot(left)
    assert display.figure_ is figure
    figure.draw_without_rendering()
    assert not right.has_data()
