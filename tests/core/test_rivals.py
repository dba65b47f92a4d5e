"""What a rival counts as: every head that changes it, against its formula written out on the whole matrix."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import over_backends

import hypermargin as hm
from hypermargin import rules
from hypermargin.backends import Chunked

N, C, D = 9, 12, 5


def made(name, seed=0, classes=C, rows=N, **overrides):
    """A head of that name in float64, and a batch for it."""
    rng = torch.Generator().manual_seed(seed)
    head = hm.create_head(name, D, classes, dtype=torch.float64, **overrides)
    with torch.no_grad():
        head.weight.copy_(torch.randn(head.weight.shape, generator=rng, dtype=torch.float64))
    x = 3 * torch.randn(rows, D, generator=rng, dtype=torch.float64)
    return head, x.requires_grad_(), torch.randint(0, classes, (rows,), generator=rng)


def cosines(head, x):
    return F.normalize(x) @ F.normalize(head.weight).T


def own(c, y):
    return c.gather(1, y[:, None])


def angle(c):
    """Away from ±1."""
    return c.acos()


def softmax(rivals, target, y):
    """Cross-entropy with these logits, the target's put in its place."""
    return F.cross_entropy(rivals.scatter(1, y[:, None], target), y)


def others(c, y):
    return ~F.one_hot(y, c.shape[1]).bool()


def curricularface(head, x, y, t, s=64.0, m=0.5, guarded=False):
    """Huang et al. 2020 as its code has it: its own target past π − m, cos(θ + m) as the threshold."""
    c = cosines(head, x)
    theta = angle(own(c, y))
    target = torch.where(theta + m <= math.pi, (theta + m).cos(), theta.cos() - m * math.sin(m))
    threshold = (target if guarded else (theta + m).cos()).detach()
    return softmax(s * torch.where(c > threshold, c * (t + c), c), s * target, y)


def agree(ours, theirs, *leaves):
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    grads = [torch.autograd.grad(loss, leaves, allow_unused=True) for loss in (ours, theirs)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@over_backends
@pytest.mark.parametrize("compared", ["bare", "margined"])
def test_curricularface(backend, compared):
    head, x, y = made("curricularface", beyond="linear", compared=compared, backend=backend)
    t = 0.0
    for step in range(3):
        _, x, y = made("curricularface", seed=step, beyond="linear")
        t = 0.01 * own(cosines(head, x), y).mean().item() + 0.99 * t
        agree(head(x, y), curricularface(head, x, y, t, guarded=compared == "margined"), x, head.weight)
        torch.testing.assert_close(head.rule_state.t.item(), t, rtol=1e-6, atol=1e-9)
        t = head.rule_state.t.double().item()  # the buffer is float32, as a checkpoint keeps it


def test_t_moves_in_training_alone_and_goes_on_after_a_resume():
    head, x, y = made("curricularface", momentum=0.5)
    head.eval()(x, y)
    assert head.rule_state.t == 0
    head.train()
    with pytest.raises(ValueError, match="must lie in"):
        head(x, y + 100)
    head(x[:0], y[:0])
    head(x, torch.full_like(y, -100))
    assert head.rule_state.t == 0
    head(x, y)
    moved = head.rule_state.t.item()
    assert moved != 0
    again, _, _ = made("curricularface", momentum=0.5)
    again.load_state_dict(head.state_dict())
    assert torch.equal(again(x, y), head(x, y))
    again.reset_parameters()
    assert again.rule_state.t == 0


def test_a_row_that_is_not_finite_does_not_stay_in_t():
    head, x, y = made("curricularface", momentum=0.5, check=False, reduction="none")
    without = copy.deepcopy(head)
    x = x.detach()
    x[2] = math.nan
    head(x, y), without(x, y.index_fill(0, torch.tensor([2]), -100))
    assert torch.equal(head.rule_state.t, without.rule_state.t)
    assert head.rule_state.t.isfinite()


HEADS = ["curricularface"]


@pytest.mark.parametrize("name", HEADS)
def test_hostile_input(name):
    """One and two classes, one row, rows on and opposite to their class and to another, zero rows, large logits."""
    for classes, rows, scale in ((1, 3, None), (2, 1, None), (C, N, 1e4), (C, N, None), (C, 0, None)):
        found = []
        for backend in ("dense", Chunked(chunk=3)):
            head, x, y = made(
                name, classes=classes, rows=rows, backend=backend, **({"scale": scale} if scale else {})
            )
            with torch.no_grad():
                w = head.weight[:: head.settings.centres]
                if rows == N:
                    x[0], x[1], x[2] = w[y[0]], -2 * w[y[1]], 0.0
                    x[3], x[4] = w[(y[3] + 1) % C], -w[(y[4] + 1) % C]
                    head.weight[-1] = 0.0
            loss = head(x, y)
            grads = torch.autograd.grad(loss, (x, head.weight), allow_unused=True)
            assert loss.isfinite()
            assert all(g is None or g.isfinite().all() for g in grads)
            found.append([loss, *(g for g in grads if g is not None)])
        for dense, chunked in zip(*found, strict=True):
            torch.testing.assert_close(
                chunked, dense, rtol=1e-9, atol=1e-9 * (1 + dense.abs().max().item() if rows else 1)
            )


@pytest.mark.parametrize("name", HEADS)
def test_with_a_sample_of_the_classes(name):
    """The loss over the classes that were drawn."""
    for backend in ("dense", Chunked(chunk=3)):
        head, x, y = made(name, classes=40, sample=hm.PartialFC(0.5, seed=3), backend=backend)
        whole, _, _ = made(name, classes=40, backend=backend)
        whole.load_state_dict({k: v for k, v in head.state_dict().items() if k != "sampled_steps"})
        loss = head(x, y)
        loss.backward()
        drawn = head.weight.grad.coalesce().indices()[0]
        K = head.settings.centres
        part, _, _ = made(name, classes=len(drawn) // K, backend=backend)
        if part.bias is not None:
            part.bias.data.copy_(head.bias.data if not head.bias.dim() else head.bias.data[drawn[::K] // K])
        part.weight.data.copy_(head.weight.data[drawn])
        torch.testing.assert_close(loss, part(x, torch.searchsorted(drawn[::K] // K, y)))


def test_every_rule_keeps_the_laws():
    for name in rules.names():
        hm.testing.check_rule(rules.get(name)())
