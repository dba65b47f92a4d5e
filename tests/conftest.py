import os
import sys
import tempfile

if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton
# A key is kept for the user whose runs name code; tests must not leave theirs in a home.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="hypermargin-state-")
os.environ.setdefault("SCIPY_ARRAY_API", "1")  # else scikit-learn skips one of its checks of estimators
# The tests run two at a time, so that a second thread only waits: for OpenBLAS here, and for every process started.
# `make test-machines` sets it to other numbers.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from browser import chromium  # noqa: F401  # the fixture `browser`
from hypothesis import HealthCheck, settings

from hypermargin import cli, margins
from hypermargin.backends import Chunked, backend_names
from hypermargin.margins import ArcFace, Combined, Piecewise, SphereFace
from hypermargin.margins.arcface import BEYOND

settings.register_profile(
    "repeatable", derandomize=True, deadline=None, max_examples=12, suppress_health_check=list(HealthCheck)
)
settings.load_profile("repeatable")
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Every registered margin at its defaults, plus the settings in which it behaves differently.
ALL_MARGINS = [margins.get(name)() for name in margins.names()] + [
    SphereFace(1.0),
    SphereFace(1.7),
    SphereFace(3.0, lam=5.0),
    Combined(1.35, 0.2, 0.1),
    Combined(0.9, 0.4, 0.15),
    Piecewise(3.0),
]
PUBLISHED_VARIANTS = [ArcFace(0.5, beyond=b) for b in BEYOND if b != "smooth"] + [
    SphereFace(4.0, beyond="none"),
    SphereFace(1.5, beyond="flat"),
    SphereFace(1.35, beyond="none"),
    Combined(1.0, 0.3, 0.2, beyond="none"),
]
over_margins = pytest.mark.parametrize("margin", ALL_MARGINS, ids=str)
over_all_variants = pytest.mark.parametrize("margin", ALL_MARGINS + PUBLISHED_VARIANTS, ids=str)
# Blocks of three classes, so that the few classes of a test make several blocks and a ragged one.
TESTED_BACKENDS = {"dense": "dense", "chunked": Chunked(chunk=3)}
assert set(TESTED_BACKENDS) | {"auto", "triton"} == set(
    backend_names()
)  # which knows float32 only: tests/core/test_fused.py
over_backends = pytest.mark.parametrize("backend", list(TESTED_BACKENDS.values()), ids=list(TESTED_BACKENDS))


@pytest.fixture
def run(monkeypatch, capsys):
    """`run("data", "digits")`: the command in this process; exit code, stdout, stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["hypermargin", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        printed = capsys.readouterr()
        return end.value.code or 0, printed.out, printed.err

    return call


@pytest.fixture
def bench(capsys):
    """`bench(step, "--rounds", 2)`: a benchmark's command line in this process; exit code, stdout, stderr."""

    def call(module, *arguments):
        code = 0
        try:
            module.main([*map(str, arguments)])
        except SystemExit as end:
            code = end.code or 0
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call
