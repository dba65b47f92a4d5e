"""The site: every page has a place, every link leads somewhere, and no public name is left out of the reference."""

import ast
import functools
import importlib
import importlib.util
import inspect
import re
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from browser import AT_HOME, DESKTOP, PHONE

from docs.site import markdown, notebooks, pages, reference

REFERENCE = reference.reference()


def test_every_page_has_one_place():
    listed = [source for files in pages.order().values() for source in files]
    assert sorted([pages.HOME, *listed]) == pages.sources()
    assert len({pages.address(source) for source in pages.sources()}) == len(pages.sources())


def test_a_page_that_nobody_ordered_comes_last(monkeypatch):
    """Whoever adds a page need not know of the site."""
    new = ["docs/integrations/new.md", "docs/unheard-of.md"]
    known = sorted([*pages.sources(), *new])
    monkeypatch.setattr(pages, "sources", lambda: known)
    sections = pages.order()
    assert "docs/integrations/new.md" in sections["Use"]
    assert list(sections)[-1] == pages.REST
    assert "docs/unheard-of.md" in sections[pages.REST]
    assert '"unheard-of.md"' in pages.navigation([])


def test_a_wrong_name_in_the_order_is_named(monkeypatch):
    monkeypatch.setattr(pages, "_settings", lambda: {"sections": {"Use": ["docs/trianing.md"]}, "titles": {}})
    with pytest.raises(ValueError, match=r"'Use': docs/trianing\.md is no page"):
        pages.order()


@pytest.mark.parametrize("source", pages.sources())
def test_links_lead_to_pages_of_the_site(source, tmp_path):
    text = (pages.ROOT / source).read_text(encoding="utf-8")
    if source.endswith(".ipynb"):
        text = notebooks.as_markdown(text, tmp_path / "page.md")
    _, files = markdown.page(text, source)
    assert all((pages.ROOT / file).is_file() for file in files)


def test_what_a_page_becomes():
    text = (
        "# A\n<!-- goes on -->\n```python\n[x](nowhere.md)\n```\nwords:\n- one, see [q](questions.md#a)\n- two\n\n"
        "[![E](pictures/explorer.png)](seeing.md) <!-- the explorer -->\n[r](../README.md) [w](https://a.b/c.md)\n"
    )
    made, files = markdown.page(text, "docs/index.md")
    assert "goes on" not in made
    assert "[x](nowhere.md)" in made  # code is left alone
    assert "words:\n\n- one, see [q](questions.md#a)\n- two" in made
    assert 'src="explorer.html"' in made
    assert "[r](readme.md) [w](https://a.b/c.md)" in made
    assert files == set()
    assert markdown.page("![p](../benchmarks/results/successors.png)", "docs/x.md")[1] == {
        "benchmarks/results/successors.png"
    }
    with pytest.raises(markdown.BrokenLinkError, match=r"docs/x\.md: nowhere\.md leads nowhere"):
        markdown.page("[x](nowhere.md)", "docs/x.md")
    with pytest.raises(markdown.BrokenLinkError, match=r"docs/x\.md: tutorials is a folder, not a page"):
        markdown.page("[x](tutorials)", "docs/x.md")


@pytest.mark.parametrize("name", ["", *reference.public_modules()])
def test_every_public_name_is_in_the_reference(name):
    module = importlib.import_module(f"hypermargin.{name}".rstrip("."))
    page = REFERENCE[f"{name or 'index'}.md"]
    names = [each for each in reference.public_names(module) if not inspect.ismodule(getattr(module, each))]
    assert not [each for each in names if f"{{ #{reference.anchor(module, each)} }}" not in page]


def test_every_name_of_the_integrations_is_on_their_pages():
    """Their frameworks need not be installed, so they are read, not imported."""
    folder = pages.ROOT / "src/hypermargin/integrations"
    said = "\n".join(page.read_text(encoding="utf-8") for page in (pages.ROOT / "docs/integrations").glob("*.md"))
    modules = [*folder.glob("[a-z]*.py"), *folder.glob("*/__init__.py")]
    assert len(modules) > 4
    for module in modules:
        source = ast.parse(module.read_text(encoding="utf-8"))
        names = next(n.value for n in source.body if isinstance(n, ast.Assign) and n.targets[0].id == "__all__")
        for name in ast.literal_eval(names):
            assert re.search(rf"\b{name}\b", said), f"{module.name}: {name} is on no page of docs/integrations"


def test_every_public_name_has_a_docstring(monkeypatch):
    assert reference.undocumented() == []
    monkeypatch.setattr(reference.hypermargin.margins.ArcFace, "__doc__", None)
    monkeypatch.setattr(reference.hypermargin.create_head, "__doc__", "")
    assert reference.undocumented() == ["hypermargin.create_head", "hypermargin.margins.ArcFace"]


def test_the_reference_says_what_python_says():
    page = REFERENCE["margins.md"]
    assert "class ArcFace(m: float = 0.5, beyond: str = 'smooth')" in page
    assert "| `m` | [0, 3.142) | Radians." in page
    assert "Inherits from [`Margin`](margins.md#hypermargin.margins.Margin)." in page
    assert "def " not in page.split("```")[1]
    index = REFERENCE["index.md"]
    assert "[`hypermargin.margins`](margins.md): The margins ψ" in index
    assert "| [`margin_softmax`](#hypermargin.margin_softmax) | Return the cross-entropy of softmax" in index
    assert "[keras](../integrations/keras.md)" in index
    assert "ForwardRef" not in "".join(REFERENCE.values())
    assert " at 0x" not in "".join(REFERENCE.values())  # an address: another one in every run


def test_a_folder_with_other_things_is_not_emptied(tmp_path):
    """docs/site has a zensical.toml itself."""
    site = importlib.import_module("docs.site.__main__")
    for name in ("zensical.toml", "pages.py"):
        (tmp_path / name).write_text("")
    with pytest.raises(SystemExit, match="holds something else than a site"):
        site.build(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    """The site, built."""
    if importlib.util.find_spec("zensical") is None:
        pytest.skip("needs the docs extra")
    return importlib.import_module("docs.site.__main__").build(tmp_path_factory.mktemp("made") / "site")


@pytest.fixture
def address(html):
    """Where the site is served; opened as files, its search and the frame of the explorer would be other sites."""
    handler = functools.partial(QuietHandler, directory=html)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_front_page_is_played_with_and_searched(browser, address, size):
    page, problems = browser.new_page(viewport={"width": size[0], "height": size[1]}), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda r: r.url.startswith((address, *AT_HOME)) or problems.append(r.url))
    page.goto(f"{address}/index.html")
    explorer = page.frame_locator("iframe.explorer")
    band = explorer.get_by_text(re.compile(r"A band of [\d.]+° keeps"))
    before = band.inner_text()
    explorer.locator("input[type=range]").nth(1).press("ArrowRight")
    assert band.inner_text() != before
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    page.locator("h1").click()  # keys go to the page, not to the explorer
    page.keyboard.press("Control+k")
    for words, found in (("create_head", "#hypermargin.create_head"), ("间隔带", "/derivation.zh.html")):
        page.keyboard.press("Control+a")
        page.keyboard.type(words)
        page.locator(f"[role=option][href*='{found}']").first.wait_for()
    page.close()
    assert not problems


@pytest.mark.slow
def test_the_site_has_every_page_and_fetches_nothing(html):
    for source in pages.sources():
        assert (html / pages.address(source)).with_suffix(".html").exists()
    margins = (html / "api" / "margins.html").read_text(encoding="utf-8")
    assert 'id="hypermargin.margins.ArcFace"' in margins
    assert '<html lang="zh-CN"' in (html / "derivation.zh.html").read_text(encoding="utf-8")
    for page in html.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=[\"']?(https?:[^\"' >]+)", text)
        assert not fetched, f"{page.name} fetches {fetched}"


QUICK = "snippets"
NOTEBOOKS = sorted(notebooks.FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.stem == QUICK else pytest.mark.slow, id=path.stem) for path in NOTEBOOKS],
)
def test_tutorials_print_what_is_stored(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=[]):
            found = notebooks.run(path.read_text(encoding="utf-8"))
    finally:
        torch.set_num_threads(threads)
    assert any(printed for printed, _ in found)
    for printed, stored in found:
        assert notebooks.alike(printed, stored), f"printed {printed!r}, stored {stored!r}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_tutorials_are_stored_with_their_outputs_and_small(path):
    text = path.read_text(encoding="utf-8")
    code = [cell for cell in notebooks.cells(text) if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code), "run `make tutorials`"
    assert not any(output["output_type"] == "error" for cell in code for output in cell["outputs"])
    assert len(text) < 500_000
    assert "/tmp/" not in text


def test_outputs_of_notebooks_are_compared_loosely_where_they_are_numbers():
    assert notebooks.alike("EER 9.2% of 1,080", "EER 10.1%  of 1,100")
    assert not notebooks.alike("EER 9.2%", "EER 29%")
    assert not notebooks.alike("same: True", "same: False")
    assert not notebooks.alike("a 1", "a 1 2")
