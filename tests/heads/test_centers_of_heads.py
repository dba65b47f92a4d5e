"""Heads with several centers per class: changed, cut, joined, read, written; and brought back to one."""

import csv
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import hypermargin as hm
from hypermargin import heads
from hypermargin.centers import Centers
from hypermargin.heads import Weights

C, K, D = 7, 3, 6


def made(name="subcenter-arcface", **overrides):
    torch.manual_seed(0)
    head = hm.create_head(name, D, C, scale=8.0, centers=K, **({"class_margins": [0.3] * C} | overrides))
    with torch.no_grad():
        head.m += 0.01 * torch.arange(C)
    return head


def trained(head, kind=torch.optim.Adam):
    """An optimiser after two steps, so that every row has state."""
    optimizer = kind(head.parameters(), lr=0.1)
    x, y = torch.randn(4 * C, D), torch.arange(4 * C) % C
    for _ in range(2):
        optimizer.zero_grad()
        head(x, y).backward()
        optimizer.step()
    return optimizer


def by_class(weight):
    return weight.detach().unflatten(0, (-1, K)).clone()


@pytest.mark.parametrize("kind", ["head", "weights"])
def test_classes_take_all_their_centers_along(kind):
    for change in ("add", "remove", "reorder"):
        head = made()
        target, optimizer = (head, trained(head)) if kind == "head" else (heads.weights_of(head), None)
        before, m = by_class(target.weight), target.m.detach().clone()
        if optimizer:
            moments = by_class(optimizer.state[head.weight]["exp_avg"])
        if change == "add":
            m_of_new = {} if kind == "head" else {"m": 0.4}
            ids = heads.add_classes(target, 2, seed=1, optimizer=optimizer, **m_of_new)
        elif change == "remove":
            ids = heads.remove_classes(target, [1, 4], optimizer=optimizer)
        else:
            ids = heads.reorder_classes(target, [6, 5, 4, 3, 2, 1, 0], optimizer=optimizer)
        after = by_class(target.weight)
        assert len(after) == {"add": 9, "remove": 5, "reorder": 7}[change] == target.classes
        for old, new in enumerate(ids.tolist()):
            if new >= 0:
                assert torch.equal(after[new], before[old])
                assert target.m[new] == m[old]
                if optimizer:
                    assert torch.equal(by_class(optimizer.state[head.weight]["exp_avg"])[new], moments[old])
        if kind == "head":
            assert head.settings.classes == len(after)
            x, y = torch.randn(9, D), torch.arange(9) % len(after)
            head(x, y).backward()
            optimizer.step()


def test_new_classes_from_embeddings_have_centers_that_differ():
    head = made()
    rng = torch.Generator().manual_seed(1)
    near, far = torch.randn(2, D, generator=rng)
    x = torch.cat((near + 0.05 * torch.randn(8, D, generator=rng), far[None]))
    heads.add_classes(head, embeddings=torch.cat((x, x[:1])), labels=torch.tensor([0] * 9 + [1]))
    rows = by_class(head.weight)[C:]
    first = F.normalize(F.normalize(x).mean(0), dim=0)
    torch.testing.assert_close(F.normalize(rows[0, 0], dim=0), first)
    torch.testing.assert_close(F.normalize(rows[0, 1], dim=0), F.normalize(far, dim=0))  # the one that is odd
    for of_class in rows:  # the second class has one sample alone
        cosines = F.normalize(of_class) @ F.normalize(of_class).T
        assert cosines.fill_diagonal_(-1).max() < 1 - 1e-6
    lengths = head.weight.detach().norm(dim=1)
    torch.testing.assert_close(lengths[C * K :], lengths[: C * K].mean().expand(2 * K))


def test_what_has_no_meaning_says_why(tmp_path):
    head = made()
    with pytest.raises(ValueError, match=r"no order in which to merge them\. For a head with one per class see"):
        heads.merge_classes(head, [[1, 2]])
    free = hm.MarginHead(D, C, hm.margins.NoMargin(), unit_features=False, unit_weight=False, centers=2)
    with pytest.raises(ValueError, match="nearest center's, which no linear layer computes"):
        heads.to_linear(free)
    for format, where in (("linear", tmp_path / "head.pt"), ("insightface", tmp_path)):
        with pytest.raises(ValueError, match=f"the format {format} has one row per class"):
            heads.write(free, where, format=format)
    assert not list(tmp_path.iterdir())


def test_cut_and_joined():
    for target in (made(), heads.weights_of(made())):
        parts = heads.split(target, 3)
        assert [part.classes for part in parts] == [3, 3, 1]
        assert [len(part.weight) for part in parts] == [9, 9, 3]
        whole = heads.join(parts)
        assert torch.equal(whole.weight, target.weight)
        assert torch.equal(whole.m, target.m)
    other = heads.weights_of(hm.create_head("arcface", D, C, scale=8.0, class_margins=[0.3] * C, centers=2))
    with pytest.raises(ValueError, match="part 1 has centers 2, the first 3"):
        heads.join([heads.weights_of(made()), other])
    nearest, every = (
        hm.create_head("arcface", D, C, scale=8.0, centers=Centers(3, pool)) for pool in ("max", "sum")
    )
    with pytest.raises(ValueError, match=r"part 1 has centers 3, the first Centers\(3, pool=\"max\"\)"):
        heads.join([nearest, every])


@pytest.mark.parametrize("ending", [".pt", ".safetensors"])
def test_files_say_how_many(ending, tmp_path):
    head = made()
    optimizer = trained(head)
    weights = heads.weights_of(head, optimizer)
    heads.write(weights, tmp_path / f"head{ending}")
    read = heads.read(tmp_path / f"head{ending}", classes=C)
    assert (read.classes, read.centers, len(read.weight)) == (C, K, C * K)
    again = heads.head_from(read, "subcenter-arcface", class_margins=head.m.tolist())
    assert again.settings.centers == Centers(K, "max")
    x, y = torch.randn(9, D), torch.arange(9) % C
    assert torch.equal(again(x, y), head(x, y))
    other = torch.optim.Adam(again.parameters(), lr=0.1)
    heads.restore_optimizer(other, again, read)
    for key in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(other.state[again.weight][key], optimizer.state[head.weight][key])
    with pytest.raises(ValueError, match=r"has 3 centers per class, not 2\. Leave centers out"):
        heads.read(tmp_path / f"head{ending}", centers=2)


def test_a_bare_state_dict_has_to_be_told(tmp_path):
    head = made(class_offsets=[0.5] * C)
    torch.save(head.state_dict(), tmp_path / "state.pt")
    with pytest.raises(ValueError, match="If a class has several rows in weight, say centers="):
        heads.read(tmp_path / "state.pt")
    read = heads.read(tmp_path / "state.pt", centers=K)
    assert (read.classes, read.centers) == (C, K)
    assert torch.equal(read.m, head.m)
    with pytest.raises(ValueError, match="weight must have 4 rows per class, as centers=4 says; got 21 rows"):
        heads.read(tmp_path / "state.pt", centers=4)
    np.save(tmp_path / "rows.npy", head.weight.detach().numpy())
    assert heads.read(tmp_path / "rows.npy", centers=K).classes == C
    assert heads.read(tmp_path / "rows.npy").classes == C * K
    for place in range(2):  # the slices of a sharded head say how many classes they hold
        held = torch.tensor([4 * place, min(4 * place + 4, C), C, place, 2])
        part = {
            "weight": head.weight.detach()[K * held[0] : K * held[1]],
            "scale": head.scale,
            "classes_held": held,
        }
        torch.save(part, tmp_path / f"part{place}.pt")
    whole = heads.read([tmp_path / "part1.pt", tmp_path / "part0.pt"])
    assert (whole.classes, whole.centers) == (C, K)
    assert torch.equal(whole.weight, head.weight)


def test_a_head_takes_what_was_written(tmp_path):
    head = made()
    heads.write(head, tmp_path / "head.pt")
    state = torch.load(tmp_path / "head.pt")
    made().load_state_dict(state)
    assert "centers" in state
    with pytest.raises(ValueError, match="this state has 3 centers per class, and the head has 2"):
        hm.create_head("subcenter-arcface", D, C, centers=2, class_margins=[0.3] * C).load_state_dict(state)


def test_two_classes_are_as_near_as_their_nearest_centers():
    weight = made().weight.detach()
    c = F.normalize(weight.double()) @ F.normalize(weight.double()).T
    nearest = c.unflatten(0, (C, K)).unflatten(2, (C, K)).amax((1, 3))
    right = [(nearest[a, b].item(), a, b) for a in range(C) for b in range(a + 1, C)]
    for block in (3, 8, 2048):
        found = heads.nearest_pairs(weight, 4, centers=K, block=block)
        for pair, (cosine, a, b) in zip(found, sorted(right, reverse=True), strict=False):
            assert (pair.first, pair.second) == (a, b)
            assert pair.cosine == pytest.approx(cosine, abs=1e-6)
    weight[0] = 0.0  # a row without a direction leaves the others of its class
    weight[1] = math.nan
    pairs = heads.nearest_pairs(weight, 30, centers=K)
    assert len(pairs) == C * (C - 1) // 2
    assert all(-1 <= pair.cosine <= 1 for pair in pairs)


def written_out(head, x, y, angle):
    """One class and one sample at a time."""
    w, dominant, keep, angles = by_class(head.weight).double(), [], [], []
    for j in range(head.classes):
        own = F.normalize(x[y == j].double()) @ F.normalize(w[j]).T
        counts = torch.bincount(own.argmax(1), minlength=K) if len(own) else torch.zeros(K)
        dominant.append(int(counts.argmax()))
    for row, label in zip(x.double(), y.tolist(), strict=True):
        cosine = F.normalize(row, dim=0) @ F.normalize(w[label, dominant[label]], dim=0)
        angles.append(cosine.acos().item())
        keep.append(angles[-1] <= angle)
    return dominant, keep, angles


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("block", [1, 7, 8192])
def test_dominant_centers_are_their_definition(dtype, block):
    head = made(dtype=dtype)
    rng = torch.Generator().manual_seed(2)
    x, y = torch.randn(60, D, generator=rng, dtype=dtype), torch.randint(0, C - 1, (60,), generator=rng)
    before = head.weight.detach().clone()
    found = heads.dominant_centers(head, x, y, math.radians(80), block=block)
    dominant, keep, angles = written_out(head, x, y, math.radians(80))
    assert found.dominant.tolist() == dominant
    assert found.keep.tolist() == keep
    assert 0 < sum(keep) < 60
    torch.testing.assert_close(found.angle.double(), torch.tensor(angles, dtype=torch.float64), rtol=0, atol=1e-6)
    assert found.unseen.tolist() == [C - 1]
    assert torch.equal(head.weight, before)
    one = found.head
    assert one.settings.centers == Centers()
    assert torch.equal(one.weight, before.unflatten(0, (C, K))[torch.arange(C), found.dominant])
    assert torch.equal(one.m, head.m)
    assert one.m is not head.m
    one(x, y).backward()
    right = hm.create_head("arcface", D, C, scale=8.0, class_margins=head.m.tolist(), dtype=dtype)
    right.weight.data.copy_(one.weight.data)
    torch.testing.assert_close(one(x, y), right(x, y))
    of_weights = heads.dominant_centers(heads.weights_of(head, trained(head)), x, y)
    assert isinstance(of_weights.head, Weights)
    assert (of_weights.head.centers, of_weights.head.classes) == (1, C)
    assert not of_weights.head.state
    assert not any(key.startswith("optimizer.") for key in of_weights.head.rest)


def test_a_memory_map_is_read_in_blocks(tmp_path):
    head = made()
    x, y = torch.randn(50, D), torch.arange(50) % C
    np.save(tmp_path / "x.npy", x.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    found, right = (heads.dominant_centers(head, rows, y.numpy(), block=8) for rows in (mapped, x))
    assert torch.equal(found.angle, right.angle)


def test_one_center_is_dominant():
    head = hm.create_head("arcface", D, C)
    x, y = torch.randn(20, D), torch.arange(20) % C
    found = heads.dominant_centers(head, x, y)
    assert torch.equal(found.head.weight, head.weight)
    assert not found.dominant.any()


def planted(wrong=0.1, seed=0):
    """Samples around their classes, some of which have another class's label."""
    rng = torch.Generator().manual_seed(seed)
    middle = torch.linalg.qr(torch.randn(16, C, generator=rng)).Q.T
    true = torch.arange(60 * C) % C
    x = middle[true] + 0.1 * torch.randn(len(true), 16, generator=rng)
    is_wrong = torch.rand(len(true), generator=rng) < wrong
    return x, torch.where(is_wrong, (true + torch.randint(1, C, true.shape, generator=rng)) % C, true), is_wrong


def test_planted_labels_are_found():
    """A head trained on features as they are, as sub-center ArcFace is on a network's."""
    x, y, is_wrong = planted()
    torch.manual_seed(0)
    head = hm.create_head("subcenter-arcface", 16, C, scale=16.0, m=0.2)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    for _ in range(80):
        optimizer.zero_grad()
        head(x, y).backward()
        optimizer.step()
    found = heads.dominant_centers(head, x, y)
    left_out = ~found.keep
    assert (left_out & is_wrong).sum() >= 0.6 * is_wrong.sum()  # the paper's 75° is for no mistakes
    assert (left_out & ~is_wrong).sum() <= 0.01 * len(y)


def test_wrong_input_says_so():
    head = made()
    x, y = torch.randn(5, D), torch.arange(5)
    bad = x.clone()
    bad[3, 0] = math.nan
    for given, words in (
        ((x, y, 75.0), r"angle must lie in \[0, 3.14159\); got 75. It is in radians; 75 degrees are 1.309"),
        ((x, y[:3]), "must be as many; got 5 and 3"),
        ((x[:, :2], y), r"shape \(N, 6\)"),
        ((x, y.float()), "labels must be 5 class ids"),
        ((x, y + 3), r"labels must lie in \[0, 7\); got 7 in row 4"),
        ((bad, y), "NaN or inf in row 3"),
        ((x[:0], y[:0]), "at least one row"),
    ):
        with pytest.raises(ValueError, match=words):
            heads.dominant_centers(head, *given)
    with pytest.raises(ValueError, match="in row 4"):
        heads.dominant_centers(head, x, y + 3, block=2)


def test_the_list_of_a_csv_file(tmp_path):
    """What `head clean` writes is what `--exclude` reads; the command is tested in tests/cli."""
    from hypermargin.data import DataError, from_arrays, split
    from hypermargin.data.exclusion import excluded, without

    data = from_arrays(np.zeros((12, 2), np.float32), np.arange(12) % 3, name="those")
    parts = split(data, "sample", validation=0.0, test=0.25)
    file = tmp_path / "drop.csv"
    rows = [int(parts.train[0]), int(parts.test[0])]
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([("file", "label"), *((data.where(row), "x") for row in rows)])
    found = excluded(file, data)
    assert sorted(found.tolist()) == sorted(rows)
    left = without(parts, found, data)
    assert left.train.tolist() == parts.train[1:].tolist()
    assert left.test.tolist() == parts.test.tolist()
    assert left.classes.tolist() == parts.classes.tolist()
    of_one = np.flatnonzero(data.labels == 0)
    with pytest.raises(DataError, match="exclude leaves nothing to train of label 0, which a closed set tests"):
        without(parts, of_one, data)
    whole = split(data, "none")
    assert without(whole, of_one, data).classes.tolist() == [1, 2]
    with pytest.raises(DataError, match="exclude leaves 1 identities for training"):
        without(whole, np.flatnonzero(data.labels < 2), data)
    file.write_text('file\n"those, sample 3"\nothers\n')
    with pytest.raises(DataError, match="names 1 samples that those has not, such as others"):
        excluded(file, data)
    file.write_text("path\nx\n")
    with pytest.raises(DataError, match="must name a column `file`"):
        excluded(file, data)
    with pytest.raises(DataError, match="there is no file"):
        excluded(tmp_path / "none.csv", data)


def test_sub_centers_of_pytorch_metric_learning():
    """The same loss there and back, the same dominant centers, and the same samples left out."""
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    torch.manual_seed(0)
    theirs = losses.SubCenterArcFaceLoss(
        num_classes=C, embedding_size=D, sub_centers=K, margin=17, scale=16
    ).double()
    head = heads.from_metric_learning(theirs)
    assert (head.classes, head.settings.centers) == (C, Centers(K, "max"))
    x, y = torch.randn(40, D, dtype=torch.float64), torch.arange(40) % C
    torch.testing.assert_close(head(x, y), theirs(x, y), rtol=1e-6, atol=1e-6)
    back = heads.to_metric_learning(head)
    assert type(back) is type(theirs)
    assert torch.equal(back.W, theirs.W)
    torch.testing.assert_close(back(x, y), theirs(x, y))
    dropped, centers = theirs.get_outliers(x, y, threshold=70)
    found = heads.dominant_centers(head, x, y, math.radians(70))
    torch.testing.assert_close(found.head.weight, centers.T)
    assert sorted(dropped.tolist()) == (~found.keep).nonzero()[:, 0].tolist()
    assert 0 < len(dropped) < 40
    for pool in ("sum", "soft"):
        other = hm.MarginHead(D, C, hm.margins.ArcFace(0.3, beyond="linear"), scale=8.0, centers=Centers(2, pool))
        with pytest.raises(ValueError, match="of which the nearest counts"):
            heads.to_metric_learning(other)


def test_soft_triple_of_pytorch_metric_learning():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    theirs = losses.SoftTripleLoss(C, D, centers_per_class=K).double()
    head = hm.create_head("soft-triple", D, C, centers=K, together=0.0, dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(theirs.fc.T)
    x, y = torch.randn(20, D, dtype=torch.float64), torch.arange(20) % C
    torch.testing.assert_close(head(x, y), theirs(x, y), rtol=1e-10, atol=1e-10)
