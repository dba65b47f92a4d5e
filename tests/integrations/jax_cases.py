"""The function of JAX arrays against the library, in float64; test_jax.py runs it in a process of its own."""
# ruff: noqa: E402

import sys

sys.modules["triton"] = None  # its LLVM and JAX's crash in one process; torch does without

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import hypermargin as hm
from hypermargin.classic import CLASSIC, NUMBERS
from hypermargin.integrations._formula import BEYOND
from hypermargin.integrations.jax import margin, margin_softmax

N, C, D = 12, 7, 5
KINDS = [(kind, beyond) for kind in BEYOND for beyond in BEYOND[kind]]
HEAD_OF = {kind: next(name for name, head in CLASSIC.items() if head.margin == kind) for kind in BEYOND}
EQUAL = [(name, block) for name in CLASSIC for block in ((None, 1, 3, 100) if name == "softmax" else (None, 3))]


@pytest.fixture(autouse=True)
def wide():
    """In double precision, in this test alone."""
    with jax.enable_x64(True):
        yield


def batch(seed=0, rows=N, classes=C):
    """Features of many lengths, some on their class's direction, opposite to it, or zero."""
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(rows, D)), rng.normal(size=(classes, D)) * rng.uniform(0.1, 3, (classes, 1))
    y = rng.integers(0, classes, rows)
    x *= rng.uniform(0.1, 4, (rows, 1))
    x[0], x[1], x[2] = 2 * w[y[0]], -3 * w[y[1]], 0.0
    return x, w, y


def of_torch(x, w, y, psi, **options):
    """Loss and gradients of the library."""
    x, w = (torch.tensor(each, requires_grad=True) for each in (x, w))
    bias = options.pop("bias", None)
    b = None if bias is None else torch.tensor(bias, requires_grad=True)
    loss = hm.margin_softmax(x, w, torch.tensor(y), psi, bias=b, backend="dense", **options)
    loss.sum().backward()
    return [each.detach().numpy() for each in (loss, x.grad, w.grad, *([] if b is None else [b.grad]))]


def of_jax(x, w, y, psi, **options):
    bias = options.pop("bias", None)

    def loss(x, w, b):
        each = margin_softmax(x, w, jnp.asarray(y), psi, bias=b, **options)
        return each.sum(), each

    function = jax.jit(jax.value_and_grad(loss, argnums=(0, 1) if bias is None else (0, 1, 2), has_aux=True))
    (_, each), gradients = function(*map(jnp.asarray, (x, w)), None if bias is None else jnp.asarray(bias))
    return [np.asarray(found) for found in (each, *gradients)]


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "block"), EQUAL)
def test_every_head_equals_the_librarys(name, block):
    head, (x, w, y) = CLASSIC[name], batch()
    psi = hm.margins.get(head.margin)(**head.numbers)
    options = {
        "scale": head.scale, "unit_features": head.unit_features, "unit_weight": head.unit_weight, "lam": 2.5,
        "bias": np.linspace(-1, 1, C) if head.bias else None, "reduction": "none",
    }  # fmt: skip
    assert_equal(of_jax(x, w, y, name, block=block, **options), of_torch(x, w, y, psi, **options))


@pytest.mark.parametrize(("kind", "beyond"), KINDS)
def test_every_continuation_equals_the_librarys(kind, beyond):
    x, w, y = batch(1, 200)
    fields = {"beyond": beyond} if len(BEYOND[kind]) > 1 else {}
    psi = hm.margins.get(kind)(**CLASSIC[HEAD_OF[kind]].numbers, **fields)
    found = of_jax(x, w, y, margin(HEAD_OF[kind], beyond=beyond), scale=16.0)
    assert_equal(found, of_torch(x, w, y, psi, scale=16.0))


def test_the_tables_say_what_the_library_knows():
    for kind, words in BEYOND.items():
        fields = hm.margins.get(kind).__dataclass_fields__
        assert set(NUMBERS[kind]) <= set(fields)
        assert words == (fields["beyond"].metadata["choices"] if "beyond" in fields else ("smooth",))


@pytest.mark.parametrize("block", [None, 3])
def test_half_precision_is_computed_in_float32(block):
    x, w, y = (jnp.asarray(each) for each in batch())
    x, w = x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)
    loss, by_w = jax.value_and_grad(lambda w: margin_softmax(x, w, y, "arcface", scale=8.0, block=block))(w)
    whole = margin_softmax(x.astype(jnp.float32), w.astype(jnp.float32), y, "arcface", scale=8.0)
    assert (loss.dtype, by_w.dtype) == (jnp.float32, jnp.bfloat16)
    assert loss == pytest.approx(float(whole), rel=1e-6)


@pytest.mark.parametrize("block", [None, 4])
def test_vmap_is_one_after_the_other(block):
    several = [batch(seed) for seed in range(3)]
    x, w, y = (jnp.stack([jnp.asarray(each[k]) for each in several]) for k in range(3))
    one = jax.grad(lambda x, w, y: margin_softmax(x, w, y, "cosface", scale=9.0, block=block), argnums=(0, 1))
    together = jax.jit(jax.vmap(one))(x, w, y)
    for k in range(3):
        for found, expected in zip(together, one(x[k], w[k], y[k]), strict=True):
            np.testing.assert_allclose(found[k], expected, rtol=1e-12, atol=1e-14)


def test_blocks_have_no_matrix():
    """At 30,000 classes the compiled program with blocks never holds N×C numbers, and the other does."""
    x, w, y = (jnp.asarray(each, jnp.float32 if each.dtype == float else None) for each in batch(0, 64, 30_000))

    def most(block):
        step = jax.jit(jax.grad(lambda w: margin_softmax(x, w, y, "arcface", scale=64.0, block=block)))
        return step.lower(w).compile().memory_analysis().temp_size_in_bytes

    assert most(None) > x.shape[0] * w.shape[0] * 4 > 4 * most(1000)


def test_a_margin_by_row_and_its_gradient():
    x, w, y = batch()
    m = np.linspace(0.1, 0.6, N)
    by_m = jax.grad(lambda m: margin_softmax(*map(jnp.asarray, (x, w, y)), margin("arcface", m=m), scale=8.0))(m)
    given = torch.tensor(m[:, None], requires_grad=True)
    hm.margin_softmax(*map(torch.tensor, (x, w, y)), hm.margins.ArcFace(), scale=8.0, m=given).backward()
    np.testing.assert_allclose(by_m, given.grad[:, 0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("block", [None, 3])
def test_bad_rows_spoil_nothing_else(block):
    x, w, y = batch()
    bad, ignored = np.array([3, 4, 5]), np.array([6])
    x[3, 0], x[4, 1], y[5], y[6] = np.nan, np.inf, C, -100
    rest = np.setdiff1d(np.arange(N), [*bad, *ignored])
    loss, by_x, by_w = of_jax(x, w, y, "arcface", scale=8.0, reduction="none", block=block)
    assert np.isnan(loss[bad]).all()
    assert (loss[ignored] == 0).all()
    good, good_x, good_w = of_jax(x[rest], w, y[rest], "arcface", scale=8.0, reduction="none", block=block)
    for found, expected in ((loss[rest], good), (by_x[rest], good_x), (by_w, good_w)):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    x[bad] = 0.0  # the mean is over the rows that count
    y[bad] = -100
    mean = margin_softmax(*map(jnp.asarray, (x, w, y)), "arcface", scale=8.0, block=block)
    assert float(mean) == pytest.approx(good.mean(), rel=1e-12)


@pytest.mark.parametrize("classes", [1, 2])
@pytest.mark.parametrize("block", [None, 1])
def test_one_and_two_classes(classes, block):
    x, w, y = batch(0, N, classes)
    found = of_jax(x, w, y, "arcface", scale=8.0, block=block)
    assert_equal(found, of_torch(x, w, y, hm.margins.ArcFace(), scale=8.0))


def test_errors_say_what_to_do():
    x, w, y = map(jnp.asarray, batch())
    for call, words in (
        (lambda: margin_softmax(x, w, y, "arcfase", scale=1.0), "Did you mean 'arcface'?"),
        (lambda: margin_softmax(x, w, y, "arcface"), "scale must be given for unit features"),
        (lambda: margin_softmax(x, w.T, y, "arcface", scale=1.0), r"is transposed with \.T"),
        (lambda: margin_softmax(x, w, y, "arcface", scale=1.0, block=0), "block must be a whole number"),
        (lambda: margin_softmax(x, w, jax.nn.one_hot(y, C), "arcface", scale=1.0), r"\.argmax\(1\)"),
        (lambda: margin("arcface", m=28.6), "28.6 degrees are 0.4992"),
        (lambda: margin("cosface", beyond="flat"), "beyond must be one of 'smooth'"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError, match="normface has no m; its margin has no numbers"):
        margin("normface", m=0.5)
