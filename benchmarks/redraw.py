"""How long a redraw takes with many samples in the explorer, and on the page of a run: python -m benchmarks.redraw

The sliders of m, of s and of the threshold move by sixty steps each; printed are the main thread's CPU time per
step, painting included, and the median of the wall clock from the input to the frame after it.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hypermargin.common.arrays import Floats
from hypermargin.evaluate import evaluate
from hypermargin.files import write_text
from hypermargin.plots import explorer
from hypermargin.runpage import Subject, of_embeddings
from hypermargin.runpage import page as page_of

MOVE = """async ([slider, values]) => {
  const range = document.querySelector(slider);
  const took = [];
  for (const value of values) {
    range.value = value;
    const start = performance.now();
    range.dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    took.push(performance.now() - start);
  }
  return took.sort((a, b) => a - b)[took.length >> 1];
}"""


def main() -> None:
    """Make samples, open them in the page, move the sliders."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("samples", 50_000), ("classes", 200), ("dim", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    rng = np.random.default_rng(0)
    weight = rng.normal(size=(given.classes, given.dim))
    labels = rng.integers(0, given.classes, given.samples)
    features = weight[labels] + rng.normal(size=(given.samples, given.dim))
    with sync_playwright() as play, tempfile.TemporaryDirectory() as folder:
        file, page, report = (Path(folder) / name for name in ("samples.npz", "explorer.html", "report.html"))
        np.savez(file, embeddings=features.astype(np.float32), labels=labels, weight=weight.astype(np.float32))
        explorer.write(page)
        result = evaluate(features, labels, confidence=None)
        content = of_embeddings(
            Subject(torch.from_numpy(features), labels), result, {"eer": result.verification.threshold}
        )
        write_text(report, page_of({"title": "samples", **content}))
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        shown = browser.new_page(viewport={"width": 1280, "height": 900})
        shown.goto(page.as_uri())
        shown.locator("input[type=file]").set_input_files(file)
        ready = "() => document.querySelector('[data-panel=samples]').dataset.has"
        shown.wait_for_function(ready, timeout=300_000)
        move(shown, "m", '[data-slider="m2"] input', np.linspace(0.2, 0.8, 60))
        move(shown, "s", '[data-slider="s"] input', np.linspace(20, 80, 60))
        shown.goto(report.as_uri())
        points = shown.evaluate("Number(document.querySelector('#hp-t').max)")
        move(shown, "threshold", "#hp-t", np.linspace(0.05 * points, 0.95 * points, 60).round())
        browser.close()


def move(shown: Any, name: str, slider: str, values: Floats) -> None:
    """Move a slider through values, and print what a step takes."""
    session = shown.context.new_cdp_session(shown)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        found = session.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in found if each["name"] == "TaskDuration"))

    before = spent()
    wall = shown.evaluate(MOVE, [slider, values.tolist()])
    cpu = 1000 * (spent() - before) / len(values)
    print(f"{name}: {cpu:.1f} ms of CPU per redraw, {wall:.1f} ms by the clock (median)")


if __name__ == "__main__":
    main()
