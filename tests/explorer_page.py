"""The explorer with a file in it, as its tests open and ask it."""

import io
import json

import numpy as np


def settle(page):
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def go(page, **state):
    page.evaluate("hash => { location.hash = hash }", "&".join(f"{k}={v}" for k, v in {"step": 1, **state}.items()))
    settle(page)


def arrays(seed=0, classes=40, dim=12, n=400, noise=0.5):
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(classes, dim))
    y = rng.integers(0, classes, n)
    return (w[y] + noise * rng.normal(size=(n, dim))).astype(np.float32), y, w.astype(np.float32)


def packed(compressed=False, **found):
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **found)
    return file.getvalue()


def give(page, content, name="mine.npz"):
    """Open a file in the page; return what it says when it is done with it."""
    page.evaluate("document.querySelector('[data-shows=file]').textContent = ''")
    page.locator("input[type=file]").set_input_files({"name": name, "mimeType": "", "buffer": content})
    page.wait_for_function(
        "n => { const t = document.querySelector('[data-shows=file]').textContent;"
        " return t.startsWith(n + ': '); }",
        arg=name,
    )
    settle(page)
    return page.locator("[data-shows=file]").text_content()


def value(page, name):
    return json.loads(page.locator(f'[data-value-of="{name}"]').get_attribute("data-value"))
