"""The documents say what is so: their code runs, their output is what it prints, their links lead somewhere.

The rule, for whoever writes a .md file here or in docs/:

- every ```python block is run, by itself, in a fresh namespace and an empty folder;
- a ```text block right after it (blank lines do not count) is exactly what it prints;
- `<!-- goes on -->` alone on a line right before a block gives it the names of the block before it;
- `<!-- not run -->` there leaves it out (say why in the text).

Print rounded numbers, so that they are the same on every machine. Other fences (bash, toml, …) are not looked at.
"""

import ast
import contextlib
import importlib.util
import io
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from hypermargin import backends
from hypermargin.margins._base import MARGINS
from hypermargin.rules._base import RULES

ROOT = Path(__file__).resolve().parents[2]
FILES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
]
FENCE = re.compile(r"^(`{3,})(\w*)\s*$")


@dataclass(frozen=True)
class Block:
    path: Path
    number: int  # among the python blocks of its file, from 1
    line: int  # of its first line of code, from 1
    title: str  # the heading above
    code: str
    expected: str | None
    before: "Block | None"  # the block it goes on from

    @property
    def id(self):
        words = re.findall(r"[a-z0-9]+", self.title.lower())
        return f"{self.path.relative_to(ROOT).as_posix()}-{self.number:02d}-{'-'.join(words[:6])}"


def fences(text):
    """(language, first line's number from 1, content, line before the fence, heading above) of every fence."""
    lines, title, i = text.splitlines(), "", 0
    while i < len(lines):
        opening = FENCE.match(lines[i])
        if not opening:
            title = lines[i].lstrip("# ") if lines[i].startswith("#") else title
            i += 1
            continue
        end = i + 1
        while end < len(lines) and lines[end].rstrip() != opening[1]:
            end += 1
        assert end < len(lines), f"line {i + 1}: this fence is never closed"
        yield opening[2], i + 2, "\n".join(lines[i + 1 : end]), lines[i - 1].strip() if i else "", title
        i = end + 1


def blocks_of(path, text):
    lines, found = text.splitlines(), list(fences(text))
    blocks = []
    for k, (language, line, code, mark, title) in enumerate(found):
        if language != "python" or mark == "<!-- not run -->":
            continue
        expected = None
        if k + 1 < len(found) and found[k + 1][0] == "text":
            between = lines[line - 1 + len(code.splitlines()) + 1 : found[k + 1][1] - 2]
            expected = found[k + 1][2] if not any(between) else None
        goes_on = mark == "<!-- goes on -->"
        assert blocks or not goes_on, f"{path.name}: the first block has nothing to go on from"
        before = blocks[-1] if goes_on else None
        blocks.append(Block(path, len(blocks) + 1, line, title, code, expected, before))
    return blocks


def run(block, names):
    """What the block prints; `names` is its namespace."""
    if block.before is not None:
        run(block.before, names)
    # Empty lines in front make a traceback show the document's own line.
    program = compile("\n" * (block.line - 1) + block.code, str(block.path), "exec")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(program, names)
    return printed.getvalue()


# The blocks of the Chinese pages are those of the English ones, letter for letter: test_languages.py.
RUN = [path for path in FILES if not path.name.endswith(".zh.md")]
BLOCKS = [block for path in RUN for block in blocks_of(path, path.read_text(encoding="utf-8"))]


@pytest.fixture
def as_it_was(tmp_path, monkeypatch):
    """An empty folder to work in; seed, default dtype and what was registered restored afterwards."""
    monkeypatch.chdir(tmp_path)
    for registry in (MARGINS, RULES):
        monkeypatch.setattr(registry, "entries", dict(registry.entries))
    monkeypatch.setattr(backends.base, "_REGISTRY", dict(backends.base._REGISTRY))
    dtype = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_default_dtype(dtype)


@pytest.mark.usefixtures("as_it_was")
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.id)
def test_block(block):
    printed = run(block, {"__name__": "__main__"})
    if block.expected is not None:
        assert printed.rstrip() == block.expected.rstrip()


def taken_for_structure(text):
    """Lines of prose that happen to begin with > or with a number and a point: quotations or items to Markdown."""
    text, last, before = re.sub(r"^(`{3,}).*?^\1", "", text, flags=re.M | re.S), 0, ""
    for line in text.splitlines():
        item = re.match(r" *(\d+)[.)] ", line)
        number = int(item[1]) if item else None
        quotation = line.startswith(">") and before.strip() and not before.startswith(">")
        if quotation or number not in (None, 1, last + 1):
            yield line
        last, before = last if number is None else number, line


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_prose_stays_prose(path):
    assert not list(taken_for_structure(path.read_text(encoding="utf-8")))


def test_prose_that_markdown_takes_for_structure_is_seen():
    assert list(taken_for_structure("its slope is\n0. So it\n\nfor m\n> 1 it\n")) == ["0. So it", "> 1 it"]
    assert not list(taken_for_structure("1. one\n2. two\n\n> a\n> b\n\n```text\na\n> b\n```\n"))


def test_blocks_are_found():
    """Else a slip in the parser would pass everything."""
    text = (
        "# One\n```python\na = 1\n```\ntext between\n```text\nnot its output\n```\n## Two things\n"
        "<!-- goes on -->\n```python\nprint(a)\n```\n\n```text\n1\n```\n"
        "```bash\nls\n```\n<!-- not run -->\n```python\n1 / 0\n```\n"
    )
    one, two = blocks_of(ROOT / "x.md", text)
    assert (one.code, one.line, one.expected, one.before) == ("a = 1", 3, None, None)
    assert (two.code, two.expected, two.before, two.id) == ("print(a)", "1", one, "x.md-02-two-things")
    assert run(two, {}) == "1\n"
    with pytest.raises(NameError):
        run(Block(two.path, 2, two.line, "", two.code, None, None), {})
    assert sum(block.path.name == "questions.md" for block in BLOCKS) >= 15


@pytest.mark.parametrize("name", ["questions.md", "questions.zh.md"])
def test_every_question_shows_its_answer(name):
    """Each section has one block, and the block shows its output."""
    path = ROOT / "docs" / name
    sections = re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.M)[1:]
    for section in sections:
        languages = [language for language, *_ in fences(section)]
        assert languages == ["python", "text"], section.splitlines()[0]


def anchors(path):
    """GitHub's names for the headings of a file."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ +(.+?) *$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):  # https:, mailto:
            continue
        name, _, anchor = target.partition("#")
        aim = (path.parent / name).resolve() if name else path
        assert aim.exists(), f"{path.name}: {target}"
        assert not anchor or anchor in anchors(aim), f"{path.name}: {target} names no heading of {aim.name}"


def functions(path):
    return {node.name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if hasattr(node, "name")}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_named_tests_exist(path):
    for name, test in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", path.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), f"{path.name}: {name}"
        assert not test or test in functions(ROOT / name), f"{path.name}: {name}::{test}"


def test_errata_and_their_tests_name_each_other():
    """Every erratum has a test, and every test of an erratum is named there."""
    text = (ROOT / "docs/errata.md").read_text(encoding="utf-8")
    named = set(re.findall(r"tests/core/test_errata(?:_later)?\.py::(\w+)", text))
    files = [ROOT / "tests/core" / name for name in ("test_errata.py", "test_errata_later.py")]
    assert named == {name for file in files for name in functions(file) if name.startswith("test_")}
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        assert re.search(r"tests/core/test_errata(_later)?\.py::test_", section), section.splitlines()[0]


def test_the_familys_tables_are_those_in_the_code():
    spec = importlib.util.spec_from_file_location("write_tables", ROOT / "docs" / "write_tables.py")
    write_tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(write_tables)
    assert len(write_tables.TABLES) == 7
    for path in write_tables.TABLES:
        assert write_tables.with_tables(path) == path.read_text(encoding="utf-8"), f"{path.name}: run `make docs`"
