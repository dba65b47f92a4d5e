"""Heads after ArcFace as `Weights` and back: their state, and what went by counts."""

import pytest
import torch
from cases import needed

import hypermargin as hm
from hypermargin.counts import margins_from_counts, offsets_from_counts
from hypermargin.heads import add_classes, head_from, weights_of
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


@pytest.mark.parametrize("name", ["ldam", "logit-adjustment", "adaface"])
def test_classes_are_added(name):
    head = hm.create_head(name, 8, 3, **needed(name, 3))
    add_classes(head, 2, seed=0)
    assert all(len(tensor) == 5 for tensor in head.by_class().values())
    assert head(torch.randn(5, 8), torch.arange(5)).isfinite()
