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
