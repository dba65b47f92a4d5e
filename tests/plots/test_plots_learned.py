"""Pictures of what was learned: they show the features, angles and lengths that are there, and nothing else."""

import base64
import itertools
import json
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.patches import StepPatch
from matplotlib.text import Annotation, Text
from PIL import Image
from sklearn.decomposition import PCA
from test_pictures import drawn

import hypermargin as hm
from hypermargin import plots
from hypermargin.evaluate import verification
from hypermargin.plots import DetDisplay, RocDisplay, learned
from hypermargin.plots.angles import AnglesDisplay, AnglesOverTraining
from hypermargin.plots.animation import animate
from hypermargin.plots.features import FeaturesDisplay, together
from hypermargin.plots.labels import apart
from hypermargin.plots.snapshots import _kept, small_run, snapshot, snapshots
from hypermargin.plots.weights import WeightsDisplay
from hypermargin.training import Config, RunError, train

LEARNED = [name for name, picture in plots.pictures().items() if picture.learned]


def clouds(dim=2, classes=5, each=20, seed=0, noise=0.2):
    """Features of different lengths around prototypes of different lengths."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(classes, dim))
    y = rng.permutation(np.arange(classes * each) % classes)
    x = (W[y] + noise * rng.normal(size=(len(y), dim))) * rng.uniform(2, 8, (len(y), 1))
    return x, y, W


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def dots(display):
    """Where they are drawn."""
    offsets = [c.get_offsets() for c in display.ax_.collections if isinstance(c, PathCollection)]
    return np.asarray(np.concatenate(offsets))


def arrows(display):
    return np.array([a.xy for a in display.ax_.texts if isinstance(a, Annotation)])


def same_rows(a, b):
    return np.allclose(a[np.lexsort(a.T)], b[np.lexsort(b.T)])


def misplaced(figure):
    """Pairs of texts that cover each other, and texts that leave the figure; of ticks only those that are drawn."""
    unseen = set()
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            shown = {id(tick.label1) for tick in axis._update_ticks()} if ax.axison else set()
            frame = [*axis.get_ticklabels(which="both"), *([] if ax.axison else [axis.label])]
            unseen |= {id(text) for text in frame} - shown
    seen = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and id(t) not in unseen]
    boxes = [(t.get_text(), t.get_window_extent()) for t in seen]
    assert boxes
    pairs = itertools.combinations(boxes, 2)
    frame = figure.bbox.padded(1)
    return [(a, b) for (a, box), (b, other) in pairs if box.padded(-1).overlaps(other.padded(-1))] + [
        name for name, box in boxes if not (frame.contains(*box.min) and frame.contains(*box.max))
    ]


# Features


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [2, 9])
def test_on_the_plane_dots_are_features_and_arrows_prototypes(seed, classes):
    x, y, W = clouds(classes=classes, seed=seed)
    display = FeaturesDisplay.of(x, y, W).plot()
    assert same_rows(dots(display), x)
    assert np.allclose(arrows(display), W * display.stretch)
    assert f"× {display.stretch:g}" in display.ax_.get_xlabel()
    for k, collection in enumerate(c for c in display.ax_.collections if isinstance(c, PathCollection)):
        assert same_rows(np.asarray(collection.get_offsets()), x[y == k])
    styles = {(tuple(c.get_facecolor()[0]), len(c.get_paths()[0].vertices)) for c in display.ax_.collections}
    assert len(styles) == classes, "classes differ in colour or marker"
    assert [t.get_text() for t in display.ax_.texts if t.get_text()] == [str(k) for k in range(classes)]


def test_on_the_circle_angles_are_kept_and_petals_count():
    x, y, W = clouds(classes=6, each=50, noise=0.4)
    display = FeaturesDisplay.of(x, y, W, on="circle").plot()
    place = dots(display)
    order = np.concatenate([np.flatnonzero(y == k) for k in range(6)])
    assert np.allclose(unit(place), unit(x[order]))
    assert np.abs(np.linalg.norm(place, axis=1) - 1).max() < 0.08
    assert np.allclose(arrows(display), unit(W))
    degrees = np.degrees(np.arctan2(x[:, 1], x[:, 0])) % 360
    for k in range(6):
        counts = np.bincount((degrees[y == k] // 3).astype(int), minlength=120)
        assert np.allclose(display.density[k], counts / 50)
    petals = [c for c in display.ax_.collections if isinstance(c, PolyCollection)]
    assert [len(p.get_paths()) for p in petals] == [(row > 0).sum() for row in display.density]


def test_on_the_sphere_near_and_far_are_projected():
    x, y, W = clouds(dim=3)
    display = FeaturesDisplay.of(x, y, W).plot()
    e, a = np.radians(25), np.radians(35)

    def seen(points):
        p, q, r = unit(points).T
        right, up = -np.sin(a) * p + np.cos(a) * q, np.cos(e) * r - np.sin(e) * (np.cos(a) * p + np.sin(a) * q)
        return np.stack([right, up], 1)

    depth = unit(x) @ np.array([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)])
    assert same_rows(dots(display), seen(x))
    assert np.allclose(arrows(display), seen(W))
    faint = [c for c in display.ax_.collections if isinstance(c, PathCollection) and c.get_alpha() < 0.3]
    assert sum(len(c.get_offsets()) for c in faint) == (depth < 0).sum()


@pytest.mark.parametrize("dim", [4, 30])
def test_more_dimensions_are_projected_on_sklearns_components(dim):
    x, y, W = clouds(dim=dim, classes=14)
    display = FeaturesDisplay.of(x, y, W).plot()
    chosen = y < 10
    pca = PCA(2).fit(unit(x[chosen]))
    want = pca.transform(unit(x[chosen]))
    got = display.points
    signs = np.sign((got * want).sum(0))
    assert np.allclose(got * signs, want, atol=1e-9)
    assert same_rows(dots(display), got)
    assert np.allclose(arrows(display) * signs, pca.transform(unit(W[:10])))
    starts = np.array([a.xyann for a in display.ax_.texts if isinstance(a, Annotation)])
    assert np.allclose(starts * signs, pca.transform(np.zeros((1, dim))))
    for label, share in zip(
        (display.ax_.get_xlabel(), display.ax_.get_ylabel()), pca.explained_variance_ratio_, strict=True
    ):
        assert f"{100 * round(share, 3):.6g} % of the variance" in label
    assert "10 of 14 classes" in display.ax_.get_xlabel()


def test_many_samples_and_classes_are_thinned():
    x, y, _ = clouds(classes=30, each=100)
    display = FeaturesDisplay.of(x, y)
    assert (len(display.points), len(display.names), display.others) == (2000, 20, 10)
    assert {tuple(p) for p in display.points} <= {tuple(p) for p in x[y < 20]}
    few = FeaturesDisplay.of(x[y < 3], y[y < 3])
    assert len(few.points) == 300


@pytest.mark.parametrize("on", ["plane", "circle", "sphere", "components"])
@pytest.mark.parametrize("name", ["{}", "somebody else {}"])
@pytest.mark.parametrize("classes", [pytest.param(3, marks=pytest.mark.slow), 20])
def test_names_do_not_collide(on, name, classes):
    x, y, W = clouds(dim={"sphere": 3, "components": 12}.get(on, 2), classes=classes, noise=0.5)
    names = [name.format(k) for k in range(classes)]
    for prototypes in (W, None):
        figure = drawn(FeaturesDisplay.of(x, y, prototypes, names=names, on=on), dark=bool(classes % 2))
        assert misplaced(figure) == []


@given(st.integers(0, 999), st.integers(2, 20))
def test_boxes_are_pushed_apart(seed, number):
    rng = np.random.default_rng(seed)
    places, sizes = rng.normal(size=(number, 2)), rng.uniform(0.1, 0.6, (number, 2))
    moved = apart(places, sizes)
    for i in range(number):
        for j in range(i):
            assert (np.abs(moved[i] - moved[j]) >= (sizes[i] + sizes[j]) / 2 - 1e-8).any()
    alone = np.arange(number)[:, None] * np.ones(2)
    assert (apart(alone, sizes) == alone).all()


def test_displays_to_one_measure():
    pairs = [clouds(seed=seed) for seed in range(3)]
    alone = [FeaturesDisplay.of(x * k, y, W) for k, (x, y, W) in enumerate(pairs, 1)]
    shown = together(alone)
    assert {d.half for d in shown} == {max(d.half for d in alone)}
    assert len({d.stretch for d in shown}) == 1
    assert max(np.linalg.norm(d.points, axis=1).max() for d in shown) <= shown[0].half


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"on": "sphere"}, 'on="sphere" needs features of 3 dimensions; got 2'),
        ({"on": "cube"}, "on must be one of"),
        ({"prototypes": np.eye(3)}, "prototypes must have shape"),
        ({"prototypes": np.eye(2)}, "labels must lie in"),
        ({"labels": np.zeros(3, int)}, "labels must have shape"),
    ],
)
def test_what_cannot_be_shown_is_refused(changes, words):
    x, y, W = clouds()
    with pytest.raises(ValueError, match=words):
        FeaturesDisplay.of(**({"features": x, "labels": y, "prototypes": W} | changes))


# In turn


def test_an_animation_has_its_frames(tmp_path):
    x, y, W = clouds()
    frames = [(f"time {k} </script>", FeaturesDisplay.of(x * k, y, W)) for k in (1, 2, 4)]
    animate(frames, tmp_path / "a.gif", pause=0.2)
    with Image.open(tmp_path / "a.gif") as image:
        assert (image.format, image.n_frames, image.info["loop"]) == ("GIF", 3, 0)
        waits = []
        for k in range(3):
            image.seek(k)
            waits.append(image.info["duration"])
        assert waits == [200, 200, 800]
    animate(frames, tmp_path / "a.html", dark=True)
    text = (tmp_path / "a.html").read_text()
    assert not re.search(r"https?:|//[a-z]|\bimport\b|fetch\(|@import|url\(", text), "it asks for nothing"
    assert text.count("</script>") == 1, "a name cannot end the script"
    names, pictures = (json.loads(re.search(rf"const {what} = (.*);", text)[1]) for what in ("names", "pictures"))
    assert names == [name for name, _ in frames]
    ticks = set()
    for picture in pictures:
        svg = base64.b64decode(picture.removeprefix("data:image/svg+xml;base64,")).decode()
        assert svg.startswith("<?xml")
        assert "<image" not in svg
        ticks.add(tuple(re.findall(r"<!-- (−?\d+) -->", svg)))
    assert len(set(pictures)) == 3
    assert len(ticks) == 1, "the axes stay"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.gif", "a.html"]
    assert {d.ax_.get_xlim() for _, d in frames} == {max(d.ax_.get_xlim() for _, d in frames)}


def test_an_animation_of_panels_and_bad_ones(tmp_path):
    x, y, W = clouds()
    one, two = FeaturesDisplay.of(x, y, W), AnglesDisplay.of(x, y, W)
    animate([("a", plots.Panels([one, two])), ("b", plots.Panels([one, two]))], tmp_path / "p.gif")
    with pytest.raises(ValueError, match=r"path must end in \.gif or \.html; got 'a\.mp4'"):
        animate([("a", one)], tmp_path / "a.mp4")
    with pytest.raises(ValueError, match="frames must hold at least one"):
        animate([], tmp_path / "a.gif")
    with pytest.raises(ValueError, match="as many panels"):
        animate([("a", plots.Panels([one, two])), ("b", one)], tmp_path / "a.gif")


# Angles


def by_hand(x, y, W):
    """Degrees to the own row of W and to the nearest other, sample by sample."""
    cosines = (unit(x) @ unit(W).T).clip(-1, 1)
    angles = np.degrees(np.arccos(cosines))
    own = angles[np.arange(len(y)), y]
    return own, np.where(np.arange(len(W)) == y[:, None], np.inf, angles).min(1)


@pytest.mark.parametrize("dim", [2, 3, 16])
@pytest.mark.parametrize("seed", range(2))
def test_angles_are_those_by_hand(dim, seed):
    x, y, W = clouds(dim=dim, seed=seed, noise=0.6)
    shown = AnglesDisplay.of(x, y, W).plot()
    own, rival = by_hand(x, y, W)
    assert np.allclose(shown.own, own, atol=1e-4)
    assert np.allclose(shown.rival, rival, atol=1e-4)
    centers = np.stack([unit(x)[y == k].sum(0) for k in range(5)])
    other = AnglesDisplay.of(x, y)
    own_centre, other_centre = by_hand(x, y, centers)
    assert np.allclose(other.own, own_centre, atol=1e-4)
    assert np.allclose(other.rival, other_centre, atol=1e-4)
    labels = [text.get_text() for text in shown.ax_.get_legend().get_texts()]
    assert labels == [
        f"to the own prototype, median {np.median(own):.1f}°",
        f"to the nearest other prototype, median {np.median(rival):.1f}°",
    ]
    assert "center" in other.plot().ax_.get_legend().get_texts()[0].get_text()
    steps = [p.get_data() for p in shown.ax_.patches if isinstance(p, StepPatch) and not p.get_fill()]
    for values, (drawn_share, edges, _) in zip((own, rival), steps, strict=True):
        assert np.allclose(
            drawn_share, np.histogram(shown.own if values is own else shown.rival, edges)[0] / len(y)
        )
    beyond = (np.concatenate([own, rival]) > shown.end).mean()
    label = shown.ax_.get_xlabel()
    assert label == (f"angle ({100 * beyond:.2g} % lie beyond {shown.end}°)" if beyond else "angle")


def test_one_alone_is_not_its_own_center():
    x, y, _ = clouds()
    x, y = np.concatenate([x, [[1.0, 0.0]]]), np.append(y, 99)
    shown = AnglesDisplay.of(x, y)
    assert (len(shown.own), len(shown.rival)) == (100, 101)
    with pytest.raises(ValueError, match="one alone is its own center"):
        AnglesDisplay.of(np.eye(3), np.arange(3))
    with pytest.raises(ValueError, match="two identities or more"):
        AnglesDisplay.of(np.eye(3), np.zeros(3, int))


def test_angles_over_training_keep_first_and_last():
    x, y, W = clouds(dim=8)
    rng = np.random.default_rng(0)
    rows = [
        (f"epoch {k}", AnglesDisplay.of(x + (20 - k) * rng.normal(size=x.shape) / 4, y, W)) for k in range(1, 21)
    ]
    shown = AnglesOverTraining.of(rows)
    names = [name for name, _ in shown.rows]
    assert len(names) == 8
    assert (names[0], names[-1]) == ("epoch 1", "epoch 20")
    assert misplaced(drawn(shown)) == []
    written = [t.get_text() for t in shown.ax_.texts]
    for _, angles in shown.rows:
        assert f"{np.median(angles.own):.1f}°" in written
        assert f"{np.median(angles.rival):.1f}°" in written
    assert [t.get_text() for t in shown.ax_.get_yticklabels()] == names
    with pytest.raises(ValueError, match="rows must hold at least one"):
        AnglesOverTraining.of([])


# Weights


def test_lengths_of_weights():
    rng = np.random.default_rng(0)
    free, unit_weight = rng.normal(size=(7, 3)), rng.normal(size=(7, 3))
    shown = WeightsDisplay.of(
        {"l-softmax": free, "a-softmax": torch.from_numpy(unit_weight), "mine": free * 2}
    ).plot()
    lengths = np.sqrt((free**2).sum(1))
    lines = [np.asarray(line.get_ydata()) for line in shown.ax_.lines]
    assert np.allclose(lines[0], sorted(lengths, reverse=True))
    assert (lines[1] == 1).all()
    assert np.allclose(lines[2], sorted(2 * lengths, reverse=True))
    words = [text.get_text() for text in shown.ax_.get_legend().get_texts()]
    assert words[0] == f"l-softmax: mean {lengths.mean():.3g}, spread {lengths.std():.2g}"
    assert words[1] == "a-softmax: all 1, since it makes its weights unit"
    counts = rng.integers(1, 99, 7)
    over = WeightsDisplay.of({"l-softmax": free}, counts).plot()
    assert np.allclose(np.stack(over.ax_.lines[0].get_data()), [counts, lengths])
    assert (WeightsDisplay.of({"mine": free}, unit={"mine": True}).lengths["mine"] == 1).all()
    for weights, wrong, message in (
        ({}, None, "at least one head"),
        ({"softmax": free[0]}, None, r"must have shape \(classes, dim\)"),
        ({"softmax": free}, counts[:3], "counts must have shape"),
    ):
        with pytest.raises(ValueError, match=message):
            WeightsDisplay.of(weights, wrong)


# Verification with a band


def test_bands_join_the_intervals():
    x, y, _ = clouds(dim=6, classes=12, noise=0.8)
    far = (0.3, 0.1, 0.03, 0.01)
    found = verification(x, y, far=far, confidence=0.9)
    band = RocDisplay.of(found).plot().ax_.collections[0].get_paths()[0].vertices
    for f in far:
        heights = band[np.isclose(band[:, 0], f), 1]
        assert (heights.min(), heights.max()) == pytest.approx(found.intervals[f])
    from scipy.stats import norm

    det = DetDisplay.of(found)
    places = norm.cdf(det.plot().ax_.collections[0].get_paths()[0].vertices)
    for f in far:
        heights = places[np.isclose(places[:, 0], f), 1]
        low, high = found.intervals[f]
        assert heights.max() == pytest.approx(min(0.9, 1 - low), abs=1e-6)
        assert heights.min() <= max(1 - high, 0.001) + 1e-6
    without = verification(x, y)
    assert not RocDisplay.of(without).plot().ax_.collections
    assert not DetDisplay.of(without).plot().ax_.collections


# Runs


def tiny(path, head, split, classes=6, **changes):
    """A run on an .npz file of blobs; two epochs, both kept."""
    rng = np.random.default_rng(0)
    y = np.arange(classes * 20) % classes
    x = (rng.normal(size=(classes, 8, 8))[y] * 60 + 128 + 10 * rng.normal(size=(len(y), 8, 8))).clip(0, 255)
    np.savez(path / "blobs.npz", images=x.astype(np.uint8), labels=y)
    settings = {"model": "mlp", "model_set": {"widths": [16]}, "dim": 2, "epochs": 2, "keep": 2, "batch": 16}
    quiet = {"tensorboard": False, "workers": 0, "threads": 1, "augment": "none", "device": "cpu"}
    config = Config(data=str(path / "blobs.npz"), head=head, split=split, **{**settings, **quiet, **changes})
    train(config, path / "run", quiet=True)
    return path / "run"


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("closed"), "a-softmax", "sample")


@pytest.mark.parametrize("ema", [0.0, 0.5])
@pytest.mark.parametrize("head", ["l-softmax", "arcface"])
def test_snapshots_are_what_the_checkpoints_say(tmp_path, head, ema):
    run = tiny(tmp_path, head, "sample", ema=ema)
    first, last = snapshots(run)
    assert (first.name, last.name, last.step) == ("epoch 1", "epoch 2", 2 * first.step)
    trained = hm.load(run, "last")
    with np.load(tmp_path / "blobs.npz") as data, np.load(run / "split.npz") as split:
        rows = split["test"]
        assert torch.allclose(last.features, trained.features(data["images"][rows]), atol=1e-5)
        assert (last.labels == data["labels"][rows]).all()
    weight = trained.head.weight.detach()
    want = weight if head == "l-softmax" else torch.nn.functional.normalize(weight)
    assert torch.allclose(last.prototypes, want, atol=1e-6)
    assert not torch.allclose(first.features, last.features, atol=1e-3)
    assert not torch.equal(first.prototypes, last.prototypes)
    assert [s.name for s in snapshots(run, "train", epochs=[2])] == ["epoch 2"]
    with pytest.raises(ValueError, match=r"epochs: none of \[7\] is kept in .*; there are 1, 2\."):
        snapshots(run, epochs=[7])


def test_a_damaged_checkpoint_is_passed_over(tmp_path, capsys):
    run = tiny(tmp_path, "softmax", "sample")
    broken = sorted((run / "checkpoints").iterdir())[0]
    model = next(broken.glob("model.*"))
    model.write_bytes(model.read_bytes()[:-1])
    assert [s.name for s in snapshots(run)] == ["epoch 2"]
    assert "is cut off" in capsys.readouterr().err
    with pytest.raises(RunError, match="there is no folder"):
        snapshots(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="part must be one of"):
        snapshots(run, "tset")


def test_an_open_set_has_centers_and_no_prototypes(tmp_path):
    run = tiny(tmp_path, "arcface", "identity", classes=9, dim=5)
    one = snapshot(run)
    assert one.prototypes is None
    assert len(np.unique(one.labels)) == 3
    assert snapshot(run, "train").prototypes.shape[1] == 5
    frames = learned.frames(run)
    assert len({tuple(d.basis[0]) for _, d in frames}) == 1, "the same components in every frame"
    assert frames[-1][1].prototypes is None
    assert learned.angles(run, history=False).against == "center"
    animate(frames, tmp_path / "f.gif")
    with Image.open(tmp_path / "f.gif") as image:
        assert image.n_frames == 2


@pytest.mark.parametrize("name", LEARNED)
def test_pictures_of_a_run(name, closed, tmp_path_factory):
    run = closed if name != "sphere" else tiny(tmp_path_factory.mktemp("three"), "arcface", "sample", dim=3)
    display = plots.make(name, **({"runs": [str(run)] * 2} if name == "heads" else {"run": str(run)}))
    assert misplaced(drawn(display)) == []
    assert "<image" not in display.svg()


def test_weights_can_be_shown_over_counts(closed):
    display = learned.weights(str(closed), counts=True)
    with np.load(closed / "split.npz") as split:
        assert display.counts.sum() == len(split["train"])


@pytest.mark.parametrize("long", [False, True], ids=["written beside", "in a legend"])
def test_names_are_neither_formulas_nor_hidden(long):
    x, y = clouds(classes=3)[:2]
    names = [name + long * " and a long name" for name in (r"$\nothing$", "_hidden", "plain")]
    figure = drawn(FeaturesDisplay.of(x, y, names=names))
    seen = "".join(text.get_text() for text in figure.findobj(Text))
    assert all(name.replace("$", "")[:8] in seen.replace("\\$", "").replace("$", "") for name in names)


def test_the_catalogue_knows_them():
    assert {"features", "sphere", "angles", "norms", "weights", "roc", "det", "scores"} <= set(LEARNED)


@pytest.mark.slow
@pytest.mark.parametrize(("head", "dim"), [("a-softmax", 2), ("l-softmax", 2), ("a-softmax", 3)])
def test_the_small_run_learns_the_digits(head, dim, capsys):
    _kept.cache_clear()  # another test may have had it trained
    one = snapshot(small_run(head, dim))
    assert "no run given" in capsys.readouterr().err
    cosines = unit(one.features.numpy()) @ one.prototypes.numpy().T
    assert (cosines.argmax(1) == one.labels).mean() > 0.95
    assert len(snapshots(small_run(head, dim))) == 12
