import sys
import types

import pytest
import torch
from torch import nn

from hypermargin.training.models import create_model, list_models

PUBLISHED = {"iresnet18": 24_025_600, "iresnet34": 34_139_328, "iresnet50": 43_590_848, "iresnet100": 65_156_160}
BLOCKS = {
    "iresnet18": (2, 2, 2, 2),
    "iresnet34": (3, 4, 6, 3),
    "iresnet50": (3, 4, 14, 3),
    "iresnet100": (3, 13, 30, 3),
}
BN = "weight", "bias", "running_mean", "running_var", "num_batches_tracked"
CASES = [
    ("lenet++", (1, 28, 28), 2, {}),
    ("lenet++", (3, 8, 8), 3, {"width": 3}),
    ("lenet++", (2, 9, 37), 5, {"width": 1}),
    ("lenet++", (1, 31, 15), 1, {}),
    ("iresnet18", (3, 32, 32), 512, {}),
    ("iresnet18", (1, 16, 48), 2, {"dropout": 0.4}),
    ("mlp", (7,), 3, {}),
    ("mlp", (1, 5, 3), 2, {"widths": [4]}),
    ("mlp", (5,), 2, {"widths": ()}),
]


@pytest.mark.parametrize(("name", "shape", "dim", "options"), CASES)
def test_embeds_and_learns_with_every_parameter(name, shape, dim, options):
    torch.manual_seed(0)
    model = create_model(name, shape, dim, **options)
    x = torch.randn(6, *shape)
    y = model(x)
    assert y.shape == (6, dim)
    (y * torch.randn_like(y)).sum().backward()
    learned = {key: p.grad for key, p in model.named_parameters() if p.requires_grad}
    assert all(grad is not None for grad in learned.values())
    # Batch normalisation takes the mean away again: the gradient of a bias before it is rounding, or nothing.
    idle = [key for key, grad in learned.items() if not grad.abs().sum() > 0 and key != "fc.bias"]
    assert not idle
    assert [key for key, p in model.named_parameters() if not p.requires_grad] == (
        ["features.weight"] if name.startswith("iresnet") else []
    )
    model.eval()
    together, alone = model(x)[2:3], model(x[2:3])
    assert (together - alone).abs().max() < 1e-3 * alone.abs().max()


@pytest.mark.parametrize("name", ["lenet++", "iresnet18", "mlp"])
def test_separates_two_classes_in_a_few_steps(name):
    torch.manual_seed(1)
    shape = (1, 16, 16)
    model = create_model(name, shape, 2)
    centers = torch.randn(2, *shape)
    labels = torch.arange(16) % 2
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        loss = nn.functional.cross_entropy(model(centers[labels] + 0.5 * torch.randn(16, *shape)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_iresnet_has_insightface_names_and_parameter_count(name):
    with torch.device("meta"):
        model = create_model(name, (3, 112, 112), 512)
    assert sum(p.numel() for p in model.parameters()) == PUBLISHED[name]
    keys = ["conv1.weight", "prelu.weight", "fc.weight", "fc.bias"]
    keys += [f"{bn}.{k}" for bn in ("bn1", "bn2", "features") for k in BN]
    for stage, count in enumerate(BLOCKS[name], 1):
        for b in range(count):
            keys += [f"layer{stage}.{b}.{k}" for k in ("conv1.weight", "conv2.weight", "prelu.weight")]
            keys += [f"layer{stage}.{b}.{bn}.{k}" for bn in ("bn1", "bn2", "bn3") for k in BN]
        keys += [f"layer{stage}.0.downsample.0.weight", *(f"layer{stage}.0.downsample.1.{k}" for k in BN)]
    state = model.state_dict()
    assert sorted(state) == sorted(keys)
    assert state["fc.weight"].shape == (512, 512 * 7 * 7)
    assert state["layer3.0.downsample.0.weight"].shape == (256, 128, 1, 1)
    assert model.get_submodule("layer2.0.conv1").stride == (1, 1)
    assert model.get_submodule("layer2.0.conv2").stride == (2, 2)


def test_none_is_the_identity():
    x = torch.randn(3, 5)
    assert create_model("none", (5,), 5)(x) is x


@pytest.mark.parametrize(
    ("name", "shape", "dim", "options", "words"),
    [
        ("lenet+", (1, 28, 28), 2, {}, r"one of lenet\+\+, iresnet18, .*got 'lenet\+'\. Did you mean 'lenet\+\+'"),
        ("lenet++", (1, 7, 28), 2, {}, "at least 8×8; got 7×28"),
        ("lenet++", (5,), 2, {}, r"needs images \(channels, height, width\); got \(5,\). Take 'mlp'"),
        ("lenet++", (1, 28, 28), 0, {}, "dim must be at least 1; got 0"),
        ("lenet++", (1, 28, 28), 2, {"width": 0}, "width must be at least 1"),
        ("lenet++", (1, 28, 28), 2, {"widht": 8}, "has the option width; got 'widht'. Did you mean 'width'?"),
        ("none", (5,), 5, {"width": 8}, "'none' has no options; got 'width'"),
        ("iresnet50", (3, 112, 100), 2, {}, "multiples of 16, like 112×112; got 112×100"),
        ("iresnet50", (3, 112, 112), 2, {"dropout": 1.0}, r"dropout must lie in \[0, 1\)"),
        ("none", (5,), 4, {}, "dim must be their length; got dim=4 .*Set dim=5, or take 'mlp'"),
        ("none", (1, 8, 8), 4, {}, r"shape \(1, 8, 8\). Take 'mlp'"),
        ("mlp", (5,), 2, {"widths": (3, 0)}, r"widths\[1\] must be at least 1"),
        ("mlp", (5, 5), 2, {}, r"shape must be \(channels, height, width\) or \(d,\).*got \(5, 5\)"),
        ("mlp", (0,), 2, {}, r"shape\[0\] must be at least 1"),
        ("no_such_module_here:build", (5,), 2, {}, "cannot import 'no_such_module_here' .*current directory"),
        (":build", (5,), 2, {}, "cannot import ''"),
        ("torch.nn:Liner", (5,), 2, {}, "module torch.nn has no function 'Liner'. Did you mean 'Linear'?"),
    ],
)
def test_value_errors_say_what_to_do(name, shape, dim, options, words):
    with pytest.raises(ValueError, match=words):
        create_model(name, shape, dim, **options)


@pytest.mark.parametrize(
    ("name", "dim", "options", "words"),
    [
        ("mlp", 2.0, {}, "dim must be a whole number; got 2.0"),
        ("mlp", 2, {"widths": 64}, r"widths must be a list of whole numbers such as \(512, 256\); got 64"),
        ("mlp", 2, {"widths": "64"}, "widths must be a list"),
        (nn.Linear(5, 2), 2, {}, "model must be a name; got Linear"),
    ],
)
def test_type_errors(name, dim, options, words):
    with pytest.raises(TypeError, match=words):
        create_model(name, (5,), dim, **options)


OWN = """
from torch import nn
def build(shape, dim, bias=True): return nn.Linear(shape[0], dim, bias)
def wrong(shape, dim): return nn.Linear(shape[0], dim + 1)
def breaks(shape, dim): return nn.Linear(shape[0] + 1, dim)
def nothing(shape, dim): return None
def pair(shape, dim): return nn.LSTM(shape[0], dim)
number = 3
"""


def test_a_network_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "my_own_net.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    model = create_model("my_own_net:build", (5,), 2, bias=False)
    assert model.bias is None
    assert model.training
    for function, words in {
        "wrong": r"must give embeddings of shape \(2, 2\) for two samples; got \(2, 3\)",
        "breaks": r"fails at a batch of shape \(2, 5\): .*shapes cannot be multiplied",
        "pair": "got tuple",
        "number": "no function 'number'",
        "bild": "no function 'bild'. Did you mean 'build'?",
    }.items():
        with pytest.raises(ValueError, match=words):
            create_model(f"my_own_net:{function}", (5,), 2)
    with pytest.raises(TypeError, match=r"'my_own_net:nothing' must return an nn.Module; got NoneType"):
        create_model("my_own_net:nothing", (5,), 2)


def test_timm_by_a_stand_in(monkeypatch):
    asked = []

    def create(name, *, pretrained, num_classes, in_chans, **rest):
        asked.append((name, pretrained, rest))
        if name == "convnet" and "img_size" in rest:
            raise TypeError("unexpected keyword argument 'img_size'")
        height, width = rest.get("img_size", (8, 12))
        return nn.Sequential(nn.Flatten(), nn.Linear(in_chans * height * width, num_classes))

    stand_in = types.SimpleNamespace(create_model=create, list_models=lambda: ["convnet", "vit"], __version__="1.0")
    monkeypatch.setitem(sys.modules, "timm", stand_in)
    assert create_model("timm:vit", (3, 8, 12), 7, drop_rate=0.1)(torch.zeros(4, 3, 8, 12)).shape == (4, 7)
    assert create_model("timm:convnet", (3, 8, 12), 7)(torch.zeros(4, 3, 8, 12)).shape == (4, 7)
    assert asked == [
        ("vit", False, {"img_size": (8, 12), "drop_rate": 0.1}),
        ("convnet", False, {"img_size": (8, 12)}),
        ("convnet", False, {}),
    ]
    with pytest.raises(ValueError, match=r"timm 1.0 has no model 'convnt'. Did you mean 'convnet'?"):
        create_model("timm:convnt", (3, 8, 12), 7)
    with pytest.raises(ValueError, match="needs images"):
        create_model("timm:vit", (8,), 7)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match=r"needs timm, which is not installed\. Run: pip install timm"):
        create_model("timm:vit", (3, 8, 12), 7)


def test_list_of_models():
    assert list_models() == ["lenet++", *PUBLISHED, "mlp", "none"]
