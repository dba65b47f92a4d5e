"""How long a redraw of the explorer takes with many samples in it: python -m benchmarks.redraw

The slider of m, then that of s, moves by sixty steps; printed are the main thread's CPU time per step, painting
included, and the median of the wall clock from the input to the frame after it.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hypermargin.plots import explorer

MOVE = """async ([slider, values]) => {
  const range = document.querySelector(`[data-slider="${slider}"] input[type=range]`);
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
        file, page = Path(folder) / "samples.npz", Path(folder) / "explorer.html"
        np.savez(file, embeddings=features.astype(np.float32), labels=labels, weight=weight.astype(np.float32))
        explorer.write(page)
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        shown = browser.new_page(viewport={"width": 1280, "height": 900})
        shown.goto(page.as_uri())
        shown.locator("input[type=file]").set_input_files(file)
        ready = "() => document.querySelector('[data-panel=samples]').dataset.has"
        shown.wait_for_function(ready, timeout=300_000)
        session: Any = shown.context.new_cdp_session(shown)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})

        def spent() -> float:
            found = session.send("Performance.getMetrics")["metrics"]
            return float(next(each["value"] for each in found if each["name"] == "TaskDuration"))

        for slider, values in (("m2", np.linspace(0.2, 0.8, 60)), ("s", np.linspace(20, 80, 60))):
            before = spent()
            wall = shown.evaluate(MOVE, [slider, values.tolist()])
            cpu = 1000 * (spent() - before) / len(values)
            print(f"{slider}: {cpu:.1f} ms of CPU per redraw, {wall:.1f} ms by the clock (median)")
        browser.close()


if __name__ == "__main__":
    main()
