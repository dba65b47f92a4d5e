// Where the reader's samples stand to their own class and to the others, and the directions in which they spread.

const NODES = 15; // s = 1, √2, 2, … 128
const WORK = 6e9; // multiplications for the rivals; with more, they are those of some of the samples
const PATIENCE = 12; // milliseconds between two breaths
const BINS = 512; // of the cosines, for R(s)

const breathe = () => new Promise((done) => setTimeout(done));

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
  const most = Math.min(MOST_SAMPLES, Math.max(64, Math.floor(WORK / (C * d))));
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
    if (performance.now() - last > PATIENCE) {
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
const MOST_SPREAD = 2 ** 22; // numbers looked at for the directions in which they spread most

// Three dimensions as they are; of more the three in which the unit rows spread most, by power iteration.
function directions(x, n, d, ids) {
  const most = Math.min(n, MOST_POINTS, Math.max(64, Math.floor(MOST_SPREAD / d)));
  const rows = Array.from({ length: most }, (_, i) => Math.floor((i * n) / most));
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
  return { at, label };
}

// Of many dimensions three hold little: the farthest point goes to the rim.
function enlarge(at) {
  let most = 0;
  for (let i = 0; i < at.length; i += 3) most = Math.max(most, Math.hypot(at[i], at[i + 1], at[i + 2]));
  if (most > 0) for (let i = 0; i < at.length; i++) at[i] *= 0.97 / most;
}
