"""Draw every picture of the documents anew: docs/pictures and docs/gallery.md. `make gallery` runs it.

Screenshots are taken where Chromium is found; elsewhere those that are there stay.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
import sys
import tempfile
from pathlib import Path

from hypermargin.compare import Comparison, Plan
from hypermargin.demo import circles, find, title
from hypermargin.evaluate import Thresholds
from hypermargin.files import write_text
from hypermargin.plots import Display, animate, explorer, pictures
from hypermargin.plots.learned import frames
from hypermargin.plots.snapshots import DIGITS
from hypermargin.plots.style import Panels
from hypermargin.runpage import write_report
from hypermargin.training import Config, load, train
from hypermargin.training.evaluation import open_parts

DOCS = Path(__file__).resolve().parent
FOLDER = DOCS / "pictures"
HEAD = """# Gallery

Every picture that `hypermargin plot` draws, with its defaults. `make gallery` drew them; nothing was drawn by hand.
`hypermargin plot NAME --help` lists what one takes; in Python it is `hypermargin.plots.make("NAME", …)`, or the
Display that it returns. The pictures of runs show small networks trained for seconds on scikit-learn's digits; give
`--run RUN` to see yours. SVG files turn dark by themselves where the reader's browser prefers that.

The explorer, a page with sliders: `hypermargin plot explorer --out explorer.html`

![The explorer](pictures/explorer.png)

It follows the system's light or dark, speaks English and Chinese, and fits a phone:

![The explorer, dark](pictures/explorer-dark.png)

![The explorer in Chinese](pictures/explorer-zh.png)

![The explorer on a phone](pictures/explorer-phone.png)

The report of a comparison: `hypermargin compare`

![The report](pictures/report.png)

![The report, dark](pictures/report-dark.png)

![The report on a phone](pictures/report-phone.png)
"""
DESK, PHONE = (1280, 960), (390, 844)


def draw() -> None:
    """Each picture as SVG, the moving one as GIF, and the page that shows them."""
    lines = [HEAD]
    for name, picture in pictures().items():
        display: Display = picture.make()
        display.save(FOLDER / f"{name}.svg")
        word = picture.about.split()[0]
        about = picture.about[0].upper() + picture.about[1:] if word.isascii() and word.isalpha() else picture.about
        lines.append(f"## {name}\n\n{about}.\n\n![{name}](pictures/{name}.svg)\n")
        print(name, flush=True)
    animate(frames(), FOLDER / "features.gif")
    lines.append("## features, over the epochs\n\n`hypermargin plot features --out features.gif`, or `.html`.\n")
    lines.append("![features](pictures/features.gif)\n")
    write_text(DOCS / "gallery.md", "\n".join(lines))


def circles_of(demo: Path) -> Panels:
    """The first picture of the demo's page, with its titles."""
    found = find(Comparison.read(demo, Plan.read(demo)))
    panels = [dataclasses.replace(each, title=title(found, key, "en")) for key, each in circles(found).items()]
    return Panels(panels, columns=3, panel_size=(3.6, 3.7))


def draw_derivation() -> None:
    """The pictures of docs/derivation.md, by the code there; the gallery has drawn the others."""
    text = (DOCS / "derivation.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for code in re.findall(r"^```python\n(.*?)^```$", text, flags=re.M | re.S):
            if '.save("derivation-' in code:
                exec(compile(code, "derivation.md", "exec"), {})
        for made in Path().glob("derivation-*.svg"):
            shutil.copyfile(made, FOLDER / made.name)
            print(made.stem, flush=True)


def run_page(folder: Path) -> Path:
    """Train on digits for some seconds, and return the page that the run ends with."""
    train(
        Config(**DIGITS, head="arcface", dim=3, epochs=8, tensorboard=False, workers=0, threads=1, device="cpu"),
        folder,
    )
    return write_report(folder, open_parts(folder, load(folder)), Thresholds.read(folder))


def photograph(demo: Path | None) -> None:
    """The explorer, the page of a run, and the demo's report if it is there, for a desk and a phone."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        print("no Chromium: the screenshots stay as they are", file=sys.stderr)
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play, tempfile.TemporaryDirectory() as folder:
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = Path(folder) / "explorer.html"
        explorer.write(page)
        # Only what a document shows: tests/docs looks for pictures that none does.
        shots = [
            (page, "explorer", "light", "en", DESK),
            (page, "explorer-phone", "light", "en", PHONE),
            (page, "explorer-dark", "dark", "en", DESK),
            (page, "explorer-zh", "light", "zh", DESK),
        ]
        run = run_page(Path(folder) / "run")
        shots += [(run, "run", "light", "en", DESK), (run, "run-phone", "light", "en", PHONE)]
        if demo is not None:
            report = demo / "report.html"
            shots += [
                (report, "report", "light", "en", DESK),
                (report, "report-phone", "light", "en", PHONE),
                (report, "report-dark", "dark", "en", DESK),
            ]
        for file, name, scheme, lang, (width, height) in shots:
            shown = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            shown.goto(file.as_uri())
            if lang != "en":
                shown.locator("[data-choice=lang]").first.select_option(lang)
            shown.screenshot(path=FOLDER / f"{name}.png")
            shown.close()
        browser.close()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    draw()
    draw_derivation()
    demo = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None
    if demo is not None:
        circles_of(demo).save(FOLDER / "demo.svg")
    photograph(demo)
