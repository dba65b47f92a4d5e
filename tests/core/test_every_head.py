"""One law for each head of the family by its name: whoever computes it, it is dense in float64.

Over several processes and with a sample of the classes: `every_head` in tests/sharded_cases.py. The table of
docs/after-arcface.md (docs/write_tables.py) is what is true here.
"""

import pytest
import torch

import hypermargin as hm
from hypermargin.backends import Call, Chunked, Triton
from hypermargin.recipes import FAMILY, VERSIONS

try:
    from test_fused import reason  # importing it turns Triton's interpreter on
except ImportError as error:  # a Triton before 3.4
    reason = str(error)

N, C, D = 10, 300, 12
HEADS = [name for name in FAMILY if name != "sphereface"]  # which is a-softmax
POOLED = {"subcenter-arcface", "soft-triple"}  # the fused kernels count every center of a class as a rival


def made(name, backend, dtype=torch.float64):
    torch.manual_seed(5)
    given = {"counts": torch.arange(C) % 17 + 1} if FAMILY[name].by_counts else {}
    return hm.create_head(name, D, C, backend=backend, **given).to(dtype)


def loss_and_gradients(head, step=None, dtype=torch.float64):
    """Loss, dX, and the gradient of each parameter, in the second of two steps: what has a state has moved it."""
    rng = torch.Generator().manual_seed(7)
    x = 4 * torch.randn(N, D, generator=rng, dtype=torch.float64)
    y = torch.randint(0, C, (N,), generator=rng)
    for _ in range(2):
        leaf = x.to(dtype).requires_grad_()
        head.zero_grad()
        loss = (step or head)(leaf, y)
        loss.backward()
    return [loss.detach(), leaf.grad, *(p.grad for p in head.parameters() if p.grad is not None)]


def relative(a, b):
    return float((a.double() - b).norm() / (b.norm() + 1e-12))


@pytest.mark.parametrize("name", HEADS)
def test_in_blocks_of_classes(name):
    right = loss_and_gradients(made(name, "dense"))
    ours = loss_and_gradients(made(name, Chunked(chunk=64)))
    assert len(ours) == len(right) > 2
    for a, b in zip(ours, right, strict=True):
        assert relative(a, b) < 1e-10


HOSTILE = {
    "norms of 1e4 and 0": lambda x, W, y, K: (x.mul_(1e4 / x.norm(dim=1, keepdim=True)), x[::3].zero_()),
    "on its class and opposite": lambda x, W, y, K: x.copy_(
        W[::K][y] * (1 - 3 * (torch.arange(len(y)) % 2))[:, None]
    ),
    "on another class and opposite": lambda x, W, y, K: x.copy_(
        W[::K][(y + 1) % (len(W) // K)] * (1 - 3 * (torch.arange(len(y)) % 2))[:, None]
    ),
    "a dead center and equal ones": lambda x, W, y, K: (W[:K].zero_(), W[2 * K : 3 * K].copy_(W[K : 2 * K])),
    "no label": lambda x, W, y, K: y.fill_(-100),
    "lengths far apart": lambda x, W, y, K: x.mul_(torch.logspace(-3, 3, len(x), dtype=x.dtype)[:, None]),
    "logits of 1e4": lambda x, W, y, K: x.add_(9 * W[::K][y]),
}


def hostile(name, case, backend, dtype=torch.float64, rows=N, classes=11):
    """Losses, dX and dW of such a batch in a first step."""
    given = {"counts": torch.arange(classes) % 7 + 1} if FAMILY[name].by_counts else {}
    if case == "logits of 1e4" and FAMILY[name].unit_features:
        given["scale"] = 1e4
    head = hm.create_head(name, D, classes, backend=backend, reduction="none", **given).to(dtype)
    rng = torch.Generator().manual_seed(3)
    W = torch.randn(head.weight.shape, generator=rng, dtype=torch.float64)
    x, y = (
        torch.randn(rows, D, generator=rng, dtype=torch.float64),
        torch.randint(0, classes, (rows,), generator=rng),
    )
    if case in HOSTILE:
        HOSTILE[case](x, W, y, head.settings.centers.count)
    with torch.no_grad():
        head.weight.copy_(W)
    leaf = x.to(dtype).requires_grad_()
    loss = head(leaf, y)
    loss.sum().backward()
    return loss.detach(), leaf.grad, head.weight.grad


SIZES = {"one class": (N, 1), "two classes": (N, 2), "one row": (1, 11), "no rows": (0, 11)}


@pytest.mark.parametrize("name", HEADS)
def test_hostile_batches(name):
    for case, size in {**dict.fromkeys(HOSTILE, (N, 11)), **SIZES}.items():
        right = hostile(name, case, "dense", torch.float64, *size)
        for dtype in (torch.float64, torch.float32):
            ours = hostile(name, case, Chunked(chunk=3), dtype, *size)
            for a, b in zip(ours, right, strict=True):
                assert a.isfinite().all(), (case, dtype)
                if dtype == torch.float64:
                    largest = float(b.abs().max()) if b.numel() else 0.0
                    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9 * (1 + largest))


# Heads whose rivals count by a rule are in test_fused_rules.py.
@pytest.mark.skipif(bool(reason), reason=f"the fused backend cannot run: {reason}")
@pytest.mark.parametrize("name", [n for n in HEADS if n not in {*POOLED, *VERSIONS} and FAMILY[n].rule.is_softmax])
def test_by_the_fused_kernels(name):
    right = loss_and_gradients(made(name, "dense"))
    usual = loss_and_gradients(made(name, "dense", torch.float32), dtype=torch.float32)
    ours = loss_and_gradients(made(name, Triton(), torch.float32), dtype=torch.float32)
    for a, b, c in zip(ours, usual, right, strict=True):
        assert relative(a, c) <= 3 * relative(b, c) + 1e-5


def test_which_heads_the_fused_kernels_refuse(monkeypatch):
    monkeypatch.setattr("hypermargin.backends.fused.why_not", lambda device: "")
    refused = {}
    for name in HEADS:
        settings = made(name, "auto").settings
        try:
            Triton().fitted(Call(N, C, torch.device("cpu"), rule=settings.rule, centers=settings.centers))
        except ValueError as error:
            refused[name] = str(error)
    assert refused.keys() == POOLED
    assert all("every center" in said for said in refused.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_compiled_as_one_graph(name):
    torch._dynamo.reset()
    head = made(name, "dense", torch.float32)
    step = torch.compile(head, fullgraph=True, backend="aot_eager")
    right = loss_and_gradients(made(name, "dense", torch.float32), dtype=torch.float32)
    for a, b in zip(loss_and_gradients(head, step, torch.float32), right, strict=True):
        assert relative(a, b.double()) < 1e-5
