"""Spheres, softmax, the hinge ladder, gradients and the pipeline: what is drawn, against formulas written here."""

import math
import re

import numpy as np
import pytest
import torch
from matplotlib.path import Path
from matplotlib.text import Text

from hypermargin import plots
from hypermargin.margins import ArcFace, Combined, CosFace, NoMargin, SphereFace
from hypermargin.plots import pipeline, style
from hypermargin.plots.caps import CapsDisplay, spread
from hypermargin.plots.gradient import AnglePullDisplay, PullsDisplay, RivalsDisplay
from hypermargin.plots.ladder import LadderDisplay
from hypermargin.plots.softmax import ScaleDisplay, SharesDisplay
from hypermargin.plots.sphere import View


def folded(u):
    """1 − ∫₀ᵘ |sin|, by whole half-turns of area 2."""
    k = np.floor(u / np.pi)
    return 1 - (2 * k + 1 - np.cos(u - k * np.pi))


# Each margin with ψ(θ), −dψ/dθ and how far a class reaches towards a rival at θ12, from the papers' formulas.
MARGINS = {
    NoMargin(): (np.cos, np.sin, lambda t: t / 2),
    SphereFace(4): (lambda t: folded(4 * t), lambda t: 4 * abs(np.sin(4 * t)), lambda t: t / 5),
    CosFace(0.35): (
        lambda t: np.cos(t) - 0.35,
        np.sin,
        lambda t: t / 2 - math.asin(0.35 / (2 * math.sin(t / 2))),
    ),
    ArcFace(0.5): (lambda t: folded(t + 0.5), lambda t: abs(np.sin(t + 0.5)), lambda t: (t - 0.5) / 2),
    Combined(1.2, 0.2, 0.0): (
        lambda t: folded(1.2 * t + 0.2),
        lambda t: 1.2 * abs(np.sin(1.2 * t + 0.2)),
        lambda t: (t - 0.2) / 2.2,
    ),
}
over_margins = pytest.mark.parametrize("margin", MARGINS, ids=lambda margin: margin.name)
APART = {4: math.acos(-1 / 3), 6: math.pi / 2, 12: math.atan(2)}


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def words(display):
    """All texts of the picture, drawn on axes of its own."""
    figure = display.plot().ax_.get_figure(root=True)
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def sphere_points(n, seed=0):
    x = np.random.default_rng(seed).normal(size=(n, 3))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def meets(margin, W, x, slack=0.0):
    """(N, C): by how much more than `slack` each point meets the margin of each class, as yes or no."""
    cosines = np.clip(x @ W.T, -1, 1)
    psi = MARGINS[margin][0](np.arccos(cosines))
    rivals = np.stack([np.delete(cosines, j, 1).max(1) for j in range(len(W))], 1)
    return psi - rivals >= slack


# The view


@pytest.mark.parametrize(("elevation", "azimuth"), [(0, 0), (25, 35), (90, 0), (-40, 200), (10, -75)])
def test_a_view_turns_the_sphere_and_drops_the_depth(elevation, azimuth):
    view = View(elevation, azimuth)
    x = sphere_points(50)
    e, a = np.radians([elevation, azimuth])
    about_z = np.array([[np.cos(a), np.sin(a), 0], [-np.sin(a), np.cos(a), 0], [0, 0, 1]])
    about_y = np.array([[np.cos(e), 0, np.sin(e)], [0, 1, 0], [-np.sin(e), 0, np.cos(e)]])
    turned = x @ about_z.T @ about_y.T  # the eye is now on the x axis, right is y and up is z
    xy, front = view.project(x)
    np.testing.assert_allclose(xy, turned[:, 1:], atol=1e-12)
    assert (front == (turned[:, 0] >= 0)).all()


def test_the_globe_stays_in_its_outline_and_far_lines_are_fainter():
    ax = style.new_axes()
    View().draw_globe(ax)
    alphas = set()
    for line in ax.lines:
        x, y = np.asarray(line.get_data(), float)
        assert np.nanmax(np.hypot(x, y), initial=0) <= 1 + 1e-9
        alphas.add(line.get_alpha())
    assert {0.4, 0.1} <= alphas


@pytest.mark.parametrize("points", [[1, 2, 3], [[1, 2]], np.zeros((2, 3, 1))])
def test_points_of_another_shape_are_refused(points):
    with pytest.raises(ValueError, match="points must have shape"):
        View().project(points)


# Caps


@pytest.mark.parametrize("classes", APART)
def test_directions_are_spread_evenly(classes):
    W = spread(classes)
    assert W.shape == (classes, 3)
    np.testing.assert_allclose(np.linalg.norm(W, axis=1), 1)
    nearest = np.arccos(np.clip(W @ W.T - 3 * np.eye(classes), -1, 1)).min(1)
    np.testing.assert_allclose(nearest, APART[classes])


@over_margins
@pytest.mark.parametrize("classes", APART)
def test_caps_reach_as_far_as_the_formulas_say(margin, classes):
    display = CapsDisplay.of(margin, spread(classes))
    expected = MARGINS[margin][2](APART[classes])
    np.testing.assert_allclose(display.reach.min(1), expected, atol=2e-3)  # a ray may pass beside the rival
    assert (display.reach >= expected - 1e-9).all()
    assert display.band == pytest.approx(APART[classes] - 2 * expected)


def test_cells_without_a_margin_are_those_of_the_solids():
    octahedron = CapsDisplay.of(NoMargin(), spread(6))
    np.testing.assert_allclose(octahedron.reach.max(1), math.acos(1 / math.sqrt(3)), atol=1e-9)
    assert octahedron.covered == pytest.approx(1, abs=1e-3)


@over_margins
@pytest.mark.parametrize("classes", [4, 6])
def test_covered_is_the_share_of_points_that_meet_the_margin(margin, classes):
    W = spread(classes)
    share = meets(margin, W, sphere_points(40_000)).any(1).mean()
    assert CapsDisplay.of(margin, W).covered == pytest.approx(share, abs=0.012)


@over_margins
@pytest.mark.parametrize("view", [View(), View(-50, 10)], ids=str)
@pytest.mark.parametrize("classes", [4, 6])
def test_what_is_filled_is_the_near_part_of_each_region(margin, view, classes):
    W = spread(classes)
    display = CapsDisplay.of(margin, W, view).plot()
    x = sphere_points(4000, seed=1)
    xy, front = view.project(x)
    inside, outside = meets(margin, W, x, 0.03), ~meets(margin, W, x, -0.03)
    depth = x @ view.axes[2]
    seen = front & (depth > 0.05)  # the outline is made of short straight pieces
    polygons = {tuple(patch.get_facecolor()[:3]): Path(patch.get_xy()) for patch in display.ax_.patches}
    assert len(polygons) == classes
    for j in range(classes):
        colour = matplotlib_rgb(style.LIGHT.cycle[j])
        covered = polygons[colour].contains_points(xy)
        assert covered[seen & inside[:, j]].all()
        assert not covered[seen & outside[:, j]].any()


def matplotlib_rgb(colour):
    from matplotlib.colors import to_rgb

    return to_rgb(colour)


@over_margins
def test_caps_say_their_radius_band_and_share(margin):
    said = "\n".join(words(CapsDisplay.of(margin, spread(6))))
    b = math.degrees(MARGINS[margin][2](math.pi / 2))
    assert f"radius of a class: {b:.1f}°" in said
    assert f"band between two: {90 - 2 * b:.1f}°" in said
    share = float(re.search(r"cover ([\d.]+) %", said)[1])
    assert share == pytest.approx(100 * meets(margin, spread(6), sphere_points(40_000)).any(1).mean(), abs=1.2)


def test_a_margin_that_no_sample_meets_leaves_no_caps():
    display = CapsDisplay.of(CosFace(1.2), spread(6))
    assert (display.reach < 1e-9).all()
    assert display.band == pytest.approx(math.pi / 2)
    assert any("not even its center" in said for said in words(display))


@pytest.mark.parametrize("prototypes", [[[1, 0, 0]], [[1, 0], [0, 1]], [[1, 0, 0], [0, 0, 0]]])
def test_odd_prototypes_are_refused(prototypes):
    with pytest.raises(ValueError, match="prototypes must be"):
        CapsDisplay.of(NoMargin(), prototypes)


# Softmax and its scale


def test_shares_and_softmax_of_one_to_four():
    x = np.array([1.0, 2, 3, 4])
    display = SharesDisplay.of(x, (0.1, 1, 10))
    expected = [x / 10, softmax(x / 10), softmax(x), softmax(10 * x)]
    for share, right in zip(display.shares.values(), expected, strict=True):
        np.testing.assert_allclose(share, right, rtol=1e-12)
    said = words(display)
    for share in np.concatenate(expected):
        assert f"{100 * share:.1f} %" in said
    heights = sorted(bar.get_height() for bar in display.ax_.patches)
    np.testing.assert_allclose(heights, np.sort(np.concatenate(expected)))


def test_ten_five_five_is_half_by_share_and_almost_all_by_softmax():
    one = math.exp(5) / (math.exp(5) + 2)
    assert round(one, 4) == 0.9867
    said = words(plots.make("smoothness"))
    assert "50.0 %" in said
    assert f"{100 * one:.1f} %" == "98.7 %"
    assert "98.7 %" in said


def test_softmax_curves_go_from_even_to_the_winner():
    x = [1.0, 2.0, 3.0, 4.0]
    display = ScaleDisplay.probabilities(x)
    np.testing.assert_allclose(np.stack(list(display.curves.values()), 1), softmax(np.outer(display.scales, x)))
    assert display.scales[[0, -1]] == pytest.approx([0.1, 10])
    lines = {line.get_label(): line.get_ydata() for line in display.plot().ax_.lines}
    np.testing.assert_allclose(lines["score 4"], 1 / (1 + sum(np.exp(-k * display.scales) for k in (1, 2, 3))))


@pytest.mark.parametrize("scores", [(1.0, 2.0, 3.0, 4.0), (10.0, 5.0, 5.0), (2.0, 2.0), (0.5, 7.0)])
def test_smooth_maxima_keep_their_bounds(scores):
    display = ScaleDisplay.maxima(scores)
    x, s = np.array(scores), display.scales
    lse, mean = display.curves.values()
    np.testing.assert_allclose(lse, np.log(np.exp(np.outer(s, x)).sum(1)) / s)
    np.testing.assert_allclose(mean, softmax(np.outer(s, x)) @ x)
    assert (lse >= x.max() - 1e-12).all()
    assert (lse <= x.max() + math.log(len(x)) / s + 1e-12).all()
    np.testing.assert_allclose(display.bound, x.max() + math.log(len(x)) / s)
    assert (mean <= x.max() + 1e-12).all()
    assert (mean >= x.mean() - 1e-12).all()


# The hinge ladder

BEHIND = [(0.0,), (0.0, 0.1, 0.3), (0.0, 0.0, 0.0, 0.5)]


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("m", [0.0, 0.35])
@pytest.mark.parametrize("s", [1.0, 10.0, 64.0])
def test_rungs_and_pulls(behind, m, s):
    display, pulls = LadderDisplay.rungs(behind, m, s), LadderDisplay.pulls(behind, m, s)
    v = display.x[:, None] - np.array(behind)
    total = np.exp(s * v).sum(1)
    S, H = v.clip(0).sum(1), v.max(1).clip(0)
    smooth, L = (np.log(total) / s).clip(0), np.log1p(total) / s
    for curve, right in zip(display.curves.values(), (S, H, smooth, L), strict=True):
        np.testing.assert_allclose(curve, right, atol=1e-9)
    q = total / (1 + total)
    away = (abs(v) > 1e-6).all(1) & (abs(np.log(total)) > 1e-6)  # from the kinks
    slopes = 2 * (v > 0).sum(1), 2 * (v.max(1) > 0), 2 * (np.log(total) > 0), 2 * q
    for curve, right in zip(pulls.curves.values(), slopes, strict=True):
        np.testing.assert_allclose(curve[away], right[away], atol=1e-9)


@pytest.mark.parametrize("behind", BEHIND)
def test_am_softmax_lies_between_the_hinge_and_its_bound(behind):
    scales = (64.0, 4.0, 10.0)
    display = LadderDisplay.scales(behind, 0.35, scales)
    H, *smooth = display.curves.values()
    np.testing.assert_allclose(H, display.x.clip(0), atol=1e-12)
    C = len(behind) + 1
    for s, curve in zip(sorted(scales), smooth, strict=True):
        total = np.exp(s * (display.x[:, None] - np.array(behind))).sum(1)
        np.testing.assert_allclose(curve, np.log1p(total) / s, atol=1e-12)
        assert (curve >= H - 1e-12).all()
        assert (curve <= H + math.log(C) / s + 1e-12).all()
    said, low, high = display.shade
    assert said == f"H … H + ln({C})/4"
    np.testing.assert_allclose(high - low, math.log(C) / 4)
    np.testing.assert_allclose(low, H)


def test_level_rivals_meet_the_bound():
    display = LadderDisplay.gaps((0.0, 0.1, 0.3), 0.35)
    bound, level, given = display.curves.values()
    np.testing.assert_allclose(bound, math.log(4) / display.x)
    np.testing.assert_allclose(level, bound, rtol=1e-9)
    offsets = np.array([0.0, 0.1, 0.3])
    np.testing.assert_allclose(given, np.log1p(np.exp(-np.outer(display.x, offsets)).sum(1)) / display.x)


def test_lines_drawn_are_the_curves():
    for panel in plots.make("hinge").panels:
        lines = {line.get_label(): line for line in panel.plot().ax_.lines}
        assert list(lines) == list(panel.curves)
        for name, curve in panel.curves.items():
            np.testing.assert_allclose(lines[name].get_xydata(), np.stack([panel.x, curve], 1))
        assert len({(line.get_linestyle(), line._dash_pattern[1] and tuple(line._dash_pattern[1]))
                    for line in lines.values()}) == len(lines), "told apart without colour"  # fmt: skip


# Gradients


def probabilities(margin, target, rivals, s):
    z = s * np.cos(np.radians(np.array([target, *rivals], float)))
    z[0] = s * MARGINS[margin][0](np.radians(target))
    return softmax(z)


@over_margins
@pytest.mark.parametrize("s", [1.0, 10.0, 30.0, 64.0])
def test_bars_are_what_softmax_gives_each_class(margin, s):
    target, rivals = 45.0, (60.0, 65.0, 75.0, 90.0)
    display = PullsDisplay.of(margin, target, rivals, s)
    p = probabilities(margin, target, rivals, s)
    q = p[1:].sum()
    np.testing.assert_allclose(display.gradient, [-q, *p[1:]], rtol=1e-9)
    np.testing.assert_allclose(display.shares, p[1:] / q, rtol=1e-9)
    said = words(display)
    assert any(f"= {q:.3f}" in text for text in said)
    assert f"−{q:.3f}" in said
    for share in p[1:] / q:
        assert f"{100 * share:.1f} %" in said
    heights = [bar.get_height() for bar in display.ax_.patches]
    np.testing.assert_allclose(heights, display.gradient)
    assert sum(heights) == pytest.approx(0, abs=1e-12)


@over_margins
def test_shares_over_the_scale(margin):
    rivals = (60.0, 65.0, 90.0)
    display = RivalsDisplay.of(margin, 45.0, rivals)
    for s, shares, q in zip(display.scales[::20], display.shares[::20], display.q[::20], strict=True):
        p = probabilities(margin, 45.0, rivals, s)
        np.testing.assert_allclose(shares, p[1:] / p[1:].sum(), rtol=1e-9)
        assert q == pytest.approx(p[1:].sum(), rel=1e-9)
    assert (np.diff(display.shares[:, 0]) > 0).all(), "the hardest rival gets ever more"


@pytest.mark.parametrize("s", [1.0, 30.0])
@pytest.mark.parametrize("classes", [2, 1000])
def test_the_pull_on_the_angle_is_q_times_the_slope(s, classes):
    display = AnglePullDisplay.of(list(MARGINS), s, classes)
    for (psi, slope, _), pull in zip(MARGINS.values(), display.pulls.values(), strict=True):
        q = 1 / (1 + np.exp(s * psi(display.theta)) / (classes - 1))
        np.testing.assert_allclose(pull, q * slope(display.theta), atol=1e-6)


# The pipeline


@pytest.mark.parametrize("dark", [False, True])
def test_words_stay_in_their_boxes_and_arrows_end_at_them(dark):
    display = pipeline.PipelineDisplay()
    ax = display.plot(style.new_axes(display.size, dark=dark)).ax_
    ax.figure.draw_without_rendering()
    to_inches = ax.transData.inverted()
    boxes = [(b.x - b.width / 2, b.y - b.height / 2, b.x + b.width / 2, b.y + b.height / 2) for b in pipeline.BOXES]
    for box, (left, bottom, right, top) in zip(pipeline.BOXES, boxes, strict=True):
        for said in (box.name, box.lines):
            places = [
                to_inches.transform(text.get_window_extent().get_points())
                for text in ax.texts if text.get_text() == said
            ]  # fmt: skip
            assert any(
                left < low[0] and high[0] < right and bottom < low[1] and high[1] < top for low, high in places
            ), said
    for path, *_ in pipeline.ARROWS:
        for x, y in (path[0], path[-1]):
            assert any(
                l - 1e-9 <= x <= r + 1e-9 and b - 1e-9 <= y <= t + 1e-9
                and min(abs(x - l), abs(x - r), abs(y - b), abs(y - t)) < 1e-9
                for l, b, r, t in boxes  # noqa: E741
            ), path  # fmt: skip


def test_the_pipeline_is_what_the_library_computes():
    """softplus(R − T) of the diagram, done by hand in numpy, is margin_softmax."""
    from hypermargin import margin_softmax

    rng = np.random.default_rng(0)
    x, W, y, s = rng.normal(size=(5, 3)), rng.normal(size=(7, 3)), rng.integers(0, 7, 5), 12.0
    f = s * x / np.linalg.norm(x, axis=1, keepdims=True)
    z = f @ (W / np.linalg.norm(W, axis=1, keepdims=True)).T
    target = z[np.arange(5), y]
    R = np.log(np.exp(z).sum(1) - np.exp(target))
    T = s * folded(np.arccos(target / s) + 0.5)
    loss = margin_softmax(
        torch.from_numpy(x), torch.from_numpy(W), torch.from_numpy(y), ArcFace(0.5), scale=s, reduction="none"
    )
    np.testing.assert_allclose(loss.numpy(), np.log1p(np.exp(R - T)), rtol=1e-9)
    shapes = {box.name: box.lines for box in pipeline.BOXES}
    assert shapes["scores"].split("\n")[1] == "N × C"
    assert shapes["margin"].endswith("\nN")


# What is refused


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("caps", {"classes": 5}, "classes must be 4, 6 or 12"),
        ("caps", {"margins": ["nonsense"]}, "nonsense"),
        ("caps", {"elevation": math.nan}, "elevation"),
        ("smoothness", {"scores": [1.0]}, "scores must be two or more"),
        ("smoothness", {"scores": [1.0, -2.0]}, "scores must be positive"),
        ("smoothness", {"scales": [0.0]}, "scales must be positive"),
        ("hinge", {"behind": []}, "behind must hold"),
        ("hinge", {"behind": [0.1, 0.2]}, "behind must hold"),
        ("hinge", {"scales": []}, "scales must hold"),
        ("hinge", {"scale": -1.0}, "scale must be positive"),
        ("gradient", {"rivals": []}, "rivals must hold"),
        ("gradient", {"rivals": [200.0]}, "rivals must lie"),
        ("gradient", {"target": -3.0}, "target must lie"),
        ("gradient", {"scales": [0.0]}, "scales must be positive"),
        ("gradient", {"classes": 1}, "classes must be at least 2"),
        ("gradient", {"classes": 1_000_000}, "classes must lie"),
    ],
)
def test_bad_values_are_named(name, options, said):
    with pytest.raises(ValueError, match=said):
        plots.make(name, **options)
