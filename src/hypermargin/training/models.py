"""Networks by name: images (N, C, H, W) or vectors (N, d) in, embeddings (N, dim) out."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hypermargin import checks
from hypermargin.common.environment import enough_memory
from hypermargin.common.needs import ON_PATH, not_imported, not_installed
from hypermargin.common.text import first_line
from hypermargin.training.iresnet import BLOCKS, REDUCTION, IResNet

Shape = tuple[int, ...]
LEAST_SIDE, MOST_WIDTH, MOST_LAYERS = 8, 10_000, 100


def create_model(name: str, shape: Shape, dim: int, **options: Any) -> nn.Module:
    """Make a network from (N, *shape), values about [−1, 1], to (N, dim), initialised for training from scratch.

    lenet++                       three stages of two 3×3 convolutions, for images from 8×8; option width
    iresnet18, 34, 50, 100        insightface's networks, for images whose sides are multiples of 16; option dropout
    mlp                           layers with ReLU; option widths
    none                          nothing: the samples are embeddings already
    timm:NAME                     any network of timm (pip install timm), with its options
    MODULE:FUNCTION               your own: MODULE.FUNCTION(shape=shape, dim=dim, **options) returns an nn.Module
    """
    if not isinstance(name, str):
        raise TypeError(f"model must be a name; got {type(name).__name__}.")
    shape = _checked_shape(shape)
    checks.count("dim", dim, 1, checks.MOST_DIM)
    if ":" in name:
        first, rest = name.split(":", 1)
        model = _timm(rest, shape, dim, options) if first == "timm" else _own(name, shape, dim, options)
        return _tried(model, name, shape, dim)
    if name not in MODELS:
        raise ValueError(
            f"model must be one of {', '.join(MODELS)}, timm:NAME or MODULE:FUNCTION; got {name!r}."
            f"{checks.near(name, MODELS)}"
        )
    known = list(inspect.signature(MODELS[name]).parameters)[2:]
    for option in options.keys() - known:
        has = f"the option {', '.join(known)}" if known else "no options"
        raise ValueError(
            f"model_set: model {name!r} has {has}; got {checks.shown(option)}.{checks.near(option, known)}"
        )
    with enough_memory(f"model {name!r} with {checks.shown(options)} for samples of shape {shape}"):
        return MODELS[name](shape, dim, **options)


def list_models() -> list[str]:
    """List the names that `create_model` knows; timm:NAME and MODULE:FUNCTION come on top."""
    return list(MODELS)


def _lenet(shape: Shape, dim: int, width: int = 16) -> nn.Module:
    channels, *sides = _images("lenet++", shape)
    checks.count("width", width, 1, MOST_WIDTH)
    if min(sides) < LEAST_SIDE:
        raise ValueError(
            f"model 'lenet++' needs images of at least {LEAST_SIDE}×{LEAST_SIDE}; got {sides[0]}×{sides[1]}."
        )
    layers: list[nn.Module] = []
    for after in (width, 2 * width, 4 * width):
        layers += [_convolution(channels, after), nn.BatchNorm2d(after), nn.PReLU(after)]
        # Pooled at once: the rest then has a quarter of the work, and does the same while PReLU is increasing.
        layers += [_convolution(after, after), nn.MaxPool2d(2), nn.BatchNorm2d(after), nn.PReLU(after)]
        channels = after
    height, across = (side // 8 for side in sides)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * across, dim))


def _convolution(before: int, after: int) -> nn.Module:
    layer = nn.Conv2d(before, after, 3, padding=1, bias=False)
    layer.weight.data = layer.weight.data.contiguous(
        memory_format=torch.channels_last
    )  # half again as fast on CPUs
    return layer


def _iresnet(blocks: tuple[int, ...], name: str) -> Callable[..., nn.Module]:
    def build(shape: Shape, dim: int, dropout: float = 0.0) -> nn.Module:
        _, height, width = _images(name, shape)
        checks.in_range("dropout", dropout, 0.0, 1.0)
        if height % REDUCTION or width % REDUCTION:
            raise ValueError(
                f"model {name!r} needs images whose sides are multiples of {REDUCTION}, like 112×112; got "
                f"{height}×{width}. Resize them with size, or take 'lenet++'."
            )
        return IResNet(blocks, shape, dim, dropout)

    return build


def _mlp(shape: Shape, dim: int, widths: Sequence[int] = (512, 256, 128)) -> nn.Module:
    if isinstance(widths, str) or not isinstance(widths, Sequence):
        raise TypeError(f"widths must be a list of whole numbers such as (512, 256); got {checks.shown(widths)}.")
    checks.count("the number of widths", len(widths), 0, MOST_LAYERS)
    layers: list[nn.Module] = [nn.Flatten()]
    before = torch.Size(shape).numel()
    for k, width in enumerate(widths):
        checks.count(f"widths[{k}]", width, 1, checks.MOST_DIM)
        layers += [nn.Linear(before, width), nn.ReLU()]
        before = width
    return nn.Sequential(*layers, nn.Linear(before, dim))


def _none(shape: Shape, dim: int) -> nn.Module:
    if shape != (dim,):
        raise ValueError(
            f"model 'none' takes samples as embeddings, so dim must be their length; got dim={dim} and samples "
            f"of shape {shape}. {f'Set dim={shape[0]}, or take' if len(shape) == 1 else 'Take'} 'mlp'."
        )
    return nn.Identity()


MODELS: dict[str, Callable[..., nn.Module]] = {
    "lenet++": _lenet,
    **{name: _iresnet(blocks, name) for name, blocks in BLOCKS.items()},
    "mlp": _mlp,
    "none": _none,
}


def _checked_shape(shape: Sequence[int]) -> Shape:
    if not isinstance(shape, tuple | list) or len(shape) not in (1, 3):
        raise ValueError(f"shape must be (channels, height, width) or (d,), that of one sample; got {shape!r}.")
    for k, side in enumerate(shape):
        checks.count(f"shape[{k}]", side)
    return tuple(shape)


def _images(name: str, shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ValueError(
            f"model {name!r} needs images (channels, height, width); got {shape}. Take 'mlp' or 'none'."
        )
    return shape[0], shape[1], shape[2]


def _timm(name: str, shape: Shape, dim: int, options: dict[str, Any]) -> nn.Module:
    channels, height, width = _images(f"timm:{name}", shape)
    try:
        timm = importlib.import_module("timm")
    except ModuleNotFoundError as error:
        raise ValueError(not_installed(f"model 'timm:{name}' needs", error.name or "timm")) from None
    if name not in (known := timm.list_models()):
        raise ValueError(f"timm {timm.__version__} has no model {name!r}.{checks.near(name, known)}")
    arguments = {"pretrained": False, "num_classes": dim, "in_chans": channels, **options}
    try:
        return timm.create_model(name, img_size=(height, width), **arguments)  # type: ignore[no-any-return]
    except TypeError:  # most convolutional networks take any size, and no img_size
        pass
    except Exception as error:
        raise _unbuilt(name, arguments, error) from error
    try:
        return timm.create_model(name, **arguments)  # type: ignore[no-any-return]
    except Exception as error:
        raise _unbuilt(name, arguments, error) from error


def _unbuilt(name: str, arguments: dict[str, Any], error: Exception) -> ValueError:
    told = f"{type(error).__name__}: {first_line(error)}".rstrip(".")
    return ValueError(f"model 'timm:{name}' cannot be built with {checks.shown(arguments)} ({told}).")


def _own(name: str, shape: Shape, dim: int, options: dict[str, Any]) -> nn.Module:
    module_name, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a console script does not look into the current directory
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"model {name!r}: {not_imported(module_name, error, ON_PATH)}") from error
    except (ValueError, TypeError) as error:  # import_module's own for a name like ".nets", or the module's
        raise ValueError(f"model {name!r}: cannot import {module_name!r} ({error}). {ON_PATH}.") from error
    build = getattr(module, attribute, None)
    if not callable(build):
        there = [key for key, value in vars(module).items() if callable(value)]
        raise ValueError(
            f"model {name!r}: module {module_name} has no function {attribute!r}.{checks.near(attribute, there)}"
        )
    model = build(shape=shape, dim=dim, **options)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model {name!r} must return an nn.Module; got {type(model).__name__}.")
    return model


def _tried(model: nn.Module, name: str, shape: Shape, dim: int) -> nn.Module:
    """Return the model after trying a batch of two zero samples in evaluation mode."""
    training = model.training
    try:
        with torch.no_grad():
            result = model.eval()(torch.zeros(2, *shape))
    except Exception as error:
        raise ValueError(f"model {name!r} fails at a batch of shape {(2, *shape)}: {error}") from error
    finally:
        model.train(training)
    if not isinstance(result, Tensor) or tuple(result.shape) != (2, dim):
        got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise ValueError(f"model {name!r} must give embeddings of shape (2, {dim}) for two samples; got {got}.")
    return model
