"""Backends: the public battery, the corners of the chunked one, and the choice between them."""

import itertools

import pytest
import torch

import hypermargin as hm
from hypermargin.backends import PLAIN, Chunked, Dense
from hypermargin.margins import ArcFace, CosFace, NoMargin, SphereFace
from hypermargin.scores import scores
from hypermargin.testing import LawBroken, check_backend


@pytest.mark.parametrize(("chunk", "keep"), [pytest.param(1, 0, marks=pytest.mark.slow), (8, 64), (1000, 64)])
def test_chunked_passes_the_battery(chunk, keep):
    check_backend(Chunked(chunk=chunk, keep=keep))


class Wrong(Dense):
    """As dense; what is wrong is said by the subclasses."""

    def fitted(self, call):
        return self


class CountsTheTarget(Wrong):
    def __call__(self, f, table, rule=PLAIN, **wanted):
        found = super().__call__(f, table, rule, **wanted)
        everything = torch.cat((found.rivals[:, None], (f[:, None] * found.rows).sum(-1)), 1).logsumexp(1)
        return found._replace(rivals=everything)


class ForgetsToProject(Wrong):
    def __call__(self, f, table, rule=PLAIN, **wanted):
        w = table.weight
        w = w / w.norm(dim=1, keepdim=True).detach().clamp(min=1e-9) if table.unit else w
        return super().__call__(f, table._replace(weight=w, unit=False), rule, **wanted)


class Rounds(Wrong):
    def __call__(self, f, table, rule=PLAIN, **wanted):
        return super().__call__(f.half().to(f.dtype), table, rule, **wanted)


class ForgetsTheSlope(Wrong):
    """The value of every rule is right, and its gradient is that of the plain logits."""

    def __call__(self, f, table, rule=PLAIN, **wanted):
        found = super().__call__(f, table, rule, **wanted)
        plain = super().__call__(f, table, **wanted).rivals
        return found._replace(rivals=plain + (found.rivals - plain).detach() + 0 * found.rivals)


def test_the_battery_catches_a_backend_that_is_slightly_wrong():
    check_backend("dense")
    for wrong, part in (
        (CountsTheTarget(), "rivals"),
        (ForgetsToProject(), "dW"),
        (Rounds(), "float32"),
        (ForgetsTheSlope(), "mv-softmax.*df"),
    ):
        with pytest.raises(LawBroken, match=part):
            check_backend(wrong)


def example(dtype=torch.float32, n=33, classes=301, d=24, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x, W = torch.randn(n, d, generator=rng), torch.randn(classes, d, generator=rng)
    return x.to(dtype), W.to(dtype), torch.randint(0, classes, (n,), generator=rng)


def loss_and_gradients(x, W, y, margin, **options):
    leaves = [t.detach().clone().requires_grad_() for t in (x, W)]
    loss = hm.margin_softmax(*leaves, y, margin, **options)
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize(("unit_x", "unit_w"), list(itertools.product((True, False), repeat=2)))
@pytest.mark.parametrize("scale", [8.0, 64.0, 500.0])
def test_float32_error_is_at_most_twice_that_of_dense(unit_x, unit_w, scale):
    x, W, y = example()
    for margin, keep in itertools.product((NoMargin(), CosFace(), ArcFace(), SphereFace(1.7)), (0, 64)):
        options = {"scale": scale, "unit_features": unit_x, "unit_weight": unit_w}
        right = loss_and_gradients(x.double(), W.double(), y, margin, backend="dense", **options)
        usual = loss_and_gradients(x, W, y, margin, backend="dense", **options)
        ours = loss_and_gradients(x, W, y, margin, backend=Chunked(chunk=64, keep=keep), **options)
        for a, b, c in zip(ours, usual, right, strict=True):
            assert (a - c).norm() <= 2 * (b - c).norm() + 2e-6 * c.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_weights_stay_half_and_are_summed_in_float32(dtype):
    x, W, y = example(dtype)
    right = loss_and_gradients(x.double(), W.double(), y, ArcFace(), scale=16.0, backend="dense")
    for backend in ("dense", Chunked(chunk=64)):
        ours = loss_and_gradients(x, W, y, ArcFace(), scale=16.0, backend=backend)
        assert ours[0].dtype == torch.float32
        assert ours[1].dtype == ours[2].dtype == dtype
        assert abs(ours[0] - right[0]) < 1e-5 * right[0]
        for a, b in zip(ours[1:], right[1:], strict=True):
            assert (a - b).norm() < torch.finfo(dtype).eps * b.norm()  # one rounding at the end


def test_frozen_sides_are_left_out():
    x, W, y = example()
    whole = loss_and_gradients(x, W, y, ArcFace(), scale=16.0, backend=Chunked(chunk=64))
    x.requires_grad_()
    loss = hm.margin_softmax(x, W, y, ArcFace(), scale=16.0, backend=Chunked(chunk=64))
    torch.testing.assert_close(torch.autograd.grad(loss, x)[0], whole[1])
    x, W = x.detach(), W.requires_grad_()
    loss = hm.margin_softmax(x, W, y, ArcFace(), scale=16.0, backend=Chunked(chunk=64))
    torch.testing.assert_close(torch.autograd.grad(loss, W)[0], whole[2])


def test_backward_twice_through_one_graph_gives_the_same():
    """What was kept from the forward must still be there."""
    x, W, y = example()
    leaves = [x.requires_grad_(), W.requires_grad_()]
    loss = hm.margin_softmax(x, W, y, ArcFace(), scale=16.0, backend=Chunked(chunk=64))
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    second = torch.autograd.grad(loss, leaves)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("chunk", [64, pytest.param(301, marks=pytest.mark.slow)])
def test_a_compiled_training_step(chunk):
    torch._dynamo.reset()
    x, W, y = example()
    options = {"scale": 16.0, "label_smoothing": 0.1, "backend": Chunked(chunk=chunk)}

    def step(x, W):
        return hm.margin_softmax(x, W, y, ArcFace(), **options)

    leaves = [x.requires_grad_(), W.requires_grad_()]
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(*leaves)
    for a, b in zip(torch.autograd.grad(compiled, leaves), torch.autograd.grad(step(*leaves), leaves), strict=True):
        torch.testing.assert_close(a, b)


def test_the_choice_is_explained():
    assert hm.explain_backend(256, 1000).startswith("dense: 256 rows × 1,000 classes are at most 262,144 logits")
    text = hm.explain_backend(256, 100_000)
    assert text.startswith("chunked: 256 rows × 100,000 classes are more than")
    assert "Blocks of 4,096 classes, 4 MB of float32 logits at a time per thread" in text
    assert "was asked for" in hm.explain_backend(256, 1000, backend="chunked")
    assert "Blocks of 17 classes" in hm.explain_backend(256, 1000, backend=Chunked(chunk=17))
    with pytest.raises(ValueError, match=r"Chunked\(chunk=…\) must be at least 1; got 0"):
        Chunked(chunk=0)
    with pytest.raises(ValueError, match=r"Chunked\(operands=…\) must be one of .*Did you mean 'bfloat16'\?"):
        Chunked(operands="bfloat")
    head = hm.create_head("arcface", 8, 5, backend=Chunked(chunk=2))
    assert "Chunked(chunk=2" in repr(head)


def most_bytes(backend, classes, rows=64, dim=16):
    """The most that a step holds at once besides the gradient of W, by the profiler's count of allocations."""
    x, W = torch.randn(rows, dim, requires_grad=True), torch.randn(classes, dim, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        hm.margin_softmax(x, W, torch.arange(rows), ArcFace(), scale=16.0, backend=backend).backward()
    events = profiler.profiler.kineto_results.events()
    sizes = (event.nbytes() for event in events if event.name() == "[memory]")
    return max(itertools.accumulate(sizes)) - W.nbytes


def test_memory_does_not_grow_with_the_classes():
    assert most_bytes("dense", 20_000) > 64 * 20_000 * 4  # N×C
    most = [most_bytes("chunked", classes) for classes in (400_000, 600_000)]  # N×C would be 102 MB and 154 MB
    assert max(most) < 64 * 2**20 + 8 * 2**20  # what it may keep, and a block
    assert most[1] - most[0] < 2 * 200_000 * 4  # a number a class, the length of its row


def test_zero_rows_have_a_right_angle():
    zero = torch.zeros(2, 3)
    found = scores(zero, torch.stack((zero[0], torch.ones(3))), torch.tensor([0, 1]), scale=1.0)
    torch.testing.assert_close(found.angle, torch.full((2, 1), torch.pi / 2))
