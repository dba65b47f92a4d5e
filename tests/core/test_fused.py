"""The fused backend's kernels, in Triton's interpreter where there is no GPU: every logic, at small ragged sizes.

Run on a GPU (`pytest -m gpu tests/core/test_fused.py`, or tests/on_gpu.py where there is no pytest) the same laws
hold for the compiled kernels. The interpreter's bfloat16 products are wrong, so those are tested on the
GPU only.
"""

import copy
import functools
import itertools
import json
import math
import os
import tempfile

if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

import torch

import hypermargin as hm
from hypermargin.backends import Call, Chunked, Dense, Triton, auto, fused
from hypermargin.backends.fused import launch, plan, tiles, why_not
from hypermargin.layout import ClassTable
from hypermargin.margins import ArcFace, CosFace, NoMargin, SphereFace
from hypermargin.testing import check_backend

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
try:
    import pytest

    reason = why_not(torch.device(DEVICE))
    pytestmark = [
        pytest.mark.skipif(bool(reason), reason=f"the fused backend cannot run: {reason}"),
        pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter's numpy, at log 0
        *[pytest.mark.gpu] * (DEVICE == "cuda"),
    ]
except ImportError:
    pytest = None


def patch_once():
    """The interpreter patches Triton's language at every call of a function inside a kernel: a third of the time.

    The launch has done it for what our kernels see, and for Triton's own functions the first call does it for good.
    """
    from triton.runtime import interpreter

    call, patched = interpreter.InterpretedFunction.__call__, set()

    def quick(self, *args, **options):
        module = self.fn.__module__
        if module.startswith("hypermargin.") or module in patched:
            return self.rewrite()(*args, **options)
        patched.add(module)
        return call(self, *args, **options)

    interpreter.InterpretedFunction.__call__ = quick


if os.environ.get("TRITON_INTERPRET") == "1" and not why_not(torch.device(DEVICE)):
    patch_once()

# Everything kept, nothing, and some: 256 of 520 classes at the sizes of `example`.
SOME = Triton(memory=0.315, chunk=256)
SETTINGS = [Triton(), Triton(memory=0, chunk=256), SOME]


def example(n=34, classes=520, d=24, dtype=torch.float32, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x, W = torch.randn(n, d, generator=rng), torch.randn(classes, d, generator=rng)
    y = torch.randint(0, classes, (n,), generator=rng)
    return x.to(DEVICE, dtype), W.to(DEVICE, dtype), y.to(DEVICE)


def loss_and_gradients(x, W, y, margin, **options):
    leaves = [t.detach().clone().requires_grad_() for t in (x, W)]
    loss = hm.margin_softmax(*leaves, y, margin, check=False, **options)
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def relative(a, b):
    return ((a.double() - b).norm() / b.norm()).item()


def test_views_and_margins_by_class_that_move():
    """Rows that a view has made, with the length it gave them and a bias; margins that come from a source."""
    counts = [1 + k % 17 for k in range(520)]
    heads = {
        "kappaface": {"counts": counts}, "dyn-arcface": {}, "adaptiveface": {}, "vs": {"counts": counts},
        "vpl": {"after": 1.0}, "arcface": {"view": hm.views.VectorScaling(), "class_counts": counts},
    }  # fmt: skip
    x, W, y = example()
    for name, options in heads.items():
        found = {}
        for backend in ("triton", "dense"):
            head = hm.create_head(name, 24, 520, backend=backend, device=DEVICE, check=False, **options)
            head = head if backend == "triton" else head.double()
            with torch.no_grad():
                head.weight.copy_(W)
            for step in range(3):
                leaf = x.roll(step, 0).to(head.weight.dtype).requires_grad_()
                head.zero_grad()
                loss = head(leaf, y)
                loss.backward()
                if step == 1:
                    head.end_epoch()
            found[backend] = [loss.detach(), leaf.grad, head.weight.grad]
        for mine, right in zip(*found.values(), strict=True):
            assert relative(mine, right) < 2e-5, name


def test_what_is_kept_is_what_the_memory_allows():
    cut = plan(34, 520, 24, SOME)
    assert (cut.chunk, cut.kept) == (256, 256)
    assert plan(34, 520, 24, Triton()).kept == 520
    assert plan(34, 520, 24, Triton(memory=0)).kept == 0
    assert plan(1024, 10**6, 512, Triton(operands="bfloat16")).kept == 10**6
    assert plan(1024, 10**6, 512, Triton(operands="float16")).kept == 10**6
    for rows, dim, memory in itertools.product((1, 129, 1024), (16, 500), (100, 400, 1000, 2000)):
        cut = plan(rows, 10**6, dim, Triton(operands="bfloat16", memory=memory))
        held = [launch.slabs(rows, size) for size in (cut.kept, cut.chunk if cut.kept < 10**6 else 0)]
        operands = 2 * (16 if dim == 16 else 512) * (cut.kept + (cut.chunk if cut.kept < 10**6 else 0))
        used = sum(2 * a * b for a, b in held) + operands
        assert used <= memory * 2**20 or cut.kept == 0


def over(cases):
    """A test of each of these, with pytest and without."""

    def mark(test):
        test.cases = list(cases)
        return pytest.mark.parametrize("case", test.cases)(test) if pytest else test

    return mark


def on_a_gpu(test):
    """Without one there is nothing to test."""
    return pytest.mark.gpu(test) if pytest else test


def slow_here(test):
    """In the interpreter; on a GPU it is soon done."""
    return pytest.mark.slow(test) if pytest and DEVICE == "cpu" else test


@slow_here
def test_the_battery():
    # 3 times and not 2: on the matrix units a float32 product is three of TF32.
    given = {"float64": False, "device": DEVICE, "float32_factor": 3.0}
    check_backend(Triton(), **given)


@slow_here
def test_every_option_against_float64():
    x, W, y = example()
    y[3] = -100
    options = [
        {"scale": 64.0, "label_smoothing": 0.1},
        {"scale": 500.0},  # far outside the window in which exp z is kept as it is
        {"unit_features": False, "unit_weight": False},
        {"scale": 8.0, "mix": (y.flip(0).clamp(min=0), 0.3), "label_smoothing": 0.2},
        {"scale": torch.linspace(1, 90, len(x), device=DEVICE)},
        {"scale": 16.0, "bias": torch.linspace(-2, 95, len(W), device=DEVICE)},
    ]
    margins = itertools.cycle((ArcFace(), CosFace(), NoMargin(), SphereFace(1.7)))
    # What is kept and what is not go through different kernels; together they are all.
    for settings, given in itertools.product((SOME,) if DEVICE == "cpu" else SETTINGS, options):
        margin = next(margins)
        wide = {k: v.double() if isinstance(v, torch.Tensor) else v for k, v in given.items()}
        right = loss_and_gradients(x.double(), W.double(), y, margin, backend="dense", **wide)
        usual = loss_and_gradients(x, W, y, margin, backend="dense", **given)
        ours = loss_and_gradients(x, W, y, margin, backend=settings, **given)
        for a, b, c in zip(ours, usual, right, strict=True):
            assert relative(a, c) <= 3 * relative(b, c) + 2e-6, (settings, given.keys(), margin)


def test_odd_sizes():
    for n, classes, d in ((1, 2, 1), (1, 300, 17), (2, 255, 16), (33, 257, 40), (5, 80, 300)):
        x, W, y = example(n, classes, d)
        right = loss_and_gradients(x.double(), W.double(), y, ArcFace(), scale=16.0, backend="dense")
        for settings in (Triton(), Triton(memory=0, chunk=256)):
            ours = loss_and_gradients(x, W, y, ArcFace(), scale=16.0, backend=settings)
            assert max(relative(a, b) for a, b in zip(ours, right, strict=True)) < 1e-5, (n, classes, d)


def test_rows_outside_the_window_do_not_spoil_their_neighbours():
    """Logits of ±500 beside logits near 0, in one block of rows; some rows without a gradient."""
    x, W, y = example()
    x, W = torch.nn.functional.normalize(x), torch.nn.functional.normalize(W)
    x[::7] *= 500
    x[1::7] *= 1e-6
    W[:20] = -x[14] / x[14].norm()  # row 14 has rivals at −500
    y[14] = 3
    share = torch.ones(len(x), device=DEVICE, dtype=torch.float64)
    share[::5], share[1::5], share[2::5] = 0.0, -1.0, 1e-12
    for settings in (Triton(), SOME):
        results = []
        for dtype, backend in ((torch.float64, "dense"), (torch.float32, settings)):
            leaves = [t.to(dtype).requires_grad_() for t in (x.clone(), W.clone())]
            sides = {"unit_features": False, "unit_weight": False, "reduction": "none", "check": False}
            loss = hm.margin_softmax(*leaves, y, NoMargin(), backend=backend, **sides)
            results.append([loss.detach(), *torch.autograd.grad((share.to(dtype) * loss).sum(), leaves)])
        for a, b in zip(results[1], results[0], strict=True):
            assert a.isfinite().all()
            assert relative(a, b) < 5e-5  # a float32 logit of 500 is known to 3e-5
        # the rows whose share is tiny have their own gradient, not a zero
        assert relative(results[1][1][2::5], results[0][1][2::5]) < 1e-4


def test_reduced_operands():
    operands = {"float16": 1e-3} | ({"bfloat16": 1e-2} if DEVICE == "cuda" else {})
    for (name, bound), kind in itertools.product(operands.items(), ("untrained", "trained")):
        x, W, y = example(12, 300, 512)
        if kind == "trained":
            x = torch.nn.functional.normalize(W[y]) * 2 + torch.nn.functional.normalize(x)
        right = loss_and_gradients(x.double(), W.double(), y, ArcFace(), scale=64.0, backend="dense")
        ours = loss_and_gradients(x, W, y, ArcFace(), scale=64.0, backend=Triton(operands=name, chunk=256))
        errors = [relative(a, b) for a, b in zip(ours, right, strict=True)]
        assert max(errors) < bound, (name, kind, errors)
        assert max(errors) > 1e-6  # and they were really used


@slow_here
def test_half_weights():
    for dtype in (torch.bfloat16, torch.float16):
        x, W, y = example(40, 140, 300, dtype=dtype)  # wider than a tile: finished in a second pass
        right = loss_and_gradients(x.double(), W.double(), y, ArcFace(), scale=16.0, backend="dense")
        ours = loss_and_gradients(x, W, y, ArcFace(), scale=16.0, backend=Triton())
        assert ours[1].dtype == ours[2].dtype == dtype
        for a, b in zip(ours[1:], right[1:], strict=True):
            assert relative(a, b) < torch.finfo(dtype).eps


def test_slices_of_the_classes_add_up():
    x, W, y = example(40, 600, 24)

    def found(backend, start=0, stop=600, **wanted):
        local = y[:, None] - start
        inside = (local >= 0) & (local < stop - start)
        return backend(x, ClassTable(W[start:stop], True, None, local, inside), **wanted)

    whole = found(Dense(), rival_sum=True, hardest=True)
    parts = []
    for start, stop in ((0, 350), (350, 600)):
        sums = found(Triton(memory=0, chunk=256), start, stop, rival_sum=True)
        parts.append(sums._replace(hardest=found(Triton(), start, stop, hardest=True).hardest))
    a, b = parts
    close = functools.partial(torch.testing.assert_close, rtol=1e-5, atol=1e-4)
    close(a.rival_sum + b.rival_sum, whole.rival_sum)
    close(torch.logaddexp(a.rivals, b.rivals), whole.rivals)
    close(torch.maximum(a.hardest, b.hardest), whole.hardest)


@slow_here
def test_backward_twice_and_frozen_sides():
    x, W, y = example()
    for settings in (SOME,) if DEVICE == "cpu" else SETTINGS:
        leaves = [x.clone().requires_grad_(), W.clone().requires_grad_()]
        loss = hm.margin_softmax(*leaves, y, ArcFace(), scale=90.0, backend=settings, check=False)
        first = torch.autograd.grad(loss, leaves, retain_graph=True)
        second = torch.autograd.grad(loss, leaves)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        for k in (0, 1):
            alone = [leaves[i] if i == k else leaves[i].detach() for i in (0, 1)]
            loss = hm.margin_softmax(*alone, y, ArcFace(), scale=90.0, backend=settings, check=False)
            torch.testing.assert_close(torch.autograd.grad(loss, alone[k])[0], first[k])


def test_a_second_derivative_takes_the_dense_formula():
    x, W, y = (t.detach() for t in example(6, 40, 8))
    results = []
    for backend in ("dense", Triton()):
        leaves = [x.clone().requires_grad_(), W.clone().requires_grad_()]
        loss = hm.margin_softmax(*leaves, y, ArcFace(), scale=4.0, label_smoothing=0.1, backend=backend)
        (by_x,) = torch.autograd.grad(loss, leaves[0], create_graph=True)
        results.append(torch.autograd.grad(by_x.square().sum(), leaves))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@slow_here
def test_a_compiled_step():
    torch._dynamo.reset()
    x, W, y = example(20, 300, 24)
    leaves = [x.requires_grad_(), W.requires_grad_()]

    def step(x, W):
        return hm.margin_softmax(x, W, y, ArcFace(), scale=16.0, label_smoothing=0.1, backend=Triton())

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(*leaves)
    for a, b in zip(torch.autograd.grad(compiled, leaves), torch.autograd.grad(step(*leaves), leaves), strict=True):
        torch.testing.assert_close(a, b)
    with torch.no_grad():  # as in evaluation, where the node is left out
        compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(*leaves)
        torch.testing.assert_close(compiled, step(*leaves))


@on_a_gpu
def test_a_step_does_not_wait_and_repeats_to_the_bit():
    x, W, y = example(300, 5000, 64)
    x.requires_grad_(), W.requires_grad_()
    for settings in (Triton(), Triton(memory=0, chunk=1024), Triton(operands="bfloat16")):
        results = []
        for sync in ("default", "error", "error"):
            torch.cuda.set_sync_debug_mode(sync)
            try:
                loss = hm.margin_softmax(x, W, y, ArcFace(), scale=64.0, backend=settings)
                results.append([loss.detach(), *torch.autograd.grad(loss, (x, W))])
            finally:
                torch.cuda.set_sync_debug_mode("default")
        assert all(torch.equal(a, b) for a, b in zip(results[1], results[2], strict=True))


@on_a_gpu
def test_a_step_as_a_cuda_graph():
    head = hm.MarginHead(64, 5000, ArcFace(), scale=64.0, device=DEVICE, backend=Triton(operands="bfloat16"))
    optimizer = hm.FusedSGD(head, lr=0.1, momentum=0.9)
    x, _, y = example(300, 5000, 64)
    x.requires_grad_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            head(x, y).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    x.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = head(x, y)
        loss.backward()
    fresh = copy.deepcopy(head)
    for seed in range(3):  # with another batch and another rate each time
        again = fresh.fused_optimizer
        for one in (optimizer, again):
            one.param_groups[0]["lr"] = 0.1 / (seed + 1)
            one.zero_grad()
        new, _, labels = example(300, 5000, 64, seed=seed)
        with torch.no_grad():
            x.copy_(new)
            y.copy_(labels)
        graph.replay()
        optimizer.step()
        right = fresh(new.requires_grad_(), labels)
        right.backward()
        again.step()
        assert torch.equal(loss, right)
        assert torch.equal(x.grad, new.grad)
        assert torch.equal(head.weight, fresh.weight)


@on_a_gpu
def test_graphed_callables():
    """torch's own way to take the launches out of an eager loop."""
    head = hm.MarginHead(64, 5000, ArcFace(), scale=64.0, device=DEVICE, backend=Triton(operands="bfloat16"))
    x, _, y = example(300, 5000, 64)
    right = torch.autograd.grad(head(x.requires_grad_(), y), (x, head.weight))
    graphed = torch.cuda.make_graphed_callables(copy.deepcopy(head), (x.detach().clone().requires_grad_(), y))
    for _ in range(2):
        again = x.detach().clone().requires_grad_()
        graphed.zero_grad()
        graphed(again, y).backward()
        assert torch.equal(again.grad, right[0])
        assert torch.equal(graphed.weight.grad, right[1])


@on_a_gpu
def test_compiled_and_graphed_in_any_order():
    """Inductor's CUDA graphs and torch.cuda's, one after the other in one process."""
    torch._dynamo.reset()
    x, _, y = example(300, 5000, 64)
    head = hm.MarginHead(64, 5000, ArcFace(), scale=64.0, device=DEVICE, backend=Triton(operands="bfloat16"))
    x.requires_grad_()
    right = torch.autograd.grad(head(x, y), (x, head.weight))

    def graphed(head):
        return torch.cuda.make_graphed_callables(head, (x.detach().clone().requires_grad_(), y))

    ways = [functools.partial(torch.compile, mode="reduce-overhead", fullgraph=True), graphed, torch.compile]
    for way in (*ways, *ways[:2]):
        own = copy.deepcopy(head)
        step = way(own)
        for _ in range(4):
            again = x.detach().clone().requires_grad_()
            own.weight.grad = None
            step(again, y).backward()
        for a, b in zip((again.grad, own.weight.grad), right, strict=True):
            assert relative(a, b.double()) < 1e-5


@on_a_gpu
def test_a_plain_step_is_few_launches():
    from torch.profiler import ProfilerActivity, profile

    head = hm.MarginHead(64, 5000, ArcFace(), scale=64.0, device=DEVICE, backend=Triton(operands="bfloat16"))
    x, _, y = example(300, 5000, 64)
    x.requires_grad_()
    for _ in range(3):
        head(x, y).backward()
    x.grad = head.weight.grad = None
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        head(x, y).backward()
        torch.cuda.synchronize()
    kernels = [e for e in seen.events() if str(e.device_type).endswith("CUDA")]
    assert 10 <= len(kernels) <= 20, [e.name for e in kernels]


@on_a_gpu
def test_huge_logits():
    """One rival far above the others has P = 1. (The products of the interpreter do not repeat to the bit.)"""
    x, W, y = example(70, 300, 24)
    for size in (1e3, 1e5, 1e7):
        options = {"unit_features": False, "unit_weight": False}
        right = loss_and_gradients(size * x.double(), W.double(), y, NoMargin(), backend="dense", **options)
        for settings in (Triton(), Triton(memory=0)):
            ours = loss_and_gradients(size * x, W, y, NoMargin(), backend=settings, **options)
            assert max(relative(a, b) for a, b in zip(ours, right, strict=True)) < 1e-4, size


def test_the_backward_subtracts_the_very_rivals_of_the_forward():
    """R·log2 e would be off by R's rounding, which at R = 1e7 is a factor of e in P."""
    from hypermargin.backends.fused import row_kernels

    rng = torch.Generator().manual_seed(0)
    rivals2 = (1e7 * torch.randn(70, generator=rng)).to(DEVICE)
    ones, shift = torch.ones_like(rivals2), torch.empty_like(rivals2)
    redo = torch.empty_like(rivals2, dtype=torch.int32)
    relative, roots, largest = (rivals2.new_empty(2, size) for size in (70, 70, 1))
    row_kernels.factors[(1,)](
        rivals2, 0 * ones, ones, ones, shift, redo, relative, roots, largest, 70, 15, 0, -16.0, 58.0, 16, 64
    )
    assert torch.equal(shift, rivals2 - 15)


@on_a_gpu
def test_inductor_and_changing_batches():
    torch._dynamo.reset()
    head = hm.create_head("arcface", 64, 5000, device=DEVICE, backend="triton")
    step = torch.compile(head, fullgraph=True)
    for n in (40, 40, 72, 104):
        x, _, y = example(n, 5000, 64, seed=n)
        x.requires_grad_()
        for a, b in zip(
            torch.autograd.grad(step(x, y), (x, head.weight)),
            torch.autograd.grad(head(x, y), (x, head.weight)),
            strict=True,
        ):
            assert relative(a, b.double()) < 1e-5


@on_a_gpu
def test_more_numbers_than_32_bits_count():
    """4.5 million classes × 512: offsets beyond 2³¹, and E beyond it too."""
    x, _, y = example(640, 5, 512)
    rng = torch.Generator(DEVICE).manual_seed(0)
    W = torch.randn(4_500_000, 512, device=DEVICE, generator=rng).requires_grad_()
    y = torch.randint(4_400_000, 4_500_000, (640,), device=DEVICE, generator=rng)
    x.requires_grad_()
    results = []
    for settings in (Triton(operands="bfloat16", memory=20_000), Triton(operands="bfloat16", memory=0)):
        loss = hm.margin_softmax(x, W, y, ArcFace(), scale=32.0, backend=settings)
        by_x, by_W = torch.autograd.grad(loss, (x, W))
        results.append(
            (loss.detach(), by_x, by_W[y].clone(), by_W[:1000].clone(), by_W[4_300_000:4_301_000].clone())
        )
        del by_W
    for a, b in zip(*results, strict=True):
        assert a.isfinite().all()
        assert a.norm() > 0
        assert relative(a, b.double()) < 5e-3
    with torch.no_grad():  # R by plain products, in chunks
        f = 32 * torch.nn.functional.normalize(x.double())
        parts = []
        for start in range(0, len(W), 500_000):
            z = f @ torch.nn.functional.normalize(W[start : start + 500_000].double()).T
            here = (y >= start) & (y < start + 500_000)
            z[here.nonzero().squeeze(1), y[here] - start] = -torch.inf
            parts.append(z.logsumexp(1))
        R = torch.stack(parts).logsumexp(0)
    found = Triton(operands="bfloat16")(f.float(), ClassTable(W.detach(), True, None, y[:, None]))
    assert (found.rivals - R).abs().max() < 1e-2


@on_a_gpu
def test_tuning_is_kept():
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("XDG_CACHE_HOME")
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            x, W, y = example(100, 3000, 64)
            right = loss_and_gradients(x.double(), W.double(), y, ArcFace(), scale=16.0, backend="dense")
            for _ in range(2):
                given = Triton(operands="float16", tune=True)
                ours = loss_and_gradients(x, W, y, ArcFace(), scale=16.0, backend=given)
                assert max(relative(a, b) for a, b in zip(ours, right, strict=True)) < 1e-3
                tiles.MEASURED.clear()
                from hypermargin.backends.fused import tune

                kept = tune.cache_file().read_text()
                assert "128 rows, d = 64, 16 bits" in kept
        finally:
            tiles.MEASURED.clear()
            os.environ.pop("XDG_CACHE_HOME")
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before


def trained(optimizer_of, steps=3, renormalize=False, **head_options):
    """Weights after some steps; the network is one linear layer."""
    torch.manual_seed(0)
    head = hm.MarginHead(24, 300, ArcFace(0.3), scale=16.0, device=DEVICE, **head_options)
    layer = torch.nn.Linear(24, 24).to(DEVICE)
    head_optimizer, optimizer = optimizer_of(head), torch.optim.SGD(layer.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(head_optimizer, 2, 0.5)
    for step in range(steps):
        x, _, y = example(40, 300, 24, seed=step)
        head_optimizer.zero_grad()
        optimizer.zero_grad()
        head(layer(x), y).backward()
        head_optimizer.step()
        optimizer.step()
        schedule.step()
        if renormalize:
            with torch.no_grad():
                head.weight.copy_(torch.nn.functional.normalize(head.weight))
    return head, layer, head_optimizer


def test_fused_sgd_is_torchs_sgd():
    for kind in (
        {"lr": 0.5, "weight_decay": 0.01},
        {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
    ):
        plain = trained(lambda head, kind=kind: torch.optim.SGD([head.weight], **kind), backend="dense")
        fused = trained(lambda head, kind=kind: hm.FusedSGD(head, **kind), backend=Triton(memory=0, chunk=256))
        assert fused[0].weight.grad is None
        torch.testing.assert_close(fused[0].weight, plain[0].weight, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(fused[1].weight, plain[1].weight, rtol=1e-5, atol=1e-6)


@slow_here
def test_fused_sgd_keeps_rows_on_the_sphere():
    options = {"lr": 0.5, "momentum": 0.9}
    plain, *_ = trained(lambda head: torch.optim.SGD([head.weight], **options), renormalize=True, backend="dense")
    fused, *_ = trained(lambda head: hm.FusedSGD(head, **options, renormalize=True))
    torch.testing.assert_close(fused.weight.norm(dim=1), torch.ones(300, device=DEVICE))
    torch.testing.assert_close(fused.weight, plain.weight, rtol=1e-5, atol=1e-6)


def test_fused_sgd_of_an_empty_batch_decays():
    head = hm.MarginHead(24, 300, ArcFace(), scale=1.0, device=DEVICE)
    optimizer = hm.FusedSGD(head, lr=0.5, weight_decay=0.1)
    before = head.weight.detach().clone()
    x, _, y = example(8, 300, 24)
    head(x[:0].requires_grad_(), y[:0]).backward()
    optimizer.step()
    torch.testing.assert_close(head.weight, before * 0.95)


@slow_here
def test_fused_sgd_goes_on_from_its_state():
    make = functools.partial(hm.FusedSGD, lr=0.5, momentum=0.9)
    head, layer, optimizer = trained(make)
    saved = copy.deepcopy((head.state_dict(), optimizer.state_dict()))
    again = hm.MarginHead(24, 300, ArcFace(0.3), scale=16.0, device=DEVICE)
    other = hm.FusedSGD(again, lr=0.1, momentum=0.9)
    again.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    x, _, y = example(40, 300, 24, seed=9)
    for one, its in ((head, optimizer), (again, other)):
        one(layer(x).detach(), y).backward()
        its.step()
    assert torch.equal(head.weight, again.weight)
    assert not torch.equal(head.weight, saved[0]["weight"])


def test_fused_sgd_refuses_what_it_cannot_do():
    head = hm.MarginHead(24, 300, ArcFace(), scale=1.0, device=DEVICE)
    x, _, y = example(8, 300, 24)
    with pytest.raises(ValueError, match=r"nesterov=True needs momentum > 0; got momentum=0"):
        hm.FusedSGD(head, lr=0.1, nesterov=True)
    with pytest.raises(ValueError, match=r"FusedSGD needs a float32 head.weight; got torch.float16"):
        hm.FusedSGD(hm.MarginHead(4, 5, ArcFace(), scale=1.0, dtype=torch.float16), lr=0.1)
    optimizer = hm.FusedSGD(head, lr=0.1)
    before = head.weight.detach().clone()
    head(x, y).backward()
    after = head.weight.detach().clone()
    assert not torch.equal(before, after)
    with pytest.raises(RuntimeError, match=r"a second backward before FusedSGD.step\(\).*cannot be accumulated"):
        head(x, y).backward()
    assert torch.equal(head.weight, after)
    optimizer.step()
    (head(x, y) + head.weight.square().sum()).backward()
    with pytest.raises(RuntimeError, match="head.weight has received an ordinary gradient"):
        optimizer.step()
    with pytest.raises(ValueError, match="takes no closure"):
        optimizer.step(lambda: 0.0)
    x.requires_grad_()
    optimizer.zero_grad()
    optimizer.step()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(head(x, y), x, create_graph=True)
    head(x, y).backward()  # a refused backward is not a step
    optimizer.step()
    with pytest.raises(ValueError, match="has one group"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
    with pytest.raises(ValueError, match="knows neither dampening nor maximize"):
        optimizer.load_state_dict(torch.optim.SGD([head.weight], lr=0.1, momentum=0.9, dampening=0.1).state_dict())
    optimizer.load_state_dict(torch.optim.SGD([head.weight], lr=0.3, momentum=0.9).state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.3
    head(x, y).backward()
    optimizer.step()
    weight, head.weight = head.weight, torch.nn.Parameter(torch.randn(400, 24, device=DEVICE))
    with pytest.raises(ValueError, match="belongs to another weight"):
        hm.margin_softmax(x, head.weight, y, ArcFace(), scale=8.0, backend=Triton(update=optimizer))
    head.weight = weight
    other = hm.MarginHead(24, 400, ArcFace(), scale=8.0, backend="dense")
    with pytest.raises(ValueError, match=r'FusedSGD needs backend="triton"; got .*dense'):
        hm.FusedSGD(other, lr=0.1)
    head.eval()
    weight = head.weight.detach().clone()
    head(x, y).backward()  # watching does not train
    assert torch.equal(head.weight, weight)


@slow_here
def test_main_grad_is_added_to():
    x, W, y = example(20, 300)
    for dtype in (torch.float32, torch.bfloat16):
        W = W.to(dtype).detach().requires_grad_()
        right = loss_and_gradients(x.double(), W.double(), y, ArcFace(), scale=16.0, backend="dense")[2]
        W.main_grad = torch.ones_like(W, dtype=torch.float32)
        for _ in range(2):
            hm.margin_softmax(x, W, y, ArcFace(), scale=16.0, backend=SOME, check=False).backward()
        assert W.grad is None
        assert relative(W.main_grad - 1, 2 * right) < 1e-3  # what is left of them beside a 1
    for wrong in (torch.ones(3), torch.ones(24, 300, device=DEVICE).T, torch.ones_like(W).half()):
        W.main_grad = wrong
        with pytest.raises(ValueError, match=r"weight.main_grad must be contiguous, float32"):
            hm.margin_softmax(x, W, y, ArcFace(), scale=1.0, backend=SOME, check=False)


def test_what_cannot_run_says_why(monkeypatch):
    x, W, y = example(4, 10, 8)
    with pytest.raises(
        ValueError, match=r'backend="triton" computes in float32; got .*float64.*"chunked" or "dense"'
    ):
        hm.margin_softmax(x.double(), W.double(), y, ArcFace(), scale=1.0, backend="triton")
    with pytest.raises(ValueError, match=r"Triton\(chunk=…\) must be a multiple of 256; got 100"):
        Triton(chunk=100)
    with pytest.raises(ValueError, match=r"Triton\(operands=…\) must be one of"):
        Triton(operands="half")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r"cannot run here: it runs on NVIDIA GPUs, and the tensors are on cpu"):
        hm.margin_softmax(x.cpu(), W.cpu(), y.cpu(), ArcFace(), scale=1.0, backend="triton")
    assert (
        hm.MarginHead(8, 10, ArcFace(), scale=1.0, backend="triton").settings.backend == "triton"
    )  # it may yet be moved to a GPU


def test_labels_that_are_no_class_are_not_read():
    x, W, y = example(6, 40, 8)
    for wrong in (-1, 40, 10**6):
        y[2] = wrong
        loss = hm.margin_softmax(x, W, y, ArcFace(), scale=1.0, backend=Triton(), check=False, reduction="none")
        assert loss[2].isnan()
        assert loss[[0, 1, 3, 4, 5]].isfinite().all()


def test_a_bad_row_spoils_no_other_rows_gradient():
    x, W, y = example(40, 520)
    bad = torch.zeros(40, dtype=torch.bool, device=DEVICE)
    bad[[2, 7, 30, 31]] = True
    good_x, good_y = x[~bad], y[~bad]
    x[2], x[7, 3], y[30], y[31] = math.nan, -math.inf, 10**6, -1
    for settings, options in itertools.product(
        (Triton(), SOME), ({}, {"lam": torch.tensor(0.5, device=DEVICE)}, {"label_smoothing": 0.1})
    ):
        given = {"scale": 64.0, "backend": settings, "reduction": "none", "check": False, **options}
        results = []
        for features, labels, counted in ((x, y, ~bad), (good_x, good_y, slice(None))):
            leaves = [t.detach().clone().requires_grad_() for t in (features, W)]
            loss = hm.margin_softmax(*leaves, labels, ArcFace(), **given)
            loss.sum().backward()
            results.append([loss[counted].detach(), leaves[0].grad[counted], leaves[1].grad])
            assert torch.equal(loss.isnan(), bad) or counted == slice(None)
        for a, b in zip(*results, strict=True):
            assert relative(a, b.double()) < 1e-5


def test_near_duplicates_are_inside_the_window():
    """A rival with a cosine near 1 at s = 64 is no reason to compute a block of rows again."""
    from hypermargin.backends.fused import ops

    x, W, y = example(8, 300)
    W[:4] = x[:4]
    found = ops.forward(
        64 * torch.nn.functional.normalize(x), W, None, y[:, None], True, False, False, 512, 300, "float32"
    )
    rivals, base = found[1], found[4] * math.log(2)
    assert rivals.max() > 58
    assert ((rivals - base) < 58).all()
    assert ((rivals - base) > -16).all()


def plain_calls():
    """What goes through the node for plain heads, or past it: margins, scales, reductions, ignored rows."""
    yield ArcFace(), {"scale": 64.0}
    yield CosFace(), {"scale": 30.0, "reduction": "sum", "ignore_index": 7}
    yield SphereFace(1.7), {"scale": 16.0, "reduction": "none"}
    yield hm.margins.Combined(1.1, 0.2, 0.1), {"scale": torch.tensor(20.0), "lam": 0.5}
    yield NoMargin(), {"scale": torch.linspace(1, 90, 34)}
    yield ArcFace(beyond="flat"), {"scale": torch.tensor(20.0)}
    yield ArcFace(), {"scale": 20.0, "gradient": "straight"}
    yield CosFace(), {"scale": 20.0, "m": torch.linspace(0.1, 0.5, 520)}
    yield hm.margins.AdaFace(), {"scale": 20.0}


def test_a_copy_of_a_head_takes_the_same_way():
    x, _, y = example()
    head = hm.MarginHead(24, 520, ArcFace(), scale=64.0, device=DEVICE, backend=Triton(), check=False)
    found = [torch.autograd.grad(each(x, y), each.weight)[0] for each in (head, copy.deepcopy(head))]
    assert torch.equal(*found)


def test_plain_heads_against_float64():
    x, W, y = example()
    y[3], y[5] = -100, 7
    x[4] = 0.0
    x[6], y[6] = W[y[6]], y[6]  # at its class: the angle has no gradient
    for margin, options in plain_calls():
        options = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
        labels = y.clone() if options.get("ignore_index", -100) == -100 else y.clamp(min=0)
        results = []
        again = [(torch.float32, Triton())] * (DEVICE == "cuda")  # compiled kernels, launched by address
        for dtype, backend in (
            (torch.float64, "dense"),
            (torch.float32, "dense"),
            (torch.float32, Triton()),
            *again,
        ):
            given = {k: v.to(dtype) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
            leaves = [t.to(dtype).clone().requires_grad_() for t in (x, W)]
            if isinstance(given["scale"], torch.Tensor):
                given["scale"] = given["scale"].clone().requires_grad_()
                leaves.append(given["scale"])
            rows = hm.margins.AdaFace().row_margin().to(DEVICE) if margin.name == "adaface" else None
            given |= {} if rows is None else {"row_margin": rows}
            loss = hm.margin_softmax(*leaves[:2], labels, margin, backend=backend, check=False, **given)
            weights = torch.linspace(0.5, 2, loss.numel(), dtype=dtype, device=DEVICE).view_as(loss)
            results.append([loss.detach(), *torch.autograd.grad((weights * loss).sum(), leaves)])
        right, usual, *_, ours = results
        for a, b, c in zip(ours, usual, right, strict=True):
            assert relative(a, c) <= 3 * relative(b, c) + 2e-6, (
                margin,
                options.keys(),
                relative(a, c),
                relative(b, c),
            )


def test_tiny_rows_of_the_weight_have_a_finite_gradient():
    x, W, y = example(6, 40, 8)
    for size in (0.0, 1e-42, 1e-39, 1e-30, 1e30):
        W[5] = size
        y[0] = 5
        assert all(
            part.isfinite().all() for part in loss_and_gradients(x, W, y, ArcFace(), scale=1.0, backend=Triton())
        )


def test_a_damaged_file_of_tiles_is_measured_again(tmp_path, monkeypatch):
    from hypermargin.backends.fused import tune

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tune.cache_file().parent.mkdir(parents=True)
    tile = {"rows": 64, "columns": 64, "step": 32, "warps": 4, "stages": 3}
    whole = dict.fromkeys(("scores", "features", "weight"), tile)
    for text in ("", "[]", '{"a": 1}', '{"a": {"scores": {}}}', json.dumps({"a": whole | {"more": tile}})):
        tune.cache_file().write_text(text)
        assert tune._read() == {}
    tune.cache_file().write_text(json.dumps({"a": whole}))
    assert tune._read()["a"].weight == tiles.Tile(**tile)


def test_the_choice_is_explained():
    assert "exp z of all of the classes is kept" in hm.explain_backend(34, 520, Triton(), DEVICE, dim=24)
    assert "exp z of 256 of the classes is kept" in hm.explain_backend(34, 520, SOME, DEVICE, dim=24)
    text = hm.explain_backend(150, 1500, Triton(memory=0, operands="float16"), DEVICE)
    assert text.endswith("exp z of none of the classes is kept for the backward, float16 operands.")


def test_auto_takes_it_where_it_was_measured_as_the_fastest(monkeypatch):
    gpu, many = torch.device("cuda"), (1024, 10**6)
    monkeypatch.setattr(fused, "why_not", lambda device: "")
    for tested, autocast in itertools.product((True, False), repeat=2):
        monkeypatch.setattr(auto, "is_tested_on", lambda device, tested=tested: tested)
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind, autocast=autocast: autocast)
        monkeypatch.setattr(torch, "get_autocast_dtype", lambda kind: torch.bfloat16)
        call = Call(*many, gpu)
        chosen, why = auto.Auto().fitted(call), auto.Auto().explain(call)
        assert isinstance(chosen, Triton if tested and autocast else Chunked)
        assert ("measured as the fastest" in why) == (tested and autocast)
        assert chosen.operands == ("bfloat16" if autocast else None)
        assert isinstance(auto.Auto().fitted(Call(*many, gpu, torch.float64)), Chunked)
        few = auto.Auto().fitted(Call(64, 1000, gpu))
        assert isinstance(few, Triton if tested else Dense)
        assert few.operands == ("bfloat16" if autocast else None)
        assert isinstance(auto.Auto().fitted(Call(8192, 16, gpu)), Dense)  # 512 labels per class
