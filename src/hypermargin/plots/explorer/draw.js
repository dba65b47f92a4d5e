// SVG from numbers. A drawing is one string, made anew on every change: a few kilobytes, a millisecond or two.

const DEGREES = 180 / Math.PI;
const FRAME = { left: 50, right: 14, top: 26 };

const tenTo = (power) => `10${String(Number(power)).replace(/./g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]))}`;

// 0.0123456 → 0.01235, 12345.6 → 12346, 1e-9 → 1.000×10⁻⁹; with a true minus sign.
function show(x, digits = 4) {
  if (x === Infinity) return "∞";
  if (Math.abs(x) < 1e-300) return "0";
  const size = Math.floor(Math.log10(Math.abs(x)));
  let text;
  if (size < -4) {
    const [mantissa, power] = x.toExponential(digits - 1).split("e");
    text = `${mantissa}×${tenTo(power)}`;
  } else {
    text = x.toFixed(Math.max(0, digits - 1 - size));
  }
  return text.replace("-", "−");
}

// A number as someone would type it.
const plain = (x) => String(Number(x.toPrecision(6))).replace("-", "−");

// A name as it stands within a sentence: signs that turn the direction of writing end with the name.
const TURNING = /[\u0590-\u08ff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufb1d-\ufefc]/;
const isolated = (name) => (TURNING.test(name) ? `\u2068${name.replace(/[\u2066-\u2069]/g, "")}\u2069` : name);

// Round numbers from low to high, about as many as asked for.
function ticks(low, high, about, steps = [1, 2, 5, 10]) {
  const rough = (high - low) / about;
  const ten = 10 ** Math.floor(Math.log10(rough));
  const step = steps.map((k) => k * ten).find((k) => k >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found;
}

const hundredth = (x) => Math.round(100 * x) / 100;
const pathOf = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${hundredth(x)} ${hundredth(y)}`).join("");

// A chart. x = {range, ticks, write, label}, y = {range, label}; curves of [x, y] points, each with its class;
// dots; clouds of many points, each with its class; a cursor (a value of x); level: a value of y to draw a line at.
// The frame and the ranges are left in the SVG's data, for dragging.
function chart(svg, { x, y, curves, dots = [], clouds = [], cursor, level, height, name }) {
  const width = widthOf(svg);
  const right = width - FRAME.right;
  const bottom = height - (x.label ? 40 : 22);
  const [x0, x1] = x.range;
  const [y0, y1] = y.range;
  const px = (value) => FRAME.left + ((value - x0) / (x1 - x0)) * (right - FRAME.left);
  const py = (value) => bottom - ((value - y0) / (y1 - y0)) * (bottom - FRAME.top);
  const parts = [];
  for (const tick of y.ticks ?? ticks(y0, y1, 4, y.steps)) {
    parts.push(`<line class="hm-grid" x1="${FRAME.left}" x2="${right}" y1="${py(tick)}" y2="${py(tick)}"/>`);
    const said = (y.write ?? plain)(tick);
    parts.push(`<text x="${FRAME.left - 6}" y="${py(tick) + 4}" text-anchor="end">${said}</text>`);
  }
  for (const tick of x.ticks) {
    parts.push(`<line class="hm-grid" x1="${px(tick)}" x2="${px(tick)}" y1="${FRAME.top}" y2="${bottom}"/>`);
    parts.push(`<text x="${px(tick)}" y="${bottom + 15}" text-anchor="middle">${x.write(tick)}</text>`);
  }
  parts.push(`<text class="hm-axis" x="4" y="13">${y.label}</text>`);
  parts.push(`<text class="hm-axis" x="${right}" y="${height - 6}" text-anchor="end">${x.label}</text>`);
  if (level !== undefined) {
    parts.push(`<line class="hm-wanted" x1="${FRAME.left}" x2="${right}" y1="${py(level)}" y2="${py(level)}"/>`);
  }
  for (const curve of curves) {
    const points = curve.points.map(([a, b]) => [px(a), py(b)]);
    parts.push(`<path class="hm-curve ${curve.class}" d="${pathOf(points)}"/>`);
  }
  for (const { class: kind, points } of clouds) {
    const spots = points.map(([a, b]) => `M${hundredth(px(a))} ${hundredth(py(b))}h0`).join("");
    parts.push(`<path class="${kind}" d="${spots}"/>`);
  }
  if (cursor !== undefined) {
    const at = px(cursor);
    parts.push(`<line class="hm-cursor" x1="${at}" x2="${at}" y1="${FRAME.top}" y2="${bottom}"/>`);
  }
  for (const dot of dots) {
    parts.push(`<circle class="${dot.class}" cx="${px(dot.at[0])}" cy="${py(dot.at[1])}" r="${dot.r ?? 4}"/>`);
  }
  fill(svg, parts, width, height, name);
  svg.dataset.frame = JSON.stringify([FRAME.left, right, bottom, FRAME.top]);
  svg.dataset.range = JSON.stringify([x0, x1, y0, y1]);
}

// One unit of the drawing is one pixel of the page, so text has its size on every screen. Widths are asked for only
// when the page has changed its own: asking between two drawings would lay the page out anew each time.
const widthOf = (svg) => Number(svg.dataset.width);
const measure = (svgs) => svgs.forEach((svg) => (svg.dataset.width = svg.clientWidth));

function fill(svg, parts, width, height, name) {
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.setAttribute("aria-label", name);
  svg.innerHTML = parts.join("");
}

// Press or drag anywhere on a chart: the value of x there goes to `move`.
function draggable(svg, move) {
  const follow = (event) => {
    const [left, right] = JSON.parse(svg.dataset.frame);
    const [low, high] = JSON.parse(svg.dataset.range);
    const box = svg.getBoundingClientRect();
    const share = (event.clientX - box.left - left) / (right - left);
    move(low + Math.min(1, Math.max(0, share)) * (high - low));
  };
  svg.addEventListener("pointerdown", (event) => {
    svg.setPointerCapture(event.pointerId);
    if (event.pointerType !== "touch") follow(event); // a finger may only want to scroll; it counts when lifted
  });
  for (const kind of ["pointermove", "pointerup"]) {
    svg.addEventListener(kind, (event) => svg.hasPointerCapture(event.pointerId) && follow(event));
  }
}

// Lines for the band and dots for class 2, so that the parts differ without their colours.
const PATTERNS = `<defs>
  <pattern id="hm-hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
    <rect width="7" height="7" class="hm-hatch-ground"/><line y2="7" class="hm-hatch-line"/></pattern>
  <pattern id="hm-dots" width="8" height="8" patternUnits="userSpaceOnUse">
    <rect width="8" height="8" class="hm-dots-ground"/><circle cx="4" cy="4" r="1.2" class="hm-dots-dot"/></pattern>
</defs>`;

// The half circle with both centers on it: W1 on the left, W2 θ12 to its right. `at` is the sample's angle to W1.
function circle(svg, { theta12, boundary, width, at, name }) {
  const wide = widthOf(svg);
  const radius = Math.min(wide / 2 - 44, 190);
  const [cx, cy] = [wide / 2, radius + 50];
  const start = Math.PI / 2 + theta12 / 2;
  const point = (from, r) => [cx + r * Math.cos(start - from), cy - r * Math.sin(start - from)];
  const sector = (from, to, kind) => {
    const [a, b] = [point(from, radius), point(to, radius)];
    const arc = `A${radius} ${radius} 0 0 1 ${b[0].toFixed(2)} ${b[1].toFixed(2)}`;
    return `<path class="${kind}" d="M${cx} ${cy}L${a[0].toFixed(2)} ${a[1].toFixed(2)}${arc}Z"/>`;
  };
  const ray = (from, reach, kind) => {
    const [x, y] = point(from, reach);
    return `<line class="${kind}" x1="${cx}" y1="${cy}" x2="${x}" y2="${y}"/>`;
  };
  const word = (from, r, text, anchor = "middle") => {
    const [x, y] = point(from, r);
    return `<text class="hm-word" x="${x}" y="${y + 4}" text-anchor="${anchor}">${text}</text>`;
  };
  const [left, right] = [point(0, radius), point(theta12, radius)];
  const parts = [
    PATTERNS,
    `<path class="hm-rim" d="M${cx - radius} ${cy}A${radius} ${radius} 0 0 1 ${cx + radius} ${cy}"/>`,
    sector(0, boundary, "hm-class1"),
    sector(theta12 - boundary, theta12, "hm-class2"),
  ];
  if (Math.abs(width) > 1e-9) {
    const ends = [boundary, theta12 - boundary].sort((a, b) => a - b);
    parts.push(sector(...ends, width > 0 ? "hm-band" : "hm-band hm-overlap"));
  }
  parts.push(ray(boundary, radius, "hm-edge1"), ray(theta12 - boundary, radius, "hm-edge2"));
  parts.push(ray(0, radius, "hm-center"), ray(theta12, radius, "hm-center"));
  if (boundary * DEGREES > 14 && width > 0) {
    parts.push(word(boundary / 2, radius * 0.62, "1"), word(theta12 - boundary / 2, radius * 0.62, "2"));
  }
  parts.push(`<circle class="hm-tip" cx="${left[0]}" cy="${left[1]}" r="4.5"/>`);
  parts.push(`<rect class="hm-tip" x="${right[0] - 4.5}" y="${right[1] - 4.5}" width="9" height="9"/>`);
  parts.push(word(0, radius + 14, "W₁", "end"), word(theta12, radius + 14, "W₂", "start"));
  parts.push(`<text class="hm-strong" x="${cx}" y="16" text-anchor="middle">${show(width * DEGREES)}°</text>`);
  if (at <= theta12 + 1e-12) {
    const [x, y] = point(at, radius);
    parts.push(`<circle class="hm-here" cx="${x}" cy="${y}" r="5.5"/>`, word(at, radius - 18, "x"));
  }
  fill(svg, parts, wide, cy + 12, name);
}
