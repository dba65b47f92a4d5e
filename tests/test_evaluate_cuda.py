"""On a GPU: the same numbers, whatever the setting for TF32. Also `python tests/test_evaluate_cuda.py`."""

import numpy as np
import torch

from hypermargin.evaluate import evaluate, identification, open_set, verification
from hypermargin.margins import CosFace

try:
    import pytest

    pytestmark = [
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    ]
except ImportError:
    pass


def sample(n=900, identities=90, dim=64):
    """Signs ±1 make every cosine exact in any order of summation."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, identities, n)
    W = rng.standard_normal((identities, dim))
    x = np.where(W[y] + 1.5 * rng.standard_normal((n, dim)) < 0, -1.0, 1.0)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y), torch.tensor(W, dtype=torch.float32)


def test_the_same_numbers():
    x, y, W = sample()
    for method in ("bootstrap", "jackknife"):
        here = verification(x, y, confidence=0.95, method=method)
        assert verification(x.cuda(), y.cuda(), confidence=0.95, method=method, block=256) == here
    here, there = (
        evaluate(x, y, prototypes=W, margin=CosFace(0.1)),
        evaluate(x.cuda(), y, prototypes=W.cuda(), margin=CosFace(0.1)),
    )
    assert here.verification == there.verification
    assert here.identification == there.identification
    for name in ("own_nearest", "own_farthest", "stranger"):
        np.testing.assert_array_equal(getattr(here.identification, name), getattr(there.identification, name))
    assert here.geometry.separated == there.geometry.separated
    for part in ("own_centre", "other_centre"):
        assert abs(getattr(here.geometry, part).mean - getattr(there.geometry, part).mean) < 1e-5
    assert abs(here.geometry.prototypes.met - there.geometry.prototypes.met) < 1e-2
    parts = [(x[::3], y[::3]), (x[1::3], y[1::3] + 5)]
    cpu, gpu = (open_set(*(t.to(d) for part in parts for t in part)) for d in ("cpu", "cuda"))
    assert cpu == gpu


def test_tf32_is_not_used():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(600) // 6
    x = torch.randn(100, 512, generator=generator)[y] + torch.randn(600, 512, generator=generator)
    here = verification(x, y), identification(x, y)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        there = verification(x.cuda(), y), identification(x.cuda(), y)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert abs(here[0].threshold - there[0].threshold) < 1e-5
    assert np.abs(here[1].stranger - there[1].stranger).max() < 3e-6


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(name, "passed")
