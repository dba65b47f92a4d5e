// The threshold: what it accepts and refuses, and the pairs that it is wrong about. Everything is linked: a pair that
// is picked is marked among the scores, on the curve, and among the lengths.

const shown = () => (root.clientWidth < 700 ? 6 : 12); // pairs of a kind
let curve, pairs, dots;

// The lowest threshold, by its number in the curve, that is not below a score; scores fall along the curve.
function pointOf(score) {
  let [low, high] = [0, curve.threshold.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (curve.threshold[middle] > score) low = middle + 1;
    else high = middle;
  }
  const before = Math.max(0, low - 1);
  return Math.abs(curve.threshold[before] - score) <= Math.abs(curve.threshold[low] - score) ? before : low;
}

const at = () => curve.threshold[state.t];
const shownScore = (t) => (data.unit === "distance" ? -t : t);

function startBrowser() {
  curve = data.curve;
  one("#hp-t").max = curve.threshold.length - 1;
  const first = data.thresholds.find(({ name }) => name === "eer") ?? data.thresholds[0];
  state.t = pointOf(first ? first.at : curve.threshold[curve.threshold.length >> 1]);
  if (data.samples) dots = { norm: floats(data.samples.norm), cosine: floats(data.samples.cosine) };
  if (data.pairs)
    pairs = data.pairs.score.map((score, i) => ({
      i,
      score,
      genuine: Boolean(data.pairs.genuine[i]),
      rows: [data.pairs.first[i], data.pairs.second[i]],
    }));
  one("#hp-t").addEventListener("input", (event) => choose({ t: Number(event.target.value) }));
  const across = {
    scores: (x) => pointOf(x),
    roc: (x) => byRate(curve.far, 10 ** x),
    det: (x) => byRate(curve.far, fromProbit(x)),
  };
  for (const [plot, point] of Object.entries(across))
    draggable(one(`[data-plot="${plot}"]`), (x) => choose({ t: point(x) }));
  one('[data-plot="norms"]').addEventListener("click", pickSample);
  one('[data-plot="norms"]').addEventListener("keydown", stepSample);
  one('[data-do="forget"]').addEventListener("click", () => choose({ sample: null, pair: null }));
}

const byRate = (rates, wanted) =>
  rates.reduce((best, rate, i) => (Math.abs(rate - wanted) < Math.abs(rates[best] - wanted) ? i : best), 0);

function choose(changes) {
  Object.assign(state, changes);
  redraw();
}

const identity = (label) => isolated(data.samples.names[label]);
const nameOf = (k) => identity(data.samples.label[k]);
const rowOf = (k) => data.samples.rows[k];

function drawBrowser() {
  const t = at();
  const slider = one("#hp-t");
  slider.value = state.t;
  const unit =
    data.unit === "cosine"
      ? `${cosine(t)} · ${(Math.acos(Math.max(-1, Math.min(1, t))) * DEGREES).toFixed(1)}°`
      : show(shownScore(t));
  slider.setAttribute("aria-valuetext", unit);
  tell("t", unit);
  drawPresets();
  tell("chosen", data.chosen && data.chosen !== data.part ? say(`chosen_${data.chosen}`) : say("chosen_here"));
  drawRates(t);
  drawScores(t);
  drawRoc();
  drawDet();
  if (data.samples) drawNorms();
  if (pairs) drawPairs(t);
}

function drawPresets() {
  const place = list("presets");
  const known = data.thresholds.map(({ name, at: score }) => [
    name === "eer" ? say("equal_errors") : `FAR ${name}`,
    pointOf(score),
  ]);
  const made = state.lang + known.length;
  if (place.dataset.made !== made) {
    place.dataset.made = made;
    place.replaceChildren(
      ...known.map(([name, point]) => {
        const button = el("button", { type: "button" }, name);
        button.addEventListener("click", () => choose({ t: point }));
        return button;
      }),
    );
  }
  [...place.children].forEach((button, i) => button.setAttribute("aria-pressed", known[i][1] === state.t));
}

function drawRates() {
  const [far, frr] = [curve.far[state.t], 1 - curve.tar[state.t]];
  const rows = [
    ["FAR", percent(far), say("of_impostors", { k: whole(far * data.impostor), n: whole(data.impostor) })],
    ["FRR", percent(frr), say("of_genuine", { k: whole(frr * data.genuine), n: whole(data.genuine) })],
    ["TAR", percent(1 - frr), ""],
  ];
  list("rates").replaceChildren(
    ...rows.map(([name, value, note]) =>
      el("div", {}, el("dt", {}, name), el("dd", {}, value), el("dd", { class: "hp-small" }, note)),
    ),
  );
}
