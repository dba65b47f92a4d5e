"""Laws for every picture of the catalogue: it can be drawn, read, saved, and its labels do not collide."""

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
over_looks = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])


def drawn(display, dark=False):
    """The figure, laid out as it will be in the file."""
    figure = display.plot(style.new_axes(display.size, dark=dark)).ax_.get_figure(root=True)
    figure.draw_without_rendering()
    return figure


def texts(figure):
    """Every text that is seen, with the box it takes."""
    seen = []
    for text in figure.findobj(Text):
        hidden = not text.get_visible() or not text.get_text().strip()
        axes = text.axes
        if hidden or (axes is not None and not axes.axison and text in _of_the_frame(axes)):
            continue
        box = text.get_window_extent()
        if axes is not None and text in _ticks(axes) and not _in_view(axes, text):
            continue
        seen.append((text, box))
    return seen


def _of_the_frame(axes):
    return [*_ticks(axes), axes.xaxis.label, axes.yaxis.label]


def _ticks(axes):
    return [t for axis in (axes.xaxis, axes.yaxis) for t in axis.get_ticklabels(which="both")]


def _in_view(axes, text):
    """Ticks outside the limits are not drawn."""
    shown = {
        label for axis in (axes.xaxis, axes.yaxis) for tick in axis._update_ticks() for label in (tick.label1,)
    }
    return text in shown


def collisions(figure):
    pairs = itertools.combinations(texts(figure), 2)
    return [
        (a.get_text(), b.get_text()) for (a, box), (b, other) in pairs if box.padded(-1).overlaps(other.padded(-1))
    ]


@over_pictures
@over_looks
def test_labels_do_not_collide_and_stay_inside(name, dark):
    figure = drawn(plots.make(name), dark)
    assert texts(figure), "a picture without a word explains nothing"
    assert collisions(figure) == []
    frame = figure.bbox.padded(1)
    outside = [
        t.get_text() for t, box in texts(figure) if not (frame.contains(*box.min) and frame.contains(*box.max))
    ]
    assert outside == []


@over_pictures
@over_looks
def test_text_is_in_colours_of_the_look(name, dark):
    """Else it would stay black when an SVG turns dark."""
    colours = astuple(style.DARK if dark else style.LIGHT)
    assert {to_hex(t.get_color()) for t, _ in texts(drawn(plots.make(name), dark))} <= set(colours)


@over_pictures
def test_a_picture_becomes_files(name, tmp_path):
    display = plots.make(name)
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
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    display = plots.make(name)
    display.plot(left)
    assert display.figure_ is figure
    figure.draw_without_rendering()
    assert not right.has_data()
