"""hypermargin.integrations.keras against the library, on each of Keras's backends."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
from integrations.cases import imported, run_cases, run_page

BACKENDS = ("jax", "tensorflow", "torch")


def backend(name):
    missing = [package for package in ("keras", name) if find_spec(package) is None]
    why = f"{', '.join(missing)}: not installed. Run: pip install keras and Keras's backend"
    return pytest.param(name, marks=pytest.mark.skipif(bool(missing), reason=why))


@pytest.mark.parametrize("name", [backend(name) for name in BACKENDS])
def test_keras(name):
    run_cases("keras_cases.py", KERAS_BACKEND=name, TF_CPP_MIN_LOG_LEVEL="3")


@pytest.mark.parametrize("name", [backend("jax")])
def test_the_page_prints_what_it_says(name):
    run_page("keras.md", KERAS_BACKEND=name)


@pytest.mark.parametrize("name", [backend("jax"), backend("tensorflow")])
def test_torch_is_imported_on_its_own_backend_alone(name):
    assert "torch" not in imported("hypermargin.integrations.keras", KERAS_BACKEND=name)


def test_without_keras_the_error_says_what_to_install():
    code = "import sys; sys.modules['keras'] = None; import hypermargin.integrations.keras"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install keras" in done.stderr
