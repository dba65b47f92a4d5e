// Where the reader's samples stand, measured from the arrays of a file or read from the page of a run.

const NODES = 15; // s = 1, √2, 2, … 128
const WORK = 6e9; // multiplications for the rivals; with more, they are those of some of the samples
const PATIENCE = 12; // milliseconds between two breaths
const BINS = 512; // of the cosines, for R(s)
const NAMES = {
  x: ["embeddings", "features"],
  y: ["labels", "label", "y"],
  w: ["weight", "weights", "centers", "prototypes"],
  names: ["names", "paths", "files"],
};

let samples = null;
let under = 0; // the number of the file under way; an older one stops where it is

const breathe = () => new Promise((done) => setTimeout(done));

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
    if (still())
      tell(
        "file",
        error instanceof FileError ? `${file.name}: ${error.message}` : `${file.name}: ${say("file_damaged")}`,
      );
  }
}

function take(found, name) {
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
  const [own, rival, rest] = ["own", "rival", "rest"].map((name) => base64(page.cloud[name]));
  if (rival.length !== own.length || rest.length !== NODES * own.length) refuse("file_damaged");
  const points = page.points && { ...page.points, at: base64(page.points.at) };
  return {
    n: own.length,
    of: page.cloud.of,
    classes: page.cloud.classes,
    own: own.map(angleOf),
    rival: rival.map(angleOf),
    rest,
    label: (i) => say("row", { k: page.cloud.rows[i] }),
    points: points && spaced(points.at, points.width, points.label, points.names),
    head: page.head,
    against: page.cloud.against,
  };
}

const base64 = (text) => new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
const angleOf = (cosine) => Math.acos(Math.max(-1, Math.min(1, cosine)));

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
  const named = (kind) => NAMES[kind].find((name) => zip.names.includes(name));
  const read = async (kind) => {
    const name = named(kind);
    return name ? npy(await zip.read(name), name) : null;
  };
  const given = { x: await read("x"), y: await read("y"), w: await read("w") };
  if (!given.x || !given.y) refuse("file_arrays", { names: zip.names.slice(0, 8).join(", ") });
  const {
    shape: [n, d, ...more],
    values,
  } = given.x;
  if (more.length || !d || n < 2 || Array.isArray(values))
    refuse("file_shape", { shape: given.x.shape.join(" × ") });
  if (given.y.shape.length !== 1 || given.y.values.length !== n)
    refuse("file_labels", { n, k: given.y.values.length });
  const x = unitRows(values, n, d, named("x"));
  const [ids, names] = identities(given.y.values);
  let centers;
  if (given.w) {
    const [C, width] = given.w.shape;
    if (width !== d || C < 2) refuse("file_weight", { name: named("w"), d });
    for (const name of names)
      if (!Number.isInteger(name) || name < 0 || name >= C) refuse("file_rows", { C, name });
    centers = { at: unitRows(given.w.values, C, d, named("w")), of: Int32Array.from(ids, (k) => names[k]), C };
  } else {
    centers = { ...means(x, ids, names.length, d), of: ids, C: names.length };
    if (centers.C < 2) refuse("file_one_class");
  }
  const measured = await against(x, n, d, centers, still);
  if (!measured) return null;
  const rows = measured.rows;
  return {
    ...measured,
    of: n,
    classes: centers.C,
    label: (i) => `${names[ids[rows[i]]]}, ${say("row", { k: rows[i] })}`,
    points: directions(x, n, d, ids, names),
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

function unitRows(values, n, d, name) {
  const found = Float32Array.from(values);
  for (let i = 0; i < n; i++) {
    let square = 0;
    for (let j = i * d; j < (i + 1) * d; j++) square += found[j] * found[j];
    if (!Number.isFinite(square) || square === 0) refuse("file_zero", { name, row: i });
    const by = 1 / Math.sqrt(square);
    for (let j = i * d; j < (i + 1) * d; j++) found[j] *= by;
  }
  return found;
}

// The mean direction of every class; a sample alone in its class has nothing to be compared with and is left out.
function means(x, ids, C, d) {
  const at = new Float32Array(C * d);
  const sizes = new Int32Array(C);
  ids.forEach((k, i) => {
    sizes[k]++;
    for (let j = 0; j < d; j++) at[k * d + j] += x[i * d + j];
  });
  for (let k = 0; k < C; k++) {
    let square = 0;
    for (let j = k * d; j < (k + 1) * d; j++) square += at[j] * at[j];
    const by = square > 1e-20 ? 1 / Math.sqrt(square) : 0; // samples that cancel have no direction
    for (let j = k * d; j < (k + 1) * d; j++) at[j] *= by;
  }
  return { at, sizes };
}

// The angles and R(s)/s, in pieces between which the page can breathe.
async function against(x, n, d, { at, of, C, sizes }, still) {
  const usable = Array.from({ length: n }, (_, i) => i).filter((i) => !sizes || sizes[of[i]] > 1);
  if (usable.length === 0) refuse("file_alone");
  const most = Math.max(64, Math.floor(WORK / (C * d)));
  const step = Math.max(1, usable.length / most);
  const rows = Int32Array.from({ length: Math.min(usable.length, most) }, (_, i) => usable[Math.floor(i * step)]);
  const [own, rival, rest] = [
    new Float32Array(rows.length),
    new Float32Array(rows.length),
    new Float32Array(NODES * rows.length),
  ];
  const tables = expTables();
  const bins = new Int32Array(BINS + 1);
  let last = performance.now();
  for (let r = 0; r < rows.length; r++) {
    const start = rows[r] * d;
    const y = of[rows[r]];
    let nearest = -2;
    bins.fill(0);
    for (let k = 0; k < C; k++) {
      let cosine = 0;
      for (let j = 0, w = k * d; j < d; j++, w++) cosine += x[start + j] * at[w];
      if (k === y) own[r] = angleOf(cosine);
      else {
        bins[Math.max(0, Math.min(BINS, Math.round(((cosine + 1) * BINS) / 2)))]++;
        if (cosine > nearest) nearest = cosine;
      }
    }
    rival[r] = angleOf(nearest);
    smoothMaxima(rest, r, bins, nearest, tables);
    if ((r & 15) === 0 && performance.now() - last > PATIENCE) {
      tell("file", say("file_measuring", { share: Math.floor((100 * r) / rows.length) }));
      await breathe();
      if (!still()) return null;
      last = performance.now();
    }
  }
  return { n: rows.length, own, rival, rest, rows };
}

// exp(s·c) at the middle of every bin, over exp(s); the mean over a bin is larger by sinh(h)/h, h = s·half a bin.
function expTables() {
  return Array.from({ length: NODES }, (_, k) => {
    const s = 2 ** (k / 2);
    const h = s / BINS;
    return Float64Array.from(
      { length: BINS + 1 },
      (_, b) => (Math.exp(s * ((2 * b) / BINS - 2)) * Math.sinh(h)) / h,
    );
  });
}

// R(s)/s = log Σ exp(s·c_j)/s at every node; the nearest rival counts as what it is, the others as their bins.
function smoothMaxima(rest, r, bins, nearest, tables) {
  const top = Math.max(0, Math.min(BINS, Math.round(((nearest + 1) * BINS) / 2)));
  for (let k = 0; k < NODES; k++) {
    const s = 2 ** (k / 2);
    const table = tables[k];
    let sum = Math.exp(s * (nearest - 1));
    for (let b = 0; b <= top; b++) if (bins[b]) sum += (bins[b] - (b === top ? 1 : 0)) * table[b];
    rest[NODES * r + k] = 1 + Math.log(sum) / s;
  }
}

const MOST_POINTS = 2500;

function spaced(at, width, label, names) {
  if (width === 3) return { at, label, names };
  const found = new Float32Array(3 * label.length);
  label.forEach((_, i) => {
    const length = Math.hypot(at[2 * i], at[2 * i + 1]) || 1;
    [found[3 * i], found[3 * i + 1]] = [at[2 * i] / length, at[2 * i + 1] / length];
  });
  return { at: found, label, names };
}

// Three dimensions as they are; of more the three in which the unit rows spread most, by power iteration.
function directions(x, n, d, ids, names) {
  const step = Math.max(1, n / MOST_POINTS);
  const rows = Array.from({ length: Math.min(n, MOST_POINTS) }, (_, i) => Math.floor(i * step));
  const at = new Float32Array(3 * rows.length);
  const label = rows.map((row) => ids[row]);
  if (d <= 3) rows.forEach((row, i) => at.set(x.subarray(row * d, (row + 1) * d), 3 * i));
  else {
    const axes = [];
    for (let a = 0; a < 3; a++) {
      let axis = Float64Array.from({ length: d }, (_, j) => Math.cos(1 + (a + 1) * j));
      for (let round = 0; round < 24; round++) {
        const next = new Float64Array(d);
        for (const row of rows) {
          let along = 0;
          for (let j = 0; j < d; j++) along += x[row * d + j] * axis[j];
          for (let j = 0; j < d; j++) next[j] += along * x[row * d + j];
        }
        for (const other of axes) {
          const along = other.reduce((sum, value, j) => sum + value * next[j], 0);
          other.forEach((value, j) => (next[j] -= along * value));
        }
        const length = Math.hypot(...next) || 1;
        axis = next.map((value) => value / length);
      }
      axes.push(axis);
    }
    rows.forEach((row, i) =>
      axes.forEach((axis, a) => {
        for (let j = 0; j < d; j++) at[3 * i + a] += x[row * d + j] * axis[j];
      }),
    );
    enlarge(at);
  }
  return { at, label, names: names.map(String) };
}

// Of many dimensions three hold little: the farthest point goes to the rim.
function enlarge(at) {
  let most = 0;
  for (let i = 0; i < at.length; i += 3) most = Math.max(most, Math.hypot(at[i], at[i + 1], at[i + 2]));
  if (most > 0) for (let i = 0; i < at.length; i++) at[i] *= 0.97 / most;
}
