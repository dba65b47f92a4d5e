"""The scripts in docs/integrations that need frameworks: run, and they print what the page says.

tests/docs leaves them out, as they are marked `<!-- not run -->`; those that a ```text block follows are run here.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = Path(__file__).resolve().parents[2] / "docs" / "integrations"
SCRIPT = re.compile(r"<!-- not run -->\n```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
NEEDS = {"huggingface": "transformers", "lightning": "lightning"}
CASES = [
    (name, number, *match)
    for name in NEEDS
    for number, match in enumerate(SCRIPT.findall((PAGES / f"{name}.md").read_text(encoding="utf-8")), 1)
]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "number", "code", "expected"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_a_script_prints_what_its_page_says(page, number, code, expected, tmp_path):
    pytest.importorskip(NEEDS[page], reason=f"needs {NEEDS[page]}: make test-integrations")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {"TRANSFORMERS_VERBOSITY": "error"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-expected.count("\n") :] == expected.strip().splitlines()


def test_the_pages_have_scripts():
    assert {case[0] for case in CASES} == set(NEEDS)
