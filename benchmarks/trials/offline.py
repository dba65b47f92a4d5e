"""Registers, spills and shared memory of every candidate for a Hopper GPU, compiled where there is none.

PYTHONPATH=src python -m benchmarks.trials.offline
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.trials.candidates import CANDIDATES, Launch, why
from benchmarks.trials.case import Case
from hypermargin.backends.fused import launch

NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int32: "i32"}
HOPPER = GPUTarget("cuda", 90, 32)


def compiled(given: Launch) -> Any:
    """What Triton makes of a launch for compute capability 9.0: a kernel whose registers are not known yet."""
    from triton.experimental.gluon._runtime import GluonASTSource

    kinds, constants, hints = {}, {}, {}
    for parameter, arg in zip(given.kernel.params, given.args, strict=True):
        kinds[parameter.name] = "constexpr" if parameter.is_constexpr else _kind(arg)
        if parameter.is_constexpr:
            constants[(parameter.num,)] = arg
        elif isinstance(arg, torch.Tensor) or (isinstance(arg, int) and arg % 16 == 0):
            hints[(parameter.num,)] = [["tt.divisibility", 16]]
    kind = GluonASTSource if given.kernel.is_gluon() else ASTSource
    return triton.compile(kind(given.kernel, kinds, constants, hints), target=HOPPER, options=given.options)


def _kind(given: Any) -> str:
    """The type of an argument, in Triton's words."""
    if isinstance(given, torch.Tensor):
        return f"*{NAMES[given.dtype]}"
    if isinstance(given, int):
        return "i32"
    shape = f"{NAMES[given.base.dtype]}{list(given.block_shape)}"
    return f"tensordesc<{shape},{given.layout!r}>" if hasattr(given, "layout") else f"tensordesc<{shape}>"


def usage(made: Any) -> dict[str, int]:
    """Registers per thread, bytes of shared memory, and instructions that load or store spilled registers."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(made.asm["cubin"])
        said = [
            subprocess.run([tool, flag, file.name], capture_output=True, text=True, check=True).stdout
            for flag in ("-res-usage", "-sass")
        ]
    found = re.search(r"REG:(\d+) STACK:(\d+)", said[0])
    assert found is not None
    spills = len(re.findall(r"\b(?:STL|LDL)\b", said[1]))
    return {"registers": int(found[1]), "stack": int(found[2]), "spills": spills, "shared": made.metadata.shared}


def of_a_gpu(d: int = 512) -> Case:
    """A small case on the CPU whose candidates are those of a Hopper GPU. Nothing is computed."""
    case = Case(256, 512, d, "cpu")
    case.fast = True
    labels = launch.Labels(case.labels, case.labels, case.labels, case.by_rows)
    case.sorted = dict.fromkeys((64, 128, 256), labels)
    return case


def main() -> None:
    for d in (512, 768):
        case = of_a_gpu(d)
        for candidate in CANDIDATES:
            if d > candidate.most:
                continue
            for one in candidate.make(case):
                if not isinstance(one, Launch):  # the package's own kernels
                    continue
                name = f"d = {d}, {candidate.part}, {candidate.name}: {one.kernel.__name__}"
                try:
                    print(name, usage(compiled(one)), flush=True)
                except Exception as error:
                    print(name, "does not compile:", why(error), flush=True)


if __name__ == "__main__":
    main()
