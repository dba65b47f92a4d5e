"""A trained network as one file: an ONNX graph, a torch program, or the weights alone."""

from __future__ import annotations

import copy
import dataclasses
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from hypermargin import checks
from hypermargin.common.needs import absent, not_installed
from hypermargin.common.tensor_files import has_safetensors, read_safetensors, write_safetensors
from hypermargin.common.text import first_line
from hypermargin.deploy import metadata
from hypermargin.deploy.agreement import Answers, differences, examples
from hypermargin.deploy.graph import ExportError, Whole, quiet, trace
from hypermargin.evaluate.thresholds import Thresholds
from hypermargin.files import free_path, replacing
from hypermargin.training.run import Trained, load

Format = Literal["onnx", "torch", "safetensors"]
ENDINGS = {"onnx": ".onnx", "torch": ".pt2", "safetensors": ".safetensors"}
DTYPES = {"float32": torch.float32, "float16": torch.float16}
OPSET = 18  # the oldest that torch's exporter writes without a converter
ONNX_LIMIT = 2**31 - 2**20  # protobuf's, less some room for the graph


@dataclass(frozen=True)
class Exported:
    """A written file, what it says of itself, and by how much its answers differed from torch's."""

    path: Path
    about: dict[str, Any]
    differences: dict[str, float]


def export(
    run: str | os.PathLike[str] | Trained,
    path: str | os.PathLike[str],
    *,
    format: Format = "onnx",
    with_head: bool = False,
    dtype: Literal["float32", "float16"] = "float32",
    which: Literal["best", "last"] = "best",
    trust: bool = False,
    allow_older: bool = False,
    thresholds: Thresholds | None = None,
    replace: bool = False,
) -> Exported:
    """Write a run's network to one file that needs no hypermargin, and check that it answers as torch does.

    onnx, torch     a graph from raw samples to "embedding" (of `dtype`), "norm" and, `with_head`, "probability",
                    for batches of any size; scaling and normalisation are inside. Computed in float32.
    safetensors     the weights of the network and, `with_head`, of the head, with what is needed to rebuild them

    `which`, `trust` and `allow_older` as in `hypermargin.load`. The thresholds of a run's folder come along;
    beside a `Trained` they can be given. A file that is there already is kept unless `replace`.
    """
    checks.one_of("format", format, tuple(ENDINGS))
    checks.one_of("dtype", dtype, tuple(DTYPES))
    if format == "safetensors" and dtype != "float32":
        raise ValueError(f"dtype is that of the embedding, which safetensors does not hold; got {dtype!r}.")
    target = free_path("path", path, (ENDINGS[format],), replace)
    if format == "onnx":
        need("onnx", "onnxscript", "onnxruntime")
    if isinstance(run, Trained):
        trained = run
    else:
        trained = load(run, which, trust=trust, allow_older=allow_older)
        thresholds = thresholds or Thresholds.read(Path(run))
    trained = _on_cpu(trained)
    about = metadata.describe(trained, thresholds, with_head=with_head, dtype=dtype)
    with replacing(target) as temporary:
        if format == "safetensors":
            found = _write_weights(trained, with_head, about, temporary)
        else:
            whole = Whole(trained, with_head=with_head, dtype=DTYPES[dtype]).eval()
            program = trace(whole, examples(about, 2))
            write = _write_onnx if format == "onnx" else _write_program
            found = differences(write(program, about, temporary), trained, about)
    return Exported(target, about, found)


def need(*packages: str) -> None:
    """Raise an error that names those of the packages that are missing."""
    if missing := absent(*packages):
        raise ExportError(not_installed("ONNX needs", *missing))


def _on_cpu(trained: Trained) -> Trained:
    network, head = copy.deepcopy((trained.network, trained.head))
    return dataclasses.replace(trained, network=network.cpu().eval(), head=head.cpu().eval())


def _write_onnx(program: torch.export.ExportedProgram, about: dict[str, Any], path: Path) -> Answers:
    size = sum(t.numel() * t.element_size() for t in program.state_dict.values())
    if size > ONNX_LIMIT:
        raise ExportError(
            f"the weights take {size / 2**30:.2f} GiB, and one ONNX file holds 2 GiB. Use format torch or "
            "safetensors, or leave out the head."
        )
    try:
        with quiet():
            made = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                input_names=[about["input"]["name"]],
                output_names=list(about["outputs"]),
                external_data=False,
                optimize=True,
                verbose=False,
            )
    except Exception as error:  # its own kinds, by version
        raise ExportError(
            f"ONNX cannot hold this network: {first_line(error)} Use format torch or safetensors."
        ) from error
    assert made is not None
    model = made.model_proto
    graph = model.graph
    # The exporter's own notes are several times the graph, and some versions name this machine's files in them.
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    graph.ClearField("value_info")
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    for key, text in metadata.flat(about).items():
        model.metadata_props.add(key=key, value=text)
    path.write_bytes(model.SerializeToString())

    session = onnx_session(path)
    return lambda samples: dict(
        zip(about["outputs"], session.run(None, {about["input"]["name"]: samples.numpy()}), strict=True)
    )


def onnx_session(path: Path) -> Any:
    """Open an ONNX graph, to run it on the CPU."""
    need("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _write_program(program: torch.export.ExportedProgram, about: dict[str, Any], path: Path) -> Answers:
    with quiet():
        # By way of memory, since the archive would else be named after the temporary file.
        buffer = io.BytesIO()
        torch.export.save(program, buffer, extra_files=metadata.flat(about))
        path.write_bytes(buffer.getbuffer())
        module = torch.export.load(path).module()
    return lambda samples: {name: t.detach().numpy() for name, t in module(samples).items()}


def _write_weights(trained: Trained, with_head: bool, about: dict[str, Any], path: Path) -> dict[str, float]:
    if not has_safetensors():
        raise ExportError(not_installed("format safetensors needs", "safetensors"))
    about["outputs"] = {}
    about["input"]["scaling"]["inside"] = False
    parts: dict[str, nn.Module] = {"network": trained.network}
    if with_head:
        parts["head"] = trained.head
    tensors = {
        f"{part}.{name}": tensor.detach()
        for part, module in parts.items()
        for name, tensor in module.state_dict().items()
    }
    write_safetensors(path, tensors, metadata.flat(about))
    back = read_safetensors(path)
    if back.keys() != tensors.keys() or not all(torch.equal(back[name], t) for name, t in tensors.items()):
        raise ExportError("the weights read back are not those written. The file was not kept; look at the disk.")
    return {}
