"""What the Keras layers promise, on whichever backend this process has; test_keras.py runs it on each of them."""
# ruff: noqa: E402

import os
import sys

BACKEND = os.environ["KERAS_BACKEND"]
if BACKEND != "torch":
    sys.modules["triton"] = None  # its LLVM and that of TensorFlow or JAX crash in one process; torch does without
if BACKEND == "jax":
    import jax

    jax.config.update("jax_enable_x64", True)

import keras
import numpy as np
import pytest
import torch
from keras import ops

import hypermargin as hm
from hypermargin.classic import CLASSIC
from hypermargin.integrations._formula import BEYOND
from hypermargin.integrations.keras import (
    CosineDense,
    LambdaAnnealing,
    MarginHead,
    MarginLoss,
    MarginModel,
    MarginWarmup,
)

N, C, D = 12, 7, 5
HEAD_OF = {kind: next(name for name, head in CLASSIC.items() if head.margin == kind) for kind in BEYOND}
BLOCKS = [None] if BACKEND == "tensorflow" else [None, 3]
KINDS = [(kind, beyond) for kind in BEYOND for beyond in BEYOND[kind]]


@pytest.fixture(autouse=True)
def as_it_was():
    keras.utils.set_random_seed(0)
    policy = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(policy)


def batch(seed=0, rows=N):
    """Features of many lengths, one on its class's direction, one opposite to it, one zero."""
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(rows, D)), rng.normal(size=(C, D)) * rng.uniform(0.1, 3, (C, 1))
    y = rng.integers(0, C, rows)
    x *= rng.uniform(0.1, 4, (rows, 1))
    x[0], x[1], x[2] = 2 * w[y[0]], -3 * w[y[1]], 0.0
    return x, w, y


def value_and_gradients(layer, run, x, dtype):
    """What run(x) returns, (N,), and the gradients of its sum by x and by what the layer learns."""
    variables = layer.trainable_variables if layer else []
    x = ops.convert_to_tensor(x, dtype=dtype)
    if BACKEND == "torch":
        x.requires_grad_()
        rows = run(x)
        rows.sum().backward()
        gradients = [x.grad, *(v.value.grad for v in variables)]
    elif BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(x)
            rows = run(x)
            total = ops.sum(rows)
        gradients = tape.gradient(total, [x, *(v.value for v in variables)])
    else:

        def total(x, values):
            with keras.StatelessScope(state_mapping=zip(variables, values, strict=True)):
                rows = run(x)
            return rows.sum(), rows

        differentiated = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)
        (_, rows), gradients = differentiated(x, [v.value for v in variables])
        gradients = [gradients[0], *gradients[1]]
    return [ops.convert_to_numpy(ops.convert_to_tensor(found)) for found in (rows, *gradients)]


def of_torch(x, w, y, psi, dtype, bias=None, **options):
    x, w = (torch.tensor(each, dtype=dtype, requires_grad=True) for each in (x, w))
    b = None if bias is None else torch.tensor(bias, dtype=dtype, requires_grad=True)
    rows = hm.margin_softmax(
        x, w, torch.tensor(y), psi, bias=b, backend="dense", reduction="none", **options
    )  # fmt: skip
    rows.sum().backward()
    return [each.detach().numpy() for each in (rows, x.grad, w.grad, *([] if b is None else [b.grad]))]


def assert_equal(found, expected, tolerance):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * max(1, np.abs(other).max()))


def made(name, dtype, w, **options):
    head = MarginHead(C, name, dtype=dtype, **options)
    head.build((None, D))
    head.weight.assign(w)
    return head


EQUAL = [
    *((name, "float64", 1e-10, block) for name in CLASSIC if name != "sphereface" for block in BLOCKS),
    *((name, "float32", 1e-5, block) for name in CLASSIC if name != "sphereface" for block in BLOCKS),
]


@pytest.mark.parametrize(("name", "dtype", "tolerance", "block"), EQUAL)
def test_every_head_equals_the_librarys(name, dtype, tolerance, block):
    paper, (x, w, y) = CLASSIC[name], batch()
    head = made(name, dtype, w, lam=2.5, block=block, learn_scale=False)
    bias = np.linspace(-1, 1, C) if paper.bias else None
    if bias is not None:
        head.bias.assign(bias)
    found = value_and_gradients(head, lambda x: head(x, ops.convert_to_tensor(y)), x, dtype)
    psi = hm.margins.get(paper.margin)(**paper.numbers)
    expected = of_torch(
        x, w, y, psi, getattr(torch, dtype), bias, scale=paper.scale, lam=2.5,
        unit_features=paper.unit_features, unit_weight=paper.unit_weight,
    )  # fmt: skip
    assert found[0].dtype == dtype
    assert_equal(found, expected, tolerance)


@pytest.mark.parametrize(("kind", "beyond"), KINDS)
def test_every_continuation_equals_the_librarys(kind, beyond):
    x, w, y = batch(1, 100)
    name = HEAD_OF[kind]
    sides = {"unit_features": True, "unit_weight": True, "use_bias": False}
    options = {"lam": 0.0, "learn_scale": False, "scale": 16.0, "beyond": beyond, **sides}
    head = made(name, "float64", w, **options)
    found = value_and_gradients(head, lambda x: head(x, ops.convert_to_tensor(y)), x, "float64")
    fields = {"beyond": beyond} if len(BEYOND[kind]) > 1 else {}
    psi = hm.margins.get(kind)(**CLASSIC[name].numbers, **fields)
    assert_equal(found, of_torch(x, w, y, psi, torch.float64, scale=16.0), 1e-10)


@pytest.mark.parametrize("name", ["normface", "cosface", "arcface", "combined"])
def test_the_loss_of_cosines_equals_the_librarys(name):
    rng = np.random.default_rng(0)
    c, y = rng.uniform(-0.99, 0.99, (40, C)), rng.integers(0, C, 40)
    loss = MarginLoss(name, scale=12.0, lam=0.5, reduction=None, dtype="float64")
    found = value_and_gradients(None, lambda c: loss(ops.convert_to_tensor(y[:, None]), c), c, "float64")
    given = torch.tensor(c, requires_grad=True)
    psi = hm.margins.get(CLASSIC[name].margin)(**CLASSIC[name].numbers)
    rows = hm.margin_cross_entropy(given, torch.tensor(y), psi, 12.0, lam=0.5, reduction="none")
    rows.sum().backward()
    assert_equal(found, [rows.detach().numpy(), given.grad.numpy()], 1e-10)
    c[0, :], c[1, :] = 1.0, -1.0
    at_the_ends = value_and_gradients(None, lambda c: loss(ops.convert_to_tensor(y), c), c, "float64")
    assert all(np.isfinite(each).all() for each in at_the_ends)
    c[2, 0] = 1.5
    assert np.isnan(ops.convert_to_numpy(loss(y, c))).nonzero()[0].tolist() == [2]


def blobs(rows=512, classes=4, dim=8, seed=0):
    """Samples around one point per class."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, rows)
    return (np.eye(classes, dim)[y] * 2 + rng.normal(size=(rows, dim)) * 0.5).astype("float32"), y


def backbone(dim=8):
    return keras.Sequential([keras.Input((dim,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(6)])


def short_way():
    model = keras.Sequential([*backbone().layers, CosineDense(4)])
    return model, {"loss": MarginLoss("arcface", m=0.2, scale=8.0), "metrics": ["accuracy"]}


def long_way():
    return MarginModel(backbone(), MarginHead(4, "a-softmax", m=2)), {"metrics": ["accuracy"]}


@keras.saving.register_keras_serializable("tests")
class OwnBackbone(keras.Model):
    """A backbone as people write their own: without build."""

    def __init__(self, **options):
        super().__init__(**options)
        self.first, self.last = keras.layers.Dense(16, activation="relu"), keras.layers.Dense(6)

    def call(self, x):
        return self.last(self.first(x))


def own_backbone():
    return MarginModel(OwnBackbone(), MarginHead(4, "cosface", scale=8.0)), {"metrics": ["accuracy"]}


def in_blocks():
    return MarginModel(backbone(), MarginHead(4, "arcface", scale=8.0, block=3)), {}


WAYS = [short_way, long_way, own_backbone, *([] if BACKEND == "tensorflow" else [in_blocks])]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_fit_evaluate_predict_save_and_load(way, tmp_path):
    x, y = blobs()
    model, options = way()
    model.compile(keras.optimizers.Adam(0.01), **options)
    history = model.fit(x, y, epochs=4, batch_size=64, verbose=0, validation_data=(x, y)).history
    assert history["loss"][-1] < history["loss"][0]
    assert history["accuracy"][-1] > 0.9
    assert history["val_accuracy"][-1] > 0.9
    outputs = model.predict(x, verbose=0)
    assert outputs.shape == (512, 4)
    assert (outputs.argmax(1) == y).mean() == pytest.approx(history["val_accuracy"][-1], abs=1e-6)

    before = model.evaluate(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(x, verbose=0), outputs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(again.evaluate(x, y, verbose=0), before, rtol=1e-4)
    if isinstance(again, MarginModel):
        assert int(again.head.step) == 4 * 8
    again.fit(x, y, batch_size=64, verbose=0)
    if isinstance(again, MarginModel):
        assert int(again.head.step) == 5 * 8


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_mixed_precision(way, policy):
    keras.config.set_dtype_policy(policy)
    x, y = blobs(128)
    model, options = way()
    model.compile(keras.optimizers.Adam(0.01), **options)
    history = model.fit(x, y, epochs=3, batch_size=64, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    outputs = model(x[:4])
    assert keras.backend.standardize_dtype(outputs.dtype) == "float32"
    assert keras.backend.standardize_dtype(model.layers[0].compute_dtype) != "float32"


@pytest.mark.skipif(BACKEND == "torch", reason="torch.compile of a whole step takes minutes")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_jit_compile_finds_the_same(way):
    x, y = blobs(128)
    found = []
    for jit in (False, True):
        keras.utils.set_random_seed(1)
        model, options = way()
        model.compile(keras.optimizers.SGD(0.1), jit_compile=jit, **options)
        found.append(model.fit(x, y, epochs=2, batch_size=64, verbose=0, shuffle=False).history["loss"])
    np.testing.assert_allclose(*found, rtol=1e-4)


@pytest.mark.skipif(BACKEND == "tensorflow", reason="blocks are for JAX and PyTorch")
def test_training_in_blocks_is_the_same_training():
    x, y = blobs(128)
    found = []
    for block in (None, 3):
        keras.utils.set_random_seed(1)
        model = MarginModel(backbone(), MarginHead(4, "arcface", scale=8.0, block=block))
        model.compile(keras.optimizers.SGD(0.1), metrics=None if block else ["accuracy"])
        history = model.fit(x, y, epochs=3, batch_size=64, verbose=0, shuffle=False).history
        found.append([*history["loss"], *history["accuracy"]])
    np.testing.assert_allclose(*found, rtol=1e-4)


def test_evaluation_has_the_margin_of_the_last_step():
    """What fit reports of the last step's rows is what evaluate finds of them, when nothing is learned."""
    x, y = blobs(32)
    model = MarginModel(backbone(), MarginHead(4, "a-softmax", strength=MarginWarmup(10)))
    model.compile(keras.optimizers.SGD(0.0))
    for _ in range(3):
        fitted = model.fit(x, y, batch_size=32, verbose=0).history["loss"][0]
        assert model.evaluate(x, y, verbose=0) == pytest.approx(fitted, rel=1e-5)


def test_sample_weights_count():
    x, y = blobs(32)
    model = MarginModel(backbone(), MarginHead(4, "cosface", scale=8.0))
    model.compile("sgd")
    weight = np.arange(32) < 8
    assert model.evaluate(x, y, verbose=0) == model.evaluate(x, y[:, None], verbose=0)
    mean = model.evaluate(x, y, sample_weight=weight.astype("float32"), batch_size=32, verbose=0)
    assert mean * 32 / 8 == pytest.approx(model.evaluate(x[:8], y[:8], verbose=0), rel=1e-5)


def test_schedules_equal_the_librarys():
    x, w, y = batch(3)
    theirs = hm.create_head("l-softmax", D, C, schedule=[
        hm.schedule.LambdaAnnealing(50.0, 0.3, 2.0, 0.5), hm.schedule.MarginWarmup(4, 1, "cosine"),
    ])  # fmt: skip
    ours = made("l-softmax", "float32", w, lam=LambdaAnnealing(50.0, 0.3, 2.0, 0.5),
                strength=MarginWarmup(4, 1, "cosine"))  # fmt: skip
    theirs.weight.data = torch.tensor(w, dtype=torch.float32)
    inputs = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    for _ in range(7):
        for training in (True, False):
            theirs.train(training)
            expected = float(theirs(*inputs).detach())
            found = ops.mean(ours(x.astype("float32"), y, training=training))
            assert float(ops.convert_to_numpy(found)) == pytest.approx(expected, rel=2e-5)
    for shape in ("linear", "exponential"):
        shares = [float(ops.convert_to_numpy(MarginWarmup(5, 2, shape)(step))) for step in range(9)]
        theirs = hm.schedule.MarginWarmup(5, 2, shape)
        expected = [float(theirs.at(torch.tensor(step + 1.0)).strength) for step in range(9)]
        assert shares == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_any_schedule_of_keras_moves_the_scale():
    x, w, y = batch()
    head = made("cosface", "float32", w, scale=keras.optimizers.schedules.PolynomialDecay(8.0, 4, 32.0))
    for expected in (8.0, 14.0, 20.0):
        head(x.astype("float32"), y, training=True)
        longest = np.abs(ops.convert_to_numpy(head(w.astype("float32")))).max()  # its own class's cosine is 1
        assert longest == pytest.approx(expected, rel=1e-5)


def test_a_learned_scale_stays_above_its_floor():
    x, y = blobs(64)
    model = MarginModel(backbone(), MarginHead(4, "normface", scale=2.0, learn_scale=True, scale_floor=1.5))
    model.compile(keras.optimizers.SGD(100.0))
    model.fit(x, 3 - y, epochs=2, verbose=0)
    assert float(ops.convert_to_numpy(model.head.learned_scale)) >= 1.5
    assert MarginHead(4, "normface").learn_scale
    assert MarginHead(4, "normface").scale_floor == 0.01


@pytest.mark.parametrize("name", CLASSIC)
def test_weights_go_to_torch_and_back(name):
    x, w, y = batch()
    ours = made(name, "float32", w)
    for _ in range(3):
        ours(x.astype("float32"), y, training=True)
    theirs = hm.create_head(name, D, C)
    theirs.load_state_dict({key: torch.from_numpy(array) for key, array in ours.torch_state().items()})
    again = MarginHead(C, name)
    again.build((None, D))
    again.load_torch_state(theirs.state_dict())
    inputs = torch.tensor(x, dtype=torch.float32)
    theirs.eval()
    for head in (ours, again):
        np.testing.assert_allclose(
            ops.convert_to_numpy(head(x.astype("float32"))), theirs(inputs).detach(), rtol=1e-5, atol=1e-5
        )
        loss = float(ops.convert_to_numpy(ops.mean(head(x.astype("float32"), y))))
        assert loss == pytest.approx(float(theirs(inputs, torch.tensor(y)).detach()), rel=1e-5)


@pytest.mark.parametrize("lam", [LambdaAnnealing(), 0.0])
def test_the_step_of_every_schedule_goes_to_torch_and_back(lam):
    x, w, y = batch()
    ours = made("a-softmax", "float32", w, lam=lam, strength=MarginWarmup(10))
    for _ in range(4):
        ours(x.astype("float32"), y, training=True)
    schedule = [hm.schedule.LambdaAnnealing()] * (lam != 0.0) + [hm.schedule.MarginWarmup(10)]
    theirs = hm.create_head("a-softmax", D, C, schedule=schedule).eval()
    theirs.load_state_dict({key: torch.from_numpy(array) for key, array in ours.torch_state().items()})
    expected = float(theirs(torch.tensor(x, dtype=torch.float32), torch.tensor(y)).detach())
    loss = ops.convert_to_numpy(ops.mean(ours(x.astype("float32"), y)))
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    again = made("a-softmax", "float32", w, lam=lam, strength=MarginWarmup(10))
    again.load_torch_state(theirs.state_dict())
    assert int(again.step) == 4


def test_a_dense_kernel_is_a_weight_transposed():
    x, w, _ = batch()
    layer = CosineDense(C, dtype="float64")
    layer.build((None, D))
    layer.kernel.assign(w.T)
    cosines = hm.create_head("cosface", D, C, scale=1.0, dtype=torch.float64)
    cosines.weight.data = torch.tensor(w)
    expected = cosines(torch.tensor(x)).detach()
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), expected, rtol=1e-12, atol=1e-12)


def test_the_snippet_with_one_hot_labels_has_the_same_loss():
    """The custom loss of docs/snippets.md, in keras.ops."""
    rng = np.random.default_rng(0)
    c, y = rng.uniform(-1, 1, (40, C)), rng.integers(0, C, 40)
    one_hot = np.eye(C)[y]
    logits = 30.0 * (c - 0.35 * one_hot)
    snippet = ops.mean(keras.losses.categorical_crossentropy(one_hot, logits, from_logits=True))
    found = MarginLoss("am-softmax", dtype="float64")(y, c)  # the paper's m = 0.35 and s = 30
    assert float(ops.convert_to_numpy(found)) == pytest.approx(float(ops.convert_to_numpy(snippet)), rel=1e-6)


def test_configs_are_complete():
    head = MarginHead(
        9, "arcface", m=0.3, beyond="linear", scale=keras.optimizers.schedules.CosineDecay(8.0, 10),
        lam=LambdaAnnealing(5.0), strength=MarginWarmup(7), use_bias=True, unit_features=False, name="it",
        block=BLOCKS[-1], weight_regularizer=keras.regularizers.L2(0.1), dtype="float64",
    )  # fmt: skip
    config = head.get_config()
    assert MarginHead.from_config(config).get_config() == config
    for made_of in (
        CosineDense(3, kernel_regularizer="l2"),
        MarginLoss("combined", m1=1.1, lam=2.0, scale=7.0, dtype="float64"),
    ):
        config = made_of.get_config()
        assert type(made_of).from_config(config).get_config() == config


def test_bad_rows_spoil_nothing_else():
    x, w, y = batch()
    x[3, 0], y[5] = np.nan, C
    head = made("arcface", "float64", w)
    rows, by_x, by_w = value_and_gradients(head, lambda x: head(x, ops.convert_to_tensor(y)), x, "float64")
    assert np.isnan(rows).nonzero()[0].tolist() == [3, 5]
    rest = np.setdiff1d(np.arange(N), [3, 5])
    run = lambda x: head(x, ops.convert_to_tensor(y[rest]))  # noqa: E731
    good, _, good_w = value_and_gradients(head, run, x[rest], "float64")
    np.testing.assert_allclose(rows[rest], good, rtol=1e-12)
    assert np.isfinite(by_x).all()
    if BACKEND != "torch":  # whose variables add up gradients
        np.testing.assert_allclose(by_w, good_w, rtol=1e-12, atol=1e-12)


def test_errors_say_what_to_do():
    x, y = blobs(8)
    model = MarginModel(backbone(), MarginHead(4))
    with pytest.raises(ValueError, match="Did you mean 'arcface'"):
        MarginHead(4, "arcfase")
    with pytest.raises(ValueError, match=r'MarginHead\(classes, "a-softmax"\)'):
        MarginLoss("a-softmax")
    with pytest.raises(ValueError, match=r"keras\.ops\.argmax"):
        MarginLoss()(np.eye(4), np.eye(4))
    with pytest.raises(ValueError, match=r"28\.6 degrees are 0\.4992"):
        MarginLoss("arcface", m=28.6)
    with pytest.raises(ValueError, match="dtype must be 'float32' or 'float64'"):
        MarginHead(4, dtype="mixed_bfloat16")
    with pytest.raises(TypeError, match="strength must be a number or a schedule"):
        MarginHead(4, strength="soon")
    with pytest.raises(TypeError, match=r"m must be a number or an array; got '0\.3'"):
        MarginHead(4, m="0.3")
    with pytest.raises(TypeError, match="scale must be a number; got '64'"):
        MarginLoss(scale="64")
    with pytest.raises(ValueError, match="units must be a whole number, at least 1; got 0"):
        CosineDense(0)
    with pytest.raises(ValueError, match=r"features must be \(N, dim\), one row per label; got \(2, 3, 8\)"):
        MarginHead(4)(np.zeros((2, 3, 8)), np.zeros(2))
    model.compile("sgd", loss="mse")
    with pytest.raises(ValueError, match="call compile without loss="):
        model.fit(x, y, verbose=0)
    if BACKEND == "tensorflow":
        with pytest.raises(ValueError, match="KERAS_BACKEND=jax"):
            MarginHead(4, block=2)
    else:
        model = MarginModel(backbone(), MarginHead(4, block=2))
        model.compile("sgd", metrics=["accuracy"])
        with pytest.raises(ValueError, match="compile takes no metrics="):
            model.fit(x, y, verbose=0)
