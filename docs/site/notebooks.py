"""The tutorials: notebooks with their outputs, as pages, and run.

A notebook is stored with what its cells printed and drew. `python -m docs.site.notebooks` runs all of them anew in
Jupyter (`make tutorials`) and stores them; tests run the cells and compare what they print.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.site.pages import ROOT

FOLDER = ROOT / "docs" / "tutorials"
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
PICTURES = {"image/svg+xml": "svg", "image/png": "png"}


def cells(text: str) -> list[dict[str, Any]]:
    """Return the cells of a notebook, their sources joined."""
    return [cell | {"source": "".join(cell["source"])} for cell in json.loads(text)["cells"]]


def as_markdown(text: str, page: Path) -> str:
    """Return a notebook as a Markdown page; its pictures are written beside `page`."""
    parts = []
    for number, cell in enumerate(cells(text)):
        if cell["cell_type"] == "markdown":
            parts.append(cell["source"])
            continue
        parts.append(f"```python\n{cell['source']}\n```")
        for k, output in enumerate(cell["outputs"]):
            parts += _shown(output, page.with_name(f"{page.stem}-{number}-{k}"))
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any], file: Path) -> Iterator[str]:
    data = output.get("data", {})
    for kind, ending in PICTURES.items():
        if kind in data:
            path = file.with_suffix(f".{ending}")
            path.parent.mkdir(parents=True, exist_ok=True)
            content = "".join(data[kind])
            path.write_bytes(content.encode() if ending == "svg" else base64.b64decode(content))
            # An HTML element, since links of Markdown are taken for files of the repository.
            yield f"<img alt='' src='{path.name}'>"
            return
    text = "".join(output.get("text", data.get("text/plain", "")))
    if text.strip():
        yield f"```text\n{text.rstrip()}\n```"


def printed(cell: dict[str, Any]) -> str:
    """Return what a stored cell wrote to stdout."""
    return "".join("".join(each["text"]) for each in cell["outputs"] if each.get("name") == "stdout")


def run(text: str) -> list[tuple[str, str]]:
    """Run the code cells of a notebook in this process: what each printed, and what is stored."""
    names: dict[str, Any] = {"__name__": "__main__"}
    found = []
    for number, cell in enumerate(cells(text)):
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(cell["source"], f"cell {number}", "exec"), names)
            found.append((out.getvalue(), printed(cell)))
    return found


def alike(one: str, other: str) -> bool:
    """Compare two outputs: the same words, and about the same numbers.

    What training ends with depends on the processor, through the order of its sums: numbers may differ by a third
    of their size, or by two units of those below ten. A number that says something else is further away than that.
    """
    if NUMBER.sub("0", one).split() != NUMBER.sub("0", other).split():
        return False
    pairs = zip(map(_value, NUMBER.findall(one)), map(_value, NUMBER.findall(other)), strict=True)
    return all(abs(a - b) <= max(abs(a), abs(b), 6) / 3 for a, b in pairs)


def _value(text: str) -> float:
    return float(text.replace(",", ""))


def execute(path: Path) -> None:
    """Run a notebook in Jupyter and store its outputs, without times and other things that change by themselves."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    notebook.metadata = {"language_info": {"name": "python"}}
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    output.data = {"image/png": output.data["image/png"]}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for each in sorted(FOLDER.glob("*.ipynb")):
        print(each.name, flush=True)
        execute(each)
