"""Make PyPI's torchvision and torchaudio importable beside a torch without CUDA; `make test-integrations` runs it.

Their wheels for Linux are linked against CUDA. Where torch comes without it, torchaudio refuses to be imported, and
torchvision stops at the first operator that its compiled part would have defined. What timm, Lightning and
SpeechBrain use of them is Python alone, so the compiled parts are taken away, in this environment, and the two
operators that torchvision's Python describes are declared. Nothing is done where the compiled parts can be loaded.
"""

from importlib.util import find_spec
from pathlib import Path

import torch

DECLARED = """
# Added by tests/integrations/cpu_wheels.py of hypermargin: torch has no CUDA, so the compiled part is not loaded.
for _operator in ("nms", "qnms"):
    torch.library.define(f"torchvision::{_operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def folder_of(package: str) -> Path | None:
    """Return where a package is installed, without importing it."""
    found = find_spec(package)
    return None if found is None or found.origin is None else Path(found.origin).parent


def loads(library: Path) -> bool:
    """Tell whether a compiled library can be loaded beside this torch."""
    try:
        torch.ops.load_library(library)
    except OSError:
        return False
    return True


def main() -> None:
    """Take away what cannot be loaded."""
    audio, vision = folder_of("torchaudio"), folder_of("torchvision")
    if audio and any(not loads(library) for library in sorted(audio.glob("lib/*.so"))):
        for library in audio.glob("lib/*.so"):
            library.unlink()
        print("torchaudio: its compiled part needs CUDA, so only its Python part is used.")
    compiled = vision / "_C.so" if vision else None
    if vision and compiled and compiled.exists() and not loads(compiled):
        described = vision / "_meta_registrations.py"
        text, mark = described.read_text(encoding="utf-8"), "import torchvision.extension"
        if mark not in text:
            raise SystemExit(f"{described} is not as expected: install a torchvision that fits your torch.")
        compiled.unlink()
        described.write_text(text.replace(mark, f"{mark}\n{DECLARED}", 1), encoding="utf-8")
        print("torchvision: its compiled part needs CUDA, so only its Python part is used.")


if __name__ == "__main__":
    main()
