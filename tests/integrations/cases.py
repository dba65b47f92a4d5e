"""Runs a file of cases in a process of its own, for frameworks that bear no other in theirs."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
OPTIONS = ("-p", "no:xdist", "-p", "no:cacheprovider", "-W", "ignore")


def run_cases(name, **environment):
    """Run tests/integrations/NAME by pytest; fail with its output if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS, str(HERE / name)],
        env=os.environ | environment, capture_output=True, text=True, check=False, cwd=HERE.parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def run_page(page, **environment):
    """Run the blocks of docs/integrations/PAGE; fail if one prints anything else than the page says."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "docs_cases.py"), page],
        env=os.environ | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert ": as written" in done.stdout


def imported(module, **environment):
    """Return which of the large frameworks are loaded by importing a module alone."""
    names = {"torch", "jax", "tensorflow", "keras"}
    code = f"import sys, {module}; print(*sorted({names} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
