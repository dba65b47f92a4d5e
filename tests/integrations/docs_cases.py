"""The Python blocks of a page of docs/integrations, in one namespace: each prints what the page says.

python tests/integrations/docs_cases.py PAGE.md
"""

import contextlib
import importlib.util
import io
import os
import sys
import tempfile
from pathlib import Path

sys.modules["triton"] = None  # its LLVM and JAX's crash in one process

ROOT = Path(__file__).resolve().parents[2]


def blocks(page):
    """Yield line, code and the expected output of every Python block."""
    spec = importlib.util.spec_from_file_location("test_docs", ROOT / "tests/docs/test_docs.py")
    test_docs = importlib.util.module_from_spec(spec)
    sys.modules["test_docs"] = test_docs
    spec.loader.exec_module(test_docs)
    text = page.read_text(encoding="utf-8").replace("<!-- not run -->\n", "")
    for block in test_docs.blocks_of(page, text):
        yield block.line, block.code, block.expected


def main(page):
    names = {"__name__": "__main__"}
    for line, code, expected in blocks(ROOT / "docs/integrations" / page):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, f"{page}, block at line {line}", "exec"), names)
        assert printed.getvalue().rstrip() == (expected or "").rstrip(), (
            f"{page}, block at line {line}: {printed.getvalue()}"
        )
        print(f"{page}, block at line {line}: as written")


if __name__ == "__main__":
    pages = sys.argv[1:]
    os.chdir(tempfile.mkdtemp())
    for each in pages:
        main(each)
