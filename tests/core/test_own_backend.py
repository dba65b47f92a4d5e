"""A backend of one's own goes wherever ours go: laws, head, command line; tests/sharded_cases.py has the shard."""

import numpy as np
import pytest
import torch
from row_by_row import RowByRow

import hypermargin as hm
from hypermargin.backends import Call, find_backend, register_backend
from hypermargin.margins import ArcFace


@pytest.fixture
def named(monkeypatch):
    """A registered one, and what it was called with."""
    monkeypatch.setattr(hm.backends.base, "_REGISTRY", dict(hm.backends.base._REGISTRY))
    backend = RowByRow()
    register_backend("rowbyrow", lambda: backend)
    return backend


def test_it_is_held_to_the_laws():
    hm.testing.check_backend(RowByRow())


def test_it_serves_every_margin_of_a_head(named):
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 3, 2, 2, -100, 1])
    for name in hm.margins.names():
        options = {"scale": 8.0, "bias": True, "label_smoothing": 0.1, "dtype": torch.float64}
        ours = hm.MarginHead(4, 5, hm.margins.get(name)(), backend="rowbyrow", **options)
        dense = hm.MarginHead(4, 5, hm.margins.get(name)(), backend="dense", **options)
        dense.load_state_dict(ours.state_dict())
        for head in (ours, dense):
            head(x, y).backward()
        torch.testing.assert_close(ours.weight.grad, dense.weight.grad)
        torch.testing.assert_close(ours.bias.grad, dense.bias.grad)
        assert ours.scores(x, y).hardest[4].isnan()
    assert named.calls
    assert "3 times 7 logits" in hm.explain_backend(3, 7, "rowbyrow")


def test_it_is_refused_for_what_it_does_not_do(named):
    x, W, y = torch.randn(3, 4), torch.randn(5, 4), torch.tensor([0, 1, 2])
    with pytest.raises(ValueError, match="knows softmax's rule alone"):
        hm.margin_softmax(x, W, y, ArcFace(), scale=8.0, rule=hm.rules.MVSoftmax(), backend="rowbyrow")
    with pytest.raises(ValueError, match=r"backend must be one of .*'rowbyrow'; got 'rowbyrown'.*Did you mean"):
        hm.margin_softmax(x, W, y, ArcFace(), scale=8.0, backend="rowbyrown")
    with pytest.raises(TypeError, match="an object with fitted, explain and __call__"):
        hm.margin_softmax(x, W, y, ArcFace(), scale=8.0, backend=RowByRow)
    with pytest.raises(ValueError, match="backend name 'dense' is taken"):
        register_backend("dense", RowByRow)
    with pytest.raises(TypeError, match="make must be a function that returns a backend"):
        register_backend("three", 3)
    with pytest.raises(ValueError, match="must be a word"):
        register_backend("row by row", RowByRow)
    assert isinstance(find_backend("auto").fitted(Call(3, 4, torch.device("cpu"))), hm.backends.Dense)


def test_the_command_line_trains_with_it(named, run, tmp_path):
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 8
    np.savez(tmp_path / "blobs.npz", images=rng.integers(0, 255, (80, 8, 8), dtype=np.uint8), labels=labels)
    where = ("train", "--data", tmp_path / "blobs.npz", "--out", tmp_path / "run", "--model", "mlp", "--epochs", 1)
    code, _, err = run(*where, "--batch", 16, "--set", "backend=rowbyrow", "--device", "cpu")
    assert code == 0, err
    assert named.calls.count(16)
    code, _, err = run(*where, "--out", tmp_path / "other", "--set", "backend=columnbycolumn")
    assert code == 2
    assert "backend must be one of 'auto', 'dense', 'chunked', 'triton', 'rowbyrow'; got 'columnbycolumn'" in err
