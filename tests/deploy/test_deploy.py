"""Export, embed and verify: what leaves the library answers as the library does, and as the formulas say."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from cases import needed
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import hypermargin as hm
from hypermargin.data import DataError, Scaling, from_arrays, open_data
from hypermargin.deploy import ExportError, embed, export, formats, graph, metadata, open_model, verify
from hypermargin.evaluate.thresholds import Thresholds
from hypermargin.training import Config, RunError, Trained, create_model, train
from hypermargin.training.iresnet import IResNet
from hypermargin.training.run import About

GRAY, RGB, VECTOR = (1, 8, 8), (3, 16, 16), (6,)
SIZES = 1, 2, 7
CLASSES = "α", 'b "quoted"', "c", "d", "e"


def made(model="mlp", shape=GRAY, head="arcface", scaling=None, network=None, classes=CLASSES, **overrides):
    """A network and head as `load` would give them, with random weights."""
    torch.manual_seed(0)
    dim = 6
    options = {"lenet++": {"width": 4}, "mlp": {"widths": [8]}}.get(model, {})
    if model == "iresnet-short":
        network = IResNet((1, 1, 1, 1), shape, dim)
    if network is None:
        network = create_model(model, shape, dim, **options)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):  # else it would be the identity
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    made_head = hm.create_head(head, dim, len(classes), **needed(head, len(classes)), **overrides)
    if made_head.bias is not None:
        nn.init.normal_(made_head.bias)
    scaling = scaling or (Scaling() if len(shape) == 3 else Scaling(0.0, 1.0))
    config = Config(model=model, model_set=options, dim=dim, head=head, set=overrides)
    data = {"name": "/somewhere/secret/faces.npz", "samples": 60, "classes": 5, "fingerprint": "f", "left_out": []}
    about = About(shape, tuple(classes), False, scaling, data)
    return Trained(network.eval(), made_head.eval(), config, about, step=12)


def raw_samples(trained, rows, seed=3):
    rng = np.random.default_rng(seed)
    channels, *sides = trained.about.shape
    shape = (rows, *((*sides, 3) if channels == 3 and sides else sides or (channels,)))
    if sides and trained.about.scaling == Scaling():
        return rng.integers(0, 256, shape, dtype=np.uint8)
    return (trained.about.scaling.mean + trained.about.scaling.std * rng.normal(size=shape)).astype(np.float32)


@torch.no_grad()
def by_hand(trained, raw):
    """embedding, norm and probability in float64, from the network's own layers and the papers' formulas."""
    x = (raw.astype(np.float64) - trained.about.scaling.mean) / trained.about.scaling.std
    if raw.ndim > 2:
        x = x[:, None] if raw.ndim == 3 else np.transpose(x, (0, 3, 1, 2))
    network = trained.network.double()
    features = network(torch.from_numpy(x)).numpy()
    network.float()
    norm = np.sqrt((features**2).sum(1))
    unit = features / norm[:, None]
    head = trained.head
    weight = head.weight.double().numpy()
    weight = weight / np.sqrt((weight**2).sum(1, keepdims=True)) if head.settings.unit_weight else weight
    logits = float(head.current_scale()) * (unit if head.settings.unit_features else features) @ weight.T
    by_center, centers = logits.reshape(len(logits), head.classes, -1), head.settings.centers
    logits = by_center.max(2)
    if centers.pool == "soft":
        shares = np.exp((by_center - logits[..., None]) / (centers.gamma * float(head.current_scale())))
        logits = (shares * by_center).sum(2) / shares.sum(2)
    logits = logits if head.bias is None else logits + head.bias.double().numpy()
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return {"embedding": unit, "norm": norm, "probability": odds / odds.sum(1, keepdims=True)}


def with_onnx(path):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda raw: dict(zip(names, session.run(None, {"samples": raw}), strict=True))


def with_torch(path):
    module = torch.export.load(path).module()
    return lambda raw: {name: t.detach().numpy() for name, t in module(torch.from_numpy(raw)).items()}


READERS = {"onnx": with_onnx, "torch": with_torch}


def same(found, wanted, close=1e-5):
    for name, value in found.items():
        np.testing.assert_allclose(value, wanted[name], rtol=close, atol=close, err_msg=name)


# The graph


@pytest.mark.parametrize("head", hm.list_heads())
def test_the_graph_computes_the_formulas_for_every_head(head):
    for shape in (GRAY, VECTOR):
        trained = made(shape=shape, head=head)
        whole = graph.Whole(trained, with_head=True)
        for rows in SIZES:
            raw = raw_samples(trained, rows)
            found = {name: t.detach().numpy() for name, t in whole(torch.from_numpy(raw)).items()}
            assert list(found) == ["embedding", "norm", "probability"]
            same(found, by_hand(trained, raw))
            np.testing.assert_allclose(found["probability"].sum(1), 1, rtol=1e-5)


BOTH = ("onnx", "torch")
KINDS = [
    ("lenet++", GRAY, "softmax", None, {}, ("torch",)),  # ONNX of it: the run below
    ("mlp", GRAY, "normface", Scaling(0.3, 2.0), {"learn_scale": True, "scale": 5.0}, BOTH),
    ("none", VECTOR, "arcface", None, {"scale": "adacos-dynamic", "m": 0.2}, BOTH),
    pytest.param("mlp", RGB, "l-softmax", None, {}, ("torch",), marks=pytest.mark.slow),
    ("iresnet-short", RGB, "a-softmax", None, {}, ("torch",)),
    pytest.param("iresnet18", RGB, "a-softmax", None, {}, BOTH, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("model", "shape", "head", "scaling", "settings", "kinds"), KINDS, ids=str)
def test_files_answer_as_the_formulas_for_any_batch(tmp_path, model, shape, head, scaling, settings, kinds):
    trained = made(model, shape, head, scaling, **settings)
    for format in kinds:
        path = tmp_path / f"it{formats.ENDINGS[format]}"
        done = export(trained, path, format=format, with_head=True)
        assert max(done.differences.values()) <= 1e-5
        answer = READERS[format](path)
        for rows in SIZES:
            raw = raw_samples(trained, rows)
            same(answer(raw), by_hand(trained, raw))
    assert len(list(tmp_path.iterdir())) == len(kinds)  # no weights beside


class Zero(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, :6] * 0.0


@pytest.mark.parametrize(("format", "dtype"), [("onnx", "float16"), ("torch", "float32")])
def test_a_zero_feature_gives_zeros(tmp_path, format, dtype):
    trained = made(network=Zero())
    path = tmp_path / f"zero{formats.ENDINGS[format]}"
    export(trained, path, format=format, dtype=dtype, with_head=True)
    found = READERS[format](path)(raw_samples(trained, 2))
    assert found["embedding"].dtype == np.dtype(dtype)
    assert not found["embedding"].any()
    assert not found["norm"].any()
    np.testing.assert_allclose(found["probability"], 0.2, rtol=1e-6)


def test_float16_is_the_rounded_embedding(tmp_path):
    trained = made()
    export(trained, tmp_path / "half.pt2", format="torch", dtype="float16")
    raw = raw_samples(trained, 7)
    found = with_torch(tmp_path / "half.pt2")(raw)
    assert found["norm"].dtype == np.float32
    same({"embedding": found["embedding"].astype(np.float64)}, by_hand(trained, raw), close=2**-11)


class OnlyTwo(nn.Module):
    def forward(self, x):
        return x.reshape(2, -1)[:, :6]


class Deciding(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, :6] * (1 if x.sum() > 0 else 2)


class Pairing(nn.Module):
    """Rows of the batch are mixed in twos, which torch.export notices only at another size."""

    def forward(self, x):
        return x.flatten(1)[:, :6].reshape(-1, 2, 6).flip(1).reshape(-1, 6)


@pytest.mark.parametrize("network", [OnlyTwo(), Deciding(), Pairing()], ids=lambda n: type(n).__name__)
@pytest.mark.parametrize("format", list(READERS))
def test_a_network_for_one_batch_size_is_refused(tmp_path, network, format):
    with pytest.raises(ExportError, match=r"size N of the batch|the exported graph fails at a batch of \d"):
        export(made(network=network), tmp_path / f"x{formats.ENDINGS[format]}", format=format)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", list(READERS))
def test_a_file_that_answers_otherwise_is_not_kept(tmp_path, monkeypatch, format):
    right = graph.Whole.forward

    def wrong(self, samples):
        found = right(self, samples)
        return {**found, "embedding": found["embedding"] + 3e-4}

    monkeypatch.setattr(graph.Whole, "forward", wrong)
    with pytest.raises(ExportError, match=r"another embedding than torch: they differ by 0\.0003, where 1e-05"):
        export(made(), tmp_path / f"x{formats.ENDINGS[format]}", format=format)
    assert not list(tmp_path.iterdir())


class Unknown(nn.Module):
    """An operation that ONNX does not have."""

    def forward(self, x):
        return torch.special.bessel_j0(x.flatten(1)[:, :6])


def test_a_network_that_onnx_cannot_hold_is_refused(tmp_path):
    with pytest.raises(ExportError, match="ONNX cannot hold this network"):
        export(made(network=Unknown()), tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())
    export(made(network=Unknown()), tmp_path / "x.pt2", format="torch")


# What the file says of itself


def test_the_onnx_file_is_modest_and_tells_no_tales(tmp_path, capfd, recwarn):
    trained = made()
    export(trained, tmp_path / "it.onnx", with_head=True)
    export(trained, tmp_path / "it.pt2", format="torch", with_head=True)
    assert capfd.readouterr() == ("", "")
    assert not [w for w in recwarn if "hypermargin" in str(w.filename)]
    model = onnx.load(tmp_path / "it.onnx", load_external_data=False)
    onnx.checker.check_model(model, full_check=True)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 18)]
    assert model.ir_version <= 10
    assert not any(node.metadata_props for node in model.graph.node)
    (samples,) = model.graph.input
    assert (samples.name, samples.type.tensor_type.elem_type) == ("samples", onnx.TensorProto.UINT8)
    shapes = {
        o.name: [d.dim_param or d.dim_value for d in o.type.tensor_type.shape.dim] for o in model.graph.output
    }
    assert shapes == {"embedding": ["N", 6], "norm": ["N"], "probability": ["N", 5]}
    assert not any(t.data_location == onnx.TensorProto.EXTERNAL for t in model.graph.initializer)
    for path in tmp_path.iterdir():
        text = path.read_bytes()
        for secret in (
            b"site-packages",
            b"/somewhere",
            os.fsencode(os.getcwd()),
            os.fsencode(tmp_path),
            b".py",
        ):
            assert secret not in text, (path.name, secret)


def described(path, format):
    if format == "onnx":
        flat = {p.key: p.value for p in onnx.load(path).metadata_props}
    elif format == "torch":
        flat = dict.fromkeys(("hypermargin", "input", "head", "embedding_dim", "threshold_cosine_eer"), "")
        torch.export.load(path, extra_files=flat)
    else:
        with safe_open(path, "pt") as file:
            flat = file.metadata()
    return flat, json.loads(flat["hypermargin"])


LIMITS = Thresholds(0.25, {0.01: 0.5, 0.001: 0.6}, "test", 10, 100, 2000, step=12)


@pytest.mark.parametrize("format", list(formats.ENDINGS))
def test_metadata(tmp_path, format):
    trained = made("mlp", RGB, "softmax")
    path = tmp_path / f"it{formats.ENDINGS[format]}"
    export(trained, path, format=format, with_head=True, thresholds=LIMITS)
    flat, about = described(path, format)
    assert (flat["head"], flat["embedding_dim"], flat["threshold_cosine_eer"]) == ("softmax", "6", "0.25")
    assert flat["input"].startswith("uint8 (N, 16, 16, 3) RGB")
    assert (
        ("scaling is inside" in flat["input"]) == about["input"]["scaling"]["inside"] == (format != "safetensors")
    )
    takes = about["input"]
    assert (takes["shape"], takes["dtype"], takes["layout"]) == (["N", 16, 16, 3], "uint8", "NHWC")
    assert (takes["channels"], takes["range"]) == ("RGB", [0, 255])
    assert (takes["scaling"]["mean"], takes["scaling"]["std"]) == (127.5, 127.5)
    assert about["format"] == 1
    assert (about["dim"], about["step"], about["classes"]) == (6, 12, list(CLASSES))
    assert (about["head"]["bias"], about["head"]["unit_features"], about["head"]["classes"]) == (True, False, 5)
    assert about["data"] == {"name": "faces.npz", "samples": 60, "classes": 5, "fingerprint": "f"}
    assert about["thresholds"]["far"]["0.01"] == pytest.approx(
        {"cosine": 0.5, "angle_degrees": 60, "squared_l2": 1}
    )
    assert metadata.thresholds_in(about) == LIMITS
    assert about["versions"]["torch"] == torch.__version__


@pytest.mark.parametrize("format", list(formats.ENDINGS))
def test_how_images_are_prepared_is_in_the_file(tmp_path, format):
    """By Pillow alone, following the metadata: the same embeddings as from the image files."""
    trained = made(shape=RGB)
    path = tmp_path / f"it{formats.ENDINGS[format]}"
    export(trained, path, format=format)
    flat, about = described(path, format)
    assert flat["resize"].startswith("bilinear, antialiased, as pillow does; stretched")
    takes = about["input"]
    prepared = takes["images"]
    assert (prepared["filter"], prepared["antialias"], prepared["library"]) == ("bilinear", True, "pillow")
    rng = np.random.default_rng(0)
    photo = Image.fromarray(rng.integers(0, 256, (60, 90, 3), dtype=np.uint8))
    photo.save(tmp_path / "a.png")
    _, height, width, _ = takes["shape"]
    raw = {}
    for name in ("bilinear", "nearest"):
        small = photo.resize((width, height), Image.Resampling[name.upper()])
        raw[name] = np.array(small)[None]
    found = embed(open_model(path if format == "onnx" else trained), tmp_path / "a.png").embeddings
    cosines = {name: float(trained.embed(pixels)[0].numpy() @ found[0]) for name, pixels in raw.items()}
    assert cosines["bilinear"] == pytest.approx(1, abs=1e-5)
    assert cosines["nearest"] < 0.9999


def test_a_file_that_wants_other_images_is_refused(tmp_path):
    """And one written before there were words for it is read as it was."""
    export(made(shape=RGB), tmp_path / "it.onnx")
    for side in (20, 30):
        Image.new("RGB", (side, side)).save(tmp_path / f"{side}.png")
    images = [tmp_path / "20.png", tmp_path / "30.png"]
    model = onnx.load(tmp_path / "it.onnx")
    (entry,) = (p for p in model.metadata_props if p.key == "hypermargin")
    about = json.loads(entry.value)
    del about["input"]["images"]
    entry.value = json.dumps(about)
    onnx.save(model, tmp_path / "older.onnx")
    assert len(embed(open_model(tmp_path / "older.onnx"), images[0]).embeddings) == 1
    about["input"]["images"] = {"filter": "lanczos", "antialias": True, "something": "new"}
    entry.value = json.dumps(about)
    onnx.save(model, tmp_path / "other.onnx")
    other = open_model(tmp_path / "other.onnx")
    with pytest.raises(ValueError, match="resized with filter 'lanczos'; this version has 'bilinear' alone"):
        embed(other, images[0])
    with pytest.raises(ValueError, match="resized with filter 'lanczos'"):
        verify(other, images, threshold=0.5)


def test_other_inputs_are_described(tmp_path):
    for shape, scaling, wanted in [
        (GRAY, None, (["N", 8, 8], "uint8", "NHW", "gray")),
        (GRAY, Scaling(0.1, 2.0), (["N", 8, 8], "float32", "NHW", "gray")),
        (RGB, Scaling(0.1, 2.0), (["N", 16, 16, 3], "float32", "NHWC", "RGB")),
        (VECTOR, None, (["N", 6], "float32", "ND", None)),
        ((3,), None, (["N", 3], "float32", "ND", None)),
        ((1,), Scaling(), (["N", 1], "float32", "ND", None)),
    ]:
        takes = metadata.describe(made(shape=shape, scaling=scaling), None)["input"]
        assert (takes["shape"], takes["dtype"], takes["layout"], takes["channels"]) == wanted


def test_what_is_left_out_is_said(monkeypatch):
    monkeypatch.setattr(metadata, "MOST_CLASSES", 4)
    about = metadata.describe(made(), Thresholds(0.25, {}, "test", 10, 100, 2000, step=11))
    assert (about["classes"], about["thresholds"]) == (None, None)
    assert "measured at step 11, these weights are of step 12" in about["notes"][0]
    assert "there are 5, more than 4" in about["notes"][1]


@given(st.integers(2, 6), st.integers(0, 2**20))
def test_units_agree_with_geometry(dim, seed):
    a, b = np.random.default_rng(seed).normal(size=(2, dim))
    a, b = a / np.linalg.norm(a), b / np.linalg.norm(b)
    found = metadata.in_all_units(float(a @ b))
    assert found["squared_l2"] == pytest.approx(((a - b) ** 2).sum(), abs=1e-9)
    angle = 2 * math.atan2(np.linalg.norm(a - b), np.linalg.norm(a + b))
    assert found["angle_degrees"] == pytest.approx(math.degrees(angle), abs=1e-4)


def test_weights_rebuild_the_network(tmp_path):
    trained = made("lenet++", GRAY, "cosface", m=0.2)
    export(trained, tmp_path / "w.safetensors", format="safetensors", with_head=True)
    _, about = described(tmp_path / "w.safetensors", "safetensors")
    weights = load_file(tmp_path / "w.safetensors")

    def part(name):
        return {k.removeprefix(f"{name}."): t for k, t in weights.items() if k.startswith(f"{name}.")}

    built, saved = about["network"], about["head"]
    network = create_model(built["model"], tuple(built["shape"]), about["dim"], **built["set"])
    network.load_state_dict(part("network"))
    head = hm.create_head(saved["name"], about["dim"], saved["classes"], **saved["set"])
    head.load_state_dict(part("head"))
    raw = raw_samples(trained, 3)
    scaling = about["input"]["scaling"]
    x = (torch.from_numpy(raw).float()[:, None] - scaling["mean"]) / scaling["std"]
    found = head.predict_proba(network.eval()(x)).detach().numpy()
    same({"probability": found}, by_hand(trained, raw))
    export(trained, tmp_path / "n.safetensors", format="safetensors")
    assert all(name.startswith("network.") for name in load_file(tmp_path / "n.safetensors"))


def test_export_refuses(tmp_path, monkeypatch):
    trained = made()
    (tmp_path / "there.onnx").write_text("mine")
    (tmp_path / "folder.onnx").mkdir()
    for path, settings, message in [
        (
            "x.onnx",
            {"format": "onxx"},
            "format must be one of 'onnx', 'torch', 'safetensors'; got 'onxx'. Did you mean",
        ),
        ("x.onnx", {"dtype": "int8"}, "dtype must be one of 'float32', 'float16'; got 'int8'"),
        ("x.safetensors", {"format": "safetensors", "dtype": "float16"}, "dtype is that of the embedding"),
        ("x.pt", {"format": "torch"}, "path must end in .pt2"),
        ("there.onnx", {}, "is there already. Choose another name, or replace=True (--force)"),
        ("folder.onnx", {"replace": True}, "is a folder"),
        ("no/x.onnx", {}, "there is no folder"),
    ]:
        with pytest.raises(ValueError) as error:  # noqa: PT011
            export(trained, tmp_path / path, **settings)
        assert message in str(error.value)
    assert (tmp_path / "there.onnx").read_text() == "mine"
    with pytest.raises(RunError, match=r"is not a run: run.json is missing"):
        export(tmp_path, tmp_path / "x.onnx")
    monkeypatch.setattr(formats, "ONNX_LIMIT", 100)
    with pytest.raises(ExportError, match=r"one ONNX file holds 2 GiB. Use format torch or safetensors"):
        export(trained, tmp_path / "x.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ExportError, match=r"ONNX needs onnxruntime, which is not installed. Run: pip install"):
        export(trained, tmp_path / "x.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.onnx", "there.onnx"]


# A run, and images in files


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run with averaged weights and thresholds, its ONNX file, and folders of images."""
    folder = tmp_path_factory.mktemp("deploy")
    small = {"epochs": 2, "dim": 6, "model_set": {"width": 4}, "ema": 0.9}
    quick = {"tensorboard": False, "threads": 1, "workers": 0, "augment": "none"}
    train(Config(data="digits", **small, **quick), folder / "run", quiet=True)
    step = hm.load(folder / "run").step
    Thresholds(0.25, {0.01: 0.5, 0.001: 0.6}, "test", 10, 100, 2000, step=step).save(folder / "run")
    export(folder / "run", folder / "run.onnx")
    digits = open_data("digits")
    for row in range(12):
        image = Image.fromarray(digits.samples[row]).resize((11, 9))  # not the network's size
        image = image.convert("RGB") if row % 2 else image
        for name in (
            f"named/{row % 3}/{row:02d}.png",
            f"flat/{row:02d}.png",
            f"deep/{row % 2}/{row % 3}/{row:02d}.png",
        ):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path)
    Image.fromarray(digits.samples[0]).save(folder / "deep" / "loose.png")
    (folder / "flat" / "readme.txt").write_text("no image")
    (folder / "flat" / ".hidden.png").write_text("no image")
    return folder


def decoded(path):
    """As training reads an image file, with PIL alone."""
    return np.asarray(Image.open(path).convert("L").resize((8, 8), resample=Image.Resampling.BILINEAR))


def test_the_averaged_weights_are_exported(place):
    trained = hm.load(place / "run")
    raw = raw_samples(trained, 7)
    same(with_onnx(place / "run.onnx")(raw), by_hand(trained, raw))


ALONE = """
import sys, json
sys.modules["hypermargin"] = None  # importing it raises
import numpy as np, onnxruntime, torch
from safetensors import safe_open
folder = sys.argv[1]
raw = np.load(folder + "/raw.npy")
session = onnxruntime.InferenceSession(folder + "/it.onnx", providers=["CPUExecutionProvider"])
a = session.run(["embedding"], {"samples": raw})[0]
b = torch.export.load(folder + "/it.pt2").module()(torch.from_numpy(raw))["embedding"].detach().numpy()
with safe_open(folder + "/it.safetensors", "np") as file:
    count = len(list(file.keys()))
about = json.loads(session.get_modelmeta().custom_metadata_map["hypermargin"])
try:
    import hypermargin
except ImportError:
    print(json.dumps([a.tolist(), b.tolist(), count, about["classes"]]))
"""


def test_files_load_without_hypermargin(place, tmp_path):
    trained = hm.load(place / "run")
    (tmp_path / "it.onnx").write_bytes((place / "run.onnx").read_bytes())
    for format in ("torch", "safetensors"):
        export(trained, tmp_path / f"it{formats.ENDINGS[format]}", format=format)
    raw = raw_samples(trained, 3)
    np.save(tmp_path / "raw.npy", raw)
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second, count, classes = json.loads(done.stdout)
    wanted = by_hand(trained, raw)
    same({"embedding": np.array(first)}, wanted)
    same({"embedding": np.array(second)}, wanted)
    assert (count, classes) == (len(trained.network.state_dict()), [str(k) for k in range(10)])


def expected(place, paths):
    return by_hand(hm.load(place / "run"), np.stack([decoded(path) for path in paths]))


@pytest.mark.parametrize("run", ["run", "run.onnx"])
def test_embed_reads_every_layout(place, run):
    model = open_model(place / run)
    for source, labelled in [("named", True), ("flat", False), ("deep", False), ("flat/03.png", False)]:
        for batch in (1, 5, 256):
            found = embed(model, place / source, batch=batch)
            paths = sorted((place / source).rglob("[!.]*.png")) or [place / source]
            assert sorted(found.names) == sorted(map(str, paths))
            wanted = expected(place, found.names)
            same({"embedding": found.embeddings, "norm": found.norms}, wanted)
            assert (found.labels is not None) == labelled
            if labelled:
                names = [found.classes[k] for k in found.labels]
                assert names == [name.split(os.sep)[-2] for name in found.names]
    features = embed(model, place / "flat", raw=True)
    wanted = expected(place, features.names)
    np.testing.assert_allclose(features.embeddings, wanted["embedding"] * wanted["norm"][:, None], atol=1e-4)
    assert features.about["raw"]


def test_embed_by_worker_processes_skips_and_lists(place, tmp_path):
    model = open_model(place / "run")
    for name in ("00.png", "01.png", "02.png", "03.png"):
        (tmp_path / name).write_bytes((place / "flat" / name).read_bytes())
    (tmp_path / "00b.jpg").write_text("a text")
    (tmp_path / "02b.jpg").write_bytes((place / "flat" / "02.png").read_bytes()[:60])
    with pytest.raises(DataError, match=r"00b\.jpg: not an image"):
        embed(model, tmp_path)
    found = embed(model, tmp_path, on_bad="skip", batch=2, workers=1)
    assert [os.path.basename(bad.where) for bad in found.bad] == ["00b.jpg", "02b.jpg"]
    same({"embedding": found.embeddings}, expected(place, found.names))
    assert len(found.names) == 4
    with pytest.raises(DataError, match="none of its 1 samples can be read"):
        embed(model, tmp_path / "00b.jpg", on_bad="skip")


def test_saved_embeddings_are_plain_and_train_again(place, tmp_path):
    found = embed(open_model(place / "run"), "digits", batch=500)
    found.save(tmp_path / "d.npz")
    with np.load(tmp_path / "d.npz", allow_pickle=False) as saved:
        assert set(saved) == {"embeddings", "norms", "names", "labels", "classes", "about"}
        assert saved["embeddings"].dtype == np.float32
        about = json.loads(str(saved["about"]))
    assert (about["source"], about["samples"], about["left_out"]) == ("digits", 1797, [])
    again, digits = open_data(tmp_path / "d.npz"), open_data("digits")
    np.testing.assert_array_equal(again.labels, digits.labels)
    assert again.classes == digits.classes
    same({"embedding": again.samples}, by_hand(hm.load(place / "run"), digits.samples))
    found.save(tmp_path / "d.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "d.npy", allow_pickle=False), found.embeddings)
    with pytest.raises(ValueError, match="is there already"):
        found.save(tmp_path / "d.npy")
    with pytest.raises(ValueError, match=r"must end in .npz or .npy"):
        found.save(tmp_path / "d.csv")


def test_samples_unlike_the_training_data_are_refused(place, tmp_path):
    images, vectors, floats = (
        open_model(place / "run"),
        open_model(made(shape=VECTOR)),
        made(scaling=Scaling(0.1, 2.0)),
    )
    rng = np.random.default_rng(0)
    for name, array in [("float", rng.random((4, 8, 8))), ("large", np.zeros((4, 9, 8), np.uint8))]:
        np.savez(tmp_path / f"{name}.npz", images=array, labels=[0, 0, 1, 1])
    for model, source, message in [
        (images, tmp_path / "float.npz", "takes uint8 samples of shape (8, 8); these are float32 of shape (8, 8)"),
        (images, tmp_path / "large.npz", "these are uint8 of shape (9, 8)"),
        (vectors, place / "flat", "vectors; these are image files"),
        (vectors, place / "named", "vectors; these are image files"),
        (open_model(floats), place / "flat", "images of floating-point numbers; these are image files"),
    ]:
        with pytest.raises(ValueError) as error:  # noqa: PT011
            embed(model, source)
        assert message in str(error.value)
    np.savez(tmp_path / "fits.npz", images=rng.random((4, 8, 8)), labels=[0, 0, 1, 1])
    found = embed(open_model(floats), tmp_path / "fits.npz")
    same(
        {"embedding": found.embeddings},
        by_hand(floats, np.load(tmp_path / "fits.npz")["images"].astype(np.float32)),
    )


def test_color_and_oblong_images_are_read_as_in_training(tmp_path):
    trained = made("mlp", (3, 10, 6))
    rng = np.random.default_rng(0)
    (tmp_path / "who").mkdir()
    Image.fromarray(rng.integers(0, 256, (30, 20, 3), dtype=np.uint8)).save(tmp_path / "who" / "a.png")
    Image.fromarray(rng.integers(0, 256, (30, 20), dtype=np.uint8)).save(tmp_path / "who" / "b.png")
    found = embed(open_model(trained), tmp_path)
    raw = [Image.open(n).convert("RGB").resize((6, 10), resample=Image.Resampling.BILINEAR) for n in found.names]
    same({"embedding": found.embeddings}, by_hand(trained, np.stack([np.asarray(image) for image in raw])))
    assert found.classes == ("who",)


def test_open_model_refuses(place, tmp_path):
    (tmp_path / "text.onnx").write_text("a text")
    graph_of_another = onnx.load(place / "run.onnx")
    del graph_of_another.metadata_props[:]
    onnx.save(graph_of_another, tmp_path / "other.onnx")
    lying = onnx.load(place / "run.onnx")
    (entry,) = (p for p in lying.metadata_props if p.key == "hypermargin")
    entry.value = entry.value.replace('"uint8"', '"float32"')
    onnx.save(lying, tmp_path / "lying.onnx")
    for run, settings, error, message in [
        (tmp_path, {}, RunError, "is not a run"),
        (tmp_path / "no.onnx", {}, ValueError, "there is no file"),
        (tmp_path / "text.onnx", {}, ValueError, "is not a readable ONNX file"),
        (tmp_path / "other.onnx", {}, ValueError, "was not written by hypermargin export"),
        (tmp_path / "lying.onnx", {}, ValueError, "is not what its metadata say"),
        (place / "run", {"device": "cudda"}, ValueError, "device must be one of 'auto', 'cpu', 'cuda'"),
    ]:
        with pytest.raises(error) as raised:
            open_model(run, **settings)
        assert message in str(raised.value), run


# Same or different


@pytest.mark.parametrize("run", ["run", "run.onnx"])
def test_verify_scores_by_the_cosine(place, run):
    model = open_model(place / run)
    paths = sorted((place / "flat").glob("[!.]*.png"))
    unit = expected(place, paths)["embedding"]
    for settings, limit, origin in [
        ({}, 0.25, "equal errors on 100 genuine and 2,000 impostor pairs of the test part"),
        ({"far": 1e-3}, 0.6, "FAR = 0.001 on"),
        ({"threshold": -0.5}, -0.5, "given"),
    ]:
        verdict = verify(model, paths, **settings)
        assert (verdict.first, verdict.threshold) == (str(paths[0]), limit)
        assert verdict.origin.startswith(origin)
        for match, other in zip(verdict.matches, unit[1:], strict=True):
            cosine = float(unit[0] @ other)
            assert match.cosine == pytest.approx(cosine, abs=1e-5)
            assert match.angle_degrees == pytest.approx(math.degrees(math.acos(cosine)), abs=0.05)
            assert match.same == (cosine >= limit)
    (itself,) = verify(model, [paths[0], paths[0]], threshold=0.999).matches
    assert itself.same


def test_verify_refuses(place, tmp_path):
    model = open_model(place / "run")
    a = place / "flat" / "00.png"
    (tmp_path / "text.jpg").write_text("a text")
    for images, settings, message in [
        ([a], {}, "images must be at least two; got 1"),
        ([a, tmp_path / "no.png"], {}, "no.png: the file cannot be read"),
        ([a, tmp_path / "text.jpg"], {}, "text.jpg: not an image"),
        ([a, a], {"threshold": 1.5}, "threshold must lie in [−1, 1]; got 1.5"),
        ([a, a], {"threshold": math.nan}, "threshold must lie in [−1, 1]"),
        ([a, a], {"threshold": 0.5, "far": 0.01}, "threshold and far both decide"),
        ([a, a], {"far": 1e-6}, "far must be one that was measured (0.01, 0.001); got 1e-06"),
    ]:
        with pytest.raises(ValueError) as error:  # noqa: PT011
            verify(model, images, **settings)
        assert message in str(error.value)
    with pytest.raises(ValueError, match=r"has no thresholds, so nothing .* `hypermargin evaluate RUN`"):
        verify(open_model(made()), [a, a])
    old = Thresholds(0.25, {}, "test", 10, 100, 2000, step=11)
    with pytest.raises(ValueError, match="measured at step 11, these weights are of step 12"):
        verify(open_model(made(), thresholds=old), [a, a])
    with pytest.raises(ValueError, match="verify compares image files"):
        verify(open_model(made(shape=VECTOR)), [a, a])


# The commands


def test_verify_as_json(place, run):
    images = [place / "flat" / name for name in ("00.png", "00.png", "01.png")]
    code, out, err = run("verify", place / "run", *images, "--json", "--threshold=0.9999")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert [match["same"] for match in found["matches"]] == [True, False]
    assert (found["threshold"], found["origin"], found["support"]) == (0.9999, "given", None)
    code, out, err = run("verify", place / "run.onnx", *images, "--json", "--far=0.001")
    assert code == 0
    assert err.startswith(
        "the threshold for FAR 0.001 rests on 2 of 2,000 impostor pairs of 10 identities: the true"
    )
    assert err.count("\n") == 1
    support = json.loads(out)["support"]
    assert (support["accepted"], support["enough"]) == (2, False)
    assert support["low"] < 0.001 < support["high"] < support["at_most"]


def test_commands(place, tmp_path, run):
    a, b = place / "flat" / "00.png", place / "flat" / "01.png"
    code, out, err = run("verify", place / "run", a, b, "--far", "0.01")
    assert (code, err) == (0, "")
    assert "threshold    cosine 0.5000, angle 60.0°: FAR = 0.01 on 100 genuine" in out
    code, out, err = run("export", place / "run", "--format", "torch", "--with-head", "-o", tmp_path / "it.pt2")
    assert (code, err) == (0, "")
    assert "samples: uint8 (N, 8, 8) gray" in out
    assert "probability: float32 (N, 10)" in out
    code, out, err = run("embed", place / "run.onnx", place / "named", "-o", tmp_path / "e.npz")
    assert (code, err) == (0, "")
    assert "12 samples of 3 identities, 0 left out" in out
    code, _, err = run("embed", place / "run", "digits", "-o", tmp_path / "e.npz", "--force", "--device", "cpu")
    assert code == 0
    assert err.startswith("embedded 256 of 1,797\n")
    code, out, _ = run("export", place / "run", "--format", "safetensors", "-o", tmp_path / "it.safetensors")
    assert code == 0
    assert "the weights alone" in out


def test_commands_refuse_in_one_line(place, tmp_path, run):
    a = place / "flat" / "00.png"
    (tmp_path / "text.jpg").write_text("a text")
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("run.json", "config.toml"):
        (broken / name).write_bytes((place / "run" / name).read_bytes())
    (broken / "checkpoints").symlink_to(place / "run" / "checkpoints")
    (broken / "thresholds.json").write_text('{"eer": 0.3')
    for arguments, message in [
        (["export", tmp_path], "is not a run: run.json is missing"),
        (["export", place / "run", "--format", "tflite"], "format must be one of"),
        (["export", place / "run", "-o", tmp_path / "no" / "x.onnx"], "there is no folder"),
        (["export", place / "run", "-o", place / "run.onnx"], "is there already"),
        (["export", place / "run", "--which", "first", "-o", tmp_path / "x.onnx"], "which must be one of"),
        (["export", broken, "-o", tmp_path / "x.onnx"], "thresholds.json is damaged"),
        (["embed", place / "run", tmp_path / "no.png", "-o", tmp_path / "x.npz"], "no.png' is neither"),
        (["embed", place / "run", tmp_path / "text.jpg", "-o", tmp_path / "x.npz"], "text.jpg: not an image"),
        (["embed", place / "run", a, "-o", tmp_path / "x.csv"], "--out must end in .npz or .npy"),
        (["embed", place / "run", a, "-o", tmp_path / "no" / "x.npz"], "there is no folder"),
        (["embed", tmp_path, a, "-o", tmp_path / "x.npz"], "is not a run"),
        (["embed", place / "run", a, "-o", tmp_path / "x.npz", "--on-bad", "ignore"], "--on-bad must be one of"),
        (["verify", tmp_path, a, a], "is not a run"),
        (["verify", broken, a, a], "thresholds.json is damaged"),
        (["verify", place / "run", a], "images must be at least two"),
        (["verify", place / "run", a, tmp_path / "text.jpg"], "text.jpg: not an image"),
    ]:
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), arguments
        assert message in err, (arguments, err)
        assert err.count("\n") == 1, err
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(("x", ".x"))]


def test_help_has_examples(run):
    for name in ("export", "embed", "verify"):
        code, out, _ = run(name, "--help")
        assert code == 0
        assert f"Examples:\n  hypermargin {name} runs/first" in out


def test_runs_of_own_data_are_exported_with_their_class_names(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.array(["ünal", "bo"] * 20)
    data = from_arrays(rng.normal(size=(40, 6)).astype(np.float32), labels, open_set=False)
    config = Config(model="none", head="cosface", epochs=1, batch=20, tensorboard=False, threads=1, workers=0)
    train(config, tmp_path / "run", data=data, quiet=True)
    export(tmp_path / "run", tmp_path / "v.pt2", format="torch", with_head=True)
    flat, about = described(tmp_path / "v.pt2", "torch")
    assert about["classes"] == ["bo", "ünal"]
    assert flat["input"].startswith("float32 (N, 6)")
    trained = hm.load(tmp_path / "run")
    same(with_torch(tmp_path / "v.pt2")(data.samples[:5]), by_hand(trained, data.samples[:5]))


@pytest.mark.parametrize("settings",
    [
        {"centers": 2}, {"centers": 3, "bias": True}, {"bias": "shared"}, {"centers": 2, "pool": "max"},
        {"centers": 3, "pool": "soft", "gamma": 0.3, "bias": True},
    ],
    ids=str,
)  # fmt: skip
def test_a_class_with_several_rows_has_one_probability(tmp_path, settings):
    trained = made("none", VECTOR, "arcface", **settings)
    if trained.head.bias is not None:
        nn.init.normal_(trained.head.bias)
    whole, raw = graph.Whole(trained, with_head=True), raw_samples(trained, 3)
    wanted = trained.predict_proba(raw)
    torch.testing.assert_close(whole(torch.from_numpy(raw))["probability"], wanted)
    export(trained, tmp_path / "it.pt2", format="torch", with_head=True)
