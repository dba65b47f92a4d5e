"""Build the documentation site: `python -m docs.site [FOLDER]`, which `make site` calls. Needs the `docs` extra.

The pages are gathered in FOLDER/pages with their links turned to where the site has things, the reference and the
explorer are written beside them, and Zensical makes FOLDER/html of it. Any warning ends the build.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from docs.site import markdown, notebooks, pages, reference
from hypermargin.plots import explorer


def gather(folder: Path) -> None:
    """Write all that Zensical needs into an empty folder."""
    if silent := reference.undocumented():
        raise ValueError(
            f"without a docstring: {', '.join(silent)}. Write one, or begin the name with an underscore."
        )
    api = reference.reference()
    names = sorted(api, key=lambda name: (name != "index.md", name))
    settings = (pages.HERE / "zensical.toml").read_text(encoding="utf-8")
    _write(folder / "zensical.toml", settings.replace("[project]\n", "[project]\n" + pages.navigation(names), 1))
    wanted: set[str] = set()
    for source in pages.sources():
        text = (pages.ROOT / source).read_text(encoding="utf-8")
        if source.endswith(".ipynb"):
            text = notebooks.as_markdown(text, folder / "pages" / pages.address(source))
        text, files = markdown.page(text, source)
        wanted |= files
        # The explorer has the whole width of its pages.
        hidden = "---\nhide: [navigation, toc]\n---\n" if source in pages.FRONT else ""
        _write(folder / "pages" / pages.address(source), hidden + text)
    for name, text in api.items():
        _write(folder / "pages" / "api" / name, text)
    for file in wanted:
        target = folder / "pages" / pages.address(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(pages.ROOT / file, target)
    for lang, name in (("en", "explorer.html"), ("zh", "explorer.zh.html")):
        explorer.write(folder / "pages" / name, lang)
    for name in ("site.css", "site.js"):
        shutil.copyfile(pages.HERE / name, folder / "pages" / name)


def build(folder: Path) -> Path:
    """Build the site anew and return its folder."""
    ours = (folder / "zensical.toml").is_file() and (folder / "pages" / "api").is_dir()  # docs/site has no pages/
    if folder.exists() and not ours and any(folder.iterdir()):
        raise SystemExit(f"{folder} holds something else than a site. Name an empty folder, or none.")
    shutil.rmtree(folder, ignore_errors=True)
    gather(folder)
    # Zensical reads its settings from where it runs; its own process, since it keeps state.
    subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "--clean"], cwd=folder, check=True)
    for page in (folder / "html").rglob("*.html"):
        if page.name.endswith((".zh.html", ".zh-cn.html")):
            text = page.read_text(encoding="utf-8")
            page.write_text(text.replace('<html lang="en"', '<html lang="zh-CN"', 1), encoding="utf-8")
    return folder / "html"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    asked = Path(sys.argv[1]) if len(sys.argv) > 1 else pages.ROOT / "build" / "site"
    try:
        made = build(asked)
    except (markdown.BrokenLinkError, ValueError) as error:
        raise SystemExit(str(error)) from None
    except subprocess.CalledProcessError as error:
        raise SystemExit("The site is not built: Zensical says why above.") from error
    print(f"{made / 'index.html'}")
