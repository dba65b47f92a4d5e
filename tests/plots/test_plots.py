"""Pictures: what they draw are the curve's numbers, and what they write are pictures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image
from scipy.stats import spearmanr

from hypermargin.evaluate import FAR, Curve, from_scores, geometry, thin, verification
from hypermargin.plots import DetDisplay, NormsDisplay, RocDisplay, ScoresDisplay, style


def made(seed=0, identities=20, each=5, noise=0.8):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(identities), each)
    x = rng.normal(size=(identities, 8))[y] + noise * rng.normal(size=(len(y), 8))
    return x, y


def all_displays(seed=0, **options):
    x, y = made(seed, **options)
    found = verification(x, y, confidence=0.9)
    return [
        RocDisplay.of(found),
        DetDisplay.of(found),
        ScoresDisplay.of(found.curve, {"equal errors": found.threshold, "FAR 0.1": found.thresholds[0.1]}),
        NormsDisplay.of(x, y),
    ]


def by_counting(scores, same, threshold):
    accepted = scores >= threshold
    return (accepted & ~same).sum() / (~same).sum(), (accepted & same).sum() / same.sum()


@given(st.integers(0, 99), st.integers(1, 60), st.integers(8, 40))
def test_a_thinned_curve_keeps_its_points_ends_and_fars(seed, levels, most):
    rng = np.random.default_rng(seed)
    same = rng.random(200) < 0.3
    same[:2] = True, False
    scores = np.round(rng.normal(size=200) + same, 2) if levels > 30 else rng.integers(0, levels, 200) / 7
    curve = from_scores(scores, same).curve
    far = (0.3, 0.1, 0.01)
    points = thin(curve, far, most)
    assert len(points) <= most
    assert (np.diff(points) > 0).all()
    assert (points[0], points[-1]) == (0, len(curve.scores))
    kept = [curve.threshold(int(k)) for k in points]
    for k, threshold in zip(points, kept, strict=True):
        assert (curve.far[k], curve.tar[k]) == pytest.approx(by_counting(scores, same, threshold))
    assert {curve.threshold_at(f) for f in far} | {curve.equal_error()[1]} <= set(kept)


def test_a_thinned_curve_keeps_its_shape():
    rng = np.random.default_rng(0)
    same = rng.random(200_000) < 0.1
    curve = from_scores(rng.normal(size=len(same)) + 2 * same, same).curve
    points = thin(curve, FAR)
    assert 1000 < len(points) <= 2000
    far, tar = curve.far[points], curve.tar[points]
    assert (np.diff(far) * (tar[1:] + tar[:-1]) / 2).sum() == pytest.approx(curve.auc, abs=1e-4)
    for errors in (curve.far, 1 - curve.tar):  # no wide gaps, in either tail
        seen = errors[points]
        seen = np.sort(seen[seen > 20 / min(curve.genuines, curve.impostors)])
        assert (seen[1:] / seen[:-1]).max() < 1.1


def test_a_curve_is_thinned_by_whole_numbers():
    curve = Curve(np.array([0.5, 0.1]), np.array([1, 2]), np.array([0, 2]))
    with pytest.raises(ValueError, match="most must be at least 5"):
        thin(curve, (0.1, 0.2), 4)


@pytest.mark.parametrize("seed", range(3))
def test_displays_hold_the_curves_numbers(seed):
    x, y = made(seed)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    i, j = np.triu_indices(len(y), 1)
    scores, same = np.round((unit @ unit.T)[i, j] * 2**20) / 2**20, y[i] == y[j]
    found = verification(x, y, confidence=0.9)
    roc, det, shown, norms = all_displays(seed)
    points = {by_counting(scores, same, t) for t in np.unique(scores)} | {(0.0, 0.0)}
    assert set(zip(roc.far, roc.tar, strict=True)) <= points
    assert np.allclose(det.frr, 1 - roc.tar)
    assert (roc.auc, det.eer) == (found.auc, found.eer)
    assert set(roc.intervals) == {0.1, 0.01, 0.001}
    for f, (tar, low, high) in roc.intervals.items():
        assert tar == max(t for a, t in points if a <= f)
        assert (low, high) == found.intervals[f]
    assert (shown.genuine.sum(), shown.impostor.sum()) == (same.sum(), (~same).sum())
    counted = np.histogram(scores[same], shown.edges)[0]
    assert abs(shown.genuine - counted).sum() <= 2  # a score on an edge may round to either side
    centers = np.array([unit[y == k].sum(0) for k in range(20)])
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    assert np.allclose(norms.norms, np.linalg.norm(x, axis=1), rtol=1e-6)  # y is sorted already
    assert np.allclose(norms.cosines, (unit * centers[y]).sum(1), atol=1e-6)
    assert norms.correlation == pytest.approx(spearmanr(norms.norms, norms.cosines).statistic, abs=1e-3)
    assert norms.correlation == pytest.approx(geometry(x, y).norms.correlation)
    means = [part.mean() for part in np.array_split(np.sort(norms.norms), 5)]
    assert [length for length, _ in norms.parts] == pytest.approx(means)


def test_lines_are_drawn_where_the_numbers_are():
    roc, det, shown, _ = (display.plot() for display in all_displays())
    line = roc.ax_.lines[0]
    drawn = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
    for far, tar in zip(roc.far, roc.tar, strict=True):
        assert far == 0 or drawn[far] >= tar  # of equal FARs the highest
    assert line.get_ydata()[0] == roc.tar[roc.far == 0].max()
    mark = det.ax_.lines[2]
    from scipy.stats import norm

    assert norm.cdf(mark.get_xdata()[0]) == pytest.approx(det.eer)
    upright = {float(one.get_xdata()[0]) for one in shown.ax_.lines}
    assert upright == set(shown.thresholds.values())


def test_two_curves_share_axes():
    """The wider range stays, and what both have in common is named once."""
    for kind in (RocDisplay, DetDisplay):
        many, few = (kind.of(verification(*made(identities=n)), name) for n, name in ((40, "many"), (4, "few")))
        wide = many.plot().ax_.get_xlim()[0]
        alone = few.plot().ax_.get_xlim()[0]
        few.plot(many.ax_)
        assert many.ax_.get_xlim()[0] == pytest.approx(min(wide, alone))
        names = [text.get_text() for text in many.ax_.get_legend().get_texts()]
        assert len(names) == len(set(names))
        assert [name.split(":")[0] for name in names if ":" in name] == ["many", "few"]


@pytest.mark.parametrize("number", range(4))
def test_displays_draw_on_any_axes(number):
    figure = Figure()
    left, right = figure.subplots(1, 2)
    display = all_displays()[number]
    assert display.plot(left) is display
    assert (display.ax_, display.figure_) == (left, figure)
    assert left.get_xlabel()
    assert not right.lines
    assert display.plot().ax_ is not left


def test_pictures_are_pictures(tmp_path):
    for number, display in enumerate(all_displays()):
        path = tmp_path / f"{number}.png"
        display.save(path)
        with Image.open(path) as image:
            image.load()
            assert (image.format, image.size) == ("PNG", (960, 660))
            pixels = np.asarray(image.convert("RGB"))
        assert (pixels[0, 0] == 255).all()
        assert 0.005 < (pixels != 255).any(2).mean() < 0.6  # neither empty nor covered
    assert len(list(tmp_path.iterdir())) == 4  # nothing temporary is left


@pytest.mark.parametrize(
    "options",
    [{"noise": 1e-3}, {"noise": 30.0}, {"identities": 2, "each": 2}],
    ids=["perfect", "chance", "smallest"],
)
def test_curves_without_a_bend_can_be_drawn(options):
    for display in all_displays(**options):
        display.plot().figure_.draw_without_rendering()


def test_collapsed_embeddings_can_be_drawn():
    x, y = np.ones((12, 3)), np.arange(12) // 3
    found = verification(x, y, confidence=0.9)
    for display in (
        RocDisplay.of(found),
        DetDisplay.of(found),
        ScoresDisplay.of(found.curve),
        NormsDisplay.of(x, y),
    ):
        display.plot().figure_.draw_without_rendering()


def test_norms_need_a_class_of_two():
    with pytest.raises(ValueError, match="one alone is its own center"):
        NormsDisplay.of(np.eye(3), np.arange(3))


@pytest.mark.parametrize("look", [style.LIGHT, style.DARK], ids=["light", "dark"])
def test_colours_differ_in_brightness_and_stand_out_from_the_ground(look):
    def luminance(colour):
        linear = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in linear)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    def contrast(a, b):  # as the web's accessibility guidelines define it
        low, high = sorted((luminance(a), luminance(b)))
        return (high + 0.05) / (low + 0.05)

    assert len(set(look.cycle)) == len(look.cycle)
    assert contrast(look.blue, look.red) > 1.2
    assert contrast(look.ink, look.ground) > 7
    assert all(contrast(colour, look.ground) > 2 for colour in look.cycle)
