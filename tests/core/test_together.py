"""Every head with every option, and with every two: it is computed, the same in blocks, or refused in words."""

import itertools

import pytest
import torch

import hypermargin as hm
from hypermargin.backends import Chunked
from hypermargin.recipes import FAMILY
from hypermargin.schedule import LambdaAnnealing, MarginWarmup
from hypermargin.terms import CRFIQA, CenterLoss, RingLoss
from hypermargin.views import VariationalPrototypes, VectorScaling

N, C, D = 9, 12, 8
COUNTS = [3 + 5 * (k % 4) for k in range(C)]
HEADS = [name for name in FAMILY if name not in ("sphereface", "sphereface-r-v2")]  # which have another name too


def class_margins(margin):
    m = 0.1 if margin.m is None else margin.m
    return {"class_margins": [m] * C}


# What each adds to the arguments of a head of this margin.
OPTIONS = {
    "smoothing": lambda margin: {"label_smoothing": 0.1},
    "sample": lambda margin: {"sample": hm.PartialFC(0.6, seed=1)},
    "corrected sample": lambda margin: {"sample": hm.PartialFC(0.6, seed=1, correct=True)},
    "centers, sum": lambda margin: {"centers": hm.Centers(2)},
    "centers, max": lambda margin: {"centers": hm.Centers(2, "max")},
    "centers, soft": lambda margin: {"centers": hm.Centers(2, "soft", together=0.1)},
    "offsets": lambda margin: {"class_offsets": [0.1 * k for k in range(C)]},
    "class margins": class_margins,
    "learned margin": lambda margin: {"learn_margin": True},
    "learned scale": lambda margin: {"learn_scale": True},
    "bias": lambda margin: {"bias": True},
    "shared bias": lambda margin: {"bias": "shared"},
    "weights with lengths": lambda margin: {"unit_weight": False},
    "features with lengths": lambda margin: {"unit_features": False, "scale": 1.0},
    "straight": lambda margin: {"gradient": "straight"},
    "warm-up": lambda margin: {"schedule": MarginWarmup(4)},
    "lambda": lambda margin: {"schedule": LambdaAnnealing(10.0, 0.1, 1.0, 0.0)},
    "ring": lambda margin: {"row_terms": [RingLoss(0.1)]},
    "center loss": lambda margin: {"row_terms": [CenterLoss(D, C)]},
    "CR-FIQA": lambda margin: {"row_terms": [CRFIQA(D)]},
    "vector scaling": lambda margin: {"view": VectorScaling(), "class_counts": COUNTS},
    "prototypes": lambda margin: {"view": VariationalPrototypes(after=0)},
    "AdaCos": lambda margin: {"scale": "adacos"},
    "moving AdaCos": lambda margin: {"scale": "adacos-dynamic"},
    "advised scale": lambda margin: {"scale": "advised"},
    "mixup": lambda margin: {},
    "ignored rows": lambda margin: {},
}


def step(name, options, backend):
    """Loss, gradients and state after a step of training."""
    torch.manual_seed(0)
    given = {k: v for option in options for k, v in OPTIONS[option](FAMILY[name].margin).items()}
    made_of_counts = {
        "ldam": "class_margins",
        "balanced-softmax": "class_offsets",
        "logit-adjustment": "class_offsets",
    }
    if FAMILY[name].by_counts and not given.keys() & {"class_counts", made_of_counts.get(name)}:
        given["counts"] = COUNTS
    head = hm.create_head(name, D, C, backend=backend, **given).double()
    x = (4 * torch.randn(N, D, dtype=torch.float64)).requires_grad_()
    y, other = torch.randint(0, C, (2, N))
    if "ignored rows" in options:
        y[::4] = -100
    loss = head(x, y, mix=(other, 0.3) if "mixup" in options else None)
    loss.backward()
    dense = (
        g.to_dense() if g.is_sparse else g for g in (x.grad, *(p.grad for p in head.parameters())) if g is not None
    )
    return [loss.detach(), *dense, *(t for t in head.state_dict().values() if t.is_floating_point())]


def check(name, options):
    """Return whether it works; what does not must be refused with the name of an option in it."""
    reason, right = "", []
    try:
        right = step(name, options, "dense")
    except (ValueError, TypeError) as refused:
        reason = str(refused)
    if reason:
        names = {key for option in options for key in OPTIONS[option](FAMILY[name].margin)} | {"mix", "advised"}
        assert any(key in reason for key in names), (options, reason)
        return False
    for a, b in zip(step(name, options, Chunked(chunk=5)), right, strict=True):
        assert b.isfinite().all(), options
        close = {"rtol": 1e-8, "atol": 1e-8 * (1 + b.abs().max().item())}
        torch.testing.assert_close(a, b, **close, msg=lambda words: f"{options}: {words}")
    return True


@pytest.mark.parametrize("name", HEADS)
def test_with_one_option(name):
    worked = {option for option in OPTIONS if check(name, (option,))}
    assert {"learned scale", "bias", "ring", "center loss", "CR-FIQA", "ignored rows"} <= worked


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_with_two(name):
    for options in itertools.combinations(OPTIONS, 2):
        given = [key for option in options for key in OPTIONS[option](FAMILY[name].margin)]
        if len(set(given)) == len(given):
            check(name, options)
