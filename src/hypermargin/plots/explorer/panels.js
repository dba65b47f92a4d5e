// The panels: every number, curve and sentence that follows from the state.

const curveOf = (f, angles) => angles.map((theta) => [theta * DEGREES, f(theta)]);
const ANGLES = Array.from({ length: 241 }, (_, i) => (i / 240) * Math.PI);
const rangeOf = (curves, low, high) => {
  const values = curves.flatMap((curve) => curve.points.map((point) => point[1]));
  const [least, most] = [Math.min(low, ...values), Math.max(high, ...values)];
  return [least, most === least ? least + 1 : most];
};
const degreesAxis = (label) => ({ range: [0, 180], ticks: [0, 45, 90, 135, 180], write: (x) => `${x}°`, label });

// Two curves over θ, with the margin and without, and the sample on the first.
function overTheta(plot, f, bare, { label, low, high, name, height, knotted = [], below = "", other = null }) {
  const angles = [...ANGLES, ...knotted].sort((a, b) => a - b);
  const curves = [
    { class: "hm-plain", points: curveOf(bare, ANGLES) },
    ...(other ? [{ class: "hm-pinned", points: curveOf(other, ANGLES) }] : []),
    { class: "hm-main", points: curveOf(f, angles) },
  ];
  const theta = state.theta / DEGREES;
  const dots = knotted.map((knot) => ({ class: "hm-knot", at: [knot * DEGREES, f(knot)] }));
  dots.push({ class: "hm-here", at: [state.theta, f(theta)], r: 5.5 });
  const y = { range: rangeOf(curves, low, high), label };
  const x = degreesAxis(below);
  curves.unshift(...strips(...y.range));
  chart(one(`[data-plot="${plot}"]`), { x, y, curves, dots, cursor: state.theta, height, name });
}

// The reader's samples along the bottom of a plot: how many have which angle, to their own class and to the
// nearest other.
function strips(low, high) {
  if (!samples) return [];
  return samples.strips.map((shares, i) => {
    const height = (share) => low + 0.22 * share * (high - low);
    const points = shares.flatMap((share, k) => [2 * k, 2 * k + 2].map((x) => [x, height(share)]));
    return { class: i ? "hm-rival-strip" : "hm-own-strip", points: [[0, low], ...points, [180, low]] };
  });
}

function numbers() {
  const theta = state.theta / DEGREES;
  const found = maths.band(state, state.theta12 / DEGREES);
  return {
    theta: state.theta, cosine: Math.cos(theta), psi: maths.psi(theta, state), slope: maths.psiSlope(theta, state),
    knots: maths.knots(state).map((knot) => knot * DEGREES),
    ...found, width: found.width * DEGREES, boundary: found.boundary * DEGREES,
    share: (100 * found.width * DEGREES) / state.theta12,
    loss: maths.loss(theta, state), gradient: maths.gradient(theta, state),
    probability: maths.probability(theta, state),
    simplexProbability: maths.simplexProbability(state), smallestScale: maths.smallestScale(state, state.P),
    lossFloor: maths.lossFloor(state), simplexAngle: Math.acos(-1 / (state.classes - 1)) * DEGREES,
  };
}

const UNITS = {
  theta: "°", width: "°", boundary: "°", simplexAngle: "°",
  share: " %", samplesMet: " %", samplesGain: " %", samplesLose: " %",
};

function write(name, value) {
  for (const output of all(`[data-value-of="${name}"]`)) {
    output.dataset.value = JSON.stringify(value);
    output.textContent = Array.isArray(value)
      ? value.map((x) => `${show(x)}°`).join(", ") || say("none")
      : show(value) + (UNITS[name] ?? "");
  }
}

const tell = (where, text) => all(`[data-shows="${where}"]`).forEach((place) => put(place, text));

function summary() {
  const { psi, width, loss, probability: p } = numbers();
  const shown = Object.entries({ psi, width, loss, p }).map(([name, value]) => [name, show(value)]);
  return say("summary", { ...Object.fromEntries(shown), theta: plain(state.theta) });
}

function draw() {
  const found = numbers();
  for (const [name, value] of Object.entries(found)) if (name !== "feasible") write(name, value);
  const below = say("axis_theta"); // under the lower of two plots
  const bare = { ...state, m1: 1, m2: 0, m3: 0, lambda: 0, form: "" };
  const other = (f) => pinned && ((theta) => f(theta, { ...pinned, classes: state.classes, rivals: state.rivals }));
  const psi = (theta) => maths.psi(theta, state);
  const knotted = maths.knots(state);
  const both = {
    name: say("psi_title"), low: -1, high: 1, label: say("axis_psi"), knotted, other: other(maths.psi),
  };
  overTheta("psi", psi, Math.cos, { ...both, height: 240 });
  if (widthOf(one('[data-plot="mini"]'))) overTheta("mini", psi, Math.cos, { ...both, height: 140 });
  overTheta("slope", (t) => maths.psiSlope(t, state), (t) => -Math.sin(t),
    { name: say("axis_slope"), low: -1, high: 0, label: say("axis_slope"), height: 170, knotted, below,
      other: other(maths.psiSlope) });
  circle(one('[data-plot="band"]'), {
    ...found, theta12: state.theta12 / DEGREES, width: found.width / DEGREES, boundary: found.boundary / DEGREES,
    at: state.theta / DEGREES, name: say("band_title"),
  });
  drawWidths(found);
  tell("band", bandWords(found));
  tell("sample", sampleWords(found));
  overTheta("loss", (t) => maths.loss(t, state), (t) => maths.loss(t, bare),
    { name: say("loss_title"), low: 0, high: 0.1, label: say("axis_loss"), height: 200, other: other(maths.loss) });
  overTheta("gradient", (t) => maths.gradient(t, state), (t) => maths.gradient(t, bare),
    { name: say("axis_gradient"), low: 0, high: 0.1, label: say("axis_gradient"), height: 180, below,
      other: other(maths.gradient) });
  drawSimplex(found, bare);
  drawSamples(pinned ? { ...pinned, classes: state.classes } : bare);
  drawLadder();
  drawControls();
}

function bandWords({ feasible, width }) {
  if (!feasible) {
    const values = { psi: show(maths.psi(0, state)), cosine: show(Math.cos(state.theta12 / DEGREES)) };
    return say("band_infeasible", values);
  }
  if (width < -1e-9) return say("band_overlap", { width: show(-width) });
  return width < 1e-9 ? say("band_none") : say("band_some", { width: show(width) });
}

// Whose the sample is, with the margin counted: at θ from W1, and at θ12 − θ from W2.
function sampleWords({ feasible, boundary }) {
  const { theta, theta12 } = state;
  if (theta > theta12) return say("sample_beyond");
  const first = feasible && theta <= boundary;
  const second = feasible && theta12 - theta <= boundary;
  if (first && second) return say("sample_both");
  return first ? say("sample_first") : second ? say("sample_second") : say("sample_neither");
}

// The same margin between closer and farther classes; on the dashed line the band would be the whole arc.
function drawWidths({ width }) {
  const widthAt = (degrees) => maths.band(state, degrees / DEGREES).width * DEGREES;
  const widths = { class: "hm-main", points: Array.from({ length: 180 }, (_, i) => [i + 1, widthAt(i + 1)]) };
  const range = rangeOf([widths], 0, 90);
  const whole = { class: "hm-plain", points: [[0, 0], [range[1], range[1]]] };
  chart(one('[data-plot="widths"]'), {
    x: degreesAxis(say("axis_theta12")), y: { range, label: say("axis_width"), steps: [1.5, 3, 4.5, 9, 15] },
    curves: [whole, widths],
    dots: [{ class: "hm-here", at: [state.theta12, width], r: 5.5 }], cursor: state.theta12, height: 190,
    name: say("axis_width"),
  });
}

function drawSimplex({ smallestScale, simplexProbability }, bare) {
  const powers = Array.from({ length: 141 }, (_, i) => i / 20);
  const over = (setting) => powers.map((t) => [t, maths.simplexProbability({ ...setting, s: 2 ** t })]);
  const dots = [{ class: "hm-here", at: [Math.log2(state.s), simplexProbability], r: 5.5 }];
  if (smallestScale >= 1 && smallestScale <= 128) {
    dots.unshift({ class: "hm-knot", at: [Math.log2(smallestScale), state.P] });
  }
  chart(one('[data-plot="simplex"]'), {
    x: { range: [0, 7], ticks: [0, 1, 2, 3, 4, 5, 6, 7], write: (t) => 2 ** t, label: say("axis_s") },
    y: { range: [0, 1], label: say("axis_probability") },
    curves: [{ class: "hm-plain", points: over(bare) }, { class: "hm-main", points: over(state) }],
    dots, level: state.P, cursor: Math.log2(state.s), height: 210, name: say("simplex_title"),
  });
  drawScales(smallestScale, bare);
  const needed = { s: show(smallestScale), P: state.P };
  const enough = state.s >= smallestScale ? say("scale_enough", needed) : say("scale_short", needed);
  const free = headOf(state.head)?.unit_features === false;
  const verdict = smallestScale === Infinity ? say("scale_never") : free ? say("scale_free", needed) : enough;
  tell("scale", state.m1 < 1 ? `${verdict} ${say("floor_not")}` : verdict);
}

// The smallest s by the number of classes, up to where the slider of s ends.
function drawScales(smallestScale, bare) {
  const most = SLIDERS.s.high;
  const counts = [...new Set(Array.from({ length: 121 }, (_, i) => Math.round(2 * 500000 ** (i / 120))))];
  const over = (setting) =>
    counts.map((classes) => [Math.log10(classes), maths.smallestScale({ ...setting, classes }, state.P)])
      .filter(([, s]) => s <= most);
  const curves = [{ class: "hm-plain", points: over(bare) }, { class: "hm-main", points: over(state) }];
  const at = [Math.log10(state.classes), smallestScale];
  chart(one('[data-plot="scales"]'), {
    x: { range: [Math.log10(2), 6], ticks: [1, 2, 3, 4, 5, 6], write: tenTo, label: say("axis_classes") },
    y: { range: rangeOf(curves, 0, 20), label: say("axis_smallest") },
    curves, dots: smallestScale <= most ? [{ class: "hm-here", at, r: 5.5 }] : [], cursor: at[0], height: 190,
    name: say("axis_smallest"),
  });
}
