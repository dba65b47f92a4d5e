"""Features on the sphere as a page of one file, on which it is turned by mouse, touch and arrow keys."""

from __future__ import annotations

import html
import math
import os
from pathlib import Path

from hypermargin.files import write_text
from hypermargin.plots import explorer
from hypermargin.plots.features import FeaturesDisplay
from hypermargin.plots.html import as_json, colours, document

HOW = "Drag the sphere, or use the arrow keys."


def turnable(display: FeaturesDisplay, path: str | os.PathLike[str], *, dark: bool = False) -> None:
    """Write features on the sphere as an .html file, which follows the reader's light or dark."""
    if display.on != "sphere":
        raise ValueError(
            f'display must be features on the sphere; got on="{display.on}". Its save makes a picture.'
        )
    ends = [] if display.prototypes is None else display.prototypes.tolist()
    scene = {
        "at": display.points.round(4).ravel().tolist(), "label": display.classes.tolist(),
        "arrows": [[*end, name] for end, name in zip(ends, display.names, strict=False)],
        "view": {"azimuth": math.radians(display.view.azimuth), "elevation": math.radians(display.view.elevation)},
    }  # fmt: skip
    title = html.escape(display.title)
    caption = html.escape(f"{display.caption[0].upper()}{display.caption[1:]}. ") if display.caption else ""
    names = "".join(f"<li><i></i><bdi>{html.escape(name)}</bdi></li>" for name in display.names)
    body = f"""<main class="hm-base">
<h1>{title}</h1>
<p>{caption}{HOW}</p>
<canvas tabindex="0" role="img" aria-label="{title}. {HOW}"></canvas>
<ul class="hm-legend">{names}</ul>
</main>"""
    script = f'"use strict";\nconst given = {as_json(scene)};\n{explorer.asset("sphere.js")}\n{SCRIPT}'
    css = f"{colours(':root')}\n{explorer.asset('base.css')}\n{STYLE}"
    root = 'data-theme="dark"' if dark else ""
    write_text(Path(path), document(display.title, css, body, script, root=root))


STYLE = """body { margin: 0; padding: 1rem; background: var(--ground); }
main { max-width: 720px; margin: 0 auto; }
h1 { font-size: 1.3rem; margin: 0 0 0.3rem; }
canvas { display: block; width: min(100%, calc(100vh - 9rem)); min-width: 240px; aspect-ratio: 1;
  margin: 0 auto 0.6rem; cursor: grab; touch-action: pan-y; }
.hm-legend i { flex: none; width: 11px; height: 11px; }
.hm-legend .dot { border-radius: 50%; }
.hm-legend .triangle { clip-path: polygon(50% 0, 100% 100%, 0 100%); }"""
SCRIPT = """const page = getComputedStyle(document.documentElement);
const colour = (name) => page.getPropertyValue(`--${name}`).trim();
const kind = given.label.map((k) => k % LOOKS);

function scene() {
  const styles = looks(colour);
  document.querySelectorAll(".hm-legend i").forEach((mark, k) => {
    const [fill, shape] = styles[k % LOOKS];
    mark.style.background = fill;
    mark.className = ["dot", "square", "triangle"][shape];
  });
  return { at: given.at, kind, styles, arrows: given.arrows,
    ink: colour("ink"), ground: colour("ground"), faint: colour("faint") };
}

const draw = turnable(document.querySelector("canvas"), scene, "", given.view);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
new ResizeObserver(draw).observe(document.querySelector("main"));"""
