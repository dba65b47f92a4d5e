// The file that the reader gives: an .npz of embeddings and labels, or the page of a run.

const MOST_SAMPLES = 100_000; // that are drawn at every step of a slider
const MOST_NUMBERS = MOST_BYTES / 4; // of an array, which is kept as 32-bit numbers
const NAMES = {
  x: ["embeddings", "features"],
  y: ["labels", "label", "y"],
  w: ["weight", "weights", "centers", "prototypes"],
};

let samples = null;
let problem = null; // why the last file cannot be shown: its name, and a word with its values
let under = 0; // the number of the file under way; an older one stops where it is

async function openFile(file) {
  const mine = ++under;
  const still = () => mine === under;
  try {
    tell("file", say("file_reading", { name: file.name }));
    if (file.size > MOST_BYTES) refuse("file_large", { most: MOST_BYTES / 2 ** 20 });
    const found = /\.html?$/i.test(file.name)
      ? fromPage(await file.text())
      : await fromArrays(new Uint8Array(await file.arrayBuffer()), still);
    if (!still() || !found) return;
    take(found, file.name);
  } catch (error) {
    if (!still()) return;
    const { key, values } = error instanceof FileError ? error : { key: "file_damaged", values: {} };
    problem = { name: file.name, key, values };
    tell("file", said());
  }
}

function take(found, name) {
  problem = null;
  samples = { ...found, name };
  samples.strips = [samples.own, samples.rival].map(shareByAngle);
  samples.nearest = Float64Array.from(samples.rival, Math.cos);
  room = null;
  tell("file", said());
  if (found.head) Object.assign(state, settingOf(found.head));
  state.classes = allowed("classes", found.classes) ?? state.classes; // whether s is large enough depends on them
  forgetHead();
  one('[data-panel="samples"]').dataset.has = "samples";
  measure(all("svg[data-plot]")); // the panel's own was not laid out before
  redraw();
}

function said() {
  if (problem) {
    const still = samples ? ` ${say("file_still", { name: samples.name })}` : "";
    return `${problem.name}: ${say(problem.key, problem.values)}${still}`;
  }
  if (!samples) return say("file_none");
  const { n, of, classes, name, against } = samples;
  const some = n < of ? say("file_some", { n: count(n), of: count(of) }) : count(n);
  return say("file_shown", {
    name,
    n: some,
    classes: count(classes),
    against: say(against === "weight" ? "against_weight" : "against_means"),
  });
}

const count = (x) => x.toLocaleString(state.lang === "zh" ? "zh-CN" : "en-US");

// A page of a run: its data are JSON in a script element that is not run.
function fromPage(text) {
  const start = text.indexOf('<script type="application/json" id="hm-data"' + ">");
  const end = text.indexOf("<" + "/script>", start);
  if (start < 0 || end < 0) refuse("file_no_page");
  let page;
  try {
    page = JSON.parse(text.slice(text.indexOf(">", start) + 1, end));
  } catch {
    refuse("file_damaged");
  }
  return fromData(page) ?? refuse("file_no_samples");
}

function fromData(page) {
  if (!page?.cloud) return null;
  const { of, classes, rows, against } = page.cloud;
  const [own, rival, rest] = ["own", "rival", "rest"].map((name) => base64(page.cloud[name]));
  const n = own.length;
  const alike = n > 0 && n <= MOST_SAMPLES && rival.length === n && rest.length === NODES * n && rows?.length === n;
  const known = [own, rival, rest].every((values) => values.every(Number.isFinite));
  if (!alike || !known || !Number.isInteger(of) || !Number.isInteger(classes)) refuse("file_damaged");
  return {
    n,
    of,
    classes,
    own: own.map(angleOf),
    rival: rival.map(angleOf),
    rest,
    label: (i) => say("row", { k: rows[i] }),
    points: page.points && spaced(page.points),
    head: page.head,
    against,
  };
}

const base64 = (text) => new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
const angleOf = (cosine) => Math.acos(Math.max(-1, Math.min(1, cosine)));

// The points of a page, on the ball; those of a plane on its equator.
function spaced({ at: text, width, label }) {
  const at = base64(text);
  if (![2, 3].includes(width) || !Array.isArray(label) || at.length !== width * label.length) refuse("file_damaged");
  if (width === 3) return { at, label };
  const found = new Float32Array(3 * label.length);
  label.forEach((_, i) => {
    const length = Math.hypot(at[2 * i], at[2 * i + 1]) || 1;
    [found[3 * i], found[3 * i + 1]] = [at[2 * i] / length, at[2 * i + 1] / length];
  });
  return { at: found, label };
}

// Where the sliders go: to the margin and the scale of the run, as far as they can say them.
function settingOf({ name, scale, numbers, form, lambda, unit_features: unit }) {
  const preset = headOf(name);
  const found = { head: preset ? name : "", s: (unit ? allowed("s", scale) : preset?.s) ?? state.s };
  if (!numbers && !form) return { ...found, head: "" }; // a margin that the sliders cannot say: the scale alone
  const [m1, m2, m3] = numbers ?? [1, 0, 0];
  const given = { m1, m2, m3, lambda, form };
  for (const key in given) found[key] = allowed(key, given[key]) ?? state[key];
  return found;
}

async function fromArrays(bytes, still) {
  const zip = unzip(bytes);
  const open = async (kind) => {
    const name = NAMES[kind].find((each) => zip.names.includes(each));
    return name ? npy(await zip.read(name), name) : null;
  };
  const given = { x: await open("x"), y: await open("y"), w: await open("w") };
  if (!given.x || !given.y) refuse("file_arrays", { names: zip.names.slice(0, 8).map(isolated).join(", ") });
  const sides = ({ shape }) => shape.join(" × ") || "1";
  const [n, d, ...more] = given.x.shape;
  if (more.length || !d || n < 2 || given.x.words) refuse("file_shape", { shape: sides(given.x) });
  const [rows, columns = 1, ...others] = given.y.shape;
  if (rows !== n || columns !== 1 || others.length) refuse("file_labels", { n, k: sides(given.y) });
  const x = unitRows(given.x, n, d);
  const [ids, names] = identities(given.y.read());
  let centers;
  if (given.w) {
    const [C, width, ...more] = given.w.shape;
    if (width !== d || C < 2 || more.length || given.w.words) refuse("file_weight", { name: given.w.name, d });
    const row = (name) =>
      /^\d+$/.test(name) && Number(name) < C ? Number(name) : refuse("file_rows", { C, name: isolated(String(name)) });
    const places = names.map(row);
    centers = { at: unitRows(given.w, C, d), of: Int32Array.from(ids, (k) => places[k]), C };
  } else {
    centers = { ...means(x, ids, names.length, d), of: ids, C: names.length };
    if (centers.C < 2) refuse("file_one_class");
  }
  const measured = await against(x, n, d, centers, still);
  if (!measured) return null;
  const taken = measured.rows;
  return {
    ...measured,
    of: n,
    classes: centers.C,
    label: (i) => `${isolated(String(names[ids[taken[i]]]))}, ${say("row", { k: taken[i] })}`,
    points: directions(x, n, d, ids),
    against: given.w ? "weight" : "means",
  };
}

function identities(values) {
  const known = new Map();
  const ids = Int32Array.from(values, (value) => {
    if (!known.has(value)) known.set(value, known.size);
    return known.get(value);
  });
  return [ids, [...known.keys()]];
}

// The rows of an array at length 1. Their largest number is taken out first: no square is too large or too small.
function unitRows({ name, read }, n, d) {
  if (n * d > MOST_NUMBERS) refuse("file_large", { most: MOST_BYTES / 2 ** 20 });
  const values = read();
  const found = values instanceof Float32Array ? values : new Float32Array(n * d);
  for (let i = 0; i < n; i++) {
    const [from, to] = [i * d, (i + 1) * d];
    let [most, square] = [0, 0];
    for (let j = from; j < to; j++) most = Math.max(most, Math.abs(values[j]));
    if (!Number.isFinite(most) || most === 0) refuse("file_zero", { name, row: i });
    for (let j = from; j < to; j++) square += (values[j] / most) ** 2;
    const length = Math.sqrt(square);
    for (let j = from; j < to; j++) found[j] = values[j] / most / length;
  }
  return found;
}
