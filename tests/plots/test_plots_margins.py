"""Pictures of margins show what the formulas say: curves, bands, regions, and the numbers written beside them."""

import math

import numpy as np
import pytest
from matplotlib.patches import Wedge
from matplotlib.path import Path
from matplotlib.text import Text

from hypermargin import plots
from hypermargin.margins import ArcFace, Combined, CosFace, NoMargin, Piecewise, SphereFace
from hypermargin.plots import (
    BoundaryDisplay,
    MonotoneDisplay,
    PsiDisplay,
    RegionsDisplay,
    ThetaPlaneDisplay,
    WidthDisplay,
)
from hypermargin.plots.psi import knots
from hypermargin.plots.stretches import stretches

ANGULAR = [
    (NoMargin(), (1, 0, 0)),
    (SphereFace(4), (4, 0, 0)),
    (SphereFace(2.5), (2.5, 0, 0)),
    (SphereFace(1), (1, 0, 0)),
    (CosFace(0.35), (1, 0, 0.35)),
    (ArcFace(0.5), (1, 0.5, 0)),
    (ArcFace(2.0), (1, 2.0, 0)),
    (Combined(1.3, 0.3, 0.2), (1.3, 0.3, 0.2)),
    (Combined(0.7, 0.4, 0.1), (0.7, 0.4, 0.1)),
]
over_margins = pytest.mark.parametrize(("margin", "numbers"), ANGULAR, ids=[str(m) for m, _ in ANGULAR])


def g(u):
    """1 − ∫₀ᵘ |sin|: 2 for every whole half turn, and 1 − cos of what is left."""
    return 1 - (2 * (u // math.pi) + 1 - np.cos(u % math.pi))


def psi(numbers, theta):
    m1, m2, m3 = numbers
    return g(m1 * theta + m2) - m3


def apart(phi, center):
    """Between two directions of the plane, through their vectors."""
    return np.arccos(np.clip(np.cos(phi) * np.cos(center) + np.sin(phi) * np.sin(center), -1, 1))


def words(display):
    """All that is written in the picture."""
    figure = display.plot().ax_.get_figure(root=True)
    figure.draw_without_rendering()
    return [text.get_text() for text in figure.findobj(Text)]


def test_the_formula_of_this_file_is_the_integral():
    u = np.linspace(0, 20, 200_001)
    sines = np.abs(np.sin(u))
    integral = np.concatenate(([0.0], np.cumsum((sines[1:] + sines[:-1]) / 2) * (u[1] - u[0])))
    np.testing.assert_allclose(g(u), 1 - integral, atol=1e-8)


# ψ, logit, probability


@over_margins
def test_psi_and_slope(margin, numbers):
    shown = PsiDisplay.of([margin])
    (curve,) = shown.curves
    m1, m2, _ = numbers
    np.testing.assert_allclose(curve.values, psi(numbers, shown.theta), atol=1e-12)
    np.testing.assert_allclose(curve.slopes, -m1 * np.abs(np.sin(m1 * shown.theta + m2)), atol=1e-9)
    assert shown.theta[0] == 0
    assert shown.theta[-1] == math.pi


@over_margins
def test_lambda_blends_in_the_cosine(margin, numbers):
    shown = PsiDisplay.of([margin], lam=[0, 5, 1000])
    for weight, curve in zip([0, 5, 1000], shown.curves, strict=True):
        blended = (weight * np.cos(shown.theta) + psi(numbers, shown.theta)) / (1 + weight)
        np.testing.assert_allclose(curve.values, blended, atol=1e-12)
        assert curve.name == f"λ = {weight}"


@pytest.mark.parametrize("rivals", ["orthogonal", "simplex"])
@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_logit_and_probability(rivals, classes):
    s = 20.0
    for margin, numbers in ANGULAR:
        logit = PsiDisplay.of([margin], show="logit", scale=s)
        np.testing.assert_allclose(logit.curves[0].values, s * psi(numbers, logit.theta), atol=1e-10)
        shown = PsiDisplay.of([margin], show="probability", scale=s, classes=classes, rivals=rivals, points=61)
        c = np.zeros_like(shown.theta) if rivals == "orthogonal" else -np.cos(shown.theta) / (classes - 1)
        z = s * np.concatenate((psi(numbers, shown.theta)[None], np.tile(c, (classes - 1, 1))))
        e = np.exp(z - z.max(0))
        np.testing.assert_allclose(shown.curves[0].values, e[0] / e.sum(0), rtol=1e-9, atol=1e-300)


@over_margins
def test_knots_are_where_the_sine_changes_its_sign(margin, numbers):
    m1, m2, _ = numbers
    theta = np.linspace(1e-7, math.pi - 1e-7, 100_001)
    signs = np.sign(np.sin(m1 * theta + m2))
    np.testing.assert_allclose(knots(margin), theta[1:][signs[1:] != signs[:-1]], atol=1e-4)
    (curve,) = PsiDisplay.of([margin]).curves
    np.testing.assert_array_equal(curve.knots, knots(margin))


def test_knots_of_margins_that_are_not_made_of_g():
    assert knots(Piecewise(2)) == [math.pi / 2]
    assert knots(Piecewise(1)) == knots(ArcFace(beyond="none")) == knots(SphereFace(3, beyond="none")) == []
    assert knots(ArcFace(0.5, beyond="easy")) == [math.pi / 2]
    assert knots(ArcFace(0.5, beyond="linear")) == [math.pi - 0.5]


def test_the_lines_are_the_curves_and_the_dots_the_knots():
    shown = PsiDisplay.of([NoMargin(), SphereFace(4)])
    figure = shown.plot().ax_.get_figure(root=True)
    left, right = (ax for ax in figure.axes if ax.lines)
    for ax, values in ((left, "values"), (right, "slopes")):
        drawn = {line.get_label(): line.get_xydata() for line in ax.lines}
        for curve in shown.curves:
            np.testing.assert_array_equal(drawn[curve.name], np.stack((shown.theta, getattr(curve, values)), 1))
        (dots,) = (x.get_xydata() for x in ax.lines if x.get_marker() == "o" and len(x.get_xdata()))
        quarter = math.pi / 4 * np.arange(1, 4)
        expected = [-1, -3, -5] if values == "values" else [0, 0, 0]
        np.testing.assert_allclose(dots, np.stack((quarter, expected), 1), atol=1e-12)


def test_what_was_assumed_is_written():
    assert "s = 12; 1,000 classes, the rivals on a simplex" in words(
        plots.make("probability", scale=12.0, classes=1000, rivals="simplex")
    )
    shown = words(plots.make("psi", margins=["arcface"], lam=[0.0, 5.0]))
    assert {"ArcFace m = 0.5, blended with cos θ by λ", "λ = 0", "λ = 5"} <= set(shown)
    assert "ArcFace m = 0.5, λ = 5" in words(plots.make("psi", margins=["none", "arcface"], lam=[0.0, 5.0]))


# the monotone carrier


@pytest.mark.parametrize("m", [1.0, 2.0, 3.0, 4.0, 6.0, 2.7])
@pytest.mark.parametrize("level", [-0.6, 0.0, 0.3, 0.9])
def test_monotone_intervals(m, level):
    """cos mθ ≥ c is |mθ − 2πk| ≤ acos c."""
    shown = MonotoneDisplay.of(m, level)
    turns, reach = 2 * math.pi * np.arange(math.ceil(m) + 1), math.acos(level)
    expected = np.clip(np.stack((turns - reach, turns + reach), 1) / m, 0, math.pi)
    expected = expected[expected[:, 1] - expected[:, 0] > 1e-9]
    np.testing.assert_allclose(shown.passes, expected, atol=1e-9)
    np.testing.assert_allclose(shown.smooth_passes, expected[:1], atol=1e-9)
    np.testing.assert_allclose(shown.bare, np.cos(m * shown.theta), atol=1e-12)
    np.testing.assert_allclose(shown.smooth, g(m * shown.theta), atol=1e-12)


def test_the_intervals_are_written_and_shaded():
    display = plots.make("monotone")
    shown = "\n".join(words(display))
    assert "cos 6θ ≥ 0 at 0–15°, 45–75°, 105–135°, 165–180°\ng(6θ) ≥ 0 at 0–15°" in shown
    assert "cos 4θ ≥ 0 at 0–22.5°, 67.5–112.5°, 157.5–180°" in shown
    spans = [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in display.axes_[3].patches]
    np.testing.assert_allclose(np.degrees(spans), [(0, 15), (45, 75), (105, 135), (165, 180)], atol=1e-6)


# two classes


def brute_reach(numbers, theta12, own=1.0, other=1.0):
    """How far a class goes towards the other, by bisection; 0 if its center is not its own."""

    def good(theta):
        return own * psi(numbers, np.float64(theta)) >= other * math.cos(theta12 - theta)

    low, high = 0.0, theta12
    if not good(0.0):
        return 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


@over_margins
@pytest.mark.parametrize("degrees", [5, 30, 60, 90, 137, 179])
def test_width_is_that_of_bisection(margin, numbers, degrees):
    theta12 = math.radians(degrees)
    shown = BoundaryDisplay.of(margin, theta12)
    assert shown.width == pytest.approx(theta12 - 2 * brute_reach(numbers, theta12), abs=1e-9)
    assert shown.band == pytest.approx((-shown.width / 2, shown.width / 2), abs=1e-12)


def test_widths_of_the_formulas():
    for theta12 in np.radians([60, 90, 150]):
        assert BoundaryDisplay.of(SphereFace(4), theta12).width == pytest.approx(3 / 5 * theta12)
        assert BoundaryDisplay.of(ArcFace(0.5), theta12).width == pytest.approx(0.5)
        expected = 2 * math.asin(0.35 / (2 * math.sin(theta12 / 2)))
        assert BoundaryDisplay.of(CosFace(0.35), theta12).width == pytest.approx(expected)
        mixed = theta12 - 2 * (theta12 - 0.3) / 3
        assert BoundaryDisplay.of(Combined(2, 0.3, 0), theta12).width == pytest.approx(mixed)


def inside(arcs, phi):
    return np.any([((phi - a) % (2 * math.pi)) <= b - a for a, b in arcs], axis=0) if arcs else phi != phi


@over_margins
@pytest.mark.parametrize("degrees", [20, 90, 180])
@pytest.mark.parametrize("lengths", [(1.0, 1.0), (0.5, 1.0), (1.0, 0.4)])
def test_every_direction_is_whose_it_should_be(margin, numbers, degrees, lengths):
    half = math.radians(degrees) / 2
    shown = BoundaryDisplay.of(margin, 2 * half, lengths=lengths)
    phi = np.random.default_rng(degrees).uniform(-math.pi, math.pi, 3000)
    one, two = apart(phi, half), apart(phi, -half)
    first = lengths[0] * psi(numbers, one) - lengths[1] * np.cos(two)
    second = lengths[1] * psi(numbers, two) - lengths[0] * np.cos(one)
    clear = (np.abs(first) > 1e-5) & (np.abs(second) > 1e-5)
    phi, first, second = phi[clear], first[clear] > 0, second[clear] > 0
    np.testing.assert_array_equal(inside(shown.first, phi), first)
    np.testing.assert_array_equal(inside(shown.second, phi), second)
    np.testing.assert_array_equal(inside(shown.neither, phi), ~first & ~second)


@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("m", [1.0, 2.0, 3.5])
def test_l_softmax_band(ratio, m):
    theta12 = math.radians(90)
    shown = BoundaryDisplay.of(SphereFace(m), theta12, lengths=(ratio, 1.0))
    one, two = brute_reach((m, 0, 0), theta12, ratio, 1.0), brute_reach((m, 0, 0), theta12, 1.0, ratio)
    assert shown.band == pytest.approx((two - theta12 / 2, theta12 / 2 - one), abs=1e-9)
    if m == 2:  # 1 − 2x² = x/ratio with x = sin θ1
        x = (-1 / ratio + math.sqrt(1 / ratio**2 + 8)) / 4
        assert one == pytest.approx(math.asin(x))


@pytest.mark.parametrize("name", ["boundary-plane", "boundary-circle"])
@pytest.mark.parametrize("theta12", [40.0, 120.0])
def test_the_width_that_is_written(name, theta12):
    half = math.radians(theta12) / 2
    cosface = f"band {math.degrees(2 * math.asin(0.35 / (2 * math.sin(half)))):.1f}°" if theta12 > 49.5 else ""
    shown = words(plots.make(name, theta12=theta12))
    expected = {"band 0.0°", f"band {0.6 * theta12:.1f}°", "band 28.6°"}
    assert expected | {cosface or "band 40.0°, the whole arc"} <= set(shown)


def test_an_overlap_is_called_so():
    width = 2 * brute_reach((0.7, 0.0, 0.0), math.pi / 2) - math.pi / 2
    assert f"overlap {math.degrees(width):.1f}°" in words(
        plots.make("boundary-circle", margins=["combined:m1=0.7,m2=0,m3=0"])
    )


def test_the_bands_that_are_written_for_l_softmax():
    shown = [text for text in words(plots.make("l-softmax-bands")) if text.startswith("band")]
    uneven = 90 - math.degrees(math.asin((-0.5 + math.sqrt(8.25)) / 4) + math.asin((-2 + math.sqrt(12)) / 4))
    assert shown == [f"band {uneven:.1f}°", "band 30.0°", f"band {uneven:.1f}°"]


@pytest.mark.parametrize(("ratio", "winner"), [(0.1, 2), (10.0, 1)])
def test_a_long_weight_can_take_the_whole_arc(ratio, winner):
    own, other = (1.0, ratio) if winner == 2 else (ratio, 1.0)
    assert own * g(2 * math.radians(30)) > other, "the other center itself is the winner's"
    shown = words(plots.make("l-softmax-bands", ratios=[ratio], theta12=30.0))
    assert f"no band: class {winner} has the whole arc" in shown


@pytest.mark.parametrize("circle", [False, True])
def test_sectors_are_the_arcs(circle):
    shown = BoundaryDisplay.of(ArcFace(0.5), math.pi / 2, circle=circle)
    wedges = [patch for patch in shown.plot().ax_.patches if isinstance(patch, Wedge)]
    arcs = [*shown.first, *shown.second, *shown.neither]
    np.testing.assert_allclose([(w.theta1 - 90, w.theta2 - 90) for w in wedges], np.degrees(arcs), atol=1e-9)
    edges = np.degrees(shown.band)
    assert edges == pytest.approx([-14.3239, 14.3239], abs=1e-4)
    assert np.degrees(shown.first[0][0]) == pytest.approx(edges[1])


# all angles


@over_margins
def test_theta_plane(margin, numbers):
    """The polygons that are filled hold the points that win."""
    shown = ThetaPlaneDisplay.of(margin)
    one, two = np.random.default_rng(0).uniform(0, math.pi, (2, 4000))
    surplus = psi(numbers, one) - np.cos(two)
    clear = np.abs(surplus) > 1e-2
    above, right = (fill.get_paths()[0] for fill in shown.plot().ax_.collections)
    np.testing.assert_array_equal(above.contains_points(np.stack((one, two), 1)[clear]), surplus[clear] > 0)
    np.testing.assert_array_equal(right.contains_points(np.stack((two, one), 1)[clear]), surplus[clear] > 0)
    assert shown.width == pytest.approx(math.pi / 2 - 2 * brute_reach(numbers, math.pi / 2), abs=1e-9)


def test_theta_plane_says_the_width():
    shown = words(plots.make("theta-plane", margins=["none", "arcface", "sphereface:m=3"], theta12=60.0))
    assert {"no margin\nband 0.0°", "ArcFace m = 0.5\nband 28.6°", "SphereFace m = 3\nband 30.0°"} <= set(shown)


def test_width_over_all_angles():
    margins = [NoMargin(), SphereFace(4), CosFace(0.35), ArcFace(0.5), Combined(1, 0.3, 0.2)]
    shown = WidthDisplay.of(margins, points=60)
    x = shown.theta12
    none, sphere, cos, arc, combined = shown.widths
    np.testing.assert_allclose(none, 0, atol=1e-12)
    np.testing.assert_allclose(sphere, 0.6 * x, atol=1e-12)
    np.testing.assert_allclose(arc, np.minimum(x, 0.5), atol=1e-12)
    feasible = 1 - np.cos(x) >= 0.35
    np.testing.assert_allclose(cos[feasible], 2 * np.arcsin(0.35 / (2 * np.sin(x[feasible] / 2))), atol=1e-9)
    np.testing.assert_allclose(cos[~feasible & (1 - np.cos(x) < 0.35 - 1e-9)], x[1 - np.cos(x) < 0.35 - 1e-9])
    np.testing.assert_allclose(combined, [w - 2 * brute_reach((1, 0.3, 0.2), w) for w in x], atol=1e-7)
    assert shown.feasible == pytest.approx([0, 0, math.acos(0.65), 0.5, math.acos(math.cos(0.3) - 0.2)], abs=1e-12)


def test_width_marks_where_a_margin_can_be_met():
    display = plots.make("width", margins=["cosface", "arcface", "sphereface:m=2"])
    assert {"CosFace m = 0.35  (× 49.5°)", "ArcFace m = 0.5  (× 28.6°)", "SphereFace m = 2"} <= set(words(display))
    crosses = [line.get_xydata()[0] for line in display.ax_.lines if line.get_marker() == "X"]
    np.testing.assert_allclose(crosses, [[math.acos(0.65)] * 2, [0.5] * 2])


# several classes


def brute_half(points, numbers, classes, s):
    """p_j − ½ (C, N) by a softmax of all the logits, j being the label."""
    center = math.pi / 2 + 2 * math.pi * np.arange(classes) / classes
    length, phi = np.hypot(*points.T), np.arctan2(points[:, 1], points[:, 0])
    theta = apart(phi[None], center[:, None])
    rows = []
    for j in range(classes):
        z = s * length * np.cos(theta)
        z[j] = s * length * psi(numbers, theta[j])
        e = np.exp(z - z.max(0))
        rows.append(e[j] / e.sum(0) - 0.5)
    return np.array(rows)


def in_disc(n):
    rng = np.random.default_rng(n)
    r, phi = 1.99 * np.sqrt(rng.uniform(size=n)), rng.uniform(0, 2 * math.pi, n)
    return np.stack((r * np.cos(phi), r * np.sin(phi)), 1)


def fills(display):
    """The shaded areas, in order."""
    sets = [c for c in display.plot().ax_.collections if c.get_facecolor().size]
    return [Path.make_compound_path(*c.get_paths()) for c in sets]


# Every margin with every number of classes and with every s; the rest of the pairs are slow.
HALVES = [
    pytest.param(*ANGULAR[k], classes, s, marks=[pytest.mark.slow] if (i + j + n) % 3 else [])
    for i, k in enumerate((0, 1, 4, 5))  # none, sphere, cos, arc
    for j, classes in enumerate((2, 3, 5))
    for n, s in enumerate((1.0, 5.0, 30.0))
]


@pytest.mark.parametrize(("margin", "numbers", "classes", "s"), HALVES)
def test_regions_are_where_softmax_gives_half(margin, numbers, classes, s):
    points = in_disc(2000)
    won = brute_half(points, numbers, classes, s)
    near = np.array(
        [
            brute_half(points + d, numbers, classes, s) > 0
            for d in np.array([(1, 0), (-1, 0), (0, 1), (0, -1)]) * 0.02
        ]
    )
    clear = (near == (won > 0)).all(0)  # no boundary within 0.02: the picture is drawn on a grid
    areas = fills(RegionsDisplay.of(margin, classes, s))
    if len(areas) < classes:  # nobody wins anywhere
        assert not won.max() > 0
        return
    for area, own, sure in zip(areas, won, clear, strict=True):
        np.testing.assert_array_equal(area.contains_points(points[sure]), own[sure] > 0)
    (nobody,) = fills(RegionsDisplay.of(margin, classes, s, half=True))
    sure = clear.all(0)
    np.testing.assert_array_equal(nobody.contains_points(points[sure]), (won[:, sure] <= 0).all(0))


@pytest.mark.parametrize("s", [1.0, 5.0, 30.0])
@pytest.mark.parametrize("classes", [3, 5])
def test_how_long_a_feature_must_be(classes, s):
    shown = RegionsDisplay.of(NoMargin(), classes, s, half=True)
    low, high = 0.0, 10.0
    for _ in range(80):
        middle = (low + high) / 2
        won = brute_half(np.array([[0.0, middle]]), (1, 0, 0), classes, s)[0, 0] >= 0
        low, high = (low, middle) if won else (middle, high)
    assert shown.least == pytest.approx(low, rel=1e-6)
    if classes == 3:  # a simplex: e^{sr} = 2 e^{−sr/2}
        assert shown.least == pytest.approx(math.log(2) / (1.5 * s), rel=1e-6)
    phi = (np.arange(200_000) + 0.5) / 200_000 * 2 * math.pi
    lost = (brute_half(np.stack((np.cos(phi), np.sin(phi)), 1), (1, 0, 0), classes, s) < -1e-12).all(0)
    assert shown.share == pytest.approx(lost.mean(), abs=1e-3)
    assert f"|x| = {low:.2g};" in shown.words


def test_a_margin_that_no_class_meets():
    shown = RegionsDisplay.of(CosFace(1.9), 3, 5.0, half=True)
    assert shown.least == math.inf
    assert shown.share == 1
    assert shown.words.startswith("½ is never reached")


def test_half_says_its_numbers():
    shown = words(plots.make("half", classes=[3.0], scales=[1.0, 2.0]))
    assert "½ is reached from |x| = 0.46;\nat |x| = 1: none in 12.5 % of angles" in shown
    assert any(text.startswith("½ is reached from |x| = 0.23;") for text in shown)


# bits


def test_stretches():
    assert stretches(np.sin, 0.5, 9.0) == [
        (0.5, pytest.approx(math.pi)),
        (pytest.approx(2 * math.pi), 9.0),
    ]
    assert stretches(lambda x: x - 2, 0, 1) == []
    assert stretches(lambda x: x + 2, 0, 1) == [(0, 1)]
    assert stretches(lambda x: -np.abs(x - 0.5), 0, 1, points=3) == [], "a point is no interval"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("psi", {"show": "loss"}, "show must be one of"),
        ("psi", {"lam": [-1.0]}, "lam must lie in"),
        ("psi", {"margins": []}, "margins must name at least one"),
        ("psi", {"lam": []}, "lam must each hold one or more"),
        ("probability", {"classes": 1}, "classes must be at least 2"),
        ("probability", {"rivals": "near"}, "rivals must be one of"),
        ("logit", {"scale": 0.0}, "scale must be positive"),
        ("monotone", {"level": 1.5}, "level must lie in"),
        ("monotone", {"m": []}, "m must hold"),
        ("monotone", {"m": [0.5]}, r"m=…\) must lie in \[1"),
        ("boundary-plane", {"theta12": 200.0}, "theta12 must lie in"),
        ("boundary-circle", {"theta12": 0.0}, "theta12 must lie in"),
        ("theta-plane", {"theta12": -3.0}, "theta12 must lie in"),
        ("l-softmax-bands", {"ratios": [-1.0]}, "ratios must be positive"),
        ("l-softmax-bands", {"ratios": []}, "ratios must hold"),
        ("regions", {"margin": "none"}, "none has no 'm'"),
        ("regions", {"scales": []}, "scales and ms must each hold"),
        ("regions", {"classes": 1}, "classes must be at least 2"),
        ("half", {"classes": [2.5]}, "classes must be whole numbers"),
        ("half", {"scales": [-1.0]}, "scale must be positive"),
        ("width", {"margins": ["arkface"]}, "arkface"),
    ],
)
def test_what_cannot_be_drawn(name, options, message):
    with pytest.raises(ValueError, match=message):
        plots.make(name, **options)


def test_panels_need_a_place_of_their_own():
    from matplotlib.figure import Figure

    free = Figure().add_axes((0.1, 0.1, 0.5, 0.5))
    with pytest.raises(ValueError, match="ax must be a subplot"):
        plots.make("monotone").plot(free)
