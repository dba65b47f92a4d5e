"""Splits, order, augmentation and loading: what must not depend on who computes it or when."""

import pickle
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hypermargin import cli, data
from hypermargin.data import Augment, Data, DataError, Feed, Scaling, at_most, batches, decode_once, split
from hypermargin.data.augment import uniform
from hypermargin.data.sampling import SAMPLINGS


def some_data(classes=12, per=5, *, open_set=True, parts=None, shape=(8, 8), seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), per)
    images = rng.integers(0, 256, (len(labels), *shape)).astype(np.uint8)
    return Data("some", images, labels, tuple(f"c{k}" for k in range(classes)), parts, open_set)


class Images:
    """A source whose odd rows of `broken` cannot be read."""

    shape = (4, 4)

    def __init__(self, count, broken=()):
        self.count, self.broken = count, broken

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        if row in self.broken:
            raise DataError(f"{self.where(row)}: it is broken.")
        return np.full(self.shape, row % 256, np.uint8)

    def where(self, row):
        return f"file-{row}"


# Splits


@given(st.integers(4, 30), st.integers(2, 9), st.floats(0, 0.5), st.floats(0, 0.5), st.integers(0, 99))
@settings(max_examples=60)
@pytest.mark.parametrize("how", ["identity", "sample", "none"])
def test_a_split_divides_the_rows(how, classes, per, validation, test, seed):
    source = some_data(classes, per)
    try:
        found = split(source, how, validation=validation, test=test, seed=seed)
    except DataError:
        assert how == "identity"
        assert classes * (1 - test) * (1 - validation) < 6  # too few identities were left
        return
    parts = [found.train, found.validation, found.test]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(source)))
    identities = [set(source.labels[rows]) for rows in parts]
    if how == "identity":
        assert not identities[0] & identities[1]
        assert not identities[0] & identities[2]
        assert not identities[1] & identities[2]
    else:
        assert identities[0] == set(range(classes))
    again = split(source, how, validation=validation, test=test, seed=seed)
    for name in ("train", "validation", "test", "classes"):
        assert np.array_equal(getattr(found, name), getattr(again, name))
    targets = found.targets(source.labels)
    assert np.array_equal(found.classes[targets[found.train]], source.labels[found.train])
    assert set(targets[found.train]) == set(range(len(found.classes)))


def test_split_sizes_and_seed():
    source = some_data(30, 10)
    by_identity = split(source, "identity", validation=0.2, test=0.3)
    assert [len(set(source.labels[r])) for r in (by_identity.test, by_identity.validation)] == [9, 4]
    by_sample = split(source, "sample", validation=0.25, test=0.2)
    assert np.bincount(source.labels[by_sample.test]).tolist() == [2] * 30
    assert np.bincount(source.labels[by_sample.validation]).tolist() == [2] * 30
    assert not np.array_equal(split(source, "sample", seed=1).test, split(source, "sample", seed=2).test)


def test_at_most_keeps_whole_identities():
    labels = np.repeat(np.arange(30), 7)
    rows = np.arange(0, 210)
    assert at_most(rows, labels, 210) is rows
    kept = at_most(rows, labels, 50)
    assert len(kept) == 49
    assert (np.bincount(labels[kept])[np.unique(labels[kept])] == 7).all()
    assert len(at_most(rows, labels, 3)) == 14


def test_given_split():
    parts = np.tile([0, 0, 0, 2, -1], 12).astype(np.int8)
    found = split(some_data(parts=parts, open_set=False), validation=0.34)
    assert np.array_equal(found.test, np.flatnonzero(parts == 2))
    assert len(found.train) == 24
    assert len(found.validation) == 12
    with pytest.raises(DataError, match="comes without a split of its own"):
        split(some_data(), "given")
    wrong = np.repeat([0, 2], 30).astype(np.int8)
    with pytest.raises(DataError, match=r"6 identities \(first: c6\) are tested but never trained"):
        split(some_data(parts=wrong, open_set=False))


# Order


@given(
    st.lists(st.integers(0, 6), min_size=8, max_size=80), st.integers(1, 20), st.integers(0, 9), st.integers(0, 9)
)
@settings(max_examples=60)
def test_orders(labels, batch, seed, epoch):
    labels = np.asarray(labels)
    shuffled = batches(labels, "shuffled", batch, seed=seed, epoch=epoch)
    assert np.array_equal(np.sort(np.concatenate(shuffled)), np.arange(len(labels)))
    assert all(len(b) == batch for b in shuffled[:-1])
    balanced = np.concatenate(batches(labels, "balanced", batch, seed=seed, epoch=epoch))
    assert len(balanced) == len(labels)
    drawn = np.unique(labels[balanced], return_counts=True)[1]
    assert drawn.max() - drawn.min() <= 1


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_an_epoch_is_a_function_of_seed_and_epoch(sampling):
    labels = np.repeat(np.arange(9), 7)

    def order(seed, epoch):
        return np.concatenate(batches(labels, sampling, 8, seed=seed, epoch=epoch, per_identity=2))

    assert np.array_equal(order(0, 3), order(0, 3))
    assert not np.array_equal(order(0, 3), order(0, 4))
    assert not np.array_equal(order(0, 3), order(1, 3))


@pytest.mark.parametrize(("count", "K"), [(5, 4), (2, 4), (8, 2)])
def test_identities_by_samples(count, K):
    labels = np.repeat(np.arange(20), count)
    found = batches(labels, "identities", 6 * K, seed=0, epoch=0, per_identity=K)
    seen = set()
    for rows in found:
        identities, counts = np.unique(labels[rows], return_counts=True)
        assert len(identities) == 6
        assert (counts == K).all()
        if count >= K:
            assert len(set(rows)) == len(rows)
        seen |= set(identities)
    assert len(found) == max(1, len(labels) // (6 * K))
    assert len(seen) >= min(18, 6 * len(found))  # three batches make a turn through 18 of the 20
    with pytest.raises(ValueError, match=r"got batch = 10, per_identity = 4 and 20 identities"):
        batches(labels, "identities", 10, seed=0, epoch=0, per_identity=4)


def test_no_batch_of_one():
    sizes = [len(b) for b in batches(np.zeros(9, int), "shuffled", 4, seed=0, epoch=0)]
    assert sizes == [4, 5]
    assert [len(b) for b in batches(np.zeros(1, int), "shuffled", 4, seed=0, epoch=0)] == [1]


# Augmentation

EVERYTHING = "rotate=20,zoom=0.2,shear=0.1,shift=0.2,contrast=0.2,brightness=0.1,flip"


def test_augmentation_belongs_to_the_sample():
    """The same whatever the batch, its order, or the epoch's history."""
    images = torch.rand(6, 2, 9, 7)
    rows = np.asarray([5, 3, 99, 1, 0, 7])
    change = Augment.parse(EVERYTHING)
    together = change(images, rows, seed=1, epoch=2)
    for k in range(6):
        alone = change(images[k : k + 1], rows[k : k + 1], seed=1, epoch=2)
        torch.testing.assert_close(alone[0], together[k])
    for seed, epoch in ((1, 3), (2, 2)):
        assert not torch.allclose(change(images, rows, seed=seed, epoch=epoch), together)


def test_uniform_numbers_are_uniform():
    u = uniform(0, 0, np.arange(20_000), 5)
    assert 0 <= u.min() < u.max() < 1
    assert abs(np.sort(u.reshape(-1)) - np.linspace(0, 1, u.size)).max() < 0.006  # Kolmogorov-Smirnov, p ≈ 0.01
    assert abs(np.corrcoef(u.T) - np.eye(5)).max() < 0.03
    other = np.stack([uniform(0, 1, np.arange(20_000), 1), uniform(1, 0, np.arange(20_000), 1)])[..., 0]
    assert abs(np.corrcoef(np.vstack([u[:, 0], other])) - np.eye(3)).max() < 0.03


@pytest.mark.parametrize("axis", [0, 1])
def test_shift_moves_by_at_most_its_share(axis):
    images = torch.zeros(200, 1, 20, 20)
    images[:, :, 10, 10] = 1
    moved = Augment.parse("shift=0.1")(images, np.arange(200), seed=0, epoch=0)
    place = moved.sum((1, 2 + axis)).argmax(1)
    assert 8 <= int(place.min()) < 10 < int(place.max()) <= 12


def test_flip_flips_half():
    images = torch.arange(4.0).reshape(1, 1, 1, 4).expand(1000, 1, 3, 4)
    out = Augment.parse("flip")(images, np.arange(1000), seed=0, epoch=0)
    flipped = (out[:, 0, 0, 0] == 3).float().mean()
    assert 0.45 < float(flipped) < 0.55
    assert torch.equal(out.sort(-1).values, images)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rotat=3", "Did you mean 'rotate'"),
        ("rotate", "needs a number"),
        ("zoom=2", r"augment zoom must lie in \[0, 1\)"),
    ],
)
def test_augment_errors(text, message):
    with pytest.raises(ValueError, match=message):
        Augment.parse(text)


# Loading


@pytest.mark.parametrize("workers", [0, 2])
def test_decode_once(workers):
    labels = np.arange(700) % 7
    lazy = Data("files", Images(700, broken=(3, 300)), labels, tuple("abcdefg"))
    with pytest.raises(DataError, match=r"file-3: it is broken\. \(on_bad=skip leaves such samples out"):
        decode_once(lazy, workers=workers)
    kept = decode_once(lazy, workers=workers, on_bad="skip")
    assert [bad.where for bad in kept.bad] == ["file-3", "file-300"]
    rows = np.setdiff1d(np.arange(700), [3, 300])
    assert np.array_equal(kept.samples[:, 0, 0], rows % 256)
    assert np.array_equal(kept.labels, labels[rows])
    assert [kept.where(k) for k in (0, 3, 697)] == ["file-0", "file-4", "file-699"]  # they are still called so
    said = []
    assert decode_once(lazy, memory=1e-6, say=said.append) is lazy
    assert "more than memory" in said[0]


def test_an_identity_without_readable_samples_is_dropped():
    lazy = Data("files", Images(4, broken=(2, 3)), np.asarray([0, 1, 2, 2]), ("a", "b", "c"))
    kept = decode_once(lazy, on_bad="skip")
    assert kept.classes == ("a", "b")


@pytest.mark.parametrize("workers", [0, 2])
def test_feed_reads_files_like_memory(workers):
    source = Images(50, broken=(7,))
    groups = [np.asarray([1, 2, 3]), np.asarray([7, 8]), np.asarray([7]), np.asarray([49])]
    feed = Feed(source, torch.device("cpu"), workers=workers, on_bad="skip")
    before = torch.get_rng_state()
    found = [(raw[:, 0, 0].tolist(), rows.tolist()) for raw, rows in feed(groups)]
    assert torch.equal(before, torch.get_rng_state())  # else a resumed run would differ
    assert found == [([1, 2, 3], [1, 2, 3]), ([8], [8]), ([], []), ([49], [49])]
    assert list(feed.bad) == ["file-7"]
    with pytest.raises(DataError, match="file-7: it is broken"):
        list(Feed(source, torch.device("cpu"), workers=workers)(groups))
    memory = Feed(np.stack([source[k] for k in range(7)]), torch.device("cpu"))
    assert [raw[:, 0, 0].tolist() for raw, _ in memory([np.asarray([5, 0])])] == [[5, 0]]


def test_scaling():
    gray, color = some_data(), some_data(shape=(8, 6, 3))
    assert Scaling()(torch.from_numpy(gray.samples)).shape == (60, *gray.shape) == (60, 1, 8, 8)
    out = Scaling()(torch.from_numpy(color.samples))
    assert out.shape == (60, *color.shape) == (60, 3, 8, 6)
    assert float(out.min()) == -1
    assert float(out.max()) == 1
    floats = data.from_arrays(np.random.default_rng(0).normal(7, 3, (50, 4, 4)), np.arange(50) % 5)
    fitted = Scaling.fit(floats, np.arange(25))
    scaled = fitted(torch.from_numpy(floats.samples[:25]))
    assert abs(float(scaled.mean())) < 1e-6
    assert abs(float(scaled.std(correction=0)) - 1) < 1e-6
    assert Scaling.fit(floats, np.arange(25), as_they_are=True) == Scaling(0.0, 1.0)


# Data as a whole


def test_data_errors():
    with pytest.raises(DataError, match="some: 3 samples but 2 labels"):
        Data("some", np.zeros((3, 2), np.float32), np.zeros(2, np.int64), ("a",))
    with pytest.raises(DataError, match="there are no samples"):
        Data("some", np.zeros((0, 2), np.float32), np.zeros(0, np.int64), ())
    with pytest.raises(DataError, match=r"2 labels \(b, d\) without any sample"):
        Data("some", np.zeros((2, 2), np.float32), np.asarray([0, 2]), ("a", "b", "c", "d"))
    with pytest.raises(DataError, match=r"data must be one of .* Did you mean 'glyphs'"):
        data.open_data("glyph")


def test_unknown_file(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("hello")
    with pytest.raises(DataError, match=r"a file of this kind cannot be trained on"):
        data.open_data(path)


def test_digits():
    found = data.open_data("digits")
    assert found.shape == (1, 8, 8)
    assert (found.samples.max(), len(found), len(found.classes)) == (255, 1797, 10)
    assert not found.open_set
    assert 0.19 < (found.parts == data.TEST).mean() < 0.21


def test_from_arrays_and_back(tmp_path):
    mine = data.from_arrays(np.arange(24, dtype=np.float32).reshape(6, 4), np.asarray(["b", "a"] * 3), name="mine")
    assert mine.classes == ("a", "b")
    assert mine.labels.tolist() == [1, 0] * 3
    from hypermargin.data.describe import montage, save_npz, summary

    save_npz(mine, tmp_path / "mine.npz")
    back = data.open_data(tmp_path / "mine.npz")
    assert np.array_equal(back.samples, mine.samples)
    assert (back.labels.tolist(), back.classes) == (mine.labels.tolist(), mine.classes)
    assert ("samples", "6 vectors of 4 (float32)") in summary(mine)
    assert ("identities", "2, 3 samples each") in summary(mine)
    assert ("identities", "2, 2 to 3 samples each, 2.5 typical") in summary(
        data.from_arrays(mine.samples[:5], np.asarray(list("babab")))
    )
    with pytest.raises(DataError, match="only images can be shown"):
        montage(mine)
    digits = data.digits()
    save_npz(digits, tmp_path / "digits.npz")
    again = data.open_data(tmp_path / "digits.npz")
    assert np.array_equal(again.samples, digits.samples)
    assert np.array_equal(again.parts, digits.parts)
    assert montage(digits).shape == (80, 240)
    assert pickle.loads(pickle.dumps(digits)).name == "digits"


# The command


def command(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["hypermargin", "data", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    captured = capsys.readouterr()
    return ended.value.code or 0, captured.out, captured.err


def test_the_command(tmp_path, monkeypatch, capsys):
    code, out, _ = command(
        monkeypatch, capsys, "digits", "--picture", tmp_path / "d.png", "--out", tmp_path / "d.npz"
    )
    assert code == 0
    assert "1,797 images of 1×8×8 (uint8)" in out
    assert "closed set" in out
    assert "train 1,438 of 10, test 359 of 10" in out
    with Image.open(tmp_path / "d.png") as picture:
        assert picture.size == (240, 80)
    assert command(monkeypatch, capsys, tmp_path / "d.npz")[0] == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.npz", "d.png"]  # no temporary file is left


def test_the_command_lists_what_is_bad(tmp_path, monkeypatch, capsys):
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.zeros((5, 4), np.uint8)).save(tmp_path / name)
    (tmp_path / "b/2.png").write_bytes(b"not a picture")
    code, out, _ = command(monkeypatch, capsys, tmp_path, "--check", "--on-bad", "skip")
    assert code == 0
    assert "3 images of 1×5×4" in out
    assert f"left out     {tmp_path / 'b/2.png'}: not an image" in out
    assert "identities with one sample only, which cannot be verified: 1" in out
    assert command(monkeypatch, capsys, tmp_path, "--out", "x.zip")[0] == 2


def test_check_lists_everything_that_is_bad(tmp_path, monkeypatch, capsys):
    """The first unreadable sample stops training; a check names them all, and prints no more than twenty."""
    photos = tmp_path / "photos"
    for k in range(30):
        (photos / f"{k % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((5, 4), np.uint8)).save(photos / f"{k % 2}" / f"{k}.png")
    assert "all 30 samples can be read" in command(monkeypatch, capsys, photos, "--check")[1]
    for k in range(25):
        (photos / f"{k % 2}" / f"{k}.png").write_bytes(b"not a picture")
    written = tmp_path / "bad.csv", tmp_path / "all.npz"
    code, out, err = command(monkeypatch, capsys, photos, "--check", "--bad-list", written[0], "--out", written[1])
    assert code == 1
    assert out.count("not an image") == 20
    assert "5 more, 25 in all" in out
    assert "25 samples cannot be read" in err
    lines = written[0].read_text(encoding="utf-8").splitlines()
    assert lines[0] == "file,why"
    assert len({line.split(",")[0] for line in lines[1:]}) == 25
    assert not written[1].exists()
    code, out, _ = command(monkeypatch, capsys, photos, "--check", "--on-bad", "skip", "--out", written[1])
    assert code == 0
    assert written[1].exists()
