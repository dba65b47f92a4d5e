"""On a GPU: the same numbers, no synchronisation in the step, torch.compile, reduced operands within their bounds.

Needs torch alone: `pytest -m gpu tests/core/test_cuda.py`, or tests/on_gpu.py where there is no pytest.
"""

import functools
import itertools
import os
import signal
import tempfile

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # asked for by torch's deterministic mode

import numpy as np
import torch

import hypermargin as hm
from hypermargin.backends import Chunked, Dense
from hypermargin.evaluate import evaluate, identification, open_set, verification
from hypermargin.margins import ArcFace, CosFace, NoMargin, SphereFace
from hypermargin.training import Config, DivergedError, Interrupted, train
from hypermargin.training.loop import Trainer
from hypermargin.training.recorded import Recorder

try:
    import pytest

    pytestmark = [
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    ]
except ImportError:
    pass

BACKENDS = {"dense": "dense", "chunked": Chunked(chunk=100)}


def example(n=64, classes=333, d=48, device="cuda", dtype=torch.float32):
    rng = torch.Generator().manual_seed(0)
    x, W = torch.randn(n, d, generator=rng), torch.randn(classes, d, generator=rng)
    return x.to(device, dtype), W.to(device, dtype), torch.randint(0, classes, (n,), generator=rng).to(device)


def loss_and_gradients(x, W, y, margin, **options):
    leaves = [t.detach().clone().requires_grad_() for t in (x, W)]
    loss = hm.margin_softmax(*leaves, y, margin, **options)
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def relative(a, b):
    return ((a.double().cpu() - b.cpu()).norm() / b.cpu().norm()).item()


def test_equals_float64_on_the_cpu():
    for (unit_x, unit_w), margin, (name, backend) in itertools.product(
        itertools.product((True, False), repeat=2),
        (NoMargin(), CosFace(), ArcFace(), SphereFace(1.7)),
        BACKENDS.items(),
    ):
        options = {"scale": 16.0, "unit_features": unit_x, "unit_weight": unit_w, "label_smoothing": 0.1}
        right = loss_and_gradients(*example(device="cpu", dtype=torch.float64), margin, backend="dense", **options)
        for dtype, tol in ((torch.float64, 1e-11), (torch.float32, 2e-5)):
            ours = loss_and_gradients(*example(dtype=dtype), margin, backend=backend, **options)
            for a, b in zip(ours, right, strict=True):
                assert relative(a, b) < tol, (name, margin, unit_x, unit_w, dtype, relative(a, b))


def test_extreme_inputs_give_finite_gradients():
    x, W, y = example()
    for backend, fx, fw in itertools.product(BACKENDS.values(), (1e-20, 0.0, 1e20), (1e-20, 0.0, 1e20)):
        for sides in itertools.product((True, False), repeat=2):
            options = {"unit_features": sides[0], "unit_weight": sides[1], "scale": 64.0, "backend": backend}
            for part in loss_and_gradients(fx * x, fw * W, y, ArcFace(), **options):
                assert part.isfinite().all(), (backend, fx, fw, sides)


def test_a_step_does_not_wait_for_the_gpu():
    for name, backend in itertools.product(("arcface", "a-softmax", "softmax", "normface"), BACKENDS.values()):
        overrides = {"scale": "adacos-dynamic"} if name == "normface" else {}
        head = hm.create_head(name, 48, 333, backend=backend, device="cuda", **overrides)
        x, _, y = example()
        x.requires_grad_()
        head(x, y).backward()
        torch.cuda.set_sync_debug_mode("error")
        try:
            head(x, y).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_autocast_uses_reduced_operands_and_stays_within_bounds():
    right = loss_and_gradients(*example(device="cpu", dtype=torch.float64), ArcFace(), scale=64.0, backend="dense")
    for kind, loss_bound in ((torch.bfloat16, 6e-3), (torch.float16, 1e-3)):
        for backend in (Chunked(chunk=100), Dense()):
            with torch.autocast("cuda", kind):
                ours = loss_and_gradients(*example(), ArcFace(), scale=64.0, backend=backend)
            errors = [relative(a, b) for a, b in zip(ours, right, strict=True)]
            assert errors[0] < loss_bound, (backend, kind, errors)
            assert max(errors) < 6e-3, (backend, kind, errors)
            assert max(errors) > 1e-5  # and they were really used


def test_float16_keeps_the_gradient_at_many_classes():
    """With C classes P is about 1/C, which float16 cannot hold: its backward must not use it."""
    x, W, y = example(n=32, classes=200_000, d=32)
    right = loss_and_gradients(x.double(), W.double(), y, NoMargin(), scale=8.0, backend=Chunked(chunk=50_000))
    with torch.autocast("cuda", torch.float16):
        ours = loss_and_gradients(x, W, y, NoMargin(), scale=8.0, backend=Chunked(chunk=50_000))
    assert max(relative(a, b) for a, b in zip(ours, right, strict=True)) < 6e-3


def test_a_compiled_step():
    for backend in BACKENDS.values():
        torch._dynamo.reset()
        step = functools.partial(hm.margin_softmax, scale=16.0, backend=backend)
        x, W, y = example()
        x.requires_grad_(), W.requires_grad_()
        compiled = torch.compile(step, fullgraph=True)(x, W, y, ArcFace())
        eager = step(x, W, y, ArcFace())
        for a, b in zip(torch.autograd.grad(compiled, (x, W)), torch.autograd.grad(eager, (x, W)), strict=True):
            assert relative(a, b.double()) < 1e-4


def test_a_second_run_gives_the_same_bits_when_asked_for():
    x, W, y = example(n=4096, classes=100)
    torch.use_deterministic_algorithms(True)
    try:
        for backend in BACKENDS.values():
            first = loss_and_gradients(x, W, y, ArcFace(), scale=16.0, backend=backend)
            for _ in range(5):
                again = loss_and_gradients(x, W, y, ArcFace(), scale=16.0, backend=backend)
                assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True)), backend
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_million_classes():
    """N = 256, d = 128: the logits alone would be 1 GB each time they are held."""
    rng = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(256, 128, device="cuda", generator=rng)
    W = torch.randn(1_000_003, 128, device="cuda", generator=rng)
    y = torch.randint(0, len(W), (256,), device="cuda", generator=rng)
    loss_and_gradients(x, W, y, ArcFace(), scale=16.0, backend="chunked")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ours = loss_and_gradients(x, W, y, ArcFace(), scale=16.0, backend="chunked")
    extra = torch.cuda.max_memory_allocated() - before
    assert extra < 2 * W.numel() * 4 + 600e6, extra / 1e6  # a leaf's clone, its gradient, and blocks
    assert all(part.isfinite().all() for part in ours)


def blobs():
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 10
    images = rng.normal(size=(10, 16, 16))[labels] * 50 + 128 + rng.normal(size=(400, 16, 16)) * 20
    return hm.data.from_arrays(images.clip(0, 255).astype(np.uint8), labels, open_set=False)


def test_the_trainer():
    """Every precision learns; with deterministic=True a stopped and resumed run equals an undisturbed one."""
    base = {"dim": 16, "epochs": 6, "batch": 40, "lr": 0.01, "tensorboard": False, "augment": "shift=0.1,flip"}
    for settings in ({}, {"precision": "bfloat16"}, {"precision": "float16"}, {"ema": 0.9, "optimizer": "sgd"}):
        with tempfile.TemporaryDirectory() as folder:
            config = Config(**{**base, **settings, "device": "cuda"})
            result = train(config, folder, data=blobs(), quiet=True)
            assert result.metrics["test"]["accuracy"] > 0.9, (settings, result)
    resumed_to_the_bit(Config(**base, device="cuda", deterministic=True, checkpoint=3))


def resumed_to_the_bit(config):
    """Stop a run in the middle and resume it; return the head, which is that of an undisturbed run."""
    step = Trainer._train_step

    def stopped(self, *batches):
        if self.step == 13:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, *batches)

    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        result = train(config, one, data=blobs(), quiet=True)
        assert result.metrics["test"]["accuracy"] > 0.9, (config, result)
        Trainer._train_step = stopped
        try:
            train(config, two, data=blobs(), quiet=True)
            raise AssertionError("it was not stopped")
        except Interrupted:
            pass
        finally:
            Trainer._train_step = step
        train(config, two, resume=True, data=blobs(), quiet=True)
        a, b = hm.load(one, "last"), hm.load(two, "last")
        for name, value in a.network.state_dict().items():
            assert torch.equal(value, b.network.state_dict()[name]), name
        assert torch.equal(a.head.weight, b.head.weight)
        return a.head


def test_recorded_steps():
    """The trainer's default here; a loss that is not finite stops the run before a weight of it is saved."""
    base = {"dim": 16, "epochs": 6, "batch": 40, "lr": 0.01, "tensorboard": False, "augment": "shift=0.1,flip"}
    steps = []
    step = Recorder.step
    Recorder.step = lambda self, *a, **k: (steps.append(1), step(self, *a, **k))
    try:
        for settings in (
            {},
            {"precision": "bfloat16", "ema": 0.9},
            {"optimizer": "sgd", "schedule": ["warmup:steps=9"]},
        ):
            weights = []
            for graphs in (None, False):
                config = Config(**{**base, **settings}, device="cuda", deterministic=True, cuda_graphs=graphs)
                with tempfile.TemporaryDirectory() as folder:
                    steps.clear()
                    train(config, folder, data=blobs(), quiet=True)
                    assert (len(steps) > 30) == (graphs is None), (settings, graphs, len(steps))
                    weights.append(hm.load(folder, "last").head.weight)
            assert relative(weights[0], weights[1]) < 0.02, settings  # the rates are rounded to float32
    finally:
        Recorder.step = step
    with tempfile.TemporaryDirectory() as folder:
        config = Config(**{**base, "set": {"scale": 3e38}}, device="cuda", cuda_graphs=True)
        try:
            train(config, folder, data=blobs(), quiet=True)
            words = "it was not stopped"
        except DivergedError as error:
            words = str(error)
    assert "at step 1 " in words, words


def test_optimisers_for_many_classes():
    """FusedSGD equals SGD, both kinds for sampled classes learn, and all resume to the bit; said what each does."""
    base = {"dim": 16, "epochs": 6, "batch": 40, "tensorboard": False, "augment": "flip", "ema": 0.5, "clip": 0.0}
    base |= {"device": "cuda", "deterministic": True, "checkpoint": 3}
    sgd = {"optimizer": "sgd", "lr": 0.05}
    fused = {**sgd, "head_optimizer": "fused-sgd"}
    for settings in (
        sgd,
        fused,
        {"lr": 0.01, "head_optimizer": "fused-sgd", "precision": "bfloat16", "clip": 5.0},
        {"lr": 0.01, "sample_rate": 0.5, "clip": 5.0, "accumulate": 2},
        {**sgd, "sample_rate": 0.5, "precision": "bfloat16"},
    ):
        resumed_to_the_bit(Config(**{**base, **settings}))
    weights = []  # of one epoch: after six, another order of summation alone makes 2 %
    for settings in (sgd, fused):
        with tempfile.TemporaryDirectory() as folder:
            train(Config(**{**base, **settings, "epochs": 1}), folder, data=blobs(), quiet=True)
            weights.append(hm.load(folder, "last").head.weight)
    assert relative(weights[1], weights[0]) < 5e-3


# Evaluation


def clouds(n=900, identities=90, dim=64):
    """Signs ±1 make every cosine exact in any order of summation."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, identities, n)
    W = rng.standard_normal((identities, dim))
    x = np.where(W[y] + 1.5 * rng.standard_normal((n, dim)) < 0, -1.0, 1.0)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y), torch.tensor(W, dtype=torch.float32)


def test_the_same_numbers():
    x, y, W = clouds()
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
