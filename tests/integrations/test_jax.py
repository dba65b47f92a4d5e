"""hypermargin.integrations.jax against the library."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
from integrations.cases import imported, run_cases, run_page

MISSING = "JAX is not installed: pip install jax"
needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason=MISSING)


@needs_jax
def test_jax():
    run_cases("jax_cases.py")


@needs_jax
def test_the_page_prints_what_it_says():
    run_page("jax.md")


@needs_jax
def test_torch_is_not_imported():
    assert imported("hypermargin.integrations.jax") == ["jax"]


def test_without_jax_the_error_says_what_to_install():
    code = "import sys; sys.modules['jax'] = None; import hypermargin.integrations.jax"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install jax" in done.stderr
