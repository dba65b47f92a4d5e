"""Heads after ArcFace as `Weights` and back: their state, and what went by counts."""

import copy

import pytest
import torch
from cases import needed

import hypermargin as hm
from hypermargin.counts import margins_from_counts, offsets_from_counts
from hypermargin.heads import (
    add_classes,
    head_from,
    join,
    merge_classes,
    read,
    remove_classes,
    reorder_classes,
    split,
    weights_of,
    write,
)
from hypermargin.heads.weights import by_class
from hypermargin.recipes import FAMILY

AFTER = [name for name, recipe in FAMILY.items() if recipe.group != "classic"]


@pytest.mark.parametrize("name", AFTER)
def test_there_and_back(name):
    """All state comes along, and the next training step is the same."""
    torch.manual_seed(0)
    head = hm.create_head(name, 8, 5, **needed(name, 5))
    x, y = 3 * torch.randn(16, 8), torch.arange(16) % 5
    head(x, y)
    again = head_from(weights_of(head), name)
    assert set(again.state_dict()) == set(head.state_dict())
    for key, value in head.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    assert torch.equal(again(x, y), head(x, y))


def test_new_counts_go_before_those_of_the_file():
    head = hm.create_head("ldam", 8, 3, counts=[1, 2, 3])
    again = head_from(weights_of(head), "ldam", counts=[5, 5, 80])
    assert torch.equal(again.m, margins_from_counts([5, 5, 80], "ldam"))
    head = hm.create_head("logit-adjustment", 8, 3, counts=[1, 2, 3])
    again = head_from(weights_of(head), "logit-adjustment", counts=[5, 5, 80])
    assert torch.equal(again.offsets, offsets_from_counts([5, 5, 80]))
    plain = weights_of(hm.create_head("cosface", 8, 3))
    with pytest.raises(TypeError, match="ldam needs counts="):
        head_from(plain, "ldam")
    assert torch.equal(head_from(plain, "ldam", counts=[1, 2, 3]).m, margins_from_counts([1, 2, 3], "ldam"))


REMEMBERING = {
    "kappaface": {},
    "vs": {},
    "vpl": {"after": 1.0},
    "adaptiveface": {},
}


def trained(name, classes=6):
    """A head with something remembered of most classes: class 4 was never seen."""
    torch.manual_seed(0)
    head = hm.create_head(name, 8, classes, **needed(name, classes), **REMEMBERING[name])
    for k in range(3):
        y = (torch.arange(8) + k) % 4
        head(3 * torch.randn(8, 8), y)
        if k == 1:
            head.end_epoch()
    assert name != "kappaface" or (head.row_margin.seen[:4] > 0).all()
    return head


def alike(one, other):
    assert set(one.state_dict()) == set(other.state_dict())
    for key, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key


@pytest.mark.parametrize("name", REMEMBERING)
def test_what_is_remembered_of_a_class_moves_along(name):
    head = trained(name)
    rows = {key: tensor.detach().clone() for key, tensor in head.by_class().items()}
    assert len(rows) > 1
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    for target in (copy.deepcopy(head), weights_of(head)):
        reorder_classes(target, order)
        for key, tensor in by_class(target).items():
            assert torch.equal(tensor[order], rows[key]), key
        remove_classes(target, [0, 5])
        for key, tensor in by_class(target).items():
            kept = torch.tensor([int((order == k).nonzero()) for k in (1, 2, 3, 4)])
            assert torch.equal(tensor, rows[key][kept]), key
    x, y = torch.randn(8, 8), torch.arange(8) % 4
    changed = copy.deepcopy(head)
    reorder_classes(changed, order)
    assert torch.allclose(changed(x, order[y]), head(x, y), atol=1e-5)
    again = copy.deepcopy(changed)
    again.reset_parameters()
    for key in ("row_margin.samples", "view_state.factors", "view_state.offsets"):
        if key in rows:
            assert torch.equal(
                again.state_dict()[key][order], rows[key]
            )  # what the head was told stays with its class


@pytest.mark.parametrize("name", REMEMBERING)
def test_merged_and_added_classes_begin_as_their_part_says(name):
    head = trained(name)
    rows = {key: tensor.detach().clone() for key, tensor in head.by_class().items()}
    add_classes(head, 2, seed=0)
    new = {key: tensor[6:] for key, tensor in head.by_class().items()}
    wanted = {"row_margin.weights": 1.0, "view_state.factors": 1.0, "view_state.ago": 2.0**24, "m": 0.35}
    for key, tensor in new.items():
        if key not in ("weight", "bias"):
            assert (tensor == wanted.get(key, 0.0)).all(), key
    merge_classes(head, [[1, 3]])
    for key, tensor in head.by_class().items():
        pair = rows[key][[1, 3]]
        if key in ("row_margin.sums", "row_margin.seen", "row_margin.samples"):
            torch.testing.assert_close(tensor[1], pair.sum(0))
        elif key == "view_state.last":
            assert not tensor[1].any()
        elif key == "view_state.ago":
            assert tensor[1] == 2.0**24
        elif key != "weight":
            torch.testing.assert_close(tensor[1], pair.mean(0))
    head(torch.randn(7, 8), torch.arange(7))
    head.end_epoch()
    assert all(value.isfinite().all() for value in head.state_dict().values())


@pytest.mark.parametrize("name", REMEMBERING)
def test_files_and_slices_keep_what_is_remembered(name, tmp_path):
    head = trained(name)
    for ending in ("pt", "safetensors"):
        write(head, tmp_path / f"head.{ending}")
        weights = read(tmp_path / f"head.{ending}")
        assert set(weights.parts) == {key for key in head.by_class() if "." in key}
        alike(head_from(weights, name, **REMEMBERING[name]), head)
    parts = split(head, 3)
    assert [len(part.by_class()["weight"]) for part in parts] == [2, 2, 2]
    alike(join(parts), head)
    if name in ("kappaface", "vs"):
        fresh = head_from(weights, name, counts=[9] * 6)
        told = hm.create_head(name, 8, 6, counts=[9] * 6)
        for key in ("row_margin.samples", "view_state.factors", "view_state.offsets"):
            if key in told.state_dict():
                assert torch.equal(fresh.state_dict()[key], told.state_dict()[key])


@pytest.mark.parametrize("name", ["ldam", "logit-adjustment", "adaface"])
def test_classes_are_added(name):
    head = hm.create_head(name, 8, 3, **needed(name, 3))
    add_classes(head, 2, seed=0)
    assert all(len(tensor) == 5 for tensor in head.by_class().values())
    assert head(torch.randn(5, 8), torch.arange(5)).isfinite()
