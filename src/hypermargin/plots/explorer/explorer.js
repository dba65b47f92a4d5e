// The state, from and to the address; the controls that change it; and the start.

const START = {
  head: "arcface", m1: 1, m2: 0.5, m3: 0, lambda: 0, s: 64, classes: 1000, theta12: 90, theta: 55,
  rivals: "right", P: 0.99, step: 1, form: "",
};
const CHOICES = {
  form: ["", ...Object.keys(FORMS)], rivals: ["right", "simplex"], P: [0.9, 0.99, 0.999], lang: Object.keys(data.words),
};

// Logarithmic sliders walk along round numbers, so that every press of an arrow key is a visible step.
const decades = (from, to) => {
  const found = [];
  for (let ten = from; ten < to; ten *= 10) {
    for (const k of [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9]) found.push(Number((k * ten).toPrecision(3)));
  }
  return [...found, to];
};
const SLIDERS = {
  m1: { low: 0.5, high: 8, step: 0.05 },
  m2: { low: 0, high: 3.1, step: 0.01, unit: "rad" },
  m3: { low: 0, high: 1.9, step: 0.01 },
  lambda: { low: 0, high: 1000, stops: [0, ...decades(0.01, 1000)] },
  s: { low: 1, high: 128, step: 0.5 },
  classes: { low: 2, high: 1e6, whole: true, stops: decades(1, 1e6).filter((c) => c >= 2 && Number.isInteger(c)) },
  theta12: { low: 1, high: 180, step: 1, unit: "°" },
  theta: { low: 0, high: 180, step: 0.5, unit: "°" },
};
const OF_A_HEAD = ["m1", "m2", "m3", "lambda", "s", "form"];

const all = (selector) => [...root.querySelectorAll(selector)];
const one = (selector) => root.querySelector(selector);
const state = { ...START, lang: data.lang };

// A sentence in the reader's language, with {names} filled in.
function say(key, values = {}) {
  const text = data.words[state.lang][key];
  if (text === undefined) throw new Error(`words.json has no ${key} in ${state.lang}`);
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

// Text into an element, with c_y shown as c and a small y below it. What has not changed is left alone: a screen
// reader would read it out again.
function put(place, text) {
  if (place.said === text) return;
  place.said = text;
  const safe = text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
  place.innerHTML = safe.replace(/_(\w)/g, "<sub>$1</sub>");
}

// ---- state, from and to the address -------------------------------------------------------------------------

// `value` as the state holds it under `key`, or null where it is not allowed.
function allowed(key, value) {
  if (key in SLIDERS) {
    const { low, high, whole } = SLIDERS[key];
    const number = value === "" ? NaN : Number(value);
    return number >= low && number <= high && (!whole || Number.isInteger(number)) ? number : null;
  }
  if (key === "step") return RUNGS[Number(value) - 1] ? Number(value) : null;
  if (key === "head") return value === "" || headOf(value) ? value : null;
  return CHOICES[key]?.find((choice) => String(choice) === String(value)) ?? null;
}

function readAddress() {
  const given = [...new URLSearchParams(location.hash.slice(1))].filter(([key]) => key in state);
  if (given.length === 0) return;
  Object.assign(state, START, { lang: data.lang });
  for (const [key, value] of given) state[key] = allowed(key, value) ?? state[key];
  forgetHead();
}

const address = () => {
  const kept = Object.entries(state).filter(([key, value]) => key !== "lang" || value !== data.lang);
  return `#${new URLSearchParams(kept)}`;
};

// A browser takes some hundred changes of the address in half a minute, so it is told of pauses only.
// The page of a run opens with the run's setting, which is in no address: the next training may have another.
let pause = 0;
let moved = !document.getElementById("hm-data");
function afterPause() {
  clearTimeout(pause);
  pause = setTimeout(() => {
    tell("summary", summary());
    if (moved) history.replaceState(null, "", address());
  }, 250);
}

const headOf = (name) => data.heads.find((head) => head.name === name);

// A head keeps its name only while all its numbers stand.
function forgetHead() {
  const head = headOf(state.head);
  if (head && OF_A_HEAD.some((key) => head[key] !== state[key])) state.head = "";
}

// Many changes between two frames of the screen are one drawing.
let frame = 0;
function redraw() {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    draw();
  });
}

function change(changes) {
  moved = true;
  Object.assign(state, changes);
  // A ψ of its own form has no m1, m2, m3: whoever moves one of them leaves it.
  if (!("form" in changes) && ["m1", "m2", "m3"].some((key) => key in changes)) state.form = "";
  forgetHead();
  redraw();
  afterPause();
}

// ---- controls -----------------------------------------------------------------------------------------------

function makeSliders() {
  for (const [key, { low, high, step, stops, unit, whole }] of Object.entries(SLIDERS)) {
    const row = one(`[data-slider="${key}"]`);
    const label = row.querySelector("label");
    label.htmlFor = `hm-${key}`;
    label.id = `hm-${key}-label`;
    row.insertAdjacentHTML("beforeend", `
      <input type="range" aria-labelledby="hm-${key}-label" min="${stops ? 0 : low}"
        max="${stops ? stops.length - 1 : high}" step="${stops ? 1 : step}">
      <input type="number" id="hm-${key}" min="${low}" max="${high}" step="any"><span>${unit ?? ""}</span>`);
    const [range, field] = row.querySelectorAll("input");
    range.addEventListener("input", () => change({ [key]: stops ? stops[range.value] : Number(range.value) }));
    field.addEventListener("input", () => {
      const value = allowed(key, field.value);
      field.setAttribute("aria-invalid", value === null);
      if (value !== null) change({ [key]: value });
    });
    // What was typed half or out of range goes to the nearest that is allowed.
    field.addEventListener("change", () => {
      if (allowed(key, field.value) !== null) return;
      const near = field.value === "" ? state[key] : Math.min(high, Math.max(low, Number(field.value)));
      change({ [key]: whole ? Math.round(near) : near });
      field.value = state[key];
      field.setAttribute("aria-invalid", false);
    });
  }
}

const nearestStop = (key, value) =>
  SLIDERS[key].stops.reduce((best, stop) => (Math.abs(stop - value) < Math.abs(best - value) ? stop : best));

function drawControls() {
  for (const [key, { stops }] of Object.entries(SLIDERS)) {
    const [range, field] = one(`[data-slider="${key}"]`).querySelectorAll("input");
    // Six decimals fit the field; nobody is interrupted while typing.
    if (document.activeElement !== field) field.value = Number(Number(state[key].toPrecision(7)).toFixed(6));
    range.value = stops ? stops.indexOf(nearestStop(key, state[key])) : state[key];
    range.setAttribute("aria-valuetext", plain(state[key]) + (SLIDERS[key].unit ?? ""));
  }
  tell("degrees", `= ${show(state.m2 * DEGREES)}°`);
  for (const select of all("[data-choice]")) {
    select.value = select.dataset.choice === "theme" ? root.dataset.theme : state[select.dataset.choice];
  }
  all('[name="hm-rivals"]').forEach((radio) => (radio.checked = radio.value === state.rivals));
  one(".hm-link").href = address();
  const head = headOf(state.head);
  tell("head", head ? head.paper : say("head_custom_note"));
  tell("free", freeWords(head));
  tell("form", state.form ? say(FORM_WORDS[state.form]) : "");
  one('[data-do="pin"]').textContent = say(pinned ? "unpin" : "pin");
  tell("pinned", pinned ? say("pinned_is", { name: named(pinned) }) : "");
  all(".hm-with-pin").forEach((place) => (place.hidden = !pinned));
  all(".hm-with-strips").forEach((place) => (place.hidden = !samples));
}

const FORM_WORDS = { x2: "form_x2", expface: "form_expface" };
const freeWords = (head) =>
  !head || head.unit_features ? "" : say(head.unit_weight ? "free_features" : "free_both");

// ---- a pinned curve, and what can be copied -------------------------------------------------------------------

let pinned = null; // a setting to compare with

const named = ({ head, m1, m2, m3, lambda, s }) =>
  head || `m₁ = ${plain(m1)}, m₂ = ${plain(m2)}, m₃ = ${plain(m3)}, λ = ${plain(lambda)}, s = ${plain(s)}`;

// Numbers as Python and the command line read them.
const typed = (x) => String(Number(x.toPrecision(6)));

// The head of the library that the setting is: its name, and what of it differs from what the name alone gives.
function headAs() {
  const head = headOf(state.head);
  const form = data.heads.find((each) => each.form && each.form === state.form);
  const name = head?.of ?? form?.of ?? "combined";
  const numbers = {};
  if (!head && !form) for (const key of ["m1", "m2", "m3"]) numbers[key] = typed(state[key]);
  if (!head || head.unit_features) numbers.scale = typed(state.s);
  return { name, numbers, lambda: !head && state.lambda ? typed(state.lambda) : "" };
}

function asPython() {
  const { name, numbers, lambda } = headAs();
  const set = Object.entries(numbers).map(([key, value]) => `${key}=${value}`);
  const given = [`"${name}"`, "dim=128", `classes=${state.classes}`, ...set];
  if (lambda) given.push(`schedule=LambdaAnnealing(base=${lambda}, floor=${lambda})`);
  const more = lambda ? "from hypermargin.schedule import LambdaAnnealing\n" : "";
  const made = `head = hm.create_head(${given.join(", ")})\nloss = head(features, labels)\n`;
  return `import hypermargin as hm\n${more}\n${made}`;
}

function asCommand() {
  const { name, numbers, lambda } = headAs();
  const given = Object.entries(numbers).map(([key, value]) => `--set ${key}=${value}`);
  given.unshift("--settings paper"); // else the advisor fits m to the number of classes and dimensions
  if (lambda) given.push(`--schedule lambda:base=${lambda},floor=${lambda}`);
  return ["hypermargin train --data photos/", `--head ${name}`, ...given].join(" ");
}

// To the clipboard; where a page may not, by way of a field that is copied from.
async function copy(text, word) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    root.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    if (!done) return tell("copied", text);
  }
  tell("copied", say(word));
}

function drawWords() {
  root.lang = state.lang === "zh" ? "zh-Hans" : "en";
  // A page that is the explorer's own is called like it, in the reader's language.
  if (Object.values(data.words).some(({ title }) => title === document.title)) {
    document.title = say("title");
    document.documentElement.lang = root.lang;
  }
  for (const place of all("[data-word]")) put(place, say(place.dataset.word));
  const heads = data.heads.map(({ name }) => `<option value="${name}">${name}</option>`).join("");
  one('[data-choice="head"]').innerHTML = `<option value="">${say("head_custom")}</option>${heads}`;
  tell("summary", summary());
  tell("file", said());
}

// ---- start --------------------------------------------------------------------------------------------------

const CHOSEN = {
  head: (name) => {
    const head = headOf(name) ?? state; // "own setting" keeps the numbers
    change({ head: name, ...Object.fromEntries(OF_A_HEAD.map((key) => [key, head[key]])) });
  },
  P: (value) => change({ P: Number(value) }),
  lang: (lang) => {
    change({ lang });
    drawWords();
  },
  theme: (theme) => {
    root.dataset.theme = theme;
    redraw(); // a canvas takes its colours when it is drawn
  },
};

function start() {
  makeSliders();
  makeLadder();
  readAddress();
  drawWords();
  for (const select of all("[data-choice]")) {
    select.addEventListener("change", () => CHOSEN[select.dataset.choice](select.value));
  }
  for (const radio of all('[name="hm-rivals"]')) {
    radio.addEventListener("change", () => change({ rivals: radio.value }));
  }
  one('[data-do="reset"]').addEventListener("click", () => {
    resetLadder();
    change({ ...START });
  });
  one('[data-do="pin"]').addEventListener("click", () => {
    pinned = pinned ? null : { ...state };
    redraw();
  });
  one('[data-do="python"]').addEventListener("click", () => copy(asPython(), "copied_python"));
  one('[data-do="command"]').addEventListener("click", () => copy(asCommand(), "copied_command"));
  one(".hm-link").addEventListener("click", (event) => {
    event.preventDefault();
    history.replaceState(null, "", address());
    copy(location.href, "copied_link");
  });
  startSamples();
  // Half degrees and half steps of s, like the sliders.
  const half = (x) => Math.round(2 * x) / 2;
  for (const plot of ["psi", "mini", "slope", "loss", "gradient", "samples"]) {
    draggable(one(`[data-plot="${plot}"]`), (x) => change({ theta: half(x) }));
  }
  draggable(one('[data-plot="widths"]'), (x) => change({ theta12: Math.max(1, Math.round(x)) }));
  draggable(one('[data-plot="simplex"]'), (x) => change({ s: half(2 ** x) }));
  draggable(one('[data-plot="scales"]'), (x) => change({ classes: nearestStop("classes", 10 ** x) }));
  window.addEventListener("hashchange", () => {
    readAddress();
    drawWords();
    draw();
  });
  // A drawing may change the root's height, which must not bring on the next drawing.
  let width = 0;
  const refit = () => {
    if (width === root.clientWidth) return;
    width = root.clientWidth;
    measure(all("svg[data-plot]"));
    redraw();
  };
  new ResizeObserver(refit).observe(root);
  refit();
  draw();
}

window.hypermarginExplorer = maths;
start();
