"""Pictures in turn: a GIF, or a page with a slider that needs nothing but a browser."""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from hypermargin import checks
from hypermargin.files import replacing, write_text
from hypermargin.plots.html import as_json, colours, document
from hypermargin.plots.style import Display, look, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from PIL.Image import Image

ENDINGS = ".gif", ".html"
GIF_DPI = 100
Limits = tuple[tuple[float, float], tuple[float, float]]


@dataclass(eq=False)
class _Frame(Display):
    """A display within the limits that all frames share; its name above it, if it has one."""

    inner: Display
    limits: Sequence[Limits]
    name: str = ""

    @property
    def size(self) -> tuple[float, float]:  # type: ignore[override]  # the inner one's
        """The size of the figure."""
        return self.inner.size

    def draw(self, ax: Axes) -> None:
        """Draw the inner display, then set the limits."""
        self.inner.plot(ax)
        for own, (x, y) in zip(_axes(self.inner), self.limits, strict=True):
            own.set_xlim(x)
            own.set_ylim(y)
        if self.name:
            figure = ax.get_figure(root=True)
            assert figure is not None  # it has just been drawn on
            figure.suptitle(self.name, fontsize=12, color=look(ax).ink, x=0.98, ha="right")


def animate(
    frames: Sequence[tuple[str, Display]], path: str | os.PathLike[str], *, pause: float = 0.5, dark: bool = False
) -> None:
    """Write (name, display) one after the other, `pause` seconds each; the last is held longer.

    .gif plays by itself. .html has a slider, a button and the arrow keys, fetches nothing, and follows the
    reader's light or dark. All frames have the axis limits that hold every one of them.
    """
    path = Path(path)
    if path.suffix.lower() not in ENDINGS:
        raise ValueError(
            f"path must end in .gif or .html; got {path.name!r}. One picture is saved by its own save."
        )
    if not frames:
        raise ValueError("frames must hold at least one (name, display); got none.")
    checks.positive("pause", pause)
    limits = _common([display for _, display in frames])
    if path.suffix.lower() == ".html":
        write_text(path, _page(frames, limits, pause, dark))
        return
    images = [_image(_Frame(display, limits, name), dark) for name, display in frames]
    times = [round(1000 * pause)] * (len(images) - 1) + [round(4000 * pause)]
    first, *rest = images
    with replacing(path) as temporary:
        first.save(temporary, save_all=True, append_images=rest, duration=times, loop=0, optimize=False)


def _axes(display: Display) -> list[Axes]:
    found: list[Axes] = getattr(display, "axes_", [display.ax_])
    return found


def _common(displays: Sequence[Display]) -> list[Limits]:
    """Return, for each axes of a frame, the limits that hold all frames."""
    seen = []
    for display in displays:
        display.plot(new_axes(display.size))
        seen.append([(own.get_xlim(), own.get_ylim()) for own in _axes(display)])
    if len({len(one) for one in seen}) > 1:
        raise ValueError("frames must all have as many panels; they are shown in one place.")
    return [(_hull([x for x, _ in own]), _hull([y for _, y in own])) for own in zip(*seen, strict=True)]


def _hull(ranges: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _image(frame: _Frame, dark: bool) -> Image:
    """Return the image in 255 colours, as a GIF has them."""
    from PIL import Image

    figure = frame._figure(dark)
    figure.set_dpi(GIF_DPI)
    canvas = figure.canvas
    canvas.draw()
    width, height = canvas.get_width_height()
    pixels = Image.frombuffer("RGBA", (width, height), bytes(canvas.buffer_rgba()), "raw", "RGBA", 0, 1)  # type: ignore[attr-defined]  # Agg's
    return pixels.convert("RGB").quantize(255, dither=Image.Dither.NONE)


def _page(frames: Sequence[tuple[str, Display]], limits: Sequence[Limits], pause: float, dark: bool) -> str:
    """Write the page. Each frame is an SVG of its own, as an image, so that their styles and names do not meet."""
    pictures = [
        "data:image/svg+xml;base64," + base64.b64encode(_Frame(d, limits).svg(dark=dark).encode()).decode()
        for _, d in frames
    ]
    names = [name for name, _ in frames]
    title = f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]
    body = BODY.substitute(first=html.escape(names[0]), picture=pictures[0], last=len(frames) - 1)
    data = f"const names = {as_json(names)};\nconst pictures = {as_json(pictures)};\n"
    script = f'"use strict";\n{data}const pause = {round(1000 * pause)};\n{SCRIPT}'
    css = f"{colours(':root')}\nbody {{ max-width: {round(96 * frames[0][1].size[0])}px; }}\n{STYLE}"
    return document(title, css, body, script, root='data-theme="dark"' if dark else "")


STYLE = """body { margin: 0 auto; padding: 1rem; background: var(--ground); color: var(--ink); }
body, button { font: 1rem/1.4 system-ui, sans-serif; }
img { display: block; width: 100%; height: auto; }
form { display: flex; gap: .8rem; align-items: center; flex-wrap: wrap; }
button { min-width: 5.5rem; min-height: 44px; }
input { flex: 1 1 10rem; min-height: 44px; margin: 0; }
output { min-width: 6rem; font-variant-numeric: tabular-nums; }"""
BODY = Template("""<main>
<img id="picture" alt="$first" src="$picture">
<form>
<button type="button" id="play">Play</button>
<input type="range" id="slider" min="0" max="$last" value="0" step="1" aria-label="frame" aria-valuetext="$first">
<output id="name" for="slider" aria-live="polite">$first</output>
</form>
</main>""")
SCRIPT = """const element = (id) => document.getElementById(id);
const [picture, play, slider, name] = ["picture", "play", "slider", "name"].map(element);
let timer = null;

function show(k) {
  slider.value = k;
  picture.src = pictures[k];
  picture.alt = name.value = names[k];
  slider.setAttribute("aria-valuetext", names[k]);
}

function stop() {
  clearInterval(timer);
  timer = null;
  play.textContent = "Play";
}

function next() {
  const k = Number(slider.value) + 1;
  if (k >= names.length) return stop();
  show(k);
}

play.addEventListener("click", () => {
  if (timer !== null) return stop();
  if (Number(slider.value) === names.length - 1) show(0);
  play.textContent = "Pause";
  timer = setInterval(next, pause);
});
slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });"""
