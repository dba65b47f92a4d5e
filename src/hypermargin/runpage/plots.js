// The plots by which a threshold is seen and dragged: scores, ROC, DET, and the lengths of the samples.

// What is marked: the pair, or the pairs of the sample.
function marked() {
  if (state.pair !== null) return [pairs[state.pair]];
  return state.sample === null ? [] : pairs.filter((pair) => pair.rows.includes(state.sample));
}

function drawScores(t) {
  const {
    edges: [low, high],
    genuine,
    impostor,
  } = data.histogram;
  const sign = data.unit === "distance" ? -1 : 1;
  const step = (high - low) / genuine.length;
  const steps = (counts, total) => [
    [low, 0],
    ...counts.flatMap((k, i) => {
      const share = (100 * k) / total;
      return [
        [low + i * step, share],
        [low + (i + 1) * step, share],
      ];
    }),
    [high, 0],
  ];
  const curves = [
    { class: "hp-own", points: steps(genuine, data.genuine) },
    { class: "hp-other", points: steps(impostor, data.impostor) },
  ];
  const most = Math.max(...curves.flatMap((c) => c.points.map((p) => p[1])));
  chart(one('[data-plot="scores"]'), {
    x: {
      range: [low, high],
      ticks: ticks(low, high, 5),
      write: (x) => plain(sign * x),
      label: say(`unit_${data.unit}`),
    },
    y: { range: [0, 1.05 * most], label: say("axis_pairs") },
    curves,
    cursor: Math.max(low, Math.min(high, t)),
    height: 230,
    dots: marked().map(({ genuine, score }) => ({
      class: genuine ? "hm-here hp-good" : "hm-here",
      at: [score, 0.03 * most],
      r: 6,
    })),
    name: say("scores_title"),
  });
}

const least = () => Math.floor(Math.log10(1 / data.impostor) + 1e-9);
const rated = (i) => Math.max(least(), Math.log10(Math.max(curve.far[i], 10 ** least())));

function drawRoc() {
  const points = [];
  curve.far.forEach((far, i) => {
    if (i) points.push([rated(i), 100 * curve.tar[i - 1]]);
    points.push([rated(i), 100 * curve.tar[i]]);
  });
  const dotsShown = marked().map(({ score }) => {
    const i = pointOf(score);
    return { class: "hm-knot", at: [rated(i), 100 * curve.tar[i]], r: 6 };
  });
  dotsShown.push({ class: "hm-here", at: [rated(state.t), 100 * curve.tar[state.t]], r: 5.5 });
  chart(one('[data-plot="roc"]'), {
    x: {
      range: [least(), 0],
      ticks: ticks(least(), 0, 6, [1, 2, 5, 10]).filter(Number.isInteger),
      write: tenTo,
      label: "FAR",
    },
    y: { range: [0, 100], label: "TAR, %" },
    curves: [{ class: "hm-main", points }],
    dots: dotsShown,
    cursor: rated(state.t),
    height: 230,
    name: say("roc_title"),
  });
}

// The normal distribution's quantile (Acklam's rational approximation, 1e-9) and its inverse.
function probit(p) {
  const [a, b, c, d] = [
    [
      -39.69683028665376, 220.9460984245205, -275.9285104469687, 138.357751867269, -30.66479806614716,
      2.506628277459239,
    ],
    [-54.47609879822406, 161.5858368580409, -155.6989798598866, 66.80131188771972, -13.28068155288572, 1],
    [
      -0.007784894002430293, -0.3223964580411365, -2.400758277161838, -2.549732539343734, 4.374664141464968,
      2.938163982698783,
    ],
    [0.007784695709041462, 0.3224671290700398, 2.445134137142996, 3.754408661907416, 1],
  ];
  const poly = (k, x) => k.reduce((sum, each) => sum * x + each, 0);
  if (p > 0.97575) return -probit(1 - p);
  if (p < 0.02425) {
    const q = Math.sqrt(-2 * Math.log(p));
    return poly(c, q) / poly(d, q);
  }
  const q = p - 0.5;
  return (poly(a, q * q) * q) / poly(b, q * q);
}
function fromProbit(x) {
  let [low, high] = [1e-12, 1 - 1e-12];
  for (let i = 0; i < 60; i++) {
    const middle = (low + high) / 2;
    if (probit(middle) < x) low = middle;
    else high = middle;
  }
  return low;
}

const DET = [1e-6, 1e-4, 0.01, 0.05, 0.2, 0.5];
const WORST = 0.62; // errors above are not shown

function drawDet() {
  const floor = Math.min(0.5 / data.impostor, 0.5 / data.genuine, 0.01);
  const clip = (p) => probit(Math.max(floor, Math.min(WORST, p)));
  const axis = DET.filter((p) => p >= floor).map((p) => probit(p));
  const write = (x) => `${plain(100 * Number(fromProbit(x).toPrecision(3)))}`;
  const range = [probit(floor), probit(WORST)];
  const points = curve.far
    .map((far, i) => [far, 1 - curve.tar[i]])
    .filter(([a, b]) => a <= WORST && b <= WORST)
    .map(([a, b]) => [clip(a), clip(b)]);
  const here = [clip(curve.far[state.t]), clip(1 - curve.tar[state.t])];
  const equal = probit(Math.max(floor, data.eer));
  chart(one('[data-plot="det"]'), {
    x: { range, ticks: axis, write, label: "FAR, %" },
    y: { range, ticks: axis, write, label: "FRR, %" },
    curves: [
      {
        class: "hm-plain",
        points: [
          [range[0], range[0]],
          [range[1], range[1]],
        ],
      },
      { class: "hm-main", points },
    ],
    dots: [
      { class: "hm-knot", at: [equal, equal] },
      { class: "hm-here", at: here, r: 5.5 },
    ],
    cursor: here[0],
    height: 230,
    name: say("det_title"),
  });
}

function drawNorms() {
  const alone = new Set(data.samples.alone);
  const points = [];
  dots.norm.forEach((norm, k) => alone.has(data.samples.label[k]) || points.push([norm, dots.cosine[k]]));
  const picked = state.pair === null ? [state.sample].filter((k) => k !== null) : pairs[state.pair].rows;
  const x = ranged(points.map((p) => p[0]));
  const y = ranged(
    points.map((p) => p[1]),
    Infinity,
    1,
  );
  chart(one('[data-plot="norms"]'), {
    x: { range: x, ticks: ticks(...x, 5), write: plain, label: say("axis_length") },
    y: { range: y, label: say("axis_own_cosine") },
    curves: [],
    clouds: [{ class: "hp-dots", points }],
    height: 230,
    name: say("norms_title"),
    dots: picked.map((k) => ({ class: "hm-here", at: [dots.norm[k], dots.cosine[k]], r: 6 })),
  });
}

function pickSample(event) {
  const svg = event.currentTarget;
  const [left, right, bottom, top] = JSON.parse(svg.dataset.frame);
  const [x0, x1, y0, y1] = JSON.parse(svg.dataset.range);
  const box = svg.getBoundingClientRect();
  const far = (k) => {
    const px = left + ((dots.norm[k] - x0) / (x1 - x0)) * (right - left) - (event.clientX - box.left);
    const py = bottom - ((dots.cosine[k] - y0) / (y1 - y0)) * (bottom - top) - (event.clientY - box.top);
    return px * px + py * py;
  };
  let best = 0;
  for (let k = 1; k < dots.norm.length; k++) if (far(k) < far(best)) best = k;
  choose({ sample: best, pair: null });
}

// With the keyboard: from sample to sample, by length.
function stepSample(event) {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by) return;
  event.preventDefault();
  const order = [...dots.norm.keys()].sort((a, b) => dots.norm[a] - dots.norm[b]);
  const now = state.sample === null ? -1 : order.indexOf(state.sample);
  choose({ sample: order[Math.max(0, Math.min(order.length - 1, now + by))], pair: null });
}
