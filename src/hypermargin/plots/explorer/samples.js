// Embeddings of the reader's own: where each sample stands to its class and to the others, and what moving m, s and λ
// does to it. Of every sample are kept the angle to its own class, that to the nearest other, and R(s)/s at fifteen s.

// Weights of four neighbouring nodes for R(s)/s at this s: a Catmull–Rom spline over log s.
function spline(s) {
  const t = Math.max(0, Math.min(NODES - 1, 2 * Math.log2(s)));
  const k = Math.min(NODES - 2, Math.floor(t));
  const u = t - k;
  const w = [
    (((2 - u) * u - 1) * u) / 2,
    ((3 * u - 5) * u * u + 2) / 2,
    (((4 - 3 * u) * u + 1) * u) / 2,
    ((u - 1) * u * u) / 2,
  ];
  const found = [k - 1, k, k + 1, k + 2].map((node, i) => [node, w[i]]);
  // Beyond the ends the next node is where a straight line has it.
  const fold = (out, near, next) => {
    const i = found.findIndex(([node]) => node === out);
    if (i < 0) return;
    const weight = found[i][1];
    found[i] = [near, 2 * weight];
    found.push([next, -weight]);
  };
  fold(-1, 0, 1);
  fold(NODES, NODES - 1, NODES - 2);
  return found;
}

// Of every sample the loss and the pull |dL/dθ| on its angle; and how many meet the margin.
function judged(setting, { n, own, nearest, rest }, into) {
  const { s } = setting;
  const nodes = Int32Array.from(spline(s), ([node]) => node);
  const weights = Float64Array.from(spline(s), ([, weight]) => weight);
  let [met, losses, pulls] = [0, 0, 0];
  for (let i = 0; i < n; i++) {
    let R = 0;
    for (let k = 0; k < nodes.length; k++) R += weights[k] * rest[NODES * i + nodes[k]];
    const target = psi(own[i], setting);
    const gap = s * (R - target);
    const loss = softplus(gap);
    const pull = -sigmoid(gap) * s * psiSlope(own[i], setting);
    if (target >= nearest[i]) met++;
    losses += loss;
    pulls += pull;
    into.loss[i] = loss;
    into.pull[i] = pull;
  }
  return { met: met / n, loss: losses / n, pull: pulls / n };
}

let room = null;

function judgedBoth(reference) {
  const n = samples.n;
  room ??= { now: rooms(n), then: rooms(n) };
  const now = judged(state, samples, room.now);
  const { m1, m2, m3, lambda, s, form } = reference;
  const key = [m1, m2, m3, lambda, s, form].join();
  if (room.key !== key) [room.key, room.was] = [key, judged(reference, samples, room.then)];
  const then = room.was;
  let [gain, lose] = [0, 0];
  for (let i = 0; i < n; i++) {
    const change = changed(i);
    if (change > 0) gain++;
    else if (change < 0) lose++;
  }
  return { now, then, gain: gain / n, lose: lose / n };
}

const rooms = (n) => ({ loss: new Float64Array(n), pull: new Float64Array(n) });

// 1 if a sample is pulled more than with the reference, −1 if less, 0 if as much, within a hundredth of s.
function changed(i) {
  const by = room.now.pull[i] - room.then.pull[i];
  return by > 0.01 * state.s ? 1 : by < -0.01 * state.s ? -1 : 0;
}

// Shares of the samples in bins of two degrees, the largest 1.
function shareByAngle(angles) {
  const bins = new Float64Array(90);
  for (const angle of angles) bins[Math.min(89, Math.floor((angle * DEGREES) / 2))]++;
  const most = Math.max(...bins);
  return Array.from(bins, (k) => k / most);
}
